# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of rows and openings on a server's disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from veilwood.errors import ModelFileError
from veilwood_secure.roles.checkpoints import Checkpoint, EncryptedFolder

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_checkpoints_are_encrypted_and_bound_to_their_place(tmp_path: Path) -> None:
    safe = EncryptedFolder(tmp_path, b"secret", "server 0")
    safe.write_file("scale/rows/north/rows/0", b"a share")
    safe.write_file("scale/state", b"{}")
    (file,) = tmp_path.glob("scale/rows/north/rows/0")
    assert b"a share" not in file.read_bytes()
    assert file.stat().st_mode & 0o077 == 0
    assert tmp_path.stat().st_mode & 0o077 == 0
    assert EncryptedFolder(tmp_path, b"secret", "server 0").read_file("scale/state") == b"{}"
    others = [EncryptedFolder(tmp_path, b"another", "server 0"), EncryptedFolder(tmp_path, b"secret", "server 1")]
    for other in others:
        with pytest.raises(ModelFileError, match="does not open"):
            other.read_file("scale/state")
    shutil.copy(file, tmp_path / "scale" / "state")  # a file in the place of another
    with pytest.raises(ModelFileError, match="does not open"):
        safe.read_file("scale/state")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ModelFileError, match="does not open"):
        safe.read_file("scale/rows/north/rows/0")


def test_openings_of_another_plan_are_not_gone_on_with(tmp_path: Path) -> None:
    safe = EncryptedFolder(tmp_path, b"secret", "server 0")
    state = Checkpoint(safe, "scale", "task 1 by plan 1")
    state.begin_training("training")
    state.record_charge(1)
    state.prepare_opening(0, "session", [np.zeros(3, np.uint32)] * 2)
    state.record_intent(0)
    state.record_opening(np.arange(3))
    assert len(Checkpoint(safe, "scale", "task 1 by plan 1").opened) == 1
    other = Checkpoint(safe, "scale", "task 1 by plan 2")
    assert (other.opened, other.attempt, other.intents) == ([], None, 0)
    assert not other.may_have_opened
    assert Checkpoint(safe, "scale", "task 1 by plan 1").opened == []
    assert (other.counter, other.ledger_entries) == (state.counter + 1, 1)
