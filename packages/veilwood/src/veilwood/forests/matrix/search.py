# SPDX-License-Identifier: Apache-2.0
"""Search for the strategy with the least error on a workload, its cache on disk, and a lower bound on the error.

Measuring, reconstruction and expected errors are in ``strategies``.

Letters (those of ``workloads`` and ``strategies`` as well):

======  =================  ==========================================================================
letter  name               meaning
======  =================  ==========================================================================
t_S     share              fraction of the budget for marginal S; fractions add up to one
z       logits             unconstrained parameters, t = softmax(z)
G       Gram matrix        W' W
B       extra rows         of a p-Identity strategy: p rows of non-negative weights under the identity
s_j     column norm        of the identity on B, divided out so that every column has norm one
======  =================  ==========================================================================

The search is a function of the workload and the seed, and stops after a fixed amount of work, so plans are
reproducible. The budget only decides among candidates that do not depend on it, so the error never grows with the
budget. For large budgets, discrete noise is so small that other strategies are better. At each of a few large budgets,
a further search adds such candidates.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from veilwood._version import __version__
from veilwood.arrays import Floats, Ints
from veilwood.errors import DomainTooLargeError, MechanismError, VeilwoodError
from veilwood.estimators.method import FitRequest
from veilwood.forests.matrix.marginals import candidate_mixtures, direct_error, search_marginals
from veilwood.forests.matrix.strategies import Factors, Marginals, NoiseName, Strategy, expected_error, noise_variance
from veilwood.forests.matrix.workloads import PathWorkload, Workload
from veilwood.forests.noisy_leaves import SupportsPlan
from veilwood.safe_io import cache_folder, is_int_in, read_json, read_text, write_file

MAX_BYTES: Final = 1 << 24  # of a file
MAX_FILES: Final = 1024  # beyond this number the oldest file is deleted
CACHED_DECISIONS: Final = ("structure", "division", "shares", "strategies", "alternatives", "divisions")

H = TypeVar("H", bound=SupportsPlan)


def cached_design(request: FitRequest, size: object, make_design: Callable[[FitRequest], H]) -> H:
    """Return the design with cached decisions of an equal search, or search and cache the decisions.

    Parameters
    ----------
    request : FitRequest
        Input of the search, together with ``size``.
    size : object
        Number and depth of trees, which may have been chosen automatically.
    make_design : callable
        Function that uses the request's decisions, or searches.
    """
    file = None if request.decisions else _cache_path(request, "strategies", size)
    if file is None:
        return make_design(request)
    with suppress(OSError, VeilwoodError, TypeError, ValueError, KeyError, AttributeError):
        choices = read_json(read_text(file, MAX_BYTES))
        known: dict[str, Any] = {name: choices[name] for name in CACHED_DECISIONS if name in choices}
        design = make_design(replace(request, decisions=known))
        if design.plan.choices.get("structure") == known["structure"]:
            return design
    design = make_design(request)
    choices = design.plan.choices
    decisions: dict[str, Any] = {name: choices[name] for name in CACHED_DECISIONS if name in choices}
    if "strategies" in decisions:
        _store_result(file, decisions)
    return design


def cached_comparison(request: FitRequest, size: object, compare: Callable[[], tuple[int, float]]) -> tuple[int, float]:
    """Return the cached number of leaves of a size and the error of a leaf, or compute and cache both."""
    file = _cache_path(request, "errors", size)
    if file is None:
        return compare()
    with suppress(OSError, VeilwoodError, TypeError, ValueError, KeyError):
        result = read_json(read_text(file, MAX_BYTES))
        leaves, error = result["leaves"], result["error"]
        if is_int_in(leaves, 1) and isinstance(error, float) and 0 < error < math.inf:
            return int(leaves), error
    leaves, error = compare()
    _store_result(file, {"leaves": leaves, "error": error})
    return leaves, error


def _cache_path(request: FitRequest, purpose: str, size: object) -> Path | None:
    """Return a file named by a hash of all inputs of the search, or None if the schema was inferred from the data."""
    folder = None if request.schema.inferred else cache_folder("strategies")
    facts = (
        __version__, purpose, size, request.estimator, request.schema.fingerprint(), str(request.loss.epsilon),
        str(request.loss.delta), str(request.loss.rho), repr(request.neighbours), request.seed,
        json.dumps(request.parameters, sort_keys=True),
    )  # fmt: skip
    return None if folder is None else folder / f"{hashlib.sha256(repr(facts).encode()).hexdigest()}.json"


def _store_result(file: Path, result: dict[str, Any]) -> None:
    with suppress(OSError, VeilwoodError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(file, json.dumps(result).encode())
        others = sorted(file.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for oldest in others[:-MAX_FILES]:
            oldest.unlink(missing_ok=True)


COMPARISON_STARTS = 8  # starts of a search that only compares forests; the chosen forest gets a full search
SMALL_BUDGET = Fraction(1, 1000)  # discrete noise is nearly continuous here, so decisions hold at any budget
_LARGE_BUDGETS: dict[NoiseName, tuple[int, ...]] = {"laplace": (4, 16, 64), "gaussian": ()}
_GRID = 1 << 14  # integer units of a weight, as in ``marginals``; finer grids lose precision in inverses
_MAX_BITS = {"laplace": 38, "gaussian": 24}  # of all factors of a product, so that sums and noise fit an int64
_QUICK_CELLS, _THOROUGH_CELLS = 512, 2048  # limits on cells for p-Identity, which needs explicit matrices


def optimize(
    workload: Workload,
    noise: NoiseName = "laplace",
    budget: Fraction = Fraction(1),
    *,
    seed: int = 0,
    starts: int | None = None,
    thorough: bool = False,
    max_cells: int = 1 << 22,
) -> Strategy:
    """Return the candidate strategy with the least expected error, which is never worse than the baselines.

    Candidates are the identity, weighted marginals, the leaves of all trees, and the leaves of some trees with
    marginals for the others. For leaves that keep sets of values (binary trees) they include Kronecker products of
    p-Identity matrices, and on small domains p-Identity matrices over all cells. All are compared by exact expected
    error, after rounding to integers and with the variance of the discrete noise. So the result is never worse than the
    table of all cells, nor, if the workload has a forest, than every tree's leaves with equal fractions of the budget.

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
        Number of starts; by default 64, down to 32 with many sets of features.
    thorough : bool
        Try p-Identity strategies on domains of up to 2048 cells (otherwise 512, and only for workloads on which they
        have won). Takes seconds to a minute, for a few per cent less error on batch prediction.
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
    settings = (seed, starts, thorough, max_cells)
    candidates = candidate_strategies(workload, noise, Fraction(budget), *settings)
    return min(candidates, key=lambda strategy: drawable_error(workload, strategy, noise, Fraction(budget)))


