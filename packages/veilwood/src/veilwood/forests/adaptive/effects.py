# SPDX-License-Identifier: Apache-2.0
"""Main effects and strongest interactions of a PrivateForest, with error bars.

Computed from released values only, by ``estimate_effects``. Plots are in ``plots``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.stats import chi2, qmc

from veilwood.arrays import AnyArray, Floats, Int32s, Ints
from veilwood.charts import COLOURS, draw_category_effect, draw_number_effect, html_card, shorten_label
from veilwood.data.counts import Axis, ContingencyTable
from veilwood.data.encoding import Encoding
from veilwood.errors import ModelFileError
from veilwood.forests.adaptive.contingency import tables_to_forest
from veilwood.forests.adaptive.row_backend import scores_to_probabilities
from veilwood.trees.forest import LEAF, Forest

RAKING_SWEEPS: Final = 3  # sweeps of iterative proportional fitting; more have no visible effect
DRAWS: Final = 256  # synthetic rows per column; 512 gave no better estimates
# Averaging over other columns attenuates an effect. The correction is an estimate too: this fraction of the correction
# counts as its standard error.
RESTORED_ERROR: Final = 0.25
# Regression: clipping residuals attenuates a measured effect; this fraction of the effect counts as its standard error.
CLIPPED_ERROR: Final = 0.2
MAX_READ_COLUMNS: Final = 3  # columns of a table that effects are read from, if a smaller table was measured
PASSES: Final = 12  # upper limit of passes over all columns; each uses the estimates of the previous one
MAX_CHANGE: Final = 0.05  # in standard errors: passes stop when no estimate changes by more
NEWTON_STEPS: Final = 2  # per pass; the next pass continues from the result
PAIR_PASSES: Final = 3  # passes over pairs, with the estimates of single columns fixed
MIN_PULL: Final = 0.05  # lower limit of the attenuation, which is a divisor
# Upper limit of the corrected score, in units of the uncorrected score. Synthetic rows have independent columns, so
# the effects of columns with the same information would grow without limit: iris +340 log-odds at e = 2.
MAX_RESTORED: Final = 3.0
MAX_PAIRS: Final = 10  # number of interactions that are reported
TINY: Final = 1e-12  # avoids divisions by zero

Features = tuple[int, ...]


class StepMeasurement(NamedTuple):
    """Released noisy sums of one step, for each cell of its table.

    Attributes
    ----------
    sums : ndarray, shape (n_cells, n_outputs)
        Class counts, or sums of gradients.
    noise : float
        Variance of the noise on each sum.
    rows : ndarray or None
        Noisy number of rows per cell, or None if ``sums`` are class counts.
    rows_noise : float
        Variance of the noise on each number of rows.
    limit, spread : float
        For regression: scores per unit of gradient, and variance of the gradient of a row.
    """

    sums: Floats
    noise: float
    rows: Floats | None = None
    rows_noise: float = 0.0
    limit: float = 1.0
    spread: float = 1.0

    @property
    def cell_rows(self) -> Floats:
        """Noisy number of rows per cell."""
        return np.asarray(self.sums.sum(axis=1)) if self.rows is None else self.rows


class TableScores(NamedTuple):
    """Table with the scores added in its cells (integers in ``loop``), and the measurement that determined them."""

    table: ContingencyTable
    values: AnyArray
    measurement: StepMeasurement


@dataclass(frozen=True, eq=False)
class EffectEstimate:
    """Estimated main effect of a column, or interaction of two: values, their standard errors and rows per cell."""

    table: ContingencyTable
    values: Floats
    errors: Floats
    rows: Floats

    @property
    def strength(self) -> float:
        """Mean square of the values, minus the part explained by their errors."""
        return float((self.values**2).mean() - (self.errors**2).mean())

    def change_from(self, earlier: EffectEstimate) -> float:
        """Return the largest change from an earlier estimate, in mean standard errors."""
        return float(np.abs(self.values - earlier.values).max() / max(self.errors.mean(), TINY))

    def shrink(self) -> EffectEstimate:
        """Return the values scaled to the estimated variance of the true effect, without the variance of the errors."""
        size = float((self.values**2).mean())
        return replace(self, values=self.values * (max(self.strength, 0.0) / max(size, TINY)) ** 0.5)


def estimate_effects(steps: Sequence[TableScores], start: Floats, n_classes: int) -> list[EffectEstimate]:
    """Return an estimate for each measured column, and for the strongest measured pairs."""
    if not steps:
        return []
    rows = _SyntheticRows(steps)
    columns = sorted({feature for step in steps for feature in step.table.features})
    pairs = sorted({pair for step in steps for pair in combinations(sorted(step.table.features), 2)})
    readers = [_EffectReader(steps, start, n_classes, rows, (feature,)) for feature in columns]
    others = _OtherEffects(rows, len(start))
    main_effects: list[EffectEstimate] = []
    for _ in range(PASSES if n_classes else 1):  # each estimate depends on the estimates of the other columns
        earlier = main_effects
        main_effects = [reader.estimate(others.sum_without(reader.features)) for reader in readers]
        others = _OtherEffects(rows, len(start), [one.shrink() for one in main_effects])
        if earlier and max(new.change_from(old) for new, old in zip(main_effects, earlier, strict=True)) < MAX_CHANGE:
            break
    pair_readers = [_EffectReader(steps, start, n_classes, rows, pair) for pair in pairs]
    no_effects = _OtherEffects(rows, len(start)).sum_without(())
    strongest = sorted(pair_readers, key=lambda reader: -reader.estimate(no_effects).strength)[:MAX_PAIRS]
    for _ in range(PAIR_PASSES):
        interactions = [reader.estimate(others.sum_without(reader.features)) for reader in strongest]
    return [*main_effects, *interactions]


class _SyntheticRows:
    """Synthetic rows with independent columns, as bins, drawn once and reused for every column."""

    def __init__(self, steps: Sequence[TableScores]) -> None:
        self._mass: dict[int, Floats] = {}
        for _ in range(RAKING_SWEEPS):  # fits each column's bins to the released numbers of rows
            for table, _, seen in steps:
                for axis in table.axes:
                    held = self._mass.setdefault(axis.feature, np.ones(len(axis.groups)))
                    there = _fold_cells(seen.cell_rows[:, None], table, ContingencyTable((axis,)))[:, 0]
                    there = np.maximum(there, max(float(there.sum()), 1.0) * 1e-4)
                    held *= (there / np.maximum(np.bincount(axis.groups, held, axis.size), TINY))[axis.groups]
        # Sobol points are spread evenly in pairs of columns too, so that few rows suffice.
        spread = qmc.Sobol(len(self._mass), rng=0).random(DRAWS).T
        self._place = dict(zip(self._mass, spread, strict=True))
        self._cells_of_column: dict[int, Ints] = {}

    def draw_cells(self, feature: int) -> Ints:
        """Return synthetic bins of a column, shape (1, DRAWS)."""
        if feature not in self._cells_of_column:
            ends = np.cumsum(self._mass[feature])
            bins = np.searchsorted(ends, self._place[feature] * ends[-1])
            self._cells_of_column[feature] = np.minimum(bins, len(ends) - 1)[None]
        return self._cells_of_column[feature]

    def draw_inside(self, axis: Axis) -> Ints:
        """Return synthetic bins of a column within each of its groups, shape (groups, DRAWS)."""
        order = np.argsort(axis.groups, kind="stable")
        ends = np.append(0.0, np.cumsum(self._mass[axis.feature][order]))
        last = np.searchsorted(axis.groups[order], np.arange(axis.size), side="right")
        first = np.append(0, last[:-1])
        at = ends[first][:, None] + self._place[axis.feature] * (ends[last] - ends[first])[:, None]
        position = np.searchsorted(ends, at, side="right") - 1
        return np.asarray(order[np.clip(position, first[:, None], last[:, None] - 1)])

    def score_rows(
        self, estimates: Sequence[TableScores | EffectEstimate], given: Mapping[int, Ints], n_outputs: int
    ) -> Floats:
        """Sum the scores of tables, for rows with ``given`` bins in some columns and synthetic bins elsewhere."""
        total: Floats = np.zeros((1, DRAWS, n_outputs))
        for one in estimates:
            cell = np.zeros((1, DRAWS), np.int64)
            for axis in one.table.axes:
                cells = given[axis.feature] if axis.feature in given else self.draw_cells(axis.feature)
                cell = cell * axis.size + axis.groups[cells]
            total = total + one.values[cell]
        return total


class _OtherEffects:
    """Estimated scores of all columns in the synthetic rows."""

    def __init__(self, rows: _SyntheticRows, n_outputs: int, estimates: Sequence[EffectEstimate] = ()) -> None:
        self._parts = {one.table.features: rows.score_rows([one], {}, n_outputs) for one in estimates}
        self._all: Floats = sum(self._parts.values(), np.zeros((1, DRAWS, n_outputs)))

    def sum_without(self, features: Features) -> Floats:
        """Return the sum of the scores of all columns except ``features``."""
        return self._all - sum(self._parts[feature,] for feature in features if (feature,) in self._parts)


class _EffectReading(NamedTuple):
    """Class counts of cells (or target means) from one step, with the variances of their logarithms (or means)."""

    table: ContingencyTable
    logits: Floats
    noise: Floats
    sampling: Floats
    rows: Floats

    @property
    def precision(self) -> float:
        """Total precision of the cells, discounted for coarse groups, which hide part of an effect."""
        return float((1 / np.maximum(self.noise + self.sampling, TINY)).sum() * (1 - self.table.n_cells**-2.0))

    @property
    def grouping_key(self) -> tuple[bytes, ...]:
        """Groups of each column. Readings with equal keys can be combined."""
        return tuple(axis.groups.tobytes() for axis in self.table.axes)


class _EffectReader:
    """Estimator of the effect of a column or pair, from the steps that share its most precise grouping."""

    def __init__(
        self, steps: Sequence[TableScores], start: Floats, n_classes: int, rows: _SyntheticRows, features: Features
    ) -> None:
        self._start, self._n_classes, self._rows, self.features = start, n_classes, rows, features
        holding = [number for number, step in enumerate(steps) if set(features) <= set(step.table.features)]
        # Larger sets of columns split numeric columns into halves only.
        fine = [number for number in holding if len(steps[number].table.axes) <= MAX_READ_COLUMNS]
        readings = [self._read_step(steps[:number], steps[number]) for number in fine or holding]
        best = max(readings, key=lambda reading: reading.precision)
        self._alike = [reading for reading in readings if reading.grouping_key == best.grouping_key]
        self._last_solution: list[Floats | None] = [None] * len(self._alike)

    def estimate(self, others: Floats) -> EffectEstimate:
        """Combine the readings by inverse variance, given the scores of ``others`` in the synthetic rows."""
        solved = [
            self._solve_scores(reading, others, last)
            for reading, last in zip(self._alike, self._last_solution, strict=True)
        ]
        self._last_solution = [one[0] for one in solved]
        scores, noise, sampling, pull = (np.stack(part) for part in zip(*solved, strict=True))
        weight = 1 / np.maximum(noise, TINY)
        weight /= weight.sum(axis=0)
        # Steps count the same rows, so sampling errors do not average out.
        variance = (weight**2 * noise).sum(axis=0) + sampling.min(axis=0)
        table = self._alike[0].table
        values, variance = (part.reshape(*table.shape, -1) for part in ((weight * scores).sum(axis=0), variance))
        for axis in range(len(table.shape)):
            values, variance = _center_values(values, variance, axis)
        variance += (RESTORED_ERROR * (1 - pull.mean()) * values) ** 2
        flat = (table.n_cells, len(self._start))
        rows = np.mean([reading.rows for reading in self._alike], axis=0)
        return EffectEstimate(table, values.reshape(flat), np.sqrt(variance).reshape(flat), rows)

    def _read_step(self, before: Sequence[TableScores], step: TableScores) -> _EffectReading:
        table, _, seen = step
        cells = ContingencyTable(tuple(_axis_of(table, feature) for feature in self.features))
        merged = table.n_cells // cells.n_cells  # cells of the table per folded cell
        sums, noise = _fold_cells(seen.sums, table, cells), merged * seen.noise
        if seen.rows is None:
            counts = np.maximum(sums, max(noise**0.5, 1.0))
            return self._read_counts(cells, counts, noise / counts**2, sums.sum(axis=1))
        rows, by_rows = _fold_cells(seen.rows[:, None], table, cells), merged * seen.rows_noise
        scores = self._start + self._rows.score_rows(before, self._member_cells(cells), len(self._start))
        if not self._n_classes:
            moved = seen.limit * sums / rows
            noisy = (seen.limit**2 * noise + moved**2 * by_rows) / rows**2 + (CLIPPED_ERROR * moved) ** 2
            sampling = seen.limit**2 * seen.spread / rows
            return _EffectReading(cells, scores.mean(axis=1) + moved, noisy, sampling, rows[:, 0])
        shares = _class_probabilities(scores).mean(axis=1)
        sums = np.column_stack([-sums, sums]) if self._n_classes == 2 else sums
        least = np.minimum(max(noise**0.5, 1.0), rows / (2 * self._n_classes))
        counts = np.maximum(rows * shares + sums, least)
        by_count = by_rows * (shares - counts / counts.sum(axis=1, keepdims=True)) ** 2
        return self._read_counts(cells, counts, (noise + by_count) / counts**2, rows[:, 0], opposed=True)

    def _read_counts(
        self, cells: ContingencyTable, counts: Floats, noise: Floats, rows: Floats, opposed: bool = False
    ) -> _EffectReading:
        """Return a reading with its variances; ``opposed``: both classes share one noise value, with opposite signs."""
        sampling = 1 / counts
        if self._n_classes == 2:
            roots = np.sqrt(noise).sum(axis=1, keepdims=True)
            noise = roots**2 if opposed else noise.sum(axis=1, keepdims=True)
            return _EffectReading(cells, counts, noise, sampling.sum(axis=1, keepdims=True), rows)
        return _EffectReading(
            cells, counts, _center_values(counts, noise, 1)[1], _center_values(counts, sampling, 1)[1], rows
        )

    def _member_cells(self, cells: ContingencyTable) -> dict[int, Ints]:
        """Return synthetic bins of each column within each cell of a table, shape (cells, DRAWS)."""
        groups = np.unravel_index(np.arange(cells.n_cells), cells.shape)
        return {
            axis.feature: self._rows.draw_inside(axis)[group] for axis, group in zip(cells.axes, groups, strict=True)
        }

    def _solve_scores(
        self, reading: _EffectReading, others: Floats, start_values: Floats | None
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Find the scores that, added to those of other columns, yield the measured frequencies, by Newton's method.

        Return the scores, their two variances, and the attenuation: the slope of the mean log-odds as a function of the
        score.
        """
        if not self._n_classes:
            return reading.logits, reading.noise, reading.sampling, np.ones_like(reading.logits)
        wanted = reading.logits / reading.logits.sum(axis=1, keepdims=True)
        left = self._to_scores(np.log(wanted))
        most = MAX_RESTORED * np.abs(left - left.mean(axis=0)).max(axis=0) + np.abs(left.mean(axis=0))
        scores = left if start_values is None else start_values
        for _ in range(NEWTON_STEPS):
            shares = _class_probabilities(scores[:, None, :] + others)
            mean = np.clip(shares.mean(axis=1), TINY, 1 - TINY)
            # Averaging over other columns attenuates the change of a class frequency by this factor.
            pull = np.clip((shares * (1 - shares)).mean(axis=1) / (mean * (1 - mean)), MIN_PULL, 1.0)
            pull = pull[:, 1:] if self._n_classes == 2 else pull
            scores = np.clip(scores + self._to_scores(np.log(wanted / mean)) / pull, -most, most)
        return scores, reading.noise / pull**2, reading.sampling / pull**2, pull

    def _to_scores(self, logs: Floats) -> Floats:
        return logs[:, 1:] - logs[:, :1] if self._n_classes == 2 else logs - logs.mean(axis=1, keepdims=True)


