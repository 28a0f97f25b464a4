# SPDX-License-Identifier: Apache-2.0
"""What is counted, as public objects: which cell of a table a row falls into, by tests of its codes alone.

A count that can say itself in cells (``SaidCount``) can be added up by an engine that runs none of our code, such as a
database: ``data.sql`` writes cells as expressions of its language.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from veilwood.data.batches import Sums

__all__ = ["COIN", "AddsUpCells", "Cells", "Coins", "SaidCount", "Split", "Way", "codes_of"]

COIN: Final = -1  # in the place of a column: the number that a secret key gives the row

What: TypeAlias = Literal["classes", "moments", "pair"]


@dataclass(frozen=True, eq=False)
class Split:
    """A test of one column: a row whose code is at least ``first[i]`` and below ``first[i + 1]`` goes ``to[i]``."""

    column: int
    first: tuple[int, ...]
    to: tuple[Way, ...]


Way: TypeAlias = "int | float | Split | None"
"""A number, whole where it is a cell's; a test that leads to numbers; or None, where a row is not counted."""


@dataclass(frozen=True, eq=False)
class Cells:
    """A table: the cell of a row is the sum of what its parts say."""

    parts: tuple[Way, ...]
    n_cells: int


@dataclass(frozen=True, repr=False)
class Coins:
    """Gives each row a number below ``n``, by a secret key and by what the row holds: equal rows get equal numbers."""

    key: bytes
    n: int


class AddsUpCells(Protocol):
    """Adds up the rows of tables, where the rows are."""

    def __call__(self, tables: Sequence[Cells], what: What, coins: Coins | None = None) -> list[Sums]:
        """Return, for each table, a row for each cell.

        "classes": how many rows of each class; "moments": number, sum and sum of squares of a numeric target; "pair":
        the sum of the target, and of what it lacks of its upper bound.
        """


@runtime_checkable
class SaidCount(Protocol):
    """A ``batches.Count`` that can say what it counts."""

    def by_cells(self, answer: AddsUpCells, n_codes: Sequence[int]) -> Sums:
        """Return the same sums, out of answers about cells."""


def codes_of(column: int, group: npt.NDArray[np.integer], to: Callable[[int], Way] | None = None) -> Split:
    """Make the test of a column whose codes are in groups; negative ones are not counted.

    >>> codes_of(2, np.array([0, 0, 1, -1]))
    Split(column=2, first=(0, 2, 3), to=(0, 1, None))
    """
    every = group.astype(np.int64)
    starts = np.flatnonzero(np.append(True, every[1:] != every[:-1]))
    groups = every[starts].tolist()
    made = {number: (None if number < 0 else number if to is None else to(number)) for number in set(groups)}
    return Split(column, tuple(int(start) for start in starts), tuple(made[number] for number in groups))
