# SPDX-License-Identifier: Apache-2.0
"""Search for the weights of marginals with the least error on a workload, alone or combined with leaves of trees.

Letters are those of ``search``: shares t = softmax(z), traces g_R, precisions lambda_R.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np
from scipy.optimize import minimize

from veilwood.arrays import HAVE_NUMBA, Floats, Ints
from veilwood.errors import DomainTooLargeError, MechanismError
from veilwood.forests.matrix.strategies import Marginals, MarginalSource, NoiseName, nonzero_spaces
from veilwood.forests.matrix.workloads import PathWorkload, Workload, features_of

Objective = Callable[[Floats], tuple[float, Floats]]

_MAX_SETS = 1 << 16  # sets of features considered as marginals
_WEIGHT_GRID = 1 << 14  # integer units of a weight; finer grids lose precision in inverses
_STEPS = 300  # of a descent
_FIRST_STEPS = 12  # of a descent over many sets, before it is restricted to the sets that still matter
_MIN_WEIGHT = 1e-3  # smallest share of a set that is kept, relative to the largest share
_MANY_SETS = 1024
_HOPELESS_FACTORS = {1: 16, 4: 4}  # number of starts: ratio of the best error to ``enough`` that ends the search
_MAX_PAIRS = 1 << 24  # maximum product of remaining sets and spaces of the workload, for an explicit matrix


class _SetFamily:
    """Downward-closed family of sets of features, with sums over supersets and subsets within it."""

    def __init__(self, masks: Ints) -> None:
        self.masks = np.sort(masks)
        n_bits = int(self.masks[-1]).bit_length()
        self.complete = len(self.masks) == 1 << n_bits  # then sums run over the axes of a cube
        self.bits = range(n_bits)
        self.steps: list[tuple[Ints, Ints]] = []  # per feature: members without it, and with it
        for i in () if self.complete else self.bits:
            with_i = np.flatnonzero(self.masks >> i & 1)
            self.steps.append((np.searchsorted(self.masks, self.masks[with_i] ^ (1 << i)), with_i))
        nothing = np.zeros(0, np.int64)
        self.pairs = [np.concatenate([nothing, *(step[side] for step in self.steps)]) for side in (0, 1)]

    def over_supersets(self, values: Floats) -> Floats:
        """Return sums over the members that contain each member (a zeta transform, feature by feature)."""
        return self.sum_feature(values, 0)

    def over_subsets(self, values: Floats) -> Floats:
        """Return sums over the subsets of each member."""
        return self.sum_feature(values, 1)

    def sum_feature(self, values: Floats, direction: Literal[0, 1], *, fast: bool = HAVE_NUMBA) -> Floats:
        """For each feature, add the sets with it to those without it (``0``), or the reverse (``1``)."""
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
    """Return the sets of the queries, and all other sets up to the largest order that keeps the family small.

    With a share t, a set S of n_S cells gives each subset R the precision t^2 / n_S (t / n_S under Gaussian noise). R
    gets the same precision from its own share t sqrt(n_R / n_S). If these shares add up to less than t for the largest
    sets of queries inside S, it is better to measure these sets, and S is omitted. ``power`` is 1/2, or 1 under
    Gaussian noise. None keeps all sets, for the discrete noise of a large budget.
    """
    shape = np.array(workload.shape, float)

    def cells_of(masks: Ints) -> Floats:
        bits = masks[:, None] >> np.arange(len(shape)) & 1
        product: Floats = np.exp(bits @ np.log(shape))
        return product

    largest = cells_of(spaces).max()
    if largest > max_cells * (1 + 1e-9):
        raise DomainTooLargeError(
            f"a path of the forest fixes features with {largest:.0f} combinations of values; the limit is {max_cells}. "
            "Hint: lower max_depth, give numeric columns fewer bins, or use several ensembles over fewer features."
        )
    used = [i for i in features_of(int(np.bitwise_or.reduce(spaces))) if workload.shape[i] > 1]
    family = level = np.zeros(1, np.int64)
    for _ in used:
        level = np.concatenate([level[level < 1 << i] | 1 << i for i in used])  # each set once, from its last feature
        level = level[cells_of(level) <= max_cells * (1 + 1e-9)]
        if not len(level) or len(family) + len(level) > _MAX_SETS:
            break
        family = np.concatenate([family, level])
    full = _SetFamily(np.union1d(family, spaces))
    if power is None:
        return full
    is_maximal = np.zeros(len(full.masks))
    is_maximal[np.searchsorted(full.masks, _maximal_sets(spaces))] = 1
    costs = cells_of(full.masks) ** power
    useful = full.over_subsets(is_maximal * costs) > costs * (1 + 1e-9)
    useful[np.searchsorted(full.masks, spaces)] = True
    # Sums over a family need all subsets of its members.
    return _SetFamily(full.masks[full.over_supersets(useful.astype(float)) > 0])


def _maximal_sets(spaces: Ints) -> Ints:
    """Return the sets that are not a subset of another set."""
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
    """Return weighted marginals from several starts: random ones first, then perturbations of the best result.

    Parameters
    ----------
    workload : Workload
        Workload with the domain.
    traces : mapping
        Trace of the queries on each residual space, by bit mask.
    noise, rng, max_cells, starts
        As in ``search.optimize``.
    budget : int, optional
        Epsilon for which discrete noise is optimised; by default, continuous noise of any scale.
    enough : float
        Error of an alternative, in units in which a count with the whole budget has variance 1. The search ends if a
        few starts remain far above it.
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

    # Gaussian error is convex in the shares (Xiao et al. 2024): one start suffices. Laplace error is not: its optima
    # are sparse, like covering designs, each start finds another one, and perturbing the best helps most.
    m, order = len(g), bits.sum(axis=1)
    if noise == "gaussian":
        best = _find_minimum(objective, np.zeros(m), 500)
        return _round_marginals(workload, spaces[g[np.searchsorted(family.masks, spaces)] > 0], family,
                                  np.sqrt(_softmax(best[1])))  # fmt: skip
    count = starts or (64 if m <= _MANY_SETS else 48 if m <= _MANY_SETS << 4 else 32)
    depth = int(order[g > 0].max())
    deepest = min(depth + 2, int(order.max()))
    best_found: tuple[float, Floats] | None = None
    for start in range(count):
        random = rng.random(m)
        if best_found is None or start < count // 2:
            away = np.abs(order - rng.integers(depth, deepest + 1))
            z = rng.choice([1, 4]) * np.log(random + 1e-3) - rng.choice([0, 1]) * away
        else:
            spread = 0.3 * 10 ** rng.uniform(-1, 1) / m
            z = np.log(_softmax(best_found[1]) * random**2 + spread * rng.random(m) + 1e-300)
        result = _minimize_two_phase(objective, family, g, inverse_cells, budget, z)
        if best_found is None or result[0] < best_found[0]:
            best_found = result
        limit = _HOPELESS_FACTORS.get(start + 1, math.inf) * workload.n_cells * enough
        if budget is None and math.exp(best_found[0]) > limit:
            break
    assert best_found is not None
    return _round_marginals(workload, family.masks[g > 0], family, _softmax(best_found[1]))


