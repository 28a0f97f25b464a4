# SPDX-License-Identifier: Apache-2.0
"""Queries about private rows, in a public form that every engine can translate.

Forests of fixed structure run a ``batches.Count`` over encoded rows; a ``DeclarativeCount`` is also a group of cell
queries, for an engine that executes none of this library's code (``veilwood_engines.sql`` compiles them to SQL).
PrivateForest runs ``RowQuery`` objects on a ``RowBackend``, which stores a score per row between queries. Every engine
has one function per kind of query and returns the same integers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Final, Literal, Protocol, TypeAlias, overload, runtime_checkable

import numpy as np

from veilwood.arrays import Codes, Int32s, Ints, NDArray
from veilwood.errors import MechanismError

ROW_HASH: Final = -1  # instead of a column index: the row's bucket under a secret key

SumKind: TypeAlias = Literal["classes", "moments", "pair"]


@dataclass(frozen=True, eq=False)
class Split:
    """Test of one column: codes from ``starts[i]`` to below ``starts[i + 1]`` go to ``targets[i]``."""

    column: int
    starts: tuple[int, ...]
    targets: tuple[CellRule, ...]


CellRule: TypeAlias = "int | float | Split | None"
"""A number (an integer for a cell), a test that leads to numbers, or None if a row is not counted."""


@dataclass(frozen=True, eq=False)
class CellQuery:
    """Query for one contingency table. The cell of a row is the sum of the results of the rules."""

    rules: tuple[CellRule, ...]
    n_cells: int


@dataclass(frozen=True, repr=False)
class KeyedRowHash:
    """Keyed hash of the contents of a row, reduced to ``n_buckets`` buckets: equal rows get equal buckets."""

    key: bytes
    n_buckets: int


class RunCellQueries(Protocol):
    """Function that runs cell queries where the rows are stored."""

    def __call__(self, queries: Sequence[CellQuery], kind: SumKind, row_hash: KeyedRowHash | None = None) -> list[Ints]:
        """Return, for each query, an array with one line per cell.

        "classes": number of rows per class; "moments": number, sum and sum of squares of a numeric target; "pair":
        sum of the target, and sum of its distances from the upper bound.
        """


@runtime_checkable
class DeclarativeCount(Protocol):
    """A ``batches.Count`` that can be expressed as cell queries."""

    def via_cell_queries(self, run_queries: RunCellQueries, n_codes: Sequence[int]) -> Ints:
        """Return the same sums, computed from the results of cell queries."""


def split_by_code(
    column: int, groups_by_code: NDArray[np.integer], rule_of_group: Callable[[int], CellRule] | None = None
) -> Split:
    """Return the test of a column whose codes are grouped; rows in a negative group are not counted.

    >>> split_by_code(2, np.array([0, 0, 1, -1]))
    Split(column=2, starts=(0, 2, 3), targets=(0, 1, None))
    """
    every = groups_by_code.astype(np.int64)
    starts = np.flatnonzero(np.append(True, every[1:] != every[:-1]))
    groups = every[starts].tolist()
    made = {
        number: (None if number < 0 else number if rule_of_group is None else rule_of_group(number))
        for number in set(groups)
    }
    return Split(column, tuple(int(start) for start in starts), tuple(made[number] for number in groups))


# -- queries about rows with scores ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Axis:
    """Axis of a contingency table: one column, with its bins partitioned into groups."""

    feature: int
    """Index of the column."""
    groups: Codes
    """Group of each bin of the column."""
    ordered: bool
    """Whether groups are intervals of numbers (missing values are in the last group)."""
    size: int
    """Number of groups."""
    starts: Ints
    """First code of each bin."""

    @cached_property
    def thresholds(self) -> list[int]:
        """First code of each group of a numeric column, except the first group."""
        first = np.flatnonzero(np.diff(self.groups.astype(np.int64), prepend=-1))[1:]
        return [int(start) for start in self.starts[first]]

    @property
    def first_codes(self) -> Ints:
        """Lowest code of each group."""
        return np.array([0, *self.thresholds]) if self.ordered else np.unique(self.groups, return_index=True)[1]


@dataclass(frozen=True, eq=False)
class ContingencyTable:
    """Contingency table of a few columns; the last column varies fastest."""

    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of groups of each column."""
        return tuple(axis.size for axis in self.axes)

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return prod([axis.size for axis in self.axes])

    @property
    def features(self) -> tuple[int, ...]:
        """Indices of the columns."""
        return tuple(axis.feature for axis in self.axes)

    def cell_indices(self, columns: NDArray[np.uint8] | Codes) -> NDArray[np.uint32]:
        """Return the cell of each row; ``columns`` has shape (n_columns, n_rows) and holds bins."""
        cell = np.zeros(columns.shape[1], np.uint32)
        for axis in self.axes:
            cell *= np.uint32(axis.size)
            cell += axis.groups[columns[axis.feature]]
        return cell


