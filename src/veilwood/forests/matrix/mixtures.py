# SPDX-License-Identifier: Apache-2.0
"""The leaves of trees measured as they are, alone or beside weighted marginals that answer the other trees.

Few trees over many features are best measured directly: their leaves are few, and one record moves one leaf of each.
Letters are those of ``strategies``. One more: s, the share of the budget that a table gets; its counts then have a
variance proportional to 1 / s^2 under Laplace noise, and to 1 / s under Gaussian noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from veilwood.errors import MechanismError
from veilwood.forests.matrix.counted import CountedRecords
from veilwood.forests.matrix.strategies import Floats, Ints, Marginals, NoiseName, seen_spaces
from veilwood.forests.matrix.workloads import PathWorkload, Workload

__all__ = ["Mixture", "direct_error", "mixtures"]

Trees: TypeAlias = dict[int, tuple[int, ...]]  # by the weight that their leaves get

_GRID = 1 << 14  # shares are rounded to multiples of 1 / _GRID
_LEVELS = 64  # weights of trees are rounded to so many, so that trees alike are measured as one table


class Mixture(Marginals):
    """The leaves of some trees, each with the weight of its tree, and weighted marginals for the leaves of the others.

    A leaf that is measured is answered by its own count, another one by the marginals. Measuring a leaf both ways would
    be no better: with a share s for itself its precision is s^2 / a + (1 - s)^2 / b (under Gaussian noise s / a +
    (1 - s) / b), which is largest at s = 0 or s = 1.

    Parameters
    ----------
    workload : PathWorkload
        The leaves of a forest, made by ``PathWorkload.from_forest``.
    trees : dict
        Trees whose leaves are measured, by their positive integer weight.
    weights : dict
        Positive integer weight of each marginal, by tuple of features.
    """

    def __init__(self, workload: PathWorkload, trees: Trees, weights: dict[tuple[int, ...], int]) -> None:
        super().__init__(workload, weights)
        if workload.forest is None:
            raise MechanismError("the leaves of trees are measured where the forest is known: use from_forest.")
        chosen = [tree for group in trees.values() for tree in group]
        self.n_trees = n_trees = workload.forest.n_trees
        if any(int(weight) != weight or weight < 1 or not group for weight, group in trees.items()):
            raise MechanismError("a weight of trees is not an integer above 0, or has no trees.")
        if len(set(chosen)) < len(chosen) or not chosen or not 0 <= min(chosen) <= max(chosen) < n_trees:
            raise MechanismError(f"trees are not numbered 0 to {n_trees - 1}, each at most once, at least one of them.")
        self.trees: Trees = {int(weight): tuple(sorted(int(tree) for tree in trees[weight])) for weight in trees}
        self._leaves = [_leaves_of(workload, group) for group in self.trees.values()]
        self._paths = workload
        self.rest = np.setdiff1d(np.arange(n_trees), chosen)
        self.tables = (*self.tables, *((len(leaves),) for leaves in self._leaves))
        self.l1 += sum(weight * len(group) for weight, group in self.trees.items())
        self.l2_squared += sum(weight**2 * len(group) for weight, group in self.trees.items())
        self.name = "leaves of trees and weighted marginals" if weights else "leaves of trees"

    def with_marginals(self, noise: NoiseName, marginals: Marginals) -> Mixture:
        """The same trees beside other marginals, with the shares that both ask for."""
        root = 3 if noise == "laplace" else 2
        chosen = np.setdiff1d(np.arange(self.n_trees), self.rest)
        rest = float(errors_by_tree(self._paths, noise, marginals)[self.rest].sum()) ** (1 / root)
        return _mixed(self._paths, noise, chosen, rest, marginals)

    def scales(self, epsilon: Fraction) -> list[Fraction]:
        """Scale (L1 norm of a column) / (weight epsilon) of each table."""
        return [Fraction(self.l1, weight) / epsilon for weight in (*self.weights.values(), *self.trees)]

    def sigma_squared(self, rho: Fraction) -> list[Fraction]:
        """Parameter (squared L2 norm of a column) / (2 weight^2 rho) of each table."""
        return [Fraction(self.l2_squared, 2 * weight**2) / rho for weight in (*self.weights.values(), *self.trees)]

    def parts(self, noise: NoiseName) -> list[tuple[Fraction, int, int]]:
        """One record adds 1 to one leaf of each tree of a table."""
        power, whole = (1, self.l1) if noise == "laplace" else (2, self.l2_squared)
        trees = [(Fraction(weight**power * len(group), whole), len(group)) for weight, group in self.trees.items()]
        return [*super().parts(noise), *((share, moved, moved) for share, moved in trees)]

    def supports(self, workload: Workload) -> bool:
        """Whether it is the forest's own workload, and the marginals answer the trees that are not measured."""
        known = isinstance(workload, PathWorkload) and workload.forest is self._paths.forest
        return known and self._same_domain(workload) and bool(self._covered(self._rest()[0]).all())

    def _rest(self) -> tuple[Ints, Floats]:
        """The residual spaces that the trees not measured see, and their traces."""
        if not len(self.rest):
            return np.zeros(0, np.int64), np.zeros(0)
        traces = np.asarray(self._paths.traces_of_trees[self.rest].sum(axis=0))
        by_space = dict(zip(self._paths.spaces.tolist(), traces.tolist(), strict=True))
        spaces = seen_spaces(by_space)
        return spaces, np.array([by_space[int(space)] for space in spaces])

    def _measure(self, counts: CountedRecords) -> list[Ints]:
        leaves = counts.leaves(self._paths)
        return [*super()._measure(counts), *(leaves[group] for group in self._leaves)]

    def _error(self, workload: Workload, variances: Sequence[float]) -> float:
        spaces, traces = self._rest()
        split = len(self.weights)
        by_marginals = float((traces / self.precisions(spaces, variances[:split])).sum()) if len(spaces) else 0.0
        return by_marginals + sum(
            len(leaves) * variance for leaves, variance in zip(self._leaves, variances[split:], strict=True)
        )

    def _estimate(self, noisy: Sequence[Floats], workload: Workload, variances: Sequence[float]) -> Floats:
        split = len(self.weights)
        answers = np.empty((workload.n_queries, noisy[0].shape[-1]))
        if split:
            answers = super()._estimate(noisy[:split], workload, variances[:split])
        for leaves, counts in zip(self._leaves, noisy[split:], strict=True):
            answers[leaves] = counts
        return answers


