# SPDX-License-Identifier: Apache-2.0
"""ONNX export: onnxruntime predicts from raw values exactly what the model predicts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.models.onnx import REFUSED_NUMBER, REFUSED_TEXT, export_onnx
from veilwood.privacy.entropy import seeded_for_tests

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]

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


def fitted(task: str, n: int = 500, **parameters: Any) -> Any:
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
    model = fitted("classification", voting=voting, leaves=leaves)
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
    model = fitted("regression", leaves=leaves)
    X = table(3000, seed=5)
    found = run(model, tmp_path / "model.onnx", X)
    np.testing.assert_array_equal(found["value"], model.predict(X))
    assert found["value"].shape == (3000,)


def test_numbers_next_to_a_threshold_go_the_same_way(tmp_path: Path) -> None:
    model = fitted("classification")
    encoding = model.model_.encoding
    at = np.unique(model.forest_.cut[(model.forest_.feature == 1)])
    edges = encoding.threshold(1, at[at > 0].astype(np.int64))
    incomes = np.concatenate([np.nextafter(edges, -np.inf), edges, np.nextafter(edges, np.inf)])
    X = table(len(incomes), seed=3).assign(income=incomes)
    np.testing.assert_array_equal(run(model, tmp_path / "m", X)["probabilities"], model.predict_proba(X))


def test_single_precision_input(tmp_path: Path) -> None:
    model = fitted("classification", voting="threshold")
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
    model = fitted("classification")
    export_onnx(model, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    properties = session.get_modelmeta().custom_metadata_map
    assert json.loads(properties["certificate"]) == model.privacy_.to_dict()
    assert "NOT PRIVATE" not in session.get_modelmeta().description
    assert b"NOT PRIVATE" not in path.read_bytes()
    with seeded_for_tests(5):
        export_onnx(fitted("classification"), path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert "NOT PRIVATE" in session.get_modelmeta().description


def test_without_onnx_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(vw.VeilwoodError, match=r"pip install 'veilwood\[onnx\]'"):
        export_onnx(fitted("classification"), tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    nothing: Any = object()
    with pytest.raises(vw.VeilwoodError, match="object has no ONNX export"):
        export_onnx(nothing, tmp_path / "m")
    with pytest.raises(vw.ModelFileError, match="cannot write"):
        export_onnx(fitted("classification"), tmp_path / "nowhere" / "m")
