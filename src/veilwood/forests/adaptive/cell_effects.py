# SPDX-License-Identifier: Apache-2.0
"""Main effects and interactions of what was learned from fine cells: partial dependence over cells that came out.

Trees of a forest are too deep to be read as tables, as ``effects`` does. Errors are those of the noise, as there: what
it does to the counts of a column's groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from veilwood.data.encoding import Encoding
from veilwood.errors import ModelFileError
from veilwood.forests.adaptive.cell_forests import Grown
from veilwood.forests.adaptive.effects import (
    Effects,
    Interaction,
    MainEffect,
    first_codes,
    group_labels,
    readable,
    root_mean_square,
)
from veilwood.forests.adaptive.fine_cells import FineCells
from veilwood.forests.adaptive.table_trees import Axis
from veilwood.trees.counting import sum_over_trees
from veilwood.trees.forest import Forest

BACKGROUND: Final = 64  # cells, drawn by weight, over which a dependence is averaged
PAIRED: Final = 5  # columns that move predictions most, whose pairs are looked at,
PAIR_GROUPS: Final = 8  # in so many of their groups at most

Floats = NDArray[np.float64]
Codes = NDArray[np.uint16]

_DAMAGED: Final = "the effects are missing, or do not belong to the trees."


def effects_of_cells(grown: Grown, cells: FineCells, encoding: Encoding, rng: np.random.Generator) -> Effects:
    """Average predictions over some cells, with one or two columns set to each of their groups."""
    unit, outputs = readable(encoding)
    names, n_classes, forest = [column.name for column in encoding.columns], len(grown.start), grown.forest
    place = {axis.feature: number for number, axis in enumerate(cells.axes)}
    columns = sorted(set(place) & set(forest.feature.tolist()))
    if not columns:
        return Effects(unit, outputs, (), ())
    background = _background(cells, len(encoding.columns), rng)
    codes = {feature: first_codes(forest, encoding, feature) for feature in columns}
    main, reach = [], {}
    for feature in columns:
        curves = _curves(grown, background, {feature: codes[feature]})
        effect = _centred(curves.mean(axis=-2), 1)
        errors, _ = _noise(cells, (place[feature],), n_classes)
        error = np.asarray(errors[_groups_of(cells.axes[place[feature]], codes[feature])])
        main.append(MainEffect(names[feature], group_labels(encoding, feature, codes[feature]), effect, error))
        reach[feature] = root_mean_square(_centred(curves, 1))  # alone or with others
    pairs = []
    paired = [] if grown.additive else sorted(columns, key=lambda feature: -reach[feature])[:PAIRED]
    for first, second in combinations(paired, 2):
        few = {feature: _few(codes[feature]) for feature in (first, second)}
        effect = _centred(_curves(grown, background, few).mean(axis=-2), 2)
        errors, rows = _noise(cells, (place[first], place[second]), n_classes)
        here = np.ix_(*(_groups_of(cells.axes[place[feature]], few[feature]) for feature in few))
        weights = (rows[here] + 1e-9) / (rows[here] + 1e-9).mean()  # corners without rows tell nothing
        strength, noise = (root_mean_square(np.sqrt(weights) * part) for part in (effect, errors[here]))
        pairs.append(Interaction((names[first], names[second]), strength, noise))
    return Effects(
        unit,
        outputs,
        tuple(sorted(main, key=lambda one: -one.strength)),
        tuple(sorted(pairs, key=lambda pair: -pair.strength)),
    )


def _background(cells: FineCells, n_columns: int, rng: np.random.Generator) -> Codes:
    """Codes of some cells that came out; columns that were not measured are 0."""
    drawn = rng.choice(len(cells.weight), BACKGROUND, p=cells.weight / cells.weight.sum())
    codes = np.zeros((BACKGROUND, n_columns), np.uint16)
    for number, axis in enumerate(cells.axes):
        codes[:, axis.feature] = axis.first_codes[cells.groups[drawn, number]]
    return codes


def _few(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    places = np.linspace(0, len(codes) - 1, min(PAIR_GROUPS, len(codes)))
    return np.asarray(codes[places.round().astype(int)])


def _curves(grown: Grown, background: Codes, settings: Mapping[int, NDArray[np.int64]]) -> Floats:
    """Readable predictions by groups of the columns that are set, cell of the background, and output."""
    shape = tuple(len(codes) for codes in settings.values())
    grid = np.meshgrid(*settings.values(), indexing="ij")
    rows = np.tile(background, (int(np.prod(shape)), 1))
    for feature, code in zip(settings, grid, strict=True):
        rows[:, feature] = np.repeat(code.ravel(), len(background))
    # A few thousand rows: loading numba would take 100 MB, and nearly as long as numpy needs for them.
    scores = grown.start + sum_over_trees(grown.forest, rows, grown.values, fast=False)
    logs = scores if grown.additive else _logs_of_shares(scores, grown.forest.n_trees)
    odds = logs[:, 1:] - logs[:, :1] if logs.shape[1] == 2 else logs - logs.mean(axis=1, keepdims=True)
    return odds.reshape(*shape, len(background), -1)


def _logs_of_shares(shares: Floats, n_trees: int) -> Floats:
    """Logarithms of class shares, which a forest knows no better than to one in its trees."""
    return np.asarray(np.log((shares * n_trees + 1 / shares.shape[1]) / (n_trees + 1)))


def _centred(curves: Floats, n_columns: int) -> Floats:
    """Subtract means over the groups of each of the columns, which come first."""
    for axis in range(n_columns):
        curves = curves - curves.mean(axis=axis, keepdims=True)
    return curves


def _noise(cells: FineCells, which: tuple[int, ...], n_classes: int) -> tuple[Floats, Floats]:
    """The standard error that noise gives log-odds in groups of one axis or two; and their rows.

    Noise comes from empty cells that turned up, which lie evenly everywhere, and from the counts of the others. Where
    hardly any but empty ones turned up, the error is that of a group of which nothing is known: 1.
    """
    shape = (*(cells.axes[number].size for number in which), n_classes)
    at = np.ravel_multi_index((*(cells.groups[:, number] for number in which), cells.label), shape)
    n_cells = int(np.prod(shape))
    rows = np.bincount(at, cells.weight, n_cells).reshape(shape)
    occupied = np.bincount(at, minlength=n_cells).reshape(shape)
    finds = cells.finds / n_cells
    variance = finds * (1 + cells.variance) + occupied * cells.variance
    rows = np.maximum(rows - finds, 0.0)
    in_groups = rows.sum(axis=-1, keepdims=True)
    errors = variance / np.maximum(rows + 1, np.sqrt(variance)) ** 2
    if n_classes == 2:
        return np.sqrt(errors.sum(axis=-1, keepdims=True)), in_groups
    return np.sqrt(errors * (1 - 2 / n_classes) + errors.mean(axis=-1, keepdims=True) / n_classes), in_groups


def _groups_of(axis: Axis, codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The groups on an axis that codes lie in."""
    if not axis.ordered:
        return axis.groups[codes].astype(np.int64)
    return np.searchsorted(axis.first_codes, codes, side="right") - 1


