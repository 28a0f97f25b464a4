# SPDX-License-Identifier: Apache-2.0
"""Sentences of papers, checked by code."""

from __future__ import annotations

from veilwood_papers.drawing import lines
from veilwood_papers.exhibit import (
    Cell,
    Claim,
    Exhibit,
    Experiment,
    Value,
    Values,
    above,
    all_of,
    at,
    bends,
    between,
    falls,
    keeps,
    rises,
)
from veilwood_papers.show import Shown, said
from veilwood_testing.toy_exhibit import jobs, measure


def curve(name: str, *means: float) -> Values:
    return {Cell("p", name, str(x)): Value(mean, 0.01, 5) for x, mean in enumerate(means)}


def test_sentences_are_checked_by_code() -> None:
    both = {**curve("a", 0.5, 0.7, 0.6), **curve("b", 0.4, 0.5, 0.65)}
    assert above("a", "b")(both) is False
    assert above("a", "b", share=0.6)(both) is True
    assert above("a", "b", only=lambda panel, x: x == "0")(both) is True
    assert above("a", "missing")(both) is None
    assert falls("a")(both) is True
    assert falls("b")(both) is False
    assert keeps("a")(both) is False
    assert rises("b")(both) is True
    assert bends("c")(curve("c", 3.0, 1.0, 2.0)) is True
    assert bends("c")(curve("c", 3.0, 2.0, 1.0)) is False
    assert between("a", "p", "1", 0.6, 0.8)(both) is True
    assert between("a", "p", "9", 0.6, 0.8)(both) is None
    assert all_of(falls("a"), falls("b"))(both) is False
    assert all_of(falls("missing"))(both) is None
    assert at(both, "a")["p", "1"] == 0.7


def test_a_sentence_without_its_cells_is_not_measured() -> None:
    claims = (Claim("Up.", rises("b")), Claim("Down.", falls("b")), Claim("Elsewhere.", rises("c")))
    made = Exhibit("rdt", "table 1", "", "", Experiment("toy", jobs, measure), lines("x", "y"), claims=claims)
    words = [word for _, word in Shown(made, curve("b", 0.4, 0.5), {}, True).sentences()]
    assert words == ["true", "false", "not measured"]
    assert said(Value(123.4, 5.0)) == "123 ± 5.00"
