# SPDX-License-Identifier: Apache-2.0
"""Pictures hold the numbers that they are given; where the numbers come from is tested elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from veilwood import plots
from veilwood.errors import VeilwoodError
from veilwood.forests.adaptive.effects import Effects, Interaction, MainEffect


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
    said = np.repeat([0.1, 0.9], 50)
    happened = np.concatenate([np.arange(50) < 5, np.arange(50) < 40])
    axes = plots.plot_calibration(happened, said, bins=2)
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
    assert step.edges.tolist() == [0.0, 1.0, 4.0]
    assert (band.baseline.tolist(), band.values.tolist()) == ([0.75, -2.25], [1.25, -1.75])
    assert any(text.get_text() == "missing" for text in age.texts)
    assert [bar.get_height() for bar in ward.patches if isinstance(bar, Rectangle)] == [0.5, -0.5]
    assert [label.get_text() for label in ward.get_xticklabels()] == ["A", "B"]
    with pytest.raises(VeilwoodError, match="no column was measured"):
        plots.all_effects(Effects("log-odds", ("yes",), (), ()))
    with pytest.raises(VeilwoodError, match="no column was measured"):
        plots.plot_effects(Effects("log-odds", ("yes",), (), ()))


def test_a_pair_is_a_map_of_colours_with_its_groups() -> None:
    axes, scale = plots.plot_pair(PAIR, unit="log-odds").figure.axes
    assert np.asarray(axes.images[0].get_array()).tolist() == PAIR.effect[:, :, 0].tolist()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["low", "high"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["A", "B", "C"]
    assert (axes.get_title(), scale.get_ylabel()) == ("age and ward", "log-odds")
