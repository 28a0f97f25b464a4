# SPDX-License-Identifier: Apache-2.0
"""The loop of ``histograms``, compiled by numba; imported only where numba is installed.

It works on the trees ``first`` up to ``last`` and releases the interpreter lock. The numpy twin is in ``histograms``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from veilwood.trees.kernels import njit, step
from veilwood.trees.levelwise import SHIFT


@njit(inline="always")
def _add_row(slots: Any, tables: Any, codes: Any, row: int, first: int, last: int, value: int, moments: bool,
             histograms: Any) -> None:  # fmt: skip
    """Add one row to the histograms of the slots ``first`` up to ``last`` of the node it is in."""
    for slot in range(first, last):
        code = codes[row, slots[slot, 0]]
        table = slots[slot, 3]
        by_step = ((code - slots[slot, 1]) * slots[slot, 2]) >> SHIFT
        place = np.int64(tables[table + code]) if table >= 0 else by_step
        if moments:
            histograms[slot, place, 0] += 1
            histograms[slot, place, 1] += value
            histograms[slot, place, 2] += value * value
        else:
            histograms[slot, place, value] += 1


@njit(nogil=True, cache=True)
def add_rows(
    nodes: Any, roots: Any, depth: int, lookup: Any, starts: Any, slots: Any, tables: Any,
    codes: Any, target: Any, owner: Any, moments: bool, histograms: Any, first: int, last: int,
) -> None:  # fmt: skip
    """Add every row (or those a tree owns) to the histograms of its open node, for trees ``first`` up to ``last``."""
    for row in range(len(codes)):
        value = int(target[row])
        from_tree, to_tree = first, last
        if len(owner):
            if not first <= owner[row] < last:
                continue
            from_tree = owner[row]
            to_tree = from_tree + 1
        for tree in range(from_tree, to_tree):
            node = roots[tree]
            for _ in range(depth):
                node = step(nodes, lookup, codes, row, node)
            place = nodes[node, 3]
            if place >= 0:
                _add_row(slots, tables, codes, row, starts[place], starts[place + 1], value, moments, histograms)
