# SPDX-License-Identifier: Apache-2.0
"""ONNX export: onnxruntime predicts from raw values exactly what the model predicts, for every family."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood import estimators
from veilwood.data.counts import ContingencyTable
from veilwood.data.encoding import Encoding
from veilwood.errors import SetupError, UseError
from veilwood.forests.adaptive.contingency import tables_to_forest
from veilwood.forests.adaptive.steps import only_initial_estimate
from veilwood.models.onnx import REFUSED_NUMBER, REFUSED_TEXT, Graph, export_onnx, tree_attributes
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.trees.forest import build_forest
from veilwood_papers.not_private import as_published
from veilwood_testing.errors import rejects

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]


onnx = pytest.importorskip("onnx")


onnxruntime = pytest.importorskip("onnxruntime")


BIG = [f"v{place}" for place in range(90)]  # more categories than fit the bits of one word


FEATURES: list[dict[str, Any]] = [
    {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "nullable": True},
    {"name": "income", "kind": "numeric", "lower": 0.5, "upper": 1e5, "transform": "log1p"},
    {"name": "ward", "kind": "categorical", "values": ["A", "B", "C", "rest"], "other": "rest"},
    {"name": "code", "kind": "categorical", "values": BIG, "nullable": True},
]


CLASSES = ["no", "yes", "perhaps"]


def schema(task: str, features: list[dict[str, Any]] = FEATURES, classes: list[str] = CLASSES) -> vw.Schema:
    target: dict[str, Any] = {"kind": "categorical", "values": classes}
    if task == "regression":
        target = {"kind": "numeric", "lower": -3, "upper": 17}
    columns = [*features, {"name": "goal", **target}]
    return vw.Schema.from_dict({"name": "clinic", "task": task, "target": "goal", "columns": columns})


def table(n: int, seed: int) -> pd.DataFrame:
    """Rows with missing values, infinities, numbers outside the bounds and unknown wards."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.2, np.nan, rng.normal(50, 60, n)),
            "income": np.exp(rng.normal(5, 5, n)),
            "ward": rng.choice(["A", "B", "C", "rest", "elsewhere"], n),
            "code": rng.choice(np.array([*BIG, None], dtype=object), n),
        }
    )
    X.loc[:3, "age"] = [np.inf, -np.inf, 100.0, 0.0]
    X.loc[:3, "income"] = [np.inf, -np.inf, 1e5, 0.5]
    return X


def fit_random_trees(task: str, n: int = 500, **parameters: Any) -> Any:
    rng = np.random.default_rng(1)
    y = rng.choice(CLASSES, n) if task == "classification" else rng.random(n) * 20 - 3
    family = vw.RandomTreesClassifier if task == "classification" else vw.RandomTreesRegressor
    parameters = {"epsilon": 3.0, "n_estimators": 15, "max_depth": 6, "random_state": 0} | parameters
    return family(schema(task), **parameters).fit(table(n, 0), y)


def run(model: Any, path: Path, X: pd.DataFrame, **options: Any) -> dict[str, Any]:
    """Export, check, and predict with onnxruntime from the raw values of a table."""
    export_onnx(model, path, **options)
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed: dict[str, Any] = {}
    for given in session.get_inputs():
        values = X[[given.name]]
        if given.type == "tensor(string)":
            feed[given.name] = values.fillna("").to_numpy(object)
        else:
            feed[given.name] = values.to_numpy(np.float64 if given.type == "tensor(double)" else np.float32)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


@pytest.mark.parametrize("leaves", ["plain", "empirical-bayes"])
@pytest.mark.parametrize("voting", ["majority", "threshold", "probabilistic"])
def test_a_classifier_predicts_the_same(voting: str, leaves: str, tmp_path: Path) -> None:
    model = fit_random_trees("classification", voting=voting, leaves=leaves)
    X = table(3000, seed=5)
    found = run(model, tmp_path / "model.onnx", X)
    np.testing.assert_array_equal(found["probabilities"], model.predict_proba(X))
    if voting == "probabilistic":
        assert set(found) == {"probabilities"}
    else:
        np.testing.assert_array_equal(found["label"], model.predict(X))
        assert len(set(found["label"])) > 1


