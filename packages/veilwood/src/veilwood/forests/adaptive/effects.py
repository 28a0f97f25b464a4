# SPDX-License-Identifier: Apache-2.0
"""What a PrivateForest learned, for people: main effects and the strongest interactions, with error bars.

Computed from released values only, as ``estimate_effects`` says. Plots are in ``plots``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from veilwood.charts import draw_category_bars, draw_steps, html_card
from veilwood.data.encoding import Encoding
from veilwood.errors import ModelFileError
from veilwood.forests.adaptive.contingency import Axis, ContingencyTable, tables_to_forest
from veilwood.forests.adaptive.row_backend import scores_to_probabilities
from veilwood.trees.forest import LEAF, Forest

__all__ = [
    "MAX_PAIRS",
    "EffectEstimate",
    "EffectForest",
    "Effects",
    "Interaction",
    "MainEffect",
    "StepMeasurement",
    "TableScores",
    "check_effects",
    "estimate_effects",
    "read_effects",
]


RAKING_SWEEPS: Final = 3  # sweeps that fit the mass of cells to the rows of all steps; more change nothing that is seen
DRAWS: Final = 256  # 512 were not better
RESTORED_ERROR: Final = (
    0.25  # of what averaging over others has taken away and is given back, its error: it is an estimate too
)
PASSES: Final = 12  # over all columns, each with the estimates of the one before; fewer where they settle,
MAX_CHANGE: Final = 0.05  # that is, move by less than this part of their standard errors
NEWTON_STEPS: Final = 2  # iterations of Newton's method in a pass; the next one goes on from there
PAIR_PASSES: Final = 3  # passes for pairs, with columns as they are
MIN_PULL: Final = 0.05
# What averaging has taken away is given back up to so many times what is left. Columns that say the same are not
# independent, as made-up rows take them to be, and would push each other up without end: iris +340 log-odds at e = 2.
MAX_RESTORED: Final = 3.0
RESIDUAL_VARIANCE: Final = 0.3  # of a gradient of numbers, its variance: that of a bell whose limit ``loop`` sets
MAX_PAIRS: Final = 10
TINY: Final = 1e-12

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Features = tuple[int, ...]


class StepMeasurement(NamedTuple):
    """What a step released about the cells of a table.

    Attributes
    ----------
    sums : ndarray, shape (n_cells, n_outputs)
        Class counts, or sums of gradients.
    noise : float
        The variance of the noise on each.
    rows : ndarray or None
        Rows of each cell; None where ``sums`` are class counts.
    rows_noise : float
        The variance of the noise on these.
    limit : float
        What a gradient of 1 is in units of scores, where the target is a number.
    """

    sums: Floats
    noise: float
    rows: Floats | None = None
    rows_noise: float = 0.0
    limit: float = 1.0

    @property
    def cell_rows(self) -> Floats:
        """Rows of each cell."""
        return np.asarray(self.sums.sum(axis=1)) if self.rows is None else self.rows


class TableScores(NamedTuple):
    """A table, the scores that were added in its cells (whole numbers in ``loop``), and what had been seen of it."""

    table: ContingencyTable
    values: NDArray[Any]
    measurement: StepMeasurement


@dataclass(frozen=True, eq=False)
class EffectEstimate:
    """What one column does, or two beyond what each does: a table with values and their standard errors."""

    table: ContingencyTable
    values: Floats
    errors: Floats

    @property
    def strength(self) -> float:
        """The mean square that is more than the errors explain."""
        return float((self.values**2).mean() - (self.errors**2).mean())

    def change_from(self, earlier: EffectEstimate) -> float:
        """How far this is from an earlier estimate, in standard errors."""
        return float(np.abs(self.values - earlier.values).max() / max(self.errors.mean(), TINY))

    def shrink(self) -> EffectEstimate:
        """Return an estimate that varies as much as the truth does, not as much as truth and errors together."""
        size = float((self.values**2).mean())
        return replace(self, values=self.values * (max(self.strength, 0.0) / max(size, TINY)) ** 0.5)


def estimate_effects(steps: Sequence[TableScores], start: Floats, n_classes: int) -> list[EffectEstimate]:
    """Return an estimate for each column that was measured, and for the strongest pairs that were."""
    if not steps:
        return []
    rows = _SyntheticRows(steps)
    columns = sorted({feature for step in steps for feature in step.table.features})
    pairs = sorted({pair for step in steps for pair in combinations(sorted(step.table.features), 2)})
    readers = [_EffectReader(steps, start, n_classes, rows, (feature,)) for feature in columns]
    beside = _OtherEffects(rows, len(start))
    alone: list[EffectEstimate] = []
    for _ in range(PASSES if n_classes else 1):  # what other columns do is itself only known from estimates
        earlier, alone = alone, [reader.estimate(beside.sum_without(reader.features)) for reader in readers]
        beside = _OtherEffects(rows, len(start), [one.shrink() for one in alone])
        if earlier and max(new.change_from(old) for new, old in zip(alone, earlier, strict=True)) < MAX_CHANGE:
            break
    together = [_EffectReader(steps, start, n_classes, rows, pair) for pair in pairs]
    nothing = _OtherEffects(rows, len(start)).sum_without(())
    strongest = sorted(together, key=lambda reader: -reader.estimate(nothing).strength)[:MAX_PAIRS]
    for _ in range(PAIR_PASSES):
        told = [reader.estimate(beside.sum_without(reader.features)) for reader in strongest]
    return [*alone, *told]


class _SyntheticRows:
    """Rows in which columns are independent, as cells of columns; the same ones whenever a column is looked at."""

    def __init__(self, steps: Sequence[TableScores]) -> None:
        self._mass: dict[int, Floats] = {}
        for _ in range(RAKING_SWEEPS):  # iterative fitting to the rows that each step saw in groups of a column
            for table, _, seen in steps:
                for axis in table.axes:
                    held = self._mass.setdefault(axis.feature, np.ones(len(axis.groups)))
                    there = _fold_cells(seen.cell_rows[:, None], table, ContingencyTable((axis,)))[:, 0]
                    there = np.maximum(there, max(float(there.sum()), 1.0) * 1e-4)
                    held *= (there / np.maximum(np.bincount(axis.groups, held, axis.size), TINY))[axis.groups]
        spread = qmc.Sobol(len(self._mass), rng=0).random(DRAWS).T  # columns, and pairs of them, evenly filled
        self._place = dict(zip(self._mass, spread, strict=True))
        self._cells_of_column: dict[int, Ints] = {}

    def draw_cells(self, feature: int) -> Ints:
        """Return cells of a column, shape (1, DRAWS)."""
        if feature not in self._cells_of_column:
            ends = np.cumsum(self._mass[feature])
            found = np.searchsorted(ends, self._place[feature] * ends[-1])
            self._cells_of_column[feature] = np.minimum(found, len(ends) - 1)[None]
        return self._cells_of_column[feature]

    def draw_inside(self, axis: Axis) -> Ints:
        """Return cells of a column inside each of its groups, shape (groups, DRAWS)."""
        order = np.argsort(axis.groups, kind="stable")
        ends = np.append(0.0, np.cumsum(self._mass[axis.feature][order]))
        last = np.searchsorted(axis.groups[order], np.arange(axis.size), side="right")
        first = np.append(0, last[:-1])
        at = ends[first][:, None] + self._place[axis.feature] * (ends[last] - ends[first])[:, None]
        found = np.searchsorted(ends, at, side="right") - 1
        return np.asarray(order[np.clip(found, first[:, None], last[:, None] - 1)])

    def score_rows(
        self, estimates: Sequence[TableScores | EffectEstimate], given: Mapping[int, Ints], n_outputs: int
    ) -> Floats:
        """Add up what tables say of rows whose cells are ``given`` for some columns and drawn for the others."""
        total: Floats = np.zeros((1, DRAWS, n_outputs))
        for one in estimates:
            cell = np.zeros((1, DRAWS), np.int64)
            for axis in one.table.axes:
                cells = given[axis.feature] if axis.feature in given else self.draw_cells(axis.feature)
                cell = cell * axis.size + axis.groups[cells]
            total = total + one.values[cell]
        return total


class _OtherEffects:
    """What columns add in made-up rows, by estimates of them."""

    def __init__(self, rows: _SyntheticRows, n_outputs: int, estimates: Sequence[EffectEstimate] = ()) -> None:
        self._parts = {one.table.features: rows.score_rows([one], {}, n_outputs) for one in estimates}
        self._all: Floats = sum(self._parts.values(), np.zeros((1, DRAWS, n_outputs)))

    def sum_without(self, features: Features) -> Floats:
        """Leave some columns out."""
        return self._all - sum(self._parts[feature,] for feature in features if (feature,) in self._parts)


class _EffectReading(NamedTuple):
    """What one step says of cells: counts of classes, or means of a target, and variances of their logarithms."""

    table: ContingencyTable
    logits: Floats
    noise: Floats
    sampling: Floats

    @property
    def precision(self) -> float:
        """How much it tells: precision of all cells, less what coarse cells cannot show."""
        return float((1 / np.maximum(self.noise + self.sampling, TINY)).sum() * (1 - self.table.n_cells**-2.0))

    @property
    def grouping_key(self) -> tuple[bytes, ...]:
        """Which cells of columns are told apart."""
        return tuple(axis.groups.tobytes() for axis in self.table.axes)


class _EffectReader:
    """Reads what steps say about a column, or a pair, by the grouping of its cells that tells most."""

    def __init__(
        self, steps: Sequence[TableScores], start: Floats, n_classes: int, rows: _SyntheticRows, features: Features
    ) -> None:
        self._start, self._n_classes, self._rows, self.features = start, n_classes, rows, features
        readings = [
            self._read_step(steps[:number], step)
            for number, step in enumerate(steps)
            if set(features) <= set(step.table.features)
        ]
        best = max(readings, key=lambda reading: reading.precision)
        self._alike = [reading for reading in readings if reading.grouping_key == best.grouping_key]
        self._last_solution: list[Floats | None] = [None] * len(self._alike)

    def estimate(self, others: Floats) -> EffectEstimate:
        """Put the readings together, given what other columns add in made-up rows."""
        solved = [
            self._solve_scores(reading, others, found)
            for reading, found in zip(self._alike, self._last_solution, strict=True)
        ]
        self._last_solution = [one[0] for one in solved]
        scores, noise, sampling, pull = (np.stack(part) for part in zip(*solved, strict=True))
        weight = 1 / np.maximum(noise, TINY)
        weight /= weight.sum(axis=0)
        variance = (weight**2 * noise).sum(axis=0) + sampling.min(axis=0)  # the rows are the same
        table = self._alike[0].table
        values, variance = (part.reshape(*table.shape, -1) for part in ((weight * scores).sum(axis=0), variance))
        for axis in range(len(table.shape)):
            values, variance = _center_values(values, variance, axis)
        variance += (RESTORED_ERROR * (1 - pull.mean()) * values) ** 2
        flat = (table.n_cells, len(self._start))
        return EffectEstimate(table, values.reshape(flat), np.sqrt(variance).reshape(flat))

    def _read_step(self, before: Sequence[TableScores], step: TableScores) -> _EffectReading:
        table, _, seen = step
        cells = ContingencyTable(tuple(_axis_of(table, feature) for feature in self.features))
        merged = table.n_cells // cells.n_cells  # cells of the table in one of ours
        sums, noise = _fold_cells(seen.sums, table, cells), merged * seen.noise
        if seen.rows is None:
            counts = np.maximum(sums, max(noise**0.5, 1.0))
            return self._read_counts(cells, counts, noise / counts**2)
        rows, by_rows = _fold_cells(seen.rows[:, None], table, cells), merged * seen.rows_noise
        scores = self._start + self._rows.score_rows(before, self._member_cells(cells), len(self._start))
        if not self._n_classes:
            moved = seen.limit * sums / rows
            noisy = (seen.limit**2 * noise + moved**2 * by_rows) / rows**2
            return _EffectReading(cells, scores.mean(axis=1) + moved, noisy, seen.limit**2 * RESIDUAL_VARIANCE / rows)
        shares = _class_probabilities(scores).mean(axis=1)
        sums = np.column_stack([-sums, sums]) if self._n_classes == 2 else sums
        least = np.minimum(max(noise**0.5, 1.0), rows / (2 * self._n_classes))
        counts = np.maximum(rows * shares + sums, least)
        by_count = by_rows * (shares - counts / counts.sum(axis=1, keepdims=True)) ** 2
        return self._read_counts(cells, counts, (noise + by_count) / counts**2, opposed=True)

    def _read_counts(
        self, cells: ContingencyTable, counts: Floats, noise: Floats, opposed: bool = False
    ) -> _EffectReading:
        """Say how far log-odds can be trusted; ``opposed``: the noise of two classes is one, with opposite signs."""
        sampling = 1 / counts
        if self._n_classes == 2:
            roots = np.sqrt(noise).sum(axis=1, keepdims=True)
            noise = roots**2 if opposed else noise.sum(axis=1, keepdims=True)
            return _EffectReading(cells, counts, noise, sampling.sum(axis=1, keepdims=True))
        return _EffectReading(
            cells, counts, _center_values(counts, noise, 1)[1], _center_values(counts, sampling, 1)[1]
        )

    def _member_cells(self, cells: ContingencyTable) -> dict[int, Ints]:
        """Cells of our columns in each cell of a table over them, shape (cells, DRAWS)."""
        groups = np.unravel_index(np.arange(cells.n_cells), cells.shape)
        return {
            axis.feature: self._rows.draw_inside(axis)[group] for axis, group in zip(cells.axes, groups, strict=True)
        }

    def _solve_scores(
        self, reading: _EffectReading, others: Floats, start_values: Floats | None
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Go on to find the scores that, beside what other columns add, give the shares that were seen (Newton).

        Return them with their variances, and the part of a change that is seen in shares.
        """
        if not self._n_classes:
            return *reading[1:], np.ones_like(reading.logits)
        wanted = reading.logits / reading.logits.sum(axis=1, keepdims=True)
        left = self._to_scores(np.log(wanted))
        most = MAX_RESTORED * np.abs(left - left.mean(axis=0)).max(axis=0) + np.abs(left.mean(axis=0))
        scores = left if start_values is None else start_values
        for _ in range(NEWTON_STEPS):
            shares = _class_probabilities(scores[:, None, :] + others)
            mean = np.clip(shares.mean(axis=1), TINY, 1 - TINY)
            # A share moves by so much less when averaged over other columns.
            pull = np.clip((shares * (1 - shares)).mean(axis=1) / (mean * (1 - mean)), MIN_PULL, 1.0)
            pull = pull[:, 1:] if self._n_classes == 2 else pull
            scores = np.clip(scores + self._to_scores(np.log(wanted / mean)) / pull, -most, most)
        return scores, reading.noise / pull**2, reading.sampling / pull**2, pull

    def _to_scores(self, logs: Floats) -> Floats:
        return logs[:, 1:] - logs[:, :1] if self._n_classes == 2 else logs - logs.mean(axis=1, keepdims=True)


