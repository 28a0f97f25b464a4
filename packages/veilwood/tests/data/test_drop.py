# SPDX-License-Identifier: Apache-2.0
"""``invalid="drop"``: every row is encoded or dropped by itself, without an error or message about rows."""

from __future__ import annotations

import warnings
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.data.numbers import read_number, read_numbers
from veilwood.data.open_rows import open_rows
from veilwood.data.problems import Problem
from veilwood.errors import ParameterError
from veilwood.privacy.certificate import Assumption
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.neighbours import RowsOf
from veilwood_testing.errors import rejects

NAN, INF = float("nan"), float("inf")


ODD: list[Any] = [
    None, NAN, INF, -INF, "", "x", "31", " 31 ", "1e999", "37,5", "1_0", "\x00", "\ud800", "x" * 9000, 10**400,
    -(10**400), Decimal("sNaN"), Decimal("1e999999"), Decimal("2.5"), True, b"\xff\xfe", b"31", [1], [], {"a": 1},
    (1, 2), {1}, object(), np.array([1, 2]), np.array(3), np.datetime64("NaT"), np.timedelta64(3, "M"), 1j, pd.NA,
    np.longdouble("1e4000"), pd.NaT, pd.Timestamp("2020"), pd.Interval(0, 1), float, np.float16(3), 2**64, "nan",
    "inf", "\u0661",
]  # fmt: skip


COLUMNS: list[dict[str, Any]] = [
    {"name": "age", "kind": "numeric", "lower": 0, "upper": 100},
    {"name": "dose", "kind": "numeric", "lower": 0, "upper": 10, "nullable": True, "transform": "log1p"},
    {"name": "ward", "kind": "categorical", "values": ["A", "B", 7]},
    {"name": "city", "kind": "categorical", "values": ["Lima", "rest"], "other": "rest", "nullable": True},
]


ILL = {"name": "ill", "kind": "categorical", "values": ["no", "yes"]}


COST = {"name": "ill", "kind": "numeric", "lower": 0, "upper": 10}


SCHEMAS = {
    task: vw.Schema.from_dict({"name": "clinic", "task": task, "target": "ill", "columns": [*COLUMNS, target]})
    for task, target in (("classification", ILL), ("regression", COST))
}


NAMES = ("age", "dose", "ward", "city", "ill")


GOOD: dict[str, list[Any]] = {
    "age": [0, 31.5, 100],
    "dose": [0.5, None, 10],
    "ward": ["A", "B", 7, "7.0"],
    "city": ["Lima", "rest", None, "Ulm"],
    "classification": ["no", "yes"],
    "regression": [0, 2.5],
}


Row = dict[str, Any]


@st.composite
def rows_of(draw: st.DrawFn, task: str) -> list[Row]:
    """Tables in which any cell may hold anything, also tables without rows."""
    pools = [*(GOOD[name] for name in NAMES[:-1]), GOOD[task]]
    cells = [st.one_of(st.sampled_from(pool), st.sampled_from(pool), st.sampled_from(ODD)) for pool in pools]
    return [dict(zip(NAMES, row, strict=True)) for row in draw(st.lists(st.tuples(*cells), max_size=6))]


def as_list(rows: list[Row], folder: Path) -> tuple[Any, Any]:
    return [[row[name] for name in NAMES[:-1]] for row in rows], [row["ill"] for row in rows]


def as_array(rows: list[Row], folder: Path) -> tuple[Any, Any]:
    X, y = np.empty((len(rows), 4), object), np.empty(len(rows), object)
    for place, row in enumerate(rows):
        for column, name in enumerate(NAMES[:-1]):
            X[place, column] = row[name]
        y[place] = row["ill"]
    return X, y


def as_frame(rows: list[Row], folder: Path) -> tuple[Any, Any]:
    return pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in NAMES}), None


def as_inferred_frame(rows: list[Row], folder: Path) -> tuple[Any, Any]:
    return pd.DataFrame({name: pd.Series([row[name] for row in rows]) for name in NAMES}), None


def as_csv(rows: list[Row], folder: Path) -> tuple[Any, Any]:
    def written(cell: Any) -> bytes:
        if cell is None:
            return b""
        text = cell if isinstance(cell, bytes) else str(cell).encode(errors="surrogatepass")
        return b'"' + text.replace(b'"', b'""') + b'"'

    lines = [b",".join(written(row[name]) for name in NAMES) for row in rows]
    (folder / "rows.csv").write_bytes(b"\n".join([",".join(NAMES).encode(), *lines, b""]))
    return folder / "rows.csv", None


