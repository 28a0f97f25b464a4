# SPDX-License-Identifier: Apache-2.0
"""The search for the strategy that answers a workload with the least noise, and how far it is from the best.

Strategies themselves (measuring, reconstructing, their expected error) live in ``strategies``.

Letters (those of ``workloads`` and ``strategies`` as well):

======  =================  ==========================================================================
letter  name               meaning
======  =================  ==========================================================================
t_S     share              share of the budget the marginal S gets; shares add up to one
z       logits             unconstrained parameters, t = softmax(z)
G       Gram matrix        W' W
B       extra rows         of a p-Identity strategy: p rows of non-negative weights under the identity
s_j     column norm        of the identity on B, divided out so that every column has norm one
======  =================  ==========================================================================

The search is a function of the workload, the budget and the seed: the same plan every time. It stops after a fixed
amount of work, never by the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from veilwood.errors import DomainTooLargeError
from veilwood.forests.matrix.strategies import Factors, Marginals, Noise, Strategy, expected_error, noise_variance
from veilwood.forests.matrix.workloads import PathWorkload, Workload, features_of

__all__ = ["lower_bound", "optimize"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Objective = Callable[[Floats], tuple[float, Floats]]

_MOST_SETS = 1 << 16  # sets of features considered as marginals
_GRID = 1 << 14  # weights are rounded to multiples of 1 / _GRID; much finer, and inverses lose their digits
_MOST_BITS = 38  # of all factors of a product together: leaves 2^24 records in an int64
_QUICK_CELLS, _THOROUGH_CELLS = 512, 2048  # p-Identity works on explicit matrices of so many cells


def optimize(
    workload: Workload,
    noise: Noise = "laplace",
    budget: Fraction = Fraction(1),
    *,
    seed: int = 0,
    starts: int | None = None,
    thorough: bool = False,
    max_cells: int = 1 << 22,
) -> Strategy:
    """Strategy with the least expected error found for a workload; never worse than the identity.

    Candidates are the identity, weighted marginals, for leaves that keep sets of values (binary trees) Kronecker
    products of p-Identity matrices, and on small domains p-Identity matrices over all cells. All are compared by
    their exact expected error, after rounding to integers and with the variance of the discrete noise.

    Parameters
    ----------
    workload : Workload
        The queries; public.
    noise : {"laplace", "gaussian"}
        Kind of noise.
    budget : Fraction
        epsilon for Laplace noise, rho for Gaussian noise.
    seed : int
        Seed of the random starts; public.
    starts : int, optional
        Number of starts; by default 64, or 32 where many sets of features have to be weighed.
    thorough : bool
        Try p-Identity strategies on domains of up to 2048 cells (otherwise 512, and only where they have been seen
        to win): seconds to a minute, for a few per cent less error on batch prediction.
    max_cells : int
        Largest table to measure, per class.

    Examples
    --------
    >>> T = PathWorkload.from_leaves((4, 4), [[0]] * 4 + [[1]] * 4, [[0], [1], [2], [3]] * 2)
    >>> best = optimize(T)
    >>> best
    <weighted marginals: 2 tables, 8 counts per class>
    >>> expected_error(T, best) < expected_error(T, Marginals.identity(T))
    True
    """
    # Hundreds of descents in a few dozen variables: threads of the linear algebra would only wait for each other.
    with threadpool_limits(limits=1, user_api="blas"):
        rng = np.random.default_rng(seed)
        budget = Fraction(budget)
        candidates: list[Strategy] = []
        if workload.n_cells <= max_cells:
            candidates.append(Marginals.identity(workload))
        candidates += _search_marginals(workload, noise, budget, rng, starts, max_cells)
        if isinstance(workload, PathWorkload) and not workload.single_valued and 4 * workload.n_cells <= max_cells:
            candidates += _search_products(workload, noise, rng)
        multiway = isinstance(workload, PathWorkload) and workload.single_valued  # there marginals always won
        if 1 < workload.n_cells <= (_THOROUGH_CELLS if thorough else 0 if multiway else _QUICK_CELLS):
            candidates += _search_explicit(workload, noise, rng)
        return min(candidates, key=lambda strategy: expected_error(workload, strategy, noise, budget))


def lower_bound(workload: Workload, noise: Noise = "laplace", budget: Fraction = Fraction(1)) -> float:
    """Expected error that no strategy can beat (Li and Miklau 2013): (sum of singular values)^2 / n times the noise.

    It is tight for Gaussian noise in symmetric cases and need not be reachable under Laplace noise. Needs the
    explicit Gram matrix: small domains only, otherwise :class:`~veilwood.errors.DomainTooLargeError`.

    Examples
    --------
    >>> T = PathWorkload.from_leaves((3,), [[0], [0], [0]], [[0], [1], [2]])    # the identity is the best
    >>> round(lower_bound(T) / expected_error(T, optimize(T)), 9)
    1.0
    """
    singular = np.sqrt(np.maximum(np.linalg.eigvalsh(workload.gram()), 0))
    # Discrete noise of scale c b, c >= 1, has at least c^2 times the variance of scale b: sinh is convex.
    unit = 1 / Fraction(budget)
    variance = noise_variance(noise, unit if noise == "laplace" else unit / 2)
    return variance * float(singular.sum()) ** 2 / workload.n_cells


class _Family:
    """A downward-closed family of sets of features, with sums over supersets and subsets inside it."""

    def __init__(self, masks: Ints) -> None:
        self.masks = np.sort(masks)
        steps = []
        for i in range(int(self.masks[-1]).bit_length()):
            with_i = np.flatnonzero(self.masks >> i & 1)
            steps.append((with_i, np.searchsorted(self.masks, self.masks[with_i] ^ (1 << i))))
        self.steps = steps

    def over_supersets(self, values: Floats) -> Floats:
        """Sum over the members that contain each member (a zeta transform, one feature at a time)."""
        sums = values.copy()
        for with_i, without_i in self.steps:
            sums[without_i] += sums[with_i]
        return sums

    def over_subsets(self, values: Floats) -> Floats:
        """Sum over the members inside each member."""
        sums = values.copy()
        for with_i, without_i in self.steps:
            sums[with_i] += sums[without_i]
        return sums


def _family(workload: Workload, spaces: Ints, max_cells: int) -> _Family:
    """The sets a query sees, and beyond them all sets up to the largest order that keeps the family small."""
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
        level = np.unique(np.concatenate([level[(level >> i & 1) == 0] | 1 << i for i in used]))
        level = level[cells(level) <= max_cells * (1 + 1e-9)]
        if not len(level) or len(family) + len(level) > _MOST_SETS:
            break
        family = np.concatenate([family, level])
    return _Family(np.union1d(family, spaces))


def _search_marginals(
    workload: Workload, noise: Noise, budget: Fraction, rng: np.random.Generator, starts: int | None, max_cells: int
) -> list[Strategy]:
    """Best weighted marginals of several starts: random ones first, then kicks of the best found."""
    traces = workload.residual_traces
    spaces = np.array(list(traces), np.int64)
    family = _family(workload, spaces, max_cells)
    g = np.zeros(len(family.masks))
    g[np.searchsorted(family.masks, spaces)] = list(traces.values())
    g[g <= 1e-12 * g.max()] = 0
    bits = family.masks[:, None] >> np.arange(len(workload.shape)) & 1
    objective = _marginals_objective(family, g, np.exp(-(bits @ np.log(workload.shape))), noise, float(budget))

    # Gaussian error is convex in the shares (Xiao et al. 2024): one start is enough. Laplace error is not: its
    # optima are sparse, like covering designs, each start finds another one, and kicking the best helps most.
    m, order = len(g), bits.sum(axis=1)
    if noise == "gaussian":
        best = _descend(objective, np.zeros(m), 500)
        return _rounded_marginals(workload, family, np.sqrt(_softmax(best[1])))
    count = starts or (64 if m <= 1024 else 32)
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
        result = _descend(objective, z, 300)
        if found is None or result[0] < found[0]:
            found = result
    assert found is not None
    return _rounded_marginals(workload, family, _softmax(found[1]))


def _marginals_objective(family: _Family, g: Floats, inverse_cells: Floats, noise: Noise, budget: float) -> Objective:
    """Logarithm of the expected error as a function of the logits, with its gradient."""
    seen = g > 0

    def objective(z: Floats) -> tuple[float, Floats]:
        t = _softmax(z)
        if noise == "laplace":  # 1 / Var_S of discrete Laplace noise of scale 1 / (t_S epsilon)
            x = np.minimum(budget * t, 300.0)
            precision, slope = 2 * np.sinh(x / 2) ** 2, budget * np.sinh(x)
        else:
            precision, slope = 2 * budget * t, np.full(len(t), 2 * budget)
        lam = family.over_supersets(precision * inverse_cells)[seen]
        error = float((g[seen] / lam).sum())
        pull = np.zeros(len(g))
        pull[seen] = g[seen] / lam**2
        by_share = -slope * inverse_cells * family.over_subsets(pull)
        return math.log(error), t * (by_share - t @ by_share) / error

    return objective


def _rounded_marginals(workload: Workload, family: _Family, weights: Floats) -> list[Strategy]:
    """Integer weights, with small ones dropped at several levels; those that still answer the workload."""
    candidates: dict[tuple[int, ...], Strategy] = {}
    for least in (1e-4, 1e-3, 1e-2, 3e-2):
        kept = np.where(weights >= least * weights.max(), weights, 0)
        whole = np.rint(kept / kept.sum() * _GRID).astype(np.int64)
        whole //= np.gcd.reduce(whole)
        support = np.flatnonzero(whole)
        key = tuple(support.tolist())
        chosen = {features_of(int(family.masks[place])): int(whole[place]) for place in support}
        strategy = Marginals(workload, chosen)
        if key not in candidates and strategy.supports(workload):
            candidates[key] = strategy
    return list(candidates.values())


def _search_products(workload: PathWorkload, noise: Noise, rng: np.random.Generator) -> list[Strategy]:
    """Kronecker products: each feature in turn gets the best p-Identity for the others held fixed (HDMM's OPT_x)."""
    masks = [workload.leaf_masks(i).astype(float) for i in range(len(workload.shape))]
    candidates: list[Strategy] = []
    for _ in range(2):
        rows = [rng.random((max(1, size // 8) if size > 1 else 0, size)) for size in workload.shape]
        forms = workload.quadratic_forms([_p_identity_inverse(b, noise) for b in rows])
        for _ in range(6):
            for i in np.flatnonzero(np.array(workload.shape) > 1):
                others = np.prod(forms[:i] + forms[i + 1 :] + [np.ones(workload.n_queries)], axis=0)
                gram = masks[i].T @ (masks[i] * others[:, None])
                rows[i] = _p_identity(gram.__matmul__, np.diag(gram), rows[i], noise, 60)
                inverse = _p_identity_inverse(rows[i], noise)
                forms[i] = np.einsum("lv,vw,lw->l", masks[i], inverse, masks[i], optimize=True)
        active = sum(bool(b.any()) for b in rows)
        if active:
            grid = min(_GRID, 1 << _MOST_BITS // active)
            candidates.append(Factors(workload, [_rounded_p_identity(b, noise, grid if b.any() else 1) for b in rows]))
    return candidates


def _search_explicit(workload: Workload, noise: Noise, rng: np.random.Generator) -> list[Strategy]:
    """p-Identity over all cells, p = n / 8. The identity is stationary, so rows start shaped like the queries."""
    matrix = next(iter(workload.rows(merged=True)))  # all rows, or more of them than cells
    gram = workload.gram()
    values, vectors = np.linalg.eigh(gram)
    root = np.abs((vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T)
    p = max(1, workload.n_cells // 8)
    candidates: list[Strategy] = []
    for amount, rows in ((0.3, np.unique(matrix, axis=0)), (3.0, root)):
        start = amount * rows[rng.permutation(len(rows))[:p]] / rows.max()
        if workload.n_queries < workload.n_cells:
            best = _p_identity(lambda x: matrix.T @ (matrix @ x), np.diag(gram), start, noise, 150)
        else:
            best = _p_identity(gram.__matmul__, np.diag(gram), start, noise, 150)
        candidates.append(Factors(workload, [_rounded_p_identity(best, noise, _GRID)]))
    return candidates


def _column_norm(b: Floats, noise: Noise) -> Floats:
    """Norm of each column of the identity on B: L1 for Laplace noise, L2 for Gaussian noise."""
    norm: Floats = 1 + b.sum(axis=0) if noise == "laplace" else np.sqrt(1 + (b**2).sum(axis=0))
    return norm


def _p_identity_inverse(b: Floats, noise: Noise) -> Floats:
    """The matrix (A' A)^-1 of the normalised p-Identity strategy."""
    s = _column_norm(b, noise)
    low = np.linalg.solve(np.eye(len(b)) + b @ b.T, b)
    inverse: Floats = (np.eye(len(s)) - b.T @ low) * np.outer(s, s)
    return inverse


def _p_identity(
    times_gram: Callable[[Floats], Floats], diagonal: Floats, start: Floats, noise: Noise, steps: int
) -> Floats:
    """Rows B >= 0 with the least trace of (A' A)^-1 G, in O(n p^2) a step beside the product with G (Woodbury)."""
    scale = float(diagonal.sum())
    p, n = start.shape

    def objective(x: Floats) -> tuple[float, Floats]:
        b = x.reshape(p, n)
        s = _column_norm(b, noise)
        weighted = b * s
        h = times_gram(weighted.T)
        z = np.linalg.inv(np.eye(p) + b @ b.T)
        zk = z @ (weighted @ h)
        value = float((s**2) @ diagonal - np.trace(zk))
        by_norm = 2 * s * diagonal - 2 * (h.T * (z @ b)).sum(axis=0)
        by_norm = by_norm * (1.0 if noise == "laplace" else b / s)
        gradient = by_norm - 2 * (z @ h.T) * s + 2 * (zk @ z) @ b
        return value / scale, gradient.ravel() / scale

    result = minimize(
        objective,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * start.size,
        options={"maxiter": steps},
    )
    found: Floats = result.x.reshape(p, n)
    return found


def _rounded_p_identity(b: Floats, noise: Noise, grid: int) -> Ints:
    """Integer strategy; under Laplace noise every column adds up to ``grid`` exactly."""
    s = _column_norm(b, noise)
    rows = np.rint(b / s * grid).astype(np.int64)
    rows = rows[rows.any(axis=1)]
    if noise == "gaussian":
        diagonal = np.maximum(np.rint(grid / s).astype(np.int64), 1)
    else:
        diagonal = grid - rows.sum(axis=0)
        for j in np.flatnonzero(diagonal < 1):  # the largest weight of the column gives way to the identity
            rows[rows[:, j].argmax(), j] -= 1 - diagonal[j]
            diagonal[j] = 1
    return np.vstack([np.diag(diagonal), rows])


def _descend(objective: Objective, start: Floats, steps: int) -> tuple[float, Floats]:
    """Value and place of a local minimum."""
    result = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return float(result.fun), result.x


def _softmax(z: Floats) -> Floats:
    powers = np.exp(z - z.max())
    shares: Floats = powers / powers.sum()
    return shares