@pytest.mark.parametrize("leaves", ["plain", "empirical-bayes"])
def test_a_regressor_predicts_the_same(leaves: str, tmp_path: Path) -> None:
    model = fit_random_trees("regression", leaves=leaves)
    X = table(3000, seed=5)
    found = run(model, tmp_path / "model.onnx", X)
    np.testing.assert_array_equal(found["value"], model.predict(X))
    assert found["value"].shape == (3000,)


def test_numbers_next_to_a_threshold_go_the_same_way(tmp_path: Path) -> None:
    model = fit_random_trees("classification")
    encoding = model.model_.encoding
    at = np.unique(model.forest_.cut[(model.forest_.feature == 1)])
    edges = encoding.threshold(1, at[at > 0].astype(np.int64))
    incomes = np.concatenate([np.nextafter(edges, -np.inf), edges, np.nextafter(edges, np.inf)])
    X = table(len(incomes), seed=3).assign(income=incomes)
    np.testing.assert_array_equal(run(model, tmp_path / "m", X)["probabilities"], model.predict_proba(X))


def test_single_precision_input(tmp_path: Path) -> None:
    model = fit_random_trees("classification", voting="threshold")
    X = table(2000, seed=5)
    X[["age", "income"]] = X[["age", "income"]].astype(np.float32)
    found = run(model, tmp_path / "m", X, float64=False)
    np.testing.assert_array_equal(found["probabilities"], model.predict_proba(X))


