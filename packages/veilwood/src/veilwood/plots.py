# SPDX-License-Identifier: Apache-2.0
"""Figures of results with matplotlib. Opens no windows.

Functions named ``plot_...`` draw on one matplotlib ``Axes`` and set a caption; the others return a figure.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from veilwood.arrays import AnyArray, ArrayLike, Floats
from veilwood.charts import number_axis, posterior_range, unbroken_runs
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.errors import SetupError, UseError, short_repr
from veilwood.estimators.method import ForestModel
from veilwood.trees.forest import LEAF

if TYPE_CHECKING:
    from veilwood.forests.adaptive.effects import Effects, Interaction, MainEffect
    from veilwood.privacy.ledger import Ledger

__all__ = [
    "COLOURS",
    "GREY",
    "MARKERS",
    "Comparison",
    "accuracy_vs_epsilon",
    "all_effects",
    "caption",
    "claimed_and_attacked",
    "draw_effect",
    "error_vs_bound",
    "plot_accuracy_by_epsilon",
    "plot_budget",
    "plot_calibration",
    "plot_effects",
    "plot_odds",
    "plot_pair",
    "plot_tree",
    "roc_vs_bound",
    "save",
    "skill_vs_noise",
]


try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Figure
except ImportError as missing:
    raise SetupError("figures need matplotlib. Hint: run pip install 'veilwood[plots]'.") from missing


# After Okabe and Ito (2008), darkened where needed for a contrast with white of at least 3 to 1.
COLOURS = ("#0072b2", "#c04f00", "#00805c", "#a8568a", "#7a6a00", "#000000")
# Lines differ in colour and marker, so that they are distinct in grey too.
MARKERS = ("o", "s", "^", "D", "v", "P")
GREY = "#6f6f6f"
# Limits of legibility: labels per axis, cells with numbers, leaves per tree, and characters per label.
_MAX_LABELS, _MAX_WRITTEN_CELLS, _MAX_LEAVES, _MAX_LABEL_LENGTH = 12, 48, 32, 24
_captions: WeakKeyDictionary[Axes, str] = WeakKeyDictionary()


def caption(ax: Axes) -> str:
    """Return a text description of a figure, for screen readers and for the text next to it.

    Examples
    --------
    >>> print(caption(plot_odds(1.0, [0.5])))
    How far the model can move a belief about one person at epsilon 1: from 50% to at most 73.1%.
    """
    if ax not in _captions:
        raise UseError("these axes have no caption. Hint: pass the axes that a plot_* function returned.")
    return _captions[ax]


def save(ax: Axes, path: str | PathLike[str], **options: Any) -> None:
    """Write the figure that contains the axes to a PNG, SVG or PDF file with the caption embedded.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "odds.svg")
    >>> save(plot_odds(1.0), path)
    >>> "How far the model can move" in path.read_text()
    True
    """
    key = {".pdf": "Subject"}.get(Path(path).suffix, "Description")
    figure: Any = ax.figure
    while not isinstance(figure, Figure):  # the axes of a subfigure: only the whole figure can be saved
        figure = figure.figure
    figure.savefig(path, metadata={key: caption(ax).replace("\n", " ")}, **options)


def plot_odds(epsilon: float, beliefs: Sequence[float] = (0.01, 0.1, 0.5), *, ax: Axes | None = None) -> Axes:
    """Draw how far a belief about one person can move, for any background knowledge and any attack.

    Parameters
    ----------
    epsilon : float
        Privacy loss. Delta is not drawn: with a probability of about delta the bound may fail.
    beliefs : sequence of float
        Probabilities that an observer assigns before seeing the model.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on. Default: the axes of a new figure.

    Examples
    --------
    >>> plot_odds(0.5).get_xlabel()
    'probability that it is true of this person'
    """
    if not (np.isfinite(epsilon) and epsilon >= 0):
        raise UseError(f"epsilon={short_repr(epsilon)} must be finite and at least 0. Hint: pass a number such as 1.0.")
    ax = _get_axes(ax, 6.4, 1.4 + 0.5 * len(beliefs))
    ranges = []
    for place, before in enumerate(beliefs):
        low, high = posterior_range(before, epsilon)
        ax.barh(place, high - low, left=low, height=0.5, color=COLOURS[0], alpha=0.35)
        ax.plot([before, before], [place - 0.36, place + 0.36], color="black", linewidth=2)
        ax.annotate(f"at most {high:.1%}", (high, place), xytext=(5, 0), textcoords="offset points", va="center",
                    fontsize="small")  # fmt: skip
        ranges.append(f"from {before:.0%} to at most {high:.1%}")
    ax.set_yticks(range(len(beliefs)), [f"before: {before:.0%}" for before in beliefs])
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.28), xlabel="probability that it is true of this person", title=f"epsilon {epsilon:g}")
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    return _set_caption(
        ax, f"How far the model can move a belief about one person at epsilon {epsilon:g}: {', '.join(ranges)}."
    )


def plot_budget(ledger: Ledger, *, ax: Axes | None = None) -> Axes:
    """Draw the charges of a ledger, release by release, and its budget.

    The bars add up the epsilons. A ledger with a delta may compose Gaussian steps to a smaller total.

    Examples
    --------
    >>> import veilwood as vw
    >>> ledger = vw.MemoryLedger(epsilon=3)
    >>> iris = vw.datasets.iris()
    >>> forest = vw.RandomTreesClassifier(iris.schema, epsilon=1.0, ledger=ledger).fit(iris.X, iris.y)
    >>> plot_budget(ledger).get_xlabel()
    'epsilon'
    """
    counted = [entry for entry in ledger.entries() if entry.state != "cancelled"]
    entries = [(entry, float(entry.loss.epsilon)) for entry in counted if entry.loss.epsilon is not None]
    ax = _get_axes(ax, 7.2, 1.6 + 0.36 * max(len(entries), 1))
    start = 0.0
    for place, (entry, size) in enumerate(entries):
        is_reserved = entry.state == "reserved"
        ax.barh(place, size, left=start, height=0.6, color=COLOURS[0], hatch="//" if is_reserved else "",
                fill=not is_reserved, edgecolor=COLOURS[0])  # fmt: skip
        start += size
    ax.set_yticks(range(len(entries)), [f"{entry.id}: {entry.what.partition(':')[0]}" for entry, _ in entries])
    ax.invert_yaxis()
    limit = "no budget"
    if ledger.budget is not None and ledger.budget.epsilon is not None:
        budget = float(ledger.budget.epsilon)
        ax.axvline(budget, color=COLOURS[1], linewidth=2, linestyle="--")
        ax.annotate("budget", (budget, 0), xycoords=("data", "axes fraction"), xytext=(-4, 6),
                    textcoords="offset points", ha="right", color=COLOURS[1], fontsize="small")  # fmt: skip
        limit = f"a budget of epsilon {budget:g}"
    ax.set(xlabel="epsilon", xlim=(0, None), title=ledger.population or ledger.name)
    ax.margins(x=0.05)
    n_unbounded = len(counted) - len(entries)
    more = f" Not drawn: {n_unbounded} NOT PRIVATE, with an unbounded privacy loss." if n_unbounded else ""
    return _set_caption(ax, f"{len(entries)} releases spent epsilon {start:g} in total, of {limit}.{more}")


def plot_accuracy_by_epsilon(
    curves: Mapping[str, Mapping[float, float | tuple[float, float]]],
    *,
    levels: Mapping[str, float] | None = None,
    ylabel: str = "accuracy",
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw accuracy against epsilon, one line per method.

    Parameters
    ----------
    curves : mapping of name to mapping of epsilon to accuracy or (accuracy, error)
        Measured accuracies, with standard errors if given. Use public rows, or values that ``vw.evaluate`` released.
    levels : mapping of name to accuracy, optional
        Baselines that do not depend on epsilon, such as the most frequent class, drawn as dotted lines.
    ylabel, title : str
        Label of the vertical axis (name of the measure), and title of the figure.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on. Default: the axes of a new figure.

    Examples
    --------
    >>> ax = plot_accuracy_by_epsilon({"ours": {0.5: (0.8, 0.01), 2.0: 0.9}}, levels={"majority": 0.6})
    >>> print(caption(ax))
    accuracy by epsilon. ours: 0.800 at 0.5, 0.900 at 2. majority: 0.600 at every epsilon.
    """
    ax = _get_axes(ax, 6.4, 4.2)
    sentences = [f"{title + ': ' if title else ''}{ylabel} by epsilon."]
    all_epsilons = sorted({epsilon for points in curves.values() for epsilon in points})
    for i, (name, points) in enumerate(curves.items()):
        epsilons = sorted(points)
        pairs = [value if isinstance(value, tuple) else (value, 0.0) for value in map(points.__getitem__, epsilons)]
        values, errors = (np.array(column, float) for column in zip(*pairs, strict=True))
        ax.errorbar(epsilons, values, yerr=errors if errors.any() else None, color=COLOURS[i % len(COLOURS)],
                    marker=MARKERS[i % len(MARKERS)], capsize=3, label=name)  # fmt: skip
        texts = (f"{value:.3f} at {epsilon:g}" for epsilon, value in zip(epsilons, values, strict=True))
        sentences.append(f"{name}: {', '.join(texts)}.")
    for i, (name, level) in enumerate((levels or {}).items()):
        ax.axhline(level, color=GREY, linestyle=(":", "--", "-.")[i % 3], label=name)
        sentences.append(f"{name}: {level:.3f} at every epsilon.")
    ax.set_xscale("log")
    ax.set_xticks(all_epsilons, [f"{epsilon:g}" for epsilon in all_epsilons])
    ax.set_xticks([], minor=True)
    ax.set(xlabel="epsilon (smaller is more private)", ylabel=ylabel, title=title)
    ax.legend(fontsize="small")
    return _set_caption(ax, " ".join(sentences))


