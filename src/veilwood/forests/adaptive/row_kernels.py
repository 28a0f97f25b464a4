# SPDX-License-Identifier: Apache-2.0
"""The loop of ``questions.GradientSums``, compiled by numba; imported only where numba is installed.

Rows are taken in blocks whose groups stay in the cache while table after table is added up. The numpy twin is in
``questions``; both add whole numbers, so they agree to the last one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from veilwood.trees.kernels import njit

BLOCK = 2048  # rows


@njit(nogil=True, cache=True)
def add_gradients(
    cells: Any, features: Any, groups: Any, axes: Any, strides: Any, starts: Any, units: Any, sums: Any
) -> None:
    """Add what each row adds to one cell of each table.

    ``groups`` holds the group of each cell of each axis, an axis of column ``features``; a table has some of these
    ``axes`` (-1: none) with ``strides``, and its cells begin at ``starts`` in ``sums``.
    """
    n_rows, n_outputs = units.shape
    mine = np.empty((len(features), BLOCK), np.uint16)
    place = np.empty(BLOCK, np.uint32)
    for first in range(0, n_rows, BLOCK):
        size = min(BLOCK, n_rows - first)
        for axis in range(len(features)):
            for row in range(size):
                mine[axis, row] = groups[axis, cells[features[axis], first + row]]
        for table in range(len(starts)):
            place[:size] = starts[table]
            for at in range(axes.shape[1]):
                axis, stride = axes[table, at], strides[table, at]
                if axis < 0:
                    break
                for row in range(size):
                    place[row] += np.uint32(mine[axis, row]) * stride
            if n_outputs == 1:
                for row in range(size):
                    sums[place[row], 0] += units[first + row, 0]
            else:
                for row in range(size):
                    for output in range(n_outputs):
                        sums[place[row], output] += units[first + row, output]