def _precision_and_slope(t: Floats, noise: NoiseName, budget: int | None) -> tuple[Floats, Floats]:
    """Return 1 / Var_S up to a constant as a function of the share, and its derivative."""
    if noise == "gaussian":
        return t, np.ones_like(t)
    if budget is None:
        return t**2, 2 * t
    x = np.minimum(budget * t, 300.0)  # discrete Laplace noise of scale 1 / (t_S epsilon)
    return 2 * np.sinh(x / 2) ** 2, budget * np.sinh(x)


def _marginals_objective(
    family: _SetFamily, g: Floats, inverse_cells: Floats, noise: NoiseName, budget: int | None
) -> Objective:
    """Return the logarithm of the expected error as a function of the logits, with its gradient."""
    seen = g > 0

    def objective_at(z: Floats) -> tuple[float, Floats]:
        t = _softmax(z)
        precision, slope = _precision_and_slope(t, noise, budget)
        lam = family.over_supersets(precision * inverse_cells)[seen]
        error = float((g[seen] / lam).sum())
        pull = np.zeros(len(g))
        pull[seen] = g[seen] / lam**2
        by_share = -slope * inverse_cells * family.over_subsets(pull)
        return math.log(error), t * (by_share - t @ by_share) / error

    return objective_at


def _minimize_two_phase(
    objective: Objective, family: _SetFamily, g: Floats, inverse_cells: Floats, budget: int | None, start: Floats
) -> tuple[float, Floats]:
    """Return value and location of a local minimum under Laplace noise: over all sets, then over relevant sets."""
    if len(g) <= _MANY_SETS:
        return _find_minimum(objective, start, _STEPS)
    value, z = _find_minimum(objective, start, _FIRST_STEPS)
    t = _softmax(z)
    left, seen = np.flatnonzero(t >= _MIN_WEIGHT * t.max()), np.flatnonzero(g > 0)
    if len(left) * len(seen) > _MAX_PAIRS:
        return _find_minimum(objective, z, _STEPS - _FIRST_STEPS)
    wanted = family.masks[seen]
    holds = ((family.masks[left][None, :] & wanted[:, None]) == wanted[:, None]) * inverse_cells[left]
    if not holds.any(axis=1).all():
        return _find_minimum(objective, z, _STEPS - _FIRST_STEPS)

    def restricted_objective(x: Floats) -> tuple[float, Floats]:
        shares = _softmax(x)
        precision, slope = _precision_and_slope(shares, "laplace", budget)
        lam = holds @ precision
        error = float((g[seen] / lam).sum())
        by_share = -slope * ((g[seen] / lam**2) @ holds)
        return math.log(error), shares * (by_share - shares @ by_share) / error

    value, x = _find_minimum(restricted_objective, z[left], _STEPS - _FIRST_STEPS)
    logits = np.full(len(g), -np.inf)
    logits[left] = x
    return value, logits


