# SPDX-License-Identifier: Apache-2.0
"""One server, and what it no longer takes."""

from __future__ import annotations

from typing import Any

import pytest

from veilwood.errors import PartyError
from veilwood_secure.roles.server import Server
from veilwood_secure.roles.task_state import TaskState
from veilwood_testing.secure_roles import Place, X, Y, contribute, entry_states


def test_rows_are_not_changed_once_a_training_has_begun(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is its charge taken back: it may begin while an owner is admitted."""
    contribute(here, "north")
    admit, server = Server._admit_owner, here.servers[1]
    task_state, held = server._task_states["scale"], dict(server._task_states["scale"].complete_uploads)

    def admitted(own: Server, channel: Any, its_study: TaskState, links: Any, facts: Any) -> Any:
        found = admit(own, channel, its_study, links, facts)
        if its_study is task_state:
            plan = task_state.program.plan
            spend = server._ledger.reserve(
                plan.loss, what="a training", neighbours=str(plan.neighbours), plan=plan.fingerprint()
            )
            task_state.checkpoint.begin_training("training", spend.id)
            task_state.is_training = True
        return found

    monkeypatch.setattr(Server, "_admit_owner", admitted)
    with pytest.raises(PartyError, match="is being trained"):
        here.owner("north").contribute(X[:30], Y[:30])
    assert task_state.complete_uploads == held
    assert entry_states(here)[1] == ["reserved"]
