# SPDX-License-Identifier: Apache-2.0
"""Theorems on random and median trees: hand-worked values, replayed proofs, misprints, bounds."""

from __future__ import annotations

import doctest
import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import veilwood as vw
from veilwood.errors import UseError, VeilwoodError
from veilwood.privacy.selection import ExponentialMechanism
from veilwood_papers import theory
from veilwood_papers.theory import (
    Bound,
    Setting,
    balanced_split_probability,
    best_n_trees,
    bound_at_best,
    bound_from_accuracy,
    bound_from_fraction,
    flip_loss,
    forest_quantities,
    imbalance_of_median,
    imbalance_of_random,
    mean_goodness,
    mean_weight,
    regression_excess,
    trees_needed,
)
from veilwood_testing.errors import rejects

accuracies = st.floats(0.5, 1)


slacks = st.floats(0.01, 0.49)


@st.composite
def forests(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """A few rows dropped at random into a few trees with four leaves each."""
    n_rows, n_trees = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    leaf = rng.integers(0, 4, (n_rows, n_trees)) + 4 * np.arange(n_trees)
    return leaf, rng.integers(0, 2, n_rows), 4 * n_trees


def test_doctests_run() -> None:
    result = doctest.testmod(theory)
    assert result.attempted > 15
    assert result.failed == 0


# ---------------------------------------------------------------- quantities


def test_quantities_by_hand() -> None:
    # Labels 1 1 0 0 0. Tree A: leaf 0 = {1, 1, 0}, leaf 1 = {0, 0}. Tree B: leaf 2 = {1, 0}, leaf 3 = {1, 0, 0}.
    leaf = np.array([[0, 2], [0, 3], [0, 2], [1, 3], [1, 3]])
    labels = np.array([1, 1, 0, 0, 0])
    q = forest_quantities(leaf, labels, 4)
    # Weights in A: 2/3 2/3 1/3 1 1; in B: 1/2 1/3 1/2 2/3 2/3. Their means:
    np.testing.assert_allclose(q.weight, [7 / 12, 1 / 2, 5 / 12, 5 / 6, 5 / 6])
    # Right in A: 1 1 0 1 1. In B leaf 2 is a tie, so labelled 1: row 0 right, row 2 wrong; leaf 3 is 0: 1 0 0 1 1.
    assert q.goodness.tolist() == [1, 0.5, 0, 1, 1]
    assert q.tree_accuracy == 0.7  # (4 + 3) / 10
    # At margin 0.2 a weight must reach 0.7: only the two 1s in A are left.
    assert forest_quantities(leaf, labels, 4, margin=0.2).tree_accuracy == 0.2
    # Leaves of fewer than 3 rows count as 0: leaf 1 for rows 3 and 4, leaf 2 for rows 0 and 2.
    kept = forest_quantities(leaf, labels, 4, smallest_leaf=3)
    np.testing.assert_allclose(kept.weight, [1 / 3, 1 / 2, 1 / 6, 1 / 3, 1 / 3])
    assert kept.goodness.tolist() == [0.5, 0.5, 0, 0.5, 0.5]
    assert kept.tree_accuracy == 0.7


def test_weight_on_the_margin_counts_for_either_label() -> None:
    # Both leaves are split 3 : 1, so the majority weight is 3/4 exactly.
    leaf = np.repeat([[0], [1]], 4, axis=0)
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    assert forest_quantities(leaf, labels, 2, margin=0.25).tree_accuracy == 0.75


@given(forests())
def test_quantities_match_a_naive_loop(forest: tuple[np.ndarray, np.ndarray, int]) -> None:
    leaf, labels, n_leaves = forest
    q = forest_quantities(leaf, labels, n_leaves)
    for d in range(len(leaf)):
        weights, rights = [], []
        for t in range(leaf.shape[1]):
            mates = labels[leaf[:, t] == leaf[d, t]]
            weights.append(np.mean(mates == labels[d]))
            rights.append(int(2 * mates.sum() >= len(mates)) == labels[d])
        assert q.weight[d] == pytest.approx(np.mean(weights))
        assert q.goodness[d] == pytest.approx(np.mean(rights))


@given(forests())
def test_theorems_5_1_and_5_2_hold_on_any_forest(forest: tuple[np.ndarray, np.ndarray, int]) -> None:
    q = forest_quantities(*forest)
    assert q.goodness.mean() == pytest.approx(mean_goodness(q.tree_accuracy))
    assert q.weight.mean() >= mean_weight(q.tree_accuracy) - 1e-12


@given(forests(), slacks, st.floats(2.1, 10))
def test_share_is_never_worse_than_accuracy_on_any_forest(
    forest: tuple[np.ndarray, np.ndarray, int], slack: float, truncation: float
) -> None:
    """The Markov step of 5.4 and 5.6: rows below the threshold are at most the error from accuracy alone."""
    leaf, labels, n_leaves = forest
    cases: Iterable[Any] = itertools.product(("majority", "threshold"), (None, 1), ("training", "new"))
    for voting, epsilon, rows in cases:
        setting = Setting(voting, len(leaf), 2, 5, epsilon, rows, slack, truncation)
        q = forest_quantities(leaf, labels, n_leaves, margin=setting.margin, smallest_leaf=setting.smallest_leaf)
        value = q.goodness if voting == "majority" else q.weight
        from_share = bound_from_fraction(float(np.mean(value >= setting.threshold)), setting)
        assert from_share.error <= bound_from_accuracy(q.tree_accuracy, setting).error + 1e-9


@pytest.mark.parametrize(
    ("leaf", "labels", "n_leaves", "name"),
    [
        ([0, 1], [0, 1], 2, "leaf_of_row"),
        ([[0], [1]], [0], 2, "labels"),
        ([[0], [1]], [0, 2], 2, "labels"),
        ([[0], [2]], [0, 1], 2, "n_leaves"),
        ([[-1], [0]], [0, 1], 2, "n_leaves"),
        ([[0, 1], [1, 0]], [0, 1], 2, "leaf_of_row"),  # leaf numbers restarted in the second tree
    ],
)
def test_bad_forests_are_refused(leaf: list[Any], labels: list[int], n_leaves: int, name: str) -> None:
    with pytest.raises(VeilwoodError, match=name):
        forest_quantities(np.array(leaf), np.array(labels), n_leaves)


# ---------------------------------------------------------------- theorems without noise


def test_theorem_5_2_by_hand() -> None:
    assert mean_weight(0.75) == 0.625  # 9/16 + 1/16
    assert mean_weight(0.5) == 0.5


def test_theorem_5_3_by_hand() -> None:
    # n = 1000, delta = 0.25, C = 1: k = 2 ln(1000) / (2 * 0.0625) = 13.8155 / 0.125 = 110.52.
    assert trees_needed(1000, 0.25) == 111
    # New rows: delta/2 = 0.125, so four times as many: 442.09.
    assert trees_needed(1000, 0.25, rows="new") == 443
    setting = Setting("threshold", n_rows=1000, depth=3, n_trees=111, slack=0.25)
    bound = bound_from_fraction(0.9, setting)
    # Fails with probability 1000 exp(-2 * 111 * 0.0625) = 1000 exp(-13.875) = 9.4227e-4, below 1/n.
    assert bound.probability == pytest.approx(1 - 1000 * math.exp(-13.875))
    assert bound.probability >= 1 - 1e-3
    assert bound.error == pytest.approx(0.1)
    assert (bound.theorem, bound.n_trees, bound.is_vacuous) == ("5.3", 111, False)
    assert setting.threshold == 0.75
    assert setting.smallest_leaf == 0


def test_new_rows_by_hand() -> None:
    # n = 10^9, h = 1, delta = 0.2, K = 10: phi = 0.2 / (2 * 4.2 * 2 * 10) = 1/840.
    # 2^(1+3) * 5000 * exp(-2 * 10^9 / 840^2) = 80000 * exp(-2834) = 0; trees: 10^9 exp(-2 * 5000 * 0.01) = 0.
    setting = Setting("threshold", 10**9, depth=1, n_trees=5000, rows="new", slack=0.2, truncation=10)
    assert bound_from_fraction(0.9, setting).probability == pytest.approx(1)
    # n = 10^6: 80000 * exp(-2 * 10^6 / 705600) = 80000 * exp(-2.83447) = 4700.
    smaller = replace(setting, n_rows=10**6)
    assert smaller.probability == pytest.approx(1 - 80000 * math.exp(-2e6 / 705600), rel=1e-9)
    assert bound_from_fraction(0.9, smaller).is_vacuous
    assert setting.threshold == pytest.approx(0.7)  # 1/2 + 0.2
    assert smaller.smallest_leaf == pytest.approx(50_000)  # n / (K 2^h)
    assert setting.margin == 0
    assert replace(setting, voting="majority").margin == pytest.approx(0.1)  # delta / 2


def test_theorem_5_4_by_hand() -> None:
    majority = Setting("majority", 10_000, depth=3, n_trees=922, slack=0.1)
    threshold = replace(majority, voting="threshold")
    assert bound_from_accuracy(0.9, majority).error == pytest.approx(0.25)  # 0.1 / 0.4
    assert bound_from_accuracy(0.9, threshold).error == pytest.approx(0.45)  # 0.18 / 0.4
    # New rows, K = 40: 0.125 / 0.4, and (0.25 - 0.03125) / 0.4.
    assert bound_from_accuracy(0.9, replace(majority, rows="new")).error == pytest.approx(0.3125)
    assert bound_from_accuracy(0.9, replace(threshold, rows="new")).error == pytest.approx(0.546875)


def test_theorem_5_5_uses_c_where_the_paper_prints_the_tree_error() -> None:
    # n = 100, c = 0.1: 2 n c^2 = 2. Trees: 100 exp(-2 * 2000 * 0.04) = 0 to fifteen digits.
    setting = Setting("probabilistic", 100, depth=2, n_trees=2000, slack=0.2, coin_slack=0.1)
    bound = bound_from_accuracy(0.75, setting)
    assert bound.error == pytest.approx(0.675)  # 2/4 - 2/16 + 0.2 + 0.1
    assert bound.probability == pytest.approx(1 - math.exp(-2))
    printed = 1 - math.exp(-2 * 100 * 0.25**2)  # exp(-12.5): far too sure of itself
    assert bound.probability < printed - 0.1
    # A good forest must not make the coins look worse: with the printed formula it would.
    assert bound_from_accuracy(0.99, setting).probability == bound.probability


# ---------------------------------------------------------------- theorems with noise


def test_theorem_5_6_by_hand() -> None:
    # h = 1, K = 10, delta = 0.2: lambda = 0.2 / (24 * 10 * 2) = 1/2400.
    # n = 24 * 10^6, eta = 1, k = 1000: tree term exp(-1000 * 0.04 / 2) = exp(-20); noise exp(-10000 / 1000).
    setting = Setting("threshold", 24 * 10**6, depth=1, n_trees=1000, epsilon=1, slack=0.2, truncation=10)
    expected = 1 - 24e6 * (math.exp(-20) + 2000 * math.exp(-10))
    assert setting.probability == pytest.approx(expected, rel=1e-12)
    assert setting.smallest_leaf == pytest.approx(1.2e6)  # n / (K 2^h)
    # x = 0.01 + 0.1: (0.22 - 0.0242) / (0.5 - 0.2); majority 0.11 / 0.3.
    assert bound_from_accuracy(0.99, setting).error == pytest.approx(0.1958 / 0.3)
    assert bound_from_accuracy(0.99, replace(setting, voting="majority")).error == pytest.approx(0.11 / 0.3)
    # New rows: 2/K, x = 0.01 + 0.2: (0.42 - 0.0882) / 0.3 > 1; and delta/2 = 0.1 in the two exponents.
    new = replace(setting, rows="new")
    assert new.smallest_leaf == pytest.approx(2.4e6)
    assert bound_from_accuracy(0.99, new).error == pytest.approx(0.3318 / 0.3)
    assert replace(new, voting="majority").margin == pytest.approx(0.1 + 0.1 / 23)
    trees_and_noise = 24e6 * (math.exp(-5) + 2000 * math.exp(-5))
    counts = 16 * 1000 * math.exp(-2 * 24e6 / 840**2)  # phi = 1/840 as above
    assert new.probability == pytest.approx(1 - trees_and_noise - counts, rel=1e-12)


def test_theorem_5_8_by_hand() -> None:
    # As in 5.6 above with c = 0.001: coins 1 - exp(-2 * 24 * 10^6 * 10^-6) = 1 - exp(-48).
    setting = Setting("probabilistic", 24 * 10**6, 1, 1000, 1, "training", 0.2, 10, coin_slack=0.001)
    trees_and_noise = 24e6 * (math.exp(-20) + 2000 * math.exp(-10))
    assert setting.probability == pytest.approx((1 - trees_and_noise) * (1 - math.exp(-48)), rel=1e-12)
    bound = bound_from_accuracy(0.99, setting)
    assert bound.theorem == "5.8"
    assert bound.error == pytest.approx(0.1958 + 0.2 + 0.001)


def test_private_bound_can_be_non_vacuous() -> None:
    """With n in the exponent (not its root) Theorem 5.6 says something from about 10^10 rows on."""
    bound = bound_from_accuracy(0.95, Setting("threshold", 10**10, depth=1, n_trees=6000, epsilon=1))
    assert not bound.is_vacuous
    assert bound.probability > 0.999


@given(st.integers(1, 40), st.floats(0.001, 0.99), st.floats(0, 1), st.floats(-1, 1), st.floats(-1, 1))
def test_noise_within_lambda_n_moves_the_ratio_less_than_the_margin(
    size: int, delta: float, ones: float, first: float, second: float
) -> None:
    """The step that replaces inequality (5): noises up to (delta/24) n_a move the ratio by less than delta/2."""
    total = float(size)
    true, g1, g2 = ones * total, first * delta / 24 * total, second * delta / 24 * total
    moved = abs((true + g1) / (total + g1 + g2) - true / total)
    assert moved <= delta / 24 / (1 - delta / 12) + 1e-12
    assert moved < delta / 2
    if delta < 0.5:
        assert moved < delta / 23  # what Setting.margin relies on


def test_theorem_5_7_repaired_against_printed() -> None:
    for tree_error in (0.0, 0.05, 0.1, 0.2, 0.25):
        bound = bound_at_best(1 - tree_error, voting="threshold", n_rows=1000, depth=3, epsilon=1)
        # (2x - 2x^2) / 0.4 at x = epsilon + 1/40: 0.04875 / 0.4 = 0.121875; 1.9 / 0.4 = 4.75; 2 / 0.4 = 5.
        assert bound.error == pytest.approx(0.121875 + 4.75 * tree_error - 5 * tree_error**2)
    printed = 1 / 8 + 9 / 2 * 0.2 - 5 * 0.2**2
    repaired = bound_at_best(0.8, voting="threshold", n_rows=1000, depth=3, epsilon=1).error
    assert repaired == pytest.approx(0.871875)
    assert repaired > printed  # 0.825: the paper promises more than it proves


def test_theorem_5_9_repaired_against_printed() -> None:
    n = 10**21
    for tree_error in (0.0, 0.1, 0.25):
        bound = bound_at_best(1 - tree_error, voting="probabilistic", n_rows=n, depth=1, epsilon=1)
        assert bound.error == pytest.approx(0.19875 + 1.9 * tree_error - 2 * tree_error**2)
        assert bound.error <= 1 / 5 + 19 / 10 * tree_error - 2 * tree_error**2
    # The bracket: at n = 100 the coins alone fail with probability exp(-1/2).
    small = bound_at_best(0.9, voting="probabilistic", n_rows=100, depth=1, epsilon=1)
    trees = bound_at_best(0.9, voting="threshold", n_rows=100, depth=1, epsilon=1).probability
    assert small.probability == pytest.approx(trees * (1 - math.exp(-0.5)))


@pytest.mark.parametrize("voting", ["threshold", "probabilistic"])
@pytest.mark.parametrize("n_rows", [10**20, 10**21, 10**23])
def test_5_7_and_5_9_never_beat_the_theorems_they_specialise(voting: theory.Voting, n_rows: int) -> None:
    best = bound_at_best(0.9, voting=voting, n_rows=n_rows, depth=1, epsilon=1)
    setting = Setting(voting, n_rows, depth=1, n_trees=best.n_trees, epsilon=1)
    general = bound_from_accuracy(0.9, setting)
    assert general.probability >= best.probability
    assert general.error == pytest.approx(best.error)


# ---------------------------------------------------------------- claims of the paper that fail


def test_writing_off_small_leaves_costs_more_than_the_paper_says() -> None:
    # 32 leaves, n = 1280, K = 4: a leaf is small below 1280 / (4 * 32) = 10 rows.
    # 31 pure leaves of 9 rows are written off; one leaf has 527 + 474 = 1001 rows.
    leaf = np.concatenate([np.repeat(np.arange(31), 9), np.full(1001, 31)])[:, None]
    labels = np.concatenate([np.ones(279), np.ones(527), np.zeros(474)]).astype(int)
    q = forest_quantities(leaf, labels, 32)
    lost = 1 - np.where(leaf[:, 0] == 31, q.weight, 0).mean()
    x = (1 - q.tree_accuracy) + 1 / 4
    assert lost > 2 * x - 2 * x**2 + 0.1  # 0.608 against 0.471
    assert lost <= theory._lost_weight(1 - q.tree_accuracy, 1 / 4)


@given(forests(), st.floats(2.1, 10))
def test_lost_weight_covers_every_small_forest(forest: tuple[np.ndarray, np.ndarray, int], truncation: float) -> None:
    leaf, labels, n_leaves = forest
    q = forest_quantities(leaf, labels, n_leaves)
    sizes = np.bincount(leaf.ravel(), minlength=n_leaves)
    kept = sizes[leaf] >= len(leaf) / (truncation * 4)
    one_tree = [forest_quantities(leaf[:, [t]], labels, n_leaves).weight for t in range(leaf.shape[1])]
    lost = 1 - (np.stack(one_tree, axis=1) * kept).mean()
    assert lost <= theory._lost_weight(1 - q.tree_accuracy, 1 / truncation) + 1e-12


@given(accuracies, st.floats(0, 0.95))
def test_lost_weight_is_sane(accuracy: float, off: float) -> None:
    lost = theory._lost_weight(1 - accuracy, off)
    assert 1 - mean_weight(accuracy) - 1e-12 <= lost <= 1
    assert theory._lost_weight(1 - accuracy, 0) == pytest.approx(1 - mean_weight(accuracy))
    assert theory._lost_weight(1 - accuracy, off + 0.01) >= lost - 1e-12


def test_theorem_5_6_as_printed_forgets_outliers() -> None:
    """One row alone in its leaf in every tree: weight 1, yet noise of any size decides its label."""
    setting = Setting("threshold", n_rows=10**10, depth=1, n_trees=6000, epsilon=1)
    assert setting.probability > 0.999
    leaf, labels = np.array([[0]] * 999 + [[1]]), np.array([1] * 999 + [0])
    printed = forest_quantities(leaf, labels, 2)
    assert (printed.weight >= setting.threshold + 1 / 40).all()  # so the printed error is 0
    # The same data at n = 1000: a leaf is small below 1000 / (40 * 2) = 12.5 rows.
    small = replace(setting, n_rows=1000).smallest_leaf
    assert small == 12.5
    repaired = forest_quantities(leaf, labels, 2, smallest_leaf=small)
    share = float(np.mean(repaired.weight >= setting.threshold))
    assert bound_from_fraction(share, setting).error == pytest.approx(0.001)
    # From accuracy alone the printed 5.6 says 0 too; the proof's form leaves room for the rows written off.
    assert bound_from_accuracy(printed.tree_accuracy, setting).error == pytest.approx(0.121875)


def test_majority_bound_without_the_margin_is_false() -> None:
    """Identical rows, m + 1 of label 1 and m of label 0, under noise of scale k / epsilon.

    At margin 0 every tree is right on the 1s, so Theorem 5.6 as printed promises error m / n almost surely. A
    noisy leaf says 0 whenever the noise outweighs the single row between the classes: nearly every second time.
    """
    m = 5000
    labels = np.array([1] * (m + 1) + [0] * m)
    leaf = np.zeros((len(labels), 1), dtype=int)
    huge = Setting("majority", n_rows=10**10, depth=1, n_trees=6000, epsilon=1)
    assert huge.probability > 0.999  # the promise, made at the size where the bound is not vacuous
    # Difference of two Laplace variables of scale b: P(g > x) = (1/2 + x/(4b)) exp(-x/b), at x = 1 and b = 6000.
    flips = (0.5 + 1 / 24000) * math.exp(-1 / 6000)
    assert flips > 0.499
    # The repaired condition sees it: at the margin no tree is right on anything, and the bound is vacuous.
    at_zero = forest_quantities(leaf, labels, 1).goodness
    at_margin = forest_quantities(leaf, labels, 1, margin=huge.margin).goodness
    assert np.mean(at_zero >= huge.threshold) > 0.5
    assert bound_from_fraction(float(np.mean(at_margin >= huge.threshold)), huge).is_vacuous


def test_drawing_the_ratio_at_random_breaks_theorem_5_9() -> None:
    """On a pure leaf Algorithm 2 draws the ratio uniformly when the empty class's noise is negative."""
    # Half of the trees then answer 1/2 on average instead of 1: the mean ratio is 3/4, the error 1/4.
    promised = bound_at_best(1.0, voting="probabilistic", n_rows=10**21, depth=1, epsilon=1)
    rng = np.random.default_rng(0)
    noise = rng.laplace(scale=promised.n_trees, size=(100_000, 2))
    counts = np.array([1e15, 0]) + noise
    negative = (counts < 0).any(axis=1)
    ratio = np.where(negative, rng.random(len(counts)), counts[:, 0] / counts.sum(axis=1))
    assert promised.probability > 0.999
    assert 1 - ratio.mean() > promised.error + 0.04  # 0.25 against 0.199
    clipped = np.clip(counts[:, 0] / counts.sum(axis=1), 0, 1)
    assert 1 - clipped.mean() < promised.error


# ---------------------------------------------------------------- the best number of trees


def test_best_number_of_trees_is_one_in_realistic_cases() -> None:
    for n, depth, epsilon in itertools.product((10**3, 10**6, 10**9), (1, 4, 10), (0.01, 1, 8)):
        assert best_n_trees(n, depth, epsilon) == 1
        assert bound_at_best(0.99, voting="threshold", n_rows=n, depth=depth, epsilon=epsilon).is_vacuous
    # It leaves 1 when exp(-1/200) - exp(-2/200) > 4 exp(-s/2) - 2 exp(-s), s = sqrt(n) / 19200: s = 13.386.
    assert best_n_trees(round((13.37 * 19200) ** 2), 1, 1) == 1
    assert best_n_trees(round((13.40 * 19200) ** 2), 1, 1) == 2


@given(st.floats(10.0, 17.0), st.integers(0, 2), st.sampled_from([1, 2, Fraction(1, 2)]))
@settings(max_examples=50, deadline=None)
def test_best_number_of_trees_against_trying_all(log_n: float, depth: int, epsilon: Fraction) -> None:
    n = int(10**log_n)
    s = math.sqrt(n) * float(epsilon) / (9600 * 2**depth)
    k = np.arange(1, 6001)
    values = np.exp(-k / 200) + 2 * k * np.exp(-s / k)
    best = best_n_trees(n, depth, epsilon)
    assert best <= 6000
    assert values[best - 1] <= values.min() * (1 + 1e-12)


def test_best_number_of_trees_where_the_terms_underflow() -> None:
    # s = 10^15 / 19200 = 5.2e10. At the minimum k/200 is about s/k, so k is about sqrt(200 s) = 3.2e6.
    assert best_n_trees(10**30, 1, 1) == pytest.approx(math.sqrt(200 * 1e15 / 19200), rel=0.01)


# ---------------------------------------------------------------- monotone in what should help


@given(
    st.sampled_from(["majority", "threshold", "probabilistic"]),
    st.sampled_from([None, 0.1, 1.0]),
    st.sampled_from(["training", "new"]),
    accuracies,
    slacks,
    st.integers(0, 6),
    st.integers(1, 10**5),
)
def test_monotone(voting, epsilon, rows, accuracy, slack, depth, n_trees) -> None:  # type: ignore[no-untyped-def]
    base = Setting(voting, 10**7, depth, n_trees, epsilon, rows, slack)
    bound = bound_from_accuracy(accuracy, base)
    assert bound_from_accuracy(min(1, accuracy + 0.01), base).error <= bound.error + 1e-12
    assert replace(base, depth=depth + 1).probability <= base.probability
    assert replace(base, n_rows=2 * 10**7).written_off_fraction == base.written_off_fraction
    if rows == "training":
        new = replace(base, rows="new")
        assert new.probability <= base.probability
        assert bound_from_accuracy(accuracy, new).error >= bound.error - 1e-12
        if epsilon is None:
            assert replace(base, n_trees=n_trees + 1).probability >= base.probability
    if epsilon is None:
        private = replace(base, epsilon=1)
        assert private.probability <= base.probability
        assert bound_from_accuracy(accuracy, private).error >= bound.error - 1e-12
    else:
        assert replace(base, epsilon=2 * epsilon).probability >= base.probability


def test_too_many_trees_hurt_only_under_noise() -> None:
    setting = Setting("threshold", 10**10, depth=1, n_trees=6000, epsilon=1)
    more = replace(setting, n_trees=60_000)
    assert more.probability < 0 < setting.probability
    assert replace(more, epsilon=None).probability >= replace(setting, epsilon=None).probability


def test_more_rows_make_private_bounds_surer_at_the_useful_end() -> None:
    sizes = [10**10, 10**11, 10**12]
    chances = [Setting("threshold", n, 1, 50_000, 1, "new").probability for n in sizes]
    assert chances == sorted(chances)
    assert chances[0] < 0 < 0.99 < chances[-1]


@given(st.integers(2, 10**9), slacks, st.floats(0.1, 3), st.sampled_from(["training", "new"]))
def test_trees_needed_are_enough_and_not_one_too_many(
    n: int, slack: float, exponent: float, rows: theory.RowSet
) -> None:
    k = trees_needed(n, slack, exponent=exponent, rows=rows)
    delta = slack / 2 if rows == "new" else slack
    log_failure = math.log(n) - 2 * k * delta**2
    assert log_failure <= -exponent * math.log(n) + 1e-9
    assert k == 1 or log_failure + 2 * delta**2 >= -exponent * math.log(n) - 1e-9


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "change",
    [
        {"voting": "plurality"},
        {"rows": "test"},
        {"n_rows": 0},
        {"depth": -1},
        {"n_trees": 0},
        {"epsilon": 0},
        {"epsilon": math.inf},
        {"slack": 0.5},
        {"slack": math.nan},
        {"truncation": 2},
        {"coin_slack": 0},
    ],
)
def test_bad_settings_are_refused_by_name(change: dict[str, object]) -> None:
    good = Setting("threshold", 1000, 3, 10, 1)
    with pytest.raises(VeilwoodError, match=f"^{next(iter(change))} is .* Hint: "):
        replace(good, **change)  # type: ignore[arg-type]