def _class_probabilities(scores: Floats) -> Floats:
    """Turn scores, in the last dimension, into shares of classes."""
    return scores_to_probabilities(scores.reshape(-1, scores.shape[-1])).reshape(*scores.shape[:-1], -1)


def _axis_of(table: ContingencyTable, feature: int) -> Axis:
    return next(axis for axis in table.axes if axis.feature == feature)


def _fold_cells(values: Floats, table: ContingencyTable, cells: ContingencyTable) -> Floats:
    """Add up the cells of a table over the columns that are not in ``cells``."""
    places = [table.features.index(feature) for feature in cells.features]
    others = tuple(i for i in range(len(table.axes)) if i not in places)
    held = np.transpose(values.reshape(*table.shape, -1), (*places, *others, len(table.axes)))
    return np.asarray(held.sum(axis=tuple(range(len(places), len(table.axes)))).reshape(cells.n_cells, -1))


def _center_values(values: Floats, variances: Floats, axis: int) -> tuple[Floats, Floats]:
    """Subtract the mean along an axis; entries are independent."""
    n = values.shape[axis]
    mean = variances.mean(axis=axis, keepdims=True)
    return values - values.mean(axis=axis, keepdims=True), variances * (1 - 2 / n) + mean / n


_MAX_SHOWN: Final = 6  # in a notebook
ERROR_BARS: Final = 2.0  # standard errors to each side: of 20 bars about one misses the truth

