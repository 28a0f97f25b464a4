# SPDX-License-Identifier: Apache-2.0
"""Rows that only three servers together hold, asked by PrivateForest: its questions, answered on secret bits.

For owners that share their rows and leave, and for owners of columns. A row is the digits of its cells and its
target, 64 rows in a word; what public steps give its cells is added to a secret score, and gradients are looked up in
public tables by the highest digits of it. They are rounded to ``GRADIENT_LEVELS``, and what a row adds stays within
``rows.reach``. Owners that stay online answer from rows in memory instead (``joint_forest``).

| letter | meaning |
|---|---|
| W | words: 64 rows each, padding included |
| C | cells of a table |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Source
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.errors import MechanismError
from veilwood.forests.adaptive import row_backend as asked
from veilwood.forests.adaptive.contingency import Axis, CellColumn, CellTable
from veilwood.forests.adaptive.row_backend import (
    GRADIENT_UNITS,
    LARGEST_SCORE,
    LEVEL_UNITS,
    SCORE_UNITS,
    TARGET_CELLS,
    Ints,
    NeverSetApart,
    Question,
)
from veilwood_secure.mpc.engine import Bits, Engine, Shared, concatenate, stack
from veilwood_secure.protocols import circuits
from veilwood_secure.protocols.circuits import add, all_true, capped, counted, either, in_rows, one_hot_bits, subtract
from veilwood_secure.protocols.joint_forest import no_batches
from veilwood_secure.protocols.secret_array import SecretNumbers

GRADIENT_LEVELS: Final = 256
UNIT: Final = GRADIENT_UNITS // GRADIENT_LEVELS
GRADIENT_DIGITS: Final = 10  # -256 to 256
SCORE_DIGITS: Final = 27  # up to LARGEST_SCORE, twice, and a sign
TARGET_DIGITS: Final = 16
SHOWN: Final = 6  # the lowest digits of log-odds, below a sixteenth, do not count
INDEX: Final = 8  # digits of what is looked up: log-odds from -8 to 8
EXP_DIGITS: Final = 10
RESIDUAL_DIGITS: Final = 9
MOST_CACHED: Final = 400  # planes kept as integers


@dataclass(frozen=True, repr=False)
class BitRows(Source):
    """Rows in shares; PrivateForest asks them through ``asked_rows``."""

    engine: Engine | None = None
    cells: tuple[Bits, ...] = ()
    target: Bits | None = None
    valid: Bits | None = None

    @classmethod
    def of(cls, engine: Engine, cells: Sequence[Bits], target: Bits, valid: Bits) -> BitRows:
        """Return the rows of a server: digits of each column's cell, of the target, and which rows are there."""
        return cls(no_batches, False, 1, engine, tuple(cells), target, valid)

    @property
    def alone(self) -> bool:
        """Nobody alone has them."""
        return False

    def asked_rows(self, columns: Sequence[CellColumn], n_outputs: int) -> RowsOnShares:
        """Return them ready to be asked."""
        assert self.engine is not None
        assert self.target is not None
        assert self.valid is not None
        return RowsOnShares(self.engine, columns, self.cells, self.target, self.valid, n_outputs)


