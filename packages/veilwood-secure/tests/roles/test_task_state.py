# SPDX-License-Identifier: Apache-2.0
"""What a server keeps of each task."""

from __future__ import annotations

from pathlib import Path

import pytest

from veilwood.errors import DomainTooLargeError, VeilwoodError
from veilwood_secure.roles.checkpoints import Checkpoint, Safe
from veilwood_secure.roles.registry import program_of
from veilwood_secure.roles.task_state import MOST_ROWS, Study
from veilwood_testing.places import TASK

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_an_owner_is_missing_until_its_last_part_is_whole(tmp_path: Path) -> None:
    study = Study(TASK, program_of(TASK), Checkpoint(Safe(tmp_path, b"secret", "server 0"), "scale"))
    study.state.parts["north"] = {"a": {"upload": "x", "rows": 10, "held": [], "more": False}}
    assert study.missing == ["north", "south"]
    study.state.parts["north"]["a"]["held"] = ["z"]
    assert study.rows == {"north": ("a:x:z", 10)}
    assert study.missing == ["north", "south"]  # nobody knows that the others have it
    study.accept_all()
    assert study.missing == ["south"]
    study.state.parts["north"]["b"] = {"upload": "y", "rows": 5, "held": ["z"], "more": True}
    assert study.missing == ["north", "south"]
    study.training = True
    with pytest.raises(VeilwoodError, match="is being trained"):
        study.refuse_if_busy()


def test_more_rows_than_words_can_count_are_refused_whatever_others_sent(tmp_path: Path) -> None:
    study = Study(TASK, program_of(TASK), Checkpoint(Safe(tmp_path, b"secret", "server 0"), "scale"))
    most = MOST_ROWS // len(TASK.owners)
    study.refuse_too_many("north", "rows", most)
    study.state.parts["north"] = {"rows": {"upload": "x", "rows": most, "held": [], "more": True}}
    study.refuse_too_many("north", "rows", most)  # in its place
    study.refuse_too_many("south", "rows", most)
    with pytest.raises(DomainTooLargeError, match="more rows"):
        study.refuse_too_many("north", "others", 1)
    study.state.parts["south"] = {str(part): {"upload": str(part), "rows": 1, "held": []} for part in range(1000)}
    with pytest.raises(DomainTooLargeError, match="or parts"):
        study.refuse_too_many("south", "more", 1)
