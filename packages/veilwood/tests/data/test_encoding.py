# SPDX-License-Identifier: Apache-2.0
"""Codes: one row at a time, monotone, invertible, the same from every table; their types follow from the schema."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import DataConversionWarning
from sklearn.metrics import accuracy_score

import veilwood as vw
from veilwood import estimators
from veilwood.data.canonical import to_canonical_text
from veilwood.data.columns import Column
from veilwood.data.encoding import DEFAULT_BINS, GRID_BINS, TARGET_LEVELS, Encoding, class_labels
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError
from veilwood.models import file as model_file
from veilwood.privacy.entropy import seeded_for_tests
from veilwood_testing.errors import rejects

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


ILL = Column("ill", "categorical", values=("no", "yes"))


AGE = Column("age", "numeric", lower=0, upper=100)


WARD = Column("ward", "categorical", values=("A", "B", "rest"), other="rest")


SCHEMA = Schema(
    "clinic",
    "classification",
    ILL,
    (
        AGE,
        WARD,
        Column("dose", "numeric", lower=-1, upper=1, nullable=True),
        Column("n", "categorical", values=(1, 2), nullable=True),  # type: ignore[arg-type]
    ),
)


def encoding_of(column: Column, numeric: Any = "grid") -> Encoding:
    return Encoding(Schema("one", "classification", ILL, (column,)), numeric)


FRAME = pd.DataFrame({"age": [0, 50, 150], "ward": ["A", "Z", "B"], "dose": [None, -0.25, 1.0], "n": [1.0, None, 2.0]})


CODES = [[0, 0, 65535, 0], [32767, 2, 24575, 2], [65534, 1, 65534, 1]]


def test_what_the_codes_mean() -> None:
    assert [(c.name, c.ordered, c.n_codes, c.missing_code) for c in Encoding(SCHEMA).columns] == [
        ("age", True, 65535, None),
        ("ward", False, 3, None),
        ("dose", True, 65536, 65535),
        ("n", False, 3, 2),
    ]


@pytest.mark.parametrize(
    "table",
    [
        FRAME,
        FRAME[["n", "dose", "ward", "age"]],
        FRAME.assign(ill="no"),
        FRAME.convert_dtypes(),
        FRAME.astype({"ward": "category", "n": "category"}),
        FRAME.astype(object),
        FRAME.set_axis([10, 20, 30], axis=0),
        pl.from_pandas(FRAME),
        pl.from_pandas(FRAME).with_columns(pl.col("ward").cast(pl.Categorical)),
        pl.from_pandas(FRAME).with_columns(pl.col("ward").cast(pl.Enum(["B", "Z", "A"]))),
        pa.Table.from_pandas(FRAME),
        pa.Table.from_pandas(FRAME).to_batches()[0],
        FRAME.to_numpy(),
        FRAME.to_numpy().tolist(),
        FRAME.set_axis([0, 1, 2, 3], axis=1),
    ],
)
def test_same_codes_from_every_table(table: Any) -> None:
    codes = Encoding(SCHEMA).encode(table)
    assert codes.dtype == np.uint16
    assert codes.flags.f_contiguous  # each column for itself
    assert codes.tolist() == CODES


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([True, 1, 1.0, "1", "True", False, 0, np.int64(1), np.True_]), min_size=1, max_size=8))
def test_a_row_is_encoded_by_itself(values: list[Any]) -> None:
    # True == 1 == 1.0 in a hash table: a shared table would let earlier rows decide the code of later ones.
    encoding = encoding_of(Column("x", "categorical", values=("True", "1", "False", "0")))
    column = np.empty((len(values), 1), dtype=object)
    column[:, 0] = values
    together = encoding.encode(column)
    alone = np.concatenate([encoding.encode(column[i : i + 1]) for i in range(len(values))])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(encoding.encode([[value] for value in values]), alone)


def test_array_blocks_agree_with_single_rows() -> None:
    X = np.random.default_rng(0).normal(size=(20_000, 2))
    encoding = Encoding(Schema.numeric((-2, 2), classes=[0, 1], n_features=2))
    codes = encoding.encode(X)
    pick = [0, 8191, 8192, 19_999]
    np.testing.assert_array_equal(codes[pick], np.concatenate([encoding.encode(X[[i]]) for i in pick]))
    np.testing.assert_array_equal(encoding.encode(np.asfortranarray(X)), codes)


def test_few_rows_of_a_frame_agree_with_many() -> None:
    """Small frames of floats are read at once, larger ones column by column."""
    columns = (
        Column("a", "numeric", lower=-2, upper=2, nullable=True),
        Column("b", "numeric", lower=0, upper=9),
        Column("c", "categorical", values=("0", "1", "2")),
    )
    encoding = Encoding(Schema("floats", "classification", ILL, columns))
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"b": rng.normal(4, 9, 5000), "ill": 0.0, "c": rng.integers(0, 3, 5000) * 1.0,
                          "a": rng.normal(0, 9, 5000)})  # fmt: skip
    frame.loc[::7, "a"] = np.nan
    frame.loc[::11, "b"] = -np.inf
    codes = encoding.encode(frame)
    np.testing.assert_array_equal(encoding.encode(frame[:300]), codes[:300])
    np.testing.assert_array_equal(encoding.encode(frame[77:78]), codes[77:78])
    for rows in (frame, frame[:300]):
        with rejects(OutOfSchemaError, column="b", problems=(("b", "missing value"),)):
            encoding.encode(rows.assign(b=np.nan))


@pytest.mark.parametrize(
    ("table", "says", "column"),
    [
        (FRAME.assign(age=pd.Series([1, None, 2])), "'age' has a missing value .*nullable", "age"),
        (FRAME.assign(ward=pd.Series(["A", None, "B"], dtype=object)), "'ward' has a missing value", "ward"),
        (FRAME.assign(n=["1", "2", "12"]), "'n' contains a value outside its 2 declared categories", "n"),
        (
            FRAME.assign(age=["1", "2", "x"]),
            "'age' must contain numbers only but contains a value that is not a number",
            "age",
        ),
        (
            FRAME.assign(age=[1, 2, "x"]),
            "'age' must contain numbers only but contains a value that is not a number",
            "age",
        ),
        (FRAME.assign(age=pd.Timestamp("2020-01-01")), "'age' must contain numbers only", "age"),
        (FRAME.assign(salary=1), "'salary' that the schema does not", "salary"),
        (FRAME.rename(columns={"age": "agee"}), "no column 'age'. Did you mean 'agee'", "age"),
        (FRAME.iloc[:0], "0 sample", None),
        (FRAME.iloc[:, :0], r"0 feature\(s\) \(shape=\(, 0\)\) while a minimum of 1 is required.", None),
        (FRAME.rename(columns={"age": 5}), "some column names are strings", None),
        (pd.concat([FRAME, FRAME], axis=1), "two columns share a name.* 'age' 2 times", None),
        (np.zeros((2, 3)), "X has 3 features, but Tree is expecting 4 features as input", None),
        (np.zeros(3), "Expected 2D array, got 1D array instead", None),
        (np.zeros((2, 4), complex), "Complex data not supported", None),
        (sparse.eye_array(4).tocsr(), "sparse", None),
        ([[1, 2], [3]], "not all of the same length", None),
        (pl.LazyFrame({"age": [1]}), "lazy", None),
    ],
)
def test_tables_that_do_not_fit(table: Any, says: str, column: str | None) -> None:
    with pytest.raises(OutOfSchemaError, match=says) as caught:
        Encoding(SCHEMA).encode(table, estimator="Tree")
    assert caught.value.column == column


def test_question_mark_is_a_category_not_a_missing_value() -> None:
    encoding = encoding_of(Column("x", "categorical", values=("a", "?")))
    assert encoding.encode([["?"], ["a"]])[:, 0].tolist() == [1, 0]
    with rejects(OutOfSchemaError, column="x", problems=(("x", "missing value"),)):
        encoding.encode([[None], ["a"]])


def test_extra_columns_by_permission() -> None:
    table = FRAME.assign(patient=7)
    assert Encoding(SCHEMA).encode(table, allowed_extra={"patient"}).tolist() == CODES


def test_targets_of_classification() -> None:
    encoding = Encoding(SCHEMA)
    for y in (["no", "yes"], np.array(["no", "yes"]), pd.Series(["no", "yes"], index=[5, 6]), pl.Series(["no", "yes"])):
        assert encoding.encode_target(y).tolist() == [0, 1]
    assert encoding.encode_target(["yes"]).dtype == np.int32
    with pytest.warns(DataConversionWarning):
        encoding.encode_target(np.array([["no"], ["yes"]]))
    with rejects(OutOfSchemaError, column="ill", problems=(("ill", "unknown category"),)):
        encoding.encode_target(["no", "yess"])
    with rejects(OutOfSchemaError, column="ill", problems=(("ill", "missing value"),)):
        encoding.encode_target(["no", None])


def test_targets_of_regression() -> None:
    encoding = Encoding(Schema.numeric((0, 1), target_bounds=(-10, 10), n_features=1))
    levels = encoding.encode_target([-99, -10, 0.0001, 10, 99])
    assert levels.tolist() == [0, 0, 32768, TARGET_LEVELS, TARGET_LEVELS]
    y = np.linspace(-10, 10, 999)
    error = np.abs(encoding.decode_target(encoding.encode_target(y)) - y)
    assert error.max() <= 10 / TARGET_LEVELS * (1 + 1e-9)
    for bad in (np.nan, np.inf):
        with pytest.raises(OutOfSchemaError):
            encoding.encode_target([0.0, bad])


@pytest.mark.parametrize(
    ("classes", "dtype"),
    [
        ((0, 1), np.int64),
        (np.array([0, 1], np.uint8), np.int64),
        ((-1, 1), np.int64),
        ((0.0, 1.0), np.float64),
        ((0, 1.5), np.float64),
        (np.array([0.1, 1], np.float32), np.float64),
        ((False, True), bool),
        (("0", "01"), object),
        (("0.0", "1.0"), object),
        (("no", "yes"), object),
        ((1, "a"), object),
        ((0, 2**63), object),
        ((0.5, 2**53 + 1), object),
        ((True, 1), object),
    ],
)
def test_labels_have_the_type_the_schema_declares(classes: Any, dtype: Any) -> None:
    schema = Schema.numeric((0, 1), classes=classes, n_features=1)
    found = class_labels(schema)
    assert found.dtype == dtype
    assert [to_canonical_text(label) for label in found] == list(schema.classes)
    again = Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    assert again == schema
    assert again.fingerprint() == schema.fingerprint()
    np.testing.assert_array_equal(class_labels(again), found)
    assert class_labels(again).dtype == dtype
    assert Encoding(schema).encode_target(found).tolist() == [0, 1]


def test_declared_texts_stay_as_they_are() -> None:
    schema = Schema.numeric((0, 1), classes=["1.0", "2.50"], n_features=1)
    assert class_labels(schema).tolist() == ["1.0", "2.50"]
    assert schema.classes == ("1", "2.5")
    assert schema.to_dict()["columns"][-1]["values"] == ["1.0", "2.50"]  # so that fingerprints of before hold
    whole, fractions = (Schema.numeric((0, 1), classes=kind, n_features=1) for kind in ([0, 1], [0.0, 1.0]))
    assert whole != fractions
    assert whole.fingerprint() != fractions.fingerprint()


bounds = (
    st.tuples(st.floats(-1e12, 1e12), st.floats(min_value=1e-6, max_value=1e12))
    .map(lambda pair: (pair[0], pair[0] + pair[1]))
    .filter(lambda pair: pair[0] < pair[1])
)


@settings(max_examples=200, deadline=None)
@given(bounds, st.integers(1, GRID_BINS - 1))
def test_threshold_is_the_smallest_number_with_the_code(ends: tuple[float, float], code: int) -> None:
    encoding = encoding_of(Column("x", "numeric", lower=ends[0], upper=ends[1]))
    x = encoding.threshold(0, code)
    below, at = encoding.encode([[np.nextafter(x, -np.inf)], [x]])[:, 0]
    assert below < code <= at


@pytest.mark.parametrize("transform", [None, "log1p", "sqrt", "asinh"])
@pytest.mark.parametrize("numeric", ["grid", "bins"])
def test_all_thresholds_are_exact(transform: str | None, numeric: Any) -> None:
    encoding = encoding_of(Column("x", "numeric", lower=0, upper=731.7, transform=transform), numeric)
    codes = np.arange(1, encoding.columns[0].n_codes)
    x = encoding.threshold(0, codes)
    assert (np.diff(x) > 0).all()
    np.testing.assert_array_equal(encoding.encode(x[:, None])[:, 0], codes)
    np.testing.assert_array_equal(encoding.encode(np.nextafter(x, -np.inf)[:, None])[:, 0], codes - 1)
    assert encoding.threshold(0, 0) == -np.inf


def test_threshold_at_zero_and_over_a_huge_range() -> None:
    even = encoding_of(Column("x", "numeric", lower=-3, upper=GRID_BINS - 3))
    zero = even.threshold(0, 3)
    assert zero == pytest.approx(0, abs=1e-15)
    assert even.encode([[np.nextafter(zero, -1)], [zero], [-0.0], [0.0]])[:, 0].tolist() == [2, 3, 3, 3]
    huge = encoding_of(Column("x", "numeric", lower=-8e307, upper=8e307))
    x = huge.threshold(0, 40000)
    assert huge.encode([[np.nextafter(x, -np.inf)], [x]])[:, 0].tolist() == [39999, 40000]
    with pytest.raises(ValueError, match="has no threshold"):
        even.threshold(0, GRID_BINS)
    with pytest.raises(ValueError, match="has no threshold"):
        encoding_of(WARD).threshold(0, 1)


@settings(max_examples=100, deadline=None)
@given(bounds, st.lists(st.floats(allow_nan=False), min_size=2, max_size=20), st.sampled_from([None, "asinh"]))
def test_codes_are_monotone_and_clamped(ends: tuple[float, float], xs: list[float], transform: str | None) -> None:
    encoding = encoding_of(Column("x", "numeric", lower=ends[0], upper=ends[1], transform=transform))
    ordered = np.sort(np.array(xs))
    codes = encoding.encode(ordered[:, None])[:, 0]
    assert (np.diff(codes.astype(int)) >= 0).all()
    np.testing.assert_array_equal(encoding.encode(np.clip(ordered, *ends)[:, None])[:, 0], codes)


def test_grid_uses_every_code_evenly() -> None:
    middles = (np.arange(GRID_BINS) + 0.5) / GRID_BINS
    codes = encoding_of(Column("x", "numeric", lower=0, upper=1)).encode(middles[:, None])[:, 0]
    np.testing.assert_array_equal(codes, np.arange(GRID_BINS))


def test_bins_and_cutoffs() -> None:
    cut = encoding_of(Column("x", "numeric", lower=10, upper=60, cutoffs=(18.5, 25), nullable=True), "bins")
    assert cut.columns[0].n_codes == 4
    assert cut.encode([[5], [18.5], [18.4], [25], [99], [np.nan]])[:, 0].tolist() == [0, 1, 0, 2, 2, 3]
    assert cut.threshold(0, 1) == 18.5
    even = encoding_of(Column("x", "numeric", lower=0, upper=10, bins=2), "bins")
    assert even.encode([[4.9], [5.0], [10]])[:, 0].tolist() == [0, 1, 1]
    assert encoding_of(AGE, "bins").columns[0].n_codes == DEFAULT_BINS
    skewed = encoding_of(Column("x", "numeric", lower=0, upper=100, bins=2, transform="sqrt"), "bins")
    assert skewed.threshold(0, 1) == pytest.approx(25)
    with pytest.raises(ValueError, match="'grid' or 'bins'"):
        Encoding(SCHEMA, "fine")  # type: ignore[arg-type]


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
    seen: list[Any] = [model.classes_.dtype, pickle.dumps(model.classes_)]
    if hasattr(model, "predict"):
        guess = model.predict(X)
        seen += [guess.dtype, pickle.dumps(guess)]
    if not isinstance(model, vw.MatrixForestPredictor):
        model_file.save(model, folder / "model.veilwood")
        metadata, arrays = model_file._parse_file((folder / "model.veilwood").read_bytes())
        seen += [
            metadata["schema"],
            metadata["classes_dtype"],
            {key: array.tobytes() for key, array in arrays.items()},
        ]
    return tuple(seen)


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
        for labels in (y, np.array(y), pd.Series(y)):
            model = fitted("RandomTreesClassifier", "infer", X, labels)  # type: ignore[arg-type]
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
        with rejects(vw.OutOfSchemaError, column="y", problems=(("y", "unknown category"),)):
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