class RowsOnShares(NeverSetApart):
    """Asks rows on shares (``forests.cells.rows.AskedRows``).

    Notes
    -----
    Guarantee

    What a row adds to an answer is bounded as for rows in memory, and servers see uniform words whatever the rows
    (proofs/secure-joint.md, attacked by packages/veilwood-secure/tests/protocols/test_shared_backend.py).
    """

    def __init__(
        self,
        engine: Engine,
        columns: Sequence[CellColumn],
        cells: Sequence[Bits],
        target: Bits,
        valid: Bits,
        n_outputs: int,
    ) -> None:
        self._engine, self._target, self._valid = engine, target, valid
        # A cell's number that no cell has, from an owner that does not keep to the schema, is in none.
        self._fine = [
            engine.land(one_hot_bits(engine, digits, column.n_cells), valid[None])
            for column, digits in zip(columns, cells, strict=True)
        ]
        self._scores = [circuits.public(valid, np.zeros(SCORE_DIGITS, bool)) for _ in range(n_outputs)]
        self._planes: dict[Any, Bits] = {}
        self._integers: dict[Any, Shared] = {}

    # -- the interface -------------------------------------------------------------------------------------------

    def ask(self, question: Question) -> Ints:
        """Return the answer, in shares."""
        answer: Any = SecretNumbers(self._engine, self._answer(question))
        return answer  # type: ignore[no-any-return]

    def ask_some(self, question: Question, share: float) -> tuple[Ints, float]:
        """Ask about all rows."""
        return self.ask(question), 1.0

    def add(self, table: CellTable, values: NDArray[np.int32]) -> None:
        """Add what a step gives each cell to the scores."""
        planes = self._cells(table)
        for output, score in enumerate(self._scores):
            given = np.clip(values[:, output], -LARGEST_SCORE, LARGEST_SCORE)
            raised = add(self._engine, score, circuits.looked_up(planes, given, SCORE_DIGITS))
            self._scores[output] = raised

    # -- questions -----------------------------------------------------------------------------------------------

    @singledispatchmethod
    def _answer(self, question: Any) -> Shared:
        raise MechanismError(f"servers cannot answer {type(question).__name__} on shares.")

    @_answer.register
    def _(self, question: asked.RowCount) -> Shared:
        return counted(self._engine, self._valid[None])

    @_answer.register
    def _(self, question: asked.ClassCounts) -> Shared:
        return counted(self._engine, self._classes(question.n_classes))

    @_answer.register
    def _(self, question: asked.TargetHistogram) -> Shared:
        lowest = TARGET_DIGITS - TARGET_CELLS.bit_length() + 1
        return counted(self._engine, self._there(one_hot_bits(self._engine, self._target[lowest:], TARGET_CELLS)))

    @_answer.register
    def _(self, question: asked.TargetSums) -> Shared:
        found = counted(self._engine, concatenate([self._there(self._target), self._valid[None]]))
        up = (found[:-1] * (1 << np.arange(TARGET_DIGITS))).sum(axis=0)
        return stack([up, found[-1] * TARGET_LEVELS - up])

    @_answer.register
    def _(self, question: asked.ResidualHistogram) -> Shared:
        away, _ = self._residual()
        n = len(question.marks)
        digits = circuits.digits_of(question.marks, len(away))  # (digits, marks)
        marks = circuits.public(self._valid, digits)
        wide = away[:, None].broadcast_to((len(away), n, *away.shape[1:]))
        above = subtract(self._engine, marks, wide)[-1]  # set where the residual is larger than a mark
        up_to = ~above
        first = concatenate([up_to[:1], up_to[1:-1] ^ up_to[:-2], ~up_to[-2:-1]])
        return counted(self._engine, self._there(first))

    @_answer.register
    def _(self, question: asked.Histogram) -> Shared:
        return counted(self._engine, self._fine[question.column][: question.n_cells])

    @_answer.register
    def _(self, question: asked.RowsByCell) -> Shared:
        return counted(self._engine, self._cells(question.table))

    @_answer.register
    def _(self, question: asked.ClassesByCell) -> Shared:
        cells = concatenate([self._cells(table) for table in question.tables])
        classes = self._classes(question.n_classes)
        return counted(self._engine, self._engine.land(cells[:, None], classes[None]))

    @_answer.register
    def _(self, question: asked.GradientSums) -> Shared:
        gradients = self._gradients(question.n_classes, question.limit)  # (outputs, rows)
        outputs, n = gradients.shape
        by_prefix: dict[Any, list[int]] = {}
        for place, table in enumerate(question.tables):
            by_prefix.setdefault(tuple(map(_key, table.axes[:-1])), []).append(place)
        found: dict[int, Shared] = {}
        for places in by_prefix.values():
            prefix = question.tables[places[0]].axes[:-1]
            times = self._in_rows(prefix)  # (cells, rows)
            cells = times.shape[0]
            left = self._engine.mul(times.reshape(cells, 1, n), gradients.reshape(1, outputs, n))
            last = [question.tables[place].axes[-1:] for place in places]
            right = concatenate([self._in_rows(axes) for axes in last])
            sums = self._engine.matmul(left.reshape(cells * outputs, n), right.transpose())
            start = 0
            for place, axes in zip(places, last, strict=True):
                size = axes[0].size if axes else 1
                part = sums[:, start : start + size].reshape(cells, outputs, size)
                found[place] = part.transpose(0, 2, 1).reshape(cells * size, outputs)
                start += size
        return concatenate([found[place] for place in range(len(question.tables))]) * UNIT

    # -- what they are made of -----------------------------------------------------------------------------------

    def _there(self, planes: Bits) -> Bits:
        """Leave out padding."""
        return self._engine.land(planes, self._valid[None].broadcast_to(planes.shape))

    def _classes(self, n_classes: int) -> Bits:
        return self._kept(("classes",), lambda: self._there(one_hot_bits(self._engine, self._target, n_classes)))

    def _cells(self, table: CellTable) -> Bits:
        """Return a plane for each cell of a table, shape (C, W)."""
        if not table.axes:
            return self._valid[None]
        planes = self._groups(table.axes[0])
        for axis in table.axes[1:]:
            both = self._engine.land(planes[:, None], self._groups(axis)[None])
            planes = both.reshape(-1, *self._valid.shape)
        return planes

    def _groups(self, axis: Axis) -> Bits:
        """Return a plane for each group of a column; no message."""
        fine, groups = self._fine[axis.feature], axis.groups[: len(self._fine[axis.feature])]
        return fine.map(
            lambda part: np.stack([np.bitwise_xor.reduce(part[groups == group], axis=0) for group in range(axis.size)])
        )

    def _in_rows(self, axes: tuple[Axis, ...]) -> Shared:
        """Return which rows are in which cell as integers, shape (C, rows)."""
        key = tuple(map(_key, axes))
        if key not in self._integers:
            while sum(len(one) for one in self._integers.values()) > MOST_CACHED:
                self._integers.pop(next(iter(self._integers)))
            self._integers[key] = in_rows(self._engine, self._cells(CellTable(axes)))
        return self._integers[key]

    def _kept(self, key: Any, make: Callable[[], Bits]) -> Bits:
        if key not in self._planes:
            self._planes[key] = make()
        return self._planes[key]

    # -- gradients -----------------------------------------------------------------------------------------------

    def _gradients(self, n_classes: int, limit: int) -> Shared:
        """Return what each row adds in ``GRADIENT_LEVELS``, shape (outputs, rows)."""
        if n_classes > 2:
            return self._of_classes(n_classes)
        digits = self._of_two(limit) if n_classes else self._of_numbers(limit)
        weights = 1 << np.arange(GRADIENT_DIGITS)
        weights[-1] *= -1
        whole = in_rows(self._engine, self._there(digits))
        return (whole * weights[:, None]).sum(axis=0).reshape(1, -1)

    def _of_two(self, limit: int) -> Bits:
        """Class less probability of the second class, cut to the limit."""
        engine, score = self._engine, self._scores[0]
        shown, sign = score[SHOWN:], score[-1]
        inside = all_true(engine, ~(shown[INDEX - 1 : -1] ^ sign[None].broadcast_to(shown[INDEX - 1 : -1].shape)))
        # The digits where they fit; else all ones above, and zeros below: with the sign turned, 0 to 255.
        beyond = (~sign)[None].broadcast_to((INDEX - 1, *sign.shape))
        place = concatenate([either(engine, inside[None], shown[: INDEX - 1], beyond), (~sign)[None]])
        log_odds = (np.arange(1 << INDEX) + 0.5 - (1 << INDEX - 1)) * (1 << SHOWN) / SCORE_UNITS
        second = np.rint(GRADIENT_LEVELS / (1 + np.exp(-log_odds))).astype(np.int64)
        most = limit // UNIT
        planes = one_hot_bits(engine, place, 1 << INDEX)
        if_first = circuits.looked_up(planes, -np.minimum(second, most), GRADIENT_DIGITS)
        if_second = circuits.looked_up(planes, np.minimum(GRADIENT_LEVELS - second, most), GRADIENT_DIGITS)
        return either(engine, self._target[:1], if_second, if_first)

    def _of_numbers(self, limit: int) -> Bits:
        """Residual by the limit, cut to 1."""
        away, sign = self._residual()
        drop = max(0, int(limit).bit_length() - (RESIDUAL_DIGITS - 1))
        place = capped(self._engine, away[drop:], RESIDUAL_DIGITS)
        size = np.minimum((np.arange(1 << RESIDUAL_DIGITS) << drop) * GRADIENT_LEVELS // limit, GRADIENT_LEVELS)
        planes = one_hot_bits(self._engine, place, 1 << RESIDUAL_DIGITS)
        above = circuits.looked_up(planes, size, GRADIENT_DIGITS)
        below = circuits.looked_up(planes, -size, GRADIENT_DIGITS)
        return either(self._engine, sign[None], below, above)

    def _residual(self) -> tuple[Bits, Bits]:
        """Return the size of target less score, and its sign."""
        engine, score = self._engine, self._scores[0]
        zeros = (self._target[:1] & 0).broadcast_to((SCORE_DIGITS, *self._target.shape[1:]))
        shift = LEVEL_UNITS.bit_length() - 1
        target = concatenate([zeros[:shift], self._target, zeros[shift + TARGET_DIGITS :]])
        residual = subtract(engine, target, score)
        sign = residual[-1]
        turned = residual ^ sign[None].broadcast_to(residual.shape)
        return add(engine, turned, concatenate([sign[None], zeros[1:]])), sign

    def _of_classes(self, n_classes: int) -> Shared:
        """Class less probability, one number for each class; all classes side by side on the second axis."""
        engine = self._engine
        largest = self._scores[0]
        for score in self._scores[1:]:
            behind = subtract(engine, largest, score)[-1:]
            largest = either(engine, behind, score, largest)
        scores = stack(self._scores, axis=1)  # (digits, classes, W)
        wide = largest[:, None].broadcast_to(scores.shape)
        place = capped(engine, subtract(engine, wide, scores)[SHOWN:], INDEX - 1)
        log_odds = (np.arange(1 << INDEX - 1) + 0.5) * (1 << SHOWN) / SCORE_UNITS
        exp = np.rint(((1 << EXP_DIGITS) - 1) * np.exp(-log_odds)).astype(np.int64)
        powers = circuits.looked_up(one_hot_bits(engine, place, 1 << INDEX - 1), exp, EXP_DIGITS)
        n_digits = EXP_DIGITS + (n_classes - 1).bit_length() + 2
        nothing = powers[:1] & 0
        powers = concatenate([powers, nothing.broadcast_to((n_digits - EXP_DIGITS, *powers.shape[1:]))])
        total = powers[:, 0]
        for one in range(1, n_classes):
            total = add(engine, total, powers[:, one])
        total = total[:, None].broadcast_to(powers.shape)
        rest, quotient = powers, []
        for _ in range(GRADIENT_LEVELS.bit_length() - 1):  # long division, the highest digit first
            rest = concatenate([nothing, rest[:-1]])
            less = subtract(engine, rest, total)
            fits = ~less[-1:]
            rest = either(engine, fits, less, rest)
            quotient.append(fits[0])
        probability = stack(quotient[::-1])  # (digits, classes, W)
        whole = in_rows(engine, engine.land(probability, self._valid.broadcast_to(probability.shape)))
        weights = (1 << np.arange(len(quotient))).reshape(-1, 1, 1)
        own = in_rows(engine, self._classes(n_classes))
        return own * GRADIENT_LEVELS - (whole * weights).sum(axis=0)


def _key(axis: Axis) -> tuple[int, bytes]:
    return axis.feature, axis.groups.tobytes()
