# SPDX-License-Identifier: Apache-2.0
"""Private schema discovery: ``discover`` measures categories and bounds that are not public, via the release door.

In each column, a row adds at most one to the count of a text and at most one to that of a magnitude. Counts above the
threshold are released; the rest of the schema is post-processing. Proof: proofs/discover.md.
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
import pyarrow as pa

from veilwood.arrays import Floats, Indices, Ints
from veilwood.data.canonical import ColumnValues, factorize_texts
from veilwood.data.columns import Column, did_you_mean
from veilwood.data.contributions import bound_contributions, missing_id_column_error
from veilwood.data.dialect import DIALECT, Dialect
from veilwood.data.files import find_files
from veilwood.data.frames import Table
from veilwood.data.numbers import read_numbers
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError, ParameterError, SchemaError
from veilwood.privacy.certificate import NO_SCHEMA, PrivacyCertificate
from veilwood.privacy.door import Door
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.loss import requested_loss
from veilwood.privacy.neighbours import Neighbours, RowsOf, Unit, resolve_unit
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.release import Release
from veilwood.privacy.steps import counting_step, threshold_step

Magnitude: TypeAlias = int
# Powers of two. Numbers beyond 2^60, or below 2^-40, count as the outermost magnitudes, so that their number is fixed.
_MIN_POWER: Final = -40
_MAX_POWER: Final = 60
_ZERO_MAGNITUDE: Final = _MAX_POWER - _MIN_POWER + 1
N_MAGNITUDES: Final = 2 * _ZERO_MAGNITUDE + 1
"""Magnitudes are 0 to ``N_MAGNITUDES - 1``, in the order of the numbers; the middle one is that of zero."""
_BATCH_ROWS: Final = 65536  # rows read from a file at a time
_CODE: Final = re.compile("0[0-9]")  # leading zeros: a code, not a number


def magnitude_of(numbers: Floats) -> Indices:
    """Return the magnitude of each number: 2^e up to, but not including, 2^(e+1) is one magnitude; likewise below zero.

    Examples
    --------
    >>> [magnitude_bounds(size) for size in magnitude_of(np.array([0.0, 5.0, -0.3, 64.0])).tolist()]
    [(0.0, 0.0), (4.0, 8.0), (-0.5, -0.25), (64.0, 128.0)]
    """
    _, exponent = np.frexp(numbers)  # number = m * 2^exponent with 1/2 <= m < 1
    power = np.clip(exponent - 1, _MIN_POWER, _MAX_POWER) - _MIN_POWER + 1
    return np.where(numbers == 0, _ZERO_MAGNITUDE, _ZERO_MAGNITUDE + np.sign(numbers).astype(np.intp) * power)


def magnitude_bounds(magnitude: Magnitude) -> tuple[float, float]:
    """Return the bounds of a magnitude."""
    if magnitude == _ZERO_MAGNITUDE:
        return 0.0, 0.0
    low = 2.0 ** (abs(magnitude - _ZERO_MAGNITUDE) - 1 + _MIN_POWER)
    return (low, 2 * low) if magnitude > _ZERO_MAGNITUDE else (-2 * low, -low)


@dataclass(frozen=True, repr=False)  # the object is as private as the rows
class SchemalessTable:
    """A table without a schema whose values can be counted."""

    name: str
    """Name of the table."""
    names: tuple[str, ...]
    """Names of its columns."""
    _read: Callable[[Sequence[str]], Iterable[Iterable[Table]]]
    _dialect: Dialect

    def count_values(self, columns: Sequence[str], cap: RowsOf | None) -> tuple[list[Counter[str]], Ints]:
        """Count the texts of each column and the magnitudes of its numbers. A row adds at most one to each of both.

        With a cap, at most ``cap.at_most`` rows per id count, and rows without an id do not.
        """
        chosen_rows = None
        if cap is not None:
            ids = ((table.column_by_name(cap.id) for table in part) for part in self._read([cap.id]))
            chosen_rows = [copies > 0 for copies in bound_contributions(ids, cap, "drop")]
        texts = [Counter[str]() for _ in columns]
        sizes = np.zeros((len(columns), N_MAGNITUDES), np.int64)
        for partition, tables in enumerate(self._read(columns)):
            row = 0
            for table in tables:
                mask = slice(None) if chosen_rows is None else chosen_rows[partition][row : row + table.n_rows]
                row += table.n_rows
                for place, name in enumerate(columns):
                    cells = table.column_by_name(name)
                    assert cells is not None  # the name comes from the table
                    _count_column(cells, mask, self._dialect.of(name), texts[place], sizes[place])
        return texts, sizes


def _count_column(cells: ColumnValues, mask: Any, dialect: Dialect, texts: Counter[str], sizes: Ints) -> None:
    codes, known = factorize_texts(cells)
    codes = codes[mask]
    counts = np.bincount(codes[codes >= 0], minlength=len(known))
    for text, count in zip(known, counts.tolist(), strict=True):
        if count:
            texts[text] += count
    written = isinstance(cells, pa.ChunkedArray) and (pa.types.is_binary(cells.type) or pa.types.is_string(cells.type))
    numbers, kinds = read_numbers(dialect.numbers(cells) if written else cells, parse=True)
    good = np.isfinite(numbers) & (kinds is None or kinds == 0)
    is_code = np.array([*(bool(_CODE.match(text)) for text in known), True, True])  # codes -2 and -1: no text
    good = good[mask] & ~is_code[codes]
    sizes += np.bincount(magnitude_of(numbers[mask][good]), minlength=N_MAGNITUDES)


def open_schemaless(X: Any, dialect: Dialect = DIALECT) -> SchemalessTable:
    """Open a dataframe, file, folder or glob without a schema. Column names are public; nothing else is revealed.

    Examples
    --------
    >>> import pandas as pd
    >>> texts, sizes = open_schemaless(pd.DataFrame({"x": [3, 3.0, "a"]})).count_values(["x"], None)
    >>> texts, sizes.sum()
    ([Counter({'3': 2, 'a': 1})], np.int64(2))
    """
    if not isinstance(X, str | PathLike):
        table = Table.from_data(X, width=1)
        if table.names is None:
            raise OutOfSchemaError("discovery needs column names. Hint: pass a dataframe or a file.")
        return SchemalessTable("discovered", table.names, lambda columns: [[table]], dialect)
    files = find_files(X, None, as_bytes=True, dialect=dialect)
    for file in files[1:]:
        if set(file.names) != set(files[0].names):
            raise OutOfSchemaError(
                f"columns of {file.display_name} and {files[0].display_name} differ. Hint: pass one table at a time."
            )

    def read_files(columns: Sequence[str]) -> Iterator[Iterator[Table]]:
        for file in files:
            yield file.read_batches(list(columns), _BATCH_ROWS)

    return SchemalessTable(Path(files[0].display_name).name.split(".")[0], files[0].names, read_files, dialect)


_MAX_CODES: Final = 2  # a column with at most this many distinct numbers is categorical
_MAX_CLASSES: Final = 20  # a target with at most this many distinct numbers has classes
_MIN_TEXT_FRACTION: Final = 0.9  # categorical if released texts reach this fraction of the released numbers
_MAX_VALUES: Final = 200  # categories in a schema: the most frequent ones
_FALSE_POSITIVE_RATE: Final = 0.05  # probability that any empty magnitude exceeds the threshold, with bounds_only


@dataclass(frozen=True)
class Discovery:
    """Result of ``discover``: the schema, the plan and the privacy certificate.

    Attributes
    ----------
    schema : Schema
        Schema made from released counts. Columns are nullable, and features have an "other": rare values are hidden.
    plan : Plan
        The release plan.
    privacy : PrivacyCertificate
        The certificate.
    """

    schema: Schema
    plan: Plan
    privacy: PrivacyCertificate

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form of the schema, together with the certificate."""
        payload = self.schema.to_dict()
        for column in payload["columns"]:
            column["bounds"] = f"released: {self.privacy}"
        return {"certificate": self.privacy.to_dict()} | payload


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
    """Measure the parts of a schema that are not public: frequent categories and numeric bounds.

    Parameters
    ----------
    X : dataframe or path
        The table. The names of its columns are public.
    target : str, optional
        The column to predict; the last column by default.
    epsilon, delta : float
        The privacy loss. Unknown categories need a delta above 0 and below 1 / number of people.
    ledger : Ledger or path, optional
        Ledger to charge.
    privacy_unit, adjacency
        Unit and adjacency of the guarantee.
    ignore : sequence of str
        Names or patterns of columns not to measure: each measured column adds noise to the others.
    classes : sequence, optional
        The classes of the target, if they are public.
    bounds_only : bool
        Measure numeric columns only, so that delta may be 0. Other columns are left out.
    dialect : Dialect
        Dialect of CSV files.
    name : str, optional
        Name of the schema.

    Returns
    -------
    Discovery

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the requested unit and adjacency: proofs/discover.md, attacked by
    packages/veilwood/tests/drafting/test_discover.py. Rows are read independently and no row is rejected.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"age": range(20, 60), "ward": ["A", "B"] * 20, "ill": ["no"] * 20 + ["yes"] * 20})
    >>> discovery = discover(pd.concat([table] * 100), epsilon=2.0, delta=1e-6, name="clinic")
    >>> print(discovery.schema)
    Schema 'clinic': classification of 'ill' (no, yes)
      age   numeric      16 to 64, nullable
      ward  categorical  A, B, other, unknown is 'other', nullable
    """
    table = open_schemaless(X, dialect)
    goal = table.names[-1] if target is None else target
    if goal not in table.names:
        raise OutOfSchemaError(f"the table has no column {goal!r}.{did_you_mean(goal, table.names)}", column=goal)
    neighbours = Neighbours(adjacency, resolve_unit(privacy_unit))  # type: ignore[arg-type]
    unit = neighbours.unit
    if isinstance(unit, RowsOf) and unit.id not in table.names:
        raise missing_id_column_error(unit)
    measured = [
        each
        for each in table.names
        if not (isinstance(unit, RowsOf) and each == unit.id)
        and not any(each == pattern or fnmatchcase(each, pattern) for pattern in ignore)
        and not (each == goal and classes is not None)
    ]
    if goal not in measured and classes is None:
        raise ParameterError("ignore", list(ignore), "excludes the target", "keep it, or pass its classes")
    plan = plan_discovery(measured, epsilon=epsilon, delta=delta, neighbours=neighbours, bounds_only=bounds_only)
    release = Release.for_plan(plan, open_ledger(ledger), X)
    release.check_affordable()
    released = release.measure(lambda door: _release_columns(door, table, measured, unit))
    privacy = release.certificate()
    schema = _infer_schema(
        released, table.names, goal, unit, classes, dialect, name or table.name, not privacy.is_private
    )
    return Discovery(schema, plan, privacy)


