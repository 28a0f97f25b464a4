# SPDX-License-Identifier: Apache-2.0
"""Exhibits: cells, verdicts, checked claims, and published tables as printed."""

from __future__ import annotations

import math

import pytest

from veilwood_papers.drawing import line_chart
from veilwood_papers.exhibit import (
    Cell,
    Claim,
    Exhibit,
    Experiment,
    Row,
    Value,
    Values,
    all_of,
    check_above,
    check_between,
    check_dips,
    check_falls,
    check_keeps,
    check_rises,
    compare_with_published,
    curve_means,
    mean_values,
    mrf_values,
    parse_number,
    read_published,
)
from veilwood_papers.runner import all_exhibits
from veilwood_papers.show import ExhibitResults, format_value
from veilwood_testing.exhibits import measure_toy, toy_jobs


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
    cell, ours, other = Cell("Car", "training", "1"), Value(0.7, 0.02, 25), Value(0.85, 0.01, 5)
    assert compare_with_published(cell, ours, other) == "worse"
    assert compare_with_published(cell, ours, other, published_once=True) == "same"
    assert compare_with_published(cell, ours, Value(0.95, 0.01, 5), published_once=True) == "worse"
    assert compare_with_published(cell, ours, Value(0.45, 0.01, 5), published_once=True) == "better"


def curve(name: str, *means: float) -> Values:
    return {Cell("p", name, str(x)): Value(mean, 0.01, 5) for x, mean in enumerate(means)}


def test_sentences_are_checked_by_code() -> None:
    both = {**curve("a", 0.5, 0.7, 0.6), **curve("b", 0.4, 0.5, 0.65)}
    assert check_above("a", "b")(both) is False
    assert check_above("a", "b", fraction=0.6)(both) is True
    assert check_above("a", "b", only=lambda panel, x: x == "0")(both) is True
    assert check_above("a", "missing")(both) is None
    assert check_falls("a")(both) is True
    assert check_falls("b")(both) is False
    assert check_keeps("a")(both) is False
    assert check_rises("b")(both) is True
    assert check_dips("c")(curve("c", 3.0, 1.0, 2.0)) is True
    assert check_dips("c")(curve("c", 3.0, 2.0, 1.0)) is False
    assert check_between("a", "p", "1", 0.6, 0.8)(both) is True
    assert check_between("a", "p", "9", 0.6, 0.8)(both) is None
    assert all_of(check_falls("a"), check_falls("b"))(both) is False
    assert all_of(check_falls("missing"))(both) is None
    assert curve_means(both, "a")["p", "1"] == 0.7


def test_a_sentence_without_its_cells_is_not_measured() -> None:
    claims = (Claim("Up.", check_rises("b")), Claim("Down.", check_falls("b")), Claim("Elsewhere.", check_rises("c")))
    made = Exhibit(
        "rdt", "table 1", "", "", Experiment("toy", toy_jobs, measure_toy), line_chart("x", "y"), claims=claims
    )
    words = [each.verdict for each in ExhibitResults(made, curve("b", 0.4, 0.5), {}, True).sentences()]
    assert words == ["true", "false", "not measured"]
    assert format_value(Value(123.4, 5.0)) == "123 ± 5.00"


def test_missing_numbers_are_not_zero() -> None:
    assert parse_number("0.25") == 0.25
    assert math.isnan(parse_number(""))


def test_a_table_that_nobody_copied_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        read_published("no_such_table")


def test_standard_errors_come_from_deviations_and_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"data": "car", "method": "ours", "eps": "1.0", "acc_mean": "0.9", "acc_std": "0.2", "n_trials": "16"}
    other = line | {"method": "not shown"}
    monkeypatch.setattr("veilwood_papers.exhibit.read_published", lambda name: [line, other])
    found = mrf_values("any", "eps", {"ours": "M-RF"}, lambda row: row["data"])
    (cell,) = found
    assert cell == Cell("car", "M-RF", "1")
    assert (found[cell].mean, found[cell].error, found[cell].runs) == (0.9, 0.05, 16)
