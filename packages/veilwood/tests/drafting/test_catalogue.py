# SPDX-License-Identifier: Apache-2.0
"""Lists that everybody knows."""

from __future__ import annotations

import pytest

from veilwood.drafting.catalogue import CATALOGUE, known_bounds, known_values


@pytest.mark.parametrize(
    ("name", "title"),
    [("age", "age in years"), ("patientAge", "age in years"), ("AGE_2", "age in years"), ("wage", None),
     ("heart_rate", "heart rate per minute"), ("hour", "hour of the day"), ("share_of_x", "share"), ("cage", None)],
)  # fmt: skip
def test_the_catalogue_goes_by_words_of_the_name(name: str, title: str | None) -> None:
    usual = known_bounds(name)
    assert (None if usual is None else usual.title) == title


def test_lists_of_the_catalogue_hold_all_that_was_found() -> None:
    assert known_values("x", ["yes", "no"]) is not None
    assert known_values("x", ["yes"]) is None
    assert known_values("x", ["yes", "no", "maybe"]) is None
    assert known_values("ward", ["A", "B"]) is None  # no blood groups
    assert known_values("blood_group", ["A", "B"]) is not None
    assert known_values("plz", ["01067", "99084"]) is not None
    assert len({(usual.title, usual.values) for usual in CATALOGUE}) == len(CATALOGUE)