def plan_discovery(
    columns: Sequence[str], *, epsilon: float, delta: float, neighbours: Neighbours, bounds_only: bool = False
) -> Plan:
    """Plan a discovery. Reads no rows and spends no budget."""
    loss, shape = requested_loss(epsilon, delta), (len(columns), N_MAGNITUDES)
    if not columns:
        raise ParameterError("ignore", "all columns", "leaves nothing to measure", "keep some")
    if bounds_only:
        step = counting_step("sizes of numbers", shape, loss, neighbours, l1=len(columns), squared_l2=len(columns))
        released = f"how many numbers of each size {len(columns)} columns have, with noise"
    elif loss.delta == 0 and loss.is_bounded:
        raise ParameterError(
            "delta",
            delta,
            "is too small to hide categories that only one person has",
            "pass a delta below 1 / (number of people), such as 1e-6, or measure numbers only, with bounds_only=True",
        )
    else:
        step = threshold_step("what stands out", shape[:1], loss, neighbours, keys_per_row=2 * len(columns))
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
class _ReleasedCounts:
    """Released counts of one column: noisy counts of texts, and of magnitudes of numbers."""

    texts: dict[str, int]
    magnitudes: dict[Magnitude, int]


def _release_columns(
    door: Door, table: SchemalessTable, columns: Sequence[str], unit: Unit
) -> dict[str, _ReleasedCounts]:
    """Count values and release the counts above the threshold. Private values do not leave this function."""
    (step,) = door.plan.steps
    texts, sizes = table.count_values(columns, unit if isinstance(unit, RowsOf) else None)
    released = {name: _ReleasedCounts({}, {}) for name in columns}
    if door.plan.parameters["bounds_only"]:
        noisy = door.release_counts(step, sizes)
        least = 0.0 if step.mechanism is None else step.variance**0.5 * math.log(noisy.size / _FALSE_POSITIVE_RATE)
        for name, row in zip(columns, noisy, strict=True):
            released[name].magnitudes.update({size: int(n) for size, n in enumerate(row) if n > least})
        return released
    # Sorted, so that the order of released keys does not depend on the order of the rows.
    keys = [(place, text) for place in range(len(columns)) for text in sorted(texts[place])]
    counts = np.array([texts[place][text] for place, text in keys], np.int64)
    which, there = np.nonzero(sizes)
    passed, noisy = door.release_above_threshold(step, np.concatenate([counts, sizes[which, there]]))
    for key, count in zip(passed.tolist(), noisy.tolist(), strict=True):
        if key < len(keys):
            place, text = keys[key]
            released[columns[place]].texts[text] = count
        else:
            released[columns[which[key - len(keys)]]].magnitudes[int(there[key - len(keys)])] = count
    return released


