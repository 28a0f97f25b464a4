# SPDX-License-Identifier: Apache-2.0
"""Rows that stay on Dask, Spark or Ray and are asked there (``rows.AskedRows``).

Each partition keeps its cells and scores between questions. Steps are sent when the next question is: they are public,
and what a partition holds follows from its rows, the steps and a secret key, so that a worker that takes over from a
dead one comes to the same. Here come sums alone; their size does not grow with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Batch
from veilwood.data.cluster.source import ClusterSource
from veilwood.forests.cells.cell_tables import Axis, CellTable
from veilwood.forests.cells.columns import CellColumn
from veilwood.forests.cells.rows import PART_ROWS, HeldRows, Ints, Question, ScoredRows, joined_cells, together
from veilwood.privacy.entropy import secret_key
from veilwood.trees.counting import Assignment

__all__ = ["ClusterRows", "PartitionRows"]

_COINS: Final = 1 << 30  # a secret coin is a whole number below
_APART, _JUDGES, _CELLS = b"apart  ", b"judges ", b"cells  "  # what a row's coins are for: it has one for each

Move = Callable[["PartitionRows"], None]  # what changes rows where they are: public numbers, and a secret key


@dataclass(frozen=True, repr=False)  # workers log what fails with its arguments
class CoinKey:
    """The secret key of all coins of a fit."""

    key: bytes


@dataclass(frozen=True, eq=False, repr=False)
class CountedCells:
    """Cells that hold rows, ascending, and how many each; those of several partitions add up."""

    cells: Ints
    counts: Ints

    def __add__(self, other: CountedCells) -> CountedCells:
        return CountedCells(*joined_cells([(self.cells, self.counts), (other.cells, other.counts)]))

    def copy(self) -> CountedCells:
        """Return the same: it never changes."""
        return self


class PartitionRows(HeldRows):
    """What a worker holds of one partition. Coins follow from a key and a row's place, whoever tosses them. Private."""

    def __init__(self, columns: Sequence[CellColumn], n_outputs: int, batches: Sequence[Batch]) -> None:
        self._n_jobs, self._others = 1, None
        read = list(together(batches, PART_ROWS))
        self._parts = [ScoredRows.of(columns, some, n_outputs) for some in read]
        self._places = [[(b.partition, b.first_row, len(b.target)) for b in some] for some in read]
        self._left: list[NDArray[np.bool_]] = []  # which rows of each part were not set apart
        self._held_back: list[ScoredRows] = []
        self._judges: list[ScoredRows] = []
        self._key = b""

    def after(self, moves: Sequence[Move]) -> PartitionRows:
        """Return what becomes of the rows, and leave these as they are: an engine may need them once more."""
        later = copy(self)
        later._left = list(self._left)
        for name in ("_parts", "_held_back", "_judges"):
            copies = [replace(rows, scores=rows.scores.copy()) for rows in getattr(self, name)]
            setattr(later, name, copies)
        for move in moves:
            move(later)
        return later

    def hold_back_by(self, coins: CoinKey, share: float) -> None:
        """Set rows apart."""
        self._key = coins.key + _APART
        left = [~self._drawn(rows, share) for rows in self._parts]
        self.hold_back(share)
        self._left = left

    def draw_judges_by(self, coins: CoinKey, share: float) -> None:
        """Draw the rows that judge."""
        self._key = coins.key + _JUDGES
        self.draw_judges(share)

    def ask_judges(self, question: Question) -> Ints:
        """Return the answer of the rows that were drawn to judge."""
        return self.ask_some(question, 0.0)[0]

    def occupied_by(self, coins: CoinKey, axes: Sequence[Axis], n_classes: int, share: float) -> CountedCells:
        """Return the cells that hold rows."""
        coined = copy(self)
        coined._key = coins.key + _CELLS
        return CountedCells(*coined.occupied(axes, n_classes, share))

    def _drawn(self, rows: ScoredRows, share: float) -> NDArray[np.bool_]:
        """Draw each row by its place."""
        part = next(place for place, each in enumerate(self._parts) if each is rows)
        coins = Assignment(self._key, _COINS)
        tossed = np.concatenate([np.empty(0, np.int32), *(coins.trees(*place) for place in self._places[part])])
        return np.asarray((tossed[self._left[part]] if self._left else tossed) < int(share * _COINS))


class ClusterRows:
    """Asks rows where they are."""

    holds_back: ClassVar[bool] = True

    def __init__(self, columns: Sequence[CellColumn], source: ClusterSource, n_outputs: int) -> None:
        make = partial(PartitionRows, tuple(columns), n_outputs)
        self._rows, self._none = source.keep(make), make([])
        self._moves: list[Move] = []
        self._judges_drawn = False
        self._coins: CoinKey | None = None

    def _secret(self) -> CoinKey:
        """One key for all coins of a fit."""
        self._coins = self._coins or CoinKey(secret_key())
        return self._coins

    def _answer(self, question: Callable[[PartitionRows], Any]) -> Any:
        if self._moves:
            self._rows.change(methodcaller("after", tuple(self._moves)))
            self._moves = []
        answer = self._rows.ask(question)
        return question(self._none) if answer is None else answer

    def ask(self, question: Question) -> Ints:
        """Return the answer, added up over all rows that were not set apart."""
        sums: Ints = self._answer(methodcaller("ask", question))
        return sums

    def ask_some(self, question: Question, share: float) -> tuple[Ints, float]:
        """Ask about a share of the rows, drawn once by secret coins; return the share too."""
        if not self._judges_drawn:
            self._moves.append(methodcaller("draw_judges_by", self._secret(), share))
            self._judges_drawn = True
        return self._answer(methodcaller("ask_judges", question)), share

    def add(self, table: CellTable, values: NDArray[np.int32]) -> None:
        """Take a step; it is sent with the next question."""
        self._moves.append(methodcaller("add", table, values))

    def hold_back(self, share: float) -> None:
        """Set rows apart by secret coins, one for each row: no question reaches them but the last one."""
        self._moves.append(methodcaller("hold_back_by", self._secret(), share))

    def ask_held_back(self, question: Question) -> Ints:
        """Return the answer of the rows that were set apart."""
        sums: Ints = self._answer(methodcaller("ask_held_back", question))
        return sums

    def occupied(self, axes: Sequence[Axis], n_classes: int, share: float = 1.0) -> tuple[Ints, Ints]:
        """Return the cells of columns and classes that hold rows, ascending, and how many each."""
        found = self._answer(methodcaller("occupied_by", self._secret(), tuple(axes), n_classes, share))
        return found.cells, found.counts

    def close(self) -> None:
        """Let the workers forget all of it."""
        self._rows.close()
