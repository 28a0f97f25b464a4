# SPDX-License-Identifier: Apache-2.0
"""What a PrivateForest learned, for people: main effects and the strongest interactions, with error bars.

Computed from released values only. Plots are in ``plots``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veilwood.data.encoding import Encoding
from veilwood.trees.forest import LEAF, Forest

__all__ = [
    "Effects",
    "Interaction",
    "MainEffect",
    "effects_of",
    "first_codes",
    "group_labels",
    "readable",
    "root_mean_square",
]

MOST_INTERACTIONS: Final = 10

Floats: TypeAlias = NDArray[np.float64]
Groups: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class MainEffect:
    """What one column does by itself.

    Attributes
    ----------
    column : str
        Its name.
    groups : tuple of str
        Its categories, or intervals in its own units; ``"missing"`` where values may be missing.
    effect, error : ndarray, shape (n_groups, n_outputs)
        What each group adds to a prediction, less the mean over groups, and the standard error due to noise.
    """

    column: str
    groups: tuple[str, ...]
    effect: Floats
    error: Floats

    @property
    def strength(self) -> float:
        """The root mean square over groups and outputs."""
        return root_mean_square(self.effect)

    @property
    def noise(self) -> float:
        """The strength that noise alone could show."""
        return root_mean_square(self.error)


@dataclass(frozen=True)
class Interaction:
    """What two columns do together beyond their main effects.

    Attributes
    ----------
    columns : tuple of str
        Their names.
    strength, noise : float
        The root mean square over all pairs of groups, and the one that noise alone could show.
    """

    columns: tuple[str, str]
    strength: float
    noise: float


@dataclass(frozen=True, eq=False)
class Effects:
    """Main effects and the strongest interactions of a fitted PrivateForest. Free: computed from what was released.

    Other columns are spread evenly over their groups. Errors are those of noise and sampling; what shrinkage held back
    comes on top. Where fine cells predict too, effects are those of the additive part.

    Attributes
    ----------
    unit : str
        What effects are measured in.
    outputs : tuple of str
        One for the second of two classes, or for a regression target; otherwise one for each class.
    main : tuple of MainEffect
        Strongest first; columns that were not measured are left out.
    interactions : tuple of Interaction
        Strongest first, ten at most, of columns that met in a table or a tree.

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
                {"columns": list(pair.columns), "strength": pair.strength, "noise": pair.noise}
                for pair in self.interactions
            ],
        }

    def __str__(self) -> str:
        if not self.main:
            return "No column was measured: every row gets the same prediction."
        width = max(len(main.column) for main in self.main)
        lines = [f"Main effects ({self.unit}), strongest first, with the standard error of the noise:"]
        lines += [
            f"  {main.column:<{width}}  {main.strength:6.3g}   least {self._told(main, int(main.effect.argmin()))}, "
            f"most {self._told(main, int(main.effect.argmax()))}"
            for main in self.main
        ]
        if self.interactions:
            lines.append("Interactions, strongest first, and what noise alone could show:")
            lines += [
                f"  {' x '.join(pair.columns)}  {pair.strength:.3g} (noise {pair.noise:.3g})"
                for pair in self.interactions
            ]
        return "\n".join(lines)

    def _told(self, main: MainEffect, place: int) -> str:
        group, output = divmod(place, main.effect.shape[1])
        which = f" for {self.outputs[output]}" if len(self.outputs) > 1 else ""
        return f"{main.groups[group]}{which} {main.effect[group, output]:+.2f} ± {main.error[group, output]:.2f}"


