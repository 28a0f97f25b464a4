# SPDX-License-Identifier: Apache-2.0
"""Shrinkage: score updates from noisy sums, damped by noise and sampling variance. Post-processing only."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations, product
from math import prod
from typing import Final, NamedTuple

import numpy as np

from veilwood.arrays import Floats, Int32s, Ints
from veilwood.data.counts import Axis, ContingencyTable
from veilwood.forests.adaptive.contingency import TINY, posterior_counts
from veilwood.forests.adaptive.row_backend import SCORE_UNITS

MIN_CLASS_FRACTION: Final = 0.02  # smallest frequency of a class, as a fraction of 1 / n_classes
MIN_CELL_FRACTION: Final = 0.1  # smallest count of a cell, as a fraction of the mean over cells
# Additive smoothing of cells of tables and of class totals, in standard deviations of their noise
# (benchmarks/results/constants.md).
NOISE_MARGIN: Final = 0.1
CLASS_NOISE_MARGIN: Final = 0.5
# Prior variance of the mean of a target scaled to [-1, 1] (benchmarks/results/constants.md).
MEAN_VARIANCE: Final = 0.15
# Columns of q tables are correlated: each log-ratio is scaled by q**-OVERLAP_POWER; 0.15 and 0.4 made no difference.
OVERLAP_POWER: Final = 0.25
MIN_DAMPING: Final = 2.0  # rows added to the curvature of every cell
MAX_STEP: Final = 2.0  # largest update, in log-odds


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


def initial_scores(totals: Floats) -> Int32s:
    """Return the initial score of every row: logarithms of class frequencies, or their difference for two classes.

    >>> (initial_scores(np.array([1.0, 1.0])), initial_scores(np.array([1.0, 1.0, 1.0])).shape)
    (array([0], dtype=int32), (3,))
    """
    logs = np.log(totals / totals.sum())
    scores = logs[1:] - logs[:1] if len(logs) == 2 else logs
    return np.asarray(np.rint(scores * SCORE_UNITS), np.int32)


def shrunken_counts(counts: Floats, totals: Floats, variance: float) -> Floats:
    """Return the shrunken class counts of a table, all above 0.

    The number of rows per cell and the differences between classes are shrunk separately.
    """
    (n_cells, n_classes), even = counts.shape, totals / len(counts)
    # With half of the sampling variance, accuracy fell by up to 15 points at 150 rows.
    chance = (n_cells - 1) * (variance + float(even.mean()))
    away = counts - counts.mean(axis=0)
    shared = away.mean(axis=1, keepdims=True)
    kept = _shrink_component(shared, chance / n_classes) + _shrink_component(away - shared, chance * (n_classes - 1))
    spread = np.maximum(even + kept, 0.0)
    return np.asarray(np.maximum(spread * (totals / spread.sum(axis=0)), MIN_CELL_FRACTION * even))


def _shrink_component(component: Floats, expected: float) -> Floats:
    """Multiply a component by max(0, 1 - expected energy / energy), the positive-part James-Stein factor."""
    return component * max(0.0, 1 - expected / max(float((component**2).sum()), TINY))


def log_ratios(counts: Floats, totals: Floats, variance: float, n_tables: int) -> Floats:
    """Return smoothed log-ratios of shrunken class counts to equal counts in all cells."""
    n_cells, n_classes = counts.shape
    even, feigned = totals / n_cells, NOISE_MARGIN * variance**0.5
    logs = n_tables**-OVERLAP_POWER * np.log((counts + feigned) / (even + feigned))
    return np.asarray(logs[:, 1:] - logs[:, :1] if n_classes == 2 else logs - logs.mean(axis=1, keepdims=True))


def shrunken_mean(doubled_excess: float, noise: float, n_rows: float) -> float:
    """Return the mean of a target in [0, 1], from the noisy sum over rows of 2 * target - 1.

    The mean is shrunk by the factor of least squared error under the prior variance ``MEAN_VARIANCE``.

    >>> shrunken_mean(50.0, 0.0, 100.0), shrunken_mean(50.0, 1e9, 100.0) < 0.501
    (0.75, True)
    """
    kept = n_rows**2 / (n_rows**2 + noise / MEAN_VARIANCE)
    return min(max(0.5 + kept * doubled_excess / n_rows / 2, 0.0), 1.0)


def newton_step(
    sums: Floats, noise: float, cells: Floats, table: ContingencyTable, variance: float, frequencies: Floats
) -> Floats:
    """Return the update of each cell in log-odds.

    The noisy gradient sums are split into ``split_components`` and each is shrunk separately. A Newton step follows,
    whose curvature is increased by the standard deviation of the noise. With three or more classes, a frequent class
    has more curvature than an even one.
    """
    n_outputs = sums.shape[1]
    n_classes, chance = max(n_outputs, 2), noise + float(cells.mean()) * variance
    if n_outputs > 1:
        sums = sums - sums.mean(axis=1, keepdims=True)
        chance *= 1 - 1 / n_outputs
    kept = np.zeros_like(sums)
    for component, size in split_components(sums, table):
        kept += _shrink_component(component, size * n_outputs * chance)
    curvature = np.full(n_outputs, (1 / n_classes) * (1 - 1 / n_classes))
    if n_outputs > 1:
        curvature = np.maximum(curvature, frequencies * (1 - frequencies))
    # Larger by a standard deviation of the noise on a sum; measured with ``loop.COUNT_FRACTION``.
    damped = curvature * (cells[:, None] + 2 * noise**0.5) + MIN_DAMPING
    return np.asarray(np.clip(kept / damped, -MAX_STEP, MAX_STEP))


# Histogram of residuals: upper ends of its bins, as fractions of the target's range; the middle of an octave, as a
# fraction of its end; prior fractions of rows on both sides, from the middle bin on.
_OCTAVES: Final = 2.0 ** np.arange(-7, 1)
RESIDUAL_ENDS: Final = np.concatenate([-_OCTAVES[-2::-1], _OCTAVES])
OCTAVE_MIDDLE, OCTAVE_PRIOR = 1 / 1.35, (0.05, 0.08, 0.12, 0.2, 0.25, 0.2, 0.08, 0.02)
PREDICTABLE: Final = 1 / 9  # fraction of a residual beyond the clipping bound that rounds could have predicted
MIN_GRADIENT_VARIANCE: Final = 0.05
LIMITS: Final = np.geomspace(0.02, 1.0, 30)  # that are compared
MIDDLE_STEPS: Final = 8


class ResidualSpread(NamedTuple):
    """Clipping bound of residuals, as a fraction of the target's range, and statistics of the clipped residuals.

    Attributes
    ----------
    limit, middle : float
        The clipping bound, and the middle of the clipped residuals.
    variance : float
        Variance of the noise on the middle.
    gradient_variance : float
        Mean square of clipped residuals, in units of the clipping bound.
    """

    limit: float
    middle: float
    variance: float
    gradient_variance: float


def limit_residuals(
    counts: Floats, variance: float, n_rows: float, noise_risk: float, max_limit: float
) -> ResidualSpread:
    """Find the clipping bound of residuals that minimises noise plus predictable residuals lost by clipping.

    ``counts`` is the noisy histogram of residuals, and ``noise_risk`` the squared error by noise at a clipping bound of
    1.
    """
    limits = np.minimum(LIMITS, max_limit)
    prior = np.array([*OCTAVE_PRIOR[:0:-1], *OCTAVE_PRIOR])
    mass = posterior_counts(counts, prior / prior.sum(), variance, n_rows)
    mass /= mass.sum()
    octaves = OCTAVE_MIDDLE * np.append(0.0, _OCTAVES[1:])
    away, middle = np.concatenate([-octaves[:0:-1], octaves]), np.zeros(len(limits))
    for _ in range(MIDDLE_STEPS):
        clipped = np.clip(away[:, None] - middle, -limits, limits)
        middle += mass @ clipped
    beyond = mass @ np.maximum(np.abs(away[:, None] - middle) - limits, 0) ** 2
    best = int(np.argmin(PREDICTABLE * beyond + noise_risk * limits**2))
    squares, limit = clipped[:, best] ** 2, float(limits[best])
    noise = variance / n_rows**2 * float(squares.sum())
    gradient_variance = max(float(mass @ squares) / limit**2, MIN_GRADIENT_VARIANCE)
    return ResidualSpread(limit, float(middle[best]), noise, gradient_variance)


# Candidate prior standard deviations of effects, in units of the clipping bound of residuals: of a column or an
# interaction, and of the mean of a table.
EFFECT_SCALES, MEAN_SCALES = (0.0, 0.03, 0.1, 0.3), (0.0, 0.03, 0.1, 0.3)
MAX_CORRELATED_CELLS: Final = 256  # of a table whose effects have a full covariance, which takes their square
MAX_ORDER: Final = 3  # maximum number of columns of interactions with their own standard deviation
OWN_VARIANCE: Final = 0.05  # of a group of numbers, beside the random walk that neighbouring groups share


def posterior_means(sums: Floats, noise: float, cells: Floats, table: ContingencyTable, variance: float) -> Floats:
    """Return the posterior mean of the gradient of a row in each cell, given noisy sums.

    A sum is the number of rows times an effect, plus noise and sampling error. Effects are normal: a mean, one
    component per column in which neighbouring groups are alike, and an interaction. Their standard deviations are
    averaged over a grid, weighted by the likelihood of the sums.
    """
    scale = 1 / np.sqrt(noise + cells * variance)
    seen, weight = sums[:, 0] * scale, cells * scale
    if len(cells) > MAX_CORRELATED_CELLS:
        logs, solved = _solve_independent(seen, weight)
    else:
        logs, solved = _solve_correlated(seen, weight, table)
    likelihood = np.exp(logs - logs.max())
    return np.asarray((seen - likelihood @ solved / likelihood.sum()) / weight)[:, None]


def _solve_correlated(seen: Floats, weight: Floats, table: ContingencyTable) -> tuple[Floats, Floats]:
    """Return the log-likelihood of each grid point, and the inverse covariance of the sums times the sums."""
    parts = _effect_covariances(tuple((axis.size, axis.ordered) for axis in table.axes))
    grid = np.array(list(product(MEAN_SCALES, *[EFFECT_SCALES] * (len(parts) - 1)))) ** 2
    total = np.tensordot(grid, parts, 1) * (weight[:, None] * weight) + np.eye(len(seen))
    solved = np.linalg.solve(total, np.broadcast_to(seen[:, None], (len(grid), len(seen), 1)))[..., 0]
    return np.asarray(-(solved @ seen + np.linalg.slogdet(total)[1]) / 2), np.asarray(solved)


def _solve_independent(seen: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Return the results of ``_solve_correlated`` for cells that share only a mean, without their covariances."""
    grid = np.array(list(product(MEAN_SCALES, EFFECT_SCALES))) ** 2
    mean, own = grid[:, :1], grid[:, 1:]
    diagonal = 1 + own * weight**2
    scaled = weight / diagonal
    shared = 1 + mean * (scaled @ weight)[:, None]
    solved = seen / diagonal - mean / shared * (scaled @ seen)[:, None] * scaled  # Sherman and Morrison's formula
    determinants = np.log(diagonal).sum(axis=1) + np.log(shared[:, 0])
    return -(solved @ seen + determinants) / 2, solved