def _class_probabilities(scores: Floats) -> Floats:
    """Return the class probabilities of scores; outputs are in the last dimension."""
    return scores_to_probabilities(scores.reshape(-1, scores.shape[-1])).reshape(*scores.shape[:-1], -1)


def _axis_of(table: ContingencyTable, feature: int) -> Axis:
    return next(axis for axis in table.axes if axis.feature == feature)


def _fold_cells(values: Floats, table: ContingencyTable, cells: ContingencyTable) -> Floats:
    """Sum the cells of a table over the columns that are not in ``cells``."""
    places = [table.features.index(feature) for feature in cells.features]
    others = tuple(i for i in range(len(table.axes)) if i not in places)
    held = np.transpose(values.reshape(*table.shape, -1), (*places, *others, len(table.axes)))
    return np.asarray(held.sum(axis=tuple(range(len(places), len(table.axes)))).reshape(cells.n_cells, -1))


def _center_values(values: Floats, variances: Floats, axis: int) -> tuple[Floats, Floats]:
    """Subtract the mean along an axis from values, and adjust their variances, assuming independent entries."""
    n = values.shape[axis]
    mean = variances.mean(axis=axis, keepdims=True)
    return values - values.mean(axis=axis, keepdims=True), variances * (1 - 2 / n) + mean / n