def _round_marginals(workload: Workload, spaces: Ints, family: _SetFamily, weights: Floats) -> list[Marginals]:
    """Return marginals with integer weights that measure all spaces; several thresholds remove small weights."""
    candidates: dict[tuple[int, ...], Marginals] = {}
    for least in (1e-4, 1e-3, 1e-2, 3e-2):
        large = np.where(weights >= least * weights.max(), weights, 0)
        integers = np.rint(large / large.sum() * _WEIGHT_GRID).astype(np.int64)
        integers //= np.gcd.reduce(integers)
        support = np.flatnonzero(integers)
        key = tuple(support.tolist())
        masks = family.masks[support]
        if key not in candidates and all(((masks & space) == space).any() for space in spaces):
            chosen = {features_of(int(family.masks[place])): int(integers[place]) for place in support}
            candidates[key] = Marginals(workload, chosen)
    return list(candidates.values())


def _find_minimum(objective: Objective, start: Floats, steps: int) -> tuple[float, Floats]:
    """Return value and location of a local minimum."""
    result = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return float(result.fun), result.x


def _softmax(z: Floats) -> Floats:
    powers = np.exp(z - z.max())
    shares: Floats = powers / powers.sum()
    return shares


Trees: TypeAlias = dict[int, tuple[int, ...]]  # by the weight of their leaves

_LEVELS = 64  # number of distinct weights of trees, so that similar trees are measured as one table


