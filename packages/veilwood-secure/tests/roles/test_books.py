# SPDX-License-Identifier: Apache-2.0
"""The ledgers of a server: of all tasks, of one task and of one owner."""

from __future__ import annotations

from pathlib import Path

import pytest

from veilwood.errors import PartyError
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood_secure.roles.sessions import BUDGETS_FOLDER, entry_label, purpose_of
from veilwood_testing.secure_roles import TASK, Place, contribute, role_ledger

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


@pytest.mark.parametrize("file", ["ledger.db", f"{BUDGETS_FOLDER}/task-scale.db", f"{BUDGETS_FOLDER}/owner-south.db"])
def test_a_server_keeps_budgets_of_all_tasks_one_task_and_one_owner(tmp_path: Path, file: str) -> None:
    here = Place(tmp_path)
    kept = here.folder / "server-1" / file
    SQLiteLedger(kept, epsilon=3, delta="1e-6")
    here.start()
    contribute(here)
    assert here.owner("north").wait(60).epsilon == 2
    here.settle()
    assert SQLiteLedger(kept).spent.epsilon == 2
    here.owner("north").retire()
    contribute(here)
    with pytest.raises(PartyError, match="insufficient privacy budget"):
        here.owner("north").wait(60)
    here.settle()
    assert SQLiteLedger(kept).spent.epsilon == 2
    for party in range(3):
        assert role_ledger(here, f"server-{party}").spent.epsilon == 2  # the others have taken theirs back
    here.stop()


def test_halves_that_a_crash_left_in_narrower_ledgers_are_taken_back(here: Place) -> None:
    server = here.servers[0]
    task_state = server._find_task("scale", TASK.fingerprint())
    narrow = SQLiteLedger(here.folder / "server-0" / BUDGETS_FOLDER / "task-scale.db", epsilon=5, delta="1e-6")
    task_ledgers = server._task_ledgers(task_state)
    plan = task_state.program.plan
    narrow.reserve(
        plan.loss, purpose=purpose_of(TASK), what=entry_label(TASK), neighbours=str(plan.neighbours), plan="p",
        key="cut short",
    )  # fmt: skip
    task_ledgers.reserve_all("whole")
    task_ledgers.cancel_orphans()
    assert [str(entry.state) for entry in narrow.entries()] == ["cancelled", "reserved"]
