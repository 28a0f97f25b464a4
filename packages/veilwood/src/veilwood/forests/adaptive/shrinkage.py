# SPDX-License-Identifier: Apache-2.0
"""From noisy sums to steps: how far to go, as the known noise and the chance of sampling allow. Free: post-processing.

What is measured is in ``loop``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilwood.forests.adaptive.contingency import TINY, Axis, CellTable

RAREST: Final = 0.02  # of an even part, the least share of a class
LOWEST: Final = 0.1  # of an even part, the least that a cell of a table keeps
# Standard deviations of the noise by which a cell of a table is taken to be larger, and the rows of a class; measured.
FEIGNED: Final = 0.1
FEIGNED_ROWS: Final = 0.5
# The mean square of the mean of a target between bounds -1 and 1; measured.
MEANS: Final = 0.15
OVERLAP: Final = 0.25  # q tables tell the same in part: evidence counts q^-OVERLAP; 0.15 and 0.4 made no difference
LEAST: Final = 2.0  # rows, by which it is taken to be larger in any case
LARGEST_STEP: Final = 2.0  # of log-odds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def totals_of(counts: Sequence[Floats], variances: Sequence[float], n_rows: float | None) -> Floats:
    """Pool noisy class counts by their variances, and shrink them towards even classes."""
    weights = np.array([1 / max(variance, TINY) for variance in variances])
    pooled, variance = np.average(counts, axis=0, weights=weights), 1 / weights.sum()
    even = float(n_rows or max(pooled.sum(), len(pooled))) / len(pooled)
    rows = np.maximum(even + _shrunken(pooled - pooled.mean(), (len(pooled) - 1) * variance), RAREST * even)
    larger = rows + FEIGNED_ROWS * variance**0.5
    return np.asarray(larger * (rows.sum() / larger.sum()))


def believed_counts(counts: Floats, totals: Floats, variance: float) -> Floats:
    """Return what is believed of noisy class counts of a table; every cell keeps a little.

    What classes share and what sets them apart are shrunk each by itself.
    """
    (n_cells, n_classes), even = counts.shape, totals / len(counts)
    chance = (n_cells - 1) * (variance + float(even.mean()))  # with half of the sampling 150 rows lost up to 15 points
    away = counts - counts.mean(axis=0)
    shared = away.mean(axis=1, keepdims=True)
    kept = _shrunken(shared, chance / n_classes) + _shrunken(away - shared, chance * (n_classes - 1))
    spread = np.maximum(even + kept, 0.0)
    return np.asarray(np.maximum(spread * (totals / spread.sum(axis=0)), LOWEST * even))


def _shrunken(component: Floats, expected: float) -> Floats:
    """Keep the part max(0, 1 - expected energy of noise and chance / energy) of a component (James-Stein)."""
    return component * max(0.0, 1 - expected / max(float((component**2).sum()), TINY))


def evidence(believed: Floats, totals: Floats, variance: float, n_tables: int) -> Floats:
    """Turn class counts as believed into log-ratios to an even spread, cells larger by what noise could feign."""
    n_cells, n_classes = believed.shape
    even, feigned = totals / n_cells, FEIGNED * variance**0.5
    logs = n_tables**-OVERLAP * np.log((believed + feigned) / (even + feigned))
    return np.asarray(logs[:, 1:] - logs[:, :1] if n_classes == 2 else logs - logs.mean(axis=1, keepdims=True))


def shrunken_mean(away: float, noise: float, n_rows: float) -> float:
    """Return the mean of a target between 0 and 1, from the noisy sum over rows of how far it is above 1/2, doubled.

    It is kept to the part that, of all tables, has the smallest squared error.

    >>> shrunken_mean(50.0, 0.0, 100.0), shrunken_mean(50.0, 1e9, 100.0) < 0.501
    (0.75, True)
    """
    kept = n_rows**2 / (n_rows**2 + noise / MEANS)
    return min(max(0.5 + kept * away / n_rows / 2, 0.0), 1.0)


def newton_step(sums: Floats, noise: float, cells: Floats, table: CellTable, n_classes: int, variance: float) -> Floats:
    """Turn noisy gradient sums into a step: log-odds, or parts of the limit of residuals.

    Sums are split into ``components``, each shrunk by itself. Then a Newton step, its cells taken to be larger by what
    noise could feign.
    """
    n_outputs = sums.shape[1]
    chance = noise + float(cells.mean()) * variance
    if n_outputs > 1:
        sums = sums - sums.mean(axis=1, keepdims=True)
        chance *= 1 - 1 / n_outputs
    kept = np.zeros_like(sums)
    for component, size in components(sums, table):
        kept += _shrunken(component, size * n_outputs * chance)
    curvature = (1 / n_classes) * (1 - 1 / n_classes) if n_classes else 1.0
    # Larger by a standard deviation of the noise on a sum; measured with ``loop.COUNT_SHARE``.
    damping = noise**0.5 * (2 * curvature if n_classes else 1.0) + LEAST
    damped = curvature * cells[:, None] + damping
    most = LARGEST_STEP if n_classes else 1.0
    return np.asarray(np.clip(kept / damped, -most, most))


def components(sums: Floats, table: CellTable) -> list[tuple[Floats, int]]:
    """Split the sums of a table's cells into orthogonal components, and tell how many numbers each has.

    Of a numeric column halves, quarters and so on; of a categorical one the mean and the rest; of a pair products.
    """
    found = [(sums.reshape(*table.shape, -1), 1)]
    for place, axis in enumerate(table.axes):
        found = [(part, size * more) for held, size in found for part, more in _along(held, place, axis)]
    return [(part.reshape(sums.shape), size) for part, size in found]


def _along(held: Floats, place: int, axis: Axis) -> list[tuple[Floats, int]]:
    """Split an array along one of its axes."""
    mean = np.broadcast_to(held.mean(axis=place, keepdims=True), held.shape)
    if not axis.ordered:
        return [(mean, 1), (held - mean, axis.size - 1)]
    basis, level = _haar(axis.size)
    parts = []
    for number in range(int(level.max()) + 1):
        mine = basis[level == number]
        parts.append((np.moveaxis(np.tensordot(mine.T @ mine, held, (1, place)), 0, place), len(mine)))
    return parts


@cache
def _haar(n_cells: int) -> tuple[Floats, Ints]:
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