def effects_of(forest: Forest, leaf_values: Floats, leaf_errors: Floats, encoding: Encoding) -> Effects:
    """Read main effects and interactions off a forest whose predictions are sums over trees.

    Trees are independent: their effects add up, and so do the variances of their noise.
    """
    unit, outputs = readable(encoding)
    values, variances = _in_units(leaf_values, leaf_errors**2, encoding)
    codes = [first_codes(forest, encoding, feature) for feature in range(len(encoding.columns))]
    known: dict[tuple[int, ...], list[Floats]] = {}  # effect and variance of a column, or of a pair
    for alike in _by_shape(_tables(forest, codes)):
        leaves = np.stack([tree.leaves for tree in alike])
        axes = range(leaves.ndim - 1)
        weights = [np.stack([np.bincount(tree.groups[i]) / len(tree.groups[i]) for tree in alike]) for i in axes]
        for part in (*combinations(axes, 1), *combinations(axes, 2)):
            effects, noise = _component(values[leaves], variances[leaves], weights, part)
            for tree, effect, variance in zip(alike, effects, noise, strict=True):
                where = np.ix_(*(tree.groups[axis] for axis in part))
                features = tuple(tree.features[axis] for axis in part)
                found = known.setdefault(features, [np.zeros(1), np.zeros(1)])
                found[0], found[1] = found[0] + effect[where], found[1] + variance[where]
    names = [column.name for column in encoding.columns]
    told = [
        MainEffect(names[key[0]], group_labels(encoding, key[0], codes[key[0]]), effect, np.sqrt(variance))
        for key, (effect, variance) in known.items()
        if len(key) == 1
    ]
    met = [
        Interaction((names[key[0]], names[key[1]]), root_mean_square(effect), float(np.sqrt(variance.mean())))
        for key, (effect, variance) in known.items()
        if len(key) == 2
    ]
    strongest = sorted(met, key=lambda pair: -pair.strength)[:MOST_INTERACTIONS]
    return Effects(unit, outputs, tuple(sorted(told, key=lambda one: -one.strength)), tuple(strongest))


def readable(encoding: Encoding) -> tuple[str, tuple[str, ...]]:
    """Return the unit that effects are told in, and their outputs."""
    target, classes = encoding.schema.target, encoding.schema.classes
    if not classes:
        return f"units of {target.name}", (target.name,)
    if len(classes) == 2:
        return f"log-odds of {classes[1]}", (classes[1],)
    return "log-odds of each class, less their mean", classes


def _in_units(values: Floats, variances: Floats, encoding: Encoding) -> tuple[Floats, Floats]:
    """Give values units that tables and rounds share: log-odds, or those of the target."""
    target, classes = encoding.schema.target, encoding.schema.classes
    if not classes:
        range_ = target.bounds[1] - target.bounds[0]
        return values * range_, variances * range_**2
    if len(classes) == 2:
        if values.shape[1] == 2:
            values, variances = values[:, 1:] - values[:, :1], variances.sum(axis=1, keepdims=True)
        return values, variances
    even = np.full((1, len(classes)), 1 / len(classes))
    return _centred(values, variances, 1, even)


