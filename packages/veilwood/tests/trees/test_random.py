# SPDX-License-Identifier: Apache-2.0
"""How trees grow: from public facts alone, repeatably, with no branch that no row can take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from veilwood.data.encoding import EncodedColumn
from veilwood.errors import DomainTooLargeError, ParameterError
from veilwood.trees.counting import route_rows
from veilwood.trees.forest import LEAF, Forest
from veilwood.trees.random import grow_binary, grow_multiway, public_generators
from veilwood_testing.errors import rejects
from veilwood_testing.forest_structures import SMALL_COLUMNS


def branches(forest: Forest, node: int, n_codes: list[int]) -> dict[int, set[int]]:
    """Which codes of its column a node sends to each child."""
    feature, cut = int(forest.feature[node]), int(forest.cut[node])
    out: dict[int, set[int]] = {}
    for code in range(n_codes[feature]):
        branch = int(forest.lookup[-1 - cut + code]) if cut < 0 else int(code >= cut)
        out.setdefault(int(forest.child[node]) + branch, set()).add(code)
    return out


def walk(forest: Forest, columns: list[EncodedColumn]) -> dict[int, tuple[int, int, list[set[int]]]]:
    """For each node that a row can reach: its parent, its depth, and the codes its path leaves of every column."""
    n_codes = [column.n_codes for column in columns]
    reached: dict[int, tuple[int, int, list[set[int]]]] = {}
    waiting = [(int(root), -1, 0, [set(range(n)) for n in n_codes]) for root in forest.roots]
    while waiting:
        node, parent, depth, left = waiting.pop()
        assert node not in reached, "two ways lead to one node"
        reached[node] = parent, depth, left
        if forest.feature[node] == LEAF:
            continue
        feature = int(forest.feature[node])
        for child, codes in branches(forest, node, n_codes).items():
            remaining = [set(codes_left) for codes_left in left]
            remaining[feature] &= codes
            waiting.append((child, node, depth + 1, remaining))
    return reached


def tree(forest: Forest, number: int) -> list[Any]:
    """The arrays of one tree with numbers of its own."""
    ends = [*forest.roots.tolist(), forest.n_nodes]
    here = slice(ends[number], ends[number + 1])
    leaf = forest.feature[here] == LEAF
    child = forest.child[here] - np.where(leaf, forest.tree_leaves[number], ends[number])
    cut = forest.cut[here]
    lookups = [forest.lookup[-1 - c : -1 - c + 2].tolist() for c in cut[cut < 0]]
    return [forest.feature[here].tolist(), cut[cut >= 0].tolist(), child.tolist(), lookups]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("depth", [1, 3, 12])
def test_binary_trees_split_what_is_left(seed: int, depth: int) -> None:
    forest = grow_binary(SMALL_COLUMNS, 8, depth, random_state=seed)
    reached = walk(forest, SMALL_COLUMNS)
    assert sorted(reached) == list(range(forest.n_nodes))  # every node can be reached
    for node, (_, level, left) in reached.items():
        assert all(left)  # something is left of every column: no branch is empty
        if forest.feature[node] == LEAF:
            # A leaf above the full depth has nothing left to split.
            assert level == depth or all(len(codes) == 1 for codes in left)
            continue
        feature, cut = int(forest.feature[node]), int(forest.cut[node])
        assert level < depth
        assert len(left[feature]) > 1  # a column narrowed to one value is not drawn
        if SMALL_COLUMNS[feature].ordered:
            assert min(left[feature]) < cut <= max(left[feature])  # inside what the path leaves
        else:
            assert cut < 0


def test_binary_trees_are_complete_while_there_is_something_to_split() -> None:
    wide = [EncodedColumn("number", ordered=True, n_codes=65535, missing_code=None)] * 3
    forest = grow_binary(wide, 4, 6, random_state=0)
    assert np.diff(forest.tree_leaves).tolist() == [64] * 4
    assert forest.depth == 6
    small = grow_binary(SMALL_COLUMNS[4:], 2, 10, random_state=0)
    assert small.n_leaves == 4  # a coin is split once
    assert small.depth == 1


def literal_tree(depth: int, rng: np.random.Generator) -> list[tuple[int, float]]:
    """Algorithm 1 of Bojarski et al., line by line, in [0, 1]^2: a heap of (attribute, threshold), complete."""
    return [(int(rng.integers(2)), float(rng.random())) for _ in range(2**depth - 1)]


def literal_leaf(tree: list[tuple[int, float]], x: np.ndarray[Any, Any]) -> int:
    node = 0
    while node < len(tree):
        attribute, threshold = tree[node]
        node = 2 * node + (1 if x[attribute] < threshold else 2)
    return node - len(tree)


@pytest.mark.slow
def test_thresholds_from_the_range_are_the_algorithm_as_printed() -> None:
    """Points share a leaf as often as in a transcription of the paper; cuts inside a path part them more often."""
    depth, n_trees, levels = 6, 4000, 1 << 12
    number = [EncodedColumn(name, ordered=True, n_codes=levels, missing_code=None) for name in ("x", "y")]
    points = np.array([[0.50, 0.50], [0.53, 0.50], [0.6, 0.45], [0.2, 0.7]])
    codes = (points * levels).astype(np.uint16)
    rng = np.random.default_rng(0)
    literal = np.array(
        [[literal_leaf(tree, x) for x in points] for tree in (literal_tree(depth, rng) for _ in range(n_trees))]
    )

    def together(thresholds: Any) -> np.ndarray[Any, Any]:
        reached = route_rows(grow_binary(number, n_trees, depth, 0, thresholds=thresholds), codes)
        return np.asarray((reached[1:] == reached[0]).mean(axis=1))

    wanted = (literal[:, 1:] == literal[:, :1]).mean(axis=0)
    error = 5.5 * np.sqrt(2 * 0.25 / n_trees)  # five and a half standard errors of a difference
    assert np.abs(together("range") - wanted).max() < error
    assert np.abs(together("path") - wanted).max() > 2 * error


def test_thresholds_from_the_range_ignore_the_path() -> None:
    forest = grow_binary(SMALL_COLUMNS, 300, 5, random_state=0, thresholds="range")
    assert np.diff(forest.tree_leaves).tolist() == [32] * 300  # complete, though a coin is exhausted by one split
    deep = np.flatnonzero((forest.level == 4) & (forest.feature != LEAF))
    assert stats.chisquare(np.bincount(forest.feature[deep], minlength=5)).pvalue > 1e-6
    cuts = forest.cut[deep][forest.feature[deep] == 0]
    assert stats.chisquare(np.bincount(cuts, minlength=6)[1:]).pvalue > 1e-6
    same = grow_binary(SMALL_COLUMNS, 300, 1, random_state=0, thresholds="range")
    assert same.fingerprint() == grow_binary(SMALL_COLUMNS, 300, 1, random_state=0).fingerprint()  # a root has it all


@pytest.mark.parametrize("seed", range(3))
def test_multiway_trees_use_a_column_once_and_have_a_branch_for_each_value(seed: int) -> None:
    forest = grow_multiway(SMALL_COLUMNS, 6, 3, random_state=seed)
    n_codes = [column.n_codes for column in SMALL_COLUMNS]
    reached = walk(forest, SMALL_COLUMNS)
    assert sorted(reached) == list(range(forest.n_nodes))
    for node, (_, level, left) in reached.items():
        feature = int(forest.feature[node])
        assert (feature == LEAF) == (level == 3)
        if feature != LEAF:
            assert len(left[feature]) == n_codes[feature]
            assert sorted(map(len, branches(forest, node, n_codes).values())) == [1] * n_codes[feature]


@pytest.mark.parametrize("grow", [grow_binary, grow_multiway])
def test_parent_level_and_leaf_numbers_agree_with_a_walk(grow: Any) -> None:
    forest = grow(SMALL_COLUMNS, 5, 4, random_state=1)
    reached = walk(forest, SMALL_COLUMNS)
    for node, (parent, level, _) in reached.items():
        assert forest.parent[node] == parent
        assert forest.level[node] == level
    assert forest.depth == max(level for _, level, _ in reached.values())
    assert (forest.feature[forest.leaf_node] == LEAF).all()
    assert forest.child[forest.leaf_node].tolist() == list(range(forest.n_leaves))
    of_tree = np.searchsorted(forest.roots, forest.leaf_node, side="right") - 1
    assert of_tree.tolist() == np.repeat(np.arange(5), np.diff(forest.tree_leaves)).tolist()
    assert forest.n_leaves == len(forest.leaf_node) == (forest.feature == LEAF).sum()
    for name, array in forest.to_arrays().items():
        assert array.dtype == (np.uint16 if name == "lookup" else np.int32)


@pytest.mark.parametrize("grow", [grow_binary, grow_multiway])
def test_growth_repeats_and_more_trees_change_none(grow: Any) -> None:
    one, again, other = grow(SMALL_COLUMNS, 3, 4, 7), grow(SMALL_COLUMNS, 3, 4, 7), grow(SMALL_COLUMNS, 3, 4, 8)
    for name in one.to_arrays():
        assert (one.to_arrays()[name] == again.to_arrays()[name]).all()
    assert tree(one, 0) != tree(other, 0)
    more = grow(SMALL_COLUMNS, 10, 4, 7)
    assert all(tree(one, number) == tree(more, number) for number in range(3))
    assert len({str(tree(more, number)) for number in range(10)}) == 10


def test_random_states() -> None:
    def words(state: object) -> list[int]:
        return [int(rng.integers(2**62)) for rng in public_generators(state, 2)]

    assert words(3) == words(np.int64(3)) != words(4)
    assert words(np.random.RandomState(3)) == words(np.random.RandomState(3))
    assert words(np.random.default_rng(3)) == words(np.random.default_rng(3))
    assert words(None) != words(None)
    for wrong in (-1, 1.5, "seed", True):
        with rejects(ParameterError, name="random_state"):
            public_generators(wrong, 1)


def test_attributes_and_cuts_are_uniform() -> None:
    forest = grow_binary(SMALL_COLUMNS, 2500, 1, random_state=0)
    root = forest.feature[forest.roots]
    assert stats.chisquare(np.bincount(root, minlength=5)).pvalue > 1e-6
    cuts = forest.cut[forest.roots][root == 0]
    assert stats.chisquare(np.bincount(cuts, minlength=6)[1:]).pvalue > 1e-6
    # A split that sets missing values apart is drawn in a quarter of the cases.
    apart = (forest.cut[forest.roots][root == 1] == 3).mean()
    assert abs(apart - 0.25) < 0.1


def test_every_category_split_is_drawn() -> None:
    category = [EncodedColumn("category", ordered=False, n_codes=3, missing_code=None)]
    forest = grow_binary(category, 1500, 1, random_state=0)
    starts = -1 - forest.cut[forest.roots]
    drawn = np.array([int("".join(map(str, forest.lookup[start : start + 3])), 2) for start in starts])
    assert set(drawn) == set(range(1, 7))  # not all left, not all right
    assert stats.chisquare(np.bincount(drawn, minlength=7)[1:]).pvalue > 1e-6


@pytest.mark.parametrize(
    ("n_trees", "depth"),
    [(1, 65), (10**6, 20), (1, 10**9), (2**40, 1), (1, np.int64(64))],
    ids=["deep", "both", "absurd", "many", "overflow"],
)
def test_absurd_sizes_are_refused_at_once(n_trees: Any, depth: Any) -> None:
    with pytest.raises(DomainTooLargeError, match="max_depth"):
        grow_binary(SMALL_COLUMNS, n_trees, depth, 0)


def test_absurd_multiway_trees_are_refused() -> None:
    wide = [EncodedColumn(str(i), ordered=False, n_codes=1000, missing_code=None) for i in range(5)]
    with pytest.raises(DomainTooLargeError):
        grow_multiway(wide, 1, 5, 0)
    with rejects(ParameterError, name="max_depth"):
        grow_multiway(SMALL_COLUMNS, 1, 6, 0)


@pytest.mark.parametrize(("n_trees", "depth"), [(0, 1), (-1, 1), (1.5, 1), ("3", 1), (True, 1), (1, 0), (1, None)])
def test_sizes_are_whole_numbers(n_trees: Any, depth: Any) -> None:
    with rejects(ParameterError, raised_in="check_counts"):
        grow_binary(SMALL_COLUMNS, n_trees, depth, 0)
