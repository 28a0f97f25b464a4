# SPDX-License-Identifier: Apache-2.0
"""Data types of the reproductions: jobs return rows, rows are averaged to cells, exhibits compare cells with the paper.

``runner`` runs jobs and stores their results. Each table or figure, or a few that share an experiment, has a module.
"""

from __future__ import annotations

import csv
import importlib.resources
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from veilwood.arrays import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from veilwood_papers.tables import PublicTables


NOT_PRIVATE = "NOT PRIVATE"


class Cell(NamedTuple):
    """Key of a point in a figure or an entry of a table: panel, curve, coordinate and measure."""

    panel: str
    curve: str
    x: str
    measure: str = "accuracy"


class Row(NamedTuple):
    """Result of one job for one cell."""

    cell: Cell
    repeat: int
    value: float


class Value(NamedTuple):
    """Mean and standard error over a number of runs. The error is nan if unknown."""

    mean: float
    error: float = math.nan
    runs: int = 0

    @property
    def spread(self) -> float:
        """Standard deviation of one run."""
        return self.error * math.sqrt(self.runs)


Values: TypeAlias = dict[Cell, Value]


class Job(NamedTuple):
    """Job that runs once and whose result is stored: its name, its settings and the table that it needs."""

    name: str
    table: str = ""
    settings: Mapping[str, Any] = {}
    weight: float = 1.0  # run time relative to other jobs, to estimate the remaining time


@dataclass(frozen=True)
class Experiment:
    """Set of jobs whose results several exhibits may show.

    ``jobs`` lists the jobs, fewer in a quick run; ``measure`` runs a job. ``packages`` must be installed.
    """

    name: str
    jobs: Callable[[bool], Sequence[Job]]
    measure: Callable[[Job, PublicTables], Iterable[Row]]
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """Sentence of a paper, with a check on measured values. The check returns None if the cells are missing.

    ``gain`` computes the relative difference that the sentence states, which is reported with an interval.
    """

    sentence: str
    holds: Callable[[Values], bool | None]
    gain: Callable[[Values], float] | None = None


@dataclass(frozen=True)
class Exhibit:
    """Table or figure of a paper: its experiment, the published values and the claims of the text.

    ``shows`` selects the cells, and ``wants`` selects the jobs. ``why`` explains in one sentence why a cell is worse
    than published, given the measured values. ``published_once`` is True if the paper published a single repeat; the
    spread of the repeats measured here then replaces its standard error if larger.
    """

    paper: str
    number: str
    title: str
    settings: str
    experiment: Experiment
    draw: Callable[[Values, Values, str], Figure]
    quick: str = ""
    shows: Callable[[Cell], bool] = lambda cell: True
    derive: Callable[[Values], Values] = lambda values: values
    published: Callable[[], Values] = dict
    claims: tuple[Claim, ...] = ()
    not_private: Callable[[str], bool] = lambda curve: NOT_PRIVATE in curve
    why: Callable[[Cell, Values], str] = lambda cell, measured: ""
    wants: Callable[[Job], bool] = lambda job: True
    published_once: bool = False

    @property
    def name(self) -> str:
        """Name of the exhibit, such as ``mrf figure 2``."""
        return f"{self.paper} {self.number}"

    @property
    def slug(self) -> str:
        """Name of the exhibit in file names."""
        return self.name.replace(" ", "-")

    def jobs(self, quick: bool) -> list[Job]:
        """Return the jobs of the experiment that this exhibit needs."""
        return [job for job in self.experiment.jobs(quick) if self.wants(job)]

    def values(self, rows: Iterable[Row]) -> Values:
        """Return the averaged cells of this exhibit."""
        return self.derive({cell: value for cell, value in mean_values(rows).items() if self.shows(cell)})

    def resamples(self, rows: Iterable[Row], n: int) -> list[Values]:
        """Return the cells ``n`` times, each from seeds drawn with replacement, within each panel."""
        shown = [row for row in rows if self.shows(row.cell)]
        means = _resampled_means(shown, n)
        return [self.derive({cell: Value(float(of_cell[i])) for cell, of_cell in means.items()}) for i in range(n)]


