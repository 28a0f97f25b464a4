# SPDX-License-Identifier: Apache-2.0
"""The loop of ``tabulated``, compiled by numba; imported only where numba is installed. Its numpy twin is there."""

from __future__ import annotations

from typing import Any

import numpy as np

from veilwood.trees.kernels import njit

_BLOCK = 1024  # rows whose groups stay in the cache while tree after tree looks them up


@njit(nogil=True, cache=True)
def add_tables(
    features: Any, groups: Any, axes: Any, offsets: Any, ends: Any, starts: Any, values: Any, columns: Any, sums: Any,
    first: int, last: int,
) -> None:  # fmt: skip
    """Add up what cells say over all trees, for rows ``first`` up to ``last``."""
    n_values = values.shape[1]
    mine = np.empty((len(features), _BLOCK), groups.dtype)
    place = np.empty(_BLOCK, np.uint32)
    for start in range(first, last, _BLOCK):
        size = np.uint64(min(_BLOCK, last - start))
        for feature in range(len(features)):
            column, group, found = columns[features[feature]][start:last], groups[feature], mine[feature]
            for i in range(size):
                found[i] = group[np.uint64(column[i])]
        block = sums[start:last]
        axis = 0
        for tree in range(len(ends)):
            for i in range(size):
                place[i] = starts[tree]
            while axis < ends[tree]:
                offset, found = offsets[axis], mine[axes[axis]]
                for i in range(size):
                    place[i] += offset[np.uint64(found[i])]
                axis += 1
            if n_values == 1:
                for i in range(size):
                    block[i, 0] += values[place[i], 0]
            else:
                for i in range(size):
                    for value in range(np.uint64(n_values)):
                        block[i, value] += values[place[i], value]