_MAX_SHOWN: Final = 6  # main effects drawn in a notebook
FALSE_POSITIVES: Final = 0.05  # fraction of fits without effects in which the largest strength exceeds its ``noise``
ERROR_BARS: Final = 2.0  # half width in standard errors: about one bar in 20 misses the true value


class EffectForest(NamedTuple):
    """Estimates as a forest: one tree per column or pair, with values, standard errors and noisy rows per leaf."""

    forest: Forest
    values: Floats
    errors: Floats
    rows: Floats

    @classmethod
    def from_estimates(cls, estimates: Sequence[EffectEstimate], n_outputs: int) -> EffectForest:
        """Convert estimates to trees; without estimates, to a single leaf."""
        forest, cells = tables_to_forest([estimate.table for estimate in estimates] or [ContingencyTable(())])
        values, errors = np.zeros((2, forest.n_leaves, n_outputs))
        rows = np.zeros((forest.n_leaves, 1))
        bounds = zip(forest.tree_leaves[:-1], forest.tree_leaves[1:], strict=True)
        for (first, last), estimate in zip(bounds, estimates, strict=False):
            values[first:last] = estimate.values[cells[first:last]]
            errors[first:last] = estimate.errors[cells[first:last]]
            rows[first:last, 0] = estimate.rows[cells[first:last]]
        return cls(forest, values, errors, rows)


