# SPDX-License-Identifier: Apache-2.0
"""Sums over sets of features for ``marginal_search``, compiled by numba; imported only where numba is installed.

The numpy twin adds the same numbers in the same order, so both agree to the last bit.
"""

from __future__ import annotations

from typing import Any

from veilwood.trees.kernels import njit


@njit(nogil=True, cache=True)
def add_pairs(sums: Any, to: Any, other: Any) -> None:
    """Add some members to others, one after the other; none is in both lists of one feature."""
    for at in range(len(to)):
        sums[to[at]] += sums[other[at]]


@njit(nogil=True, cache=True)
def add_halves(sums: Any, n_bits: Any, into: Any) -> None:
    """Add, for each axis of a cube, one half to the other."""
    for bit in range(n_bits):
        width = 1 << bit
        for first in range(0, len(sums), 2 * width):
            to, other = first + into * width, first + (1 - into) * width
            for at in range(width):
                sums[to + at] += sums[other + at]
