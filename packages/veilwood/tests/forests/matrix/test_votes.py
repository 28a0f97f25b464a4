# SPDX-License-Identifier: Apache-2.0
"""Votes of batches as workloads."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood.forests.matrix.workloads import LeafVoteWorkload, PathWorkload, VoteWorkload
from veilwood_testing.small_workloads import grow, reached_by


def test_votes_of_binary_trees_match_votes_of_equal_multiway_trees() -> None:
    sizes = (2, 2, 2)
    features, values = grow(sizes, 2, 3, np.random.default_rng(0))
    multiway = PathWorkload.from_leaves(sizes, features, values)
    binary = PathWorkload.from_masks(sizes, np.hstack([multiway.leaf_masks(i)[:, multiway.maps[i]] for i in range(3)]))
    reached = reached_by(multiway, [0, 3, 6])
    formula = VoteWorkload(multiway, reached)._traces_of_paths()
    explicit = VoteWorkload(binary, reached)._traces_of_rows()
    for mask, trace in explicit.items():
        assert formula.get(mask, 0.0) == pytest.approx(trace, abs=1e-9)


def test_leaf_votes_merge_leaves_that_the_same_queries_reach() -> None:
    workload = LeafVoteWorkload(6, [[0, 3], [0, 3], [1, 4]])
    assert workload.maps[0].tolist() == [0, 1, -1, 0, 1, -1]
    np.testing.assert_array_equal(workload.to_dense(merged=True), [[1, 0], [1, 0], [0, 1]])