def _infer_column(name: str, released: _ReleasedCounts, *, is_target: bool) -> Column | None:
    """Infer a column from its released counts, or return None if nothing useful was released."""
    sizes, texts = sum(released.magnitudes.values()), sum(released.texts.values())
    few = (
        2 <= len(released.texts) <= (_MAX_CLASSES if is_target else _MAX_CODES) and texts >= _MIN_TEXT_FRACTION * sizes
    )
    if released.magnitudes and not few and sizes >= texts / 2:
        lower = min(magnitude_bounds(size)[0] for size in released.magnitudes)
        upper = max(magnitude_bounds(size)[1] for size in released.magnitudes)
        upper = upper if lower < upper else lower + 1.0
        return Column(name, "numeric", lower=lower, upper=upper, nullable=not is_target)
    frequent = sorted(sorted(released.texts, key=lambda text: (-released.texts[text], text))[:_MAX_VALUES])
    if len(frequent) < 2:
        return None
    if is_target:
        return Column(name, "categorical", values=tuple(frequent))
    values = tuple(frequent) if "other" in frequent else (*frequent, "other")
    return Column(name, "categorical", values=values, other="other", nullable=True)


def _infer_schema(
    released: dict[str, _ReleasedCounts],
    names: Sequence[str],
    target_name: str,
    unit: Unit,
    classes: Sequence[Any] | None,
    dialect: Dialect,
    name: str,
    inferred: bool,
) -> Schema:
    """Assemble the schema from released counts, by post-processing."""
    target = (
        _infer_column(target_name, released[target_name], is_target=True)
        if classes is None
        else Column(target_name, "categorical", values=tuple(classes))
    )
    inferred_columns = {
        each: _infer_column(each, released[each], is_target=False)
        for each in names
        if each in released and each != target_name
    }
    features = tuple(column for column in inferred_columns.values() if column is not None)
    if target is None or not features:
        what = f"of the target {target_name!r}" if target is None else "of any column"
        raise SchemaError(
            f"nothing {what} stands out of the noise. Hint: increase epsilon, ignore columns, count fewer rows per "
            "id, or pass public classes."
        )
    used = {target_name, *(column.name for column in features)}
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
