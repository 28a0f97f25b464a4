# SPDX-License-Identifier: Apache-2.0
"""One text for ids and categories: whatever holds a cell, it is the same category and the same person."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import veilwood as vw
from veilwood.data.canonical import (
    NoText,
    date_part_reader,
    factorize_texts,
    prefix_reader,
    to_canonical_id,
    to_canonical_text,
    to_canonical_texts,
)
from veilwood.data.columns import Column
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError
from veilwood.privacy.neighbours import RowsOf
from veilwood_secure.protocols.records import encode_table as encode_for_servers
from veilwood_testing.errors import rejects

MISSING, UNUSABLE = NoText.MISSING, NoText.UNUSABLE
NS = pd.Timestamp("2026-01-31 09:30:00.000000001")


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ([7, 7.0, "7", "7.0", "7.00", "7e+0", "70e-1", "0.7e1", Decimal("7.00"), Decimal("0.7E+1"), b"7", b"7.0"], "7"),
        ([np.int8(7), np.uint64(7), np.float16(7), np.float32(7), np.longdouble(7), np.str_("7.0")], "7"),
        (["007"], "007"),
        (["+7"], "+7"),
        ([" 7"], " 7"),
        (["7."], "7."),
        (["7e0", b"7e0"], "7e0"),
        ([0, -0.0, "-0", "-0.0", "0.000", Decimal("-0"), Decimal("0E+5"), False + 0], "0"),
        ([1.5, "1.5", "1.50", Decimal("1.500"), np.float32(1.5)], "1.5"),
        ([0.1, np.float32(0.1), np.float16(0.1), "0.1", "1e-01", Decimal("0.1")], "0.1"),
        ([float(np.float32(0.1))], "0.10000000149011612"),
        ([1e7, "1.0E7", 10**7], "10000000"),
        ([1e22, "1e+22", 10**22, Decimal("1E+22")], "1" + "0" * 22),
        ([2**60, str(2**60)], "1152921504606846976"),
        ([2.0**60, "1.152921504606847e+18"], "1152921504606847000"),
        ([Decimal("1e999999999"), "1e+999999999", "10e+999999998"], "1e+999999999"),
        ([10**5000, "1" + "0" * 5000], "1e+5000"),
        (["12345" * 2000], "12345" * 2000),
        ([True, np.True_, "True", "true", b"true"], "True"),
        (["TRUE"], "TRUE"),
        ([float("inf"), np.float32("inf"), Decimal("Infinity"), "inf"], "inf"),
        (["NaN"], "NaN"),  # in a file only an empty cell is missing
        (["٧"], "٧"),
        (["\ud800", "\\ud800"], "\\ud800"),
        ([b"\xff", "\\xff"], "\\xff"),
        ([datetime.date(2026, 1, 31), pd.Timestamp("2026-01-31"), np.datetime64("2026-01-31T00:00"), "2026-01-31",
          "2026-01-31 00:00:00", "2026-01-31T00:00:00.000"], "2026-01-31"),
        ([pd.Timestamp("2026-01-31 09:30"), datetime.datetime(2026, 1, 31, 9, 30), "2026-01-31T09:30:00.000",
          np.datetime64("2026-01-31T09:30", "ns")], "2026-01-31 09:30:00"),
        ([NS, str(NS), NS.to_datetime64()], "2026-01-31 09:30:00.000000001"),
        ([pd.Timestamp("2026-01-31", tz="Europe/Paris"), "2026-01-31 00:00:00+01:00", "2026-01-30T23:00:00.000Z"],
         "2026-01-30 23:00:00+00:00"),
        ([pd.Timestamp("1890-01-01", tz=ZoneInfo("Europe/Paris")), "1890-01-01 00:00:00+00:09:21",
          "1889-12-31T23:50:39Z",
          datetime.datetime(1890, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(seconds=561)))],
         "1889-12-31 23:50:39+00:00"),
        ([datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(microseconds=5))),
          "2025-12-31 23:59:59.999995+00:00"], "2025-12-31 23:59:59.999995+00:00"),
        (["2026-99-99 00:00:00Z"], "2026-99-99 00:00:00Z"),
        ([pd.Interval(0, 1)], "(0, 1]"),
        ([pd.Timedelta(days=1), datetime.timedelta(1), np.timedelta64(24, "h")], "1 days 00:00:00"),
    ],
)  # fmt: skip
def test_the_rule(cells: list[Any], text: str) -> None:
    assert {to_canonical_text(cell) for cell in cells} == {text}
    assert to_canonical_text(text) == text
    as_objects = np.empty(len(cells), dtype=object)
    as_objects[:] = cells
    codes, texts = factorize_texts(pd.Series(as_objects, dtype=object))
    assert {texts[code] for code in codes} == {text}


@pytest.mark.parametrize(
    ("cells", "nothing"),
    [
        ([None, float("nan"), np.float32("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), np.timedelta64("NaT"), "", b"",
          Decimal("NaN"), Decimal("sNaN")], MISSING),
        ([[7], (7,), {7}, {7: 7}, np.array(7), np.array([7]), 1j, object(), pd.Series([7]), np.timedelta64(1, "M")],
         UNUSABLE),
    ],
)  # fmt: skip
def test_what_has_no_text(cells: list[Any], nothing: NoText) -> None:
    for cell in cells:
        assert to_canonical_text(cell) is nothing
        column = np.empty(2, dtype=object)
        column[:] = ["7", cell]
        assert factorize_texts(pd.Series(column, dtype=object))[0].tolist() == [0, nothing.value]


any_cell = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.floats(width=32).map(np.float32), st.decimals(), st.text(),
    st.binary(), st.dates(), st.datetimes(), st.timedeltas(), st.uuids(), st.complex_numbers(), st.lists(st.integers()),
    st.from_regex(r"-?[0-9]{0,5}\.?[0-9]{0,5}([eE][+-]?[0-9]{1,12})?", fullmatch=True), st.fractions(),
    st.from_regex(r"2026-01-3[0-9][ T]00:0[01]:00(\.0*1?)?(Z|\+01:00)?", fullmatch=True),
    st.text(st.characters(categories=["Cs", "Ll"])),
)  # fmt: skip


@settings(max_examples=1000, deadline=None)
@given(any_cell)
def test_total_and_idempotent(cell: Any) -> None:
    text = to_canonical_text(cell)
    if isinstance(text, str):
        assert text
        assert to_canonical_text(text) == text
        assert to_canonical_text(text.encode()) == text
    assert to_canonical_id(cell) in (text, UNUSABLE)


numbers = st.one_of(
    st.integers(), st.integers(-(10**40), 10**40), st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
    st.builds(lambda digits, exponent: Decimal(digits).scaleb(exponent), st.integers(-99, 99), st.integers(-450, 450)),
)  # fmt: skip


@settings(max_examples=1000, deadline=None)
@given(numbers, numbers)
def test_numbers_are_equal_where_their_texts_are(one: Any, other: Any) -> None:
    """A float counts as the decimal number that it is written as."""
    exact = [Decimal(repr(x)) if isinstance(x, float) else Decimal(x) for x in (one, other)]
    assert (to_canonical_text(one) == to_canonical_text(other)) == (exact[0] == exact[1])
    for number, value in zip((one, other), exact, strict=True):
        assert Decimal(str(to_canonical_text(number))) == value
        assert to_canonical_text(str(value)) in (
            to_canonical_text(number),
            str(value),
        )  # 12E3 stays a text where nothing marks a number
        assert to_canonical_text(float(value)) == to_canonical_text(repr(float(value)))


@settings(max_examples=300, deadline=None)
@given(st.lists(any_cell, max_size=6))
def test_a_cell_is_read_by_itself(cells: list[Any]) -> None:
    column = np.empty(len(cells), dtype=object)
    for place, cell in enumerate(cells):
        column[place] = cell
    codes, texts = factorize_texts(pd.Series(column, dtype=object))
    found = [texts[code] if code >= 0 else NoText(code) for code in codes]
    assert found == [to_canonical_text(cell) for cell in cells]


def test_arrays_are_read_as_their_cells_are() -> None:
    arrays: list[Any] = [
        np.array([0.0, -0.0, 7.0]), np.array([7, 2**63], np.uint64), np.array([2.0**24, 1], np.float32),
        np.array([0.1, 7], np.float16), np.array([0.5, 7.0]), np.array([2.0**60, 1]), np.array([True]),
    ]  # fmt: skip
    for array in arrays:
        for read in (to_canonical_text, to_canonical_id):
            assert to_canonical_texts(array, read) == [read(cell) for cell in array]


@pytest.mark.parametrize("read", [prefix_reader(2), date_part_reader("year")])
@pytest.mark.parametrize("odd", [1.5, 2.0**24, -(2.0**30), float("nan")])
def test_no_other_number_of_a_column_changes_what_a_reader_is_given(read: Any, odd: float) -> None:
    """Whole numbers once skipped the reader, unless one row of the batch was no small whole number."""
    cells = [99084.0, 7.0]
    wanted = [read(cell) for cell in [*cells, odd]]
    assert to_canonical_texts(np.array(cells), read) == wanted[:2]
    assert to_canonical_texts(np.array([*cells, odd]), read) == wanted
    assert to_canonical_texts(np.array(cells, np.int64), read) == wanted[:2]
    for column in (pd.Series(cells), pa.chunked_array([pa.array(cells)]), pd.Series(cells, dtype="Int64")):
        codes, texts = factorize_texts(column, read)
        assert [texts[code] if code >= 0 else NoText(int(code)) for code in codes] == wanted[:2]


def test_times_of_day_and_runs_have_one_text_in_every_column_of_arrow() -> None:
    moment = datetime.time(9, 30)
    for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")):
        assert factorize_texts(pa.chunked_array([pa.array([moment, None], kind)]))[1] == [to_canonical_text(moment)]
    half = datetime.time(9, 30, 0, 500_000)
    assert (
        factorize_texts(pa.chunked_array([pa.array([half], pa.time64("ns"))]))[1]
        == [to_canonical_text(half)]
        == ["09:30:00.5"]
    )
    plain = pa.array(np.array([0.1, 16777216], np.float32))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), plain)
    here, there = (factorize_texts(pa.chunked_array([one]), to_canonical_id) for one in (plain, runs))
    assert (here[0].tolist(), here[1]) == (there[0].tolist(), there[1]) == ([0, NoText.UNUSABLE.value], ["0.1"])


def test_work_is_bounded_by_the_size_of_the_cell() -> None:
    start = time.process_time()
    for cell in (Decimal("1e999999999"), Decimal("-1e-999999999"), "1e+99999999999999999999", "9" * 10**6, 10**100_000):
        assert len(str(to_canonical_text(cell))) <= 1_000_010
    assert time.process_time() - start < 20


@pytest.mark.parametrize(
    ("usable", "rounded"),
    [
        ([2**53 - 1, 2.0**53 - 1, "9007199254740991.0"], [2.0**53, "9007199254740992.0", b"9.007199254740992e+15"]),
        ([2**60, str(2**60), Decimal(2**60)], [2.0**60, "1.152921504606847e+18", "1.152921504606847E18", np.inf]),
        ([np.float32(2**24 - 1)], [np.float32(2**24)]),
        ([np.float16(2047)], [np.float16(2048)]),
        (["12e40", "9" * 40, "0.1234567890123456789"], []),
    ],
)
def test_ids_that_a_float_has_rounded_are_unusable(usable: list[Any], rounded: list[Any]) -> None:
    """Two people whose numbers differ beyond 2^53 would be one, and one person in two files would be two."""
    assert all(to_canonical_id(cell) == to_canonical_text(cell) for cell in usable)
    assert all(to_canonical_id(cell) is UNUSABLE for cell in rounded)
    for cell in rounded:
        with rejects(OutOfSchemaError, column="who", problems=(("who", "unusable cell"),)):
            kept(pd.DataFrame({"who": [cell], "row": 0.5, "target": "a"}))


# -- every format and engine ------------------------------------------------------------------------------------

K = 1
ROWS = Encoding(
    Schema("rows", "classification", Column("target", "categorical", values=("a", "b")),
           (Column("row", "numeric", lower=0, upper=65535),))
)  # fmt: skip


def kept(X: Any) -> list[int]:
    """Which rows a cap by id lets through."""
    source = open_rows(X, None, ROWS, unit=RowsOf("who", at_most=K), batch_rows=3)
    return [int(code) for batch in source.batches() for code in batch.codes[:, 0]]


def kept_by_dask(X: Any) -> list[int]:
    dask = pytest.importorskip("dask")
    frames = pytest.importorskip("dask.dataframe")

    found: list[int] = []

    def collect(batches: Any, *, n_jobs: Any = 1) -> Any:
        found.extend(int(code) for batch in batches for code in batch.codes[:, 0])
        return np.zeros(1, np.int64)

    with dask.config.set({"scheduler": "synchronous", "dataframe.shuffle.method": "tasks"}):
        parts = frames.from_pandas(X, npartitions=2, sort=False)
        open_rows(parts, None, ROWS, unit=RowsOf("who", at_most=K)).aggregate(collect)
    return found


Make = Callable[[list[Any]], Any]


def objects(write: Callable[[Any], Any]) -> Make:
    return lambda cells: pd.Series([write(cell) for cell in cells], dtype=object)


def typed(dtype: Any, write: Callable[[Any], Any] = lambda cell: cell) -> Make:
    return lambda cells: pd.Series([write(cell) for cell in cells], dtype=dtype)


def arrow(kind: Any, write: Callable[[Any], Any] = lambda cell: cell) -> Make:
    return lambda cells: pa.array([write(cell) for cell in cells], kind)


def coded(kind: Any, write: Callable[[Any], Any] = lambda cell: cell) -> Make:
    return lambda cells: pa.array([write(cell) for cell in cells], kind).dictionary_encode()


def polar(kind: Any, write: Callable[[Any], Any] = lambda cell: cell) -> Make:
    return lambda cells: pl.Series([write(cell) for cell in cells], dtype=kind)


FORMS: dict[str, dict[str, Make]] = {
    "whole": {
        "int64": typed("int64"),
        "Int64": typed("Int64"),
        "float": typed("float64"),
        "float32": typed("float32"),
        "Float64": typed("Float64"),
        "integers": objects(int),
        "decimals": objects(lambda n: Decimal(f"{n}.0")),
        "floats32": objects(np.float32),
        "texts": objects(str),
        "texts .0": objects(lambda n: f"{n}.0"),
        "str": typed("str", lambda n: f"{n}.0"),
        "bytes": objects(lambda n: str(n).encode()),
        "mixed": objects(lambda n: [n, str(n), float(n), Decimal(n), np.float32(n), f"{n}.00", np.int8(n)][n % 7]),
        "category": typed("category"),
        "category of texts": typed("category", lambda n: f"{n}.0"),
        "pandas' arrow": typed(pd.ArrowDtype(pa.decimal128(9, 3))),
        "int8": arrow(pa.int8()),
        "half": arrow(pa.float16(), np.float16),
        "arrow float32": arrow(pa.float32()),
        "decimal128": arrow(pa.decimal128(7, 2), Decimal),
        "decimal256": arrow(pa.decimal256(50, 0), Decimal),
        "string": arrow(pa.string(), str),
        "large string": arrow(pa.large_string(), lambda n: f"{n}.0"),
        "view": arrow(pa.string_view(), str),
        "binary": arrow(pa.binary(), lambda n: str(n).encode()),
        "dictionary": coded(pa.int32()),
        "dictionary of texts": coded(pa.string(), lambda n: f"{n}.0"),
        "dictionary of floats": coded(pa.float64()),
        "dictionary of decimals": coded(pa.decimal128(9, 1), Decimal),
        "polars": polar(pl.Int64),
        "polars float": polar(pl.Float32),
        "polars text": polar(pl.String, lambda n: f"{n}.0"),
        "polars decimal": polar(pl.Decimal(9, 2), Decimal),
        "polars category": polar(pl.Categorical, str),
        "polars binary": polar(pl.Binary, lambda n: str(n).encode()),
    },
    "fraction": {
        "float": typed("float64"),
        "float32": typed("float32"),
        "float16": typed("float16"),
        "Float32": typed("Float32"),
        "decimals": objects(lambda x: Decimal(f"{x:.9f}")),
        "texts": objects(str),
        "texts 0": objects(lambda x: f"{x:.9f}"),
        "decimal": arrow(pa.decimal128(20, 9), lambda x: Decimal(str(x))),
        "dictionary": coded(pa.float32()),
        "binary": arrow(pa.large_binary(), lambda x: str(x).encode()),
        "polars": polar(pl.Float64),
    },
    "boolean": {
        "bool": typed("bool"),
        "boolean": typed("boolean"),
        "objects": objects(bool),
        "numpy": objects(np.bool_),
        "texts": objects(str),
        "lower": objects(lambda b: str(b).lower()),
        "category": typed("category"),
        "arrow": arrow(pa.bool_()),
        "dictionary": coded(pa.string(), str),
        "polars": polar(pl.Boolean),
    },
    "moment": {
        "ns": typed("datetime64[ns]"),
        "s": typed("datetime64[s]"),
        "objects": objects(pd.Timestamp),
        "texts": objects(str),
        "python": objects(lambda t: t.to_pydatetime()),
        "arrow": arrow(pa.timestamp("ms")),
        "arrow ns": arrow(pa.timestamp("ns")),
        "dictionary": coded(pa.timestamp("us")),
        "polars": polar(pl.Datetime("us")),
    },
    "zoned": {
        "utc": typed("datetime64[ns, UTC]"),
        "paris": typed("datetime64[ns, Europe/Paris]"),
        "objects": objects(lambda t: t),
        "texts": objects(str),
        "arrow": arrow(pa.timestamp("us", "Asia/Tokyo")),
        "polars": polar(pl.Datetime("ms", "UTC")),
    },
    "text": {
        "objects": objects(str),
        "str": typed("str"),
        "category": typed("category"),
        "arrow": arrow(pa.string()),
        "large": arrow(pa.large_string()),
        "binary": arrow(pa.binary(), str.encode),
        "dictionary": coded(pa.string()),
        "polars": polar(pl.String),
        "polars enum": lambda cells: pl.Series(cells, dtype=pl.Enum(sorted(set(cells)))),
    },
}
CELLS: dict[str, Any] = {
    "whole": st.integers(0, 12),
    "fraction": st.sampled_from([0.5, 0.1, 2.25, 3.0, 1e-5]),
    "boolean": st.booleans(),
    "moment": st.sampled_from(
        [pd.Timestamp("2026-01-31"), pd.Timestamp("2026-01-31 09:30"), pd.Timestamp("1999-12-31 23:59:59")]
    ),
    "zoned": st.sampled_from(
        [
            pd.Timestamp("2026-01-31 01:00", tz="Europe/Paris"),
            pd.Timestamp("2026-01-31", tz="UTC"),
            pd.Timestamp("2026-07-31 09:30:01", tz="Asia/Tokyo"),
        ]
    ),
    "text": st.sampled_from(
        [
            "a",
            "b",
            "007",
            "7",
            "7.0",
            " 7",
            "+7",
            "12e4",
            "250.1",
            "250.10",
            "é",
            "e\u0301",
            "True",
            "true",
            "NaN",
            "inf",
            "2026-01-31",
            "2026-01-31 00:00:00",
            "x,y",
            'q"',
            "-0",
        ]
    ),
}


def table_of(column: Any, first_row: int = 0) -> Any:
    """A table in the library of its column; each row knows its place."""
    n = len(column)
    rest = {"row": np.arange(n) + first_row + 0.5, "target": ["a"] * n}
    if isinstance(column, pd.Series):
        return pd.DataFrame({"who": column, **rest})
    if isinstance(column, pl.Series):
        return pl.DataFrame({"who": column, **rest})
    return pa.table({"who": column, **rest})


def written(table: Any, folder: Path, name: str) -> list[Path]:
    """Write a table as its library does, in every format that can hold it."""
    paths = []
    is_binary = name in ("bytes", "binary", "polars binary")
    if isinstance(table, pd.DataFrame):
        if not is_binary:  # pandas writes b'7'
            table.to_csv(folder / f"{name}.csv", index=False)
            paths.append(folder / f"{name}.csv")
        table = (
            None
            if name in ("mixed", "numpy", "floats32", "objects")
            else pa.Table.from_pandas(table, preserve_index=False)
        )
    elif isinstance(table, pl.DataFrame):
        if not is_binary:
            table.write_csv(folder / f"{name}.csv")
            paths.append(folder / f"{name}.csv")
        table.write_parquet(folder / f"{name}.parquet")
        return [*paths, folder / f"{name}.parquet"]
    elif not is_binary and not pa.types.is_dictionary(table.column(0).type) and not name.startswith(("view", "half")):
        pa.csv.write_csv(table, folder / f"{name}.csv")
        paths.append(folder / f"{name}.csv")
    if table is not None:
        pa.parquet.write_table(table, folder / f"{name}.parquet")
        pa.feather.write_feather(table, folder / f"{name}.arrow")
        paths += [folder / f"{name}.parquet", folder / f"{name}.arrow"]
    return paths


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("kind", FORMS)
@given(data=st.data())
def test_every_format_and_engine_sees_the_same_people_and_categories(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cells = data.draw(st.lists(CELLS[kind], min_size=1, max_size=8))
    texts = [to_canonical_text(cell) for cell in cells]
    people = Counter(texts)
    values = sorted({str(text) for text in texts[::2]} | {"rest"})
    schema = Schema("s", "classification", Column("target", "categorical", values=("a", "b")),
                    (Column("row", "numeric", lower=0, upper=65535),
                     Column("who", "categorical", values=tuple(values), other="rest")))  # fmt: skip
    expected = [values.index(str(text)) if text in values else values.index("rest") for text in texts]
    folder, everything = tmp_path_factory.mktemp(kind), 0
    for name, make in FORMS[kind].items():
        table = table_of(make(cells))
        forms: list[Any] = [table, *written(table, folder, name)]
        everything += len(forms) - 1
        for form in forms:
            source = open_rows(form, None, Encoding(schema), batch_rows=3)
            codes = np.concatenate([batch.codes[:, 1] for batch in source.batches()])
            assert codes.tolist() == expected, (name, form)
            rows = kept(form)
            assert Counter(texts[row] for row in rows) == dict.fromkeys(people, K), (name, form)
        if isinstance(table, pd.DataFrame):
            assert Counter(texts[row] for row in kept_by_dask(table)) == dict.fromkeys(people, K), name
        assert encode_for_servers(schema, table, ["a"] * len(cells))[0][1].argmax(axis=0).tolist() == expected, name
    assert everything > 5
    assert len(kept(folder)) == len(people), "one person has one row in all files together"


def test_a_folder_in_which_one_file_has_held_a_missing_value(tmp_path: Path) -> None:
    """pandas writes 7.0 once a column has been a float: still the same person."""
    frame = pd.DataFrame({"who": [7, 8], "row": [0.5, 1.5], "target": "a"})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.assign(who=[7.0, np.nan], row=[2.5, 3.5]).dropna().to_csv(tmp_path / "b.csv", index=False)
    assert "7.0" in (tmp_path / "b.csv").read_text()
    for _ in range(20):
        rows = kept(tmp_path)
        assert len(rows) == 2
        assert len({0, 2} & set(rows)) == 1


def test_cells_that_are_no_category_are_refused_before_the_door() -> None:
    schema = vw.Schema.numeric((0, 1), classes=[0, 1], names=["x"])
    schema = Schema("s", "classification", schema.target, (Column("c", "categorical", values=("a",), nullable=True),))
    for column in (
        pa.array([["a"]]),
        pa.array([{"a": 1}]),
        pd.Series([["a"]]),
        pl.Series([["a"]]),
        pd.Series([1j], dtype=object),
    ):
        ledger = vw.MemoryLedger()
        frame = {"c": column, "target": [0]}
        X = (
            pa.table(frame)
            if isinstance(column, pa.Array)
            else pl.DataFrame(frame)
            if isinstance(column, pl.Series)
            else pd.DataFrame(frame)
        )
        with rejects(OutOfSchemaError, column="c", problems=(("c", "unusable cell"),)):
            vw.RandomTreesClassifier(schema, n_estimators=2, max_depth=1, ledger=ledger).fit(X)
        assert {entry.state for entry in ledger.entries()} <= {"cancelled"}
