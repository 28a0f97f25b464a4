# SPDX-License-Identifier: Apache-2.0
"""Pairs of neighbouring tables, the forms in which a table can be given, and estimators to fit: drawn from a number.

Used by the tests of noninterference. Every cell that fits the schema by its words can turn up, however odd.
"""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import veilwood as vw
from veilwood import estimators
from veilwood.forests.adaptive import loop
from veilwood.privacy.noise import ThresholdedGaussian
from veilwood_audit.noninterference import result_or_error, visible_values

Row = dict[str, Any]

FEATURES: list[dict[str, Any]] = [
    {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "nullable": True, "bins": 3},
    {"name": "income", "kind": "numeric", "lower": -10, "upper": 1000, "transform": "asinh"},
    {"name": "city", "kind": "categorical", "values": ["K\u00f6ln", "Lima", "rest"], "other": "rest", "nullable": True},
    {"name": "grade", "kind": "categorical", "values": [1, 2, 3]},
]
TARGETS: dict[str, dict[str, Any]] = {
    "classification": {"name": "ill", "kind": "categorical", "values": [0, 1, 2], "other": 2},
    "regression": {"name": "ill", "kind": "numeric", "lower": 0, "upper": 10},
}
TWO_CLASSES = "two classes"
SCHEMAS = {
    task: vw.Schema.from_dict({
        "name": "clinic", "task": "classification" if task == TWO_CLASSES else task, "target": "ill",
        "columns": [*FEATURES, target],
    })
    for task, target in {**TARGETS, TWO_CLASSES: TARGETS["classification"] | {"values": [0, 2]}}.items()
}  # fmt: skip

NAN = float("nan")
INF = float("inf")
# What may stand in a cell. The first entries of each are common; the rest are odd and fit the schema all the same.
COMMON: dict[str, list[Any]] = {
    "age": [3.0, 37, 37.5, 64.25, None],
    "income": [0.0, 12, 500.5, 999.0],
    "city": ["K\u00f6ln", "Lima", "rest", None],
    "grade": [1, 2, 3],
    "classification": [0, 1, 2],
    "regression": [0.0, 3, 9.75],
}
ODD: dict[str, list[Any]] = {
    "age": [NAN, INF, -INF, -0.0, 1e308, -5, 2**63, 10**30, 5e-324, np.float32(0.1)],
    "income": [INF, -INF, -0.0, 2**63, -(2**70), 10**30, 1e-300, np.int8(7)],
    "city": ["Ko\u0308ln", "k\u00f6ln", " Lima", "x" * 20_000, 2**63, 10**30, 7.0, True, "\U0001d4a6", NAN],
    "grade": [1.0, "2", "3.0", Decimal("1.00"), np.uint8(3)],
    "classification": ["1", 5, 2**63, 2**70, 1.0, "\u00e9", "e\u0301", "y" * 9000, True, Decimal("2.50")],
    "regression": [1e300, -1e300, 2**63, 10**30, -0.0, np.float32(2.5)],
}  # fmt: skip
INVALID: dict[str, list[Any]] = {
    "age": ["abc", [1], Decimal("sNaN"), "37,5"],
    "income": [None, NAN, "", "12 EUR", 10**400, {"a": 1}],
    "city": [[1, 2], {"x": 1}],
    "grade": [None, 4, "one", "", INF, [1]],
    "classification": [None, NAN, "", [0]],
    "regression": [None, NAN, INF, -INF, "high", "", 10**400],
}
PEOPLE: list[list[Any]] = [
    ["p1"] * 4, [7, "7", 7.0, "7.0"], [2**53, str(2**53), "p0", "p0"], ["\u00e9", "\u00e9", "e\u0301", "e\u0301"],
    ["007"] * 4, [True, "True", True, "True"], ["q"] * 4,
]  # fmt: skip


