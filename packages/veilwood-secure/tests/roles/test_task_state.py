# SPDX-License-Identifier: Apache-2.0
"""What a server keeps of each task."""

from __future__ import annotations

from pathlib import Path

import pytest

from veilwood.errors import DomainTooLargeError, VeilwoodError
from veilwood_secure.roles.checkpoints import Checkpoint, EncryptedFolder
from veilwood_secure.roles.program import program_for_task
from veilwood_secure.roles.task_state import MAX_ROWS, TaskState
from veilwood_testing.secure_roles import TASK

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_an_owner_is_missing_until_its_last_part_is_whole(tmp_path: Path) -> None:
    task_state = TaskState(
        TASK, program_for_task(TASK), Checkpoint(EncryptedFolder(tmp_path, b"secret", "server 0"), "scale")
    )
    task_state.checkpoint.parts["north"] = {"a": {"upload": "x", "rows": 10, "held": [], "more": False}}
    assert task_state.missing_owners == ["north", "south"]
    task_state.checkpoint.parts["north"]["a"]["held"] = ["z"]
    assert task_state.complete_uploads == {"north": ("a:x:z", 10)}
    assert task_state.missing_owners == ["north", "south"]  # nobody knows that the others have it
    task_state.accept_all_rows()
    assert task_state.missing_owners == ["south"]
    task_state.checkpoint.parts["north"]["b"] = {"upload": "y", "rows": 5, "held": ["z"], "more": True}
    assert task_state.missing_owners == ["north", "south"]
    task_state.is_training = True
    with pytest.raises(VeilwoodError, match="is being trained"):
        task_state.reject_if_training()


def test_more_rows_than_words_can_count_are_refused_whatever_others_sent(tmp_path: Path) -> None:
    task_state = TaskState(
        TASK, program_for_task(TASK), Checkpoint(EncryptedFolder(tmp_path, b"secret", "server 0"), "scale")
    )
    most = MAX_ROWS // len(TASK.owners)
    task_state.reject_too_many_rows("north", "rows", most)
    task_state.checkpoint.parts["north"] = {"rows": {"upload": "x", "rows": most, "held": [], "more": True}}
    task_state.reject_too_many_rows("north", "rows", most)  # in its place
    task_state.reject_too_many_rows("south", "rows", most)
    with pytest.raises(DomainTooLargeError):
        task_state.reject_too_many_rows("north", "others", 1)
    task_state.checkpoint.parts["south"] = {
        str(part): {"upload": str(part), "rows": 1, "held": []} for part in range(1000)
    }
    with pytest.raises(DomainTooLargeError, match="or parts"):
        task_state.reject_too_many_rows("south", "more", 1)
