# SPDX-License-Identifier: Apache-2.0
"""Shrinkage of noisy leaves towards their ancestors, additive smoothing, and per-row pseudo-random draws.

Everything here is post-processing of released values, so it spends no budget. A regression leaf holds the rotated pair
(sum of y, sum of levels - y). Its "frequencies" are the mean target, scaled to its bounds, and the complement. So
classes and means are treated alike.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import numpy as np

from veilwood.arrays import Codes, Floats
from veilwood.data.contributions import row_hash
from veilwood.trees.forest import Forest

LeafCleaning: TypeAlias = Literal["auto", "plain", "empirical-bayes"]
CLEANINGS: tuple[LeafCleaning, ...] = ("auto", "plain", "empirical-bayes")
SMOOTHING_ROWS: Final = 10  # weight of the prior correlation 1/2 in ``_prior_rows``, in rows
_PRIOR_ROWS_GRID: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # candidate weights of a node's parent, in rows
MIN_CORRELATION: Final = 1e-3  # of classes within nodes; below it, nodes count as random samples of their parents


def shrunken_frequencies(
    forest: Forest,
    counts: Floats,
    noise_variance: float,
    pooled: tuple[Floats, float] | None = None,
    *,
    splits_fitted: bool = False,
) -> Floats:
    """Return the class frequencies of leaves, shrunk towards their ancestors according to the noise.

    Noisy counts are summed up to every node of a tree. The difference between a node and an even fraction of its parent
    is a component with exactly known noise variance. Per depth, and pooled over all trees, the signal is the energy of
    these components minus the expected energy of the noise. Each component is multiplied by signal / (signal + noise).
    The component common to all classes (the number of rows) and the contrasts between classes are shrunk separately.
    Without noise nothing is shrunk; without signal a leaf repeats its ancestors. So the effective depth adapts.

    Then, from the root down, each node is mixed with its parent's frequencies. They weigh as much as one row, plus the
    standard deviation of the noise left on the node's counts. So an empty leaf repeats its parent, and no frequency is
    0. If splits were fitted to the rows without noise, nodes also differ by sampling: the parent weighs more rows, the
    less the nodes of a depth differ beyond sampling variance.

    Two choices follow from averaging over trees. The noise of a prediction is that of one tree divided by the number
    of trees. And a signal below the standard error of its estimate is raised to that error, since the average removes
    noise more gently than setting the component to zero.

    Parameters
    ----------
    forest : Forest
        The structure.
    counts : ndarray, shape (n_leaves, n_classes)
        Noisy counts in rows, or rotated pairs.
    noise_variance : float
        Variance of the noise on each entry of ``counts``.
    pooled : pair, optional
        Separately measured counts of all rows that one tree counts, and the variance of their noise.
    splits_fitted : bool
        Whether splits depend on the rows, each of which adds one to one class. The sampling variance is then known.

    Returns
    -------
    ndarray, shape (n_leaves, n_classes)
        Frequencies above 0 with sum 1.
    """
    sums, leaves_below = forest.sum_to_nodes(counts), forest.sum_to_nodes(np.ones(forest.n_leaves))
    n_classes = counts.shape[1]
    shrunken, noise_left = np.zeros_like(sums), np.zeros(forest.n_nodes)
    shrunken[forest.roots] = root = _root_totals(forest, sums, noise_variance, pooled)
    frequencies = np.zeros_like(sums)
    frequencies[forest.roots] = (root + 1 / n_classes) / (root.sum() + 1)
    for depth in range(1, forest.depth + 1):
        nodes = np.flatnonzero(forest.level == depth)
        parent = forest.parent[nodes]
        siblings = np.bincount(parent)[parent].astype(np.float64)
        beyond = sums[nodes] - sums[parent] / siblings[:, None]
        # Variance of the difference between a child and an even fraction of the parent that contains it.
        noise = noise_variance * (leaves_below[nodes] * (1 - 2 / siblings) + leaves_below[parent] / siblings**2)
        common = beyond.mean(axis=1, keepdims=True)
        contrast = beyond - common
        part = _signal_fraction((contrast**2).sum(axis=1), noise, n_classes - 1, forest.n_trees)
        shrunken[nodes] = (
            shrunken[parent] / siblings[:, None]
            + common * _signal_fraction(n_classes * common[:, 0] ** 2, noise, 1, forest.n_trees)
            + contrast * part
        )
        noise_left[nodes] = noise_left[parent] / siblings**2 + noise * part**2
        rows = np.maximum(shrunken[nodes], 0.0)
        exact_fit = splits_fitted and noise_variance == 0
        parent_rows = _prior_rows(rows, frequencies[parent], forest.n_trees) if exact_fit else 1.0
        weight = parent_rows + np.sqrt(noise_left[nodes])[:, None]
        frequencies[nodes] = (rows + weight * frequencies[parent]) / (rows.sum(axis=1, keepdims=True) + weight)
    return frequencies[forest.leaf_node]


def leave_one_out_frequencies(forest: Forest, counts: Floats) -> Floats:
    """Return the class frequencies of noiseless leaves whose splits do not depend on the classes.

    Each node is mixed with its parent, which weighs a fixed number of rows, chosen by leave-one-out error:
    each row in turn is removed from its leaf, which then predicts its class. Averaging over trees reduces sampling
    variance as well, so a third of the best number for one tree suffices.

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
        float((counts * (1 - _mix_with_ancestors(forest, sums, prior_rows, leave_out=1)) ** 2).sum())
        for prior_rows in _PRIOR_ROWS_GRID
    ]
    best = _PRIOR_ROWS_GRID[int(np.argmin(errors))]
    return _mix_with_ancestors(forest, sums, best if forest.n_trees == 1 else best / 3)


