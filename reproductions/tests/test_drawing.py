# SPDX-License-Identifier: Apache-2.0
"""Curves as they are drawn: what has no guarantee is marked, and axes are logarithmic where they can be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from veilwood_papers.drawing import as_number, bar_chart, curve_style, draw_agreement, line_chart, mark_not_private
from veilwood_papers.exhibit import Cell, Value, Values


def curve(name: str, *xs: str) -> Values:
    return {Cell("car", name, x): Value(0.1 * place, 0.01, 5) for place, x in enumerate(xs, 1)}


def test_words_are_no_coordinates() -> None:
    assert as_number("0.5") == 0.5
    assert math.isnan(as_number("chosen"))
    assert mark_not_private("RF") == "RF (NOT PRIVATE)"


def test_a_curve_goes_through_its_cells() -> None:
    figure = line_chart("epsilon", "accuracy")(curve("ours", "0.1", "1", "10"), curve("theirs", "0.1"), "A figure")
    place = next(axes for axes in figure.axes if axes.get_title() == "car")
    drawn: Any = [line for line in place.get_lines() if np.size(line.get_xdata()) == 3]
    assert list(drawn[0].get_xdata()) == [0.1, 1.0, 10.0]
    assert [round(float(y), 6) for y in drawn[0].get_ydata()] == [0.1, 0.2, 0.3]


def test_bars_are_as_high_as_their_values() -> None:
    figure = bar_chart("seconds")(curve("ours", "fit", "predict"), {}, "A figure")
    drawn: Any = figure.axes[0].patches
    heights = {round(float(bar.get_height()), 6) for bar in drawn}
    assert {0.1, 0.2} <= heights


def test_agreement_shows_shared_cells_alone() -> None:
    measured = curve("ours", "1", "2")
    figure = draw_agreement(measured, {Cell("car", "ours", "1"): Value(0.15, 0.0, 1)}, "A table")
    place = next(axes for axes in figure.axes if axes.get_title() == "car")
    assert len(place.containers) == 1
    assert place.get_xlabel() == "published"


def test_no_two_curves_of_a_figure_have_the_same_mark() -> None:
    assert len({curve_style(n)["marker"] for n in range(15)}) == 15