def as_iterator(rows: list[Row], folder: Path) -> tuple[Any, Any]:
    return iter([as_list(rows[:2], folder), as_frame(rows[2:], folder)[0]]), None


FORMS = [as_list, as_array, as_frame, as_inferred_frame, as_csv, as_iterator]


def can_be_made(form: Any, rows: list[Row]) -> bool:
    """pandas itself refuses some columns, and writes others of one type."""
    if form is not as_inferred_frame:
        return True
    return not any(isinstance(row[name], np.ndarray | int | float | complex) for row in rows for name in NAMES)


def facts(task: str, form: Any, rows: list[Row]) -> list[str]:
    """Fit, and return all warnings; nothing may be raised."""
    kind: Any = vw.RandomTreesClassifier if task == "classification" else vw.RandomTreesRegressor
    model = kind(SCHEMAS[task], n_estimators=2, max_depth=2, random_state=0, invalid="drop", ledger=MemoryLedger())
    with TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        X, y = form(rows, Path(folder))
        caught.clear()
        model.fit(X, y)
    return [str(w.message) for w in caught if not issubclass(w.category, vw.UtilityWarning)]  # that is of noisy counts


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_no_table_is_refused_and_all_are_fitted_in_the_same_words(task: str, form: Any) -> None:
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(rows_of(task))
    def check(rows: list[Row]) -> None:
        if can_be_made(form, rows):
            assert facts(task, form, rows) == facts(task, form, rows[1:])

    check()


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: f"{odd!r:.20}")
@pytest.mark.parametrize("form", [as_list, as_frame, as_csv, as_iterator], ids=lambda form: form.__name__)
def test_an_odd_cell_decides_about_its_own_row_alone(form: Any, odd: Any, tmp_path: Path) -> None:
    """Other rows get the codes they get without it."""
    good = [dict(zip(NAMES, row, strict=True)) for row in ((31.5, None, "A", "Lima", "no"), (3, 2.5, 7, "Ulm", "yes"))]
    encoding = Encoding(SCHEMAS["classification"])

    def codes(rows: list[Row]) -> list[Any]:
        X, y = form(rows, tmp_path)
        batches = list(open_rows(X, y, encoding, invalid="drop").batches())
        return [[*row, label] for b in batches for row, label in zip(b.codes.tolist(), b.target.tolist(), strict=True)]

    alone = codes(good)
    assert len(alone) == 2
    for column in NAMES:
        for place in range(3):
            rows = [*good[:place], good[0] | {column: odd}, *good[place:]]
            found = codes(rows)
            own = codes(rows[place : place + 1])
            assert found == [*alone[:place], *own, *alone[place:]], column


def test_what_is_dropped_and_what_is_read(tmp_path: Path) -> None:
    text = b"age,dose,ward,city,ill\n31,1,A,Lima,no\n,1,A,Lima,no\nx,1,A,Lima,no\n37,5,1,A,Lima,no\n1,,7.0,,yes\n"
    text += b"2,1,C,Lima,no\n3,1,A,Lima,maybe\n4,1,B,Ulm,yes\n5,\xff,B,Ulm,yes\n6,1\n"
    (tmp_path / "rows.csv").write_bytes(text)
    source = open_rows(tmp_path / "rows.csv", None, Encoding(SCHEMAS["classification"], "bins"), invalid="drop")
    (batch,) = source.batches()
    assert batch.codes[:, 0].tolist() == [1, 0, 0]  # of 31, 1 and 4
    assert batch.codes[:, 2].tolist() == [0, 2, 1]
    assert batch.target.tolist() == [0, 1, 1]


@pytest.mark.parametrize("form", [*FORMS, "parquet", "dask"], ids=lambda form: getattr(form, "__name__", form))
def test_tables_without_rows_are_fitted(form: Any, tmp_path: Path) -> None:
    frame = as_frame([], tmp_path)[0]
    if form == "parquet":
        pa.parquet.write_table(pa.table({name: pa.array([], pa.string()) for name in NAMES}), tmp_path / "rows.parquet")
        X: Any = tmp_path / "rows.parquet"
        y = None
    elif form == "dask":
        X, y = pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=1), None
    else:
        X, y = form([], tmp_path)
    forest = vw.RandomTreesClassifier(SCHEMAS["classification"], n_estimators=2, max_depth=2, invalid="drop")
    assert forest.fit(X, y).predict_proba(pd.DataFrame({"age": [1.0], "dose": 1.0, "ward": "A", "city": "Ulm"})).size


