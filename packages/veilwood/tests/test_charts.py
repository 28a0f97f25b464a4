# SPDX-License-Identifier: Apache-2.0
"""Pictures as SVG: any label and any number, one axis for every drawing, and text that a telephone shows."""

from __future__ import annotations

import re

import numpy as np
import pytest

from veilwood import charts, plots
from veilwood.forests.adaptive.effects import MainEffect
from veilwood_testing.commands import PageTags

# Days in hospital: whole numbers, skewed, sometimes missing.
EDGES = np.array([-0.5, 0.5, 1.5, 2.5, 4.5, 10.5, 23.5, 365.5])
ROWS = np.array([100.0, 300, 250, 200, 100, 30, 12, 60])
STAY = MainEffect(
    "los_days",
    ("0", "1", "2", "3 to 4", "5 to 10", "11 to 23", "24 to 365", "missing"),
    np.linspace(-1, 1, 8)[:, None],
    np.full((8, 1), 0.25),
    EDGES,
    rows=ROWS,
)


def test_pictures_take_any_label_and_any_number() -> None:
    labels = ["a" * 100, "<&>", "", "missing"]
    effect, error = np.array([[0.0], [1e9], [-1e-9], [0.5]]), np.zeros((4, 1))
    for picture in (
        charts.draw_category_effect(labels, effect, error, ["y"], rows=[-1.0, 2.0, 0.0, 3.0]),
        charts.draw_number_effect([0.0, 1e-9, 2.0, 1e12], effect, error, ["y"], rows=[-1.0, 2.0, 0.0, 3.0]),
        charts.draw_number_effect([0.0, 1.0], effect[:1], error[:1], ["y"], rows=[-5.0]),
        charts.draw_heatmap(labels, labels, np.zeros((4, 4)), ("<a>", "b")),
        charts.draw_confusion_matrix(["<a>", "b"], np.array([[-1.0, 2], [0, 0]])),
        charts.draw_calibration([]),
        charts.draw_roc([]),
    ):
        assert PageTags(picture).open == []
        assert "<&>" not in picture
        assert "nan" not in picture


def test_an_axis_is_true_to_scale_where_rows_are_and_breaks_the_tail_off() -> None:
    axis = charts.number_axis(EDGES.tolist(), ROWS.tolist())
    inside = [(end - start) / (b - a) for (start, end), a, b in zip(axis.spans, EDGES[:-1], EDGES[1:], strict=True)]
    assert max(inside[:5]) == pytest.approx(min(inside[:5]), rel=0.02)
    assert axis.spans[-1][0] - axis.spans[-2][1] > 0 or axis.spans[-1][0] - axis.spans[-3][1] > 0  # a gap
    assert axis.spans[-1][1] == 1.0
    labels = [label for _, label in axis.ticks]
    assert len(set(labels)) == len(labels)
    assert labels[-1] == "365"
    assert charts.number_axis([0.0, 1.0, 2.0]).spans == ((0.0, 0.5), (0.5, 1.0))


def test_missing_values_have_a_name_and_matplotlib_has_the_same_ticks() -> None:
    picture = STAY.draw(["yes"])
    assert ">missing<" in picture
    figure = plots.Figure()
    axes = figure.add_subplot()
    plots.draw_effect(axes, STAY, ["yes"])
    drawn = [label.get_text() for label in axes.get_xticklabels()]
    assert drawn == [*(label for _, label in charts.number_axis(EDGES.tolist(), ROWS.tolist()).ticks), "missing"]
    written = re.findall(r'text-anchor="middle"[^>]*>([^<]+)</text>', picture)  # below the picture
    assert [text for text in written if text in drawn] == [text for text in drawn if text in written]
    assert {"0", "365", "missing"} <= set(written)


def test_no_text_is_smaller_than_eleven_pixels_on_a_telephone() -> None:
    """Pictures are as wide as a telephone shows them, so that their text keeps its size."""
    counts = np.ones((2, 2))
    for picture in (
        STAY.draw(["yes"]), charts.draw_heatmap(["a"], ["b"], np.ones((1, 1))),
        charts.draw_confusion_matrix(["a", "b"], counts), charts.draw_calibration([]), charts.draw_roc([]),
    ):  # fmt: skip
        width = float(re.findall(r'viewBox="0 0 (\S+) ', picture)[0])
        assert width <= 340
        assert min(map(float, re.findall(r'font-size="([\d.]+)"', picture)), default=12) >= 11
