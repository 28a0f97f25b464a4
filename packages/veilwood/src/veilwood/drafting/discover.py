# SPDX-License-Identifier: Apache-2.0
"""A schema measured privately, for lists and bounds that are not public: ``discover``, through the door and charged.

A row adds one to the count of its text and one to that of its size, in each column (``data.things``). What stands out
of the noise is released, and all else about the schema is decided from that. Proof: proofs/discover.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from veilwood.data.canonical import ColumnCells, category_codes
from veilwood.data.columns import Column, closest
from veilwood.data.contributions import choose_rows, no_id
from veilwood.data.dialect import DIALECT, Dialect
from veilwood.data.files import find_files
from veilwood.data.frames import Table
from veilwood.data.numbers import numbers_of
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError, ParameterError, SchemaError
from veilwood.privacy.accountant import handle_of
from veilwood.privacy.certificate import NO_SCHEMA, PrivacyStatement
from veilwood.privacy.door import Door
from veilwood.privacy.ledger_stores import Ledger, open_ledger
from veilwood.privacy.loss import requested_loss
from veilwood.privacy.neighbours import Neighbours, RowsOf, Unit, unit_of
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import counting_step, standing_out_step

__all__ = ["SIZES", "Discovery", "Size", "Things", "bounds_of", "discover", "discovery_plan", "size_of", "things_in"]


Size: TypeAlias = int
_SMALLEST: Final = -40  # powers of two; smaller and larger numbers count as these
_LARGEST: Final = 60
_SIGNED: Final = _LARGEST - _SMALLEST + 1
SIZES: Final = 2 * _SIGNED + 1
"""Sizes are 0 .. SIZES - 1, in the order of the numbers: the one in the middle is that of zero."""
_BATCH_ROWS: Final = 65536
_CODE: Final = re.compile("0[0-9]")  # of digits, but no number


def size_of(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """Return the size of each number: from 2^e up to, and without, 2^(e+1) is one size, and so below zero.

    Examples
    --------
    >>> [bounds_of(size) for size in size_of(np.array([0.0, 5.0, -0.3, 64.0])).tolist()]
    [(0.0, 0.0), (4.0, 8.0), (-0.5, -0.25), (64.0, 128.0)]
    """
    _, exponent = np.frexp(numbers)  # numbers are m * 2^exponent with m from 1/2 up to 1
    power = np.clip(exponent - 1, _SMALLEST, _LARGEST) - _SMALLEST + 1
    return np.where(numbers == 0, _SIGNED, _SIGNED + np.sign(numbers).astype(np.intp) * power)


def bounds_of(size: Size) -> tuple[float, float]:
    """Return between which numbers a size lies."""
    if size == _SIGNED:
        return 0.0, 0.0
    low = 2.0 ** (abs(size - _SIGNED) - 1 + _SMALLEST)
    return (low, 2 * low) if size > _SIGNED else (-2 * low, -low)


@dataclass(frozen=True, repr=False)  # it is as private as the rows
class Things:
    """A table whose columns can be counted."""

    name: str
    """What the table is called."""
    names: tuple[str, ...]
    """The names of its columns."""
    _read: Callable[[Sequence[str]], Iterable[Iterable[Table]]]
    _dialect: Dialect

    def count(self, columns: Sequence[str], cap: RowsOf | None) -> tuple[list[Counter[str]], npt.NDArray[np.int64]]:
        """Count the texts of each column, and the sizes of its numbers: a row adds one to one of either, at most.

        With a cap, at most so many rows of an id count, and none without an id.
        """
        kept = None
        if cap is not None:
            ids = ((table.named(cap.id) for table in part) for part in self._read([cap.id]))
            kept = choose_rows(ids, cap, "drop")
        texts = [Counter[str]() for _ in columns]
        sizes = np.zeros((len(columns), SIZES), np.int64)
        for partition, tables in enumerate(self._read(columns)):
            row = 0
            for table in tables:
                mask = slice(None) if kept is None else kept[partition][row : row + table.n_rows]
                row += table.n_rows
                for place, name in enumerate(columns):
                    cells = table.named(name)
                    assert cells is not None  # the name is the table's
                    _count(cells, mask, self._dialect.of(name), texts[place], sizes[place])
        return texts, sizes


def _count(cells: ColumnCells, mask: Any, dialect: Dialect, texts: Counter[str], sizes: npt.NDArray[np.int64]) -> None:
    codes, found = category_codes(cells)
    codes = codes[mask]
    counts = np.bincount(codes[codes >= 0], minlength=len(found))
    for text, count in zip(found, counts.tolist(), strict=True):
        if count:
            texts[text] += count
    written = isinstance(cells, pa.ChunkedArray) and (pa.types.is_binary(cells.type) or pa.types.is_string(cells.type))
    numbers, kinds = numbers_of(dialect.numbers(cells) if written else cells, parse=True)
    good = np.isfinite(numbers) & (kinds is None or kinds == 0)
    is_code = np.array([*(bool(_CODE.match(text)) for text in found), True, True])  # the last two: no text at all
    good = good[mask] & ~is_code[codes]
    sizes += np.bincount(size_of(numbers[mask][good]), minlength=SIZES)


def things_in(X: Any, dialect: Dialect = DIALECT) -> Things:
    """Open a dataframe, a file, a folder or a glob; names of columns are taken to be public, and nothing else is told.

    Examples
    --------
    >>> import pandas as pd
    >>> texts, sizes = things_in(pd.DataFrame({"x": [3, 3.0, "a"]})).count(["x"], None)
    >>> texts, sizes.sum()
    ([Counter({'3': 2, 'a': 1})], np.int64(2))
    """
    if not isinstance(X, str | PathLike):
        table = Table.of(X, width=1)
        if table.names is None:
            raise OutOfSchemaError("columns need names to be discovered. Hint: pass a dataframe or a file.")
        return Things("discovered", table.names, lambda columns: [[table]], dialect)
    files = find_files(X, None, as_bytes=True, dialect=dialect)
    for file in files[1:]:
        if set(file.names) != set(files[0].names):
            raise OutOfSchemaError(f"{file.where} has other columns than {files[0].where}. Hint: one table at a time.")

    def read(columns: Sequence[str]) -> Iterator[Iterator[Table]]:
        for file in files:
            yield file.batches(list(columns), _BATCH_ROWS)

    return Things(Path(files[0].where).name.split(".")[0], files[0].names, read, dialect)


_FEW: Final = 2  # so many different numbers are codes,
_FEW_CLASSES: Final = 20  # and so many classes
_NEARLY_ALL: Final = 0.9
_MOST_VALUES: Final = 200
_CHANCE: Final = 0.05  # that an empty size is taken for one that is there, where all sizes are released


@dataclass(frozen=True)
class Discovery:
    """What was found, what it cost, and the certificate of that.

    Attributes
    ----------
    schema : Schema
        Made of what was released; its columns are nullable, and features have an "other", as rare things stay hidden.
    plan : Plan
        What was released.
    privacy : PrivacyStatement
        The certificate.
    """

    schema: Schema
    plan: Plan
    privacy: PrivacyStatement

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form of the schema, with the certificate beside it."""
        found = self.schema.to_dict()
        for column in found["columns"]:
            column["bounds"] = f"released: {self.privacy}"
        return {"certificate": self.privacy.to_dict()} | found


