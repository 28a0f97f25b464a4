# SPDX-License-Identifier: Apache-2.0
"""The search for the weights of marginals that leave the least error on a workload.

Letters are those of ``search``: shares t = softmax(z), traces g_R, precisions lambda_R.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from veilwood.errors import DomainTooLargeError, MechanismError
from veilwood.forests.matrix.strategies import Marginals, MarginalSource, NoiseName, nonzero_spaces
from veilwood.forests.matrix.workloads import PathWorkload, Workload, features_of
from veilwood.trees.counting import HAVE_NUMBA

__all__ = ["Mixture", "candidate_mixtures", "direct_error", "search_marginals"]


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Objective = Callable[[Floats], tuple[float, Floats]]

_MAX_SETS = 1 << 16  # sets of features considered as marginals
_WEIGHT_GRID = 1 << 14  # weights are rounded to multiples of 1 / _GRID; much finer, and inverses lose their digits
_STEPS = 300  # of a descent
_FIRST_STEPS = 12  # of a descent over many sets, after which it goes on among those that still matter
_MIN_WEIGHT = 1e-3  # share, as a part of the largest, of a set that still matters
_MANY_SETS = 1024
_HOPELESS_FACTORS = {1: 16, 4: 4}  # after so many starts, a best error so many times too large will not be made up for
_MAX_PAIRS = 1 << 24  # of sets that are left and spaces that are seen: a matrix of them is written down


class _SetFamily:
    """A downward-closed family of sets of features, with sums over supersets and subsets inside it."""

    def __init__(self, masks: Ints) -> None:
        self.masks = np.sort(masks)
        n_bits = int(self.masks[-1]).bit_length()
        self.complete = len(self.masks) == 1 << n_bits  # then a sum is over one axis of a cube after the other
        self.bits = range(n_bits)
        self.steps: list[tuple[Ints, Ints]] = []  # without a feature, with it
        for i in () if self.complete else self.bits:
            with_i = np.flatnonzero(self.masks >> i & 1)
            self.steps.append((np.searchsorted(self.masks, self.masks[with_i] ^ (1 << i)), with_i))
        nothing = np.zeros(0, np.int64)
        self.pairs = [np.concatenate([nothing, *(step[side] for step in self.steps)]) for side in (0, 1)]

    def over_supersets(self, values: Floats) -> Floats:
        """Sum over the members that contain each member (a zeta transform, one feature at a time)."""
        return self.sum_feature(values, 0)

    def over_subsets(self, values: Floats) -> Floats:
        """Sum over the members inside each member."""
        return self.sum_feature(values, 1)

    def sum_feature(self, values: Floats, direction: Literal[0, 1], *, fast: bool = HAVE_NUMBA) -> Floats:
        """Add members with a feature to those without it, or (1) the other way round, for one feature at a time."""
        sums = values.copy()
        if fast:
            from veilwood import kernels

            if self.complete:
                kernels.add_halves(sums, len(self.bits), direction)
            else:
                kernels.add_pairs(sums, self.pairs[direction], self.pairs[1 - direction])
            return sums
        for i in self.bits if self.complete else ():
            halves = sums.reshape(-1, 2, 1 << i)
            halves[:, direction] += halves[:, 1 - direction]
        for step in self.steps:
            sums[step[direction]] += sums[step[1 - direction]]
        return sums


def _build_family(workload: Workload, spaces: Ints, max_cells: int, power: float | None) -> _SetFamily:
    """The sets a query sees, and beyond them all sets up to the largest order that keeps the family small.

    With a share t, a set S of n_S cells gives each set R inside it the precision t^2 / n_S (t / n_S under Gaussian
    noise). R has as much from t sqrt(n_R / n_S) for itself. Where these shares add up to less than t for the largest
    sets that are seen inside S, it is better to measure those, and S is left out. ``power`` is 1 / 2, or 1 under
    Gaussian noise; None keeps all, for the discrete noise of a large budget.
    """
    shape = np.array(workload.shape, float)

    def cells(masks: Ints) -> Floats:
        bits = masks[:, None] >> np.arange(len(shape)) & 1
        product: Floats = np.exp(bits @ np.log(shape))
        return product

    largest = cells(spaces).max()
    if largest > max_cells * (1 + 1e-9):
        raise DomainTooLargeError(
            f"a path of the forest fixes features with {largest:.0f} combinations of values; the limit is {max_cells}. "
            "Hint: lower max_depth, give numeric columns fewer bins, or use several ensembles over fewer features."
        )
    used = [i for i in features_of(int(np.bitwise_or.reduce(spaces))) if workload.shape[i] > 1]
    family = level = np.zeros(1, np.int64)
    for _ in used:
        level = np.concatenate([level[level < 1 << i] | 1 << i for i in used])  # each set once, by its last feature
        level = level[cells(level) <= max_cells * (1 + 1e-9)]
        if not len(level) or len(family) + len(level) > _MAX_SETS:
            break
        family = np.concatenate([family, level])
    whole = _SetFamily(np.union1d(family, spaces))
    if power is None:
        return whole
    largest_seen = np.zeros(len(whole.masks))
    largest_seen[np.searchsorted(whole.masks, _maximal_sets(spaces))] = 1
    prices = cells(whole.masks) ** power
    worth = whole.over_subsets(largest_seen * prices) > prices * (1 + 1e-9)
    worth[np.searchsorted(whole.masks, spaces)] = True
    # Sums over a family need all subsets of its members.
    return _SetFamily(whole.masks[whole.over_supersets(worth.astype(float)) > 0])


def _maximal_sets(spaces: Ints) -> Ints:
    """Those of some sets that are in no other of them."""
    largest: Ints = spaces[[((spaces & one) == one).sum() == 1 for one in spaces]]
    return largest


def search_marginals(
    workload: Workload,
    traces: Mapping[int, float],
    *,
    noise: NoiseName,
    rng: np.random.Generator,
    max_cells: int,
    starts: int | None = None,
    budget: int | None = None,
    enough: float = math.inf,
) -> list[Marginals]:
    """Best weighted marginals of several starts: random ones first, then kicks of the best found.

    Parameters
    ----------
    workload : Workload
        Gives the domain.
    traces : mapping
        The trace of what is asked on each residual space, by bit mask.
    noise, rng, max_cells, starts
        As in ``search.optimize``.
    budget : int, optional
        The epsilon for whose discrete noise is searched; without one, for continuous noise of any scale.
    enough : float
        An error that is had otherwise, where a count at the whole budget has variance 1. A few starts that come nowhere
        near it end the search.
    """
    spaces = np.array(list(traces), np.int64)
    family = _build_family(
        workload, spaces, max_cells, None if budget is not None else 0.5 if noise == "laplace" else 1.0
    )
    g = np.zeros(len(family.masks))
    g[np.searchsorted(family.masks, spaces)] = list(traces.values())
    g[g <= 1e-12 * g.max()] = 0
    bits = family.masks[:, None] >> np.arange(len(workload.shape)) & 1
    inverse_cells = np.exp(-(bits @ np.log(workload.shape)))
    objective = _marginals_objective(family, g, inverse_cells, noise, budget)

    # Gaussian error is convex in the shares (Xiao et al. 2024): one start is enough. Laplace error is not: its
    # optima are sparse, like covering designs, each start finds another one, and kicking the best helps most.
    m, order = len(g), bits.sum(axis=1)
    if noise == "gaussian":
        best = _minimize(objective, np.zeros(m), 500)
        return _round_marginals(workload, spaces[g[np.searchsorted(family.masks, spaces)] > 0], family,
                                  np.sqrt(_softmax(best[1])))  # fmt: skip
    count = starts or (64 if m <= _MANY_SETS else 48 if m <= _MANY_SETS << 4 else 32)
    depth = int(order[g > 0].max())
    deepest = min(depth + 2, int(order.max()))
    found: tuple[float, Floats] | None = None
    for start in range(count):
        random = rng.random(m)
        if found is None or start < count // 2:
            away = np.abs(order - rng.integers(depth, deepest + 1))
            z = rng.choice([1, 4]) * np.log(random + 1e-3) - rng.choice([0, 1]) * away
        else:
            spread = 0.3 * 10 ** rng.uniform(-1, 1) / m
            z = np.log(_softmax(found[1]) * random**2 + spread * rng.random(m) + 1e-300)
        result = _minimize_two_phase(objective, family, g, inverse_cells, budget, z)
        if found is None or result[0] < found[0]:
            found = result
        limit = _HOPELESS_FACTORS.get(start + 1, math.inf) * workload.n_cells * enough
        if budget is None and math.exp(found[0]) > limit:
            break
    assert found is not None
    return _round_marginals(workload, family.masks[g > 0], family, _softmax(found[1]))


def _precision_and_slope(t: Floats, noise: NoiseName, budget: int | None) -> tuple[Floats, Floats]:
    """1 / Var_S up to a constant, by share, and its slope."""
    if noise == "gaussian":
        return t, np.ones_like(t)
    if budget is None:
        return t**2, 2 * t
    x = np.minimum(budget * t, 300.0)  # discrete Laplace noise of scale 1 / (t_S epsilon)
    return 2 * np.sinh(x / 2) ** 2, budget * np.sinh(x)


def _marginals_objective(
    family: _SetFamily, g: Floats, inverse_cells: Floats, noise: NoiseName, budget: int | None
) -> Objective:
    """Logarithm of the expected error as a function of the logits, with its gradient."""
    seen = g > 0

    def objective(z: Floats) -> tuple[float, Floats]:
        t = _softmax(z)
        precision, slope = _precision_and_slope(t, noise, budget)
        lam = family.over_supersets(precision * inverse_cells)[seen]
        error = float((g[seen] / lam).sum())
        pull = np.zeros(len(g))
        pull[seen] = g[seen] / lam**2
        by_share = -slope * inverse_cells * family.over_subsets(pull)
        return math.log(error), t * (by_share - t @ by_share) / error

    return objective


def _minimize_two_phase(
    objective: Objective, family: _SetFamily, g: Floats, inverse_cells: Floats, budget: int | None, start: Floats
) -> tuple[float, Floats]:
    """Value and place of a local minimum under Laplace noise, over many sets first, then among the few that matter."""
    if len(g) <= _MANY_SETS:
        return _minimize(objective, start, _STEPS)
    value, z = _minimize(objective, start, _FIRST_STEPS)
    t = _softmax(z)
    left, seen = np.flatnonzero(t >= _MIN_WEIGHT * t.max()), np.flatnonzero(g > 0)
    if len(left) * len(seen) > _MAX_PAIRS:
        return _minimize(objective, z, _STEPS - _FIRST_STEPS)
    wanted = family.masks[seen]
    holds = ((family.masks[left][None, :] & wanted[:, None]) == wanted[:, None]) * inverse_cells[left]
    if not holds.any(axis=1).all():
        return _minimize(objective, z, _STEPS - _FIRST_STEPS)

    def restricted_objective(x: Floats) -> tuple[float, Floats]:
        shares = _softmax(x)
        precision, slope = _precision_and_slope(shares, "laplace", budget)
        lam = holds @ precision
        error = float((g[seen] / lam).sum())
        by_share = -slope * ((g[seen] / lam**2) @ holds)
        return math.log(error), shares * (by_share - shares @ by_share) / error

    value, x = _minimize(restricted_objective, z[left], _STEPS - _FIRST_STEPS)
    whole = np.full(len(g), -np.inf)
    whole[left] = x
    return value, whole


def _round_marginals(workload: Workload, spaces: Ints, family: _SetFamily, weights: Floats) -> list[Marginals]:
    """Integer weights, with small ones dropped at several levels; those that still measure all that is seen."""
    candidates: dict[tuple[int, ...], Marginals] = {}
    for least in (1e-4, 1e-3, 1e-2, 3e-2):
        kept = np.where(weights >= least * weights.max(), weights, 0)
        whole = np.rint(kept / kept.sum() * _WEIGHT_GRID).astype(np.int64)
        whole //= np.gcd.reduce(whole)
        support = np.flatnonzero(whole)
        key = tuple(support.tolist())
        masks = family.masks[support]
        if key not in candidates and all(((masks & space) == space).any() for space in spaces):
            chosen = {features_of(int(family.masks[place])): int(whole[place]) for place in support}
            candidates[key] = Marginals(workload, chosen)
    return list(candidates.values())


def _minimize(objective: Objective, start: Floats, steps: int) -> tuple[float, Floats]:
    """Value and place of a local minimum."""
    result = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return float(result.fun), result.x


def _softmax(z: Floats) -> Floats:
    powers = np.exp(z - z.max())
    shares: Floats = powers / powers.sum()
    return shares


Trees: TypeAlias = dict[int, tuple[int, ...]]  # by the weight that their leaves get

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
        self._leaves = [_select_leaves(workload, group) for group in self.trees.values()]
        self._paths = workload
        self.rest_marginals = np.setdiff1d(np.arange(n_trees), chosen)
        self.tables = (*self.tables, *((len(leaves),) for leaves in self._leaves))
        self.l1 += sum(weight * len(group) for weight, group in self.trees.items())
        self.l2_squared += sum(weight**2 * len(group) for weight, group in self.trees.items())
        self.name = "leaves of trees and weighted marginals" if weights else "leaves of trees"

    def with_marginals(self, noise: NoiseName, marginals: Marginals) -> Mixture:
        """The same trees beside other marginals, with the shares that both ask for."""
        root = 3 if noise == "laplace" else 2
        chosen = np.setdiff1d(np.arange(self.n_trees), self.rest_marginals)
        rest = float(errors_by_tree(self._paths, noise, marginals)[self.rest_marginals].sum()) ** (1 / root)
        return _mix_strategies(self._paths, noise, chosen, rest, marginals)

    def laplace_scales(self, epsilon: Fraction) -> list[Fraction]:
        """Scale (L1 norm of a column) / (weight epsilon) of each table."""
        return [Fraction(self.l1, weight) / epsilon for weight in (*self.weights.values(), *self.trees)]

    def sigma_squared(self, rho: Fraction) -> list[Fraction]:
        """Parameter (squared L2 norm of a column) / (2 weight^2 rho) of each table."""
        return [Fraction(self.l2_squared, 2 * weight**2) / rho for weight in (*self.weights.values(), *self.trees)]

    def table_sensitivities(self, noise: NoiseName) -> list[tuple[Fraction, int, int]]:
        """One record adds 1 to one leaf of each tree of a table."""
        power, whole = (1, self.l1) if noise == "laplace" else (2, self.l2_squared)
        trees = [(Fraction(weight**power * len(group), whole), len(group)) for weight, group in self.trees.items()]
        return [*super().table_sensitivities(noise), *((share, moved, moved) for share, moved in trees)]

    def can_answer(self, workload: Workload) -> bool:
        """Whether it is the forest's own workload, and the marginals answer the trees that are not measured."""
        known = isinstance(workload, PathWorkload) and workload.forest is self._paths.forest
        return known and self._same_domain(workload) and bool(self._is_measured(self._unmeasured_spaces()[0]).all())

    def _unmeasured_spaces(self) -> tuple[Ints, Floats]:
        """The residual spaces that the trees not measured see, and their traces."""
        if not len(self.rest_marginals):
            return np.zeros(0, np.int64), np.zeros(0)
        traces = np.asarray(self._paths.traces_of_trees[self.rest_marginals].sum(axis=0))
        by_space = dict(zip(self._paths.residual_spaces.tolist(), traces.tolist(), strict=True))
        spaces = nonzero_spaces(by_space)
        return spaces, np.array([by_space[int(space)] for space in spaces])

    def _measure_counts(self, counts: MarginalSource) -> list[Ints]:
        leaves = counts.leaf_counts(self._paths)
        return [*super()._measure_counts(counts), *(leaves[group] for group in self._leaves)]

    def _total_variance(self, workload: Workload, variances: Sequence[float]) -> float:
        spaces, traces = self._unmeasured_spaces()
        split = len(self.weights)
        by_marginals = float((traces / self.space_precisions(spaces, variances[:split])).sum()) if len(spaces) else 0.0
        return by_marginals + sum(
            len(leaves) * variance for leaves, variance in zip(self._leaves, variances[split:], strict=True)
        )

    def _estimate_answers(self, noisy: Sequence[Floats], workload: Workload, variances: Sequence[float]) -> Floats:
        split = len(self.weights)
        answers = np.empty((workload.n_queries, noisy[0].shape[-1]))
        if split:
            answers = super()._estimate_answers(noisy[:split], workload, variances[:split])
        for leaves, counts in zip(self._leaves, noisy[split:], strict=True):
            answers[leaves] = counts
        return answers


