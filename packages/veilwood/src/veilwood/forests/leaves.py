# SPDX-License-Identifier: Apache-2.0
"""Leaves that say no more than their noise lets them: shares that fall back on what is above, doubt, and coins.

Everything here is computed from what the door released, so it costs no privacy and may be repeated at will.
A regression leaf holds the rotated pair (sum of y, sum of levels - y); its "shares" are then the mean target
between the bounds and its complement, so that classes and means are treated alike.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veilwood.data.contributions import row_hash
from veilwood.trees.forest import Forest

Floats: TypeAlias = NDArray[np.float64]
LeafCleaning: TypeAlias = Literal["auto", "plain", "empirical-bayes"]
CLEANINGS: tuple[LeafCleaning, ...] = ("auto", "plain", "empirical-bayes")
SMOOTHING_ROWS: Final = 10  # of doubt, where nodes tell how far they differ
_PRIOR_ROWS_GRID: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # rows that shares above a node can be worth
MIN_CORRELATION: Final = 1e-3  # the correlation inside nodes below which they count as parts drawn at random


def shrunken_frequencies(
    forest: Forest,
    counts: Floats,
    noise_variance: float,
    pooled: tuple[Floats, float] | None = None,
    *,
    splits_fitted: bool = False,
) -> Floats:
    """Return class shares of leaves that say no more than the noise lets them: they fall back on what is above them.

    Noisy counts are added up to every node of a tree. What a node holds beyond an even part of its parent is a
    component of its own, measured with exactly known noise. Per depth, pooled over all trees, the energy of these
    components less the noise's energy is the signal, and each component is kept to the part signal / (signal +
    noise); what all classes share (how many rows) and what sets classes apart are judged separately. Without noise
    everything is kept, and where nothing rises above the noise a leaf repeats its ancestors: depth adapts itself.
    Then, from the root down, each node takes over the shares above it as if it had seen that many rows more: one, and
    as many as the noise that is left on its counts. So an empty leaf says what its parent says, and nothing is 0.
    Where splits were fitted to the rows and no noise blurs them, nodes differ by the chance of a sample as well:
    there the shares above are worth the more rows, the less nodes of a depth differ beyond that chance.

    Two choices follow from averaging over trees. The noise that a prediction feels is that of one tree divided by
    the number of trees. And a signal below the standard error of its own estimate is given the benefit of that
    doubt, since the average removes noise more gently than a cut to zero.

    Parameters
    ----------
    forest : Forest
        The structure.
    counts : ndarray, shape (n_leaves, n_classes)
        Noisy counts of rows; of a rotated pair, in rows as well.
    noise_variance : float
        Variance of the noise on each entry of ``counts``.
    pooled : pair, optional
        Counts of all rows that one tree sees, from a measurement of their own, and the variance of their noise.
    splits_fitted : bool
        Whether splits follow the rows, and each row adds one to one class, so that chance is known.

    Returns
    -------
    ndarray, shape (n_leaves, n_classes)
        Shares above 0 that add up to 1.
    """
    sums, leaves_below = forest.sum_to_nodes(counts), forest.sum_to_nodes(np.ones(forest.n_leaves))
    n_classes = counts.shape[1]
    kept, left = np.zeros_like(sums), np.zeros(forest.n_nodes)
    kept[forest.roots] = root = _root_totals(forest, sums, noise_variance, pooled)
    shares = np.zeros_like(sums)
    shares[forest.roots] = (root + 1 / n_classes) / (root.sum() + 1)
    for depth in range(1, forest.depth + 1):
        nodes = np.flatnonzero(forest.level == depth)
        parent = forest.parent[nodes]
        siblings = np.bincount(parent)[parent].astype(np.float64)
        beyond = sums[nodes] - sums[parent] / siblings[:, None]
        # Variance of a child less an even part of the parent that contains it.
        noise = noise_variance * (leaves_below[nodes] * (1 - 2 / siblings) + leaves_below[parent] / siblings**2)
        common = beyond.mean(axis=1, keepdims=True)
        contrast = beyond - common
        part = _signal_fraction((contrast**2).sum(axis=1), noise, n_classes - 1, forest.n_trees)
        kept[nodes] = (
            kept[parent] / siblings[:, None]
            + common * _signal_fraction(n_classes * common[:, 0] ** 2, noise, 1, forest.n_trees)
            + contrast * part
        )
        left[nodes] = left[parent] / siblings**2 + noise * part**2
        seen = np.maximum(kept[nodes], 0.0)
        worth = _prior_rows(seen, shares[parent], forest.n_trees) if splits_fitted and noise_variance == 0 else 1.0
        above = worth + np.sqrt(left[nodes])[:, None]
        shares[nodes] = (seen + above * shares[parent]) / (seen.sum(axis=1, keepdims=True) + above)
    return shares[forest.leaf_node]


def leave_one_out_frequencies(forest: Forest, counts: Floats) -> Floats:
    """Return class shares of leaves without noise, where no split was fitted to the classes of its rows.

    Each node takes over the shares above it as if it had seen so many rows more. How many, is judged by the rows: each
    in turn is left out of its tree, and what the leaf then says of its class is compared with the truth. Averaging over
    trees takes chance off as well, so that a third of the best number for one tree is enough.

    >>> from veilwood.trees.random import grow_binary
    >>> from veilwood.data.encoding import EncodedColumn
    >>> forest = grow_binary([EncodedColumn("age", True, 100, None)], 1, 1, 0)
    >>> leave_one_out_frequencies(forest, np.array([[90.0, 10.0], [10.0, 90.0]]))[:, 0].round(2).tolist()
    [0.9, 0.1]
    >>> leave_one_out_frequencies(forest, np.array([[3.0, 2.0], [2.0, 3.0]]))[:, 0].round(2).tolist()
    [0.51, 0.49]
    """
    sums = forest.sum_to_nodes(counts)
    errors = [
        float((counts * (1 - _mix_with_ancestors(forest, sums, worth, leave_out=1)) ** 2).sum())
        for worth in _PRIOR_ROWS_GRID
    ]
    best = _PRIOR_ROWS_GRID[int(np.argmin(errors))]
    return _mix_with_ancestors(forest, sums, best if forest.n_trees == 1 else best / 3)


def _mix_with_ancestors(forest: Forest, sums: Floats, prior_rows: float, *, leave_out: int = 0) -> Floats:
    """Return shares of leaves, whose nodes take over those above; of each class without a row of its own, or with."""
    shares = np.full_like(sums, 1 / sums.shape[1])
    for depth in range(forest.depth + 1):
        nodes = np.flatnonzero(forest.level == depth)
        above, more = (shares[forest.parent[nodes]], prior_rows) if depth else (shares[nodes], 1.0)
        seen, rows = (np.maximum(each - leave_out, 0.0) for each in (sums[nodes], sums[nodes].sum(axis=1)))
        shares[nodes] = (seen + more * above) / (rows + more)[:, None]
    return np.asarray(shares[forest.leaf_node])


def shrunken_means(
    forest: Forest, pairs: Floats, noise_variance: float, pooled: tuple[Floats, float] | None = None
) -> Floats:
    """Return scaled means of leaves, and their complements, that say no more than the noise lets them.

    As ``shrunken_frequencies``, but what a node holds is compared with the mean above it, not with an even part of its
    parent: how many rows fall into a node says nothing of their mean. In doubt nothing is kept: only
    what a signal has above its own standard error, as a mean far from all others costs more than one that stays behind.

    Without noise a mean is that of the rows, and one row more that says what is above:

    >>> from veilwood.trees.random import grow_binary
    >>> from veilwood.data.encoding import EncodedColumn
    >>> forest = grow_binary([EncodedColumn("age", True, 100, None)], 1, 1, 0)
    >>> shrunken_means(forest, np.array([[3.0, 1.0], [1.0, 3.0]]), 0.0)[:, 0].round(3).tolist()
    [0.7, 0.3]
    """
    sums, leaves_below = forest.sum_to_nodes(pairs), forest.sum_to_nodes(np.ones(forest.n_leaves))
    root = _root_totals(forest, sums, noise_variance, pooled)
    means = np.zeros(forest.n_nodes)
    means[forest.roots] = (root[0] + 0.5) / (root.sum() + 1)
    for depth in range(1, forest.depth + 1):
        nodes = np.flatnonzero(forest.level == depth)
        above, noise = means[forest.parent[nodes]], noise_variance * leaves_below[nodes]
        beyond = (1 - above) * sums[nodes, 0] - above * sums[nodes, 1]
        of_node = noise * ((1 - above) ** 2 + above**2)
        expected, standard_error = float(of_node.sum()), float(np.sqrt(2 * (of_node**2).sum()))
        signal = max(float((beyond**2).sum()) - expected - standard_error, 0.0)
        part = 1.0 if expected == 0 else signal / (signal + expected / forest.n_trees)
        rows = np.maximum(sums[nodes].sum(axis=1), 0.0) + 1 + np.sqrt(2 * noise)
        means[nodes] = np.clip(above + part * beyond / rows, 0.0, 1.0)
    found = means[forest.leaf_node]
    return np.column_stack([found, 1 - found])


def _root_totals(forest: Forest, sums: Floats, noise_variance: float, pooled: tuple[Floats, float] | None) -> Floats:
    """Return what one tree sees in all: every root sees the same rows, or an even part of them."""
    root = sums[forest.roots].mean(axis=0)
    own = noise_variance * forest.n_leaves / forest.n_trees**2
    if pooled is not None and own + pooled[1] > 0:  # two measurements of the same: the quieter one counts for more
        root = (root * pooled[1] + pooled[0] * own) / (own + pooled[1])
    return np.asarray(np.maximum(root, 0.0))


def _signal_fraction(energy: Floats, noise: Floats, freedom: int, n_trees: int) -> float:
    """Return signal / (signal + noise) for components of so many degrees of freedom, pooled over nodes."""
    expected = float(noise.sum())
    if expected == 0:
        return 1.0
    freedom = max(freedom, 1)  # of a single class nothing sets classes apart
    standard_error = float(np.sqrt(2 * (noise**2).sum() / freedom))
    signal = max(float(energy.sum()) / freedom - expected, standard_error)
    return signal / (signal + expected / n_trees)


def _prior_rows(counts: Floats, ancestor_frequencies: Floats, n_trees: int) -> float:
    """Return how many rows the shares above a node are worth, judged by all nodes of its depth.

    Where nodes are like parts drawn at random, the squared distance of their shares from those above, times their rows,
    is that of a sample on average; where they differ by a correlation r inside nodes, each further row adds r times as
    much. By r, shares above are worth (1 - r) / r rows. Averaging over trees takes chance off as well, as it does with
    noise: there the square root is enough. A few rows' weight on r = 1/2 decides where nodes hold single rows.
    """
    rows = counts.sum(axis=1)
    several = rows >= 2
    rows, shares, ancestor_frequencies = rows[several], counts[several], ancestor_frequencies[several]
    chance = (ancestor_frequencies * (1 - ancestor_frequencies)).sum(axis=1)
    distance = rows * ((shares / rows[:, None] - ancestor_frequencies) ** 2).sum(axis=1)
    doubt = SMOOTHING_ROWS * (float(chance.mean()) if len(chance) else 1.0)
    apart = float((distance - chance).sum()) + doubt / 2
    r = min(max(apart / (float((chance * (rows - 1)).sum()) + doubt), MIN_CORRELATION), 1.0)
    worth = (1 - r) / r
    return worth if n_trees == 1 else float(np.sqrt(worth))


def smooth_probabilities(probabilities: Floats, n_trees: int) -> Floats:
    """Return shares as probabilities: as if one more tree voted evenly, so that none of them is 0.

    >>> smooth_probabilities(np.array([[0.0, 1.0]]), 4).tolist()
    [[0.1, 0.9]]
    """
    return np.asarray((probabilities * n_trees + 1 / probabilities.shape[1]) / (n_trees + 1))


def row_uniforms(codes: NDArray[np.uint16], seed: int) -> Floats:
    """Return a number in [0, 1) for each row, a fixed function of the row and a public seed.

    Probabilistic averaging tosses a coin per prediction (Bojarski et al., section 3); tied to the row, the same
    row gets the same answer in every batch. The coins protect nobody: they need not be secret.
    """
    return (row_hash(codes, seed) >> np.uint64(11)) / 2.0**53
