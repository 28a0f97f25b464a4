# SPDX-License-Identifier: Apache-2.0
"""Pictures of results, as matplotlib figures. Nothing is computed here and no window is opened.

The pictures on one axis (``plot_...``) are made in ``plots_models`` and are found here too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from veilwood.errors import UseError
from veilwood.plots_models import (
    Figure,
    caption,
    draw_effect,
    plot_accuracy_by_epsilon,
    plot_budget,
    plot_calibration,
    plot_effects,
    plot_odds,
    plot_pair,
    plot_tree,
    save,
)

if TYPE_CHECKING:
    from veilwood.forests.explained.effects import Effects

__all__ = [
    "Comparison",
    "accuracy_vs_epsilon",
    "all_effects",
    "caption",
    "claimed_and_attacked",
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

PRIVATE, BASELINE, TRIVIAL, BROKEN = "#1f5f8b", "#3a7d44", "#9a9a9a", "#b3412e"
_FEWEST_ACCUSED = 5e-3  # below, a few thousand guesses are mostly luck


@dataclass(frozen=True)
class Comparison:
    """Accuracy of a private estimator beside two baselines, on one data set."""

    name: str
    """The data set."""
    epsilons: tuple[float, ...]
    """The privacy losses tried, in increasing order."""
    private: NDArray[np.float64]
    """Accuracy of the private estimator; shape (n_runs, n_epsilons)."""
    non_private: float
    majority: float
    """Mean accuracy of an ordinary forest, and of always saying the most frequent class."""


def accuracy_vs_epsilon(comparisons: Sequence[Comparison]) -> Figure:
    """Draw accuracy against epsilon, one panel per data set: mean and standard deviation over runs, and baselines.

    Examples
    --------
    >>> runs = np.array([[0.6, 0.8], [0.7, 0.8]])
    >>> figure = accuracy_vs_epsilon([Comparison("toy", (0.5, 2.0), runs, 0.9, 0.5)])
    >>> figure.axes[0].get_xlabel()
    'epsilon (smaller is more private)'
    """
    figure = Figure(figsize=(4.2 * len(comparisons), 3.6), layout="constrained")
    panels: NDArray[Any] = figure.subplots(1, len(comparisons), sharey=True, squeeze=False)[0]
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
    panels[0].set_ylabel("accuracy on rows held out")
    panels[-1].legend(loc="lower right", fontsize="small")
    return figure


def error_vs_bound(
    x: ArrayLike, *, measured: Mapping[str, ArrayLike], bounds: Mapping[str, ArrayLike], xlabel: str, title: str
) -> Figure:
    """Draw measured errors beside the bounds that theorems give. Bounds above 1 say nothing and are cut off.

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
    """Draw the expected skill of settings against their noise, relative to the rows of a leaf, shaded by depth.

    Parameters
    ----------
    settings : sequence of (estimator, depth, noise over rows of a leaf, skill)
        What ``veilwood.tune`` planned.

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
    """Draw what attacks showed beside what was claimed, for sound estimators and their broken twins.

    Parameters
    ----------
    rows : sequence of (name, claimed epsilon, shown of the sound one, shown of its twin)
        From top to bottom.

    Examples
    --------
    >>> figure = claimed_and_attacked([("RandomTreesClassifier", 1.0, 0.9, 1.8)])
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['claimed', 'shown by attack', 'shown of a twin with half the noise']
    """
    figure = Figure(figsize=(7.2, 1.6 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    place = np.arange(len(rows))
    names, claimed, sound, twin = zip(*rows, strict=True)
    marks = axes.vlines(claimed, place - 0.4, place + 0.4, color="black", linewidth=2, label="claimed")
    bars = [
        axes.barh(place - 0.18, sound, height=0.34, color=PRIVATE, label="shown by attack"),
        axes.barh(place + 0.18, twin, height=0.34, color=BROKEN, label="shown of a twin with half the noise"),
    ]
    axes.set_yticks(place, names)
    axes.invert_yaxis()
    axes.set(xlabel="epsilon", xlim=(0, 1.1 * max(*claimed, *sound, *twin)))
    figure.legend(handles=[marks, *bars], loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    return figure


def roc_vs_bound(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]], epsilons: Mapping[str, float | None], *, title: str
) -> Figure:
    """Draw how often an attack finds members against how often it accuses others, with the bound of each epsilon.

    Parameters
    ----------
    curves : mapping of name to (false positive rates, true positive rates)
        One curve of the attack for each model.
    epsilons : mapping of name to epsilon or None
        What each model promises. The dashed line is its bound: the true positive rate is at most e^epsilon times
        the false positive rate.

    Examples
    --------
    >>> figure = roc_vs_bound({"private": ([0, 0.5, 1], [0, 0.6, 1])}, {"private": 1.0}, title="toy")
    >>> [line.get_label() for line in figure.axes[0].lines][0]
    'private'
    """
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    for axes, scale in zip(figure.subplots(1, 2), ("linear", "log"), strict=True):
        rates = np.geomspace(_FEWEST_ACCUSED, 1, 200)
        for i, (name, (false, true)) in enumerate(curves.items()):
            (line,) = axes.plot(false, true, color=f"C{i}", label=name)
            epsilon = epsilons[name]
            if epsilon is not None:
                grow = np.exp(epsilon)
                bound = np.minimum(grow * rates, 1 - (1 - rates) / grow)
                axes.plot(rates, bound, color=line.get_color(), linestyle="--", linewidth=1, label=f"bound of {name}")
        axes.plot(rates, rates, color=TRIVIAL, linestyle=":", label="guessing")
        axes.set(xlabel="others accused (false positives)", xscale=scale, yscale=scale)
        if scale == "log":
            axes.set(xlim=(_FEWEST_ACCUSED, 1), ylim=(_FEWEST_ACCUSED, 1.1))
    figure.axes[0].set(ylabel="members found (true positives)", title=title)
    figure.axes[1].legend(fontsize="x-small", loc="lower right")
    return figure


def all_effects(effects: Effects, *, most: int = 9) -> Figure:
    """Draw the strongest main effects of a PrivateForest, one panel a column; ``plot_effects`` draws one of them.

    Parameters
    ----------
    effects : Effects
        What ``explain()`` returned.
    most : int
        The largest number of panels, strongest first.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.PrivateForestClassifier(car.schema, epsilon=20.0, n_rows=1728, random_state=0).fit(car.X, car.y)
    >>> len(all_effects(forest.explain(), most=4).axes)
    4
    """
    shown = effects.main[:most]
    if not shown:
        raise UseError("there is nothing to draw: no column was measured. Hint: print(explain()) says so too.")
    across = min(3, len(shown))
    down = -(-len(shown) // across)
    figure = Figure(figsize=(3.6 * across, 0.6 + 2.8 * down), layout="constrained")
    panels: NDArray[Any] = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
    for panel in panels[len(shown) :]:
        figure.delaxes(panel)
    for axes, main in zip(panels, shown, strict=False):
        draw_effect(axes, main, effects.outputs)
        axes.axhline(0, color=TRIVIAL, linewidth=0.8)
        axes.set_title(main.column)
    figure.supylabel(effects.unit, fontsize="medium")
    if len(effects.outputs) > 1:
        panels[0].legend(fontsize="x-small")
    return figure