def drawable_error(workload: Workload, strategy: Strategy, noise: NoiseName, budget: Fraction) -> float:
    """Return the expected error, or infinity if the budget is so small that the noise would be too large to draw."""
    try:
        return expected_error(workload, strategy, noise, budget)
    except MechanismError:
        return math.inf


def candidate_strategies(
    workload: Workload,
    noise: NoiseName,
    budget: Fraction,
    seed: int = 0,
    starts: int | None = None,
    thorough: bool = False,
    max_cells: int = 1 << 22,
) -> list[Strategy]:
    """Return the candidates of ``optimize``. A larger budget never removes candidates. A workload is searched once."""
    settings = (noise, seed, starts, thorough, max_cells)
    candidates = list(_search_cached(workload, None, *settings))
    for large in _LARGE_BUDGETS[noise]:
        if budget >= large:
            candidates += _search_cached(workload, large, *settings)
    return candidates


def _search_cached(
    workload: Workload,
    budget: int | None,
    noise: NoiseName,
    seed: int,
    starts: int | None,
    thorough: bool,
    max_cells: int,
) -> list[Strategy]:
    """Return the cached candidates for small budgets (None), or only marginals for the noise of a large budget."""
    key = (budget, noise, seed, starts, thorough, max_cells)
    if key not in workload.found_strategies:
        # Hundreds of descents in a few dozen variables: more threads of the linear algebra would only add overhead.
        with threadpool_limits(limits=1, user_api="blas"):
            rng = np.random.default_rng(seed)
            find = partial(search_marginals, workload, noise=noise, rng=rng, max_cells=max_cells, budget=budget)
            try:
                direct = direct_error(workload, noise) if isinstance(workload, PathWorkload) else math.inf
                marginals = find(workload.residual_traces, starts=starts, enough=direct)
            except DomainTooLargeError:
                if not isinstance(workload, PathWorkload) or workload.forest is None:
                    raise
                marginals = []  # the leaves of its trees can be measured for any domain
            candidates: list[Strategy] = [*marginals]
            if budget is None:
                if workload.n_cells <= max_cells:
                    candidates.append(Marginals.identity(workload))
                candidates += _more_candidates(workload, noise, rng, thorough, max_cells)
                if isinstance(workload, PathWorkload):
                    candidates += _direct_candidates(workload, noise, marginals, find, starts)
            workload.found_strategies[key] = candidates
    return [*workload.found_strategies[key]]