def mixtures(workload: PathWorkload, noise: NoiseName, marginals: Marginals | None) -> list[Mixture]:
    """Return candidates that measure leaves directly: all trees alike, all by their size, and a part of the trees.

    With shares of the best size, L leaves of a tree cost L^(1/3) and marginals E^(1/3), where E is the error that they
    leave at the whole budget; the error of all is the third power of the sum of costs (under Gaussian noise the square
    of the sum of square roots). So trees are measured directly for which marginals err most, as many as pay.

    Parameters
    ----------
    workload : PathWorkload
        The leaves; without a forest there are no candidates.
    noise : {"laplace", "gaussian"}
        Kind of noise.
    marginals : Marginals, optional
        Weighted marginals that answer all leaves.
    """
    if workload.forest is None:
        return []
    root = 3 if noise == "laplace" else 2
    leaves = np.diff(workload.forest.tree_leaves).astype(float)
    n_trees = len(leaves)
    costs = leaves ** (1 / root)
    weights = costs if noise == "laplace" else np.sqrt(costs)
    candidates = [Mixture(workload, {1: tuple(range(n_trees))}, {})]
    by_size = _by_weight(np.arange(n_trees), np.maximum(np.rint(weights / weights.max() * _LEVELS), 1))
    if len(by_size) > 1:
        candidates.append(Mixture(workload, by_size, {}))
    if marginals is None or n_trees == 1:
        return candidates
    errors = errors_by_tree(workload, noise, marginals)
    order = np.argsort(-errors / leaves, kind="stable")
    direct = np.cumsum(costs[order])[:-1]
    rest = np.cumsum(errors[order][::-1])[::-1][1:] ** (1 / root)
    total = (direct + rest) ** root
    place = int(total.argmin())
    measured, others = order[: place + 1], order[place + 1 :]
    left = rest[place] * _share_that_serves(workload, noise, others, marginals) ** (1 / root)
    if (direct[place] + left) ** root < min(errors.sum(), costs.sum() ** root):
        candidates.append(_mixed(workload, noise, measured, rest[place], marginals))
    return candidates


