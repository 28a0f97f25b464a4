# SPDX-License-Identifier: Apache-2.0
"""What the paper on median forests proves about one split: Theorems 1 to 3 and Corollary 3.1 as functions.

No noise is drawn and no tree is grown here. Random trees are in ``theory``.

Consul and Williamson (2020), sections 3.2 and B: N rows are split in two by some attribute. The smaller side has at
least t rows. Both sides release noisy leaves, for epsilon_l.

* Theorem 1 as printed in the appendix lacks the t under its last term; the main text and the proof have it. The proof
  lets the error of both sides grow by ``4 B^2`` for each moved row. Only the side that receives rows can grow, so
  half would do.
* Theorem 2 as stated compares with the accuracy of the exact median split. Its proof only bounds what noise on counts
  does to a given split. Take four rows with classes 0, 0, 1, 1 in this order: the median split is right on all four,
  the split after the first row on three, for any epsilon. `flip_loss` compares with the same split and exact counts.
* Theorem 3 is about the exponential mechanism over an interval. On a grid of equally likely edges, as in ``medians``,
  it holds with numbers of edges instead of lengths.
"""

from __future__ import annotations

import math

from veilwood.theory import require

__all__ = ["balanced_split_probability", "flip_loss", "imbalance_of_median", "imbalance_of_random", "regression_excess"]


def regression_excess(n_rows: int, smaller_side: float, *, target_bound: float, epsilon: float) -> float:
    """Theorem 1: how much a private split and private means can add to the sum of squared errors of a median split.

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
    require(0 < smaller_side <= n_rows / 2, "smaller_side", smaller_side, "above 0 and at most half of n_rows")
    require(epsilon > 0, "epsilon", epsilon, "above 0")
    squared = target_bound**2
    return 4 * squared * n_rows - 8 * squared * smaller_side + 16 * squared / (epsilon**2 * smaller_side)


def flip_loss(smaller_side: float, purity: float, *, epsilon: float) -> float:
    """Theorem 2: how much accuracy noise on class counts can cost a split with two classes.

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
    >>> flip_loss(10, 0.5, epsilon=1.0)  # a leaf split evenly: a coin
    0.5
    >>> round(flip_loss(10, 0.9, epsilon=1.0), 5)
    0.00084
    """
    require(smaller_side > 0, "smaller_side", smaller_side, "above 0")
    require(0.5 <= purity <= 1, "purity", purity, "a share from 0.5 to 1")
    require(epsilon > 0, "epsilon", epsilon, "above 0")
    z = epsilon * smaller_side * (2 * purity - 1)
    return (z / 4 + 0.5) * math.exp(-z)


def balanced_split_probability(inner_range: float, whole_range: float, *, epsilon: float) -> float:
    """Theorem 3: a lower bound on the probability that the smaller side of a private median split has t rows.

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
    """Corollary 3.1, left: an upper bound on the probability that a private median split leaves t rows or fewer."""
    require(whole_range > 0, "whole_range", whole_range, "above 0")
    require(0 < inner_range <= whole_range, "inner_range", inner_range, "above 0 and at most whole_range")
    require(epsilon >= 0, "epsilon", epsilon, "0 or more")
    outside = (whole_range - inner_range) * math.exp(-epsilon)
    return outside / (outside + inner_range)


def imbalance_of_random(inner_range: float, whole_range: float) -> float:
    """Corollary 3.1, right: the same for a split drawn uniformly. It is never smaller.

    Examples
    --------
    >>> imbalance_of_median(0.3, 1.0, epsilon=0.5) <= imbalance_of_random(0.3, 1.0)
    True
    """
    return imbalance_of_median(inner_range, whole_range, epsilon=0.0)