class MeasuredEffect:
    """Base class of effects with error bars."""

    effect: Floats
    error: Floats
    n_candidates: int

    @property
    def strength(self) -> float:
        """Root mean square over groups and outputs."""
        return _root_mean_square(self.effect)

    @property
    def noise(self) -> float:
        """Strength that the largest of all columns (or pairs) exceeds in 1 of 20 fits if none of them has an effect.

        The square of a strength is a sum of squared errors: chi-squared, with as many degrees of freedom as its mean
        and variance imply (Satterthwaite). Steps measure the pairs that look strongest, on the same rows.
        Hence the quantile is that of the largest of ``n_candidates``.
        """
        variances = (self.error / ERROR_BARS) ** 2
        mean, shape = float(variances.mean()), self.effect.shape
        sizes = [max(size - 1, 1) for size in (shape if shape[-1] > 1 else shape[:-1])]
        degrees = prod(sizes) * mean**2 / max(float((variances**2).mean()), TINY**2)
        largest = chi2.isf(1 - (1 - FALSE_POSITIVES) ** (1 / self.n_candidates), degrees)
        return float((mean * largest / degrees) ** 0.5)

    @property
    def is_clear(self) -> bool:
        """Whether the effect exceeds what noise and chance alone could show."""
        return self.strength > self.noise