def _share_that_serves(workload: PathWorkload, noise: NoiseName, trees: Ints, marginals: Marginals) -> float:
    """Return the part of the error that is left to some trees once all is spent on marginals that tell of them."""
    spaces = workload.spaces[workload.traces_of_trees[trees].sum(axis=0) > 0]
    spaces = spaces[spaces > 0]  # the number of all rows is told by every marginal
    weights = np.array(list(marginals.weights.values()), float)
    masks = np.array([sum(1 << i for i in features) for features in marginals.weights], np.int64)
    serves = ((masks[:, None] & spaces) == spaces).any(axis=1)
    if noise == "laplace":
        return float(weights[serves].sum() / weights.sum()) ** 2
    return float((weights[serves] ** 2).sum() / (weights**2).sum())


def direct_error(workload: PathWorkload, noise: NoiseName) -> float:
    """Return the error of measuring all leaves directly, where a count at the whole budget has variance 1."""
    if workload.forest is None:
        return math.inf
    root = 3 if noise == "laplace" else 2
    return float((np.diff(workload.forest.tree_leaves) ** (1 / root)).sum() ** root)


def errors_by_tree(workload: PathWorkload, noise: NoiseName, marginals: Marginals) -> Floats:
    """Return the error that marginals leave on each tree, where a count at the whole budget has variance 1."""
    whole, power = (marginals.l1, 2) if noise == "laplace" else (marginals.l2_squared**0.5, 2)
    variances = [(whole / weight) ** power for weight in marginals.weights.values()]
    precisions = marginals.precisions(workload.spaces, variances)
    unseen = precisions <= 0  # by rounding only: marginals that answer all leaves measure all that they see
    errors: Floats = workload.traces_of_trees @ np.where(unseen, 0.0, 1 / np.where(unseen, 1.0, precisions))
    return errors


def _mixed(workload: PathWorkload, noise: NoiseName, trees: Ints, rest: float, marginals: Marginals) -> Mixture:
    """Put trees and marginals of a given cost together, with the shares that their costs ask for."""
    assert workload.forest is not None
    leaves = np.diff(workload.forest.tree_leaves)[trees].astype(float)
    theta = np.array(list(marginals.weights.values()), float)
    if noise == "laplace":
        of_trees, of_marginals = leaves ** (1 / 3), rest * theta / theta.sum()
    else:
        of_trees, of_marginals = leaves**0.25, np.sqrt(rest) * theta / np.sqrt((theta**2).sum())
    largest = max(of_trees.max(), of_marginals.max())
    whole_trees, whole = (np.maximum(np.rint(part / largest * _GRID), 1) for part in (of_trees, of_marginals))
    step = max(1.0, whole_trees.max() / _LEVELS)
    rounded = np.maximum(np.rint(np.rint(whole_trees / step) * step), 1)
    return Mixture(
        workload, _by_weight(trees, rounded), dict(zip(marginals.weights, whole.astype(int).tolist(), strict=True))
    )


def _by_weight(trees: Ints, weights: Floats) -> Trees:
    whole = weights.astype(np.int64)
    return {int(weight): tuple(trees[whole == weight].tolist()) for weight in np.unique(whole)}


def _leaves_of(workload: PathWorkload, trees: tuple[int, ...]) -> Ints:
    assert workload.forest is not None
    ends = workload.forest.tree_leaves
    return np.concatenate([np.arange(ends[tree], ends[tree + 1]) for tree in trees])