def first_codes(forest: Forest, encoding: Encoding, feature: int) -> NDArray[np.int64]:
    """The first code of each group of a column that some tree tells apart: cut points, or all categories."""
    if not encoding.columns[feature].ordered:
        return np.arange(encoding.columns[feature].n_codes)
    return np.unique(np.append(forest.cut[forest.feature == feature], 0)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class _Table:
    """A tree as a table.

    ``groups`` maps, for each of its columns, the groups of the column to those that the tree tells apart; ``leaves``
    holds the leaf of each cell.
    """

    features: list[int]
    groups: list[Groups]
    leaves: NDArray[np.int32]


def _by_shape(tables: Iterator[_Table]) -> Iterable[list[_Table]]:
    """Put tables of one shape together, so that they are worked on at once."""
    alike: dict[tuple[int, ...], list[_Table]] = {}
    for table in tables:
        alike.setdefault(table.leaves.shape, []).append(table)
    return alike.values()


def _tables(forest: Forest, codes: list[NDArray[np.int64]]) -> Iterator[_Table]:
    """Yield each tree as a table."""
    ends = np.append(forest.roots[1:], forest.n_nodes)
    for root, end in zip(forest.roots.tolist(), ends.tolist(), strict=True):
        nodes = np.arange(root, end)[forest.feature[root:end] != LEAF]
        features = np.unique(forest.feature[nodes]).tolist()
        groups = [_groups(forest, nodes[forest.feature[nodes] == feature], codes[feature]) for feature in features]
        first = [np.unique(group, return_index=True)[1] for group in groups]
        grid = np.ix_(*(codes[feature][at] for feature, at in zip(features, first, strict=True)))
        shape = tuple(len(at) for at in first)
        column = np.zeros(len(codes), np.intp)
        column[features] = np.arange(len(features))
        shown = np.stack([np.broadcast_to(code, shape).ravel() for code in (*grid, np.zeros((1,) * len(grid), int))])
        node = np.full(shown.shape[1], root)
        cells = np.arange(shown.shape[1])
        while (inner := forest.feature[node] != LEAF).any():
            code = shown[np.where(inner, column[forest.feature[node]], -1), cells]
            cut = forest.cut[node]
            branch = np.where(cut < 0, forest.lookup[np.where(cut < 0, -1 - cut + code, 0)], code >= cut)
            node = np.where(inner, forest.child[node] + branch, node)
        yield _Table(features, groups, forest.child[node].reshape(shape))


def _groups(forest: Forest, nodes: NDArray[np.intp], codes: NDArray[np.int64]) -> Groups:
    """Number the groups of codes that these nodes, all of one column, tell apart."""
    cuts = np.unique(forest.cut[nodes]).astype(np.int64)
    if cuts[0] >= 0:
        return np.searchsorted(cuts, codes, side="right")
    return np.unique(forest.lookup[-1 - cuts[:, None] + codes], axis=1, return_inverse=True)[1].ravel()


def _component(
    values: Floats, variances: Floats, weights: list[Floats], part: tuple[int, ...]
) -> tuple[Floats, Floats]:
    """What the columns in ``part`` of tables do beyond fewer of them, the others averaged.

    Tables come first, then their columns, then outputs.
    """
    for axis, weight in enumerate(weights, start=1):
        if axis - 1 in part:
            values, variances = _centred(values, variances, axis, weight)
        else:
            values, variances = _averaged(values, variances, axis, weight)
    others = tuple(axis + 1 for axis in range(len(weights)) if axis not in part)
    return values.squeeze(others), variances.squeeze(others)


def _averaged(values: Floats, variances: Floats, axis: int, weights: Floats) -> tuple[Floats, Floats]:
    """Return the mean along an axis, for each table by its own weights, and its variance; entries are independent."""
    weight = weights.reshape(len(weights), *(-1 if i == axis else 1 for i in range(1, values.ndim)))
    return (values * weight).sum(axis=axis, keepdims=True), (variances * weight**2).sum(axis=axis, keepdims=True)


def _centred(values: Floats, variances: Floats, axis: int, weights: Floats) -> tuple[Floats, Floats]:
    """Subtract that mean."""
    mean, variance = _averaged(values, variances, axis, weights)
    weight = weights.reshape(len(weights), *(-1 if i == axis else 1 for i in range(1, values.ndim)))
    return values - mean, np.maximum(variances * (1 - 2 * weight) + variance, 0.0)


def root_mean_square(values: Floats) -> float:
    """The root of the mean of squares."""
    return float(np.sqrt((values**2).mean()))


def group_labels(encoding: Encoding, feature: int, codes: NDArray[np.int64]) -> tuple[str, ...]:
    """Name the groups of a column: categories, or intervals between the thresholds that they begin at."""
    column, missing = encoding.schema.features[feature], encoding.columns[feature].missing_code
    if column.kind == "categorical":
        return (*column.values, *(["missing"] if missing is not None else []))
    lower, upper = column.bounds
    inside = codes[1:][codes[1:] != (-1 if missing is None else missing)]
    starts = [lower, *encoding.threshold(feature, inside).tolist()]
    ends = [*(f"{start:.4g})" for start in starts[1:]), f"{upper:.4g}]"]
    intervals = [f"[{start:.4g}, {end}" for start, end in zip(starts, ends, strict=True)]
    return (*intervals, *(["missing"] if missing is not None and codes[-1] == missing else []))
