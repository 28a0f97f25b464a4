# SPDX-License-Identifier: Apache-2.0
"""Verdicts, and the cells of an exhibit."""

from __future__ import annotations

import pytest

from veilwood_papers.exhibit import Cell, Row, Value, compare_with_published, mean_values
from veilwood_papers.runner import all_exhibits


def test_a_verdict_needs_two_standard_errors() -> None:
    cell = Cell("p", "c", "1")
    assert compare_with_published(cell, Value(0.80, 0.01), Value(0.825, 0.01)) == "same"
    assert compare_with_published(cell, Value(0.80, 0.01), Value(0.84, 0.01)) == "worse"
    assert compare_with_published(cell, Value(0.80, 0.01), Value(0.76, 0.01)) == "better"
    assert compare_with_published(cell._replace(measure="MSE x 100"), Value(0.80, 0.01), Value(0.76, 0.01)) == "worse"
    assert compare_with_published(cell._replace(measure="error (%)"), Value(1.0), Value(2.0)) == "better"
    assert compare_with_published(cell._replace(measure="number"), Value(123.0), Value(124.0)) == "differs"


def test_means_have_standard_errors() -> None:
    cell = next(iter(all_exhibits()[0].published()))
    value = mean_values([Row(cell, i, x) for i, x in enumerate((1.0, 2.0, 3.0))])[cell]
    assert (value.mean, value.runs) == (2.0, 3)
    assert value.error == pytest.approx(1 / 3**0.5)


def test_one_repeat_that_was_published_spreads_as_ours_do() -> None:
    cell, ours, theirs = Cell("Car", "training", "1"), Value(0.7, 0.02, 25), Value(0.85, 0.01, 5)
    assert compare_with_published(cell, ours, theirs) == "worse"
    assert compare_with_published(cell, ours, theirs, published_once=True) == "same"
    assert compare_with_published(cell, ours, Value(0.95, 0.01, 5), published_once=True) == "worse"
    assert compare_with_published(cell, ours, Value(0.45, 0.01, 5), published_once=True) == "better"
