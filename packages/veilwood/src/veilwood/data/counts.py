# SPDX-License-Identifier: Apache-2.0
"""Declarative counts: which cell of a contingency table a row falls into, by tests of its codes alone.

A ``DeclarativeCount`` can run in an engine that executes none of this library's code, such as a database:
``engines.sql.cell_sql`` compiles its cells to SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from veilwood.data.batches import Sums

ROW_HASH: Final = -1  # instead of a column index: the row's bucket under a secret key

SumKind: TypeAlias = Literal["classes", "moments", "pair"]


@dataclass(frozen=True, eq=False)
class Split:
    """A test of one column: codes from ``starts[i]`` to below ``starts[i + 1]`` go to ``targets[i]``."""

    column: int
    starts: tuple[int, ...]
    targets: tuple[CellRule, ...]


CellRule: TypeAlias = "int | float | Split | None"
"""A number (an integer for a cell), a test that leads to numbers, or None if a row is not counted."""


@dataclass(frozen=True, eq=False)
class CellQuery:
    """A query for one contingency table: the cell of a row is the sum of the results of its rules."""

    rules: tuple[CellRule, ...]
    n_cells: int


@dataclass(frozen=True, repr=False)
class KeyedRowHash:
    """A keyed hash of a row's contents, reduced to ``n_buckets`` buckets: equal rows get equal buckets."""

    key: bytes
    n_buckets: int


class RunCellQueries(Protocol):
    """Runs cell queries where the rows are."""

    def __call__(self, queries: Sequence[CellQuery], kind: SumKind, row_hash: KeyedRowHash | None = None) -> list[Sums]:
        """Return, for each query, an array with one line per cell.

        "classes": number of rows per class; "moments": number, sum and sum of squares of a numeric target; "pair":
        sum of the target, and sum of its distances from the upper bound.
        """


@runtime_checkable
class DeclarativeCount(Protocol):
    """A ``batches.Count`` that can be expressed as cell queries."""

    def via_cell_queries(self, run_queries: RunCellQueries, n_codes: Sequence[int]) -> Sums:
        """Return the same sums, computed from the results of cell queries."""


def split_by_code(
    column: int, groups_by_code: npt.NDArray[np.integer], rule_of_group: Callable[[int], CellRule] | None = None
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