@dataclass(frozen=True, eq=False)
class TableSet(Sequence[ContingencyTable]):
    """Many tables over shared axes, stored as indices: hundreds of candidates per round without an object for each."""

    axes: tuple[Axis, ...]
    members: Int32s
    """Axes of each table, padded with -1; shape (n_tables, largest number of axes)."""

    @cached_property
    def axis_sizes(self) -> Ints:
        """Number of groups of each axis."""
        return np.array([axis.size for axis in self.axes], np.int64)

    @cached_property
    def sizes(self) -> Ints:
        """Number of cells of each table."""
        return np.asarray(self.shapes.prod(axis=1))

    @cached_property
    def shapes(self) -> Ints:
        """Number of groups of each table's axes, padded with 1."""
        return np.asarray(np.where(self.members >= 0, np.append(self.axis_sizes, 1)[self.members], 1))

    def __len__(self) -> int:
        return len(self.members)

    @overload
    def __getitem__(self, at: int) -> ContingencyTable: ...
    @overload
    def __getitem__(self, at: slice) -> TableSet: ...
    def __getitem__(self, at: int | slice) -> ContingencyTable | TableSet:
        if isinstance(at, slice):
            return TableSet(self.axes, self.members[at])
        return ContingencyTable(tuple(self.axes[place] for place in self.members[at].tolist() if place >= 0))


ALL_ROWS: Final = ContingencyTable(())
"""Contingency table without columns: one cell that contains every row."""


@dataclass(frozen=True, eq=False)
class RowsByCell:
    """Count the rows in each cell of a table."""

    table: ContingencyTable


@dataclass(frozen=True, eq=False)
class ClassesByCell:
    """Count the rows of each class in each cell of several tables, stacked: shape (cells, classes)."""

    tables: Sequence[ContingencyTable]
    n_classes: int


@dataclass(frozen=True)
class TargetSums:
    """Sum the target and its distance from the upper bound, in levels that total ``TARGET_LEVELS`` per row."""


@dataclass(frozen=True, eq=False)
class ResidualHistogram:
    """Count the rows by residual: bin i ends at mark i, inclusive, and the last bin includes all larger residuals."""

    marks: Ints


@dataclass(frozen=True, eq=False)
class GradientSums:
    """Sum gradients (``row_backend.row_gradients``) in each cell of several tables: shape (cells, outputs)."""

    tables: Sequence[ContingencyTable]
    n_classes: int
    limit: int


@dataclass(frozen=True, eq=False)
class EvidenceGain:
    """Sum the derivatives of log-likelihoods of rows by the common weight of all steps, clipped to ``max_gain``.

    The derivative is the gradient times the score that the steps added, in ``SCORE_UNITS``. It is positive if the steps
    are underweighted.
    """

    start: Int32s
    n_classes: int
    limit: int
    max_gain: int


RowQuery: TypeAlias = RowsByCell | ClassesByCell | TargetSums | ResidualHistogram | GradientSums | EvidenceGain
"""Query that every engine answers with the same integers."""


class RowBackend(ABC):
    """Private rows, each with a score, in memory or elsewhere. Answers are exact, hence private."""

    @property
    def supports_holdout(self) -> bool:
        """Whether ``hold_out``, ``run_on_holdout`` and ``nonempty_cells`` work, which sparse histograms need."""
        return False

    @abstractmethod
    def run(self, query: RowQuery) -> Ints:
        """Return the sum over all rows that are not held out."""

    def run_together(self, asked: Sequence[RowQuery]) -> list[Ints]:
        """Return the results of several queries, computed in one pass if the engine supports it."""
        return [self.run(query) for query in asked]

    @abstractmethod
    def run_on_sample(self, query: RowQuery, fraction: float) -> tuple[Ints, float]:
        """Return the sum over a secret random sample of the rows, drawn once, and the fraction that was sampled."""

    @abstractmethod
    def add_scores(self, table: ContingencyTable, values: Int32s) -> None:
        """Add the value of its cell to the scores of each row."""

    def hold_out(self, fraction: float) -> None:
        """Hold out a secret random fraction of the rows, drawn independently. Only ``run_on_holdout`` reads them."""
        raise MechanismError("this backend cannot hold out rows.")

    def run_on_holdout(self, count: Callable[[Any], Ints]) -> Ints:
        """Return the sum of a function of ``row_backend.ScoredRows`` over the held-out rows."""
        raise MechanismError("this backend cannot hold out rows.")

    def nonempty_cells(self, axes: Sequence[Axis], n_classes: int, fraction: float = 1.0) -> tuple[Ints, Ints]:
        """Return the non-empty cells of columns and classes, ascending, and their counts.

        With a ``fraction`` below 1, counts only a secret random sample of the rows.
        """
        raise MechanismError("this backend cannot list non-empty cells.")

    def close(self) -> None:  # noqa: B027  # a backend in this process has nothing to free
        """Free rows that are stored on other machines."""