def cell(rng: np.random.Generator, column: str, odd: float, invalid: float = 0.0) -> Any:
    pool, column = COMMON, "classification" if column == TWO_CLASSES else column
    if rng.random() < invalid:
        pool = INVALID
    elif rng.random() < odd:
        pool = ODD
    return pool[column][int(rng.integers(len(pool[column])))]


def row_of(rng: np.random.Generator, task: str, odd: float, invalid: float = 0.0) -> Row:
    row = {column: cell(rng, column, odd, invalid) for column in ("age", "income", "city", "grade")}
    return row | {"ill": cell(rng, task, odd, invalid)}


# -- forms of a table ---------------------------------------------------------------------------------------


NAMES = ("age", "income", "city", "grade", "ill")


def table(rows: list[Row], task: str) -> pa.Table:
    """An Arrow table with the types that the schema suggests, whatever the rows."""
    number, text = pa.float64(), pa.string()
    kinds = {"age": number, "income": number, "city": text, "grade": text, "person": text}
    kinds["ill"] = number if task == "regression" else text

    def written(value: Any, kind: pa.DataType) -> Any:
        if value is None or (isinstance(value, float) and value != value):
            return None
        return float(value) if kind == number else str(value)

    names = [*NAMES, *(["person"] if rows and "person" in rows[0] else [])]
    return pa.table({
        name: pa.array([written(row[name], kinds[name]) for row in rows], kinds[name]) for name in names
    })  # fmt: skip