def _mix_with_ancestors(forest: Forest, sums: Floats, prior_rows: float, *, leave_out: int = 0) -> Floats:
    """Return the frequencies of leaves mixed with their ancestors, after removing ``leave_out`` rows of each class."""
    frequencies = np.full_like(sums, 1 / sums.shape[1])
    for depth in range(forest.depth + 1):
        nodes = np.flatnonzero(forest.level == depth)
        above, more = (frequencies[forest.parent[nodes]], prior_rows) if depth else (frequencies[nodes], 1.0)
        seen, rows = (np.maximum(each - leave_out, 0.0) for each in (sums[nodes], sums[nodes].sum(axis=1)))
        frequencies[nodes] = (seen + more * above) / (rows + more)[:, None]
    return np.asarray(frequencies[forest.leaf_node])


def shrunken_means(
    forest: Forest, pairs: Floats, noise_variance: float, pooled: tuple[Floats, float] | None = None
) -> Floats:
    """Return the scaled means of leaves, and their complements, shrunk towards their ancestors.

    As ``shrunken_frequencies``, but a node is compared with the mean of its parent and not with an even fraction of it:
    the number of rows in a node says nothing about their mean. Only the signal above its standard error counts, since
    an error of the mean costs more than too much shrinkage.

    Without noise, the mean is taken over the rows of the leaf and one more row with the parent's mean:

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
    leaf_means = means[forest.leaf_node]
    return np.column_stack([leaf_means, 1 - leaf_means])


def _root_totals(forest: Forest, sums: Floats, noise_variance: float, pooled: tuple[Floats, float] | None) -> Floats:
    """Return the counts at a root, averaged over trees: every root counts all rows, or an even fraction of them."""
    root = sums[forest.roots].mean(axis=0)
    own = noise_variance * forest.n_leaves / forest.n_trees**2
    if pooled is not None and own + pooled[1] > 0:  # two measurements of one quantity, weighted by precision
        root = (root * pooled[1] + pooled[0] * own) / (own + pooled[1])
    return np.asarray(np.maximum(root, 0.0))


def _signal_fraction(energy: Floats, noise: Floats, freedom: int, n_trees: int) -> float:
    """Return signal / (signal + noise) for components with ``freedom`` degrees of freedom, pooled over nodes."""
    expected = float(noise.sum())
    if expected == 0:
        return 1.0
    freedom = max(freedom, 1)  # a single class has no contrasts
    standard_error = float(np.sqrt(2 * (noise**2).sum() / freedom))
    signal = max(float(energy.sum()) / freedom - expected, standard_error)
    return signal / (signal + expected / n_trees)


def _prior_rows(counts: Floats, ancestor_frequencies: Floats, n_trees: int) -> float:
    """Return the weight of a parent's frequencies in rows, estimated from all nodes of a depth.

    If nodes are random samples of their parents, their squared distance to the parent's frequencies, times their rows,
    has the expectation of sampling. If classes within nodes have correlation r, each further row adds r times as much.
    The parent then weighs (1 - r) / r rows. Averaging over trees reduces sampling variance as well, so for a forest the
    square root suffices. A prior of ``SMOOTHING_ROWS`` rows at r = 1/2 decides if nodes hold single rows.
    """
    rows = counts.sum(axis=1)
    several = rows >= 2
    rows, counts, ancestor_frequencies = rows[several], counts[several], ancestor_frequencies[several]
    chance = (ancestor_frequencies * (1 - ancestor_frequencies)).sum(axis=1)
    distance = rows * ((counts / rows[:, None] - ancestor_frequencies) ** 2).sum(axis=1)
    prior = SMOOTHING_ROWS * (float(chance.mean()) if len(chance) else 1.0)
    excess = float((distance - chance).sum()) + prior / 2
    r = min(max(excess / (float((chance * (rows - 1)).sum()) + prior), MIN_CORRELATION), 1.0)
    parent_rows = (1 - r) / r
    return parent_rows if n_trees == 1 else float(np.sqrt(parent_rows))


def smooth_probabilities(probabilities: Floats, n_trees: int) -> Floats:
    """Return smoothed probabilities, none of which is 0: one more tree votes uniformly.

    >>> smooth_probabilities(np.array([[0.0, 1.0]]), 4).tolist()
    [[0.1, 0.9]]
    """
    return np.asarray((probabilities * n_trees + 1 / probabilities.shape[1]) / (n_trees + 1))


def row_uniforms(codes: Codes, seed: int) -> Floats:
    """Return a number in [0, 1) per row, a fixed function of the row and a public seed.

    Probabilistic averaging draws one class per prediction (Bojarski et al., section 3). Since the draw depends on the
    row alone, equal rows get equal predictions in every batch. The draw protects nothing and need not be secret.
    """
    return (row_hash(codes, seed) >> np.uint64(11)) / 2.0**53