@pytest.mark.parametrize("kind", ["memory", "csv", "dask"])
def test_rows_of_nobody_are_dropped(kind: str, tmp_path: Path) -> None:
    schema = vw.Schema.numeric((0, 65535), classes=[0, 1], names=["x"])
    frame = pd.DataFrame({
        "x": pd.Series([1.5, 2.5, 3.5, "x", 5.5, 6.5], dtype=object),
        "who": pd.Series([7, None, "7.0", 8, [1], 2.0**60], dtype=object), "target": 0,
    })  # fmt: skip
    X: Any = frame
    if kind == "csv":
        frame["who"] = frame["who"].map(lambda who: "" if isinstance(who, list) else who)
        frame.to_csv(tmp_path / "rows.csv", index=False)
        X = tmp_path / "rows.csv"
    elif kind == "dask":
        X = pytest.importorskip("dask.dataframe").from_pandas(frame.astype(str), npartitions=2)
    source = open_rows(X, None, Encoding(schema), unit=RowsOf("who", at_most=1), invalid="drop")
    total = source.aggregate(count_rows)
    assert total.tolist() == ([1] if kind != "dask" else [2])  # as a text, "[1]" is a person


def count_rows(batches: Any, *, n_jobs: Any = 1) -> Any:
    return np.array([sum(len(batch.target) for batch in batches)])


def test_what_is_not_about_rows_is_refused_still(tmp_path: Path) -> None:
    encoding = Encoding(SCHEMAS["classification"])
    frame = as_frame([], tmp_path)[0]
    with rejects(vw.OutOfSchemaError, column="ward", raised_in="check_names"):
        open_rows(frame.drop(columns="ward"), None, encoding, invalid="drop")
    with rejects(vw.OutOfSchemaError, raised_in="encode_rows"):
        open_rows([[1, 1, "A", "Lima"]], ["no", "no"], encoding, invalid="drop")
    (tmp_path / "rows.parquet").write_bytes(b"no table")
    with rejects(vw.OutOfSchemaError, raised_in="_open_file"):
        open_rows(tmp_path / "rows.parquet", None, encoding, invalid="drop")
    with rejects(ParameterError, name="invalid"):
        open_rows(frame, None, encoding, invalid="guess")  # type: ignore[arg-type]


def test_the_certificate_says_whether_refusals_can_be_seen() -> None:
    X, y = [[31.5, None, "A", "Lima"]], ["no"]
    for invalid in ("refuse", "drop"):
        forest = vw.RandomTreesClassifier(SCHEMAS["classification"], n_estimators=2, max_depth=2, invalid=invalid)
        assert (Assumption.ROWS_FIT_SCHEMA.value in forest.fit(X, y).privacy_.assumptions) == (invalid == "refuse")


@given(st.lists(st.one_of(st.sampled_from(ODD), st.floats(), st.integers(), st.text(max_size=5)), max_size=8))
def test_a_column_is_read_as_its_cells_are(cells: list[Any]) -> None:
    """All at once or one by one: the same numbers and the same problems."""
    for parse in (False, True):
        column = pd.Series(np.empty(len(cells)), dtype=object)
        for place, cell in enumerate(cells):
            column.iat[place] = cell
        found, kinds = read_numbers(column, parse)
        kinds = np.zeros(len(cells), np.uint8) if kinds is None else kinds
        for cell, number, kind in zip(cells, found, kinds, strict=True):
            alone = read_number(cell, parse)
            assert kind == (alone if isinstance(alone, Problem) else 0)
            assert np.array_equal(number, NAN if isinstance(alone, Problem) else alone, equal_nan=True)


@given(st.lists(st.one_of(st.text(max_size=8), st.floats().map(repr), st.integers().map(str), st.none()), max_size=8))
def test_texts_are_parsed_as_their_cells_are(texts: list[str | None]) -> None:
    cells = [None if text is None else text.encode(errors="replace") for text in texts]
    found, kinds = read_numbers(pa.chunked_array([pa.array(cells, pa.binary())]), parse=True)
    kinds = np.zeros(len(cells), np.uint8) if kinds is None else kinds
    for cell, number, kind in zip(cells, found, kinds, strict=True):
        alone = read_number(cell, parse=True)
        assert kind == (alone if isinstance(alone, Problem) else 0)
        assert np.array_equal(number, NAN if isinstance(alone, Problem) else alone, equal_nan=True)
