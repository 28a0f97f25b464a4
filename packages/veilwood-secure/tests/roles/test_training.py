# SPDX-License-Identifier: Apache-2.0
"""Trainings begin when all rows are there."""

from __future__ import annotations

import pytest

from veilwood_secure.roles.training import TrainingMixin
from veilwood_testing.secure_roles import Place, contribute

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_a_training_that_had_not_begun_begins_by_itself(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        TrainingMixin, "_begin_training", lambda own, task_state: None
    )  # killed in the moment before it
    contribute(here)
    monkeypatch.undo()
    here.stop()
    here.start()
    assert here.owner("north").wait(60).epsilon == 2
