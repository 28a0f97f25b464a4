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

from veilwood.forests.adaptive.contingency import TINY, Axis, ContingencyTable

MIN_CLASS_FRACTION: Final = 0.02  # of an even part, the least share of a class
MIN_CELL_FRACTION: Final = 0.1  # of an even part, the least that a cell of a table keeps
# Standard deviations of the noise by which a cell of a table is taken to be larger, and the rows of a class; measured.
NOISE_MARGIN: Final = 0.1
CLASS_NOISE_MARGIN: Final = 0.5
# The mean square of the mean of a target between bounds -1 and 1; measured.
MEAN_VARIANCE: Final = 0.15
OVERLAP_POWER: Final = (
    0.25  # q tables tell the same in part: evidence counts q^-OVERLAP; 0.15 and 0.4 made no difference
)
MIN_DAMPING: Final = 2.0  # rows, by which it is taken to be larger in any case
MAX_STEP: Final = 2.0  # of log-odds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def pool_class_counts(counts: Sequence[Floats], variances: Sequence[float], n_rows: float | None) -> Floats:
    """Pool noisy class counts by their variances, and shrink them towards even classes."""
    weights = np.array([1 / max(variance, TINY) for variance in variances])
    pooled, variance = np.average(counts, axis=0, weights=weights), 1 / weights.sum()
    even = float(n_rows or max(pooled.sum(), len(pooled))) / len(pooled)
    rows = np.maximum(
        even + _shrink_component(pooled - pooled.mean(), (len(pooled) - 1) * variance), MIN_CLASS_FRACTION * even
    )
    larger = rows + CLASS_NOISE_MARGIN * variance**0.5
    return np.asarray(larger * (rows.sum() / larger.sum()))


def shrunken_counts(counts: Floats, totals: Floats, variance: float) -> Floats:
    """Return what is believed of noisy class counts of a table; every cell keeps a little.

    What classes share and what sets them apart are shrunk each by itself.
    """
    (n_cells, n_classes), even = counts.shape, totals / len(counts)
    chance = (n_cells - 1) * (variance + float(even.mean()))  # with half of the sampling 150 rows lost up to 15 points
    away = counts - counts.mean(axis=0)
    shared = away.mean(axis=1, keepdims=True)
    kept = _shrink_component(shared, chance / n_classes) + _shrink_component(away - shared, chance * (n_classes - 1))
    spread = np.maximum(even + kept, 0.0)
    return np.asarray(np.maximum(spread * (totals / spread.sum(axis=0)), MIN_CELL_FRACTION * even))


def _shrink_component(component: Floats, expected: float) -> Floats:
    """Keep the part max(0, 1 - expected energy of noise and chance / energy) of a component (James-Stein)."""
    return component * max(0.0, 1 - expected / max(float((component**2).sum()), TINY))


def log_ratios(counts: Floats, totals: Floats, variance: float, n_tables: int) -> Floats:
    """Turn class counts as believed into log-ratios to an even spread, cells larger by what noise could feign."""
    n_cells, n_classes = counts.shape
    even, feigned = totals / n_cells, NOISE_MARGIN * variance**0.5
    logs = n_tables**-OVERLAP_POWER * np.log((counts + feigned) / (even + feigned))
    return np.asarray(logs[:, 1:] - logs[:, :1] if n_classes == 2 else logs - logs.mean(axis=1, keepdims=True))


def shrunken_mean(doubled_excess: float, noise: float, n_rows: float) -> float:
    """Return the mean of a target between 0 and 1, from the noisy sum over rows of how far it is above 1/2, doubled.

    It is kept to the part that, of all tables, has the smallest squared error.

    >>> shrunken_mean(50.0, 0.0, 100.0), shrunken_mean(50.0, 1e9, 100.0) < 0.501
    (0.75, True)
    """
    kept = n_rows**2 / (n_rows**2 + noise / MEAN_VARIANCE)
    return min(max(0.5 + kept * doubled_excess / n_rows / 2, 0.0), 1.0)


def newton_step(
    sums: Floats, noise: float, cells: Floats, table: ContingencyTable, n_classes: int, variance: float
) -> Floats:
    """Turn noisy gradient sums into a step: log-odds, or parts of the limit of residuals.

    Sums are split into ``split_components``, each shrunk by itself. Then a Newton step, its cells taken to be larger by what
    noise could feign.
    """
    n_outputs = sums.shape[1]
    chance = noise + float(cells.mean()) * variance
    if n_outputs > 1:
        sums = sums - sums.mean(axis=1, keepdims=True)
        chance *= 1 - 1 / n_outputs
    kept = np.zeros_like(sums)
    for component, size in split_components(sums, table):
        kept += _shrink_component(component, size * n_outputs * chance)
    curvature = (1 / n_classes) * (1 - 1 / n_classes) if n_classes else 1.0
    # Larger by a standard deviation of the noise on a sum; measured with ``loop.COUNT_FRACTION``.
    damping = noise**0.5 * (2 * curvature if n_classes else 1.0) + MIN_DAMPING
    damped = curvature * cells[:, None] + damping
    most = MAX_STEP if n_classes else 1.0
    return np.asarray(np.clip(kept / damped, -most, most))


def split_components(sums: Floats, table: ContingencyTable) -> list[tuple[Floats, int]]:
    """Split the sums of a table's cells into orthogonal components, and tell how many numbers each has.

    Of a numeric column halves, quarters and so on; of a categorical one the mean and the rest; of a pair products.
    """
    found = [(sums.reshape(*table.shape, -1), 1)]
    for place, axis in enumerate(table.axes):
        found = [(part, size * more) for held, size in found for part, more in _split_axis(held, place, axis)]
    return [(part.reshape(sums.shape), size) for part, size in found]


def _split_axis(array: Floats, dimension: int, axis: Axis) -> list[tuple[Floats, int]]:
    """Split an array along one of its axes."""
    mean = np.broadcast_to(array.mean(axis=dimension, keepdims=True), array.shape)
    if not axis.ordered:
        return [(mean, 1), (array - mean, axis.size - 1)]
    basis, level = _haar_basis(axis.size)
    parts = []
    for number in range(int(level.max()) + 1):
        mine = basis[level == number]
        parts.append((np.moveaxis(np.tensordot(mine.T @ mine, array, (1, dimension)), 0, dimension), len(mine)))
    return parts


@cache
def _haar_basis(n_cells: int) -> tuple[Floats, Ints]:
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