def candidate_mixtures(workload: PathWorkload, noise: NoiseName, marginals: Marginals | None) -> list[Mixture]:
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
    by_size = _group_by_weight(np.arange(n_trees), np.maximum(np.rint(weights / weights.max() * _LEVELS), 1))
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
    left = rest[place] * _useful_fraction(workload, noise, others, marginals) ** (1 / root)
    if (direct[place] + left) ** root < min(errors.sum(), costs.sum() ** root):
        candidates.append(_mix_strategies(workload, noise, measured, rest[place], marginals))
    return candidates


def _useful_fraction(workload: PathWorkload, noise: NoiseName, trees: Ints, marginals: Marginals) -> float:
    """Return the part of the error that is left to some trees once all is spent on marginals that tell of them."""
    spaces = workload.residual_spaces[workload.traces_of_trees[trees].sum(axis=0) > 0]
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
    precisions = marginals.space_precisions(workload.residual_spaces, variances)
    unseen = precisions <= 0  # by rounding only: marginals that answer all leaves measure all that they see
    errors: Floats = workload.traces_of_trees @ np.where(unseen, 0.0, 1 / np.where(unseen, 1.0, precisions))
    return errors


def _mix_strategies(
    workload: PathWorkload, noise: NoiseName, trees: Ints, rest: float, marginals: Marginals
) -> Mixture:
    """Put trees and marginals of a given cost together, with the shares that their costs ask for."""
    assert workload.forest is not None
    leaves = np.diff(workload.forest.tree_leaves)[trees].astype(float)
    theta = np.array(list(marginals.weights.values()), float)
    if noise == "laplace":
        of_trees, of_marginals = leaves ** (1 / 3), rest * theta / theta.sum()
    else:
        of_trees, of_marginals = leaves**0.25, np.sqrt(rest) * theta / np.sqrt((theta**2).sum())
    largest = max(of_trees.max(), of_marginals.max())
    whole_trees, whole = (np.maximum(np.rint(part / largest * _WEIGHT_GRID), 1) for part in (of_trees, of_marginals))
    step = max(1.0, whole_trees.max() / _LEVELS)
    rounded = np.maximum(np.rint(np.rint(whole_trees / step) * step), 1)
    return Mixture(
        workload,
        _group_by_weight(trees, rounded),
        dict(zip(marginals.weights, whole.astype(int).tolist(), strict=True)),
    )


def _group_by_weight(trees: Ints, weights: Floats) -> Trees:
    whole = weights.astype(np.int64)
    return {int(weight): tuple(trees[whole == weight].tolist()) for weight in np.unique(whole)}


def _select_leaves(workload: PathWorkload, trees: tuple[int, ...]) -> Ints:
    assert workload.forest is not None
    ends = workload.forest.tree_leaves
    return np.concatenate([np.arange(ends[tree], ends[tree + 1]) for tree in trees])