def mean_values(rows: Iterable[Row]) -> Values:
    """Return the mean and standard error of each cell over its repeats.

    >>> cell = Cell("Car", "training", "1")
    >>> mean_values([Row(cell, 0, 0.7), Row(cell, 1, 0.9)])[cell].mean
    0.8
    """
    values_of_cell: dict[Cell, list[float]] = defaultdict(list)
    for row in rows:
        values_of_cell[row.cell].append(row.value)
    return {cell: _mean_value(values) for cell, values in values_of_cell.items()}


def _mean_value(values: list[float]) -> Value:
    error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else math.nan
    return Value(float(np.mean(values)), error, len(values))


def _resampled_means(rows: Iterable[Row], n: int) -> dict[Cell, Floats]:
    """Return ``n`` means of each cell. All cells of a panel use the same resampled seeds, as they share splits."""
    seeds_of: dict[str, set[int]] = defaultdict(set)
    rows_of: dict[Cell, list[Row]] = defaultdict(list)
    for row in rows:
        seeds_of[row.cell.panel].add(row.repeat)
        rows_of[row.cell].append(row)
    rng, counts, places = np.random.default_rng(0), {}, {}
    for panel, seeds in seeds_of.items():
        counts[panel] = rng.multinomial(len(seeds), [1 / len(seeds)] * len(seeds), size=n)
        places[panel] = {seed: place for place, seed in enumerate(sorted(seeds))}
    means = {}
    for cell, of_cell in rows_of.items():
        values = np.array([row.value for row in of_cell])
        weights = counts[cell.panel][:, [places[cell.panel][row.repeat] for row in of_cell]]
        totals = weights.sum(axis=1)
        means[cell] = np.where(totals > 0, weights @ values / np.maximum(totals, 1), values.mean())
    return means


def as_text(x: float | str) -> str:
    """Format a coordinate as canonical text, for comparison and storage.

    >>> as_text(0.40), as_text(128), as_text("k=3 h=7")
    ('0.4', '128', 'k=3 h=7')
    """
    return x if isinstance(x, str) else f"{x:g}"


LOWER_IS_BETTER = ("error", "MSE")
ROUNDING = 5e-5  # half a unit of the fourth decimal, to which published values are rounded
NOT_COMPARED = ("k", "h", "seconds")
"""Measures without a verdict: sizes selected on validation rows, and times from different machines."""


def compare_with_published(cell: Cell, measured: Value, published: Value, *, published_once: bool = False) -> str:
    """Return the verdict on a cell: same (within two standard errors of the difference), better or worse.

    If a single repeat was published, the spread of the repeats measured here replaces its stated error when larger.

    >>> compare_with_published(Cell("Car", "training", "1"), Value(0.8, 0.01, 5), Value(0.9, 0.01, 5))
    'worse'
    >>> cell = Cell("Car", "training", "1")
    >>> compare_with_published(cell, Value(0.8, 0.03, 25), Value(0.9, 0.01, 5), published_once=True)
    'same'
    """
    if cell.measure == "number":
        return "same" if measured.mean == published.mean else "differs"
    errors = [measured.error, published.error, measured.spread if published_once else 0.0]
    own, reference, spread = (0.0 if math.isnan(error) else error for error in errors)
    margin = 2 * math.hypot(own, max(reference, spread))
    gain = measured.mean - published.mean
    if cell.measure.split(" ")[0] in LOWER_IS_BETTER:
        gain = -gain
    return "same" if abs(gain) <= margin + ROUNDING else "better" if gain > 0 else "worse"


Reason: TypeAlias = str | Callable[[Cell, Values], str]


def reason_lookup(known: Mapping[str, Reason], otherwise: Reason) -> Callable[[Cell, Values], str]:
    """Return a function that explains why a cell is worse than published: the first reason for its panel or curve."""

    def find_reason(cell: Cell, measured: Values) -> str:
        reason = next((known[name] for name in known if name in (cell.panel, cell.curve)), otherwise)
        return reason if isinstance(reason, str) else reason(cell, measured)

    return find_reason


def curve_means(
    values: Values, curve: str, *, panel: str | None = None, measure: str | None = None
) -> dict[Any, float]:
    """Return the means along one curve, by panel and coordinate."""
    return {
        (cell.panel, cell.x): value.mean
        for cell, value in values.items()
        if cell.curve == curve and panel in (None, cell.panel) and measure in (None, cell.measure)
    }