class Mixture(Marginals):
    """Strategy of the leaves of some trees, weighted by tree, and weighted marginals for the leaves of the other trees.

    A measured leaf is answered by its own count, and any other leaf by the marginals. Measuring a leaf both ways would
    not be better: with a fraction s for its own count, its precision is s^2 / a + (1 - s)^2 / b (under Gaussian noise
    s / a + (1 - s) / b), which is largest at s = 0 or s = 1.

    Parameters
    ----------
    workload : PathWorkload
        Leaves of a forest, from ``PathWorkload.from_forest``.
    trees : dict
        Trees whose leaves are measured, by their positive integer weight.
    weights : dict
        Positive integer weight of each marginal, by tuple of features.
    """

    def __init__(self, workload: PathWorkload, trees: Trees, weights: dict[tuple[int, ...], int]) -> None:
        super().__init__(workload, weights)
        if workload.forest is None:
            raise MechanismError(
                "measuring leaves of trees requires a workload with its forest. Hint: use PathWorkload.from_forest."
            )
        chosen = [tree for group in trees.values() for tree in group]
        self.n_trees = n_trees = workload.forest.n_trees
        if any(int(weight) != weight or weight < 1 or not group for weight, group in trees.items()):
            raise MechanismError("weights of trees must be positive integers, each with at least one tree.")
        if len(set(chosen)) < len(chosen) or not chosen or not 0 <= min(chosen) <= max(chosen) < n_trees:
            raise MechanismError(f"trees must be distinct numbers from 0 to {n_trees - 1}, at least one of them.")
        self.trees: Trees = {int(weight): tuple(sorted(int(tree) for tree in trees[weight])) for weight in trees}
        self._leaves = [_select_leaves(workload, group) for group in self.trees.values()]
        self._paths = workload
        self.rest_marginals = np.setdiff1d(np.arange(n_trees), chosen)
        self.tables = (*self.tables, *((len(leaves),) for leaves in self._leaves))
        self.l1 += sum(weight * len(group) for weight, group in self.trees.items())
        self.l2_squared += sum(weight**2 * len(group) for weight, group in self.trees.items())
        self.name = "leaves of trees and weighted marginals" if weights else "leaves of trees"

    def with_marginals(self, noise: NoiseName, marginals: Marginals) -> Mixture:
        """Return a mixture of these trees and other marginals, with the best division of the budget between both."""
        root = 3 if noise == "laplace" else 2
        chosen = np.setdiff1d(np.arange(self.n_trees), self.rest_marginals)
        rest = float(errors_by_tree(self._paths, noise, marginals)[self.rest_marginals].sum()) ** (1 / root)
        return _mix_strategies(self._paths, noise, chosen, rest, marginals)

    def laplace_scales(self, epsilon: Fraction) -> list[Fraction]:
        """Return the scale (L1 norm of a column) / (weight epsilon) of each table."""
        return [Fraction(self.l1, weight) / epsilon for weight in (*self.weights.values(), *self.trees)]

    def sigma_squared(self, rho: Fraction) -> list[Fraction]:
        """Return the parameter (squared L2 norm of a column) / (2 weight^2 rho) of each table."""
        return [Fraction(self.l2_squared, 2 * weight**2) / rho for weight in (*self.weights.values(), *self.trees)]

    def table_sensitivities(self, noise: NoiseName) -> list[tuple[Fraction, int, int]]:
        """Return fractions by weight. One row adds 1 to one leaf of each tree of a table."""
        power, total = (1, self.l1) if noise == "laplace" else (2, self.l2_squared)
        trees = [(Fraction(weight**power * len(group), total), len(group)) for weight, group in self.trees.items()]
        return [*super().table_sensitivities(noise), *((share, moved, moved) for share, moved in trees)]

    def can_answer(self, workload: Workload) -> bool:
        """Return True for the forest's own workload if the marginals answer the trees that are not measured."""
        same_forest = isinstance(workload, PathWorkload) and workload.forest is self._paths.forest
        return (
            same_forest and self._same_domain(workload) and bool(self._is_measured(self._unmeasured_spaces()[0]).all())
        )

    def _unmeasured_spaces(self) -> tuple[Ints, Floats]:
        """Return the residual spaces of the trees that are not measured, and their traces."""
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
    """Return candidates that measure leaves directly: all trees equally, all trees by size, or some trees.

    Under the best division of the budget, L leaves of a tree cost L^(1/3) and marginals E^(1/3), where E is their error
    with the whole budget. The total error is the cube of the sum of costs (under Gaussian noise, the square of the sum
    of square roots). So trees with the largest errors of marginals are measured directly, as long as that reduces the
    total.

    Parameters
    ----------
    workload : PathWorkload
        Leaves; without a forest there are no candidates.
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
    """Return the ratio of some trees' errors after and before the whole budget goes to marginals that answer them."""
    spaces = workload.residual_spaces[workload.traces_of_trees[trees].sum(axis=0) > 0]
    spaces = spaces[spaces > 0]  # every marginal measures the number of rows
    weights = np.array(list(marginals.weights.values()), float)
    masks = np.array([sum(1 << i for i in features) for features in marginals.weights], np.int64)
    serves = ((masks[:, None] & spaces) == spaces).any(axis=1)
    if noise == "laplace":
        return float(weights[serves].sum() / weights.sum()) ** 2
    return float((weights[serves] ** 2).sum() / (weights**2).sum())


