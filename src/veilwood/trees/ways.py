# SPDX-License-Identifier: Apache-2.0
"""Trees as tests of codes (``data.cells``), for engines that run none of our code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from veilwood.data.cells import Cells, Split, Way, codes_of
from veilwood.trees.forest import LEAF, Forest

__all__ = ["tree_tables", "way_through"]


def way_through(
    forest: Forest,
    tree: int,
    n_codes: Sequence[int],
    columns: Sequence[int] | None = None,
    leaf: Callable[[int], Way] = int,
) -> Way:
    """Return the tests that lead a row through a tree to its leaf, or to what ``leaf`` says of it.

    ``columns`` gives the column of each feature, where the forest has some of them only.
    """

    def below(node: int) -> Way:
        feature, child, cut = int(forest.feature[node]), int(forest.child[node]), int(forest.cut[node])
        if feature == LEAF:
            return leaf(child)
        column = feature if columns is None else columns[feature]
        if cut == 0:
            return below(child + 1)
        if cut > 0:
            return Split(column, (0, cut), (below(child), below(child + 1)))
        branches = forest.lookup[-1 - cut : -1 - cut + n_codes[column]]
        return codes_of(column, branches, lambda branch: below(child + branch))

    return below(int(forest.roots[tree]))


def tree_tables(
    forest: Forest, n_codes: Sequence[int], columns: Sequence[int] | None = None, more: Sequence[Way] = ()
) -> list[Cells]:
    """Return a table for each tree, whose cells are its leaves; ``more`` tests may leave rows out."""
    return [
        Cells((way_through(forest, tree, n_codes, columns), -start, *more), end - start)
        for tree, (start, end) in enumerate(pairwise(forest.tree_leaves.tolist()))
    ]
