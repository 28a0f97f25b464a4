# SPDX-License-Identifier: Apache-2.0
"""What Claim D.1 of the paper on secure trees leaves out; its extra trees are in ``secure.protocols.public_tree``."""

from __future__ import annotations

from math import expm1, log1p


def poisson_epsilon(epsilon: float, rate: float, n_trees: int) -> float:
    """Return what ``n_trees`` cost, each at ``epsilon`` on a Poisson sample of the records at ``rate``.

    The paper's Claim D.1 says ``n_trees * rate * epsilon``; the tight bound of one tree is
    ``log(1 + rate (exp(epsilon) - 1))``, which is always more (Balle, Barthe, Gaboardi 2018, Theorem 8). Disjoint
    records at the same rate, 1/n_trees, cost ``epsilon`` only: forests here use those.

    >>> round(poisson_epsilon(2.0, 0.25, 4), 2)  # claimed: 2
    3.82
    """
    return n_trees * log1p(rate * expm1(epsilon))
