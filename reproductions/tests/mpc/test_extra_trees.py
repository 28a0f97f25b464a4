# SPDX-License-Identifier: Apache-2.0
"""The paper's extra trees: equal to their twins, and dearer under Poisson sampling than it claims."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from veilwood.privacy import entropy
from veilwood_papers.mpc.plain import poisson_epsilon
from veilwood_secure.protocols.hidden_forest import assign_rows_to_trees
from veilwood_secure.protocols.public_trees import grow_extra_trees
from veilwood_secure.protocols.records import Domain
from veilwood_testing.hidden_trees import load_rows, random_table
from veilwood_testing.mpc_engines import PlainEngine


def test_extra_trees_equal_their_twins_and_ignore_rows_in_their_structure() -> None:
    domain = Domain((2, 3, 2), 2)
    codes, target = random_table(60, domain)
    engine = PlainEngine()
    grown = []
    for rows in (slice(None), slice(0, 7)):
        with entropy.seeded_for_tests(5):
            grown.append(
                grow_extra_trees(
                    engine, load_rows(engine, codes[rows], target[rows], domain), domain,
                    depth=2, n_trees=2, leaf_scale=Fraction(1, 50), random_state=3,
                )
            )  # fmt: skip
    for one, other in zip(*grown, strict=True):
        assert all((a == b).all() for a, b in zip(one.splits, other.splits, strict=True))
    with entropy.seeded_for_tests(5):
        own = assign_rows_to_trees(engine, 60, 2)
    for place, tree in enumerate(grown[0]):
        rows_of_leaf = tree.leaf_indices(codes[own == place])
        counts = np.zeros((len(tree.leaves), 2), np.int64)
        np.add.at(counts, (rows_of_leaf, target[own == place]), 1)
        assert (tree.leaves == counts.argmax(axis=1)).all()


def test_poisson_sampling_costs_more_than_the_paper_claims() -> None:
    """One record, all of k noisy counts above 1: the exact ratio is above the claimed k gamma epsilon."""
    epsilon, rate, k = 2.0, 0.25, 4
    claimed = k * rate * epsilon
    above = {count: float((1 - np.cumsum(law(epsilon, count)))[1]) for count in (0, 1)}  # P(count + noise > 1)
    mixed = rate * above[1] + (1 - rate) * above[0]
    exact = k * np.log(mixed / above[0])
    assert claimed < exact <= poisson_epsilon(epsilon, rate, k) + 1e-9


def law(epsilon: float, count: int, reach: int = 60) -> NDArray[np.float64]:
    """The law of a count plus discrete Laplace noise on 0, 1, ..., with all below 0 put on 0."""
    places = np.arange(-reach, reach + 1)
    pmf = np.tanh(epsilon / 2) * np.exp(-epsilon * abs(places - count))
    return np.concatenate([[pmf[: reach + 1].sum()], pmf[reach + 1 :]])
