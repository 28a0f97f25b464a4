# SPDX-License-Identifier: Apache-2.0
"""Declarative counts: which cell of a contingency table a row falls into, by tests of its codes alone.

A count that can say itself in cells (``DeclarativeCount``) can be added up by an engine that runs none of our code, such as a
database: ``data.sql`` writes cells as expressions of its language.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from veilwood.data.batches import Sums

__all__ = [
    "ROW_HASH",
    "CellQuery",
    "CellRule",
    "DeclarativeCount",
    "KeyedRowHash",
    "RunCellQueries",
    "Split",
    "split_by_code",
]

ROW_HASH: Final = -1  # in the place of a column: the number that a secret key gives the row

SumKind: TypeAlias = Literal["classes", "moments", "pair"]


@dataclass(frozen=True, eq=False)
class Split:
    """A test of one column: a row whose code is at least ``starts[i]`` and below ``starts[i + 1]`` goes ``targets[i]``."""

    column: int
    starts: tuple[int, ...]
    targets: tuple[CellRule, ...]


CellRule: TypeAlias = "int | float | Split | None"
"""A number, whole where it is a cell's; a test that leads to numbers; or None, where a row is not counted."""


@dataclass(frozen=True, eq=False)
class CellQuery:
    """A query for one contingency table: the cell of a row is the sum of the results of its rules."""

    rules: tuple[CellRule, ...]
    n_cells: int


@dataclass(frozen=True, repr=False)
class KeyedRowHash:
    """Gives each row a number below ``n_buckets``, by a secret key and by what the row holds: equal rows get equal numbers."""

    key: bytes
    n_buckets: int


class RunCellQueries(Protocol):
    """Runs cell queries where the rows are."""

    def __call__(self, queries: Sequence[CellQuery], kind: SumKind, row_hash: KeyedRowHash | None = None) -> list[Sums]:
        """Return, for each query, an array with one line per cell.

        "classes": how many rows of each class; "moments": number, sum and sum of squares of a numeric target; "pair":
        the sum of the target, and of what it lacks of its upper bound.
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