Codes: TypeAlias = NDArray[np.int64]


class EffectForest(NamedTuple):
    """Estimates as a forest: a tree for each column or pair, values of its leaves, and their standard errors."""

    forest: Forest
    values: Floats
    errors: Floats

    @classmethod
    def from_estimates(cls, estimates: Sequence[EffectEstimate], n_outputs: int) -> EffectForest:
        """Write estimates as trees; a single leaf stands for none."""
        forest, cells = tables_to_forest([estimate.table for estimate in estimates] or [ContingencyTable(())])
        values, errors = np.zeros((2, forest.n_leaves, n_outputs))
        bounds = zip(forest.tree_leaves[:-1], forest.tree_leaves[1:], strict=True)
        for (first, last), estimate in zip(bounds, estimates, strict=False):
            values[first:last] = estimate.values[cells[first:last]]
            errors[first:last] = estimate.errors[cells[first:last]]
        return cls(forest, values, errors)


class MeasuredEffect:
    """Something that was measured with error bars."""

    effect: Floats
    error: Floats

    @property
    def strength(self) -> float:
        """The root mean square over groups and outputs."""
        return _root_mean_square(self.effect)

    @property
    def noise(self) -> float:
        """The strength that noise and chance alone could show."""
        return _root_mean_square(self.error) / ERROR_BARS


