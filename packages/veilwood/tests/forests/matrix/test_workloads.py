# SPDX-License-Identifier: Apache-2.0
"""Workloads against explicit matrices on small domains."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from veilwood.errors import DomainTooLargeError, OutOfSchemaError, VeilwoodError
from veilwood.forests.matrix import workloads
from veilwood.forests.matrix.workloads import LeafVoteWorkload, PathWorkload, VoteWorkload
from veilwood_testing.errors import rejects
from veilwood_testing.matrix_forests import WORKLOAD_KINDS, random_paths, reached_by, small_workloads


def residual_projector(shape: Sequence[int], mask: int) -> NDArray[np.float64]:
    """Explicit projector on the residual space of a set of features."""
    total: NDArray[np.float64] = np.ones((1, 1))
    for i, size in enumerate(shape):
        mean = np.full((size, size), 1 / size)
        total = np.kron(total, np.eye(size) - mean if mask >> i & 1 else mean)
    return total


def test_tennis_example_of_the_paper() -> None:
    # Examples 1 to 3: outlook in {sunny, overcast, rainy}, windy in {false, true}; cells in the order
    # (sunny, false), (sunny, true), ..., (rainy, true). One tree on outlook, one on windy.
    paths = PathWorkload.from_leaves((3, 2), [[0], [0], [0], [1], [1]], [[0], [1], [2], [0], [1]])
    T = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1], [1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1]])
    np.testing.assert_array_equal(paths.to_dense(), T)

    queries = [1, 2, 5]  # the first is (sunny, true)
    Q = np.eye(6)[queries]
    reached = reached_by(paths, queries)
    np.testing.assert_array_equal(LeafVoteWorkload(5, reached).to_dense(), Q @ T.T)
    np.testing.assert_array_equal(Q @ T.T, [[1, 0, 0, 0, 1], [0, 1, 0, 1, 0], [0, 0, 1, 0, 1]])
    votes = VoteWorkload(paths, reached)
    np.testing.assert_array_equal(votes.to_dense(), Q @ T.T @ T)
    np.testing.assert_array_equal(votes.to_dense()[0], [1, 2, 0, 1, 0, 1])

    D = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [0, 1], [1, 0]])
    np.testing.assert_array_equal(paths.answer_cells(D.reshape(3, 2, 2)), T @ D)
    np.testing.assert_array_equal(votes.answer_cells(D.reshape(3, 2, 2)), Q @ T.T @ T @ D)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", WORKLOAD_KINDS)
def test_traces_match_explicit_projectors(kind: str, seed: int) -> None:
    workload = small_workloads(seed)[kind]
    W = workload.to_dense(merged=True)
    traces = workload.residual_traces
    for mask in range(1 << len(workload.shape)):
        expected = np.trace(W @ residual_projector(workload.shape, mask) @ W.T)
        assert traces.get(mask, 0.0) == pytest.approx(expected, abs=1e-9 * (W**2).sum())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", WORKLOAD_KINDS)
def test_merging_loses_nothing(kind: str, seed: int) -> None:
    workload = small_workloads(seed)[kind]
    merging: NDArray[np.float64] = np.ones((1, 1))
    for to, size in zip(workload.maps, workload.shape, strict=True):
        merging = np.kron(merging, (np.arange(size)[:, None] == to).astype(float))
    np.testing.assert_array_equal(workload.to_dense(merged=True) @ merging, workload.to_dense())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", WORKLOAD_KINDS)
def test_answers_and_gram_match_the_explicit_matrix(kind: str, seed: int) -> None:
    workload = small_workloads(seed)[kind]
    W = workload.to_dense(merged=True)
    cells = np.random.default_rng(seed).integers(0, 9, size=(*workload.shape, 3)).astype(float)
    np.testing.assert_allclose(workload.answer_cells(cells), W @ cells.reshape(-1, 3), atol=1e-9)
    np.testing.assert_allclose(workload.gram_matrix(), W.T @ W, atol=1e-9)


def test_binary_leaves_that_cut_nothing_apart_are_merged() -> None:
    masks = [[1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1]]
    workload = PathWorkload.from_masks((4, 2), masks)
    assert workload.shape == (2, 1)
    assert [to.tolist() for to in workload.maps] == [[0, 0, 1, 1], [0, 0]]


def test_identity_error_is_trees_times_cells() -> None:
    # M-RF with the identity: sum over leaves of the cells they hold is (trees) x (domain size), whatever the depth.
    sizes = (4, 4, 4, 3, 3, 3)
    for depth in (1, 2, 4):
        paths = PathWorkload.from_leaves(
            sizes, *random_paths(sizes, depth, 32, np.random.default_rng(depth)), merge=False
        )
        assert sum(paths.residual_traces.values()) == pytest.approx(32 * 1728)


def test_wide_domains_need_no_matrix() -> None:
    sizes = (4,) * 30
    paths = PathWorkload.from_leaves(sizes, *random_paths(sizes, 3, 8, np.random.default_rng(0)))
    assert sum(paths.residual_traces.values()) == pytest.approx(8.0 * math.prod(paths.shape))
    with rejects(DomainTooLargeError, raised_in="Workload.to_dense"):
        paths.to_dense()
    with rejects(DomainTooLargeError, raised_in="Workload.gram_matrix"):
        paths.gram_matrix()


def test_a_tree_without_splits_counts_everything() -> None:
    paths = PathWorkload.from_leaves((2, 3), np.full((1, 2), -1), np.full((1, 2), -1), merge=False)
    assert paths.residual_traces == {0: 6.0}
    np.testing.assert_array_equal(paths.answer_cells(np.ones((2, 3, 1))), [[6.0]])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: PathWorkload.from_leaves((2, 2), [[2]], [[0]]), OutOfSchemaError),
        (lambda: PathWorkload.from_leaves((2, 2), [[0]], [[2]]), OutOfSchemaError),
        (lambda: PathWorkload.from_leaves((2, 2), [[0, 0]], [[0, 1]]), VeilwoodError),
        (lambda: PathWorkload.from_leaves((2, 0), [[0]], [[0]]), VeilwoodError),
        (lambda: PathWorkload.from_leaves((2,) * 63, [[0]], [[0]]), DomainTooLargeError),
        (lambda: PathWorkload.from_masks((2, 2), [[1, 0, 1]]), VeilwoodError),
        (lambda: LeafVoteWorkload(3, [[3]]), OutOfSchemaError),
        (lambda: LeafVoteWorkload(3, [[1, 1]]), VeilwoodError),
        (lambda: LeafVoteWorkload(3, np.zeros((0, 2), int)), VeilwoodError),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_every_cell_reaches_one_leaf_of_every_tree() -> None:
    sizes = (2, 3, 2)
    features, values = random_paths(sizes, 2, 5, np.random.default_rng(1))
    T = PathWorkload.from_leaves(sizes, features, values).to_dense()
    for cell, codes in enumerate(product(*map(range, sizes))):
        inside = [all(codes[f] == v for f, v in zip(*leaf, strict=True)) for leaf in zip(features, values, strict=True)]
        np.testing.assert_array_equal(T[:, cell], inside)
    np.testing.assert_array_equal(T.sum(axis=0), 5)


def test_examples() -> None:
    assert doctest.testmod(workloads).failed == 0


def test_votes_of_binary_trees_match_votes_of_equal_multiway_trees() -> None:
    sizes = (2, 2, 2)
    features, values = random_paths(sizes, 2, 3, np.random.default_rng(0))
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