def discover(
    X: Any,
    target: str | None = None,
    *,
    epsilon: float,
    delta: float,
    ledger: Ledger | str | PathLike[str] | None = None,
    privacy_unit: Any = "row",
    adjacency: str = "add-remove",
    ignore: Sequence[str] = (),
    classes: Sequence[Any] | None = None,
    bounds_only: bool = False,
    dialect: Dialect = DIALECT,
    name: str | None = None,
) -> Discovery:
    """Measure what a schema needs where it is not public: frequent categories, and bounds of numbers.

    Parameters
    ----------
    X : dataframe or path
        The table. The names of its columns are taken to be public.
    target : str, optional
        The column to predict; the last one by default.
    epsilon, delta : float
        The privacy loss. Categories that are not known before need a delta above 0, below one in the number of people.
    ledger : Ledger or path, optional
        Where the spend is recorded.
    privacy_unit, adjacency
        Whom the guarantee protects.
    ignore : sequence of str
        Names or patterns of columns not to measure: each one measured adds noise to the others.
    classes : sequence, optional
        The classes of the target, where they are public.
    bounds_only : bool
        Only numbers; then delta may be 0. Other columns are left out.
    dialect : Dialect
        How CSV files are written.
    name : str, optional
        What the schema is called.

    Returns
    -------
    Discovery

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/discover.md, attacked by
    packages/veilwood/tests/drafting/test_discover.py. Rows are read one by one and none is refused.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"age": range(20, 60), "ward": ["A", "B"] * 20, "ill": ["no"] * 20 + ["yes"] * 20})
    >>> found = discover(pd.concat([table] * 100), epsilon=2.0, delta=1e-6, name="clinic")
    >>> print(found.schema)
    Schema 'clinic': classification of 'ill' (no, yes)
      age   numeric      16 to 64, nullable
      ward  categorical  A, B, other, unknown is 'other', nullable
    """
    table = things_in(X, dialect)
    goal = table.names[-1] if target is None else target
    if goal not in table.names:
        raise OutOfSchemaError(f"the table has no column {goal!r}.{closest(goal, table.names)}", column=goal)
    neighbours = Neighbours(adjacency, unit_of(privacy_unit))  # type: ignore[arg-type]
    unit = neighbours.unit
    if isinstance(unit, RowsOf) and unit.id not in table.names:
        raise no_id(unit)
    measured = [
        each
        for each in table.names
        if not (isinstance(unit, RowsOf) and each == unit.id)
        and not any(each == pattern or fnmatchcase(each, pattern) for pattern in ignore)
        and not (each == goal and classes is not None)
    ]
    if goal not in measured and classes is None:
        raise ParameterError("ignore", list(ignore), "takes the target away", "leave it, or give its classes")
    plan = discovery_plan(measured, epsilon=epsilon, delta=delta, neighbours=neighbours, bounds_only=bounds_only)
    book = open_ledger(ledger)
    if ledger is not None and plan.loss.is_bounded:
        book.check_affordable(plan.loss)
    with Door(plan, book, table=handle_of(X)) as door:
        found = _measure(door, table, measured, unit)
    privacy = door.statement()
    schema = _schema_of(found, table.names, goal, unit, classes, dialect, name or table.name, not privacy.is_private)
    return Discovery(schema, plan, privacy)