def strict_model(classes: list[Any]) -> Any:
    """A forest over columns that refuse what they do not know."""
    features: list[dict[str, Any]] = [
        {"name": "x", "kind": "numeric", "lower": 0, "upper": 1},
        {"name": "kind", "kind": "categorical", "values": ["a", "b"]},
        {"name": "other", "kind": "categorical", "values": ["a", "rest"], "other": "rest"},
    ]
    n = 200
    X = pd.DataFrame({"x": np.linspace(0, 1, n), "kind": ["a", "b"] * (n // 2), "other": "a"})
    declared = schema("classification", features, classes)
    y = np.array(classes)[np.arange(n) % len(classes)]
    return vw.RandomTreesClassifier(declared, n_estimators=5, max_depth=3).fit(X, y)


@pytest.mark.parametrize(("classes", "sign"), [(["n", "y"], REFUSED_TEXT), ([3, 4], REFUSED_NUMBER)])
def test_values_outside_the_schema_do_not_predict(classes: list[Any], sign: Any, tmp_path: Path) -> None:
    model = strict_model(classes)
    rows = [(0.3, "a", "a"), (np.nan, "a", "a"), (0.3, "c", "a"), (0.3, "", "a"), (0.3, "a", ""), (0.3, "b", "new")]
    X = pd.DataFrame(rows, columns=["x", "kind", "other"])
    found = run(model, tmp_path / "m", X)
    good = np.array([True, False, False, False, False, True])
    np.testing.assert_array_equal(np.isnan(found["probabilities"]).all(axis=1), ~good)
    np.testing.assert_array_equal(found["label"] == sign, ~good)
    np.testing.assert_array_equal(found["label"][good], model.predict(X[good]))
    for _, row in X[~good].iterrows():
        with pytest.raises(vw.OutOfSchemaError):
            model.predict(pd.DataFrame([row]).replace("", None))


def test_categories_are_known_by_their_text_and_as_the_schema_declares_them(tmp_path: Path) -> None:
    features = [{"name": "level", "kind": "categorical", "values": ["1.0", "2.50", "true"]}]
    declared = schema("classification", features, ["0.0", "1"])
    frame = pd.DataFrame({"level": ["1.0", "2.50", "true"] * 60})
    model = vw.RandomTreesClassifier(declared, n_estimators=5, max_depth=2).fit(frame, [0, 1, 1] * 60)
    X = pd.DataFrame({"level": ["1.0", "1", "2.50", "2.5", "true", "True", "3"]})
    found = run(model, tmp_path / "m", X)
    assert found["label"][:-1].tolist() == model.predict(X[:-1]).tolist()
    assert set(found["label"]) <= {"0.0", "1", REFUSED_TEXT}
    assert found["label"][-1] == REFUSED_TEXT


@pytest.mark.parametrize(
    ("classes", "dtype"), [([3, 4], np.int64), ([False, True], object), ([0.5, 1.5], object), (["a", "b"], object)]
)
def test_labels_have_the_type_of_the_classes(classes: list[Any], dtype: Any, tmp_path: Path) -> None:
    model = strict_model(classes)
    X = pd.DataFrame({"x": [0.1, 0.9], "kind": ["a", "b"], "other": ["a", "a"]})
    label = run(model, tmp_path / "m", X)["label"]
    assert label.dtype == dtype
    assert [str(entry) for entry in label] == [str(entry) for entry in model.predict(X)]


def test_features_may_have_any_name(tmp_path: Path) -> None:
    names = ["label", "probabilities", "Where", "constant", "größe in m²"]
    declared = vw.Schema.numeric((0, 1), classes=["0", "1"], names=names)
    X = pd.DataFrame(np.random.default_rng(0).random((200, 5)), columns=names)
    model = vw.RandomTreesClassifier(declared, n_estimators=5, max_depth=3).fit(X, np.arange(200) % 2)
    found = run(model, tmp_path / "m", X)
    np.testing.assert_array_equal(found["label_"], model.predict(X))
    np.testing.assert_array_equal(found["probabilities_"], model.predict_proba(X))


def test_trees_of_one_leaf(tmp_path: Path) -> None:
    features: list[dict[str, Any]] = [{"name": "only", "kind": "categorical", "values": ["a"]}]
    X = pd.DataFrame({"only": ["a"] * 50})
    y = ["no"] * 40 + ["yes"] * 10
    model = vw.RandomTreesClassifier(schema("classification", features), n_estimators=3, max_depth=2).fit(X, y)
    assert model.forest_.n_nodes == 3
    np.testing.assert_array_equal(run(model, tmp_path / "m", X)["probabilities"], model.predict_proba(X))


def test_the_certificate_travels_along(tmp_path: Path) -> None:
    path = tmp_path / "m"
    model = fit_random_trees("classification")
    export_onnx(model, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    properties = session.get_modelmeta().custom_metadata_map
    assert json.loads(properties["certificate"]) == model.privacy_.to_dict()
    assert "NOT PRIVATE" not in session.get_modelmeta().description
    assert b"NOT PRIVATE" not in path.read_bytes()
    with seeded_for_tests(5):
        export_onnx(fit_random_trees("classification"), path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert "NOT PRIVATE" in session.get_modelmeta().description


def test_without_onnx_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with rejects(SetupError, raised_in="Graph.__init__"):
        export_onnx(fit_random_trees("classification"), tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    nothing: Any = object()
    with rejects(UseError, raised_in="export_onnx"):
        export_onnx(nothing, tmp_path / "m")
    with rejects(vw.ModelFileError, raised_in="export_onnx"):
        export_onnx(fit_random_trees("classification"), tmp_path / "nowhere" / "m")


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
        values = np.clip(share * len(classes) + rng.normal(0, 0.3, len(X)), 0, len(classes) - 1).astype(int)
        return np.array(classes, object)[values]
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


def fit_family(kind: Any, seed: int, **more: Any) -> tuple[Any, pd.DataFrame]:
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
    model, X = fit_family(kind, seed)
    assert_same(model, tmp_path / "model.onnx", X)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_family_predicts_the_same_for_many_schemas(kind: Any, tmp_path: Path) -> None:
    for seed in range(100, 160):
        model, X = fit_family(kind, seed)
        assert_same(model, tmp_path / f"{seed}.onnx", X)


@pytest.mark.parametrize(("kind", "more"), [
    (vw.MatrixForestClassifier, {"branching": "binary", "voting": "weight"}),
    (vw.MatrixForestClassifier, {"branching": "multiway", "voting": "weight", "mechanism": "laplace"}),
    (vw.MatrixForestClassifier, {"branching": "multiway", "voting": "geometric"}),
    (vw.GreedyForestClassifier, {"branching": "binary"}),
    (vw.GreedyForestRegressor, {"branching": "multiway"}),
    (vw.PrivateForestClassifier, {"epsilon": 0.001}),
    (vw.PrivateForestRegressor, {"epsilon": 0.001}),
    (vw.PrivateForestClassifier, {"epsilon": 50.0, "delta": 1e-6}),
    (vw.PrivateForestRegressor, {"epsilon": 50.0, "delta": 1e-6}),
])  # fmt: skip
def test_other_settings_predict_the_same(kind: Any, more: dict[str, Any], tmp_path: Path) -> None:
    for seed in (11, 12):
        model, X = fit_family(kind, seed, **more)
        assert_same(model, tmp_path / "model.onnx", X)


def test_a_private_forest_that_knows_nothing_is_exported(tmp_path: Path) -> None:
    model, X = fit_family(vw.PrivateForestRegressor, 3, epsilon=1e-4, n_rows=600)
    assert only_initial_estimate(model.plan_)
    assert_same(model, tmp_path / "numbers.onnx", X)
    model, X = fit_family(vw.PrivateForestClassifier, 3)
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
    with rejects(UseError, raised_in="export_onnx"):
        export_onnx(predictor, tmp_path / "m")
    predictor.answer(car.X[:10])
    with rejects(UseError, raised_in="export_onnx"):
        export_onnx(predictor, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_taken_get_underscores() -> None:
    graph = Graph(["Add", "age"])
    assert (graph.unused_name("age"), graph.unused_name("age"), graph.unused_name("ward")) == ("age_", "age__", "ward")


def test_a_graph_computes_and_carries_its_certificate() -> None:
    graph = Graph(["age", "constant"])
    doubled = graph.add_node("Mul", graph.add_input("age", "DOUBLE"), graph.add_constant(np.array([[2.0]])))
    graph.add_output(graph.add_node("Cast", doubled, to=graph.onnx.TensorProto.INT64), "result", "INT64", ["rows", 1])
    model = graph.to_model("{}", "epsilon 1")
    graph.onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"age": np.array([[1.5], [3.0]])})
    np.testing.assert_array_equal(found, [[3], [6]])
    assert (model.doc_string, session.get_modelmeta().custom_metadata_map) == ("epsilon 1", {"certificate": "{}"})


def test_intervals_that_are_sent_here_and_there_are_refused() -> None:
    encoding = Encoding(vw.Schema.numeric((0, 1), classes=["a", "b"], n_features=1), "bins")
    odd = build_forest([3], [0, -1, -1], [-1, 0, 0], [2, 0, 0], [np.array([0, 1, 0, 1, 0], np.uint16)])
    with rejects(UseError, raised_in="_split_test"):
        tree_attributes(odd, encoding)


def test_a_node_of_many_branches_becomes_as_few_decisions_as_can_be() -> None:
    columns = [{"name": "v", "kind": "categorical", "values": [f"v{i}" for i in range(9)]}]
    goal = {"name": "y", "kind": "categorical", "values": ["a", "b"]}
    schema = vw.Schema.from_dict({"name": "s", "task": "classification", "target": "y", "columns": [*columns, goal]})
    nine = build_forest([10], [0, *[-1] * 9], [-1, *[0] * 9], [9, *[0] * 9], [np.arange(9, dtype=np.uint16)])
    result = tree_attributes(nine, Encoding(schema))
    assert len(result["nodes_splits"]) == 8
    assert "membership_values" not in result
    assert sorted(result["nodes_splits"].tolist()) == list(range(1, 9))
