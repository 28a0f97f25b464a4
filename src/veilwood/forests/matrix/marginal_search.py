# SPDX-License-Identifier: Apache-2.0
"""The search for the weights of marginals that leave the least error on a workload.

Letters are those of ``search``: shares t = softmax(z), traces g_R, precisions lambda_R.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from veilwood.errors import DomainTooLargeError
from veilwood.forests.matrix.strategies import Marginals, NoiseName
from veilwood.forests.matrix.workloads import Workload, features_of
from veilwood.trees.counting import HAVE_NUMBA

__all__ = ["search_marginals"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Objective = Callable[[Floats], tuple[float, Floats]]

_MOST_SETS = 1 << 16  # sets of features considered as marginals
_GRID = 1 << 14  # weights are rounded to multiples of 1 / _GRID; much finer, and inverses lose their digits
_STEPS = 300  # of a descent
_FIRST_STEPS = 12  # of a descent over many sets, after which it goes on among those that still matter
_LEAST = 1e-3  # share, as a part of the largest, of a set that still matters
_MANY_SETS = 1024
_HOPELESS = {1: 16, 4: 4}  # after so many starts, a best error so many times too large will not be made up for
_MOST_PAIRS = 1 << 24  # of sets that are left and spaces that are seen: a matrix of them is written down


class _Family:
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
        return self.summed(values, 0)

    def over_subsets(self, values: Floats) -> Floats:
        """Sum over the members inside each member."""
        return self.summed(values, 1)

    def summed(self, values: Floats, into: Literal[0, 1], *, fast: bool = HAVE_NUMBA) -> Floats:
        """Add members with a feature to those without it, or (1) the other way round, for one feature at a time."""
        sums = values.copy()
        if fast:
            from veilwood.forests.matrix import sum_kernels

            if self.complete:
                sum_kernels.add_halves(sums, len(self.bits), into)
            else:
                sum_kernels.add_pairs(sums, self.pairs[into], self.pairs[1 - into])
            return sums
        for i in self.bits if self.complete else ():
            halves = sums.reshape(-1, 2, 1 << i)
            halves[:, into] += halves[:, 1 - into]
        for step in self.steps:
            sums[step[into]] += sums[step[1 - into]]
        return sums


def _family(workload: Workload, spaces: Ints, max_cells: int, power: float | None) -> _Family:
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
        if not len(level) or len(family) + len(level) > _MOST_SETS:
            break
        family = np.concatenate([family, level])
    whole = _Family(np.union1d(family, spaces))
    if power is None:
        return whole
    largest_seen = np.zeros(len(whole.masks))
    largest_seen[np.searchsorted(whole.masks, _largest(spaces))] = 1
    prices = cells(whole.masks) ** power
    worth = whole.over_subsets(largest_seen * prices) > prices * (1 + 1e-9)
    worth[np.searchsorted(whole.masks, spaces)] = True
    # Sums over a family need all subsets of its members.
    return _Family(whole.masks[whole.over_supersets(worth.astype(float)) > 0])


def _largest(spaces: Ints) -> Ints:
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
    family = _family(workload, spaces, max_cells, None if budget is not None else 0.5 if noise == "laplace" else 1.0)
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
        best = _descend(objective, np.zeros(m), 500)
        return _rounded_marginals(workload, spaces[g[np.searchsorted(family.masks, spaces)] > 0], family,
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
        result = _descend_in_two(objective, family, g, inverse_cells, budget, z)
        if found is None or result[0] < found[0]:
            found = result
        limit = _HOPELESS.get(start + 1, math.inf) * workload.n_cells * enough
        if budget is None and math.exp(found[0]) > limit:
            break
    assert found is not None
    return _rounded_marginals(workload, family.masks[g > 0], family, _softmax(found[1]))


def _precision(t: Floats, noise: NoiseName, budget: int | None) -> tuple[Floats, Floats]:
    """1 / Var_S up to a constant, by share, and its slope."""
    if noise == "gaussian":
        return t, np.ones_like(t)
    if budget is None:
        return t**2, 2 * t
    x = np.minimum(budget * t, 300.0)  # discrete Laplace noise of scale 1 / (t_S epsilon)
    return 2 * np.sinh(x / 2) ** 2, budget * np.sinh(x)


def _marginals_objective(
    family: _Family, g: Floats, inverse_cells: Floats, noise: NoiseName, budget: int | None
) -> Objective:
    """Logarithm of the expected error as a function of the logits, with its gradient."""
    seen = g > 0

    def objective(z: Floats) -> tuple[float, Floats]:
        t = _softmax(z)
        precision, slope = _precision(t, noise, budget)
        lam = family.over_supersets(precision * inverse_cells)[seen]
        error = float((g[seen] / lam).sum())
        pull = np.zeros(len(g))
        pull[seen] = g[seen] / lam**2
        by_share = -slope * inverse_cells * family.over_subsets(pull)
        return math.log(error), t * (by_share - t @ by_share) / error

    return objective


def _descend_in_two(
    objective: Objective, family: _Family, g: Floats, inverse_cells: Floats, budget: int | None, start: Floats
) -> tuple[float, Floats]:
    """Value and place of a local minimum under Laplace noise, over many sets first, then among the few that matter."""
    if len(g) <= _MANY_SETS:
        return _descend(objective, start, _STEPS)
    value, z = _descend(objective, start, _FIRST_STEPS)
    t = _softmax(z)
    left, seen = np.flatnonzero(t >= _LEAST * t.max()), np.flatnonzero(g > 0)
    if len(left) * len(seen) > _MOST_PAIRS:
        return _descend(objective, z, _STEPS - _FIRST_STEPS)
    wanted = family.masks[seen]
    holds = ((family.masks[left][None, :] & wanted[:, None]) == wanted[:, None]) * inverse_cells[left]
    if not holds.any(axis=1).all():
        return _descend(objective, z, _STEPS - _FIRST_STEPS)

    def among_the_left(x: Floats) -> tuple[float, Floats]:
        shares = _softmax(x)
        precision, slope = _precision(shares, "laplace", budget)
        lam = holds @ precision
        error = float((g[seen] / lam).sum())
        by_share = -slope * ((g[seen] / lam**2) @ holds)
        return math.log(error), shares * (by_share - shares @ by_share) / error

    value, x = _descend(among_the_left, z[left], _STEPS - _FIRST_STEPS)
    whole = np.full(len(g), -np.inf)
    whole[left] = x
    return value, whole


def _rounded_marginals(workload: Workload, seen: Ints, family: _Family, weights: Floats) -> list[Marginals]:
    """Integer weights, with small ones dropped at several levels; those that still measure all that is seen."""
    candidates: dict[tuple[int, ...], Marginals] = {}
    for least in (1e-4, 1e-3, 1e-2, 3e-2):
        kept = np.where(weights >= least * weights.max(), weights, 0)
        whole = np.rint(kept / kept.sum() * _GRID).astype(np.int64)
        whole //= np.gcd.reduce(whole)
        support = np.flatnonzero(whole)
        key = tuple(support.tolist())
        masks = family.masks[support]
        if key not in candidates and all(((masks & space) == space).any() for space in seen):
            chosen = {features_of(int(family.masks[place])): int(whole[place]) for place in support}
            candidates[key] = Marginals(workload, chosen)
    return list(candidates.values())


def _descend(objective: Objective, start: Floats, steps: int) -> tuple[float, Floats]:
    """Value and place of a local minimum."""
    result = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return float(result.fun), result.x


def _softmax(z: Floats) -> Floats:
    powers = np.exp(z - z.max())
    shares: Floats = powers / powers.sum()
    return shares
