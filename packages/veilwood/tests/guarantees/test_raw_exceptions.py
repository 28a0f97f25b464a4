# SPDX-License-Identifier: Apache-2.0
"""Odd values anywhere: the answer is an error of the library's own, in good time, and nothing is spent."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import veilwood as vw
from veilwood import estimators
from veilwood.errors import SetupError
from veilwood.privacy.loss import Loss
from veilwood.trees.random import MAX_TREES
from veilwood_testing.errors import rejects

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]

FAMILIES: list[Any] = [getattr(estimators, name) for name in estimators.__all__]
ONE_PASS: list[Any] = [kind for kind in FAMILIES if hasattr(kind, "partial_fit")]
SECONDS = 20.0  # far more than any refusal or small fit needs, far less than what ten million digits take
COLUMNS: list[dict[str, Any]] = [
    {"name": "x", "kind": "numeric", "lower": 0, "upper": 1, "bins": 2, "nullable": True},
    {"name": "c", "kind": "categorical", "values": ["a", "b"], "nullable": True},
]
CLASSES = {"name": "t", "kind": "categorical", "values": ["0", "1"]}
NUMBER = {"name": "t", "kind": "numeric", "lower": 0, "upper": 1}
MANY_DIGITS = 10**5000  # more than Python writes out


@cache
def schema_of(kind: Any) -> vw.Schema:
    task, target = ("classification", CLASSES) if kind._task == "classification" else ("regression", NUMBER)
    return vw.Schema.from_dict({"name": "odd", "task": task, "target": "t", "columns": [*COLUMNS, target]})


@cache
def small_parameters(kind: Any) -> dict[str, Any]:
    known = {"n_estimators": 2, "max_depth": 2, "random_state": 0, "n_jobs": 1, "schema": schema_of(kind)}
    return {name: known[name] for name in kind._get_param_names() if name in known}


def small(kind: Any, **parameters: Any) -> Any:
    """An estimator that fits quickly."""
    return kind(**small_parameters(kind) | parameters)


def good_table(kind: Any, n: int = 40) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.random(n), "c": rng.choice(["a", "b"], n)})
    y = rng.integers(0, 2, n)
    return X, y if kind._task == "classification" else y.astype(float)


@contextmanager
def in_time() -> Iterator[None]:
    start = time.process_time()
    yield
    assert time.process_time() - start < SECONDS


def attempt(kind: Any, X: Any, y: Any, **parameters: Any) -> vw.VeilwoodError | None:
    """Fit, and answer where that is the release; return the refusal, which must have cost nothing."""
    ledger = vw.MemoryLedger()
    refused = None
    with in_time():
        try:
            fitted = small(kind, **{"ledger": ledger} | parameters).fit(X, y)
            if kind is vw.MatrixForestPredictor:
                fitted.answer(good_table(kind)[0][:3])
        except vw.VeilwoodError as error:
            refused = error
    if refused is not None:
        assert ledger.spent == Loss.zero(), "a refused fit was charged"
        assert len(str(refused)) < 2000
    return refused


# -- parameters --------------------------------------------------------------------------------------------------


def nested(depth: int) -> list[Any]:
    deep: list[Any] = []
    for _ in range(depth):
        deep = [deep]
    return deep


def odd(value: Any) -> Any:
    """A value of a type that the called does not take."""
    return value


ODD: list[Any] = [
    None, True, False, -1, 0, 3, 65, 2**31, 2**63, 10**12, -(10**12), 10**400, MANY_DIGITS, -MANY_DIGITS,
    0.5, -0.0, math.nan, math.inf, -math.inf, 1e308, 5e-324, 1j, np.float64("nan"), np.float32("inf"), np.int64(2),
    np.uint64(2**64 - 1), np.bool_(True), np.longdouble("1e4000"), np.datetime64("2020-01-01"), np.str_("shared"),
    Fraction(1, 3), Fraction(1, MANY_DIGITS), Fraction(MANY_DIGITS), Decimal("NaN"), Decimal("sNaN"),
    Decimal("Infinity"), Decimal("1e9999999"), Decimal("1e-9999999"), "1e9999999", "1e-9999999", "9" * 10_000,
    "1/" + "9" * 10_000, "1/0", "inf", "nan", "", "row", "infer", "disjoint", "x" * 100_000, "\x00", "\ud800", "1 000",
    b"row", bytearray(b"1"), [], [1], [2, 2], [None], ["row"], (), (2,), {}, {"id": "c"}, {"id": [1], "at_most": 2},
    {"id": "c", "at_most": None}, {"id": "c", "at_most": MANY_DIGITS}, {"id": MANY_DIGITS, "at_most": 1},
    {1: nested(9)}, set(), frozenset([1]), nested(100_000), range(3), range(10**12), slice(2), np.array(3),
    np.array([1, 2]),
    np.array([]), np.array(["row", "disjoint"]), np.array([[1]]), np.array([None]), np.ma.masked, pd.NA, pd.NaT,
    pd.Series([1, 2]), pd.DataFrame({"a": [1]}), pa.array([1]), pa.scalar(1), object(), object, len, iter([1]),
    lambda: 1, Loss.zero(), vw.Rows(MANY_DIGITS), vw.Rows(odd(np.array([1, 2]))), vw.RowsOf("c", odd(1.5)),
    vw.RowsOf(odd([]), 1),
    memoryview(b"1"), NotImplemented, ..., ValueError("x"),
]  # fmt: skip


def described(value: object) -> str:
    try:
        return f"{type(value).__name__} {str(value)[:20]!a}"
    except Exception:
        return type(value).__name__


@pytest.mark.usefixtures("cached_strategies")
@pytest.mark.parametrize("kind", FAMILIES, ids=lambda kind: kind.__name__)
def test_any_value_of_any_parameter_works_or_is_refused(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a text may be taken for the path of a ledger
    X, y = good_table(kind)
    failures = []
    for name in kind._get_param_names():
        for value in ODD:
            try:
                attempt(kind, X, y, **{name: value})
            except Exception as error:
                failures.append(f"{name} = {described(value)}: {type(error).__name__} {str(error)[:80]!a}")
    assert not failures, "\n".join(failures)


# What lies between may be granted, and to grow so many trees takes its time.
quick = st.integers().filter(lambda number: not 100 < number <= MAX_TREES)
odd_values = st.sampled_from(ODD) | quick | st.floats() | st.fractions() | st.decimals() | st.text(max_size=9)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(FAMILIES), st.data())
def test_odd_parameters_together_work_or_are_refused(kind: Any, data: st.DataObject) -> None:
    names = [name for name in kind._get_param_names() if name not in ("schema", "ledger")]
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    attempt(kind, *good_table(kind), **{name: data.draw(odd_values) for name in chosen})


@pytest.mark.parametrize("kind", FAMILIES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "value", [5, np.array(5), 0.5, "0", True, {1: 2}, object(), np.zeros((2, 2, 2)), [[1, 2], [3]]]
)
def test_a_target_that_is_no_column_is_refused(kind: Any, value: Any) -> None:
    assert attempt(kind, good_table(kind)[0], value) is not None
    assert attempt(kind, good_table(kind)[0], value, schema="infer") is not None


@pytest.mark.parametrize("kind", ONE_PASS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "classes", [0, "ab", 1.5, [[0, 1]], [0, [1]], object(), {0: 1}, np.array(1), [MANY_DIGITS], [0, 1, 2]]
)
def test_classes_that_are_none_are_refused(kind: Any, classes: Any) -> None:
    with pytest.raises(vw.VeilwoodError):
        small(kind).partial_fit(*good_table(kind), classes=classes)


@pytest.mark.parametrize("kind", FAMILIES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("failure", [OSError("no bits"), NotImplementedError("no source")])
def test_without_random_bits_nothing_is_spent(kind: Any, failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> bytes:
        raise failure

    estimator, (X, y), ledger = small(kind), good_table(kind), vw.MemoryLedger()
    estimator.ledger = ledger
    monkeypatch.setattr("os.urandom", fail)
    release = estimator.fit(X, y).answer if kind is vw.MatrixForestPredictor else partial(estimator.fit, y=y)
    with rejects(SetupError, raised_in="_random_bytes"):
        release(X)
    assert ledger.entries() == []
    monkeypatch.undo()
    estimator.fit(X, y)


# -- cells -------------------------------------------------------------------------------------------------------

N = 12


def column(value: Any, *, usual: Any) -> list[Any]:
    return [usual] * (N - 1) + [value]


ODD_NUMBERS = [10**400, -(10**400), MANY_DIGITS, Decimal("sNaN"), Decimal("NaN"), Decimal("1e999999"), 1j, [1], {},
               b"1", Fraction(1, 3), Fraction(MANY_DIGITS), np.array([1, 2]), np.array(0.5), object(), "0.5",
               pd.NaT]  # fmt: skip
ODD_CATEGORIES = [np.array(["a", "b"]), np.array([]), np.array("a"), ["a"], ("a",), {"a": 1}, Decimal("sNaN"),
                  MANY_DIGITS, Decimal("1e9999999"), 1e308, 1j, b"a", b"\xff", "\ud800", object(), {"a"},
                  pd.Series(["a", "b"]), Fraction(MANY_DIGITS), "x" * 100_000]  # fmt: skip


def frames(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A table with one odd cell, in every form that can hold it."""
    cells: dict[str, list[Any]] = {"x": [0.5] * N, "c": ["a"] * N}
    cells[name] = column(value, usual=cells[name][0])
    objects = pd.Series(np.empty(N, dtype=object))
    for place, cell in enumerate(cells[name]):
        objects.iat[place] = cell
    yield "pandas", pd.DataFrame({"x": cells["x"], "c": cells["c"]} | {name: objects}) if name in "xc" else None
    yield "list", [list(row) for row in zip(cells["x"], cells["c"], strict=True)]


