# SPDX-License-Identifier: Apache-2.0
"""Forests of hidden trees from shared rows, each row given to one tree (appendix D of the paper).

Single trees are in ``hidden_tree``; forests that owners count themselves in ``joint_forest``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from veilwood.privacy import entropy
from veilwood.secure.mpc.engine import Engine, Ints
from veilwood.secure.mpc.together import together
from veilwood.secure.protocols.hidden_tree import HiddenTree, draw_noise, grow
from veilwood.secure.protocols.plans import HiddenPlan
from veilwood.secure.protocols.records import Records
from veilwood.trees.counting import Assignment


def trees_of_rows(engine: Engine, n_rows: int, n_trees: int) -> Ints:
    """Give each row to one tree, by a key that the servers draw together; they see it, owners and users do not.

    Notes
    -----
    Guarantee

    The tree of a row is drawn by its place alone, independently of all rows' values, so a forest costs what one
    tree costs (proofs/disjoint-trees.md, attacked by tests/secure/protocols/test_hidden_forest.py).
    """
    words = engine.open(engine.deal_sum(lambda: entropy.words(8, 32).astype(np.int64), (8,)))
    return Assignment(words.tobytes(), n_trees).trees(0, 0, n_rows).astype(np.int64)


def of_tree(records: Records, tree_of_row: Ints, tree: int) -> Records:
    """Return the rows that were given to one tree."""
    rows = np.flatnonzero(tree_of_row == tree)
    return Records(records.features[..., rows], records.classes[:, rows])


def grow_hidden_forest(engine: Engine, records: Records, planned: HiddenPlan) -> list[HiddenTree]:
    """Train a hidden tree, or several on disjoint records (ID3-based forest), all in the rounds of one.

    Everything stays in shares.
    """
    if planned.n_trees == 1:
        return [grow(engine, records, planned.recipe, draw_noise(engine, planned.recipe))]
    tree_of_row = trees_of_rows(engine, records.n_rows, planned.n_trees)

    def grown(tree: int, lane: Engine) -> HiddenTree:
        return grow(lane, of_tree(records, tree_of_row, tree), planned.recipe, draw_noise(lane, planned.recipe))

    return together(engine, [partial(grown, tree) for tree in range(planned.n_trees)])
