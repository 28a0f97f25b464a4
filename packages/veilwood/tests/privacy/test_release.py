# SPDX-License-Identifier: Apache-2.0
"""The order of a release: nothing is read that cannot be paid for, and no rejection of rows goes unseen."""

from __future__ import annotations

import ast
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import veilwood as vw
from veilwood.errors import BudgetExceededError, OutOfSchemaError, UnreadableError
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.loss import Loss
from veilwood.privacy.plan import Plan
from veilwood.privacy.release import Release

CORE = Path(vw.__file__).parent


def plan_of(epsilon: float = 1.0) -> Plan:
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=1)
    return vw.RandomTreesClassifier(schema, epsilon=epsilon, n_estimators=1, max_depth=1, random_state=0).plan()


def release_of(ledger: Ledger | None, epsilon: float = 1.0) -> Release:
    return Release.for_plan(plan_of(epsilon), ledger, [[0.5]])


def zeros(door: Any) -> Any:
    (step,) = door.plan.steps
    return door.release_counts(step, np.zeros(step.shape, np.int64))


def test_rows_are_opened_then_measured_and_the_loss_is_certified() -> None:
    ledger = vw.MemoryLedger(epsilon=1)
    release = release_of(ledger)
    assert release.open_rows(lambda: "rows") == "rows"
    assert ledger.spent.epsilon == 0  # reserved by the measurement only
    release.measure(zeros)
    assert ledger.spent.epsilon == release.certificate().epsilon == 1


@pytest.mark.parametrize("extra", [None, Loss.pure(Fraction(1))])
def test_without_a_budget_the_rows_are_not_opened(extra: Any) -> None:
    ledger = vw.MemoryLedger(epsilon=0.5 if extra is None else 1.5)
    release = Release(release_of(ledger).door, extra_loss=extra)
    with pytest.raises(BudgetExceededError):
        release.open_rows(lambda: pytest.fail("rows were opened"))
    assert ledger.entries() == []


@pytest.mark.parametrize("kind", [OutOfSchemaError, UnreadableError])
def test_a_rejection_of_rows_is_a_cancelled_entry(kind: type[Exception]) -> None:
    def reject() -> NoReturn:
        raise kind("no such rows")

    ledger = vw.MemoryLedger(epsilon=1)
    with pytest.raises(kind):
        release_of(ledger).open_rows(reject)
    (entry,) = ledger.entries()
    assert entry.state == "cancelled"
    assert ledger.spent.epsilon == 0
    with pytest.raises(kind):
        release_of(None).open_rows(reject)


def test_other_errors_leave_no_entry() -> None:
    ledger = vw.MemoryLedger(epsilon=1)
    with pytest.raises(ZeroDivisionError):
        release_of(ledger).open_rows(lambda: 1 / 0)
    assert ledger.entries() == []


def test_a_release_without_noise_asks_for_no_budget() -> None:
    release = release_of(vw.MemoryLedger(epsilon=1), epsilon=float("inf"))
    assert release.open_rows(lambda: "rows") == "rows"
    with pytest.raises(vw.NotPrivateError):
        release.measure(zeros)


def test_the_core_checks_budgets_in_one_place() -> None:
    """A second order of a release would call these again."""
    calls = {
        path.relative_to(CORE).as_posix()
        for path in CORE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "check_affordable"
    }
    assert calls - {"drafting/discover.py"} == {"privacy/release.py"}  # a discovery opens its rows inside the door