def plot_effects(effects: Effects, column: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw the effect of one column of a PrivateForest: bars for categories, steps with an error band for numbers.

    Error bars and bands come from ``explain()``: about 1 in 20 misses the true value. ``plots.all_effects`` draws
    every column.

    Parameters
    ----------
    effects : Effects
        Result of ``explain()``.
    column : str, optional
        Name of the column. Default: the column with the strongest effect.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on. Default: the axes of a new figure.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.PrivateForestClassifier(car.schema, epsilon=20.0, n_rows=1728, random_state=0).fit(car.X, car.y)
    >>> plot_effects(forest.explain(), "safety").get_title()
    'safety'
    """
    if not effects.main:
        raise UseError("the model has no effects to draw: no column was measured. Hint: increase epsilon or n_rows.")
    by_column = {main.column: main for main in effects.main}
    if column is not None and column not in by_column:
        raise UseError(
            f"column {short_repr(column)} has no measured effect. Hint: choose one of {', '.join(by_column)}."
        )
    main = effects.main[0] if column is None else by_column[column]
    ax = _get_axes(ax, 5.2, 3.6)
    draw_effect(ax, main, effects.outputs)
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.set(title=main.column, ylabel=effects.unit)
    if len(effects.outputs) > 1:
        ax.legend(fontsize="x-small")
    texts = [
        f"{group}: {', '.join(f'{output} {value:+.2f}' for output, value in zip(effects.outputs, row, strict=True))}"
        for group, row in list(zip(main.groups, main.effect, strict=True))[:_MAX_LABELS]
    ]
    return _set_caption(ax, f"Effect of {main.column} ({effects.unit}). {'; '.join(texts)}.")


def draw_effect(ax: Any, main: MainEffect, outputs: Sequence[str]) -> None:
    """Draw the effect of one column on each output: bars for categories, steps over ``number_axis`` for numbers."""
    inside = len(main.groups) if main.edges is None else len(main.edges) - 1
    rows = None if main.rows is None else main.rows.tolist()
    axis = None if main.edges is None else number_axis(main.edges.tolist(), rows)
    for output, name in enumerate(outputs):
        colour = COLOURS[output % len(COLOURS)]
        effect, error = main.effect[:, output], main.error[:, output]
        if axis is None:
            width = 0.8 / len(outputs)
            place = np.arange(inside) - 0.4 + width * (output + 0.5)
            ax.bar(place, effect, width, yerr=error, color=colour, alpha=0.8, label=name,
                   error_kw={"linewidth": 0.8, "capsize": 2})  # fmt: skip
            continue
        for number, run in enumerate(unbroken_runs(axis.spans)):
            edges = [axis.spans[run[0]][0], *(axis.spans[i][1] for i in run)]
            ax.stairs(effect[run], edges, color=colour, baseline=None, label=name if number == 0 else None)
            ax.stairs((effect + error)[run], edges, baseline=(effect - error)[run], fill=True, color=colour, alpha=0.2)
        if inside < len(effect):  # missing values, to the right of all numbers
            ax.errorbar([1.1], effect[-1:], yerr=error[-1:], color=colour, marker="o", markersize=3, capsize=2)
    if axis is None:
        ticks = np.arange(inside)[:: -(-inside // _MAX_LABELS)]
        ax.set_xticks(ticks, [main.groups[tick] for tick in ticks], rotation=45, ha="right", fontsize="x-small")
        return
    has_missing = inside < len(main.groups)
    places = [*axis.ticks, (1.1, "missing")] if has_missing else [*axis.ticks]
    ax.set_xticks([place for place, _ in places], [label for _, label in places], fontsize="x-small")
    if rows is not None and max(rows) > 0:  # draw the released histogram below the effect
        low, high = ax.get_ylim()
        floor = low - 0.22 * (high - low)
        tall = 0.16 * (high - low) * np.maximum(rows, 0) / max(rows)
        spans = [*axis.spans, (1.08, 1.12)] if has_missing else [*axis.spans]
        ax.bar([start for start, _ in spans], tall, [end - start for start, end in spans], bottom=floor, align="edge",
               color=GREY, alpha=0.4)  # fmt: skip
        ax.set_ylim(floor, high)


def plot_pair(
    pair: Interaction, *, output: int = 0, unit: str = "effect beyond both columns", ax: Axes | None = None
) -> Axes:
    """Draw the interaction of two columns beyond their own effects, as a heatmap; cells within the error are faint.

    Parameters
    ----------
    pair : Interaction
        An element of ``explain().interactions``.
    output : int
        Index of the output, if there are several.
    unit : str
        Label of the colour scale: ``explain().unit``.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on. Default: the axes of a new figure.

    Examples
    --------
    >>> import numpy as np, veilwood as vw
    >>> X = np.random.default_rng(0).random((20_000, 3))
    >>> schema = vw.Schema.numeric((0, 1), classes=[0, 1], n_features=3)
    >>> forest = vw.PrivateForestClassifier(schema, epsilon=20.0, random_state=0)
    >>> effects = forest.fit(X, ((X[:, 0] > 0.5) ^ (X[:, 2] > 0.5)).astype(int)).explain()
    >>> plot_pair(effects.interactions[0], unit=effects.unit).get_title()
    'x0 and x2'
    """
    effect, error = pair.effect[:, :, output], pair.error[:, :, output]
    most = max(float(np.abs(effect).max()), 1e-12)
    rows, columns = effect.shape
    ax = _get_axes(ax, min(2.6 + 0.5 * columns, 10), min(1.8 + 0.4 * rows, 8))
    picture = ax.imshow(
        effect, cmap="PuOr_r", vmin=-most, vmax=most, aspect="auto", origin="lower",
        alpha=np.clip(np.abs(effect) / np.maximum(error, 1e-12), 0.25, 1.0),
    )  # fmt: skip
    if rows * columns <= _MAX_WRITTEN_CELLS:
        for (i, j), value in np.ndenumerate(effect):
            ink = "white" if abs(value) > 0.6 * most and abs(value) > error[i, j] else "black"
            text = f"{value:+.2f}\n±{error[i, j]:.2f}"
            ax.text(j, i, text, ha="center", va="center", fontsize="xx-small", color=ink)
    for labels, size, put in ((pair.groups[0], rows, ax.set_yticks), (pair.groups[1], columns, ax.set_xticks)):
        ticks = np.arange(size)[:: -(-size // _MAX_LABELS)]
        put(ticks, [labels[tick] for tick in ticks], fontsize="x-small")
    ax.tick_params(axis="x", rotation=45)
    ax.set(xlabel=pair.columns[1], ylabel=pair.columns[0], title=" and ".join(pair.columns))
    ax.figure.colorbar(picture, ax=ax, label=unit)
    i, j = np.unravel_index(np.abs(effect).argmax(), effect.shape)
    return _set_caption(
        ax,
        f"Interaction of {pair.columns[0]} and {pair.columns[1]} ({unit}), {rows} by {columns} groups. Largest effect: "
        f"{effect[i, j]:+.2f} ± {error[i, j]:.2f} at {pair.groups[0][i]} and {pair.groups[1][j]}.",
    )


def plot_calibration(happened: ArrayLike, probabilities: ArrayLike, *, bins: int = 10, ax: Axes | None = None) -> Axes:
    """Draw observed frequencies against predicted probabilities, in groups of equal size.

    Parameters
    ----------
    happened : array-like of bool
        Whether the predicted event occurred in each row: ``y == label``. Use public rows only: the figure is exact.
    probabilities : array-like of float
        Predicted probability of each row.
    bins : int
        Number of groups.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on. Default: the axes of a new figure.

    Examples
    --------
    >>> plot_calibration([0, 1, 1, 0], [0.2, 0.8, 0.7, 0.3], bins=2).get_ylabel()
    'observed frequency'
    """
    order = np.argsort(np.asarray(probabilities, float), kind="stable")
    predicted, outcomes = np.asarray(probabilities, float)[order], np.asarray(happened, float)[order]
    groups = [part for part in np.array_split(np.arange(len(predicted)), bins) if len(part)]
    mean, frequency = (np.array([values[part].mean() for part in groups]) for values in (predicted, outcomes))
    error = np.sqrt(np.maximum(frequency * (1 - frequency), 1e-12) / [len(part) for part in groups])
    ax = _get_axes(ax, 4.6, 4.4)
    ax.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="calibrated")
    ax.errorbar(mean, frequency, yerr=error, color=COLOURS[0], marker="o", capsize=3, label="forest")
    ax.set(xlabel="predicted probability", ylabel="observed frequency", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    ax.legend(fontsize="small")
    texts = (f"{observed:.2f} for {expected:.2f}" for expected, observed in zip(mean, frequency, strict=True))
    return _set_caption(ax, f"Observed frequency for each predicted probability: {', '.join(texts)}.")


def plot_tree(forest: Any, tree: int = 0, *, ax: Axes | None = None) -> Axes:
    """Draw one released tree, root at the top: splits at the nodes, predictions at the leaves.

    Only released values are drawn, so there is no privacy loss.

    Parameters
    ----------
    forest : fitted estimator with trees
        ``GreedyForest*``, ``MedianForest*``, ``RandomTrees*`` or ``MatrixForestClassifier``.
    tree : int
        Index of the tree.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on. Default: the axes of a new figure.

    Examples
    --------
    >>> import veilwood as vw
    >>> iris = vw.datasets.iris()
    >>> forest = vw.GreedyForestClassifier(iris.schema, epsilon=9.0, n_estimators=1, max_depth=2)
    >>> plot_tree(forest.fit(iris.X, iris.y)).get_title()
    'tree 1 of 1'
    """
    model = getattr(forest, "model_", None)
    if not isinstance(model, ForestModel):
        raise UseError(
            f"{type(forest).__name__} has no trees to draw. Hint: fit it first; for a PrivateForest, call explain()."
        )
    trees = model.forest
    if not 0 <= tree < trees.n_trees:
        raise UseError(f"tree={short_repr(tree)} does not exist. Hint: pass an index from 0 to {trees.n_trees - 1}.")
    nodes, place, labels = _layout_tree(model, tree)
    leaves = int((trees.feature[list(place)] == LEAF).sum())
    if leaves > _MAX_LEAVES:
        raise UseError(
            f"a tree with {leaves} leaves is too large to draw. Hint: choose a tree with at most {_MAX_LEAVES} leaves."
        )
    ax = _get_axes(ax, max(1.3 * leaves, 4.8), 1.1 + 1.0 * (1 - min(y for _, y in place.values())))
    for node, (x, y) in place.items():
        leaf = trees.feature[node] == LEAF
        for number, below in enumerate(nodes.get(node, ())):
            ax.plot([x, place[below][0]], [y, place[below][1]], color=GREY, linewidth=1, zorder=1)
            middle = (0.6 * x + 0.4 * place[below][0], 0.6 * y + 0.4 * place[below][1])
            ax.text(*middle, labels[node][1][number], fontsize="x-small", ha="center", va="center", zorder=2,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
        ax.text(x, y, labels[node][0], ha="center", va="center", fontsize="small", zorder=3,
                bbox={"boxstyle": "round" if leaf else "square", "facecolor": "#dcecf7" if leaf else "white",
                      "edgecolor": COLOURS[0]})  # fmt: skip
    ax.set(xlim=(-0.6, leaves - 0.4), ylim=(min(y for _, y in place.values()) - 0.5, 0.5))
    ax.set_axis_off()
    ax.set_title(f"tree {tree + 1} of {trees.n_trees}")
    splits = "; ".join(f"at {labels[node][0]}: {', '.join(labels[node][1])}" for node in nodes)
    ends = sorted((x, labels[node][0].replace("\n", " ")) for node, (x, _) in place.items() if node not in nodes)
    predictions = ", ".join(label for _, label in ends)
    return _set_caption(
        ax, f"A tree with {leaves} leaves. {splits or 'It has no splits'}. Leaves from left to right: {predictions}."
    )


def _layout_tree(
    model: ForestModel, tree: int
) -> tuple[dict[int, list[int]], dict[int, tuple[float, float]], dict[int, tuple[str, list[str]]]]:
    """Return the children of inner nodes, the position of each node, and the labels of each node and its branches."""
    trees = model.forest
    children: dict[int, list[int]] = {}
    place: dict[int, tuple[float, float]] = {}
    labels: dict[int, tuple[str, list[str]]] = {}
    free = 0

    def place_subtree(node: int, depth: int) -> float:
        nonlocal free
        if trees.feature[node] == LEAF:
            labels[node] = (_describe_prediction(model, model.leaf_values[trees.child[node]]), [])
            x = float(free)
            free += 1
        else:
            question, branches = _describe_split(model, node)
            labels[node] = (question, branches)
            children[node] = [int(trees.child[node]) + number for number in range(len(branches))]
            x = float(np.mean([place_subtree(below, depth + 1) for below in children[node]]))
        place[node] = (x, -1.0 * depth)
        return x

    place_subtree(int(trees.roots[tree]), 0)
    return children, place, labels


def _describe_split(model: ForestModel, node: int) -> tuple[str, list[str]]:
    """Return the column that a node splits on, and the label of each branch."""
    trees, feature, cut = model.forest, int(model.forest.feature[node]), int(model.forest.cut[node])
    column = model.encoding.schema.features[feature]
    codes = model.encoding.n_codes[feature]
    if cut >= 0:
        edge = f"{model.encoding.threshold(feature, cut):.4g}"
        return column.name, [f"< {edge}", f"≥ {edge}"]
    branch = trees.lookup[-1 - cut : -1 - cut + codes]
    names = [str(value) for value in column.values] if column.kind == "categorical" else _bin_labels(model, feature)
    names = [*names, "missing"]
    branches = [
        ", ".join(names[code] for code in np.flatnonzero(branch == side)) for side in range(int(branch.max()) + 1)
    ]
    return column.name, [
        text if len(text) <= _MAX_LABEL_LENGTH else f"{text[: _MAX_LABEL_LENGTH - 3]}..." for text in branches
    ]


def _bin_labels(model: ForestModel, feature: int) -> list[str]:
    """Return the labels of the bins of a numeric column."""
    meaning = model.encoding.columns[feature]
    count = meaning.n_codes - (meaning.missing_code is not None)
    edges = [f"{model.encoding.threshold(feature, code):.4g}" for code in range(1, count)]
    if not edges:
        return ["all"]
    return [f"< {edges[0]}", *(f"{low} to {high}" for low, high in itertools.pairwise(edges)), f"≥ {edges[-1]}"]


def _describe_prediction(model: ForestModel, values: Floats) -> str:
    schema = model.encoding.schema
    if schema.classes:
        best = int(np.argmax(values))
        return f"{schema.classes[best]}\n{values[best] / max(float(values.sum()), 1e-12):.0%}"
    return f"{float(model.encoding.decode_target(values[0] * TARGET_LEVELS)):.4g}"


def _get_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """Return the given axes, or those of a new figure with a single panel."""
    return Figure(figsize=(width, height), layout="constrained").subplots() if ax is None else ax


def _set_caption(ax: Axes, text: str) -> Axes:
    _captions[ax] = text
    return ax


# Colours for private estimators, baselines, trivial predictors and weakened controls.
PRIVATE, BASELINE, TRIVIAL, BROKEN = "#1f5f8b", "#3a7d44", "#9a9a9a", "#b3412e"
_MIN_FALSE_POSITIVE_RATE = 5e-3  # rates below this, from a few thousand attacks, are mostly sampling error


@dataclass(frozen=True)
class Comparison:
    """Accuracy of a private estimator and of two baselines on one data set."""

    name: str
    """Name of the data set."""
    epsilons: tuple[float, ...]
    """Privacy losses, in increasing order."""
    private: Floats
    """Accuracy of the private estimator; shape (n_runs, n_epsilons)."""
    non_private: float
    majority: float
    """Mean accuracies: of an ordinary forest, and of always predicting the most frequent class."""


def accuracy_vs_epsilon(comparisons: Sequence[Comparison]) -> Figure:
    """Draw accuracy against epsilon, one panel per data set, with the standard deviation over runs and two baselines.

    Examples
    --------
    >>> runs = np.array([[0.6, 0.8], [0.7, 0.8]])
    >>> figure = accuracy_vs_epsilon([Comparison("toy", (0.5, 2.0), runs, 0.9, 0.5)])
    >>> figure.axes[0].get_xlabel()
    'epsilon (smaller is more private)'
    """
    figure = Figure(figsize=(4.2 * len(comparisons), 3.6), layout="constrained")
    panels: AnyArray = figure.subplots(1, len(comparisons), sharey=True, squeeze=False)[0]
    for axes, data in zip(panels, comparisons, strict=True):
        axes.axhline(data.non_private, color=BASELINE, linestyle="--", label="ordinary forest, not private")
        axes.axhline(data.majority, color=TRIVIAL, linestyle=":", label="most frequent class")
        axes.errorbar(
            data.epsilons, data.private.mean(axis=0), yerr=data.private.std(axis=0),
            color=PRIVATE, marker="o", capsize=3, label="private forest",
        )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(data.epsilons, [f"{epsilon:g}" for epsilon in data.epsilons])
        axes.set_xticks([], minor=True)
        axes.set(title=data.name, xlabel="epsilon (smaller is more private)", ylim=(0, 1.02))
    panels[0].set_ylabel("accuracy on held-out rows")
    panels[-1].legend(loc="lower right", fontsize="small")
    return figure


def error_vs_bound(
    x: ArrayLike, *, measured: Mapping[str, ArrayLike], bounds: Mapping[str, ArrayLike], xlabel: str, title: str
) -> Figure:
    """Draw measured errors and the bounds of theorems. Bounds above 1 are vacuous and not shown.

    Examples
    --------
    >>> figure = error_vs_bound(
    ...     [1, 2], measured={"forest": [0.2, 0.1]}, bounds={"Theorem 5.4": [0.9, 0.5]}, xlabel="depth", title="toy"
    ... )
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['Theorem 5.4', 'forest']
    """
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, values in bounds.items():
        axes.plot(x, np.asarray(values, dtype=float), linestyle="--", marker="v", label=name)
    for name, values in measured.items():
        axes.plot(x, np.asarray(values, dtype=float), marker="o", label=name)
    axes.set(xlabel=xlabel, ylabel="error", title=title, ylim=(-0.02, 1.02))
    axes.legend(fontsize="small")
    return figure


def skill_vs_noise(settings: Sequence[tuple[str, int, float, float]], *, title: str) -> Figure:
    """Draw the expected skill of settings against the noise relative to the rows per leaf, shaded by depth.

    Parameters
    ----------
    settings : sequence of (estimator, depth, noise divided by rows per leaf, skill)
        Results of ``veilwood.tune``.

    Examples
    --------
    >>> figure = skill_vs_noise([("RandomTreesClassifier", 2, 0.1, 0.4), ("RandomTreesClassifier", 4, 1.0, 0.2)],
    ...                         title="toy")
    >>> figure.axes[0].get_ylabel()
    'expected skill'
    """
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    depths = [depth for _, depth, _, _ in settings]
    for marker, name in zip("osv^", dict.fromkeys(name for name, *_ in settings), strict=False):
        depth, noise, skill = np.array([numbers for other, *numbers in settings if other == name]).T
        points = axes.scatter(noise, skill, c=depth, vmin=min(depths), vmax=max(depths), marker=marker, label=name)
    figure.colorbar(points, label="depth")
    if all(noise > 0 for _, _, noise, _ in settings):
        axes.set_xscale("log")
    axes.set(xlabel="noise on a count / rows of a leaf", ylabel="expected skill", title=title, ylim=(-0.02, 1.02))
    axes.legend(fontsize="small")
    return figure


def claimed_and_attacked(rows: Sequence[tuple[str, float, float, float]]) -> Figure:
    """Draw claimed privacy losses next to lower bounds from attacks, for estimators and their weakened controls.

    Parameters
    ----------
    rows : sequence of (name, claimed epsilon, lower bound for the estimator, lower bound for its control)
        One row of the figure for each, from top to bottom.

    Examples
    --------
    >>> figure = claimed_and_attacked([("RandomTreesClassifier", 1.0, 0.9, 1.8)])
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['claimed', 'shown by attack', 'shown for a control with half the noise']
    """
    figure = Figure(figsize=(7.2, 1.6 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    place = np.arange(len(rows))
    names, claimed, sound, control = zip(*rows, strict=True)
    marks = axes.vlines(claimed, place - 0.4, place + 0.4, color="black", linewidth=2, label="claimed")
    bars = [
        axes.barh(place - 0.18, sound, height=0.34, color=PRIVATE, label="shown by attack"),
        axes.barh(place + 0.18, control, height=0.34, color=BROKEN, label="shown for a control with half the noise"),
    ]
    axes.set_yticks(place, names)
    axes.invert_yaxis()
    axes.set(xlabel="epsilon", xlim=(0, 1.1 * max(*claimed, *sound, *control)))
    figure.legend(handles=[marks, *bars], loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    return figure


def roc_vs_bound(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]], epsilons: Mapping[str, float | None], *, title: str
) -> Figure:
    """Draw ROC curves of membership attacks, with the bound that each epsilon implies.

    Parameters
    ----------
    curves : mapping of name to (false positive rates, true positive rates)
        ROC curve of the attack on each model.
    epsilons : mapping of name to epsilon or None
        Privacy loss of each model. The dashed line is its bound: the true positive rate is at most e^epsilon times the
        false positive rate.

    Examples
    --------
    >>> figure = roc_vs_bound({"private": ([0, 0.5, 1], [0, 0.6, 1])}, {"private": 1.0}, title="toy")
    >>> [line.get_label() for line in figure.axes[0].lines][0]
    'private'
    """
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    for axes, scale in zip(figure.subplots(1, 2), ("linear", "log"), strict=True):
        rates = np.geomspace(_MIN_FALSE_POSITIVE_RATE, 1, 200)
        for i, (name, (false, true)) in enumerate(curves.items()):
            (line,) = axes.plot(false, true, color=f"C{i}", label=name)
            epsilon = epsilons[name]
            if epsilon is not None:
                grow = np.exp(epsilon)
                bound = np.minimum(grow * rates, 1 - (1 - rates) / grow)
                axes.plot(rates, bound, color=line.get_color(), linestyle="--", linewidth=1, label=f"bound of {name}")
        axes.plot(rates, rates, color=TRIVIAL, linestyle=":", label="guessing")
        axes.set(xlabel="false positive rate", xscale=scale, yscale=scale)
        if scale == "log":
            axes.set(xlim=(_MIN_FALSE_POSITIVE_RATE, 1), ylim=(_MIN_FALSE_POSITIVE_RATE, 1.1))
    figure.axes[0].set(ylabel="true positive rate", title=title)
    figure.axes[1].legend(fontsize="x-small", loc="lower right")
    return figure


def all_effects(effects: Effects, *, most: int = 9) -> Figure:
    """Draw the strongest main effects of a PrivateForest, one panel per column. ``plot_effects`` draws a single column.

    Parameters
    ----------
    effects : Effects
        Result of ``explain()``.
    most : int
        Maximum number of panels, strongest first.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.PrivateForestClassifier(car.schema, epsilon=20.0, n_rows=1728, random_state=0).fit(car.X, car.y)
    >>> len(all_effects(forest.explain(), most=4).axes)
    4
    """
    largest = effects.main[:most]
    if not largest:
        raise UseError("the model has no effects to draw: no column was measured. Hint: increase epsilon or n_rows.")
    across = min(3, len(largest))
    down = -(-len(largest) // across)
    figure = Figure(figsize=(3.6 * across, 0.6 + 2.8 * down), layout="constrained")
    panels: AnyArray = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
    for panel in panels[len(largest) :]:
        figure.delaxes(panel)
    for axes, main in zip(panels, largest, strict=False):
        draw_effect(axes, main, effects.outputs)
        axes.axhline(0, color=TRIVIAL, linewidth=0.8)
        axes.set_title(main.column)
    figure.supylabel(effects.unit, fontsize="medium")
    if len(effects.outputs) > 1:
        panels[0].legend(fontsize="x-small")
    return figure