def test_bad_arguments_are_refused() -> None:
    threshold = Setting("threshold", 1000, 3, 10)
    row_draws = Setting("probabilistic", 1000, 3, 10, slack=0.9)  # delta up to 1 is allowed here
    with rejects(UseError, raised_in="require_condition"):
        bound_from_accuracy(0.4, threshold)
    with rejects(UseError, raised_in="require_condition"):
        bound_from_fraction(1.2, threshold)
    with rejects(UseError, raised_in="require_condition"):
        bound_from_fraction(0.9, row_draws)
    with rejects(UseError, raised_in="require_condition"):
        bound_at_best(0.9, voting="majority", n_rows=1000, depth=3, epsilon=1)
    # An accuracy below one half is possible once it is measured at a margin.
    assert bound_from_accuracy(0.4, Setting("majority", 1000, 3, 10, 1)).error > 1
    with rejects(UseError, raised_in="require_condition"):
        bound_from_accuracy(0.4, Setting("majority", 1000, 3, 10))


def test_vacuous_means_no_error_below_one_or_no_probability() -> None:
    assert not Bound("5.4", 0.9, 0.1, 3).is_vacuous
    assert Bound("5.4", 1.0, 0.9, 3).is_vacuous
    assert Bound("5.4", 0.1, 0.0, 3).is_vacuous


