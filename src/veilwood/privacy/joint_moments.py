# SPDX-License-Identifier: Apache-2.0
"""How large joint noise is: variances of its law (``joint_noise``), for plans and for whoever weighs what was released.

Letters are those of ``joint_noise``; r is t + 2U, the bound of the norm, and z = t / r. On real numbers r and z are
independent: r has a gamma law of d + 2, and the density of z is the product of the volumes of all tables' vectors.
Whole numbers differ where the noise is small: the variance of a cell is then taken to be that of a discrete Laplace law
whose scale is as large, and that of all rows is left as it is. Below a scale of about 1/2 both are too large, so that
whoever shrinks by them is too cautious. Checked against draws in tests/privacy/test_joint_moments.py.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import lru_cache
from math import exp, expm1, lgamma
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_TABLE_CELLS: Final = 48  # of one table: more hardly gain from company
MOST_CELLS_TOGETHER: Final = 256  # of all tables together: the boxes of the sampler grow with their square

_NODES, _WEIGHTS = (ends / 2 for ends in np.polynomial.legendre.leggauss(40))
PLACES: Final[Floats] = _NODES + 0.5  # between 0 and 1, of a quadrature


class Moments(NamedTuple):
    """Variances of cells by the size of their table, as if each were independent of the others, and of all rows."""

    apart: dict[int, float]
    total: float


def moments(scale: Fraction, sizes: tuple[int, ...]) -> Moments:
    """Return the moments of noise of a scale."""
    apart, total = of_scale_1(tuple(sorted(Counter(sizes).items())))
    squared = float(scale) ** 2
    return Moments({m: _discrete(squared * one) for m, one in apart}, squared * total)


@lru_cache(maxsize=4096)
def of_scale_1(counted: tuple[tuple[int, int], ...]) -> tuple[tuple[tuple[int, float], ...], float]:
    """Variances of cells by the size of their table, and of all rows, on real numbers; tables by size and number.

    >>> of_scale_1(((4, 1),))[0][0][1].__round__(6)  # one table by itself: Laplace noise
    2.0
    """
    logs = np.zeros_like(PLACES)
    for m, times in counted:
        logs += times * _vectors(m)[0]
    density = _WEIGHTS * np.exp(logs - logs.max())
    density /= density.sum()
    free = sum((m - 1) * times for m, times in counted)
    squared = (free + 2) * (free + 3)  # the mean of r^2
    total = squared * float(density @ PLACES**2)
    apart = tuple((m, squared * float(density @ (_vectors(m)[1] - PLACES**2 / m)) / max(m - 1, 1)) for m, _ in counted)
    return apart, total


@lru_cache(maxsize=64)
def _vectors(m: int) -> tuple[Floats, Floats]:
    """For t = z and U = (1 - z) / 2: the log-volume of vectors, and the mean of their squares' sum.

    i negative entries of the sum v are v times a uniform point of a simplex, the others t + v times one.
    """
    t, most = PLACES, (1 - PLACES) / 2
    volume = np.exp((m - 1) * np.log(t) - lgamma(m))
    squares = volume * 2 * t**2 / (m + 1)
    v = most[:, None] * PLACES
    rest = t[:, None] + v
    for i in range(1, m):
        log_ways = lgamma(m + 1) - lgamma(i + 1) - lgamma(m - i + 1) - lgamma(i) - lgamma(m - i)
        part = most[:, None] * _WEIGHTS * np.exp(log_ways + (i - 1) * np.log(v) + (m - i - 1) * np.log(rest))
        volume = volume + part.sum(axis=1)
        squares = squares + (part * (2 * v**2 / (i + 1) + 2 * rest**2 / (m - i + 1))).sum(axis=1)
    return np.log(volume), squares / volume


def _discrete(variance: float) -> float:
    """Variance of the discrete Laplace law that has this one on real numbers."""
    if variance <= 0:
        return 0.0
    inverse = (2 / variance) ** 0.5
    return 2 * exp(-inverse) / expm1(-inverse) ** 2