@dataclass(frozen=True, eq=False)
class MainEffect(MeasuredEffect):
    """What one column does by itself.

    Attributes
    ----------
    column : str
        Its name.
    groups : tuple of str
        Its categories, or intervals in its own units; ``"missing"`` where values may be missing.
    effect : ndarray, shape (n_groups, n_outputs)
        What each group adds to a prediction, less the mean over groups.
    error : ndarray, shape (n_groups, n_outputs)
        Half of the error bar: the truth is within ``effect - error`` and ``effect + error`` for at least nine groups
        of ten, whatever part of the error is noise and whatever is the chance of sampling.
    edges : ndarray or None
        Where the intervals of a numeric column begin and end; None for categories.
    """

    column: str
    groups: tuple[str, ...]
    effect: Floats
    error: Floats
    edges: Floats | None = None


@dataclass(frozen=True, eq=False)
class Interaction(MeasuredEffect):
    """What two columns do together beyond their main effects.

    Attributes
    ----------
    columns : tuple of str
        Their names.
    groups : tuple of tuple of str
        The groups of each.
    effect, error : ndarray, shape (n_groups of the first, n_groups of the second, n_outputs)
        What each pair of groups adds beyond the main effects, and half of its error bar.
    """

    columns: tuple[str, str]
    groups: tuple[tuple[str, ...], tuple[str, ...]]
    effect: Floats
    error: Floats


