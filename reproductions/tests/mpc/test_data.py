# SPDX-License-Identifier: Apache-2.0
"""Simulations in the clear of trees on shares."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from veilwood_papers.mpc.data import (  # fmt: skip
    BASELINE,
    NO_NOISE,
    OURS,
    PUBLISHED,
    CodedTable,
    SelectionRules,
    forest_scores,
    selection_rules,
)
from veilwood_papers.mpc.plain import USED, first_largest


@pytest.mark.parametrize(
    ("name", "half"), [("exponential_mechanism", 0.5), ("noisy_max", None), ("laplace_noise", None)]
)
def test_choices_have_their_law(name: str, half: float | None) -> None:
    """A score that leads by one wins with the probability that the mechanism states; used features never win."""
    draws, epsilon = 200_000, Fraction(1)
    scores_of_nodes = np.tile(np.array([[2, 3, USED]]), (draws, 1))
    picked = getattr(SelectionRules(7), name)(epsilon)(scores_of_nodes)
    assert set(np.unique(picked)) == {0, 1}
    e = math.exp(-1)
    expected = {
        "exponential_mechanism": 1 / (1 + math.exp(-0.5)),
        # Geometric noise on both, the first of equals: a lead of one is lost when the noise differs by one or more.
        "noisy_max": 1 - e * 1 / (1 + e),
        "laplace_noise": 1 - e / 2 * (1 + 0.5),
    }[name]
    deviation = math.sqrt(expected * (1 - expected) / draws)
    assert abs(picked.mean() - expected) < 5.5 * deviation


def test_variants_of_trees_differ_where_they_should() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, (900, 4))
    data = CodedTable(codes, (codes[:, 2] == 1).astype(np.int64), (3, 3, 3, 3))
    assert forest_scores(data, NO_NOISE, 1.0, 2, 0) == (1.0, 1.0)
    assert forest_scores(data, PUBLISHED, 0.5, 2, 0)[0] > 0.95
    assert forest_scores(data, OURS, 5.0, 2, 0)[0] > 0.95
    assert forest_scores(data, BASELINE, 0.001, 2, 0)[0] < 0.9, "an epsilon of nearly nothing leaves nothing"
    assert selection_rules(PUBLISHED, 1.0, 2, "laplace", 0)[0] is first_largest, "its splits have no noise: NOT PRIVATE"
    again = forest_scores(data, OURS, 0.1, 2, 5)
    assert again == forest_scores(data, OURS, 0.1, 2, 5), "public seeds give the same figures"
