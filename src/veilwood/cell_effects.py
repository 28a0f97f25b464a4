# SPDX-License-Identifier: Apache-2.0
"""Main effects and interactions of a forest grown from fine cells: partial dependence over cells that came out.

Its trees are too deep to be read as tables, as ``effects`` does. Parts of the forest stand in for error bars: they
differ by what each tree drew, so the errors hold sampling as well as noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from veilwood.counting import route
from veilwood.effects import MOST_INTERACTIONS, Effects, Interaction, MainEffect, first_codes, group_labels, readable
from veilwood.encoding import Encoding
from veilwood.errors import ModelFileError
from veilwood.fine_cells import FineCells
from veilwood.structure import Forest

ERRORS: Final = "differences between its parts"
BACKGROUND: Final = 64  # cells, drawn by weight, over which a dependence is averaged
PARTS: Final = 6  # of the forest
PAIRED: Final = 5  # columns that move predictions most, whose pairs are looked at,
PAIR_GROUPS: Final = 8  # in so many of their groups at most

Floats = NDArray[np.float64]
Codes = NDArray[np.uint16]


def effects_of_cells(
    forest: Forest, values: Floats, cells: FineCells, encoding: Encoding, rng: np.random.Generator
) -> Effects:
    """Average predictions over some cells, with one or two columns set to each of their groups."""
    unit, outputs = readable(encoding)
    columns = sorted({axis.feature for axis in cells.axes} & set(forest.feature.tolist()))
    if not columns:
        return Effects(unit, outputs, (), (), ERRORS)
    background = _background(cells, len(encoding.columns), rng)
    codes = {feature: first_codes(forest, encoding, feature) for feature in columns}
    main, reach = [], {}
    for feature in columns:
        curves = _curves(forest, values, background, encoding, {feature: codes[feature]})
        main.append((feature, *_mean_and_error(_centred(curves.mean(axis=-2), (1,)))))
        reach[feature] = float((_centred(curves.mean(axis=0), (0,)) ** 2).mean())  # alone or with others
    main.sort(key=lambda one: -float((one[1] ** 2).mean()))
    pairs = []
    for pair in combinations(sorted(sorted(columns, key=lambda feature: -reach[feature])[:PAIRED]), 2):
        few = {feature: _few(codes[feature]) for feature in pair}
        curves = _curves(forest, values, background, encoding, few)
        effect, error = _mean_and_error(_centred(curves.mean(axis=-2), (1, 2)))
        pairs.append((pair, float(np.sqrt((effect**2).mean())), float(np.sqrt((error**2).mean()))))
    pairs.sort(key=lambda one: -one[1])
    names = [column.name for column in encoding.columns]
    return Effects(
        unit,
        outputs,
        tuple(MainEffect(names[j], group_labels(encoding, j, codes[j]), effect, error) for j, effect, error in main),
        tuple(Interaction((names[a], names[b]), strength, noise)
              for (a, b), strength, noise in pairs[:MOST_INTERACTIONS]),
        ERRORS,
    )  # fmt: skip


def _background(cells: FineCells, n_columns: int, rng: np.random.Generator) -> Codes:
    """Codes of some cells that came out; columns that were not measured are 0."""
    drawn = rng.choice(len(cells.weight), BACKGROUND, p=cells.weight / cells.weight.sum())
    codes = np.zeros((BACKGROUND, n_columns), np.uint16)
    for number, axis in enumerate(cells.axes):
        first = np.array([0, *axis.thresholds]) if axis.ordered else np.unique(axis.groups, return_index=True)[1]
        codes[:, axis.feature] = first[cells.groups[drawn, number]]
    return codes


def _few(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    places = np.linspace(0, len(codes) - 1, min(PAIR_GROUPS, len(codes)))
    return np.asarray(codes[places.round().astype(int)])


def _curves(
    forest: Forest, values: Floats, background: Codes, encoding: Encoding, settings: Mapping[int, NDArray[np.int64]]
) -> Floats:
    """Readable predictions by part of the forest, groups of columns, cell of the background, and output."""
    shape = tuple(len(codes) for codes in settings.values())
    grid = np.meshgrid(*settings.values(), indexing="ij")
    rows = np.tile(background, (int(np.prod(shape)), 1))
    for feature, code in zip(settings, grid, strict=True):
        rows[:, feature] = np.repeat(code.ravel(), len(background))
    by_tree = values[route(forest, rows)] * forest.n_trees
    n_parts = min(PARTS, forest.n_trees)
    parts = np.stack([part.mean(axis=1) for part in np.array_split(by_tree, n_parts, axis=1)])
    told = _readable_scores(parts, encoding, forest.n_trees / n_parts)
    return told.reshape(n_parts, *shape, len(background), -1)


def _readable_scores(scores: Floats, encoding: Encoding, trees: float) -> Floats:
    """Log-odds of class shares, which a part of few trees knows no better than to one in its trees; or the target."""
    target, classes = encoding.schema.target, encoding.schema.classes
    if not classes:
        return scores * (target.bounds[1] - target.bounds[0])
    logs = np.log((scores * trees + 1 / len(classes)) / (trees + 1))
    return logs[..., 1:] - logs[..., :1] if len(classes) == 2 else logs - logs.mean(axis=-1, keepdims=True)


def _centred(parts: Floats, axes: tuple[int, ...]) -> Floats:
    for axis in axes:
        parts = parts - parts.mean(axis=axis, keepdims=True)
    return parts


def _mean_and_error(parts: Floats) -> tuple[Floats, Floats]:
    n = len(parts)
    return parts.mean(axis=0), parts.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.zeros(parts.shape[1:])


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
    try:
        columns, pairs = arrays["effect_columns"], arrays["pair_columns"]
        effects, errors, strengths = arrays["effects"], arrays["effect_errors"], arrays["pair_strengths"]
        codes = [first_codes(forest, encoding, int(feature)) for feature in columns]
        ends = np.cumsum([len(one) for one in codes], dtype=int)
        if effects.shape != (ends[-1] if len(ends) else 0, len(outputs)) or errors.shape != effects.shape:
            raise ValueError
        if strengths.shape != (len(pairs), 2) or pairs.shape != (len(pairs), 2):
            raise ValueError
        main = [
            MainEffect(names[feature], group_labels(encoding, int(feature), code), effect, error)
            for feature, code, effect, error in zip(
                columns, codes, np.split(effects, ends[:-1]), np.split(errors, ends[:-1]), strict=True
            )
        ] if len(columns) else []  # fmt: skip
        told = [Interaction((names[a], names[b]), float(strength), float(noise))
                for (a, b), (strength, noise) in zip(pairs, strengths, strict=True)]  # fmt: skip
    except (KeyError, IndexError, ValueError, TypeError):
        raise ModelFileError("the effects are missing, or do not belong to the trees.") from None
    return Effects(unit, outputs, tuple(main), tuple(told), ERRORS)