@cache
def _effect_covariances(shape: tuple[tuple[int, bool], ...]) -> Floats:
    """Return the covariances of a table's cells for mean, columns and interactions, each with mean variance 1.

    Interactions of ``MAX_ORDER`` or more columns are one component, as every component multiplies the size of the grid.
    """
    n_cells, own = prod(size for size, _ in shape), [_group_covariance(*axis) for axis in shape]
    parts = np.zeros((min(len(shape), MAX_ORDER) + 1, n_cells, n_cells))
    for order in range(len(shape) + 1):
        for chosen in combinations(range(len(shape)), order):
            part: Floats = np.ones((1, 1))
            for place, matrix in enumerate(own):
                part = np.asarray(np.kron(part, matrix if place in chosen else np.ones_like(matrix)), np.float64)
            parts[min(order, MAX_ORDER)] += part
    return parts


def _group_covariance(size: int, ordered: bool) -> Floats:
    """Return the covariance of the effects of groups, which add up to 0: a random walk if the groups are ordered."""
    place = (np.arange(size) + 0.5) / size
    walk = np.minimum(place[:, None], place) + OWN_VARIANCE * np.eye(size) if ordered else np.eye(size)
    centre = np.eye(size) - 1 / size
    centred = centre @ walk @ centre
    return np.asarray(centred / max(float(np.trace(centred)) / size, TINY))


def split_components(sums: Floats, table: ContingencyTable) -> list[tuple[Floats, int]]:
    """Split the sums of a table into orthogonal components, each with its number of degrees of freedom.

    A numeric column has one component per level of the Haar basis, a categorical column its mean and the rest, and a
    pair of columns all products of these.
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
