# SPDX-License-Identifier: Apache-2.0
"""Small tables for matrix forests, what their measurements cost by enumeration, and attacks on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import veilwood as vw
import veilwood_audit as audit
from veilwood.arrays import Ints
from veilwood.forests.matrix.strategies import Factors
from veilwood.forests.matrix.workloads import PathWorkload
from veilwood.privacy.door import Door
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.plan import Plan
from veilwood.privacy.steps import Step
from veilwood_audit.statistics import ALPHA, epsilon_lower_bound


def schema(sizes: Sequence[int], classes: int, name: str = "small") -> vw.Schema:
    """Categories only, as many as each size says."""
    columns = [{"name": f"f{i}", "kind": "categorical", "values": list(range(n))} for i, n in enumerate(sizes)]
    target = {"name": "class", "kind": "categorical", "values": [f"c{i}" for i in range(classes)]}
    return vw.Schema.from_dict(
        {"name": name, "task": "classification", "target": "class", "columns": [*columns, target]}
    )


SIZES = (3, 2)
LAWS = {"pure": 0.0, "zcdp": 1e-6}
ADJACENCIES = ("add-remove", "replace-one")


class RecordingDoor(Door):
    """A door that lets everything out as it is, and remembers it: what noise would have been added to."""

    passed: list[Ints]

    def release_counts(self, step: Step, exact: Ints) -> Ints:
        self._admit(step, exact.shape)
        self.__dict__.setdefault("passed", []).append(exact.copy())
        return exact.copy()


def records(classes: int) -> list[tuple[int, int, int]]:
    """Every record of the small schema: two features and a class."""
    return [(a, b, c) for a in range(SIZES[0]) for b in range(SIZES[1]) for c in range(classes)]


def as_table(kinds: list[tuple[int, int, int]], table: tuple[int, ...]) -> tuple[Any, Any]:
    """The table's records after a first one that both neighbours have: empty tables are refused."""
    rows = [kinds[0], *(kinds[cell] for cell in table)]
    return np.array([row[:2] for row in rows], object), np.array([f"c{row[2]}" for row in rows], object)


def worst_cost(measured: Callable[[tuple[int, ...]], list[Ints]], plan: Plan, n_cells: int, most: int = 1) -> Fraction:
    """The largest privacy loss over all small neighbours: what each step measures, by the noise it really gets.

    Discrete Laplace noise of scale b on numbers that move by L1 costs L1 / b; discrete Gaussian noise costs
    L2^2 / (2 sigma^2) of rho. Steps add up. Sums over records move by the same whatever else is in the table, so one
    record beside the common one is enough; labels of leaves need two.
    """
    number: dict[tuple[int, ...], int] = {}
    pairs = [
        (number.setdefault(one, len(number)), number.setdefault(other, len(number)))
        for one, other in audit.neighbouring_tables(n_cells, most, plan.neighbours.adjacency)
    ]
    one, other = np.array(pairs).T
    seen = [measured(table) for table in number]
    moved = []
    for place, step in enumerate(plan.steps):
        values = np.array([tables[place].ravel() for tables in seen])
        change = values[one] - values[other]
        laplace = isinstance(step.mechanism, DiscreteLaplace)
        moved.append(np.abs(change).sum(axis=1) if laplace else (change**2).sum(axis=1))
    prices = [
        1 / Fraction(s.mechanism.scale)
        if isinstance(s.mechanism, DiscreteLaplace)
        else 1 / (2 * Fraction(s.mechanism.sigma_squared))  # type: ignore[union-attr]
        for s in plan.steps
    ]
    return max(
        sum((price * int(move) for price, move in zip(prices, moves, strict=True)), Fraction(0))
        for moves in {tuple(row) for row in np.array(moved).T.tolist()}
    )


def budget(plan: Plan) -> Fraction:
    """What a plan may lose: its rho, or its epsilon."""
    found = plan.loss.rho if plan.loss.delta else plan.loss.epsilon
    assert found is not None
    return found


def overlapping(workload: PathWorkload) -> Factors:
    """A strategy whose columns add up to more than its rows: a diagonal on all pairs of cells."""
    n = workload.n_cells
    pairs = np.array([np.isin(np.arange(n), [i, j]) for i in range(n) for j in range(i)])
    return Factors(workload, [np.vstack([np.eye(n, dtype=np.int64), pairs])])


RUNS = 150_000


def lower_bound(
    event: Callable[[NDArray[Any]], NDArray[np.bool_]], likely: NDArray[Any], unlikely: NDArray[Any]
) -> float:
    """A lower bound on epsilon from how often an event happens on either side."""
    one, other = event(likely), event(unlikely)
    return epsilon_lower_bound(int(one.sum()), len(one), int(other.sum()), len(other), alpha=ALPHA)


TENNIS = vw.Schema.from_dict(
    {
        "name": "tennis",
        "task": "classification",
        "target": "play",
        "columns": [
            {"name": "outlook", "kind": "categorical", "values": ["sunny", "overcast", "rainy"]},
            {"name": "windy", "kind": "categorical", "values": ["false", "true"]},
            {"name": "play", "kind": "categorical", "values": ["no", "yes"]},
        ],
    }
)
DAYS = pd.DataFrame(
    [(outlook, windy) for outlook in ("sunny", "overcast", "rainy") for windy in ("false", "true")],
    columns=["outlook", "windy"],
)
PLAYED = np.array(["no", "no", "yes", "yes", "yes", "no"], object)