def as_list(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    return [[row[name] for name in NAMES[:-1]] for row in rows], [row["ill"] for row in rows]


def as_array(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    array = np.empty((len(rows), 4), object)
    target = np.empty(len(rows), object)
    for place, row in enumerate(rows):
        array[place] = np.array([None] * 4, object)
        for column, name in enumerate(NAMES[:-1]):
            array[place, column] = row[name]
        target[place] = row["ill"]
    return array, target


def as_frame(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    """A frame of objects: pandas decides nothing."""
    names = list(rows[0]) if rows else list(NAMES)
    frame = pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in names})
    return frame, None


def _inferred(cells: list[Any]) -> Any:
    """What pandas makes of a list; some versions cannot infer anything of a whole number that no float can hold."""
    try:
        return pd.Series(cells)
    except OverflowError:
        return pd.Series(cells, dtype=object)


def as_inferred_frame(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    """A frame as one makes it of lists, with a type for each column that depends on all of its cells."""
    frame = pd.DataFrame({name: _inferred([row[name] for row in rows]) for name in (rows[0] if rows else NAMES)})
    return frame.drop(columns="ill"), frame["ill"]


def as_arrow(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    return table(rows, task), None


def as_polars(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    import polars as pl

    return pl.from_arrow(table(rows, task)), None


def as_csv(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    write_csv(rows, task, folder / "rows.csv", people=bool(rows) and "person" in rows[0])
    return str(folder / "rows.csv"), None


def write_csv(rows: list[Row], task: str, path: Path, *, people: bool = False) -> None:
    """Texts as they are: a cell that is no number stays what it is."""
    names = [*NAMES, *(["person"] if people else [])]
    cells = pa.table({
        name: pa.array([None if row[name] is None else str(row[name]) for row in rows], pa.string()) for name in names
    })  # fmt: skip
    pa.csv.write_csv(cells, path)


def as_parquet(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    pa.parquet.write_table(table(rows, task), folder / "rows.parquet")
    return str(folder / "rows.parquet"), None


def as_folder(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    half = (len(rows) + 1) // 2
    for number, part in enumerate((rows[:half], rows[half:])):  # how many files there are is public
        write_csv(part, task, folder / f"part{number}.csv", people=bool(rows) and "person" in rows[0])
    return str(folder), None


def as_iterator(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    def pieces() -> Iterator[Any]:
        for start in range(0, len(rows), 3):
            yield as_list(rows[start : start + 3], task, folder)

    return pieces(), None


def as_dask(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    import dask.dataframe as dd

    return dd.from_pandas(table(rows, task).to_pandas(), npartitions=2), None


Form = Callable[[list[Row], str, Path], tuple[Any, Any]]


def as_duckdb(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    """A table in a database, which is counted there."""
    import duckdb

    with duckdb.connect(str(folder / "rows.duckdb")) as connection:
        connection.register("given", table(rows, task))
        connection.execute("CREATE TABLE visits AS SELECT * FROM given")
    return f"duckdb:///{folder}/rows.duckdb#visits", None


def as_sqlite(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    """A file of SQLite, in which each cell has a type of its own; it is counted there."""
    with closing(sqlite3.connect(folder / "rows.sqlite", isolation_level=None)) as database:
        fill(database.execute, table(rows, task), "?", "")
    return f"sqlite:///{folder}/rows.sqlite#visits", None


SERVERS: list[str] = []  # addresses of PostgreSQL; whoever asks for that form starts one


def as_postgres(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    """A table of a server, which is counted there."""
    import psycopg

    with psycopg.connect(SERVERS[-1], autocommit=True) as database:
        database.execute("DROP TABLE IF EXISTS visits")
        fill(database.execute, table(rows, task), "%s", "text")
    return f"{SERVERS[-1]}#visits", None


def fill(execute: Callable[..., Any], cells: pa.Table, mark: str, text: str) -> None:
    """Make a table ``visits`` and put rows into it."""
    kinds = ["double precision" if pa.types.is_floating(field.type) else text for field in cells.schema]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(cells.column_names, kinds, strict=True))
    execute(f"CREATE TABLE visits ({columns})")
    marks = ", ".join([mark] * len(kinds))
    for row in zip(*(column.to_pylist() for column in cells.columns), strict=True):
        execute(f"INSERT INTO visits VALUES ({marks})", row)


FORMS: dict[str, Form] = {
    "list": as_list, "array": as_array, "frame": as_frame, "inferred frame": as_inferred_frame, "arrow": as_arrow,
    "polars": as_polars, "csv": as_csv, "parquet": as_parquet, "folder": as_folder, "iterator": as_iterator,
}  # fmt: skip


def as_relation(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    import duckdb

    return duckdb.connect().from_arrow(table(rows, task)), None


def as_lazy(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    return as_polars(rows, task, folder)[0].lazy(), None


def as_query(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    """Cells as SQLite keeps them: each with a type of its own."""
    database = sqlite3.connect(":memory:")
    cells = table(rows, task)
    database.execute(f"CREATE TABLE visits ({', '.join(cells.column_names)})")
    marks = ", ".join("?" for _ in cells.column_names)
    database.executemany(
        f"INSERT INTO visits VALUES ({marks})", zip(*(c.to_pylist() for c in cells.columns), strict=True)
    )
    return vw.Query("SELECT * FROM visits ORDER BY rowid", database), None


def as_address(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    import fsspec

    path, _ = as_csv(rows, task, folder)
    fsspec.filesystem("memory").pipe("/clinic/rows.csv", Path(path).read_bytes())
    return "memory://clinic/rows.csv", None


def as_paths(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    as_folder(rows, task, folder)
    return sorted(folder.glob("*.csv")), None


def as_spool(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    return vw.spool(as_iterator(rows, task, folder)[0]), None


def as_lake(rows: list[Row], task: str, folder: Path) -> tuple[Any, Any]:
    import deltalake

    deltalake.write_deltalake(folder / "lake", table(rows, task))
    return folder / "lake", None


HANDED_OVER: dict[str, Form] = {  # by other libraries: pairs of these forms are asked for by name
    "relation": as_relation, "lazy": as_lazy, "query": as_query, "address": as_address, "paths": as_paths,
    "spool": as_spool, "lake": as_lake, "dask": as_dask, "duckdb": as_duckdb, "sqlite": as_sqlite,
    "postgres": as_postgres,
}  # fmt: skip
HAS_POLARS = find_spec("polars") is not None  # elsewhere pairs of that form are given as Arrow
COUNTED_THERE = ("dask", "duckdb", "sqlite", "postgres")
IN_MEMORY = ("list", "array", "frame", "arrow", "polars")
WITHOUT_NAMES = ("list", "array", "iterator", "spool")
TYPED = (
    "arrow",
    "polars",
    "parquet",
    "relation",
    "lazy",
    "query",
    "lake",
    "dask",
    "duckdb",
    "sqlite",
    "postgres",
)  # hold no cell of another type than the column's

# -- who is fitted ------------------------------------------------------------------------------------------

SMALL = {"n_estimators": 3, "max_depth": 2}
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("RandomTreesClassifier", SMALL | {"trees": "shared"}),
    ("RandomTreesClassifier", SMALL | {"trees": "disjoint", "voting": "probabilistic"}),
    ("RandomTreesClassifier", SMALL | {"trees": "disjoint", "leaves": "empirical-bayes", "voting": "threshold"}),
    ("RandomTreesRegressor", SMALL | {"trees": "shared"}),
    ("RandomTreesRegressor", SMALL | {"trees": "disjoint", "leaves": "empirical-bayes"}),
    ("MatrixForestClassifier", SMALL),
    ("MatrixForestClassifier", SMALL | {"mechanism": "laplace", "trees": "disjoint", "voting": "hard"}),
    ("MatrixForestClassifier", SMALL | {"n_estimators": 4, "n_ensembles": 2, "max_features": 2, "branching": "binary"}),
    ("MatrixForestPredictor", SMALL | {"mode": "batch"}),
    ("MatrixForestPredictor", SMALL | {"mode": "batch", "mechanism": "laplace"}),
    ("MatrixForestPredictor", SMALL | {"mode": "subsample", "voting": "weight"}),
    ("MatrixForestPredictor", SMALL | {"mode": "subsample", "voting": "hard", "mechanism": "laplace"}),
    ("MedianForestClassifier", SMALL),
    ("MedianForestClassifier", SMALL | {"variant": "k-medians", "selection": "exponential", "trees": "shared"}),
    ("MedianForestClassifier", SMALL | {"variant": "random-attribute", "candidates": 2}),
    ("MedianForestRegressor", SMALL),
    ("MedianForestRegressor", SMALL | {"variant": "k-medians", "trees": "shared"}),
    ("GreedyForestClassifier", SMALL),
    ("GreedyForestClassifier", SMALL | {"quality": "gini", "selection": "flip", "leaf_update": "exponential"}),
    ("GreedyForestClassifier", SMALL | {"quality": "entropy", "branching": "binary"}),
    ("GreedyForestRegressor", SMALL),
    ("PrivateForestClassifier", {}),
    ("PrivateForestClassifier", {"n_rows": 3000}),
    ("PrivateForestClassifier", {"n_rows": 200}),
    ("PrivateForestClassifier", {"n_rows": 10**6}),  # so many that a delta is used
    ("PrivateForestClassifier", {"n_rows": 1, "epsilon": 1e-5}),  # nothing but class counts is worth it
    ("PrivateForestRegressor", {}),
    ("PrivateForestRegressor", {"n_rows": 500}),
    ("PrivateForestRegressor", {"n_rows": 10**6}),
]  # fmt: skip
SETTINGS += [(name, SMALL) for name in estimators.__all__ if name not in dict(SETTINGS)]  # of new families
ONE_PASS = ("RandomTreesClassifier", "RandomTreesRegressor", "MatrixForestClassifier")
DROPS = "invalid" in inspect.signature(vw.RandomTreesClassifier).parameters


@dataclass
class Pair:
    """Two neighbouring tables and what is done with each."""

    estimator: str
    params: dict[str, Any]
    form: str
    in_parts: bool  # partial_fit and release
    one: list[Row]
    other: list[Row]
    place: str
    draw: int
    number: int
    queries: list[Row] = field(default_factory=list)
    two_classes: bool = False

    @property
    def task(self) -> str:
        if self.estimator.endswith("Regressor"):
            return "regression"
        return TWO_CLASSES if self.two_classes else "classification"

    def run(self, rows: list[Row], folder: Path) -> dict[str, Any]:
        """Fit, and return all that can be seen; what is declared is believed, so that every part is reached."""
        with mock.patch.object(loop, "DECLARED_FACTOR", 1e9):
            return self._run(rows, folder)

    def _run(self, rows: list[Row], folder: Path) -> dict[str, Any]:
        model = getattr(vw, self.estimator)(SCHEMAS[self.task], **self.params)
        planned = result_or_error(lambda: str(model.plan()))
        if self.in_parts:
            half = (len(rows) + 1) // 2
            for number, part in enumerate((rows[:half], rows[half:])):
                (folder / str(number)).mkdir()
                model.partial_fit(*FORMS[self.form](part, self.task, folder / str(number)))
            unfinished = [repr(model), result_or_error(lambda: model.predict(self.queries))]
            model.release()
        else:
            unfinished = []
            weights = {"sample_weight": [row["weight"] for row in rows]} if "max_weight" in self.params else {}
            rows = [{name: cell for name, cell in row.items() if name != "weight"} for row in rows]
            model.fit(*(FORMS | HANDED_OVER)[self.form](rows, self.task, folder), **weights)
        request = pd.DataFrame({name: [row[name] for row in self.queries] for name in NAMES[:-1]})
        return {"planned": planned, "unfinished": unfinished} | visible_values(model, request)

    def __str__(self) -> str:
        given = {key: value for key, value in self.params.items() if key not in ("n_jobs", "random_state")}
        return (
            f"pair {self.number}: {self.estimator} {given} from {self.form}{' in parts' * self.in_parts}, {self.place}"
        )


def pair_of(number: int, *, drop: bool = False, form: str | None = None, sized: bool = False) -> Pair:
    """Draw a pair: who is fitted, on what, and where the neighbour differs; ``sized``: forests choose their size."""
    rng = np.random.default_rng([15, number, drop])
    name, own = SETTINGS[number % len(SETTINGS)]
    two_classes = bool(rng.random() < 0.4) and not name.endswith("Regressor")
    task = "regression" if name.endswith("Regressor") else TWO_CLASSES if two_classes else "classification"
    params: dict[str, Any] = {
        "epsilon": float(rng.choice([0.1, 1, 20])),
        "delta": float(rng.choice([0, 1e-6])),
        "adjacency": str(rng.choice(["add-remove", "replace-one"])),
        "random_state": int(rng.integers(3)),
        "n_jobs": 1,
    } | own  # fmt: skip
    if sized:
        params = {key: value for key, value in params.items() if key not in SMALL}
        params |= {key: "auto" for key in SMALL if rng.random() < 0.8} or {"max_depth": "auto"}
        params |= {"n_rows": int(rng.choice([20, 1000]))} if rng.random() < 0.5 else {}
    form = form or str(rng.choice([f for f in FORMS if f != "iterator" or (name in ONE_PASS and not sized)]))
    form = "arrow" if form == "polars" and not HAS_POLARS else form
    units = ["row", "rows"] if form in WITHOUT_NAMES else ["row", "rows", "id"]
    unit = str(rng.choice(units))
    in_parts = (
        name in ONE_PASS
        and unit != "id"
        and not sized
        and form not in ("folder", *HANDED_OVER)
        and bool(rng.random() < 0.25)
    )
    if rng.random() < 0.3 and form not in COUNTED_THERE:
        params["ledger"] = "spends.db"
    if drop:
        params["invalid"] = "drop"
    odd = float(rng.choice([0, 0.1, 0.5]))
    invalid = float(rng.choice([0, 0.2, 0.9])) if drop else 0.0
    if form == "inferred frame":
        odd = 0.0  # numpy and pandas would round or refuse other rows because of an odd one

    def draw_rows(n: int, **share: float) -> list[Row]:
        rows = [row_of(rng, task, odd=share.get("odd", odd), invalid=share.get("invalid", invalid)) for _ in range(n)]
        return [typed(row, task) for row in rows] if form in TYPED else rows

    n = int(rng.choice([1, 2, 5, 17]))
    n = max(n, 2 if in_parts else 1)
    everyone = draw_rows(n)
    # The rows of one unit are as odd as can be.
    k = 1
    if unit == "rows":
        k = params["privacy_unit"] = int(rng.integers(2, 4))
    if unit == "id":
        params["privacy_unit"] = {"id": "person", "at_most": int(rng.integers(1, 3))}
        for number_of_row, row in enumerate(everyone):
            person = PEOPLE[1 + number_of_row % (len(PEOPLE) - 2)]
            row["person"] = person[number_of_row // (len(PEOPLE) - 2) % 4]
        k = int(rng.integers(1, 5))

    def a_unit(size: int, person: list[Any]) -> list[Row]:
        first = draw_rows(size, odd=0.0 if form == "inferred frame" else 0.7, invalid=0.5 if drop else 0.0)
        return [row | {"person": person[i % 4]} for i, row in enumerate(first)] if unit == "id" else first

    size = int(rng.integers(1, k + 1))
    first = a_unit(size, PEOPLE[0])
    place = str(rng.choice(["first", "middle", "last", "spread"]))
    places = {"first": [0] * size, "middle": [n // 2] * size, "last": [n] * size}.get(
        place, sorted(rng.integers(0, n + 1, size).tolist())
    )
    one = put_in(everyone, first, places)
    other = everyone
    if params["adjacency"] == "replace-one":
        other_size = int(rng.integers(1, k + 1)) if unit == "id" else size
        other = put_in(everyone, a_unit(other_size, PEOPLE[-1]), (places * 4)[:other_size])
    if drop and unit != "id" and rng.random() < 0.2 and params["adjacency"] == "add-remove" and not in_parts:
        one, other = first[:1], []  # one row, and none
    queries = [row_of(rng, task, odd=0.0) for _ in range(4)]
    return Pair(name, params, form, in_parts, one, other, place, int(rng.integers(50)), number, queries, two_classes)


WEIGHTS: dict[bool, list[Any]] = {
    False: [0, 1, 2.5, 3, 1e-300, 7, 1e308, INF],
    True: [1.0, 3, -1, NAN, None, "x", "2.5", "", [1], 10**400, Decimal("sNaN"), INF],
}


def weighed_pair_of(number: int, *, drop: bool = False, sized: bool = False) -> Pair:
    """Draw a pair whose rows have weights, of which the unit's are as odd as can be."""
    rng = np.random.default_rng([18, number, drop])
    pair = pair_of(number, drop=drop, form=str(rng.choice(IN_MEMORY[: None if HAS_POLARS else -1])), sized=sized)
    weights = {id(row): WEIGHTS[drop][int(rng.integers(len(WEIGHTS[drop])))] for row in [*pair.one, *pair.other]}
    one, other = ([row | {"weight": weights[id(row)]} for row in rows] for rows in (pair.one, pair.other))
    most = {"max_weight": int(rng.choice([1, 2, 5]))}
    return replace(pair, params=pair.params | most, one=one, other=other, in_parts=False)


def drawn(number: int, *, drop: bool = False) -> tuple[str, Pair]:
    """Draw a pair of any kind, and name the kind: some rows are weighed, in a database, or of forests to be sized."""
    name, own = SETTINGS[number % len(SETTINGS)]
    kind = ("plain", "plain", "plain", "weighed", "plain", "sized", "in SQLite")[number % 7]
    if name == "MatrixForestPredictor":  # takes no weights, and rows it can keep
        kind = "plain"
    if kind == "weighed":
        return kind, weighed_pair_of(number, drop=drop)
    if kind == "in SQLite":
        return kind, pair_of(number, drop=drop, form="sqlite")
    if kind == "sized" and own.items() >= SMALL.items():
        return kind, pair_of(number, drop=drop, sized=True)
    return "plain", pair_of(number, drop=drop)


# -- schemas that are discovered ----------------------------------------------------------------------------

COPIES, FREQUENT = 9, 5  # of each row of the others; what so many have comes out, and no unit has as many


def what_is_frequent(mechanism: ThresholdedGaussian, counts: Any) -> tuple[Any, Any]:
    """Let out what many have, with a count that follows from the step alone."""
    places = np.flatnonzero(counts >= FREQUENT)
    return places, np.full(len(places), mechanism.threshold + 7)


@dataclass
class Discovery:
    """Two neighbouring tables whose schema is discovered; rows of any kind, as none is refused."""

    params: dict[str, Any]
    form: str
    one: list[Row]
    other: list[Row]
    draw: int
    number: int

    def run(self, rows: list[Row], folder: Path) -> dict[str, Any]:
        """Discover, and return all that can be seen."""
        X, _ = FORMS[self.form](rows, "classification", folder)
        with mock.patch.object(ThresholdedGaussian, "perturb", what_is_frequent):
            found = vw.discover(X, "ill", **self.params)
        return {"schema": found.to_dict(), "plan": str(found.plan), "privacy": found.privacy.to_json()}


def discovery_of(number: int) -> Discovery:
    """Draw a pair of tables, and how they are given."""
    rng = np.random.default_rng([16, number])
    form = str(rng.choice(["frame", "arrow", "csv", "parquet", "folder", "polars"]))
    form = "arrow" if form == "polars" and not HAS_POLARS else form

    def rows_of(n: int, odd: float, invalid: float) -> list[Row]:
        rows = [row_of(rng, "classification", odd, invalid) for _ in range(n)]
        return [typed(row, "classification") for row in rows] if form in TYPED else rows

    others = [dict(row) for row in rows_of(int(rng.choice([2, 5, 17])), 0.1, 0.0) for _ in range(COPIES)]
    own = rows_of(int(rng.integers(1, 4)), 0.6, 0.5)
    params: dict[str, Any] = {"epsilon": float(rng.choice([0.1, 1, 20])), "delta": 1e-6, "name": "clinic"}
    params["privacy_unit"] = len(own)
    if rng.random() < 0.4:
        params["privacy_unit"] = {"id": "person", "at_most": int(rng.integers(1, 4))}
        others = [row | {"person": f"o{place}"} for place, row in enumerate(others)]
        own = [row | {"person": PEOPLE[0][0]} for row in own]
    params |= {"ledger": "spends.db"} if rng.random() < 0.3 else {}
    params |= {"bounds_only": True, "classes": [0, 1, 2]} if rng.random() < 0.2 else {}
    places = sorted(rng.integers(0, len(others) + 1, len(own)).tolist())
    return Discovery(params, form, put_in(others, own, places), others, int(rng.integers(50)), number)


def put_in(rows: list[Row], more: list[Row], places: list[int]) -> list[Row]:
    out = list(rows)
    for row, place in sorted(zip(more, places, strict=True), key=lambda item: -item[1]):
        out.insert(place, row)
    return out


def typed(row: Row, task: str) -> Row:
    """A row as a typed column can hold it: what is no number is missing there, and may be anywhere."""
    out = dict(row)
    for name in ("age", "income", *(["ill"] if task == "regression" else [])):
        try:
            out[name] = None if row[name] is None else float(row[name])
        except (TypeError, ValueError, OverflowError, ArithmeticError):
            out[name] = None
    return out