def discovery_plan(
    columns: Sequence[str], *, epsilon: float, delta: float, neighbours: Neighbours, bounds_only: bool = False
) -> Plan:
    """Plan a discovery: no rows are needed, nothing is spent."""
    loss, shape = requested_loss(epsilon, delta), (len(columns), SIZES)
    if not columns:
        raise ParameterError("ignore", "all columns", "leaves nothing to measure", "leave some")
    if bounds_only:
        step = counting_step("sizes of numbers", shape, loss, neighbours, l1=len(columns), squared_l2=len(columns))
        released = f"how many numbers of each size {len(columns)} columns have, with noise"
    elif loss.delta == 0 and loss.is_bounded:
        raise ParameterError(
            "delta",
            delta,
            "cannot keep categories secret that one person has, and only those",
            "a delta below one in the number of people, such as 1e-6; or public classes, and bounds_only for numbers",
        )
    else:
        step = standing_out_step("what stands out", shape[:1], loss, neighbours, things_per_row=2 * len(columns))
        released = f"categories and sizes of numbers in {len(columns)} columns that stand out of the noise"
    return Plan(
        estimator="discover",
        parameters={"columns": list(columns), "bounds_only": bounds_only, "invalid": "drop"},
        loss=step.loss,
        neighbours=neighbours,
        steps=(step,),
        released=released,
        schema_name="the table",
        schema_hash=NO_SCHEMA,
        layout=Layout(),
        expected_leaf_mse=step.variance,
    )