@dataclass(frozen=True, eq=False)
class MainEffect(MeasuredEffect):
    """Main effect of one column.

    Attributes
    ----------
    column : str
        Name of the column.
    groups : tuple of str
        Categories, or intervals in the units of the column; the last is ``"missing"`` if values may be missing.
    effect : ndarray, shape (n_groups, n_outputs)
        Contribution of each group to a prediction, minus the mean over groups.
    error : ndarray, shape (n_groups, n_outputs)
        Half width of the error bar, for noise and sampling error together: the true value is between
        ``effect - error`` and ``effect + error`` for at least nine out of ten groups.
    edges : ndarray or None
        Bounds of the intervals of a numeric column; None for categories.
    n_candidates : int
        Number of columns.
    rows : ndarray or None
        Released noisy number of rows in each group; it can be negative.
    """

    column: str
    groups: tuple[str, ...]
    effect: Floats
    error: Floats
    edges: Floats | None = None
    n_candidates: int = 1
    rows: Floats | None = None

    def draw(self, outputs: Sequence[str], scale: tuple[float, float] | None = None) -> str:
        """Return a chart of the effect as SVG; ``scale`` is the range of its axis."""
        rows = None if self.rows is None else self.rows.tolist()
        if self.edges is None:
            return draw_category_effect(
                self.groups, self.effect, self.error, outputs, rows=rows, scale=scale, label=self.column
            )
        return draw_number_effect(
            self.edges.tolist(), self.effect, self.error, outputs, rows=rows, scale=scale, label=self.column
        )


