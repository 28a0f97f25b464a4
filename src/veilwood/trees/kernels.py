# SPDX-License-Identifier: Apache-2.0
"""The loops of ``counting``, compiled by numba; imported only where numba is installed.

Each works on the items ``first`` up to ``last`` and releases the interpreter lock. The numpy twins are in ``counting``.
Places in arrays are unsigned wherever it counts: numba would otherwise test each for being negative, which more than
halves the speed.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

njit: Any = numba.njit  # its dispatchers take arrays of any type

NO_OWNER = np.empty(0, np.int32)  # every row visits every tree
SWEPT_LEVELS = 5  # of a tree, whose few nodes take their rows down in sweeps: deeper, looking up is faster
MOST_PLACES = 1 << 16  # nodes of a tree that sweeps can tell apart
_SWEPT_BLOCK = 1024  # rows in a sweep
_BLOCK = 256  # rows that walk down a tree side by side: their codes and positions stay in the first-level cache


@njit(inline="always")
def step(nodes: Any, lookup: Any, codes: Any, row: Any, node: Any) -> Any:
    """Return the child of ``node`` that ``row`` goes to; a leaf goes to itself.

    Free of branches, which the processor could not predict: threshold and lookup are both computed and masked.
    """
    cut = nodes[node, 1]
    code = np.int32(codes[row, np.uint32(nodes[node, 0])])
    by_lookup = cut >> np.int32(31)  # all ones or all zeros
    looked_up = np.int32(lookup[np.uint32((code - np.int32(1) - cut) & by_lookup)])
    return np.uint32(nodes[node, 2] + ((looked_up & by_lookup) | (np.int32(code >= cut) & ~by_lookup)))


@njit(inline="always")
def _walk_block(nodes: Any, lookup: Any, codes: Any, root: int, depth: int, at: Any) -> None:
    """Take a block of rows down one tree together, so that their memory accesses overlap."""
    for i in range(np.uint64(len(codes))):
        at[i] = root
    for _ in range(depth):
        for i in range(np.uint64(len(codes))):
            at[i] = step(nodes, lookup, codes, i, at[i])


@njit(inline="always")
def _add(totals: Any, leaf: Any, target: Any, levels: int) -> None:
    """Add one row to a leaf: its class (levels 0), or the rotated pair of its target."""
    leaf = np.uint32(leaf)
    if levels == 0:
        totals[leaf, np.uint32(target)] += 1
    else:
        totals[leaf, 0] += target
        totals[leaf, 1] += levels - target


@njit(nogil=True, cache=True)
def add_rows(
    nodes: Any, roots: Any, depth: int, lookup: Any,
    codes: Any, target: Any, owner: Any, levels: int, totals: Any, first: int, last: int,
) -> None:  # fmt: skip
    """Add every row (or those a tree owns) to its leaf, for trees ``first`` up to ``last``."""
    if len(owner):
        for row in range(len(codes)):
            if first <= owner[row] < last:
                node = np.uint32(roots[owner[row]])
                for _ in range(depth):
                    node = step(nodes, lookup, codes, np.uint64(row), node)
                _add(totals, nodes[node, 3], target[row], levels)
        return
    at = np.empty(_BLOCK, np.uint32)
    for start in range(0, len(codes), _BLOCK):
        block, classes = codes[start : start + _BLOCK], target[start : start + _BLOCK]
        for tree in range(first, last):
            _walk_block(nodes, lookup, block, roots[tree], depth, at)
            for i in range(np.uint64(len(block))):
                _add(totals, nodes[at[i], 3], classes[i], levels)


@njit(cache=True)
def _by_cut(at: Any, column: Any, node: Any, child: Any, cut: Any) -> None:
    """Take the rows that are at ``node`` to its children; all rows of a block at once, as vector instructions."""
    for i in range(len(at)):
        here = at[i]
        below = np.uint16(child + np.uint16(column[i] >= cut))
        at[i] = below if here == node else here


@njit(cache=True)
def _by_bits(at: Any, column: Any, node: Any, child: Any, bits: Any) -> None:
    """The same for a lookup of two branches among at most 32 codes, which are the bits of one number."""
    for i in range(len(at)):
        here = at[i]
        below = np.uint16(child + np.uint16((bits >> np.uint32(column[i])) & np.uint32(1)))
        at[i] = below if here == node else here


@njit(cache=True)
def _by_lookup(at: Any, column: Any, node: Any, child: Any, table: Any) -> None:
    """The same for any lookup."""
    for i in range(len(at)):
        if at[i] == node:
            at[i] = np.uint16(child + table[np.uint64(column[i])])


@njit(nogil=True, cache=True)
def add_columns(
    nodes: Any, roots: Any, depth: int, lookup: Any, top: Any, top_depth: int, bits: Any,
    columns: Any, target: Any, levels: int, totals: Any, first: int, last: int,
) -> None:  # fmt: skip
    """Add every row to its leaf, as ``add_rows`` does, from codes that lie column by column.

    The first levels of a tree (the nodes up to ``top``) have few nodes: there each node takes its rows down in one
    sweep over the block, without a single look at a row's place. Below, each row looks up its own node. A place is
    counted from the root in 16 bits, so a tree has fewer than 65,536 nodes here. ``bits`` is 0 where a lookup is not
    given by bits.
    """
    places = np.empty(_SWEPT_BLOCK, np.uint16)
    for start in range(0, columns.shape[1], _SWEPT_BLOCK):
        block, classes = columns[:, start : start + _SWEPT_BLOCK].T, target[start : start + _SWEPT_BLOCK]
        at = places[: len(classes)]
        for tree in range(first, last):
            root = roots[tree]
            at[:] = 0
            for node in range(root, top[tree]):
                if nodes[node, 3] >= 0:
                    continue  # a leaf
                column = columns[nodes[node, 0]][start : start + _SWEPT_BLOCK]
                cut, here, child = nodes[node, 1], np.uint16(node - root), np.uint16(nodes[node, 2] - root)
                if cut >= 0:
                    _by_cut(at, column, here, child, np.uint16(cut))
                elif bits[node]:
                    _by_bits(at, column, here, child, bits[node])
                else:
                    _by_lookup(at, column, here, child, lookup[-1 - cut :])
            for _ in range(depth - top_depth):
                for i in range(np.uint64(len(at))):
                    place = np.uint32(root + np.int32(at[i]))
                    at[i] = np.uint16(np.int32(step(nodes, lookup, block, i, place)) - root)
            for i in range(np.uint64(len(at))):
                _add(totals, nodes[np.uint32(root + np.int32(at[i])), 3], classes[i], levels)


@njit(nogil=True, cache=True)
def sum_rows(
    nodes: Any, roots: Any, depth: int, lookup: Any, codes: Any, values: Any, sums: Any, first: int, last: int
) -> None:
    """Add up leaf values over all trees, for rows ``first`` up to ``last``."""
    at = np.empty(_BLOCK, np.uint32)
    for start in range(first, last, _BLOCK):
        stop = min(start + _BLOCK, last)
        block, block_sums = codes[start:stop], sums[start:stop]
        for tree in range(len(roots)):
            _walk_block(nodes, lookup, block, roots[tree], depth, at)
            for i in range(np.uint64(len(block))):
                leaf = np.uint32(nodes[at[i], 3])
                for j in range(np.uint64(values.shape[1])):
                    block_sums[i, j] += values[leaf, j]
