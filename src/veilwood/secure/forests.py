# SPDX-License-Identifier: Apache-2.0
"""Forests from shared rows (appendix D of the paper): hidden trees, and extra trees whose structure is random.

Single trees are in ``hidden_tree`` and ``id3``; forests that owners count themselves in ``joint``.
"""

from __future__ import annotations

from fractions import Fraction
from math import expm1, log1p

import numpy as np

from veilwood import entropy
from veilwood.counting import Assignment
from veilwood.secure.engine import Engine, Ints
from veilwood.secure.hidden_tree import HiddenTree, draw_noise, grow
from veilwood.secure.id3 import grow_public, noisy_class, random_feature
from veilwood.secure.plaintext import PlainTree
from veilwood.secure.plans import HiddenPlan
from veilwood.secure.records import Domain, Records


def trees_of_rows(engine: Engine, n_rows: int, n_trees: int) -> Ints:
    """Give each row to one tree, by a key that the servers draw together; they see it, owners and users do not.

    Notes
    -----
    Guarantee

    The tree of a row is drawn by its place alone, independently of all rows' values, so a forest costs what one
    tree costs (proofs/disjoint-trees.md, attacked by tests/test_secure_forests.py).
    """
    words = engine.open(engine.deal_sum(lambda: entropy.words(8, 32).astype(np.int64), (8,)))
    return Assignment(words.tobytes(), n_trees).trees(0, 0, n_rows).astype(np.int64)


def _of_tree(records: Records, tree_of_row: Ints, tree: int) -> Records:
    rows = np.flatnonzero(tree_of_row == tree)
    return Records(records.features[:, :, rows], records.classes[:, rows])


def grow_hidden_forest(engine: Engine, records: Records, planned: HiddenPlan) -> list[HiddenTree]:
    """Train a hidden tree, or several on disjoint records (ID3-based forest); everything stays in shares."""
    if planned.n_trees == 1:
        return [grow(engine, records, planned.recipe, draw_noise(engine, planned.recipe))]
    tree_of_row = trees_of_rows(engine, records.n_rows, planned.n_trees)
    return [
        grow(engine, _of_tree(records, tree_of_row, tree), planned.recipe, draw_noise(engine, planned.recipe))
        for tree in range(planned.n_trees)
    ]


def grow_extra_trees(
    engine: Engine,
    records: Records,
    domain: Domain,
    *,
    depth: int,
    n_trees: int,
    leaf_scale: Fraction,
    random_state: int | None = None,
) -> list[PlainTree]:
    """Train trees on random features and disjoint records: the classes of leaves are chosen with noise and opened.

    Notes
    -----
    Guarantee

    The structure comes from public randomness. A record changes one count of one leaf by one, so all trees together
    cost 1/leaf_scale under add-remove, and twice that under replace-one (proofs/secure.md, attacked by
    tests/test_secure_forests.py).
    """
    rng = np.random.default_rng(random_state)
    tree_of_row = trees_of_rows(engine, records.n_rows, n_trees)
    return [
        grow_public(
            engine, _of_tree(records, tree_of_row, tree), domain, depth, random_feature(rng), noisy_class(leaf_scale)
        )
        for tree in range(n_trees)
    ]


def poisson_epsilon(epsilon: float, rate: float, n_trees: int) -> float:
    """Return what ``n_trees`` cost, each at ``epsilon`` on a Poisson sample of the records at ``rate``.

    The paper's Claim D.1 says ``n_trees * rate * epsilon``; the tight bound of one tree is
    ``log(1 + rate (exp(epsilon) - 1))``, which is always more (Balle, Barthe, Gaboardi 2018, Theorem 8). Disjoint
    records at the same rate, 1/n_trees, cost ``epsilon`` only: forests here use those.

    >>> round(poisson_epsilon(2.0, 0.25, 4), 2)  # claimed: 2
    3.82
    """
    return n_trees * log1p(rate * expm1(epsilon))