def _more_candidates(
    workload: Workload, noise: NoiseName, rng: np.random.Generator, thorough: bool, max_cells: int
) -> list[Strategy]:
    """Return explicit strategies, for workloads on which they had the least noise, or on request."""
    candidates: list[Strategy] = []
    if isinstance(workload, PathWorkload) and not workload.single_valued and 4 * workload.n_cells <= max_cells:
        candidates += _search_products(workload, noise, rng)
    multiway = isinstance(workload, PathWorkload) and workload.single_valued  # marginals have always been better there
    if 1 < workload.n_cells <= (_THOROUGH_CELLS if thorough else 0 if multiway else _QUICK_CELLS):
        candidates += _search_explicit(workload, noise, rng)
    return candidates


def _direct_candidates(
    workload: PathWorkload,
    noise: NoiseName,
    marginals: Sequence[Marginals],
    find: Callable[..., list[Marginals]],
    starts: int | None,
) -> list[Strategy]:
    """Return strategies that measure leaves directly. Marginals for the remaining trees are searched again."""
    best = min(marginals, key=lambda strategy: expected_error(workload, strategy, noise, SMALL_BUDGET), default=None)
    candidates = candidate_mixtures(workload, noise, best)
    for mixed in [strategy for strategy in candidates if len(strategy.rest_marginals)]:
        traces = np.asarray(workload.traces_of_trees[mixed.rest_marginals].sum(axis=0))
        seen = {
            int(space): float(trace) for space, trace in zip(workload.residual_spaces, traces, strict=True) if trace > 0
        }
        for again in find(seen, starts=starts or 16):
            candidates.append(mixed.with_marginals(noise, again))
    return [*candidates]


def lower_bound(workload: Workload, noise: NoiseName = "laplace", budget: Fraction = Fraction(1)) -> float:
    """Return a lower bound on the expected error of all strategies (Li and Miklau 2013).

    It is (sum of singular values)^2 / n times the variance of the noise: tight for Gaussian noise in symmetric cases,
    and not always reachable under Laplace noise. It needs the explicit Gram matrix of a small domain, otherwise it
    raises :class:`~veilwood.errors.DomainTooLargeError`.

    Examples
    --------
    >>> T = PathWorkload.from_leaves((3,), [[0], [0], [0]], [[0], [1], [2]])    # the identity is the best
    >>> round(lower_bound(T) / expected_error(T, optimize(T)), 9)
    1.0
    """
    singular = np.sqrt(np.maximum(np.linalg.eigvalsh(workload.gram_matrix()), 0))
    # Discrete noise of scale c b, c >= 1, has at least c^2 times the variance of scale b: sinh is convex.
    unit = 1 / Fraction(budget)
    variance = noise_variance(noise, unit if noise == "laplace" else unit / 2)
    return variance * float(singular.sum()) ** 2 / workload.n_cells


def _search_products(workload: PathWorkload, noise: NoiseName, rng: np.random.Generator) -> list[Strategy]:
    """Return Kronecker products: the best p-Identity of each feature in turn, the others fixed (HDMM's OPT_x)."""
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
            grid = min(_GRID, 1 << _MAX_BITS[noise] // active)
            candidates.append(Factors(workload, [_rounded_p_identity(b, noise, grid if b.any() else 1) for b in rows]))
    return candidates


def _search_explicit(workload: Workload, noise: NoiseName, rng: np.random.Generator) -> list[Strategy]:
    """Return p-Identity strategies over all cells, p = n / 8. Starts resemble queries: the identity is stationary."""
    matrix = next(iter(workload.iter_rows(merged=True)))  # all rows, or at least as many as there are cells
    gram = workload.gram_matrix()
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


def _column_norm(b: Floats, noise: NoiseName) -> Floats:
    """Return the norm of each column of the identity above B: L1 for Laplace noise, L2 for Gaussian noise."""
    norm: Floats = 1 + b.sum(axis=0) if noise == "laplace" else np.sqrt(1 + (b**2).sum(axis=0))
    return norm


def _p_identity_inverse(b: Floats, noise: NoiseName) -> Floats:
    """Return the matrix (A' A)^-1 of the normalised p-Identity strategy."""
    s = _column_norm(b, noise)
    low = np.linalg.solve(np.eye(len(b)) + b @ b.T, b)
    inverse: Floats = (np.eye(len(s)) - b.T @ low) * np.outer(s, s)
    return inverse


def _p_identity(
    times_gram: Callable[[Floats], Floats], diagonal: Floats, start: Floats, noise: NoiseName, steps: int
) -> Floats:
    """Return rows B >= 0 with the least trace of (A' A)^-1 G; O(n p^2) per step besides the product with G."""
    scale = float(diagonal.sum())
    p, n = start.shape

    def objective_at(x: Floats) -> tuple[float, Floats]:
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
        objective_at,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * start.size,
        options={"maxiter": steps},
    )
    rows: Floats = result.x.reshape(p, n)
    return rows


def _rounded_p_identity(b: Floats, noise: NoiseName, grid: int) -> Ints:
    """Return the strategy in integers. Under Laplace noise every column sums to ``grid`` exactly."""
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
