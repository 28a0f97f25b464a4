# SPDX-License-Identifier: Apache-2.0
"""Backend of PrivateForest for rows in shares: its row queries, evaluated on bit-sliced shares.

It serves owners that share their rows and then disconnect, and owners of columns. A row consists of the binary digits
of its bins and its target, 64 rows to a word. Public score updates are added to its secret score, and gradients are
looked up in public tables by the highest digits of the score. Gradients are rounded to ``GRADIENT_LEVELS``, and the
contribution of a row stays within ``row_backend.gradient_norms``. Owners that stay online instead answer queries from
rows in memory (``joint_forest``).

| letter | meaning |
|---|---|
| W | number of words of 64 rows each, padding included |
| C | cells of a table |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

import numpy as np

from veilwood.arrays import Int32s, Ints
from veilwood.data import counts
from veilwood.data.batches import Source
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.forests.adaptive.contingency import BinnedColumn
from veilwood.forests.adaptive.row_backend import GRADIENT_UNITS, LEVEL_UNITS, MAX_SCORE, SCORE_UNITS
from veilwood_secure.mpc.engine import Bits, Engine, Shared, concatenate, stack
from veilwood_secure.protocols import circuits
from veilwood_secure.protocols import circuits as circuit
from veilwood_secure.protocols.joint_forest import no_batches
from veilwood_secure.protocols.secret_array import SecretArray

GRADIENT_LEVELS: Final = 256
GRADIENT_UNIT: Final = GRADIENT_UNITS // GRADIENT_LEVELS
GRADIENT_DIGITS: Final = 10  # -256 to 256
SCORE_DIGITS: Final = 27  # twice MAX_SCORE, and a sign bit
TARGET_DIGITS: Final = 16
IGNORED_DIGITS: Final = 6  # the lowest digits of log-odds, below a sixteenth, are ignored
LOOKUP_DIGITS: Final = 8  # digits of the table index: log-odds from -8 to 8
EXP_DIGITS: Final = 10
RESIDUAL_DIGITS: Final = 9
MAX_CACHED_PLANES: Final = 400  # planes cached as integers: bounds memory


@dataclass(frozen=True, repr=False)
class BitslicedRows(Source):
    """Source of rows in bit-sliced shares; PrivateForest queries them through ``make_backend``."""

    engine: Engine | None = None
    cells: tuple[Bits, ...] = ()
    target: Bits | None = None
    valid: Bits | None = None

    @classmethod
    def from_shares(cls, engine: Engine, cells: Sequence[Bits], target: Bits, valid: Bits) -> BitslicedRows:
        """Return the rows of a server: digits of each column's bin and of the target, and the mask of valid rows."""
        return cls(no_batches, False, 1, engine, tuple(cells), target, valid)

    @property
    def is_complete(self) -> bool:
        """False: no single server holds the rows."""
        return False

    def make_backend(self, columns: Sequence[BinnedColumn], n_outputs: int) -> SharedBackend:
        """Return a backend for these rows, with scores of zero."""
        assert self.engine is not None
        assert self.target is not None
        assert self.valid is not None
        return SharedBackend(self.engine, columns, self.cells, self.target, self.valid, n_outputs)


