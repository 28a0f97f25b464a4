# SPDX-License-Identifier: Apache-2.0
"""Plots hold the numbers they are given, and their alternative texts do too."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import veilwood as vw
from veilwood import plots
from veilwood import plots as plots_models
from veilwood.errors import UseError
from veilwood.forests.adaptive.effects import Effects, Interaction, MainEffect
from veilwood_testing.errors import rejects

pytestmark = [pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning", "ignore::veilwood.PrivacyWarning")]


def test_errors_beside_baselines_and_bounds() -> None:
    runs = np.array([[0.5, 0.7], [0.7, 0.9]])
    figure = plots.accuracy_vs_epsilon([plots.Comparison("toy", (1.0, 2.0), runs, 0.95, 0.4)])
    (axes,) = figure.axes
    drawn = [np.asarray(line.get_ydata()).tolist() for line in axes.lines]
    assert [0.95, 0.95] in drawn
    assert [0.4, 0.4] in drawn
    assert any(np.allclose(values, [0.6, 0.8]) for values in drawn if len(values) == 2)
    figure = plots.error_vs_bound([1, 2], measured={"m": [0.1, 0.2]}, bounds={"b": [0.9, 0.8]}, xlabel="x", title="t")
    assert [np.asarray(line.get_ydata()).tolist() for line in figure.axes[0].lines] == [[0.9, 0.8], [0.1, 0.2]]


def test_the_bound_of_an_attack_is_that_of_epsilon() -> None:
    curves = {"private": ([0.0, 0.5, 1.0], [0.0, 0.6, 1.0]), "broken": ([0.0, 1.0], [0.0, 1.0])}
    figure = plots.roc_vs_bound(curves, {"private": np.log(2), "broken": None}, title="t")
    dashed = [line for line in figure.axes[0].lines if line.get_label() == "bound of private"]
    assert len(dashed) == 1  # what promises nothing has no bound
    rates, bound = (np.asarray(values, float) for values in (dashed[0].get_xdata(), dashed[0].get_ydata()))
    np.testing.assert_allclose(bound, np.minimum(2 * rates, 1 - (1 - rates) / 2))


def test_attacks_beside_claims() -> None:
    figure = plots.claimed_and_attacked([("one", 1.0, 0.9, 1.8), ("two", 2.0, 1.5, 3.1)])
    widths = [[bar.get_width() for bar in bars] for bars in figure.axes[0].containers]
    assert widths == [[0.9, 1.5], [1.8, 3.1]]


def test_calibration_is_by_groups_of_equal_size() -> None:
    values = np.repeat([0.1, 0.9], 50)
    happened = np.concatenate([np.arange(50) < 5, np.arange(50) < 40])
    axes = plots.plot_calibration(happened, values, bins=2)
    drawn = next(line for line in axes.lines if len(np.asarray(line.get_xdata())) == 2 and line.get_marker() == "o")
    np.testing.assert_allclose(np.asarray(drawn.get_xdata(), float), [0.1, 0.9])
    np.testing.assert_allclose(np.asarray(drawn.get_ydata(), float), [0.1, 0.8])


@pytest.mark.parametrize(("noise", "scale"), [(0.5, "log"), (0.0, "linear")])
def test_settings_without_noise_are_drawn_too(noise: float, scale: str) -> None:
    figure = plots.skill_vs_noise([("RandomTreesClassifier", 2, noise, 0.4), ("MedianForest", 4, 1.0, 0.2)], title="t")
    assert figure.axes[0].get_xscale() == scale


NUMBERS = MainEffect(
    "age",
    ("[0, 1)", "[1, 4]", "missing"),
    np.array([[1.0], [-2.0], [0.5]]),
    np.full((3, 1), 0.25),
    np.array([0.0, 1, 4]),
)


KINDS = MainEffect("ward", ("A", "B"), np.array([[0.5], [-0.5]]), np.array([[0.1], [0.2]]))


PAIR = Interaction(
    ("age", "ward"), (("low", "high"), ("A", "B", "C")), np.arange(6.0).reshape(2, 3, 1), np.ones((2, 3, 1))
)


def test_numbers_are_steps_with_bands_and_categories_bars_with_labels() -> None:
    figure = plots.all_effects(Effects("log-odds", ("yes",), (NUMBERS, KINDS), ()))
    age, ward = figure.axes
    step, band = (patch.get_data() for patch in age.patches)  # type: ignore[attr-defined]
    assert step.values.tolist() == [1.0, -2.0]
    assert step.edges.tolist() == [0.0, 0.25, 1.0]  # of the axis, to scale
    assert (band.baseline.tolist(), band.values.tolist()) == ([0.75, -2.25], [1.25, -1.75])
    assert [label.get_text() for label in age.get_xticklabels()][-1] == "missing"
    assert [bar.get_height() for bar in ward.patches if isinstance(bar, Rectangle)] == [0.5, -0.5]
    assert [label.get_text() for label in ward.get_xticklabels()] == ["A", "B"]
    with rejects(UseError, raised_in="all_effects"):
        plots.all_effects(Effects("log-odds", ("yes",), (), ()))
    with rejects(UseError, raised_in="plot_effects"):
        plots.plot_effects(Effects("log-odds", ("yes",), (), ()))


def test_a_pair_is_a_map_of_colours_with_its_groups() -> None:
    axes, scale = plots.plot_pair(PAIR, unit="log-odds").figure.axes
    assert np.asarray(axes.images[0].get_array()).tolist() == PAIR.effect[:, :, 0].tolist()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["low", "high"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["A", "B", "C"]
    assert (axes.get_title(), scale.get_ylabel()) == ("age and ward", "log-odds")


EFFECTS = Effects(
    "log-odds",
    ("yes",),
    (MainEffect("ward", ("A", "B"), np.array([[0.5], [-0.5]]), np.array([[0.1], [0.2]])),),
    (),
)


AGE_BY_WARD = Interaction(
    ("age", "ward"), (("low", "high"), ("A", "B")), np.arange(4.0).reshape(2, 2, 1), np.ones((2, 2, 1))
)


IRIS = vw.datasets.iris()


def spent_ledger() -> vw.MemoryLedger:
    ledger = vw.MemoryLedger(epsilon=3, population="flowers")
    for epsilon in (1.0, 0.5):
        vw.RandomTreesClassifier(IRIS.schema, epsilon=epsilon, ledger=ledger).fit(IRIS.X, IRIS.y)
    return ledger


def small_tree() -> Any:
    return vw.GreedyForestClassifier(IRIS.schema, epsilon=50.0, n_estimators=1, max_depth=2).fit(IRIS.X, IRIS.y)


DRAWN: dict[str, Callable[[], tuple[Any, ...]]] = {
    "plot_odds": lambda: (1.0,),
    "plot_budget": lambda: (spent_ledger(),),
    "plot_accuracy_by_epsilon": lambda: ({"ours": {0.5: 0.8, 2.0: 0.9}},),
    "plot_effects": lambda: (EFFECTS,),
    "plot_pair": lambda: (AGE_BY_WARD,),
    "plot_calibration": lambda: ([0, 1, 1, 0], [0.2, 0.8, 0.7, 0.3]),
    "plot_tree": lambda: (small_tree(),),
}


def test_every_picture_is_listed_here() -> None:
    assert {name for name in plots.__all__ if name.startswith("plot_")} == set(DRAWN)
    assert vw.plots is plots


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_takes_an_axis_returns_it_and_has_a_caption(name: str, tmp_path: Path) -> None:
    draw, given = getattr(plots, name), DRAWN[name]()
    first = Figure().subplots()
    assert draw(*given, ax=first) is first
    own = draw(*given)
    assert isinstance(own, Axes)
    assert plots.caption(own) == plots.caption(first)
    assert len(plots.caption(own)) > 30
    assert inspect.signature(draw).parameters["ax"].kind is inspect.Parameter.KEYWORD_ONLY
    plots.save(own, tmp_path / "picture.svg")
    assert plots.caption(own)[:20] in (tmp_path / "picture.svg").read_text()


def test_an_axis_without_a_caption_is_refused() -> None:
    with rejects(UseError, raised_in="caption"):
        plots.caption(Figure().subplots())


def test_odds_are_those_of_bayes() -> None:
    axes = plots.plot_odds(math.log(3), [0.25])
    (bar,) = axes.patches
    low, high = bar.get_x(), bar.get_x() + bar.get_width()  # type: ignore[attr-defined]
    assert (low, high) == (pytest.approx(1 / 10), pytest.approx(1 / 2))  # odds 1 to 3, divided and multiplied by 3
    with rejects(UseError, raised_in="plot_odds"):
        plots.plot_odds(math.inf)


def test_a_budget_adds_up() -> None:
    axes = plots.plot_budget(spent_ledger())
    ends = [(bar.get_x(), bar.get_width()) for bar in axes.patches]  # type: ignore[attr-defined]
    assert ends == [(0.0, 1.0), (1.0, 0.5)]
    assert plots.caption(axes) == "2 releases spent epsilon 1.5 in total, of a budget of epsilon 3."
    assert axes.get_title() == "flowers"


def test_what_is_not_private_is_told_and_not_added_up() -> None:
    ledger = vw.MemoryLedger()
    for epsilon in (1.0, math.inf):
        vw.RandomTreesClassifier(IRIS.schema, epsilon=epsilon, ledger=ledger).fit(IRIS.X, IRIS.y)
    assert "spent epsilon 1 in total, of no budget. Not drawn: 1 NOT PRIVATE" in plots.caption(
        plots.plot_budget(ledger)
    )


def test_accuracy_is_drawn_and_told() -> None:
    axes = plots.plot_accuracy_by_epsilon({"a": {2.0: (0.9, 0.1), 0.5: (0.8, 0.1)}}, levels={"majority": 0.6})
    assert any(np.asarray(line.get_ydata()).tolist() == [0.8, 0.9] for line in axes.lines)
    assert "a: 0.800 at 0.5, 0.900 at 2. majority: 0.600" in plots.caption(axes)


def test_one_column_of_the_effects_is_drawn() -> None:
    assert [bar.get_height() for bar in plots.plot_effects(EFFECTS, "ward").patches] == [0.5, -0.5]  # type: ignore[attr-defined]
    with rejects(UseError, raised_in="plot_effects"):
        plots.plot_effects(EFFECTS, "age")


def side(value: float, branches: list[str]) -> int:
    """Find the branch of a number by what is written there: below an edge, between two, or from one on."""
    for number, words in enumerate(branches):
        low, _, high = words.partition(" to ") if " to " in words else ("-inf", "", words.removeprefix("< "))
        if words.startswith("≥") or float(low) <= value < float(high):
            return number
    raise AssertionError(branches)


def follow(forest: Any, row: Any) -> str:
    """Predict one row by the words of the picture alone."""
    nodes, _, words = plots_models._layout_tree(forest.model_, 0)
    node = int(forest.forest_.roots[0])
    while node in nodes:
        column, branches = words[node]
        node = nodes[node][side(row[column], branches)]
    return words[node][0].split("\n")[0]


@pytest.mark.parametrize("kind", ["GreedyForest", "MedianForest", "RandomTrees"])
def test_a_drawn_tree_is_the_tree_that_predicts(kind: str) -> None:
    maker = getattr(vw, f"{kind}Classifier")
    forest = maker(IRIS.schema, epsilon=50.0, n_estimators=1, max_depth=2, random_state=3).fit(IRIS.X, IRIS.y)
    lines = [follow(forest, row) for _, row in IRIS.X.iterrows()]
    assert (np.array(lines) == forest.predict(IRIS.X)).mean() > 0.95  # edges are rounded to four digits
    written = {text.get_text().split("\n")[0] for text in plots.plot_tree(forest).texts}
    assert set(forest.predict(IRIS.X)) <= written


def test_subsets_of_categories_are_told() -> None:
    car = vw.datasets.car()
    forest = vw.RandomTreesClassifier(car.schema, epsilon=50.0, n_estimators=1, max_depth=1, random_state=0)
    nodes, _, words = plots_models._layout_tree(forest.fit(car.X, car.y).model_, 0)
    column, branches = words[next(iter(nodes))]
    values = next(one.values for one in car.schema.features if one.name == column)
    assert sorted(", ".join(branches).split(", ")) == sorted(map(str, values))


def test_what_cannot_be_drawn_is_refused() -> None:
    with rejects(UseError, raised_in="plot_tree"):
        plots.plot_tree(vw.PrivateForestClassifier(IRIS.schema))
    with rejects(UseError, raised_in="plot_tree"):
        plots.plot_tree(small_tree(), 7)
    wide = vw.RandomTreesClassifier(IRIS.schema, epsilon=5.0, n_estimators=1, max_depth=7).fit(IRIS.X, IRIS.y)
    with rejects(UseError, raised_in="plot_tree"):
        plots.plot_tree(wide)


# What dichromats see, after Vienot, Brettel and Mollon (1999), in linear light.
BLIND = {
    "protan": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
    "deutan": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
}


@pytest.mark.parametrize("kind", BLIND)
def test_colours_are_told_apart_by_the_colour_blind_and_stand_out_from_white(kind: str) -> None:
    def seen(colour: str) -> Any:
        return np.clip(np.array(BLIND[kind]) @ (np.array(to_rgb(colour)) ** 2.2), 0, 1) ** (1 / 2.2)

    for one, other in itertools.combinations(plots_models.COLOURS[:4], 2):
        assert np.abs(seen(one) - seen(other)).max() > 0.12, (one, other)
    for colour in plots_models.COLOURS:
        red, green, blue = np.array(to_rgb(colour)) ** 2.2
        assert 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05) > 3
