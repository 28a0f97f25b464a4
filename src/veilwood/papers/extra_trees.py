# SPDX-License-Identifier: Apache-2.0
"""Extra trees on shared rows (appendix D of the MPC paper), and what its Claim D.1 leaves out.

Hidden forests, which are offered as a service, are in ``secure.protocols.hidden_forest``.
"""

from __future__ import annotations

from fractions import Fraction
from math import expm1, log1p

import numpy as np

from veilwood.papers.id3 import grow_public, noisy_class, random_feature
from veilwood.papers.plain_id3 import PlainTree
from veilwood.secure.mpc.engine import Engine
from veilwood.secure.protocols.hidden_forest import of_tree, trees_of_rows
from veilwood.secure.protocols.records import Domain, Records


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
    tests/papers/test_extra_trees.py).
    """
    rng = np.random.default_rng(random_state)
    tree_of_row = trees_of_rows(engine, records.n_rows, n_trees)
    return [
        grow_public(
            engine, of_tree(records, tree_of_row, tree), domain, depth, random_feature(rng), noisy_class(leaf_scale)
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
