# SPDX-License-Identifier: Apache-2.0
"""What a PrivateForest learned, for people: main effects and the strongest interactions, with error bars.

Computed from released values only, as ``estimates`` says. Plots are in ``plots``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veilwood.data.encoding import Encoding
from veilwood.errors import ModelFileError
from veilwood.forests.cells.cell_tables import CellTable, grow_tables
from veilwood.forests.explained.estimates import EffectEstimate
from veilwood.pictures import card, category_bars, steps
from veilwood.trees.forest import LEAF, Forest

__all__ = ["EffectForest", "Effects", "Interaction", "MainEffect", "check_effects", "effects_of"]

_MOST_SHOWN: Final = 6  # in a notebook
BARS: Final = 2.0  # standard errors to each side: of 20 bars about one misses the truth

Floats: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]


class EffectForest(NamedTuple):
    """Estimates as a forest: a tree for each column or pair, values of its leaves, and their standard errors."""

    forest: Forest
    values: Floats
    errors: Floats

    @classmethod
    def of(cls, estimates: Sequence[EffectEstimate], n_outputs: int) -> EffectForest:
        """Write estimates as trees; a single leaf stands for none."""
        forest, cells = grow_tables([estimate.table for estimate in estimates] or [CellTable(())])
        values, errors = np.zeros((2, forest.n_leaves, n_outputs))
        bounds = zip(forest.tree_leaves[:-1], forest.tree_leaves[1:], strict=True)
        for (first, last), estimate in zip(bounds, estimates, strict=False):
            values[first:last] = estimate.values[cells[first:last]]
            errors[first:last] = estimate.errors[cells[first:last]]
        return cls(forest, values, errors)


class Measured:
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
        return _root_mean_square(self.error) / BARS


@dataclass(frozen=True, eq=False)
class MainEffect(Measured):
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
class Interaction(Measured):
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
        for main in self.main[:_MOST_SHOWN]:
            draw = steps if main.groups[0].startswith("[") else category_bars
            figures.append((main.column, draw(main.groups, main.effect, main.error, self.outputs)))
        return card(f"Effects, in {self.unit}", f"for {', '.join(self.outputs)}", figures=figures)

    def __str__(self) -> str:
        if not self.main:
            return "No column was measured: every row gets the same prediction."
        width = max(len(main.column) for main in self.main)
        lines = [f"Main effects ({self.unit}), strongest first, with error bars that miss about one time in 20:"]
        lines += [
            f"  {main.column:<{width}}  {main.strength:6.3g}   least {self._told(main, int(main.effect.argmin()))}, "
            f"most {self._told(main, int(main.effect.argmax()))}"
            for main in self.main
        ]
        if self.interactions:
            lines.append("Interactions, strongest first, and what noise and chance alone could show:")
            lines += [
                f"  {' x '.join(pair.columns)}  {pair.strength:.3g} (noise {pair.noise:.3g})"
                for pair in self.interactions
            ]
        return "\n".join(lines)

    def _told(self, main: MainEffect, place: int) -> str:
        group, output = divmod(place, main.effect.shape[1])
        which = f" for {self.outputs[output]}" if len(self.outputs) > 1 else ""
        return f"{main.groups[group]}{which} {main.effect[group, output]:+.2f} ± {main.error[group, output]:.2f}"


def effects_of(told: EffectForest, encoding: Encoding) -> Effects:
    """Read effects off the trees that hold them, in units that people know."""
    target, classes = encoding.schema.target, encoding.schema.classes
    scale = 1.0 if classes else target.bounds[1] - target.bounds[0]
    mains, pairs = [], []
    for tree in _trees(told.forest, encoding):
        effect, error = scale * told.values[tree.leaves], BARS * scale * told.errors[tree.leaves]
        labels = tuple(_labels(encoding, *axis) for axis in zip(tree.features, tree.codes, strict=True))
        names = [encoding.columns[feature].name for feature in tree.features]
        if len(names) == 1:
            edges = _edges(encoding, tree.features[0], tree.codes[0])
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


def check_effects(told: Forest, forest: Forest, encoding: Encoding) -> None:
    """Refuse explanations of columns, pairs or groups that no tree has: what steps saw of them is what is explained.

    Values and error bars cannot be computed again: the noisy sums that they follow from are in no file.
    """
    measured = [axes for axes, _ in _axes_of(forest, encoding)]
    said = list(_axes_of(told, encoding))
    whole = np.diff(told.tree_leaves).tolist() == [cells for _, cells in said]
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


def _trees(forest: Forest, encoding: Encoding) -> Iterator[_EffectTree]:
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


def _edges(encoding: Encoding, feature: int, codes: Codes) -> Floats | None:
    """Where the intervals of a numeric column begin, and where the last one ends."""
    column, missing = encoding.schema.features[feature], encoding.columns[feature].missing_code
    if column.kind == "categorical":
        return None
    lower, upper = column.bounds
    inside = codes[1:][codes[1:] != (-1 if missing is None else missing)]
    return np.array([lower, *encoding.threshold(feature, inside).tolist(), upper])


def _labels(encoding: Encoding, feature: int, codes: Codes) -> tuple[str, ...]:
    """Name the groups of a column: categories, or intervals between the thresholds that they begin at."""
    column, missing = encoding.schema.features[feature], encoding.columns[feature].missing_code
    edges = _edges(encoding, feature, codes)
    if edges is None:
        return (*column.values, *(["missing"] if missing is not None else []))
    ends = [*(f"{end:.4g})" for end in edges[1:-1]), f"{edges[-1]:.4g}]"]
    intervals = [f"[{start:.4g}, {end}" for start, end in zip(edges[:-1], ends, strict=True)]
    return (*intervals, *(["missing"] if missing is not None and codes[-1] == missing else []))