def squared_error(values: Any) -> float:
    return float(((values - values.mean()) ** 2).sum()) if len(values) else 0.0


@pytest.mark.parametrize("seed", range(5))
def test_theorem_1_bounds_moved_splits_with_noisy_means(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, epsilon = 40, 2.0
    y = rng.choice([-1.0, 1.0], n) if seed % 2 else rng.uniform(-1, 1, n)
    exact = squared_error(y[: n // 2]) + squared_error(y[n // 2 :])
    for t in range(1, n // 2 + 1):
        noise = 8 / epsilon**2 * (1 / t + 1 / (n - t))  # expected squared noise of both means, times rows
        moved = squared_error(y[:t]) + squared_error(y[t:]) + noise
        assert moved - exact <= regression_excess(n, t, target_bound=1.0, epsilon=epsilon) + 1e-9


def test_theorem_1_without_its_t_would_be_wrong() -> None:
    """The appendix prints 16 B^2 / epsilon^2: then the bound at a perfect median would not depend on the rows."""
    assert regression_excess(100, 50, target_bound=1, epsilon=1) == pytest.approx(16 / 50)
    assert regression_excess(1000, 500, target_bound=1, epsilon=1) == pytest.approx(16 / 500)


@pytest.mark.parametrize("z", [0.5, 2.0, 5.0])
def test_theorem_2_is_the_probability_of_a_flip(z: float) -> None:
    rng = np.random.default_rng(0)
    flips = (rng.laplace(size=400_000) - rng.laplace(size=400_000) > z).mean()
    assert flip_loss(z, 1.0, epsilon=1.0) == pytest.approx(flips, abs=5 * math.sqrt(0.25 / 400_000))


def test_theorem_2_as_stated_does_not_hold() -> None:
    """Classes by x: 0 0 1 1. The median split is always right; one row further the best labels are not."""
    exact_accuracy, private_accuracy = 1.0, 3 / 4
    assert exact_accuracy - private_accuracy > flip_loss(1, 2 / 3, epsilon=20.0)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_theorem_3_holds_on_a_grid(epsilon: float) -> None:
    from fractions import Fraction

    rng = np.random.default_rng(1)
    for _ in range(20):
        rows = np.bincount(rng.integers(0, 64, 30) // rng.integers(1, 6), minlength=64)
        left = np.cumsum(rows)[:-1]
        smaller = np.minimum(left, 30 - left)
        mechanism = ExponentialMechanism(Fraction(str(epsilon)), 2)
        law = mechanism.probabilities(-np.abs(2 * left - 30))
        for t in (2, 5, 10):
            inner = int((smaller > t).sum())
            if inner:
                unbalanced = law[smaller <= t].sum()
                assert unbalanced <= imbalance_of_median(inner, 63, epsilon=epsilon) + 1e-9
                assert unbalanced <= imbalance_of_random(inner, 63) + 1e-9  # Corollary 3.1


def test_median_and_random_meet_without_a_budget() -> None:
    for inner in (0.1, 0.5, 1.0):
        assert balanced_split_probability(inner, 1.0, epsilon=0.0) == pytest.approx(inner)
        printed = inner / (math.exp(-1.5) + inner * (1 - math.exp(-1.5)))
        assert balanced_split_probability(inner, 1.0, epsilon=1.5) == pytest.approx(printed)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: regression_excess(10, 6, target_bound=1, epsilon=1), "smaller_side"),
        (lambda: flip_loss(1, 0.4, epsilon=1), "purity"),
        (lambda: flip_loss(1, 0.6, epsilon=0), "epsilon"),
        (lambda: imbalance_of_median(2, 1, epsilon=1), "inner_range"),
    ],
)
def test_bad_arguments_name_themselves(call: Any, name: str) -> None:
    with pytest.raises(vw.VeilwoodError, match=name):
        call()