# -- in a model file -------------------------------------------------------------------------------------------


def to_arrays(effects: Effects, encoding: Encoding) -> dict[str, NDArray[Any]]:
    """Write effects as arrays; the names of groups follow from the forest."""
    place = {column.name: number for number, column in enumerate(encoding.columns)}
    width = len(effects.outputs)
    return {
        "effect_columns": np.array([place[main.column] for main in effects.main], np.int32),
        "effects": np.concatenate([main.effect for main in effects.main] or [np.empty((0, width))]),
        "effect_errors": np.concatenate([main.error for main in effects.main] or [np.empty((0, width))]),
        "pair_columns": np.array([[place[name] for name in pair.columns] for pair in effects.interactions], np.int32)
        .reshape(-1, 2),
        "pair_strengths": np.array([[pair.strength, pair.noise] for pair in effects.interactions]).reshape(-1, 2),
    }  # fmt: skip


def from_arrays(arrays: Mapping[str, NDArray[Any]], forest: Forest, encoding: Encoding) -> Effects:
    """Read what ``to_arrays`` wrote, refusing what does not belong to this forest."""
    unit, outputs = readable(encoding)
    names = [column.name for column in encoding.columns]
    columns, pairs = (_whole(arrays, name, len(names)) for name in ("effect_columns", "pair_columns"))
    if columns.ndim != 1 or pairs.shape != (len(pairs), 2):
        raise ModelFileError(_DAMAGED)
    codes = [first_codes(forest, encoding, feature) for feature in columns.tolist()]
    ends = np.cumsum([0, *map(len, codes)])
    effects, errors = (_numbers(arrays, name, (ends[-1], len(outputs))) for name in ("effects", "effect_errors"))
    strengths = _numbers(arrays, "pair_strengths", (len(pairs), 2))
    main = [
        MainEffect(names[feature], group_labels(encoding, feature, code), effects[start:end], errors[start:end])
        for feature, code, start, end in zip(columns.tolist(), codes, ends[:-1], ends[1:], strict=True)
    ]
    told = [Interaction((names[a], names[b]), float(strength), float(noise))
            for (a, b), (strength, noise) in zip(pairs.tolist(), strengths, strict=True)]  # fmt: skip
    return Effects(unit, outputs, tuple(main), tuple(told))


def _whole(arrays: Mapping[str, NDArray[Any]], name: str, below: int) -> NDArray[np.int32]:
    found = arrays.get(name)
    if found is None or found.dtype != np.int32 or ((found < 0) | (found >= below)).any():
        raise ModelFileError(_DAMAGED)
    return found


def _numbers(arrays: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, ...]) -> Floats:
    found = arrays.get(name)
    if found is None or found.dtype != np.float64 or found.shape != shape or not np.isfinite(found).all():
        raise ModelFileError(_DAMAGED)
    return found