# -- from counts to a schema -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    """What was released about one column: noisy counts of texts, and of sizes of numbers."""

    texts: dict[str, int]
    sizes: dict[Size, int]


def _measure(door: Door, things: Things, columns: Sequence[str], unit: Unit) -> dict[str, _Found]:
    """Count, and release what stands out; all that is private stays in here."""
    (step,) = door.plan.steps
    texts, sizes = things.count(columns, unit if isinstance(unit, RowsOf) else None)
    found = {name: _Found({}, {}) for name in columns}
    if door.plan.parameters["bounds_only"]:
        noisy = door.noisy(step, sizes)
        least = 0.0 if step.mechanism is None else step.variance**0.5 * math.log(noisy.size / _CHANCE)
        for name, row in zip(columns, noisy, strict=True):
            found[name].sizes.update({size: int(n) for size, n in enumerate(row) if n > least})
        return found
    # Sorted, so that the order of what is released does not depend on the order of the rows.
    keys = [(place, text) for place in range(len(columns)) for text in sorted(texts[place])]
    counts = np.array([texts[place][text] for place, text in keys], np.int64)
    which, there = np.nonzero(sizes)
    passed, noisy = door.standing_out(step, np.concatenate([counts, sizes[which, there]]))
    for key, count in zip(passed.tolist(), noisy.tolist(), strict=True):
        if key < len(keys):
            place, text = keys[key]
            found[columns[place]].texts[text] = count
        else:
            found[columns[which[key - len(keys)]]].sizes[int(there[key - len(keys)])] = count
    return found


def _column_of(name: str, found: _Found, *, is_target: bool) -> Column | None:
    """Decide what a column is, from what was released about it; None where nothing useful was."""
    sizes, texts = sum(found.sizes.values()), sum(found.texts.values())
    few = 2 <= len(found.texts) <= (_FEW_CLASSES if is_target else _FEW) and texts >= _NEARLY_ALL * sizes
    if found.sizes and not few and sizes >= texts / 2:
        lower = min(bounds_of(size)[0] for size in found.sizes)
        upper = max(bounds_of(size)[1] for size in found.sizes)
        upper = upper if lower < upper else lower + 1.0
        return Column(name, "numeric", lower=lower, upper=upper, nullable=not is_target)
    frequent = sorted(sorted(found.texts, key=lambda text: (-found.texts[text], text))[:_MOST_VALUES])
    if len(frequent) < 2:
        return None
    if is_target:
        return Column(name, "categorical", values=tuple(frequent))
    values = tuple(frequent) if "other" in frequent else (*frequent, "other")
    return Column(name, "categorical", values=values, other="other", nullable=True)


def _schema_of(
    found: dict[str, _Found],
    names: Sequence[str],
    goal: str,
    unit: Unit,
    classes: Sequence[Any] | None,
    dialect: Dialect,
    name: str,
    inferred: bool,
) -> Schema:
    """Put the schema together: post-processing of what was released."""
    target = (
        _column_of(goal, found[goal], is_target=True)
        if classes is None
        else Column(goal, "categorical", values=tuple(classes))
    )
    made = {each: _column_of(each, found[each], is_target=False) for each in names if each in found and each != goal}
    features = tuple(column for column in made.values() if column is not None)
    if target is None or not features:
        what = f"of the target {goal!r}" if target is None else "of any column"
        raise SchemaError(
            f"nothing {what} stands out of the noise. Hint: spend more epsilon, ignore columns, count fewer rows of an "
            "id, or give public classes."
        )
    used = {goal, *(column.name for column in features)}
    return Schema(
        name,
        "classification" if target.kind == "categorical" else "regression",
        target,
        features,
        inferred,
        tuple(each for each in names if each not in used),
        unit if isinstance(unit, RowsOf) else None,
        dialect,
    )