def direct_error(workload: PathWorkload, noise: NoiseName) -> float:
    """Return the error of measuring all leaves directly, if a count released with the whole budget has variance 1."""
    if workload.forest is None:
        return math.inf
    root = 3 if noise == "laplace" else 2
    return float((np.diff(workload.forest.tree_leaves) ** (1 / root)).sum() ** root)


def errors_by_tree(workload: PathWorkload, noise: NoiseName, marginals: Marginals) -> Floats:
    """Return the error of marginals on each tree, if a count released with the whole budget has variance 1."""
    norm, power = (marginals.l1, 2) if noise == "laplace" else (marginals.l2_squared**0.5, 2)
    variances = [(norm / weight) ** power for weight in marginals.weights.values()]
    precisions = marginals.space_precisions(workload.residual_spaces, variances)
    unseen = precisions <= 0  # by rounding only: marginals that answer all leaves measure all their spaces
    errors: Floats = workload.traces_of_trees @ np.where(unseen, 0.0, 1 / np.where(unseen, 1.0, precisions))
    return errors


def _mix_strategies(
    workload: PathWorkload, noise: NoiseName, trees: Ints, rest: float, marginals: Marginals
) -> Mixture:
    """Return the mixture of trees and marginals, with fractions of the budget according to their costs."""
    assert workload.forest is not None
    leaves = np.diff(workload.forest.tree_leaves)[trees].astype(float)
    theta = np.array(list(marginals.weights.values()), float)
    if noise == "laplace":
        tree_weights, marginal_weights = leaves ** (1 / 3), rest * theta / theta.sum()
    else:
        tree_weights, marginal_weights = leaves**0.25, np.sqrt(rest) * theta / np.sqrt((theta**2).sum())
    largest = max(tree_weights.max(), marginal_weights.max())
    tree_integers, marginal_integers = (
        np.maximum(np.rint(weights / largest * _WEIGHT_GRID), 1) for weights in (tree_weights, marginal_weights)
    )
    step = max(1.0, tree_integers.max() / _LEVELS)
    rounded = np.maximum(np.rint(np.rint(tree_integers / step) * step), 1)
    return Mixture(
        workload,
        _group_by_weight(trees, rounded),
        dict(zip(marginals.weights, marginal_integers.astype(int).tolist(), strict=True)),
    )


def _group_by_weight(trees: Ints, weights: Floats) -> Trees:
    integers = weights.astype(np.int64)
    return {int(weight): tuple(trees[integers == weight].tolist()) for weight in np.unique(integers)}


def _select_leaves(workload: PathWorkload, trees: tuple[int, ...]) -> Ints:
    assert workload.forest is not None
    ends = workload.forest.tree_leaves
    return np.concatenate([np.arange(ends[tree], ends[tree + 1]) for tree in trees])