@dataclass(frozen=True, eq=False)
class Interaction(MeasuredEffect):
    """Interaction of two columns beyond their main effects.

    Attributes
    ----------
    columns : tuple of str
        Names of the columns.
    groups : tuple of tuple of str
        Groups of each column.
    effect, error : ndarray, shape (n_groups of the first, n_groups of the second, n_outputs)
        Contribution of each pair of groups beyond the main effects, and the half width of its error bar.
    n_candidates : int
        Number of pairs of columns.
    """

    columns: tuple[str, str]
    groups: tuple[tuple[str, ...], tuple[str, ...]]
    effect: Floats
    error: Floats
    n_candidates: int = 1


@dataclass(frozen=True, eq=False, repr=False)
class Effects:
    """Main effects and strongest measured interactions, each in order of strength.

    Attributes
    ----------
    unit : str
        Unit of the effects: log-odds, or the units of the target.
    outputs : tuple of str
        Outputs: the second of two classes, each of three or more classes, or the target.
    main : tuple of MainEffect
    interactions : tuple of Interaction

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.PrivateForestClassifier(car.schema, epsilon=3.0, n_rows=1728, random_state=0).fit(car.X, car.y)
    >>> effects = forest.explain()
    >>> effects.unit
    'log-odds of each class, less their mean'
    >>> len(effects.main[0].groups), effects.main[0].effect.shape[1]
    (3, 4)
    """

    unit: str
    outputs: tuple[str, ...]
    main: tuple[MainEffect, ...]
    interactions: tuple[Interaction, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the effects as plain values for JSON."""
        return {
            "unit": self.unit,
            "outputs": list(self.outputs),
            "main": [
                {
                    "column": main.column,
                    "groups": list(main.groups),
                    "effect": main.effect.tolist(),
                    "error": main.error.tolist(),
                }
                for main in self.main
            ],
            "interactions": [
                {
                    "columns": list(pair.columns),
                    "groups": [list(groups) for groups in pair.groups],
                    "effect": pair.effect.tolist(),
                    "error": pair.error.tolist(),
                    "strength": pair.strength,
                    "noise": pair.noise,
                }
                for pair in self.interactions
            ],
        }

    def _repr_html_(self) -> str:
        """Show the strongest effects in a notebook, with their error bars."""
        figures = []
        for main in self.main[:_MAX_SHOWN]:
            figures.append((main.column, main.draw(self.outputs)))
        clear = ", ".join(" x ".join(pair.columns) for pair in self.interactions if pair.is_clear) or "none"
        key = {} if len(self.outputs) == 1 else dict(zip(self.outputs, COLOURS * len(self.outputs), strict=False))
        text = f"on the {self.unit}; pairs beyond noise: {clear}"
        return html_card("What each column adds", text, figures=figures, key=key)

    def __repr__(self) -> str:
        names = ", ".join(main.column for main in self.main[:3]) + ", ..." * (len(self.main) > 3)
        clear = sum(pair.is_clear for pair in self.interactions)
        return f"Effects({names or 'no column'} on the {self.unit}; {clear} pairs beyond noise)"

    def __str__(self) -> str:
        if not self.main:
            return "No column was measured: every row gets the same prediction."
        several = len(self.outputs) > 1
        names = [shorten_label(main.column, 14) for main in self.main]
        width = max(map(len, names))
        room = width + (9 if several else 21)
        head = f"Adds to the {self.unit}"
        lines = [head] * (len(head) > room) + [f"{head if len(head) <= room else '':<{room}} {'lowest':<23}  highest"]
        for name, main in zip(names, self.main, strict=True):
            spark = "" if several else f"{_sparkline(main.effect[:, 0]):<10}  "
            ends = (self._effect_text(main, int(place)) for place in (main.effect.argmin(), main.effect.argmax()))
            lines.append(
                f"{name:<{width}}  {main.strength:5.3g}  {spark}{'  '.join(f'{end:<23}' for end in ends)}".rstrip()
            )
        clear = [pair for pair in self.interactions if pair.is_clear]
        lines += [f"{' x '.join(pair.columns)}  {pair.strength:.2g} (noise {pair.noise:.2g})" for pair in clear]
        rest = len(self.interactions) - len(clear)
        if not clear:
            lines.append(f"Pairs: none of {rest} beyond noise." if rest else "Pairs: none measured.")
        elif rest:
            lines.append(f"{rest} other pairs within noise.")
        lines.append("± covers 95 %; * beyond noise.")
        return "\n".join(lines)

    def _effect_text(self, main: MainEffect, place: int) -> str:
        """Return a group with its effect and error in 23 characters, with a marker if the effect exceeds the error."""
        group, output = divmod(place, main.effect.shape[1])
        name = main.groups[group] if len(self.outputs) == 1 else f"{main.groups[group]}: {self.outputs[output]}"
        effect, error = main.effect[group, output], main.error[group, output]
        mark = "*" if main.is_clear and abs(effect) > error else ""
        return f"{shorten_label(name, 10):<10} {effect:+.2f}±{error:.2f}{mark}"


_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_SPARKS: Final = 10  # characters


def _sparkline(values: Floats) -> str:
    """Return up to ten values as block characters; longer sequences are averaged to ten first.

    >>> _sparkline(np.array([0.0, 0.5, 1.0]))
    '▁▅█'
    """
    parts = [part.mean() for part in np.array_split(values, min(len(values), _SPARKS))]
    low, reach = min(parts), max(max(parts) - min(parts), TINY)
    return "".join(_BLOCKS[round((part - low) / reach * (len(_BLOCKS) - 1))] for part in parts)


def read_effects(effect_forest: EffectForest, encoding: Encoding) -> Effects:
    """Return the effects stored in trees, in the units and names of the schema."""
    target, classes = encoding.schema.target, encoding.schema.classes
    scale = 1.0 if classes else target.bounds[1] - target.bounds[0]
    n_columns = len(encoding.columns)
    mains, pairs = [], []
    for tree in _iter_trees(effect_forest.forest, encoding):
        effect, error = (
            scale * effect_forest.values[tree.leaves],
            ERROR_BARS * scale * effect_forest.errors[tree.leaves],
        )
        labels = tuple(_group_labels(encoding, *axis) for axis in zip(tree.features, tree.codes, strict=True))
        kept = [[i for i, label in enumerate(axis) if label] for axis in labels]
        effect, error = effect[np.ix_(*kept)], error[np.ix_(*kept)]
        labels = tuple(tuple(label for label in axis if label) for axis in labels)
        names = [encoding.columns[feature].name for feature in tree.features]
        if len(names) == 1:
            edges = _interval_edges(encoding, tree.features[0], tree.codes[0])
            edges = None if edges is None else np.unique(edges)
            rows = effect_forest.rows[tree.leaves, 0][kept[0]]
            mains.append(MainEffect(names[0], labels[0], effect, error, edges, n_columns, rows))
        elif len(names) == 2:
            candidates = n_columns * (n_columns - 1) // 2
            pairs.append(Interaction((names[0], names[1]), (labels[0], labels[1]), effect, error, candidates))
    unit = f"units of {target.name}"
    outputs: tuple[str, ...] = (target.name,)
    if len(classes) == 2:
        unit, outputs = f"log-odds of {classes[1]}", (classes[1],)
    elif classes:
        unit, outputs = "log-odds of each class, less their mean", classes
    return Effects(
        unit, outputs, tuple(sorted(mains, key=lambda one: -one.strength)),
        tuple(sorted(pairs, key=lambda one: -one.strength)),
    )  # fmt: skip


def _axes_of(forest: Forest, encoding: Encoding) -> Iterator[tuple[dict[int, bytes], int]]:
    """Iterate over trees: the groups of codes per column, and the number of cells of the table."""
    for nodes in np.split(np.arange(forest.n_nodes), forest.roots[1:]):
        feature, cut = forest.feature[nodes], forest.cut[nodes]
        axes: dict[int, bytes] = {}
        cells = 1
        for column in np.unique(feature[feature != LEAF]).tolist():
            cuts = np.unique(cut[feature == column]).astype(np.int64)
            groups = len(cuts) + 1
            if cuts[0] < 0:  # a lookup table; each column has at most one
                start = -1 - int(cuts[0])
                cuts = forest.lookup[start : start + encoding.n_codes[column]].astype(np.int64)
                groups = int(cuts.max(initial=0)) + 1
            axes[column], cells = cuts.tobytes(), cells * groups
        yield axes, cells


def check_effects(effect_trees: Forest, forest: Forest, encoding: Encoding) -> None:
    """Raise ModelFileError if a model contains effects of columns, pairs or groups that no step measured.

    Values and error bars cannot be checked by recomputing them: model files do not contain the underlying noisy sums.
    """
    measured = [axes for axes, _ in _axes_of(forest, encoding)]
    explained = list(_axes_of(effect_trees, encoding))
    has_all_cells = np.diff(effect_trees.tree_leaves).tolist() == [cells for _, cells in explained]
    valid = has_all_cells and all(any(axes.items() <= tree.items() for tree in measured) for axes, _ in explained)
    columns = [tuple(axes) for axes, _ in explained]
    main_columns = {each[0] for each in columns if len(each) == 1}
    valid = valid and main_columns == {column for tree in measured for column in tree} and max(map(len, columns)) <= 2
    if () not in columns:  # a column with a single group does not appear in a tree
        valid = valid and len(set(columns)) == len(columns)
    if not valid:
        raise ModelFileError("the model contains effects of columns, pairs or groups that its plan does not measure.")


class _EffectTree(NamedTuple):
    """Tree as a table: columns, the first code of each group, and the leaf of each cell."""

    features: list[int]
    codes: list[Ints]
    leaves: Int32s


def _iter_trees(forest: Forest, encoding: Encoding) -> Iterator[_EffectTree]:
    ends = np.append(forest.roots[1:], forest.n_nodes)
    for root, end in zip(forest.roots.tolist(), ends.tolist(), strict=True):
        feature, cut = forest.feature[root:end], forest.cut[root:end]
        features = np.unique(feature[feature != LEAF]).tolist()
        codes = [
            np.unique(np.append(cut[feature == one], 0)).astype(np.int64)
            if encoding.columns[one].ordered
            else np.arange(encoding.columns[one].n_codes)
            for one in features
        ]
        grid = np.meshgrid(*codes, indexing="ij") if codes else [np.zeros(1, np.int64)]
        shown = np.stack([one.ravel() for one in grid])
        node = np.full(shown.shape[1], root)
        column = np.zeros(len(encoding.columns), np.intp)
        column[features] = np.arange(len(features))
        cells = np.arange(shown.shape[1])
        while (inner := forest.feature[node] != LEAF).any():
            code = shown[np.where(inner, column[forest.feature[node]], 0), cells]
            at = forest.cut[node]
            looked_up = forest.lookup[np.where(at < 0, -1 - at + code, 0)] if len(forest.lookup) else code
            branch = np.where(at < 0, looked_up, code >= at)
            node = np.where(inner, forest.child[node] + branch, node)
        yield _EffectTree(features, codes, forest.child[node].reshape([len(one) for one in codes]))


def _root_mean_square(values: Floats) -> float:
    return float(np.sqrt((values**2).mean()))


def _interval_edges(encoding: Encoding, feature: int, codes: Ints) -> Floats | None:
    """Return the bounds of a numeric column's intervals in ascending order, or None for a categorical column."""
    column, missing = encoding.schema.features[feature], encoding.columns[feature].missing_code
    if column.kind == "categorical":
        return None
    lower, upper = column.bounds
    inside = encoding.threshold(feature, codes[1:][codes[1:] != (-1 if missing is None else missing)])
    if column.whole:  # halfway between the last integer of an interval and the first of the next
        return np.array([lower - 0.5, *(np.ceil(inside) - 0.5).tolist(), upper + 0.5])
    return np.array([lower, *inside.tolist(), upper])


def _group_labels(encoding: Encoding, feature: int, codes: Ints) -> tuple[str, ...]:
    """Return labels of the groups of a column: categories, or intervals without their upper end.

    An interval of an integer column that contains no integer has an empty label.
    """
    column, missing = encoding.schema.features[feature], encoding.columns[feature].missing_code
    edges = _interval_edges(encoding, feature, codes)
    if edges is None:
        return (*column.values, *(["missing"] if missing is not None else []))
    starts, ends = edges[:-1], edges[1:]
    if column.whole:
        starts, ends = np.ceil(starts) + 0.0, np.floor(ends)  # no -0
    intervals = [f"{start:.4g} to {end:.4g}" for start, end in zip(starts, ends, strict=True)]
    if column.whole:
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        intervals = ["" if b < a else f"{a:.6g}" if a == b else f"{a:.6g} to {b:.6g}" for a, b in pairs]
    return (*intervals, *(["missing"] if missing is not None and codes[-1] == missing else []))
