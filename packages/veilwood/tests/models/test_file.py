# SPDX-License-Identifier: Apache-2.0
"""Model files: saved arrays return exactly, damage is rejected, nothing private is inside; skops and MLflow."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save as write_safetensors
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import veilwood as vw
from veilwood import estimators
from veilwood.data.open_rows import open_rows
from veilwood.errors import ModelFileError, PlanError, UseError
from veilwood.models import file as model_file
from veilwood.models.file import FORMAT, load, save
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.plan import Layout, Plan
from veilwood.trees.counting import leaf_totals
from veilwood_testing.errors import rejects

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]


FEATURES = [
    {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "nullable": True},
    {"name": "income", "kind": "numeric", "lower": 0, "upper": 1e6, "transform": "log1p"},
    {"name": "ward", "kind": "categorical", "values": ["A", "B", "C", "rest"], "other": "rest"},
]


def schema(classes: list[Any] | None = None) -> vw.Schema:
    target = {"kind": "categorical", "values": classes} if classes else {"kind": "numeric", "lower": -3, "upper": 17}
    task = "classification" if classes else "regression"
    columns = [*FEATURES, {"name": "y", **target}]
    return vw.Schema.from_dict({"name": "clinic", "task": task, "target": "y", "columns": columns})


def table(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = np.where(rng.random(n) < 0.2, np.nan, rng.normal(50, 40, n))
    return pd.DataFrame({"age": age, "income": np.exp(rng.normal(8, 4, n)), "ward": rng.choice(["A", "B", "Z"], n)})


def fitted_classifier(classes: list[Any] | None = None, n: int = 300, **parameters: Any) -> vw.RandomTreesClassifier:
    labels: list[Any] = ["no", "yes", "perhaps"] if classes is None else classes
    y = np.array(labels)[np.random.default_rng(1).integers(0, len(labels), n)]
    usual: dict[str, Any] = {"schema": schema(labels), "n_estimators": 4, "max_depth": 3}
    return vw.RandomTreesClassifier(**usual | parameters).fit(table(n), y)


def fitted_regressor(n: int = 300, **parameters: Any) -> vw.RandomTreesRegressor:
    y = np.random.default_rng(1).random(n) * 20 - 3
    return vw.RandomTreesRegressor(schema(), n_estimators=4, max_depth=3, **parameters).fit(table(n), y)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.veilwood"


@pytest.fixture
def saved(path: Path) -> Path:
    save(fitted_classifier(random_state=0), path)
    return path


def contents(path: Path) -> str:
    """Return the check sum of a file, whatever the order of its header."""
    return model_file._content_digest(*model_file._parse_file(path.read_bytes()))


# -- round trip --------------------------------------------------------------------------------------------------


MODELS: dict[str, Callable[[], Any]] = {
    "plain": lambda: fitted_classifier(random_state=3),
    "threshold voting": lambda: fitted_classifier(voting="threshold", leaves="empirical-bayes"),
    "probabilistic voting": lambda: fitted_classifier(voting="probabilistic", random_state=np.int64(7)),
    "many trees, Gaussian": lambda: fitted_classifier(n_estimators=40, delta=1e-6, epsilon=0.5),
    "exact epsilon": lambda: fitted_classifier(epsilon=Fraction(1, 3), adjacency="replace-one"),
    "three rows": lambda: fitted_classifier(privacy_unit=vw.Rows(3), random_state=np.random.default_rng(0)),
    "numpy parameters": lambda: fitted_classifier(n_estimators=np.int64(3), epsilon=np.float64(0.7), n_jobs=2),
    "no noise": lambda: fitted_classifier(epsilon=float("inf")),
    "inferred": lambda: fitted_classifier(schema="infer"),
    "whole-number classes": lambda: fitted_classifier(classes=[0, 1]),
    "boolean classes": lambda: fitted_classifier(classes=[False, True]),
    "float classes": lambda: fitted_classifier(classes=[0.5, 1.5]),
    "regressor": lambda: fitted_regressor(random_state=0),
    "regressor, shrunk": lambda: fitted_regressor(leaves="empirical-bayes", epsilon=0.1, delta=0.01),
    "in memory ledger": lambda: fitted_regressor(ledger=vw.MemoryLedger()),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_exactly(name: str, path: Path) -> None:
    model = MODELS[name]()
    save(model, path)
    again = load(path)
    queries = table(200, seed=2)
    if name == "inferred":
        queries = queries.assign(ward="A")
    assert type(again) is type(model)
    np.testing.assert_array_equal(again.predict(queries), model.predict(queries))
    if hasattr(model, "classes_"):
        np.testing.assert_array_equal(again.predict_proba(queries), model.predict_proba(queries))
        np.testing.assert_array_equal(again.classes_, model.classes_)
        assert again.classes_.dtype == model.classes_.dtype
    assert again.plan_ == model.plan_
    assert again.plan_.fingerprint() == model.plan_.fingerprint()
    assert again.privacy_ == model.privacy_
    assert again.schema_ == model.schema_
    assert again.n_features_in_ == model.n_features_in_
    assert list(again.feature_names_in_) == list(model.feature_names_in_)
    assert again.ledger is None
    save(again, path.with_suffix(".again"))
    assert contents(path.with_suffix(".again")) == contents(path)


def test_an_id_unit_comes_back(path: Path) -> None:
    X = table(60).assign(patient=np.arange(60) // 2)
    y = np.where(np.arange(60) % 2 == 0, "no", "yes")
    unit = {"id": "patient", "at_most": 2}
    model = vw.RandomTreesClassifier(schema(["no", "yes"]), privacy_unit=unit, n_estimators=2, max_depth=2).fit(X, y)
    save(model, path)
    again = load(path)
    assert again.plan_ == model.plan_
    assert again.privacy_unit == unit
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_parameters_come_back(path: Path) -> None:
    model = fitted_classifier(voting="threshold", trees="disjoint", random_state=5, epsilon=0.25, n_jobs=2)
    save(model, path)
    parameters = {key: value for key, value in model.get_params().items() if key != "schema"}
    assert {key: value for key, value in load(path).get_params().items() if key != "schema"} == parameters


@pytest.mark.parametrize("parameters", [{"epsilon": float("inf")}, {"schema": "infer"}])
def test_not_private_is_said_in_the_file_and_after(parameters: dict[str, Any], path: Path) -> None:
    save(fitted_classifier(**parameters), path)
    assert b"NOT PRIVATE" in path.read_bytes()
    again = load(path)
    assert not again.privacy_.is_private
    assert again.privacy_.epsilon is None
    assert "NOT PRIVATE" in repr(again)


def test_seeded_noise_stays_not_private(path: Path) -> None:
    with seeded_for_tests(11):
        save(fitted_classifier(), path)
    assert not load(path).privacy_.is_private


def test_a_private_file_does_not_say_not_private(saved: Path) -> None:
    assert b"NOT PRIVATE" not in saved.read_bytes()
    assert load(saved).privacy_.is_private


def test_plans_of_selections_come_back() -> None:
    from veilwood.privacy.loss import Loss
    from veilwood.privacy.neighbours import Neighbours, RowsOf
    from veilwood.privacy.selection import NoisyMax
    from veilwood.privacy.steps import Step

    loss = Loss.pure(Fraction(1, 3))
    step = Step("choose", loss, NoisyMax(Fraction(1, 3), 2), 2, (5,))
    neighbours = Neighbours("replace-one", RowsOf("patient", 4))
    plan = Plan("Some", loss, neighbours, (step,), "choices", "s", "0", Layout(leaves=3), 0.0)
    assert Plan.from_dict(json.loads(plan.to_json())) == plan
    with rejects(PlanError, raised_in="Plan.from_dict"):
        Plan.from_dict({"estimator": "x"})


# -- what cannot be saved ------------------------------------------------------------------------------------------


def test_only_fitted_models_of_the_library_are_saved(path: Path) -> None:
    class Mine(vw.RandomTreesClassifier):
        pass

    with pytest.raises(NotFittedError):
        save(vw.RandomTreesClassifier(schema(["a", "b"])), path)
    with rejects(UseError, raised_in="save"):
        save(Mine(schema(["a", "b"])), path)
    pipeline: Any = make_pipeline(FunctionTransformer(), fitted_classifier())
    with rejects(UseError, raised_in="save"):
        save(pipeline, path)
    assert not path.exists()


def test_a_full_disk_leaves_the_old_file_and_no_other(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with rejects(vw.ModelFileError, raised_in="save") as caught:
        save(fitted_classifier(), saved)
    assert "\n" not in str(caught.value)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_missing_or_wrong_place_is_one_line(tmp_path: Path) -> None:
    model = fitted_classifier()
    for place in (tmp_path / "nowhere" / "model", tmp_path):
        with rejects(vw.ModelFileError, raised_in="save"):
            save(model, place)
    assert list(tmp_path.iterdir()) == []
    assert not list(tmp_path.parent.glob(".*.part"))


# -- what is refused on load ---------------------------------------------------------------------------------------


def refused(path: Path, reason: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(vw.ModelFileError, match=reason) as caught:
            load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.abort, ()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x00", b"age,ward\n1,A\n", b"\xff" * 100, pickle.dumps(Bomb()),
        (2).to_bytes(8, "little") + b"[]", (4).to_bytes(8, "little") + b"null",
        (10**6).to_bytes(8, "little") + b"[" * 10**6,
        write_safetensors({"x": np.zeros(3)}),
        write_safetensors({"x": np.zeros(3)}, {"format": "pt"}),
    ],
)  # fmt: skip
def test_other_files_are_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    refused(path, "not a Veilwood model")


def test_a_file_with_holes_costs_no_memory(tmp_path: Path) -> None:
    """It says that it has a tebibyte, and has nothing on the disk: all of it was asked for at once."""
    path = tmp_path / "holes.veilwood"
    path.write_bytes((1 << 40).to_bytes(8, "little"))
    os.truncate(path, 1 << 40)
    refused(path, "more than any model")


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none", "no such file")
    refused(tmp_path, "readable model file")


def test_every_truncation_is_refused(saved: Path) -> None:
    content = saved.read_bytes()
    for length in {*range(0, len(content), 97), *range(len(content) - 20, len(content))}:
        saved.write_bytes(content[:length])
        refused(saved, "damaged")
    saved.write_bytes(content + b"\x00")
    refused(saved, "damaged")


def test_every_flipped_bit_is_refused(saved: Path) -> None:
    content = saved.read_bytes()
    rng = np.random.default_rng(0)
    for place in {*range(16), *rng.integers(0, len(content), 400).tolist()}:
        altered = bytearray(content)
        altered[place] ^= 1 << int(rng.integers(8))
        saved.write_bytes(altered)
        refused(saved, "damaged|newer")


def test_later_formats_ask_for_an_upgrade(saved: Path) -> None:
    forge(saved, metadata={"format": str(FORMAT + 1)})
    refused(saved, "newer Veilwood. Hint: run pip install --upgrade")


def forge(path: Path, *, arrays: dict[str, Any] | None = None, metadata: dict[str, str | None] | None = None) -> None:
    """Alter a file and mend its check sum, as a bug or a clever editor would."""
    parts = model_file._parse_file(path.read_bytes())
    new_arrays = {key: value for key, value in {**parts.arrays, **(arrays or {})}.items() if value is not None}
    new = {key: value for key, value in {**parts.metadata, **(metadata or {})}.items() if value is not None}
    content = write_safetensors(new_arrays, {**new, "sha256": model_file._content_digest(new, new_arrays)})
    path.write_bytes(content)


def test_forging_changes_nothing_by_itself(saved: Path) -> None:
    before = contents(saved)
    forge(saved)
    assert contents(saved) == before
    load(saved)


def changed(array: np.ndarray[Any, Any], where: Any, value: Any) -> np.ndarray[Any, Any]:
    out = array.copy()
    out[where] = value
    return out


def tree_forgeries(forest: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    feature, child, cut, roots = forest["feature"], forest["child"], forest["cut"], forest["roots"]
    leaves, inner = np.flatnonzero(feature == -1), np.flatnonzero(feature != -1)
    by_lookup = inner[cut[inner] < 0]
    by_cut = inner[cut[inner] >= 0]
    yield "child beyond the end", {"child": changed(child, inner[0], len(child) + 5)}, "level order"
    yield "negative child", {"child": changed(child, inner[0], -7)}, "level order"
    yield "cycle", {"child": changed(child, inner[-1], inner[-1])}, "level order"
    yield "shared child", {"child": changed(child, inner[1], child[inner[0]])}, "level order"
    yield "feature out of range", {"feature": changed(feature, inner[0], 3)}, "feature is out of range"
    yield "feature below leaf", {"feature": changed(feature, inner[0], -2)}, "feature is out of range"
    yield "leaf twice", {"child": changed(child, leaves[0], child[leaves[1]])}, "leaves are not numbered"
    yield "leaf out of range", {"child": changed(child, leaves[0], len(leaves))}, "leaves are not numbered"
    swapped = changed(child, [leaves[0], leaves[-1]], child[[leaves[-1], leaves[0]]])
    yield "leaf of another tree", {"child": swapped}, "another tree"
    yield "leaf made inner", {"feature": changed(feature, leaves[0], 0)}, "damaged"
    yield "cut out of range", {"cut": changed(cut, by_cut[0], 2**20)}, "cut is out of range"
    yield "lookup out of range", {"cut": changed(cut, by_lookup[0], -(2**20))}, "lookup is out of range"
    yield "third branch", {"lookup": np.full_like(forest["lookup"], 2)}, "number of children"
    yield "roots out of order", {"roots": roots[::-1].copy()}, "roots"
    yield "no roots", {"roots": roots[:0], "tree_leaves": forest["tree_leaves"][:1]}, "roots"
    yield "root too many", {"roots": np.append(roots, np.int32(len(child) - 1))}, "length"
    yield "shorter", {"cut": cut[:-1]}, "differ in length"
    yield "other type", {"cut": cut.astype(np.int64)}, "'cut' is missing or odd"
    yield "other shape", {"cut": cut[:, None]}, "'cut' is missing or odd"
    yield "missing", {"lookup": None}, "'lookup' is missing or odd"
    yield "tree_leaves", {"tree_leaves": forest["tree_leaves"] + np.int32(1)}, "number of leaves"
    yield "empty tree", {"tree_leaves": changed(forest["tree_leaves"], 1, 0)}, "no leaf"


def test_damaged_trees_are_refused(saved: Path) -> None:
    content = saved.read_bytes()
    arrays = model_file._parse_file(content).arrays
    for what, forged, reason in tree_forgeries(arrays):
        saved.write_bytes(content)
        forge(saved, arrays=forged)
        try:
            refused(saved, reason)
        except BaseException as error:
            raise AssertionError(what) from error


def test_damaged_counts_are_refused(saved: Path) -> None:
    content = saved.read_bytes()
    counts = model_file._parse_file(content).arrays["leaf_counts"]
    not_a_number = changed(counts.astype(float), (0, 0), np.nan)
    for forged, reason in (
        (None, "leaf counts are missing"),
        (counts[:-1], "leaf counts are missing, or their shape is not"),
        (counts[:, :-1].copy(), "leaf counts are missing, or their shape is not"),
        (counts.astype(float), "leaf counts are missing, or their shape is not"),
        (not_a_number, "other than finite numbers"),
        (counts != 0, "other than finite numbers"),
    ):
        saved.write_bytes(content)
        forge(saved, arrays={"leaf_counts": forged})
        refused(saved, reason)


def test_contradictions_are_refused(saved: Path, tmp_path: Path) -> None:
    content = saved.read_bytes()
    metadata = model_file._parse_file(content).metadata

    def edited(key: str, **changes: Any) -> dict[str, str]:
        return {key: json.dumps({**json.loads(metadata[key]), **changes})}

    other = tmp_path / "other"
    save(fitted_classifier(classes=["a", "b", "c"], epsilon=0.1), other)
    foreign = model_file._parse_file(other.read_bytes()).metadata
    forgeries: list[tuple[dict[str, Any], str]] = [
        ({"estimator": "RandomForestClassifier"}, "'RandomForestClassifier', which this version"),
        ({"estimator": "os.system"}, "which this version"),
        ({"estimator": "RandomTreesRegressor"}, "not those of|does not do"),
        ({"estimator": None}, "no 'estimator'"),
        ({"parameters": "[]"}, "parameters are not those"),
        ({"parameters": "{"}, "damaged"),
        (edited("parameters", ledger="elsewhere.db"), "parameters are not those"),
        (edited("parameters", sample_weight=1), "parameters are not those"),
        (edited("parameters", leaves="mouldy"), "leaves='mouldy' is not known"),
        (edited("parameters", voting="none"), "voting='none' is not known"),
        (edited("parameters", epsilon=-1), "epsilon=-1"),
        (edited("parameters", privacy_unit="all"), "privacy_unit='all'"),
        ({"schema": "7"}, "a schema is a JSON object"),
        ({"schema": foreign["schema"]}, "another plan or schema"),
        ({"plan": "{}"}, "not a plan"),
        ({"plan": foreign["plan"]}, "another plan or schema"),
        (edited("plan", epsilon="1/2"), "more than the"),
        (edited("plan", expected_leaf_mse=0.0), "another plan or schema"),
        ({"plan": metadata["plan"].replace('"expected_leaf_mse": ', '"expected_leaf_mse": NaN, "x": ')}, "NaN"),
        ({"certificate": "[]"}, "no certificate"),
        ({"certificate": "{}"}, "certificate is incomplete"),
        ({"certificate": foreign["certificate"]}, "another plan or schema"),
        (edited("certificate", is_private=False), "contradicts"),
        (edited("certificate", reason="none"), "contradicts"),
        ({"classes_dtype": "V8"}, "classes of type"),
        ({"classes_dtype": "nonsense"}, "classes of type"),
    ]
    for forged, reason in forgeries:
        saved.write_bytes(content)
        forge(saved, metadata=forged)
        refused(saved, reason)


@pytest.mark.parametrize("parameters", [{"epsilon": float("inf")}, {"schema": "infer"}])
def test_a_false_claim_of_privacy_is_refused(parameters: dict[str, Any], path: Path) -> None:
    save(fitted_classifier(**parameters), path)
    certificate = json.loads(model_file._parse_file(path.read_bytes()).metadata["certificate"])
    certificate |= {"is_private": True, "reason": None, "epsilon": 1.0, "delta": 0.0}
    forge(path, metadata={"certificate": json.dumps(certificate)})
    refused(path, "contradicts the plan")


# -- nothing private inside ----------------------------------------------------------------------------------------


FORBIDDEN_KEYS = {"seed", "n", "rows", "n_rows", "n_samples", "n_samples_fit", "key", "class_counts", "noise_seed"}


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        for entry in value.values():
            yield from keys_of(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from keys_of(entry)


def leaks(path: Path, exact: np.ndarray[Any, Any], n: int) -> list[str]:
    """Walk a file for exact counts, the number of rows, and keys that would hold them."""
    metadata, arrays = model_file._parse_file(path.read_bytes())
    found = []
    for name, array in arrays.items():
        if array.size == exact.size and (array.ravel() == exact.ravel()).all():
            found.append(f"{name} is exact")
        if array.dtype == np.int64 and int(array.sum()) == n:
            found.append(f"{name} sums to n")
        if array.shape == (n,) or (array.size == 1 and int(array.ravel()[0]) == n):
            found.append(f"{name} has the size of the data")
    decoded: dict[str, Any] = {
        key: json.loads(value) if value.startswith("{") else value for key, value in metadata.items()
    }
    for result in (decoded.get("parameters", {}), decoded.get("plan", {}).get("parameters", {})):
        if result.get("n_rows", 0) is None:  # a parameter that was not given
            del result["n_rows"]
    found += [f"key {key}" for key in keys_of(decoded) if key in FORBIDDEN_KEYS]
    alone = re.compile(rf"(?<![0-9a-f]){n}(?![0-9a-f])")  # in a hash, the digits turn up by chance
    found += [key for key, value in metadata.items() if alone.search(value)]
    return found


def exact_counts(model: Any, X: pd.DataFrame, y: Any) -> np.ndarray[Any, Any]:
    encoding = model.model_.encoding
    n_classes = len(model.schema_.classes) or None
    return leaf_totals(model.forest_, open_rows(X, y, encoding).batches(), n_classes=n_classes, target_levels=65535)


def test_a_file_holds_no_exact_count_n_or_seed(path: Path) -> None:
    n, seed = 76_543, 987_654_321
    X = pd.concat([table(n - 300, seed=4), table(300)])
    y = np.where(np.arange(n) % 3 == 0, "no", "yes")
    params: dict[str, Any] = {"epsilon": 0.1, "n_estimators": 4, "max_depth": 3, "random_state": 0}
    with seeded_for_tests(seed):
        model = vw.RandomTreesClassifier(schema(["no", "yes"]), **params).fit(X, y)
    save(model, path)
    exact = exact_counts(model, X, y)
    assert leaks(path, exact, n) == []
    assert str(seed).encode() not in path.read_bytes()
    # The walk can fail: an estimator that kept what it counted would be caught.
    model.model_ = replace(model.model_, leaf_counts=exact)
    save(model, path)
    assert "leaf_counts is exact" in leaks(path, exact, n)
    forge(path, metadata={"plan": json.dumps({"notes": {"rows": n}})})
    assert {"key rows", "plan"} <= set(leaks(path, exact, n))


def test_a_generator_and_a_ledger_are_not_in_the_file(tmp_path: Path) -> None:
    ledger = tmp_path / "budget.db"
    model = fitted_classifier(random_state=np.random.default_rng(123456789), ledger=ledger)
    save(model, tmp_path / "model")
    parameters = json.loads(model_file._parse_file((tmp_path / "model").read_bytes()).metadata["parameters"])
    assert parameters["random_state"] is None
    assert "ledger" not in parameters
    assert load(tmp_path / "model").privacy_.ledger == model.privacy_.ledger


io = pytest.importorskip("skops.io")


CAR = vw.datasets.car()


LINE = {
    "name": "line", "task": "regression", "target": "y",
    "columns": [{"name": name, "kind": "numeric", "lower": 0, "upper": 1} for name in "xzy"],
}  # fmt: skip


NAMES = [name for name in estimators.__all__ if name != "MatrixForestPredictor"]  # which is never saved


def fitted(name: str) -> tuple[Any, Any]:
    small = {} if name.startswith("Private") else {"n_estimators": 3, "max_depth": 2}
    if name.endswith("Regressor"):
        schema: Any = LINE
        X, y = pd.DataFrame({"x": np.linspace(0, 1, 500), "z": 0.5}), np.linspace(0, 1, 500)
    else:
        schema, X, y = CAR.schema, CAR.X, CAR.y.to_numpy()
    return getattr(vw, name)(schema, epsilon=2.0, random_state=0, **small).fit(X, y), X


@pytest.mark.parametrize("name", NAMES)
def test_a_forest_comes_back_from_skops(name: str) -> None:
    forest, X = fitted(name)
    again = io.loads(io.dumps(forest), trusted=vw.skops_types(forest))
    assert np.array_equal(again.predict(X), forest.predict(X))
    assert again.privacy_ == forest.privacy_


def test_what_is_not_ours_is_not_named() -> None:
    forest, _ = fitted("RandomTreesClassifier")
    forest.more_ = Path("somewhere")
    with rejects(ModelFileError, raised_in="skops_types"):
        vw.skops_types(forest)
    with rejects(ModelFileError, raised_in="skops_types"):
        vw.skops_types(vw.RandomTreesClassifier())


@pytest.mark.slow
def test_mlflow_keeps_a_forest_in_its_default_format(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow.sklearn")
    forest, X = fitted("PrivateForestClassifier")
    mlflow.save_model(forest, tmp_path / "model", skops_trusted_types=vw.skops_types(forest))
    assert np.array_equal(mlflow.load_model(str(tmp_path / "model")).predict(X), forest.predict(X))
