# SPDX-License-Identifier: Apache-2.0
"""A fit, overheard at the door and replayed on other tables: the likelihood ratio of what was released, for each row.

What a fit released is forced upon fits on made-up tables, so that the exact numbers of every step are known for
those tables, whatever was chosen on the way. Which rows moved which number is found by fitting on halves of the rows,
one half for each binary digit of their number. Nothing about an estimator has to be known for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from veilwood.audit.noninterference import Passage, forced
from veilwood.audit.statistics import ALPHA, one_run_lower_bound
from veilwood.privacy.door import Door
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.neighbours import Adjacency
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace
from veilwood.privacy.sparse_noise import SparseLaplace
from veilwood.privacy.steps import Step

__all__ = ["Guesses", "guess_rows", "overheard"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SURE: Final = 0.5  # of the largest likelihood ratio: below it the attack abstains


@dataclass(frozen=True)
class Guesses:
    """Which of two tables each canary came from: guesses made, how many were right, and the epsilon they refute."""

    canaries: int
    made: int
    right: int
    epsilon_lower_bound: float


@contextmanager
def overheard() -> Iterator[list[tuple[Step, Any, tuple[Any, ...]]]]:
    """Write down every step at the door, what it released, and what went in."""
    heard: list[tuple[Step, Any, tuple[Any, ...]]] = []

    def listening(method: Callable[..., Any]) -> Callable[..., Any]:
        def passing(door: Door, step: Step, *args: Any) -> Any:
            out = method(door, step, *args)
            heard.append((step, out, args))
            return out

        return passing

    with ExitStack() as patches:
        for name in ("noisy", "sparse", "select"):
            patches.enter_context(mock.patch.object(Door, name, listening(getattr(Door, name))))
        yield heard


def guess_rows(
    fit: Callable[[Ints], object],
    canaries: int,
    adjacency: Adjacency = "add-remove",
    *,
    seed: int = 0,
    delta: float = 0.0,
    alpha: float = ALPHA,
) -> Guesses:
    """Fit once on rows chosen by fair coins, and guess the coins from all that was released.

    Parameters
    ----------
    fit : callable
        Fits an estimator on the rows of these numbers, which are below ``canaries`` (twice as many for replace-one).
        No row may be in a tree that is not known: trees must be shared.
    canaries : int
        How many coins.
    adjacency : {"add-remove", "replace-one"}
        A coin decides whether a row is there, or which of two rows is.
    seed : int
        Of the coins.
    delta : float
        The delta of the claim.
    alpha : float
        Probability that the bound is too large, whatever the estimator.
    """
    coins = np.random.default_rng(seed).integers(0, 2, canaries)
    pairs = adjacency == "replace-one"
    included = 2 * np.arange(canaries) + coins if pairs else np.flatnonzero(coins)
    with overheard() as heard:
        fit(included)
    ratios = _row_ratios(fit, 2 * canaries if pairs else canaries, [(step, out) for step, out, _ in heard])
    if pairs:
        ratios = ratios[1::2] - ratios[::2]
    if any(isinstance(step.mechanism, DiscreteGaussian) for step, _, _ in heard):
        tenth = canaries // 10  # their number must be fixed where there is a delta, and no ratio is the largest
        sure = np.argsort(np.abs(ratios))[-2 * tenth :]
    else:
        sure = np.flatnonzero(np.abs(ratios) > _SURE * np.abs(ratios).max(initial=0.0))
    right = int(((ratios[sure] > 0) == coins[sure]).sum())
    bound = one_run_lower_bound(right, len(sure), canaries=canaries, delta=delta, alpha=alpha)
    return Guesses(canaries, len(sure), right, bound)


def _row_ratios(fit: Callable[[Ints], object], n_rows: int, heard: Sequence[tuple[Step, Any]]) -> Floats:
    """Return for each row the log-likelihood ratio, in against out, of the numbers that it alone has moved."""
    answers = [out for _, out in heard]

    def replay(rows: Ints) -> list[Passage]:
        with forced(answers=answers) as passages:
            fit(rows)
        return passages

    everyone = np.arange(n_rows)
    whole = replay(everyone)
    halves = [replay(everyone[(everyone >> digit) & 1 == 1]) for digit in range(max(1, (n_rows - 1).bit_length()))]
    ratios = np.zeros(n_rows)
    for number, (step, out) in enumerate(heard):
        if isinstance(step.mechanism, DiscreteLaplace | DiscreteGaussian | JointLaplace | SparseLaplace):
            places, moved = _as_vector(whole[number], None)
            digits = np.array([_as_vector(half[number], places)[1] for half in halves])
            alone = ((digits == 0) | (digits == moved)).all(axis=0)  # two rows in one place differ in a digit
            owner = ((digits == moved) & (moved != 0)).T @ (1 << np.arange(len(halves)))
            mine = alone & (moved != 0)
            if isinstance(step.mechanism, JointLaplace):
                rows = np.where(mine, owner, -1).reshape(out.shape)
                ratios += _joint_ratios(step.mechanism, 2 * out - moved.reshape(out.shape), rows, n_rows)
                continue
            seen = _seen(step, out, places)
            np.add.at(ratios, owner[mine], _log_ratio(step, seen[mine], moved[mine]))
    return ratios


def _joint_ratios(noise: JointLaplace, twice: Ints, owner: Ints, n_rows: int) -> Floats:
    """Return the log-likelihood ratio of each row that has a cell of its own in every table; 0 for others.

    In a column all tables count together, so other rows of it matter: half of each is taken to be there. ``twice`` is
    twice what was released without them; a row that is alone in its column has its exact ratio.
    """
    cells, columns = np.nonzero(owner >= 0)
    rows = owner[cells, columns]
    whole = np.flatnonzero(np.bincount(rows, minlength=n_rows) == len(noise.sizes))
    kept = np.isin(rows, whole)
    place = np.searchsorted(whole, rows[kept])
    added = np.zeros((len(twice), len(whole)), np.int64)
    added[cells[kept], place] = 1
    column = np.zeros(len(whole), np.int64)
    column[place] = columns[kept]
    ratios = np.zeros(n_rows)
    around = twice[:, column]
    ratios[whole] = (noise.norms(around + added) - noise.norms(around - added)) / (2 * float(noise.scale))
    return ratios


def _as_vector(passage: Passage, places: Ints | None) -> tuple[Ints, Ints]:
    """Return the exact numbers of a passage at some places; at all of them, or all that are not empty, by default."""
    exact = passage.exact
    if isinstance(exact, np.ndarray):
        return np.arange(exact.size), exact.ravel()
    places = np.array(sorted(exact), np.int64) if places is None else places
    return places, np.array([exact.get(place, 0) for place in places.tolist()], np.int64)


def _seen(step: Step, out: Any, places: Ints) -> Ints:
    if not isinstance(step.mechanism, SparseLaplace):
        return np.asarray(out).ravel()
    found = dict(zip(out[0].tolist(), out[1].tolist(), strict=True))
    return np.array([found.get(place, 0) for place in places.tolist()], np.int64)


def _log_ratio(step: Step, seen: Ints, moved: Ints) -> Floats:
    """Return how much likelier each number is if a row moved it than if it were 0 without noise."""
    match step.mechanism:
        case DiscreteLaplace(scale=scale):
            return np.asarray((np.abs(seen) - np.abs(seen - moved)) / float(scale))
        case DiscreteGaussian(sigma_squared=variance):
            return np.asarray(moved * (2.0 * seen - moved) / (2 * float(variance)))
        case SparseLaplace() as noise:
            most = int(seen.max(initial=1))
            return np.asarray(np.log(noise.law(1, most)) - np.log(noise.law(0, most)))[seen]
    raise AssertionError("only noise that is added has a ratio here")
