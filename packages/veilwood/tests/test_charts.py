# SPDX-License-Identifier: Apache-2.0
"""Pictures as SVG: any label and any number."""

from __future__ import annotations

import numpy as np

from veilwood import charts as pictures
from veilwood_testing.commands import PageTags


def test_pictures_take_any_label_and_any_number() -> None:
    labels = ["a" * 100, "<&>", "[0, 1)", "missing"]
    effect, error = np.array([[0.0], [1e9], [-1e-9], [0.5]]), np.zeros((4, 1))
    for picture in (
        pictures.draw_steps(labels, effect, error, ["y"]),
        pictures.draw_category_bars(labels, effect, error, ["y"]),
    ):
        assert PageTags(picture).open == []
        assert "<&>" not in picture
    assert "unknown" in pictures.draw_intervals([("auc", None, 0.0, 1.0, 0.0, 1.0)])
    assert "nan" not in pictures.draw_budget([("fit", 1.0, True)], None)


def test_an_axis_is_written_no_finer_than_it_can_show() -> None:
    """Ends of intervals are 46.86 and 73.12 of 120 years, or hundredths of a share; dates stay as they are."""
    groups = ["[0, 46.86)", "[46.86, 73.12)", "[73.12, 120]", "missing"]
    effect = np.zeros((4, 1))
    drawn = pictures.draw_steps(groups, effect, effect, ["yes"])
    assert all(f">{end}<" in drawn for end in ("0", "47", "73", "120"))
    assert ".86" not in drawn
    shares = pictures.draw_steps(["[0, 0.25)", "[0.25, 1]"], effect[:2], effect[:2], ["yes"])
    assert ">0.25<" in shares
    assert ">2020-01<" in pictures.draw_steps(["[2020-01, 2021-01)"], effect[:1], effect[:1], ["yes"])
