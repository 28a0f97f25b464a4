# SPDX-License-Identifier: Apache-2.0
"""The tool that compares traces: what it records, forces and holds fixed."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours, Rows
from veilwood.privacy.steps import counting_step
from veilwood_audit.noninterference import find_interference, force_outcomes, record_trace, result_or_error
from veilwood_testing.neighbour_pairs import (
    Row,
    pair_of,
)  # fmt: skip


def test_exact_inputs_of_neighbours_differ_and_are_recorded(tmp_path: Path) -> None:
    moved = 0
    for number in range(20):
        pair = pair_of(number)
        one, other = (record_trace(pair.run, rows, tmp_path / "run", pair.draw) for rows in (pair.one, pair.other))
        assert isinstance(one.visible["returned"], dict), one.visible["returned"][-1]
        assert one.events
        exact = zip(one.events, other.events, strict=True)
        moved += any(not np.array_equal(mine.exact, yours.exact) for mine, yours in exact)  # type: ignore[arg-type]
    assert moved > 15


def test_an_exit_code_that_depends_on_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(rows: list[Row], folder: Path) -> dict[str, int]:
        return {"code": 2 if len(rows) > 3 else 0}

    assert find_interference(program, pair_of(0).queries, pair_of(0).queries[:3]) == ["seen['returned']['code']"]


def test_a_cap_of_all_passages_is_held() -> None:
    """Each passage may be within its plan and all of them beyond what was promised."""
    step = counting_step("counts", (1,), Loss.pure(Fraction(1)), Neighbours(unit=Rows(1)), l1=1, squared_l2=1)

    def program(count: int, folder: Path) -> None:
        assert step.mechanism is not None
        for _ in range(2):
            with vw_door(step) as door:
                door.release_counts(step, np.array([count]))

    assert find_interference(program, 0, 1) == []
    assert find_interference(program, 0, 1, allowed=Fraction(2)) == []
    assert find_interference(program, 0, 1, allowed=Fraction(1)) == ["cost of all: 2, promised 1"]


def vw_door(step: Any) -> Door:
    from veilwood.privacy.ledger_stores import MemoryLedger
    from veilwood.privacy.plan import Layout, Plan

    plan = Plan("Audit", step.loss, Neighbours(), (step,), "a count", "audit", "0", Layout(leaves=1), 1.0)
    return Door(plan, MemoryLedger())


def test_forced_outcomes_follow_from_the_public_step_alone() -> None:
    step = counting_step("counts", (4,), Loss.pure(Fraction(1)), Neighbours(), l1=1, squared_l2=1)
    seen = []
    for exact, draw in ((0, 0), (500, 0), (0, 1)):
        with force_outcomes(draw), vw_door(step) as door:
            seen.append(door.release_counts(step, np.full(4, exact)).tolist())
    assert seen[0] == seen[1] != seen[2]


def test_what_an_action_ends_with_is_told_whole() -> None:
    story = result_or_error(lambda: json.loads("{"))
    assert story[0] == "JSONDecodeError"
    assert "Expecting property name" in story[-1]