def check_above(
    upper: str | Sequence[str], lower: str | Sequence[str], *, by: float = 0.0, fraction: float = 1.0,
    panel: str | None = None, measure: str | None = None, only: Callable[[str, str], bool] = lambda panel, x: True,
) -> Callable[[Values], bool | None]:  # fmt: skip
    """Return a check that one curve lies above another, in all or in a fraction of their common cells."""
    uppers = [upper] if isinstance(upper, str) else upper
    lowers = [lower] if isinstance(lower, str) else lower

    def holds(values: Values) -> bool | None:
        pairs = []
        for one in uppers:
            for other in lowers:
                high = curve_means(values, one, panel=panel, measure=measure)
                low = curve_means(values, other, panel=panel, measure=measure)
                pairs += [high[key] - low[key] >= by for key in high.keys() & low.keys() if only(*key)]
        return float(np.mean(pairs)) >= fraction if pairs else None

    return holds


def check_between(
    curve: str, panel: str, x: str, low: float, high: float, *, measure: str = "accuracy"
) -> Callable[[Values], bool | None]:
    """Return a check that one cell lies between two numbers."""

    def holds(values: Values) -> bool | None:
        value = values.get(Cell(panel, curve, x, measure))
        return None if value is None else low <= value.mean <= high

    return holds


def all_of(*checks: Callable[[Values], bool | None]) -> Callable[[Values], bool | None]:
    """Return a check that all given checks hold, ignoring checks whose cells were not measured."""

    def holds(values: Values) -> bool | None:
        answers = [answer for check in checks if (answer := check(values)) is not None]
        return all(answers) if answers else None

    return holds


ANY_CELL = 1e-9
"""Fraction so small that a single cell satisfies it."""


def check_falls(curve: str, by: float = 0.05, *, panel: str | None = None) -> Callable[[Values], bool | None]:
    """Return a check that a curve ends well below its maximum, in every panel."""
    return _check_along(curve, panel, lambda values: values[-1] < max(values) - by)


def check_keeps(curve: str, within: float = 0.03, *, panel: str | None = None) -> Callable[[Values], bool | None]:
    """Return a check that a curve ends close to its maximum, in every panel."""
    return _check_along(curve, panel, lambda values: values[-1] >= max(values) - within)


def check_rises(curve: str, by: float = 0.0, *, panel: str | None = None) -> Callable[[Values], bool | None]:
    """Return a check that a curve ends above its start, in every panel."""
    return _check_along(curve, panel, lambda values: values[-1] > values[0] + by)


def check_dips(curve: str, by: float = 0.0, *, panel: str | None = None) -> Callable[[Values], bool | None]:
    """Return a check that a curve has its minimum in the interior, in every panel."""
    return _check_along(
        curve, panel, lambda values: min(values[1:-1], default=math.inf) < min(values[0], values[-1]) - by
    )


def _check_along(curve: str, panel: str | None, test: Callable[[list[float]], bool]) -> Callable[[Values], bool | None]:
    """Return a check that ``test`` holds for the means along a curve, by increasing x, in each panel."""

    def holds(values: Values) -> bool | None:
        curves: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for (where, x), mean in curve_means(values, curve, panel=panel).items():
            curves[where].append((float(x), mean))
        answers = [test([mean for _, mean in sorted(points)]) for points in curves.values() if len(points) > 1]
        return all(answers) if answers else None

    return holds


@lru_cache
def read_published(name: str) -> list[dict[str, str]]:
    """Return the rows of a table of published values.

    >>> read_published("secure_claims")[0]["dataset"]
    'Heart'
    """
    file = importlib.resources.files("veilwood_papers") / "published" / f"{name}.csv"
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def mrf_values(name: str, x: str, curves: dict[str, str], panel: Callable[[dict[str, str]], str]) -> Values:
    """Return accuracies of the M-RF paper along column ``x``; ``curves`` maps the authors' method names to curves."""
    return {
        Cell(panel(row), curves[row["method"]], as_text(float(row[x]))): Value(
            float(row["acc_mean"]), float(row["acc_std"]) / int(row["n_trials"]) ** 0.5, int(row["n_trials"])
        )
        for row in read_published(name)
        if row["method"] in curves
    }


def parse_number(text: str) -> float:
    """Return a number, or nan if the text is empty."""
    return float(text) if text else math.nan