class SharedBackend(counts.RowBackend):
    """Backend for row queries on shares (``veilwood.data.counts.RowBackend``).

    Notes
    -----
    Guarantee

    The contribution of a row to an answer is bounded as for rows in memory, and servers see uniform words for all rows
    (proofs/secure-joint.md, attacked by packages/veilwood-secure/tests/protocols/test_shared_backend.py).
    """

    def __init__(
        self,
        engine: Engine,
        columns: Sequence[BinnedColumn],
        cells: Sequence[Bits],
        target: Bits,
        valid: Bits,
        n_outputs: int,
    ) -> None:
        self._engine, self._target, self._valid = engine, target, valid
        # A bin number outside the schema, from an owner that violates it, sets no plane.
        self._bin_planes = [
            engine.land(circuit.one_hot_bits(engine, digits, column.n_bins), valid[None])
            for column, digits in zip(columns, cells, strict=True)
        ]
        self._scores = [circuits.public_planes(valid, np.zeros(SCORE_DIGITS, bool)) for _ in range(n_outputs)]
        self._plane_cache: dict[Any, Bits] = {}
        self._indicator_cache: dict[Any, Shared] = {}

    # Interface

    def run(self, query: counts.RowQuery) -> Ints:
        """Return the answer, in shares."""
        answer: Any = SecretArray(self._engine, self._evaluate_query(query))
        return answer  # type: ignore[no-any-return]

    def run_on_sample(self, query: counts.RowQuery, fraction: float) -> tuple[Ints, float]:
        """Return the sum over all rows: sampling would not save work here."""
        return self.run(query), 1.0

    def add_scores(self, table: counts.ContingencyTable, values: Int32s) -> None:
        """Add a score update per cell to the scores of its rows."""
        planes = self._cell_planes(table)
        for output, score in enumerate(self._scores):
            updates = np.clip(values[:, output], -MAX_SCORE, MAX_SCORE)
            self._scores[output] = circuit.add_bits(self._engine, score, circuits.lookup(planes, updates, SCORE_DIGITS))

    # Queries

    def _evaluate_query(self, query: counts.RowQuery) -> Shared:
        match query:
            case counts.RowsByCell(table):
                return circuit.popcount(self._engine, self._cell_planes(table))
            case counts.ClassesByCell(
                (counts.ContingencyTable(()),), n_classes
            ):  # class counts need no multiplication by cells
                return circuit.popcount(self._engine, self._class_planes(n_classes)).reshape(1, n_classes)
            case counts.ClassesByCell(tables, n_classes):
                cells = concatenate([self._cell_planes(table) for table in tables])
                classes = self._class_planes(n_classes)
                return circuit.popcount(self._engine, self._engine.land(cells[:, None], classes[None]))
            case counts.TargetSums():
                found = circuit.popcount(
                    self._engine, concatenate([self._mask_padding(self._target), self._valid[None]])
                )
                up = (found[:-1] * (1 << np.arange(TARGET_DIGITS))).sum(axis=0)
                return stack([up, found[-1] * TARGET_LEVELS - up])
            case counts.ResidualHistogram(marks):
                return circuit.popcount(self._engine, self._mask_padding(self._residual_planes(marks)))
            case counts.GradientSums():
                return self._gradient_sums(query)
            case counts.EvidenceGain():
                return self._evidence_gain(query)
        assert_never(query)  # mypy reports a kind of query that joint fits cannot answer

    def _residual_planes(self, marks: Ints) -> Bits:
        """Return one plane per bound: the rows whose residual is at most this bound and above the previous bound."""
        residual = self._target_minus_score()
        digits = circuits.binary_digits(marks, len(residual))  # (digits, marks)
        limits = circuits.public_planes(self._valid, digits)
        wide = residual[:, None].broadcast_to((len(residual), len(marks), *residual.shape[1:]))
        up_to = ~circuit.subtract_bits(self._engine, limits, wide)[-1]
        return concatenate([up_to[:1], up_to[1:-1] ^ up_to[:-2], ~up_to[-2:-1]])

    def _gradient_sums(self, query: counts.GradientSums) -> Shared:
        gradients = self._row_gradients(query.n_classes, query.limit)  # (outputs, rows)
        outputs, n = gradients.shape
        by_prefix: dict[Any, list[int]] = {}
        for place, table in enumerate(query.tables):
            by_prefix.setdefault(tuple(map(_axis_key, table.axes[:-1])), []).append(place)
        found: dict[int, Shared] = {}
        for places in by_prefix.values():
            prefix = query.tables[places[0]].axes[:-1]
            times = self._cell_indicators(prefix)  # (cells, rows)
            cells = times.shape[0]
            left = self._engine.mul(times.reshape(cells, 1, n), gradients.reshape(1, outputs, n))
            last = [query.tables[place].axes[-1:] for place in places]
            right = concatenate([self._cell_indicators(axes) for axes in last])
            sums = self._engine.matmul(left.reshape(cells * outputs, n), right.transpose())
            start = 0
            for place, axes in zip(places, last, strict=True):
                size = axes[0].size if axes else 1
                part = sums[:, start : start + size].reshape(cells, outputs, size)
                found[place] = part.transpose(0, 2, 1).reshape(cells * size, outputs)
                start += size
        return concatenate([found[place] for place in range(len(query.tables))]) * GRADIENT_UNIT

    def _evidence_gain(self, query: counts.EvidenceGain) -> Shared:
        # The product of a gradient and a score, in units of both, is GRADIENT_LEVELS times the answer: the score is
        # rounded to that many units, and the product needs no division.
        engine, drop = self._engine, GRADIENT_LEVELS.bit_length() - 1
        offset = circuits.binary_digits(GRADIENT_LEVELS // 2 - query.start, SCORE_DIGITS)  # (digits, outputs)
        scores = stack(self._scores, axis=1)
        rounded = circuit.add_bits(engine, scores, circuits.public_planes(self._valid, offset))[drop:]
        weights = 1 << np.arange(len(rounded))
        weights[-1] *= -1
        added = (circuit.to_rows(engine, rounded) * weights[:, None, None]).sum(axis=0)  # (outputs, rows)
        gain = engine.dot(self._row_gradients(query.n_classes, query.limit), added, axis=0)
        return circuits.clip(engine, gain, query.max_gain).sum().reshape(1)

    # Planes and indicators

    def _mask_padding(self, planes: Bits) -> Bits:
        """Clear the bits of padding rows."""
        return self._engine.land(planes, self._valid[None].broadcast_to(planes.shape))

    def _class_planes(self, n_classes: int) -> Bits:
        return self._cached_planes(
            ("classes",), lambda: self._mask_padding(circuit.one_hot_bits(self._engine, self._target, n_classes))
        )

    def _cell_planes(self, table: counts.ContingencyTable) -> Bits:
        """Return one plane per cell of a table, shape (C, W)."""
        if not table.axes:
            return self._valid[None]
        planes = self._group_planes(table.axes[0])
        for axis in table.axes[1:]:
            both = self._engine.land(planes[:, None], self._group_planes(axis)[None])
            planes = both.reshape(-1, *self._valid.shape)
        return planes

    def _group_planes(self, axis: counts.Axis) -> Bits:
        """Return one plane per group of a column's bins. This takes no message."""
        fine, groups = self._bin_planes[axis.feature], axis.groups[: len(self._bin_planes[axis.feature])]
        return fine.map_parts(
            lambda part: np.stack([np.bitwise_xor.reduce(part[groups == group], axis=0) for group in range(axis.size)])
        )

    def _cell_indicators(self, axes: tuple[counts.Axis, ...]) -> Shared:
        """Return the row indicators of cells as integers, shape (C, rows)."""
        key = tuple(map(_axis_key, axes))
        if key not in self._indicator_cache:
            while sum(len(one) for one in self._indicator_cache.values()) > MAX_CACHED_PLANES:
                self._indicator_cache.pop(next(iter(self._indicator_cache)))
            self._indicator_cache[key] = circuit.to_rows(self._engine, self._cell_planes(counts.ContingencyTable(axes)))
        return self._indicator_cache[key]

    def _cached_planes(self, key: Any, make: Callable[[], Bits]) -> Bits:
        if key not in self._plane_cache:
            self._plane_cache[key] = make()
        return self._plane_cache[key]

    # Gradients

    def _row_gradients(self, n_classes: int, limit: int) -> Shared:
        """Return the gradients of rows in units of 1 / ``GRADIENT_LEVELS``, shape (outputs, rows)."""
        if n_classes > 2:
            return self._multiclass_gradients(n_classes)
        digits = self._binary_gradients(limit) if n_classes else self._regression_gradients(limit)
        weights = 1 << np.arange(GRADIENT_DIGITS)
        weights[-1] *= -1
        integers = circuit.to_rows(self._engine, self._mask_padding(digits))
        return (integers * weights[:, None]).sum(axis=0).reshape(1, -1)

    def _binary_gradients(self, limit: int) -> Bits:
        """Return class minus probability of the second class, clipped to the limit."""
        engine, score = self._engine, self._scores[0]
        digits_used, sign = score[IGNORED_DIGITS:], score[-1]
        inside = circuit.and_reduce(
            engine,
            ~(digits_used[LOOKUP_DIGITS - 1 : -1] ^ sign[None].broadcast_to(digits_used[LOOKUP_DIGITS - 1 : -1].shape)),
        )
        # The digits if they fit, otherwise saturated: all ones above, zeros below. With the sign inverted: 0 to 255.
        beyond = (~sign)[None].broadcast_to((LOOKUP_DIGITS - 1, *sign.shape))
        index = concatenate(
            [circuit.mux(engine, inside[None], digits_used[: LOOKUP_DIGITS - 1], beyond), (~sign)[None]]
        )
        log_odds = (
            (np.arange(1 << LOOKUP_DIGITS) + 0.5 - (1 << LOOKUP_DIGITS - 1)) * (1 << IGNORED_DIGITS) / SCORE_UNITS
        )
        second = np.rint(GRADIENT_LEVELS / (1 + np.exp(-log_odds))).astype(np.int64)
        max_gradient = limit // GRADIENT_UNIT
        planes = circuit.one_hot_bits(engine, index, 1 << LOOKUP_DIGITS)
        if_first = circuits.lookup(planes, -np.minimum(second, max_gradient), GRADIENT_DIGITS)
        if_second = circuits.lookup(planes, np.minimum(GRADIENT_LEVELS - second, max_gradient), GRADIENT_DIGITS)
        return circuit.mux(engine, self._target[:1], if_second, if_first)

    def _regression_gradients(self, limit: int) -> Bits:
        """Return residual / limit, clipped to [-1, 1]."""
        residual = self._target_minus_score()
        sign = residual[-1]
        turned = residual ^ sign[None].broadcast_to(residual.shape)
        magnitude = circuit.add_bits(self._engine, turned, concatenate([sign[None], residual[1:] & 0]))
        drop = max(0, int(limit).bit_length() - (RESIDUAL_DIGITS - 1))
        index = circuit.saturate(self._engine, magnitude[drop:], RESIDUAL_DIGITS)
        size = np.minimum((np.arange(1 << RESIDUAL_DIGITS) << drop) * GRADIENT_LEVELS // limit, GRADIENT_LEVELS)
        planes = circuit.one_hot_bits(self._engine, index, 1 << RESIDUAL_DIGITS)
        above = circuits.lookup(planes, size, GRADIENT_DIGITS)
        below = circuits.lookup(planes, -size, GRADIENT_DIGITS)
        return circuit.mux(self._engine, sign[None], below, above)

    def _target_minus_score(self) -> Bits:
        """Return target minus score; the last digit is its sign."""
        zeros = (self._target[:1] & 0).broadcast_to((SCORE_DIGITS, *self._target.shape[1:]))
        shift = LEVEL_UNITS.bit_length() - 1
        target = concatenate([zeros[:shift], self._target, zeros[shift + TARGET_DIGITS :]])
        return circuit.subtract_bits(self._engine, target, self._scores[0])

    def _multiclass_gradients(self, n_classes: int) -> Shared:
        """Return class minus probability, one number per class. Classes are stacked on the second axis."""
        engine = self._engine
        largest = self._scores[0]
        for score in self._scores[1:]:
            behind = circuit.subtract_bits(engine, largest, score)[-1:]
            largest = circuit.mux(engine, behind, score, largest)
        scores = stack(self._scores, axis=1)  # (digits, classes, W)
        wide = largest[:, None].broadcast_to(scores.shape)
        index = circuit.saturate(
            engine, circuit.subtract_bits(engine, wide, scores)[IGNORED_DIGITS:], LOOKUP_DIGITS - 1
        )
        log_odds = (np.arange(1 << LOOKUP_DIGITS - 1) + 0.5) * (1 << IGNORED_DIGITS) / SCORE_UNITS
        exp = np.rint(((1 << EXP_DIGITS) - 1) * np.exp(-log_odds)).astype(np.int64)
        powers = circuits.lookup(circuit.one_hot_bits(engine, index, 1 << LOOKUP_DIGITS - 1), exp, EXP_DIGITS)
        n_digits = EXP_DIGITS + (n_classes - 1).bit_length() + 2
        zero = powers[:1] & 0
        powers = concatenate([powers, zero.broadcast_to((n_digits - EXP_DIGITS, *powers.shape[1:]))])
        total = powers[:, 0]
        for one in range(1, n_classes):
            total = circuit.add_bits(engine, total, powers[:, one])
        total = total[:, None].broadcast_to(powers.shape)
        remainder, quotient = powers, []
        for _ in range(GRADIENT_LEVELS.bit_length() - 1):  # long division, the highest digit first
            remainder = concatenate([zero, remainder[:-1]])
            less = circuit.subtract_bits(engine, remainder, total)
            fits = ~less[-1:]
            remainder = circuit.mux(engine, fits, less, remainder)
            quotient.append(fits[0])
        probability = stack(quotient[::-1])  # (digits, classes, W)
        integers = circuit.to_rows(engine, engine.land(probability, self._valid.broadcast_to(probability.shape)))
        weights = (1 << np.arange(len(quotient))).reshape(-1, 1, 1)
        own = circuit.to_rows(engine, self._class_planes(n_classes))
        return own * GRADIENT_LEVELS - (integers * weights).sum(axis=0)


def _axis_key(axis: counts.Axis) -> tuple[int, bytes]:
    return axis.feature, axis.groups.tobytes()
