# SPDX-License-Identifier: Apache-2.0
"""How the sentences of papers are checked on what was measured: curves above others, cells between numbers, slopes.

Each returns a check that answers None where the cells are not there (``exhibit.Claim``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from veilwood.papers.exhibit import Cell, Values


def at(values: Values, curve: str, *, panel: str | None = None, measure: str | None = None) -> dict[Any, float]:
    """Return the means along one curve, by panel and coordinate."""
    return {
        (cell.panel, cell.x): value.mean
        for cell, value in values.items()
        if cell.curve == curve and panel in (None, cell.panel) and measure in (None, cell.measure)
    }


def above(
    upper: str | Sequence[str], lower: str | Sequence[str], *, by: float = 0.0, share: float = 1.0,
    panel: str | None = None, measure: str | None = None, only: Callable[[str, str], bool] = lambda panel, x: True,
) -> Callable[[Values], bool | None]:  # fmt: skip
    """Check that one curve lies above another, everywhere or in a share of their common cells."""
    uppers = [upper] if isinstance(upper, str) else upper
    lowers = [lower] if isinstance(lower, str) else lower

    def holds(values: Values) -> bool | None:
        pairs = []
        for one in uppers:
            for other in lowers:
                high = at(values, one, panel=panel, measure=measure)
                low = at(values, other, panel=panel, measure=measure)
                pairs += [high[key] - low[key] >= by for key in high.keys() & low.keys() if only(*key)]
        return float(np.mean(pairs)) >= share if pairs else None

    return holds


def between(
    curve: str, panel: str, x: str, low: float, high: float, *, measure: str = "accuracy"
) -> Callable[[Values], bool | None]:
    """Check that one cell lies between two numbers."""

    def holds(values: Values) -> bool | None:
        value = values.get(Cell(panel, curve, x, measure))
        return None if value is None else low <= value.mean <= high

    return holds


def all_of(*checks: Callable[[Values], bool | None]) -> Callable[[Values], bool | None]:
    """Check several things at once, as far as they were measured."""

    def holds(values: Values) -> bool | None:
        answers = [answer for check in checks if (answer := check(values)) is not None]
        return all(answers) if answers else None

    return holds


SOMEWHERE = 1e-9
"""The share of cells that asks for one of them only."""


def falls(curve: str, by: float = 0.05, *, panel: str | None = None) -> Callable[[Values], bool | None]:
    """Check that a curve ends well below its best, in every panel."""
    return _along(curve, panel, lambda values: values[-1] < max(values) - by)


def keeps(curve: str, within: float = 0.03, *, panel: str | None = None) -> Callable[[Values], bool | None]:
    """Check that a curve ends within a little of its best, in every panel."""
    return _along(curve, panel, lambda values: values[-1] >= max(values) - within)


def rises(curve: str, by: float = 0.0, *, panel: str | None = None) -> Callable[[Values], bool | None]:
    """Check that a curve ends above where it began, in every panel."""
    return _along(curve, panel, lambda values: values[-1] > values[0] + by)


def bends(curve: str, by: float = 0.0, *, panel: str | None = None) -> Callable[[Values], bool | None]:
    """Check that a curve is lowest somewhere inside, in every panel."""
    return _along(curve, panel, lambda values: min(values[1:-1], default=math.inf) < min(values[0], values[-1]) - by)


def _along(curve: str, panel: str | None, test: Callable[[list[float]], bool]) -> Callable[[Values], bool | None]:
    """Check something of the means along a curve, by growing x, in each panel that has it."""

    def holds(values: Values) -> bool | None:
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for (where, x), mean in at(values, curve, panel=panel).items():
            found[where].append((float(x), mean))
        answers = [test([mean for _, mean in sorted(points)]) for points in found.values() if len(points) > 1]
        return all(answers) if answers else None

    return holds