def lists_of_columns(name: str, values: list[Any]) -> Iterator[tuple[str, Any]]:
    for value in values:
        for form, made in frames(name, value):
            yield f"{form}, {name} = {described(value)}", made


@pytest.mark.parametrize(("name", "values"), [("x", ODD_NUMBERS), ("c", ODD_CATEGORIES)])
def test_odd_cells_are_read_or_refused(name: str, values: list[Any]) -> None:
    kind, failures = vw.RandomTreesClassifier, []
    y = ["0", "1"] * (N // 2)
    for form, X in lists_of_columns(name, values):
        for schema in (schema_of(kind), "infer"):
            try:
                attempt(kind, X, y, schema=schema)
            except Exception as error:
                failures.append(f"{form}, {schema!r}: {type(error).__name__} {str(error)[:80]!a}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("kind", [vw.RandomTreesClassifier, vw.RandomTreesRegressor])
def test_odd_targets_are_read_or_refused(kind: Any) -> None:
    failures = []
    X = good_table(kind, N)[0]
    for value in ODD_NUMBERS + ODD_CATEGORIES:
        usual = "0" if kind._task == "classification" else 0.5
        values = column(value, usual=usual)
        objects = np.empty(N, dtype=object)
        for place, cell in enumerate(values):
            objects[place] = cell
        for y in (values, [value] * N, objects, pd.Series(objects, dtype=object)):
            for schema in (schema_of(kind), "infer"):
                try:
                    attempt(kind, X, y, schema=schema)
                except Exception as error:
                    text = f"{type(y).__name__} of {described(value)}, {schema!r}"
                    failures.append(f"{text}: {type(error).__name__} {str(error)[:80]!a}")
    assert not failures, "\n".join(failures)


ARROW_COLUMNS: dict[str, Callable[[], Any]] = {
    "list": lambda: pa.array([["a"], ["b"]] * (N // 2)),
    "struct": lambda: pa.array([{"k": 1}] * N),
    "map": lambda: pa.array([[("k", 1)]] * N, pa.map_(pa.string(), pa.int64())),
    "null": lambda: pa.nulls(N),
    "all-null text": lambda: pa.nulls(N, pa.string()),
    "all-null dictionary": lambda: pa.DictionaryArray.from_arrays(pa.nulls(N, pa.int32()), pa.array([], pa.string())),
    "all-null dictionary of nulls": lambda: pa.DictionaryArray.from_arrays(pa.nulls(N, pa.int8()), pa.nulls(1)),
    "dictionary with a null": lambda: pa.DictionaryArray.from_arrays([0, 1] * (N // 2), pa.array(["a", None])),
    "dictionary of lists": lambda: pa.DictionaryArray.from_arrays([0] * N, pa.array([["a"]])),
    "dictionary of numbers": lambda: pa.DictionaryArray.from_arrays([0] * N, pa.array([0.5])),
    "text view": lambda: pa.array(["a"] * N, pa.string_view()),
    "decimal": lambda: pa.array([Decimal("0.5")] * N),
    "large decimal": lambda: pa.array([Decimal(10) ** 70] * N, pa.decimal256(76, 2)),
    "half": lambda: pa.array(np.full(N, 0.5, np.float16)),
    "time stamp": lambda: pa.array([0] * N, pa.timestamp("ns")),
    "duration": lambda: pa.array([0] * N, pa.duration("s")),
    "binary": lambda: pa.array([b"\xff"] * N),
    "boolean": lambda: pa.array([True] * N),
    "unsigned": lambda: pa.array([2**64 - 1] * N, pa.uint64()),
    "run-end encoded": lambda: pa.RunEndEncodedArray.from_arrays([N], ["a"]),
}


@pytest.mark.parametrize("form", ["table", "chunks", "iterator", "parquet", "ipc"])
@pytest.mark.parametrize("place", ["x", "c", "t"])
@pytest.mark.parametrize("name", ARROW_COLUMNS)
def test_odd_arrow_columns_are_read_or_refused(name: str, place: str, form: str, tmp_path: Path) -> None:
    made: dict[str, Any] = {"x": pa.array([0.5] * N), "c": pa.array(["a"] * N), "t": pa.array(["0", "1"] * (N // 2))}
    table = pa.table(made | {place: ARROW_COLUMNS[name]()})
    X: Any = table
    if form == "chunks":
        X = pa.concat_tables([table, table])
    elif form == "iterator":
        X = iter(table.to_batches() * 2)
    elif form == "parquet":
        X = tmp_path / "t.parquet"
        try:
            pa.parquet.write_table(table, X)
        except (pa.ArrowException, TypeError):
            pytest.skip("Parquet does not hold such columns")
    elif form == "ipc":
        X = tmp_path / "t.arrow"
        with pa.ipc.new_file(X, table.schema) as writer:
            writer.write_table(table)
    refused = attempt(vw.RandomTreesClassifier, X, None)
    if place == "c" and "all-null" in name:
        assert refused is None, refused  # the column allows missing values


# -- schemas -----------------------------------------------------------------------------------------------------

ODD_JSON = [MANY_DIGITS, 10**400, -(10**400), 1e308, math.nan, math.inf, nested(100_000), nested(3),
            {"a": nested(50_000)}, "x" * 100_000, "\ud800", "\x00", None, True, [MANY_DIGITS], [10**400], ["a", ["b"]],
            {1: 2}, 1j]  # fmt: skip


def test_odd_values_in_a_schema_are_refused_or_come_back() -> None:
    schema = schema_of(vw.RandomTreesClassifier).to_dict()
    failures = []
    keys = ("name", "kind", "values", "lower", "upper", "nullable", "bins", "cutoffs", "transform", "other", "bounds")
    places: list[tuple[Any, ...]] = [(key,) for key in (*schema, "inferred", "notes", "odd")]
    places += [("columns", column, key) for column in range(3) for key in (*keys, "odd")]
    for place in places:
        for value in ODD_JSON:
            altered: Any = json.loads(json.dumps(schema))
            inner = altered
            for step in place[:-1]:
                inner = inner[step]
            inner[place[-1]] = value
            try:
                with in_time():
                    made = vw.Schema.from_dict(altered)
                    str(made), repr(made), made.fingerprint()
            except vw.VeilwoodError:
                continue
            except Exception as error:
                failures.append(f"{place} = {described(value)}: {type(error).__name__} {str(error)[:80]!a}")
    assert not failures, "\n".join(failures)


HOSTILE_JSON = {
    "deep list": "[" * 200_000,
    "deep object": '{"a":' * 200_000,
    "deep and whole": "[" * 50_000 + "]" * 50_000,
    "deep inside": '{"name": "n", "task": "classification", "target": "t", "columns": ' + "[" * 500 + "]" * 500 + "}",
    "many digits": '{"name": ' + "9" * 5000 + "}",
    "large number": '{"columns": [{"name": "x", "kind": "numeric", "lower": 0, "upper": ' + "9" * 400 + "}]}",
    "twice": '{"name": "a", "name": "b"}',
    "no number": '{"name": NaN}',
    "infinite": '{"name": -Infinity}',
    "beyond floats": '{"name": 1e999}',
    "not text": "\xff\xfe",
    "no pair": '{"name": "\\ud800", "task": "classification", "target": "t", "columns": []}',
    "empty": "",
}


@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_hostile_json_is_no_schema(name: str, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(HOSTILE_JSON[name], encoding="latin-1")
    with in_time(), pytest.raises(vw.SchemaError):
        vw.Schema.load(path)


def test_a_schema_file_without_an_end_is_refused() -> None:
    with in_time(), rejects(vw.SchemaError, raised_in="Schema.load"):
        vw.Schema.load("/dev/zero")


@pytest.mark.parametrize("what", ["values", "columns", "cutoffs"])
def test_long_lists_in_a_schema_are_read_in_time(what: str) -> None:
    """One entry stands twice at the end of a long list: looking for it must not take the square of its length."""
    many = [str(number) for number in range(60_000)]
    x, t = {"name": "x", "kind": "numeric", "lower": 0, "upper": 1}, CLASSES
    columns: list[dict[str, Any]] = [x, t]
    if what == "values":
        columns = [{"name": "c", "kind": "categorical", "values": [*many, many[-1]]}, t]
    elif what == "columns":
        columns = [*({**x, "name": name} for name in [*many, many[-1]]), t]
    else:
        columns = [{**x, "cutoffs": (np.arange(1, 70_001) / 70_002).tolist()}, t]
    with in_time(), pytest.raises(vw.SchemaError):
        vw.Schema.from_dict({"name": "long", "task": "classification", "target": "t", "columns": columns})