@dataclass(frozen=True, eq=False)
class Effects:
    """Main effects, strongest first, and the strongest of the interactions that were measured.

    Attributes
    ----------
    unit : str
        What effects are measured in: log-odds, or the target's own units.
    outputs : tuple of str
        What effects are on: the second of two classes, each of more classes, or the target.
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
        """Return plain values, for JSON."""
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
            draw = draw_steps if main.groups[0].startswith("[") else draw_category_bars
            figures.append((main.column, draw(main.groups, main.effect, main.error, self.outputs)))
        return html_card(f"Effects, in {self.unit}", f"for {', '.join(self.outputs)}", figures=figures)

    def __str__(self) -> str:
        if not self.main:
            return "No column was measured: every row gets the same prediction."
        width = max(len(main.column) for main in self.main)
        lines = [f"Main effects ({self.unit}), strongest first, with error bars that miss about one time in 20:"]
        lines += [
            f"  {main.column:<{width}}  {main.strength:6.3g}   "
            f"least {self._effect_text(main, int(main.effect.argmin()))}, "
            f"most {self._effect_text(main, int(main.effect.argmax()))}"
            for main in self.main
        ]
        if self.interactions:
            lines.append("Interactions, strongest first, and what noise and chance alone could show:")
            lines += [
                f"  {' x '.join(pair.columns)}  {pair.strength:.3g} (noise {pair.noise:.3g})"
                for pair in self.interactions
            ]
        return "\n".join(lines)

    def _effect_text(self, main: MainEffect, place: int) -> str:
        group, output = divmod(place, main.effect.shape[1])
        which = f" for {self.outputs[output]}" if len(self.outputs) > 1 else ""
        return f"{main.groups[group]}{which} {main.effect[group, output]:+.2f} ± {main.error[group, output]:.2f}"


def read_effects(effect_forest: EffectForest, encoding: Encoding) -> Effects:
    """Read effects off the trees that hold them, in units that people know."""
    target, classes = encoding.schema.target, encoding.schema.classes
    scale = 1.0 if classes else target.bounds[1] - target.bounds[0]
    mains, pairs = [], []
    for tree in _iter_trees(effect_forest.forest, encoding):
        effect, error = (
            scale * effect_forest.values[tree.leaves],
            ERROR_BARS * scale * effect_forest.errors[tree.leaves],
        )
        labels = tuple(_group_labels(encoding, *axis) for axis in zip(tree.features, tree.codes, strict=True))
        names = [encoding.columns[feature].name for feature in tree.features]
        if len(names) == 1:
            edges = _interval_edges(encoding, tree.features[0], tree.codes[0])
            mains.append(MainEffect(names[0], labels[0], effect, error, edges))
        elif len(names) == 2:
            pairs.append(Interaction((names[0], names[1]), (labels[0], labels[1]), effect, error))
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
    """Return, for each tree that is a table, how it groups the codes of each column, and how many cells that makes."""
    for nodes in np.split(np.arange(forest.n_nodes), forest.roots[1:]):
        feature, cut = forest.feature[nodes], forest.cut[nodes]
        axes: dict[int, bytes] = {}
        cells = 1
        for column in np.unique(feature[feature != LEAF]).tolist():
            cuts = np.unique(cut[feature == column]).astype(np.int64)
            groups = len(cuts) + 1
            if cuts[0] < 0:  # a lookup; a column that is looked up has one
                start = -1 - int(cuts[0])
                cuts = forest.lookup[start : start + encoding.n_codes[column]].astype(np.int64)
                groups = int(cuts.max(initial=0)) + 1
            axes[column], cells = cuts.tobytes(), cells * groups
        yield axes, cells


def check_effects(effect_trees: Forest, forest: Forest, encoding: Encoding) -> None:
    """Refuse explanations of columns, pairs or groups that no tree has: what steps saw of them is what is explained.

    Values and error bars cannot be computed again: the noisy sums that they follow from are in no file.
    """
    measured = [axes for axes, _ in _axes_of(forest, encoding)]
    said = list(_axes_of(effect_trees, encoding))
    whole = np.diff(effect_trees.tree_leaves).tolist() == [cells for _, cells in said]
    seen = whole and all(any(axes.items() <= tree.items() for tree in measured) for axes, _ in said)
    columns = [tuple(axes) for axes, _ in said]
    alone = {each[0] for each in columns if len(each) == 1}
    seen = seen and alone == {column for tree in measured for column in tree} and max(map(len, columns)) <= 2
    if () not in columns:  # a column in a single group leaves no trace in a tree
        seen = seen and len(set(columns)) == len(columns)
    if not seen:
        raise ModelFileError("it explains columns, pairs or groups other than those that its plan says were measured.")


class _EffectTree(NamedTuple):
    """A tree as a table: its columns, the first code of each group of these, and the leaf of each cell."""

    features: list[int]
    codes: list[Codes]
    leaves: NDArray[np.int32]


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


def _interval_edges(encoding: Encoding, feature: int, codes: Codes) -> Floats | None:
    """Where the intervals of a numeric column begin, and where the last one ends."""
    column, missing = encoding.schema.features[feature], encoding.columns[feature].missing_code
    if column.kind == "categorical":
        return None
    lower, upper = column.bounds
    inside = codes[1:][codes[1:] != (-1 if missing is None else missing)]
    return np.array([lower, *encoding.threshold(feature, inside).tolist(), upper])


def _group_labels(encoding: Encoding, feature: int, codes: Codes) -> tuple[str, ...]:
    """Name the groups of a column: categories, or intervals between the thresholds that they begin at."""
    column, missing = encoding.schema.features[feature], encoding.columns[feature].missing_code
    edges = _interval_edges(encoding, feature, codes)
    if edges is None:
        return (*column.values, *(["missing"] if missing is not None else []))
    ends = [*(f"{end:.4g})" for end in edges[1:-1]), f"{edges[-1]:.4g}]"]
    intervals = [f"[{start:.4g}, {end}" for start, end in zip(edges[:-1], ends, strict=True)]
    return (*intervals, *(["missing"] if missing is not None and codes[-1] == missing else []))
