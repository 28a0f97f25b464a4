# SPDX-License-Identifier: Apache-2.0
"""Error bounds of the papers for forests, with their probability and the number of trees that the papers call best.

No noise is drawn and no forest is grown here. Nothing here is private: `forest_quantities` reads raw rows.

Random decision trees: Bojarski, Choromanska, Choromanski, LeCun (2014), Theorems 5.1 to 5.9, two classes 0 and 1.

==============  ====================  ==================================================================
paper           here                  meaning
==============  ====================  ==================================================================
n               ``n_rows``            rows in the training set (and in the set of new rows)
h, k            ``depth, n_trees``    height of every tree; trees in the forest
eta             ``epsilon``           privacy loss of the forest; each leaf count gets Laplace(k / eta)
e               ``tree_accuracy``     accuracy of one tree, averaged over trees
epsilon         ``tree_error``        1 - e
w_d, sigma(d)   ``weight, goodness``  see `forest_quantities`
mu              ``good_fraction``     share of rows with weight or goodness >= 1/2 + delta (`Setting.threshold`)
delta           ``slack``             distance a row keeps from the decision threshold 1/2
K               ``truncation``        leaves with fewer than n / (K 2^h) rows are written off
c               ``coin_slack``        extra error from the coin tosses of probabilistic averaging
C               ``exponent``          the bound fails with probability n^-C
err_1, err_2    ``rows=``             error on ``"training"`` rows, on ``"new"`` rows
==============  ====================  ==================================================================

========  ==================================================================================
theorem   call
========  ==================================================================================
5.1       `mean_goodness`
5.2       `mean_weight`
5.3       `trees_needed`, `bound_from_fraction` without ``epsilon``
5.4, 5.5  `bound_from_accuracy` without ``epsilon``
5.6       `bound_from_fraction`, and its last sentence `bound_from_accuracy`, with ``epsilon``
5.7, 5.9  `best_n_trees`, `bound_at_best`
5.8       `bound_from_accuracy` with ``epsilon``, probabilistic voting
========  ==================================================================================

Where the printed statements do not hold, the functions return a form that does:

* 5.5 prints ``exp(-2 n epsilon^2)``; its proof has ``exp(-2 n c^2)``. It also leaves out the number of trees.
* 5.6 and 5.8 print ``exp(-k/2) + k exp(-lambda n eta / k)``; their proof ends (inequality 10) with
  ``exp(-n/2) + 2 k exp(-lambda sqrt(n) eta / k)``. Here: ``2 k exp(-lambda n eta / k)`` alone. If both noises of a
  leaf with at least n / (K 2^h) rows are at most lambda n = (delta/24) n / (K 2^h), its ratio moves by at most
  (delta/24) / (1 - delta/12) < delta/2: no second concentration step, and no square root, is needed.
* 5.6 and 5.8 on new rows: the step from training to new counts uses up delta/2 (section 9.4). The paper halves
  delta in 5.3 and 5.4 but forgets to in 5.6 and 5.8; it is halved here.
* 5.7 prints the error ``1/8 + 9/2 epsilon - 5 epsilon^2``; K = 40 and delta = 1/10 give 0.121875 + 4.75 epsilon -
  5 epsilon^2. 5.9 rounds 0.19875 up to 1/5, and its probability has a bracket in the wrong place.
* 5.3 on new rows and 5.6 ask for goodness or weight 1/2 + delta + 1/K, as if writing off small leaves cost every
  row at most 1/K. It costs 1/K on average. An outlier that is alone in its leaf in every tree loses everything.
  Here the threshold is 1/2 + delta, with small leaves counted as 0 (`Setting.smallest_leaf`). The error from
  accuracy pays for small leaves on average, as 5.4 and the proofs of 5.6 and 5.7 do.
* That payment replaces epsilon by epsilon + 1/K in 2 epsilon - 2 epsilon^2. The expression falls beyond 1/2, and
  is already too small above about 1/4; see `_lost_weight`.
* The paper calls majority voting under noise, or on new rows, analogous. It is not: a leaf split 51 to 50 is flipped
  by noise that hardly moves its ratio. The bounds hold when goodness and accuracy are measured at `Setting.margin`.
* Algorithm 2 draws a leaf's ratio at random when a noisy count is negative, which the proofs ignore and which
  breaks 5.9 on pure leaves. The bounds are for the noisy ratio clipped to [0, 1].

The noise is the paper's continuous Laplace. The library's discrete noise exceeds a level at most
1 + tanh(eta / 2k) times as often, and the term in ``epsilon`` grows by that factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilwood.errors import UseError

Voting = Literal["majority", "threshold", "probabilistic"]
RowSet = Literal["training", "new"]


def require_condition(condition: bool, name: str, value: object, hint: str) -> None:
    """Raise an error naming the parameter unless the condition holds (a NaN fails every comparison)."""
    if not condition:
        raise UseError(f"{name} is {value!r}. Hint: {hint}")


# --------------------------------------------------------------------------------------------------
# Quantities that the theorems need


class ForestQuantities(NamedTuple):
    """Quantities of a forest and a data set that the theorems use. Computed from raw rows, so NOT PRIVATE."""

    weight: NDArray[np.float64]  # w_d, one per row
    goodness: NDArray[np.float64]  # sigma(d), one per row
    tree_accuracy: float  # e


def forest_quantities(
    leaf_of_row: NDArray[np.integer],
    labels: NDArray[np.integer],
    n_leaves: int,
    *,
    margin: float = 0.0,
    smallest_leaf: float = 0.0,
) -> ForestQuantities:
    """Compute weight and goodness of each row, and the average tree accuracy. NOT PRIVATE: it reads raw rows.

    The weight of a row in a tree is the share of its leaf's rows that have its label. A row's weight is the
    mean over trees; its goodness is the share of trees that label it right. A leaf's label is that of most
    of its rows, or 1 in a tie (paper, section 9.1). The paper averages over all possible trees: on a
    sample of trees these are estimates.

    Parameters
    ----------
    leaf_of_row : int array [n_rows, n_trees]
        Leaf of each row in each tree, numbered across the forest: no two trees share a leaf number.
    labels : int array [n_rows]
        0 or 1.
    n_leaves : int
        Number of leaves in the forest.
    margin : float
        Above 0, a tree counts as right only where the row's weight is at least 1/2 + margin; use
        `Setting.margin`.
    smallest_leaf : float
        In leaves with fewer rows, weight and goodness count as 0; use `Setting.smallest_leaf`. The tree
        accuracy ignores it: `bound_from_accuracy` pays for small leaves itself.

    Examples
    --------
    One tree, leaves {1, 1, 0} and {0}: three rows of four are labelled right.

    >>> import numpy as np
    >>> q = forest_quantities(np.array([[0], [0], [0], [1]]), np.array([1, 1, 0, 0]), n_leaves=2)
    >>> q.weight.round(3).tolist(), q.goodness.tolist(), q.tree_accuracy
    ([0.667, 0.667, 0.333, 1.0], [1.0, 1.0, 0.0, 1.0], 0.75)
    """
    leaf, label = np.asarray(leaf_of_row), np.asarray(labels)
    require_condition(leaf.ndim == 2 and leaf.size > 0, "leaf_of_row", leaf.shape, "give [n_rows, n_trees], not empty")
    require_condition(label.shape == leaf.shape[:1], "labels", label.shape, f"give one label for {len(leaf)} rows")
    require_condition(
        bool(np.isin(label, (0, 1)).all()), "labels", np.unique(label), "the theorems take labels 0 and 1"
    )
    require_condition(leaf.min() >= 0 and leaf.max() < n_leaves, "n_leaves", n_leaves, "leaf numbers start at 0")
    require_condition(0 <= margin < 0.5, "margin", margin, "choose 0 <= margin < 0.5")
    tree = np.broadcast_to(np.arange(leaf.shape[1]), leaf.shape)
    tree_of_leaf = np.zeros(n_leaves, dtype=np.int64)
    tree_of_leaf[leaf] = tree
    require_condition(
        bool((tree_of_leaf[leaf] == tree).all()), "leaf_of_row", "shared", "number leaves through the forest"
    )
    is_one = label.astype(bool)
    cell = 2 * leaf.astype(np.int64) + is_one[:, None]
    counts = np.bincount(cell.ravel(), minlength=2 * n_leaves)
    size = counts.reshape(-1, 2).sum(axis=1)[leaf]
    weight, large_enough = counts[cell] / size, size >= smallest_leaf
    # With a margin, a weight on the boundary counts for either label; without a margin, ties go to label 1.
    right = (weight > 0.5 + margin) | ((weight == 0.5 + margin) & (is_one[:, None] | (margin > 0)))
    return ForestQuantities(
        (weight * large_enough).mean(axis=1), (right & large_enough).mean(axis=1), float(right.mean())
    )


def mean_goodness(tree_accuracy: float) -> float:
    """Return the mean goodness of a row (Theorem 5.1). The paper prints a lower bound; it equals the tree accuracy.

    >>> mean_goodness(0.8)
    0.8
    """
    require_condition(0.5 <= tree_accuracy <= 1, "tree_accuracy", tree_accuracy, "a leaf's majority is at least half")
    return tree_accuracy


def mean_weight(tree_accuracy: float) -> float:
    """Return the lower bound e^2 + (1 - e)^2 on the mean weight of a row (Theorem 5.2).

    >>> round(mean_weight(0.8), 3)
    0.68
    """
    return mean_goodness(tree_accuracy) ** 2 + (1 - tree_accuracy) ** 2


# --------------------------------------------------------------------------------------------------
# The theorems


@dataclass(frozen=True)
class Bound:
    """Error bound: with at least ``probability``, a forest of ``n_trees`` trees errs on at most ``error`` of the rows.

    The values of the formula are not clipped: a probability can be negative, and an error above 1.
    """

    theorem: str
    error: float
    probability: float
    n_trees: int

    @property
    def is_vacuous(self) -> bool:
        """Whether the bound is empty: its error is not below 1, or its probability not above 0."""
        return self.error >= 1 or self.probability <= 0


@dataclass(frozen=True)
class Setting:
    """Public conditions of Theorems 5.3 to 5.6 and 5.8. The module docstring maps them to the paper's letters.

    Parameters
    ----------
    voting : "majority", "threshold" or "probabilistic"
        How the trees are combined.
    n_rows, depth, n_trees : int
        Number of rows (public here), depth and number of trees.
    epsilon : number or None
        Privacy loss under add-remove; None: no noise. Under replace-one pass half of it.
    rows : "training" or "new"
        Whose error is bounded.
    slack, truncation, coin_slack : float
        The constants delta, K and c, by default those of Theorems 5.7 and 5.9.

    Examples
    --------
    >>> setting = Setting("threshold", n_rows=10**6, depth=4, n_trees=3000)
    >>> round(bound_from_accuracy(0.9, setting).error, 3)  # (2(0.1) - 2(0.1)^2) / (1/2 - 0.1)
    0.45
    >>> private = Setting("threshold", n_rows=10**6, depth=4, n_trees=3000, epsilon=1)
    >>> bound_from_accuracy(0.9, private).is_vacuous
    True
    """

    voting: Voting
    n_rows: int
    depth: int
    n_trees: int
    epsilon: float | Fraction | None = None
    rows: RowSet = "training"
    slack: float = 0.1
    truncation: float = 40
    coin_slack: float = 0.05

    def __post_init__(self) -> None:
        votings = ("majority", "threshold", "probabilistic")
        require_condition(self.voting in votings, "voting", self.voting, f"choose one of {votings}")
        _check_size(self.n_rows, self.depth, self.epsilon, self.rows)
        require_condition(self.n_trees >= 1, "n_trees", self.n_trees, "a forest has at least one tree")
        top = 1 if self.voting == "probabilistic" else 0.5
        require_condition(0 < self.slack < top, "slack", self.slack, f"choose 0 < slack < {top}")
        # Up to 2/K of the rows are written off, so at K <= 2 no row remains to bound.
        require_condition(2 < self.truncation < math.inf, "truncation", self.truncation, "choose a number above 2")
        require_condition(0 < self.coin_slack < 1, "coin_slack", self.coin_slack, "choose 0 < coin_slack < 1")

    @property
    def written_off_fraction(self) -> float:
        """Fraction of the rows in small leaves: 1/K for noise, and 1/K for new rows."""
        return ((self.epsilon is not None) + (self.rows == "new")) / self.truncation

    @property
    def smallest_leaf(self) -> float:
        """Size below which a leaf is written off: 2^h such leaves hold at most the fraction written off."""
        return self.written_off_fraction * self.n_rows / 2.0**self.depth

    @property
    def threshold(self) -> float:
        """Goodness (majority) or weight (threshold averaging) that a row needs to count in ``good_fraction``."""
        return 0.5 + self.slack

    @property
    def margin(self) -> float:
        """Margin at which goodness and tree accuracy must be measured (see `forest_quantities`)."""
        if self.voting != "majority":
            return 0.0
        # New rows move a leaf's ratio by less than delta/2, noise by less than (delta/24)/(1 - delta/12) < delta/23.
        moved_by_new_rows = self.slack / 2 if self.rows == "new" else 0.0
        moved_by_noise = self._tree_slack / 23 if self.epsilon is not None else 0.0
        return moved_by_new_rows + moved_by_noise

    @property
    def probability(self) -> float:
        """Probability that the error bound holds, over trees, noise, coins and new rows. May be negative."""
        n, k, delta = self.n_rows, self.n_trees, self._tree_slack
        small_leaf = 2.0**-self.depth / self.truncation  # as a fraction of the rows
        if self.epsilon is None:
            row_fails = math.exp(-2 * k * delta**2)
        else:
            noise_too_large = math.exp(-delta / 24 * small_leaf * n * float(self.epsilon) / k)
            row_fails = math.exp(-k * delta**2 / 2) + 2 * k * noise_too_large
        holds = 1 - n * row_fails
        if self.voting == "probabilistic":
            holds *= -math.expm1(-2 * n * self.coin_slack**2)
        if self.rows == "new":
            phi = self.slack * small_leaf / (2 * (4 + self.slack))
            holds -= 2.0 ** (self.depth + 3) * k * math.exp(-2 * n * phi**2)
        return holds

    @property
    def _tree_slack(self) -> float:
        """Fraction of delta that remains for the draw of the trees; the step to new rows uses half (section 9.4)."""
        return self.slack / 2 if self.rows == "new" else self.slack


def trees_needed(n_rows: int, slack: float, *, exponent: float = 1.0, rows: RowSet = "training") -> int:
    """Return the number of trees with which a noiseless bound fails with probability at most n_rows^-exponent.

    This is Theorem 5.3. On new rows it covers the part of the failure that trees can remove; the rest is in
    `Setting.probability`.

    >>> trees_needed(10_000, 0.1)  # 2 ln(10000) / (2 * 0.01) = 921.03
    922
    """
    _check_size(n_rows, 0, None, rows)
    require_condition(0 < slack < 1, "slack", slack, "choose 0 < slack < 1")
    require_condition(0 < exponent < math.inf, "exponent", exponent, "choose a number above 0")
    delta = slack / 2 if rows == "new" else slack
    return max(1, math.ceil((1 + exponent) * math.log(n_rows) / (2 * delta**2)))


def bound_from_fraction(good_fraction: float, setting: Setting) -> Bound:
    """Bound the error if a known fraction of rows has goodness or weight `Setting.threshold` (Theorems 5.3, 5.6).

    Majority voting counts goodness, and threshold averaging weight, both measured by `forest_quantities` at
    `Setting.margin` and `Setting.smallest_leaf`. For new rows, measure all of this on the new rows.

    Examples
    --------
    >>> setting = Setting("majority", n_rows=10_000, depth=3, n_trees=922)
    >>> bound = bound_from_fraction(0.95, setting)
    >>> round(bound.error, 2), round(bound.probability, 4)
    (0.05, 0.9999)
    """
    require_condition(0 <= good_fraction <= 1, "good_fraction", good_fraction, "pass a fraction in [0, 1]")
    hint = "use bound_from_accuracy: the paper has no such theorem for coin tosses"
    require_condition(setting.voting != "probabilistic", "voting", setting.voting, hint)
    theorem = "5.3" if setting.epsilon is None else "5.6"
    return Bound(theorem, 1 - good_fraction, setting.probability, setting.n_trees)


def bound_from_accuracy(tree_accuracy: float, setting: Setting) -> Bound:
    """Bound the error if only the average tree accuracy is known (Theorems 5.4, 5.5, 5.8 and the end of 5.6).

    For majority voting the accuracy is the one measured at `Setting.margin`.

    Examples
    --------
    >>> setting = Setting("probabilistic", n_rows=10**6, depth=4, n_trees=3000)
    >>> round(bound_from_accuracy(0.9, setting).error, 3)  # 2(0.1) - 2(0.1)^2 + 0.1 + 0.05
    0.33
    """
    # Only a leaf's true majority is at least half: with a margin the accuracy can be anything.
    lowest = 0.0 if setting.margin > 0 else 0.5
    hint = f"choose {lowest} <= tree_accuracy <= 1"
    require_condition(lowest <= tree_accuracy <= 1, "tree_accuracy", tree_accuracy, hint)
    error, off, slack = 1 - tree_accuracy, setting.written_off_fraction, setting.slack
    lost = error + off if setting.voting == "majority" else _lost_weight(error, off)
    is_private = setting.epsilon is not None
    if setting.voting == "probabilistic":
        theorem, bound = "5.8" if is_private else "5.5", lost + slack + setting.coin_slack
    else:
        # Markov's inequality: on average a row loses `lost`, and one below the threshold at least 1/2 - delta.
        theorem, bound = "5.6" if is_private else "5.4", lost / (0.5 - slack)
    return Bound(theorem, bound, setting.probability, setting.n_trees)


def best_n_trees(n_rows: int, depth: int, epsilon: float | Fraction) -> int:
    """Return the number of trees k_opt of Theorems 5.7 and 5.9.

    k_opt minimises exp(-k/200) + 2k exp(-gamma sqrt(n) eta / k), where gamma is 1 / (9600 * 2**depth). The result is 1
    in every realistic case (below 6e10 rows at depth 1 and epsilon 1). That is because the constants are loose, not
    because one tree is best: do not choose by it.

    Examples
    --------
    >>> best_n_trees(10**9, depth=1, epsilon=1)
    1
    >>> best_n_trees(10**24, depth=1, epsilon=1)
    100845
    """
    _check_size(n_rows, depth, epsilon)
    signal = _failure_exponent(n_rows, depth, epsilon)

    def one_more_tree_helps(k: int) -> bool:
        """Return True if the function falls from k to k + 1. Logarithms, because both terms can underflow."""
        gain = -k / 200 + math.log(-math.expm1(-1 / 200))
        cost = math.log(2) - signal / (k + 1) + math.log(k + 1 - k * math.exp(-signal / (k * (k + 1))))
        return gain > cost

    # The derivative, -exp(-k/200)/200 + 2 (1 + s/k) exp(-s/k), grows with k: the function is convex.
    below, above = 0, 1
    while one_more_tree_helps(above):
        below, above = above, 2 * above
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if one_more_tree_helps(middle) else (below, middle)
    return above


def bound_at_best(tree_accuracy: float, *, voting: Voting, n_rows: int, depth: int, epsilon: float | Fraction) -> Bound:
    """Bound the training error at `best_n_trees` (Theorems 5.7, threshold, and 5.9, probabilistic).

    K = 40, delta = 1/10 and c = 1/20; the probability keeps the paper's square root (inequality 10), which
    defines k_opt. It is positive only from about 1e20 rows on, even at depth 1 and epsilon 1.

    Examples
    --------
    >>> bound = bound_at_best(0.9, voting="threshold", n_rows=10**6, depth=4, epsilon=1)
    >>> round(bound.error, 6), bound.n_trees, bound.is_vacuous  # 0.121875 + 0.475 - 0.05
    (0.546875, 1, True)
    """
    known = voting in ("threshold", "probabilistic")
    require_condition(known, "voting", voting, 'the theorems are for "threshold" and "probabilistic"')
    tree_error = 1 - mean_goodness(tree_accuracy)
    k = best_n_trees(n_rows, depth, epsilon)
    noise_too_large = math.exp(-_failure_exponent(n_rows, depth, epsilon) / k)
    holds = 1 - n_rows * (math.exp(-k / 200) + 2 * k * noise_too_large + math.exp(-n_rows / 2))
    lost = _lost_weight(tree_error, 1 / 40)
    if voting == "threshold":
        return Bound("5.7", lost / (0.5 - 0.1), holds, k)
    return Bound("5.9", lost + 0.1 + 0.05, holds * -math.expm1(-n_rows / 200), k)


def _check_size(n_rows: int, depth: int, epsilon: float | Fraction | None, rows: RowSet = "training") -> None:
    """Raise UseError for sizes that the theorems do not cover."""
    require_condition(rows in ("training", "new"), "rows", rows, 'choose "training" or "new"')
    require_condition(n_rows >= 1, "n_rows", n_rows, "give the number of rows, at least 1")
    require_condition(0 <= depth <= 60, "depth", depth, "choose 0 <= depth <= 60")
    hint = "choose a finite number above 0; without noise, leave it out of Setting"
    require_condition(epsilon is None or 0 < epsilon < math.inf, "epsilon", epsilon, hint)


def _failure_exponent(n_rows: int, depth: int, epsilon: float | Fraction) -> float:
    """Return the exponent gamma sqrt(n) eta of Theorems 5.7 and 5.9."""
    return math.sqrt(n_rows) * float(epsilon) / (9600 * 2.0**depth)


def _lost_weight(tree_error: float, written_off: float) -> float:
    """Return an upper bound on 1 - (mean weight) if a fraction ``written_off`` of the rows counts as weight 0.

    The paper's 2x - 2x^2 at x = tree_error + off, or the true worst case where that is larger: the rows written
    off were all labelled right, the others lie in leaves of equal accuracy, and Jensen's inequality is sharp.
    """
    x, remaining = tree_error + written_off, 1 - written_off
    wrong = min(tree_error, remaining / 2)  # at most half of the remaining rows can be labelled wrong
    return max(2 * x - 2 * x**2, written_off + 2 * wrong - 2 * wrong**2 / remaining)


def regression_excess(n_rows: int, smaller_side: float, *, target_bound: float, epsilon: float) -> float:
    """Return the most that a private split and private means add to a median split's squared errors (Theorem 1).

    Parameters
    ----------
    n_rows : int
        N, the number of rows that are split.
    smaller_side : float
        t: the smaller side has at least so many rows; between 0 and N / 2.
    target_bound : float
        B, the largest size of a target.
    epsilon : float
        Spent on the means, with noise of scale 2 B / (rows epsilon) as published. That is not private, because the
        scale depends on the rows. The rotated pair that the library uses has less variance for rows >= 1.

    Returns
    -------
    float
        ``4 B^2 N - 8 B^2 t + 16 B^2 / (epsilon^2 t)``; in expectation over the noise.

    Examples
    --------
    >>> regression_excess(100, 50, target_bound=1.0, epsilon=1.0)  # a perfect median: noise alone
    0.32
    """
    require_condition(
        0 < smaller_side <= n_rows / 2, "smaller_side", smaller_side, "above 0 and at most half of n_rows"
    )
    require_condition(epsilon > 0, "epsilon", epsilon, "above 0")
    squared = target_bound**2
    return 4 * squared * n_rows - 8 * squared * smaller_side + 16 * squared / (epsilon**2 * smaller_side)


def flip_loss(smaller_side: float, purity: float, *, epsilon: float) -> float:
    """Return the accuracy that noise on class counts can cost a split with two classes (Theorem 2).

    Parameters
    ----------
    smaller_side : float
        t: the smaller side has at least so many rows.
    purity : float
        theta_m: the larger class has at least this share of every leaf; 1/2 to 1.
    epsilon : float
        Spent on the counts, with Laplace noise of scale 1 / epsilon.

    Returns
    -------
    float
        ``(z / 4 + 1 / 2) exp(-z)`` with z = epsilon t (2 theta_m - 1): the probability that a leaf of t rows changes
        its label, in expectation over the noise.

    Examples
    --------
    >>> flip_loss(10, 0.5, epsilon=1.0)  # a leaf split evenly: a coin toss
    0.5
    >>> round(flip_loss(10, 0.9, epsilon=1.0), 5)
    0.00084
    """
    require_condition(smaller_side > 0, "smaller_side", smaller_side, "above 0")
    require_condition(0.5 <= purity <= 1, "purity", purity, "a share from 0.5 to 1")
    require_condition(epsilon > 0, "epsilon", epsilon, "above 0")
    z = epsilon * smaller_side * (2 * purity - 1)
    return (z / 4 + 0.5) * math.exp(-z)


def balanced_split_probability(inner_range: float, whole_range: float, *, epsilon: float) -> float:
    """Return a lower bound on the probability that both sides of a median split have at least t rows (Theorem 3).

    Parameters
    ----------
    inner_range : float
        d: the N - 2 t rows in the middle cover at least this range.
    whole_range : float
        R, the range of the attribute.
    epsilon : float
        Spent on the median; 0 means a random split.

    Examples
    --------
    >>> balanced_split_probability(0.5, 1.0, epsilon=0.0)  # a random split
    0.5
    >>> round(balanced_split_probability(0.5, 1.0, epsilon=2.0), 3)
    0.881
    """
    return 1 - imbalance_of_median(inner_range, whole_range, epsilon=epsilon)


def imbalance_of_median(inner_range: float, whole_range: float, *, epsilon: float) -> float:
    """Return an upper bound on the probability that a median split leaves at most t rows (Corollary 3.1, left)."""
    require_condition(whole_range > 0, "whole_range", whole_range, "above 0")
    require_condition(0 < inner_range <= whole_range, "inner_range", inner_range, "above 0 and at most whole_range")
    require_condition(epsilon >= 0, "epsilon", epsilon, "0 or more")
    outside = (whole_range - inner_range) * math.exp(-epsilon)
    return outside / (outside + inner_range)


def imbalance_of_random(inner_range: float, whole_range: float) -> float:
    """Return the bound of `imbalance_of_median` for a uniform split, which is never smaller (Corollary 3.1, right).

    Examples
    --------
    >>> imbalance_of_median(0.3, 1.0, epsilon=0.5) <= imbalance_of_random(0.3, 1.0)
    True
    """
    return imbalance_of_median(inner_range, whole_range, epsilon=0.0)
