# SPDX-License-Identifier: Apache-2.0
"""What quality to expect of a PrivateForest before any data is seen: how it did on public tables like the one at hand.

Tables are alike in their task and in rows times epsilon for each column, where epsilon is that of one row
(``privacy.purse``): so unit, adjacency and delta count as they should. ``quality.json`` holds what the development
suite showed; benchmarks/quality_table.py writes it. Skill is 0 for the most frequent class, or the mean, and 1 for the
best forest without privacy.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import numpy as np

from veilwood.data.schema import TaskKind

__all__ = ["Expected", "expected_quality"]

ALIKE: Final = 3.0  # tables count up to this factor away
FEWEST_TABLES: Final = 5  # that a range is told of; else tables further away count too
TOLD: Final = (25, 75)  # percentiles of the skills


class Expected(NamedTuple):
    """How private forests did on public tables like one's own.

    Attributes
    ----------
    n_tables : int
        How many tables that were.
    low, high : float
        Between these is the skill of half of them.
    side : int
        -1 where all of them had more rows times epsilon for each column, 1 where all had fewer.
    """

    n_tables: int
    low: float
    high: float
    side: int

    def __str__(self) -> str:
        had = {
            -1: "fewer rows times epsilon per column than any public table that was tried: of the nearest {}",
            0: "of {} public tables with about as many rows times epsilon per column",
            1: "more rows times epsilon per column than any public table that was tried: of the nearest {}",
        }[self.side].format(self.n_tables)
        low, high = (f"{round(skill, 1) + 0.0:.1f}" for skill in (self.low, self.high))  # + 0.0: no -0.0
        return f"{had}, half had a skill of {low} to {high} (0 is the most frequent class or the mean, 1 no privacy)"


def expected_quality(task: TaskKind, n_rows: float, n_columns: int, price: float) -> Expected:
    """Look up how tables of about as many rows times epsilon for each column did; ``price`` is that of one row.

    Examples
    --------
    >>> few, many = (expected_quality("classification", n, 10, 1.0) for n in (1_000, 1_000_000))
    >>> few.low < many.low
    True
    """
    place, known = np.log(max(n_rows * price / n_columns, 1e-9)), _measured(task)
    away = np.abs(known.place - place)
    nearest = np.sort([away[known.table == name].min() for name in np.unique(known.table)])
    reach = max(np.log(ALIKE), float(nearest[min(FEWEST_TABLES, len(nearest)) - 1]))
    near = away <= reach
    skills = [known.skill[near & (known.table == name)].mean() for name in np.unique(known.table[near])]
    low, high = np.percentile(skills, TOLD)
    side = 0 if known.place.min() <= place <= known.place.max() else (-1 if place < known.place.min() else 1)
    return Expected(len(skills), float(low), float(high), side)


class _Measured(NamedTuple):
    """Results of one task: logarithm of rows times epsilon for each column, table, skill."""

    place: Any
    table: Any
    skill: Any


@cache
def _measured(task: TaskKind) -> _Measured:
    data = json.loads(files("veilwood.forests.adaptive").joinpath("quality.json").read_text(encoding="utf-8"))
    found = [
        (np.log(table["rows"] * float(epsilon) / table["columns"]), name, skill)
        for name, table in data["tables"].items() if table["task"] == task and table["skill"]
        for epsilon, skill in table["skill"].items()
    ]  # fmt: skip
    return _Measured(*(np.array(part) for part in zip(*found, strict=True)))
