# SPDX-License-Identifier: Apache-2.0
"""The type of everything public follows from the schema alone: no row, and no container of rows, has a say."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.metrics import accuracy_score

import veilwood as vw
from veilwood import estimators
from veilwood.models import file as model_file
from veilwood.privacy.entropy import seeded_for_tests

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]

CLASSIFIERS = [name for name in estimators.__all__ if getattr(estimators, name)._task == "classification"]
COLUMN = {"name": "x", "kind": "numeric", "lower": 0, "upper": 1}


def schema(values: list[Any], **more: Any) -> vw.Schema:
    target = {"name": "y", "kind": "categorical", "values": values, **more}
    return vw.Schema.from_dict({"name": "s", "task": "classification", "target": "y", "columns": [COLUMN, target]})


WITH_OTHER = schema([0, 1, 9], other=9)
WITH_OTHER_TARGET = WITH_OTHER.to_dict()["columns"][1:]
X = pd.DataFrame({"x": [0.25, 0.5, 0.75, 0.9]})
COMMON: list[Any] = [0, 1, 1]


def fitted(name: str, declared: vw.Schema, X: Any, y: Any, **parameters: Any) -> Any:
    Forest = getattr(vw, name)
    wanted = {"schema": declared, "n_estimators": 2, "max_depth": 1, "random_state": 0, "n_rows": 4, **parameters}
    with seeded_for_tests(3):
        return Forest(**{key: value for key, value in wanted.items() if key in Forest._get_param_names()}).fit(X, y)


def visible(model: Any, folder: Path) -> tuple[Any, ...]:
    """What a fit shows: attributes, predictions, and the file without the day it was made."""
    shown: list[Any] = [model.classes_.dtype, pickle.dumps(model.classes_)]
    if hasattr(model, "predict"):
        guess = model.predict(X)
        shown += [guess.dtype, pickle.dumps(guess)]
    if not isinstance(model, vw.MatrixForestPredictor):
        model_file.save(model, folder / "model.veilwood")
        metadata, arrays = model_file._parse_file((folder / "model.veilwood").read_bytes())
        shown += [
            metadata["schema"],
            metadata["classes_dtype"],
            {key: array.tobytes() for key, array in arrays.items()},
        ]
    return tuple(shown)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_one_row_cannot_change_the_type_of_the_classes(name: str, tmp_path: Path) -> None:
    """All of these rows are of the class 9, so nothing that is seen may differ."""
    rare: list[Any] = [9, 5, 2**63, 2**70, -(2**70), 0.5, 1e300, True, "9", "x", np.float32(5), 10**5000]
    first, *others = [visible(fitted(name, WITH_OTHER, X, [*COMMON, cell]), tmp_path) for cell in rare]
    assert first[0] == np.int64
    assert all(other == first for other in others)


CONTAINERS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "list of texts": lambda y: list(map(str, y)),
    "list of floats": lambda y: list(map(float, y)),
    "int8": lambda y: np.array(y, np.int8),
    "uint64": lambda y: np.array(y, np.uint64),
    "float32": lambda y: np.array(y, np.float32),
    "objects": lambda y: np.array(y, object),
    "texts": lambda y: np.array(y, str),
    "series": pd.Series,
    "Int64": lambda y: pd.Series(y, dtype="Int64"),
    "Float64": lambda y: pd.Series(y, dtype="Float64"),
    "category": lambda y: pd.Series(y, dtype="category"),
    "polars": pl.Series,
    "polars text": lambda y: pl.Series(list(map(str, y))),
    "arrow": pa.array,
    "arrow dictionary": lambda y: pa.chunked_array([pa.array(list(map(str, y))).dictionary_encode()]),
}


@pytest.mark.parametrize(
    ("declared", "dtype"), [([0, 1], np.int64), (["0", "1"], object), ([0.0, 1.0], np.float64), (["0.0", "1"], object)]
)
def test_the_schema_decides_and_not_the_container(declared: list[Any], dtype: Any, tmp_path: Path) -> None:
    y = [0, 1, 1, 0]
    models = {name: fitted("RandomTreesClassifier", schema(declared), X, make(y)) for name, make in CONTAINERS.items()}
    X.assign(y=y).to_csv(tmp_path / "y.csv", index=False)
    X.assign(y=[float(label) for label in y]).to_parquet(tmp_path / "y.parquet")
    for file in ("y.csv", "y.parquet"):
        models[file] = fitted("RandomTreesClassifier", schema(declared), tmp_path / file, None)
    models["iterator"] = fitted("RandomTreesClassifier", schema(declared), iter([(X, y)]), None)
    models["frame"] = fitted("RandomTreesClassifier", schema(declared), pl.from_pandas(X.assign(y=y)), None)
    batches = vw.RandomTreesClassifier(schema(declared), n_estimators=2, max_depth=1, random_state=0)
    with seeded_for_tests(3):
        models["batches"] = batches.partial_fit(X, y, classes=["0", 1.0]).release()
    first, *others = [visible(model, tmp_path) for model in models.values()]
    assert first[0] == dtype
    assert models["list"].classes_.tolist() == declared
    assert all(other == first for other in others)


def test_booleans() -> None:
    declared = schema([False, True])
    for y in (
        [True, False, True, True],
        pd.Series([True, False] * 2, dtype="boolean"),
        np.array(["True", "False"] * 2),
    ):
        model = fitted("RandomTreesClassifier", declared, X, y)
        assert model.classes_.dtype == bool
        assert model.predict(X).dtype == bool


def test_whole_numbers_of_128_bits_are_read() -> None:
    frame = pl.DataFrame(
        {"x": pl.Series([0, 1, None], dtype=pl.Int128), "y": pl.Series([2**70, 1, 0], dtype=pl.Int128)}
    )
    nullable = vw.Schema.from_dict(
        WITH_OTHER.to_dict() | {"columns": [COLUMN | {"nullable": True}, *WITH_OTHER_TARGET]}
    )
    assert fitted("RandomTreesClassifier", nullable, frame, None).classes_.tolist() == [0, 1, 9]


def test_frames_of_a_cluster_get_the_same_types() -> None:
    dask, frames = pytest.importorskip("dask"), pytest.importorskip("dask.dataframe")
    with dask.config.set({"scheduler": "synchronous"}):
        for y in ([0, 1, 1, 0], ["0", "1.0", "1", "0"], [0.0, 1.0, 1.0, 0.0]):
            rows = frames.from_pandas(X.assign(y=y), npartitions=2, sort=False)
            model = fitted("RandomTreesClassifier", schema([0, 1]), rows, None)
            assert model.classes_.dtype == np.int64
            assert model.predict(rows[["x"]]).compute().dtype == np.int64


def test_inferred_classes_are_those_of_y() -> None:
    cases: list[tuple[list[Any], Any]] = [
        ([3, 1, 3, 1], np.int64),
        ([0.0, 1.0] * 2, np.float64),
        ([True, False] * 2, bool),
        (list("abab"), object),
    ]
    for y, dtype in cases:
        for given in (y, np.array(y), pd.Series(y)):
            model = fitted("RandomTreesClassifier", "infer", X, given)  # type: ignore[arg-type]
            assert model.classes_.dtype == dtype
            assert model.classes_.tolist() == sorted(set(y))


@pytest.mark.parametrize("name", [name for name in CLASSIFIERS if name != "MatrixForestPredictor"])
def test_scores_compare_classes_and_not_their_types(name: str) -> None:
    """A schema with "0" and "1" predicts texts; labels that are numbers are the same classes."""
    texts, numbers = (fitted(name, schema(values), X, [0, 1, 1, 0]) for values in (["0", "1"], [0, 1]))
    right = accuracy_score([0, 1, 1, 1], numbers.predict(X))
    for model in (texts, numbers):
        for y in ([0, 1, 1, 1], ["0", "1", "1", "1"], pd.Series([0.0, 1.0, 1.0, 1.0]), np.array([0, 1, 1, 1], object)):
            assert model.score(X, y) == right
        assert model.score(X, [0, 1, 1, 1], sample_weight=[0, 0, 0, 1]) in (0, 1)
        with pytest.raises(vw.OutOfSchemaError, match="outside the schema's"):
            model.score(X, [0, 1, 1, 7])


def test_files_of_earlier_versions_keep_their_types(tmp_path: Path) -> None:
    """They have classes as texts in the schema, and their type beside it."""
    for values, dtype, labels in (
        (["0", "1"], "<i8", np.array([0, 1])),
        (["0", "1"], "<U1", np.array(["0", "1"])),
        (["0.5", "1"], "<f8", np.array([0.5, 1.0])),
        (["False", "True"], "|b1", np.array([False, True])),
        (["0", "a"], "<i8", np.array(["0", "a"], object)),
        (["1.0", "2"], "|O", np.array(["1.0", "2"], object)),
    ):
        model = fitted("RandomTreesClassifier", schema(values), X, values * 2)
        model.classes_ = np.empty(0, dtype)
        model_file.save(model, tmp_path / "m")
        again = vw.load(tmp_path / "m")
        assert again.classes_.dtype == labels.dtype
        np.testing.assert_array_equal(again.classes_, labels)
