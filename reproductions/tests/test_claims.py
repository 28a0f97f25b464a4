# SPDX-License-Identifier: Apache-2.0
"""Sentences of papers, checked by code."""

from __future__ import annotations

from veilwood_papers.drawing import line_chart
from veilwood_papers.exhibit import (
    Cell,
    Claim,
    Exhibit,
    Experiment,
    Value,
    Values,
    all_of,
    check_above,
    check_between,
    check_dips,
    check_falls,
    check_keeps,
    check_rises,
    curve_means,
)
from veilwood_papers.show import ExhibitResults, format_value
from veilwood_testing.exhibits import measure_toy, toy_jobs


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
    words = [word for _, word in ExhibitResults(made, curve("b", 0.4, 0.5), {}, True).sentences()]
    assert words == ["true", "false", "not measured"]
    assert format_value(Value(123.4, 5.0)) == "123 ± 5.00"
