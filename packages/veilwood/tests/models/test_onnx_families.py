# SPDX-License-Identifier: Apache-2.0
"""ONNX export of every family, over random schemas: missing, unknown and far values, scales, bins, many branches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood import estimators
from veilwood.data.counts import ContingencyTable
from veilwood.forests.adaptive.contingency import tables_to_forest
from veilwood.forests.adaptive.steps import only_initial_estimate
from veilwood.models.onnx import export_onnx
from veilwood_papers.not_private import as_published

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]

KINDS: list[Any] = [
    *(getattr(estimators, name) for name in estimators.__all__ if not name.endswith("Predictor")),
    *(getattr(as_published, name) for name in as_published.__all__),
]


def random_schema(rng: np.random.Generator, task: str) -> vw.Schema:
    """Columns of all sorts, each nullable by a coin."""
    columns: list[dict[str, Any]] = []
    for number in range(int(rng.integers(2, 6))):
        entry: dict[str, Any] = {"name": f"c{number}", "nullable": bool(rng.random() < 0.5)}
        kind = rng.choice(["plain", "scaled", "cut", "binned", "few", "many", "other"])
        if kind in ("plain", "scaled", "cut", "binned"):
            low = float(rng.choice([0.0, -7.5, 1e-3]) if kind != "scaled" else 0.0)
            entry |= {"kind": "numeric", "lower": low, "upper": low + float(10 ** rng.uniform(-2, 4))}
            if kind == "scaled":
                entry["transform"] = str(rng.choice(["log1p", "sqrt", "asinh"]))
            if kind == "cut":
                entry["cutoffs"] = np.linspace(low, entry["upper"], 5)[1:-1].tolist()
            if kind == "binned":
                entry["bins"] = int(rng.integers(2, 7))
        else:
            size = {"few": 3, "many": 70, "other": 5}[str(kind)]
            entry |= {"kind": "categorical", "values": [f"v{i}" for i in range(size)]}
            if kind == "other":
                entry["other"] = "v4"
        columns.append(entry)
    goal: dict[str, Any] = {"kind": "numeric", "lower": -3.0, "upper": 17.0}
    if task == "classification":
        goal = {"kind": "categorical", "values": ["no", "yes", "perhaps"][: int(rng.integers(2, 4))]}
    columns.append({"name": "goal", **goal})
    return vw.Schema.from_dict({"name": "any", "task": task, "target": "goal", "columns": columns})


def random_rows(rng: np.random.Generator, schema: vw.Schema, n: int, *, wild: bool) -> pd.DataFrame:
    """Rows that the schema allows; wild ones lie outside the bounds, on them, or in no category that it names."""
    made: dict[str, Any] = {}
    for column in schema.features:
        values: Any
        if column.kind == "numeric":
            low, high = column.bounds
            values = rng.uniform(low, high, n)
            if wild:
                odd = np.array([low, high, -np.inf, np.inf, low - 1, high + 1, np.nextafter(low, high), -0.0])
                values = np.where(rng.random(n) < 0.2, rng.choice(odd, n), values)
            if column.nullable:
                values = np.where(rng.random(n) < 0.2, np.nan, values)
        else:
            values = rng.choice(np.array(column.values, object), n)
            if wild and column.other is not None:
                values[rng.random(n) < 0.2] = "never heard of"
            if column.nullable:
                values[rng.random(n) < 0.2] = None
        made[column.name] = values
    return pd.DataFrame(made)


def random_target(rng: np.random.Generator, schema: vw.Schema, X: pd.DataFrame) -> Any:
    """A target that depends on the first column."""
    first = X.iloc[:, 0]
    place = (first.rank(method="first") if first.dtype == float else first.astype("category").cat.codes).fillna(0)
    share = ((place - place.min()) / max(float(np.ptp(place)), 1.0)).to_numpy(float)
    classes = schema.classes
    if classes:
        told = np.clip(share * len(classes) + rng.normal(0, 0.3, len(X)), 0, len(classes) - 1).astype(int)
        return np.array(classes, object)[told]
    return np.clip(20 * share - 3 + rng.normal(0, 1, len(X)), -3, 17)


def predicted(model: Any, path: Path, X: pd.DataFrame) -> dict[str, Any]:
    """What onnxruntime says of raw values."""
    export_onnx(model, path)
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = {
        given.name: X[[given.name]].fillna("").to_numpy(object)
        if given.type == "tensor(string)"
        else X[[given.name]].to_numpy(np.float64)
        for given in session.get_inputs()
    }
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def assert_same(model: Any, path: Path, X: pd.DataFrame) -> None:
    found = predicted(model, path, X)
    if model._task == "regression":
        np.testing.assert_allclose(found["value"], model.predict(X), rtol=1e-12, atol=1e-12)
        return
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(X), rtol=1e-9, atol=1e-12)
    if "label" in found:
        np.testing.assert_array_equal(found["label"], model.predict(X))


def fitted(kind: Any, seed: int, **more: Any) -> tuple[Any, pd.DataFrame]:
    """A model of a random schema, and rows to predict for."""
    rng = np.random.default_rng(seed)
    schema = random_schema(rng, kind._task)
    X = random_rows(rng, schema, 600, wild=False)
    budget = {"epsilon_in_paper" if "NotPrivate" in kind.__name__ else "epsilon": 8.0}
    size = {} if "Private" in kind.__name__ and "Not" not in kind.__name__ else {"n_estimators": 4, "max_depth": 2}
    model = kind(schema, **{**budget, **size, "random_state": seed, **more}).fit(X, random_target(rng, schema, X))
    return model, random_rows(rng, schema, 400, wild=True)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_family_predicts_the_same(kind: Any, seed: int, tmp_path: Path) -> None:
    model, X = fitted(kind, seed)
    assert_same(model, tmp_path / "model.onnx", X)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_family_predicts_the_same_for_many_schemas(kind: Any, seed: int, tmp_path: Path) -> None:
    model, X = fitted(kind, seed)
    assert_same(model, tmp_path / "model.onnx", X)


@pytest.mark.parametrize(("kind", "more"), [
    (vw.MatrixForestClassifier, {"branching": "binary", "voting": "weight"}),
    (vw.MatrixForestClassifier, {"branching": "multiway", "voting": "weight", "mechanism": "laplace"}),
    (vw.GreedyForestClassifier, {"branching": "binary"}),
    (vw.GreedyForestRegressor, {"branching": "multiway"}),
    (vw.PrivateForestClassifier, {"epsilon": 0.001}),
    (vw.PrivateForestRegressor, {"epsilon": 0.001}),
    (vw.PrivateForestClassifier, {"epsilon": 50.0, "delta": 1e-6}),
    (vw.PrivateForestRegressor, {"epsilon": 50.0, "delta": 1e-6}),
])  # fmt: skip
def test_other_settings_predict_the_same(kind: Any, more: dict[str, Any], tmp_path: Path) -> None:
    for seed in (11, 12):
        model, X = fitted(kind, seed, **more)
        assert_same(model, tmp_path / "model.onnx", X)


def test_a_private_forest_that_knows_nothing_is_exported(tmp_path: Path) -> None:
    model, X = fitted(vw.PrivateForestRegressor, 3, epsilon=1e-4, n_rows=600)
    assert only_initial_estimate(model.plan_)
    assert_same(model, tmp_path / "numbers.onnx", X)
    model, X = fitted(vw.PrivateForestClassifier, 3)
    leaf, _ = tables_to_forest([ContingencyTable(())])
    model.model_ = replace(
        model.model_, forest=leaf, leaf_values=np.zeros((1, len(model.model_.start))), cell_forest=None
    )
    assert_same(model, tmp_path / "classes.onnx", X)


def test_fine_cells_are_exported(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    schema = vw.Schema.numeric((0, 1), classes=["a", "b", "c"], n_features=3)
    X = rng.random((3_000, 3))
    y = np.array(["a", "b", "c"])[(8 * X).astype(int).sum(axis=1) % 3]
    fits = (vw.PrivateForestClassifier(schema, epsilon=40.0, random_state=0).fit(X, y) for _ in range(12))
    model = next(fit for fit in fits if fit.model_.cell_forest is not None)  # the first, but for chance
    frame = pd.DataFrame(rng.random((500, 3)) * 1.2 - 0.1, columns=list(schema.feature_names))
    assert_same(model, tmp_path / "forest.onnx", frame)
    model.model_ = replace(model.model_, cell_weight=0.5)
    assert_same(model, tmp_path / "half.onnx", frame)


def test_a_predictor_that_answers_privately_is_refused_and_says_why(tmp_path: Path) -> None:
    car = vw.datasets.car()
    predictor = vw.MatrixForestPredictor(car.schema, n_estimators=4, max_depth=2, random_state=0).fit(car.X, car.y)
    with pytest.raises(vw.VeilwoodError, match=r"answers each batch by a separate release.*MatrixForestClassifier"):
        export_onnx(predictor, tmp_path / "m")
    predictor.answer(car.X[:10])
    with pytest.raises(vw.VeilwoodError, match="answers each batch"):
        export_onnx(predictor, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
