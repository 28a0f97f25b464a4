# SPDX-License-Identifier: Apache-2.0
"""Gradient boosting over tables: rows held in memory as small codes, sums of clipped gradients, and damped steps.

The sums are exact and private until the door has let them out (``release``); which tables are used is in ``recipes``.

| name | meaning |
|---|---|
| score | log-odds of the second class (two classes), log-odds of each class (more), predicted target in [0, 1] |
| gradient | class minus probability; for regression the residual divided by ``spread`` and clipped to [-1, 1] |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Source
from veilwood.data.encoding import TARGET_LEVELS, EncodedColumn
from veilwood.forests.adaptive.recipes import COUNT_SHARE
from veilwood.forests.adaptive.table_trees import CellTable, coarse_codes, histogram_of
from veilwood.forests.leaves import density, shrunken_steps
from veilwood.trees.counting import on_threads

GRADIENT_UNITS: Final = 1 << 12  # a gradient of 1 in whole units
SPREAD_GRID: Final = np.geomspace(1e-3, 1.0, 32)
SPREAD_PART: Final = 0.95  # of the residuals lie below the spread
DAMPING: Final = 6.0  # standard deviations of the noise, in rows, that a cell is taken to be larger by
LARGEST_STEP: Final = 2.0  # of log-odds
_BLOCK: Final = 1 << 16

Floats = NDArray[np.float64]


@dataclass(repr=False)
class Rows:
    """All rows, in memory: coarse codes, target, and the score that the rounds so far give them. Private."""

    coarse: NDArray[np.uint8] | NDArray[np.uint16]
    target: NDArray[np.int32]
    scores: Floats
    cell: NDArray[np.uint32]  # of each row, in the table that was summed last

    @classmethod
    def of(cls, source: Source, columns: tuple[EncodedColumn, ...]) -> Rows:
        """Read a source once."""
        # A byte has room for the coarse cells of a number, but not for a missing one beside them.
        small = all(column.missing_code is None if column.ordered else column.n_codes <= 256 for column in columns)
        dtype = np.uint8 if small else np.uint16
        coarse, target = [], []
        for batch in source.batches():
            coarse.append(coarse_codes(columns, batch.codes).astype(dtype))
            target.append(batch.target)
        joined = np.concatenate(coarse, axis=1) if coarse else np.empty((len(columns), 0), dtype)
        joined_target = np.concatenate(target) if target else np.empty(0, np.int32)
        return cls(joined, joined_target, np.empty((0, 0)), np.empty(len(joined_target), np.uint32))

    def begin(self, start: Floats) -> None:
        """Give every row the same score."""
        self.scores = np.tile(start, (len(self.target), 1))

    def histograms(self, numeric: list[int]) -> NDArray[np.int64]:
        """Count the rows in the coarse cells of each numeric column; missing numbers are left out."""
        return np.stack([histogram_of(self.coarse[j]) for j in numeric])

    def residual_histogram(self) -> NDArray[np.int64]:
        """Count the rows whose absolute residual lies below each mark of ``SPREAD_GRID`` and above the one before."""
        residual = np.abs(self.target / TARGET_LEVELS - self.scores[:, 0])
        place = np.minimum(np.searchsorted(SPREAD_GRID, residual), len(SPREAD_GRID) - 1)
        return np.bincount(place, minlength=len(SPREAD_GRID)).astype(np.int64)

    def sums(
        self, table: CellTable, n_classes: int, count_units: int, spread: float, n_jobs: int | None
    ) -> NDArray[np.int64]:
        """Add up, for each cell, the gradients in ``GRADIENT_UNITS`` and, last, ``count_units`` for each row.

        Truncation towards zero keeps what one row adds within the norms that ``row_norms`` states.
        """
        n_outputs = self.scores.shape[1]
        total = np.zeros((table.n_cells, n_outputs + 1), np.int64)
        adding = Lock()

        def work(first: int, last: int) -> None:
            for start in range(first, last, _BLOCK):
                rows = slice(start, min(start + _BLOCK, last))
                self.cell[rows] = table.cells(self.coarse[:, rows])
                cell = self.cell[rows].astype(np.intp)
                units = np.trunc(gradients(self.scores[rows], self.target[rows], n_classes, spread) * GRADIENT_UNITS)
                # Sums of whole numbers below 2^53 are exact in floating point.
                parts: list[NDArray[Any]] = [np.bincount(cell, units[:, j], table.n_cells) for j in range(n_outputs)]
                parts.append(np.bincount(cell, minlength=table.n_cells) * float(count_units))
                with adding:
                    total[:] += np.stack(parts, axis=1).astype(np.int64)

        on_threads(work, len(self.target), n_jobs)
        return total

    def step(self, values: Floats, n_jobs: int | None) -> None:
        """Add the values of the table that was summed last to the scores of the rows."""

        def work(first: int, last: int) -> None:
            for start in range(first, last, _BLOCK):
                rows = slice(start, min(start + _BLOCK, last))
                self.scores[rows] += values[self.cell[rows]]

        on_threads(work, len(self.target), n_jobs)


def probabilities(scores: Floats) -> Floats:
    """Turn scores into class probabilities: log-odds of the second of two classes, or one score for each class."""
    if scores.shape[1] == 1:
        second = 1 / (1 + np.exp(-np.clip(scores[:, 0], -50, 50)))
        return np.column_stack([1 - second, second])
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def gradients(scores: Floats, target: NDArray[np.int32], n_classes: int, spread: float) -> Floats:
    """Return what each row adds, in [-1, 1]: one number, or one for each of three or more classes."""
    if n_classes == 0:
        return np.clip((target[:, None] / TARGET_LEVELS - scores) / spread, -1.0, 1.0)
    if n_classes == 2:
        return np.clip(target[:, None] - probabilities(scores)[:, 1:], -1.0, 1.0)
    away = -probabilities(scores)
    away[np.arange(len(target)), target] += 1.0
    return away


def row_norms(n_classes: int, gaussian: bool, signed_replacement: bool) -> tuple[int, int, int]:
    """Return the units of one row's count, and the L1 and squared L2 norm of all that one row adds in a round.

    A gradient has |g| <= 1; for three or more classes L1 norm and squared L2 norm are at most 2: it is the true class
    less a probability vector. Gradients have signs: where a row is replaced, the squared distance of two of them is
    up to four times the square of one, and a plan that doubles it for replacements (privacy.Neighbours) must be given
    twice the square.
    """
    norm = 2 if n_classes > 2 else 1
    part = COUNT_SHARE / (1 - COUNT_SHARE)
    units = round(GRADIENT_UNITS * (np.sqrt(norm * part) if gaussian else norm * part))
    squared = norm * GRADIENT_UNITS**2 * (2 if signed_replacement else 1) + units**2
    return units, norm * GRADIENT_UNITS + units, squared


def spread_of(histogram: NDArray[np.int64], variance: float, n_rows: int) -> float:
    """Return the mark below which ``SPREAD_PART`` of about so many residuals lie, from a noisy histogram."""
    return _mark(SPREAD_GRID, density(histogram, variance, n_rows), SPREAD_PART)


def target_and_spread(histogram: NDArray[np.int64], variance: float, n_rows: int) -> tuple[float, float]:
    """Return the mean of a target in [0, 1] and the mark for residuals from it, from a noisy histogram of targets."""
    mass = density(histogram, variance, n_rows)
    middles = (np.arange(len(mass)) + 0.5) / len(mass)
    mean = float(np.average(middles, weights=mass))
    residuals = np.abs(middles - mean) + 0.5 / len(mass)
    order = np.argsort(residuals)
    # Rows that noise put far away are fewer than a fifth; 1.5 times a normal law's mark of 0.8 is its mark of 0.95.
    return mean, min(1.5 * _mark(residuals[order], mass[order], 0.8), 1.0)


def _mark(marks: Floats, mass: Floats, part: float) -> float:
    below = np.cumsum(mass)
    return float(marks[np.searchsorted(below / below[-1], part)])


def damped_step(
    noisy: Floats, table: CellTable, n_classes: int, count_units: int, variance: float, spread: float
) -> tuple[Floats, Floats]:
    """Turn the noisy sums of one round into what its cells add to the score, and the standard error of that.

    A Newton step, its sums shrunk component by component (``leaves.shrunken_steps``) and its cells taken to be larger
    by ``DAMPING`` standard deviations of the noise, so that a cell of few rows moves little.
    """
    n_outputs = noisy.shape[1] - 1
    sums = noisy[:, :-1] / GRADIENT_UNITS
    noise = variance / GRADIENT_UNITS**2
    if n_outputs > 1:
        sums = sums - sums.mean(axis=1, keepdims=True)
        noise *= (n_outputs - 1) / n_outputs
    rows = np.maximum(noisy[:, -1:] / count_units, 0.0)
    curvature = 1.0 if n_classes == 0 else (1 / n_classes) * (1 - 1 / n_classes)
    damped = curvature * (rows + DAMPING * np.sqrt(variance) / GRADIENT_UNITS) + 1
    kept = shrunken_steps(sums, noise, *basis_of(table))
    limit = 1.0 if n_classes == 0 else LARGEST_STEP
    return np.clip(kept / damped, -limit, limit) * spread, np.sqrt(noise) / damped * spread


def basis_of(table: CellTable) -> tuple[Floats, NDArray[np.int64]] | tuple[None, None]:
    """Return an orthonormal basis of a table's cells and its components.

    One numeric column: halves, quarters and so on (Haar). One categorical column: none, its mean and the rest. Several
    columns of two groups: by how many columns act together (Walsh).
    """
    if len(table.axes) > 1:
        return _walsh(len(table.axes))
    return _haar(table.n_cells) if table.axes[0].ordered else (None, None)


@cache
def _walsh(n_columns: int) -> tuple[Floats, NDArray[np.int64]]:
    basis, order = np.ones((1, 1)), np.zeros(1, np.int64)
    for _ in range(n_columns):
        basis = np.block([[basis, basis], [basis, -basis]]) / np.sqrt(2)
        order = np.concatenate([order, order + 1])
    return basis, order


@cache
def _haar(n_cells: int) -> tuple[Floats, NDArray[np.int64]]:
    rows, level = [np.full(n_cells, n_cells**-0.5)], [0]
    pending = [(0, n_cells, 1)]
    while pending:
        first, last, depth = pending.pop()
        middle = (first + last) // 2
        if middle == first:
            continue
        row = np.zeros(n_cells)
        row[first:middle], row[middle:last] = 1 / (middle - first), -1 / (last - middle)
        rows.append(row / np.linalg.norm(row))
        level.append(depth)
        pending += [(first, middle, depth + 1), (middle, last, depth + 1)]
    return np.stack(rows), np.array(level)
