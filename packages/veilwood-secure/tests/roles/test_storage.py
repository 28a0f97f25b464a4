# SPDX-License-Identifier: Apache-2.0
"""What lies on disk: nothing in clear, nothing that opens without its secret, no value in a log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from veilwood.errors import ModelFileError, VeilwoodError
from veilwood_secure.roles.checkpoints import ModelStore, StoredModel
from veilwood_secure.roles.owner import Owner
from veilwood_testing.secure_roles import SCHEMA, Place, X, assert_nothing_in_clear, place


def test_stored_shares_open_with_the_secret_only(tmp_path: Path) -> None:
    vault = ModelStore(tmp_path, b"secret", "server 0")
    array = np.arange(1000, dtype=np.uint32)
    vault.save("m", StoredModel({"entry": 1}, {"a": array}))
    assert np.array_equal(ModelStore(tmp_path, b"secret", "server 0").load("m").arrays["a"], array)
    data = (tmp_path / "m.share").read_bytes()
    assert array.tobytes()[:64] not in data
    assert b"entry" not in data
    for other in (ModelStore(tmp_path, b"guess", "server 0"), ModelStore(tmp_path, b"secret", "server 1")):
        with pytest.raises(ModelFileError, match="does not open"):
            other.load("m")
    (tmp_path / "other.share").write_bytes(data)
    with pytest.raises(ModelFileError, match="does not open"):
        vault.load("other")
    (tmp_path / "m.share").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ModelFileError, match="does not open"):
        vault.load("m")
    (tmp_path / ".m.share.1234.part").write_bytes(data)
    assert ModelStore(tmp_path, b"secret", "server 0").list_names() == ["m", "other"]
    assert not list(tmp_path.glob(".*"))


def test_no_key_or_share_is_on_disk_in_clear(trained: Place) -> None:
    assert_nothing_in_clear(trained.folder)
    first = trained.servers[0]._task_states["scale"].model
    assert first is not None
    for path in trained.folder.rglob("*"):
        if path.is_file():
            assert all(array.tobytes()[:32] not in path.read_bytes() for array in first.arrays.values())


def test_a_wrong_or_missing_secret_opens_nothing(trained: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEILWOOD_SECRET", "guess")
    with pytest.raises(VeilwoodError, match="cannot use certificate"):
        trained.owner("north").status()
    monkeypatch.delenv("VEILWOOD_SECRET")
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115
    gone = replace(trained.config("owner-north"), secret="../secrets/gone")
    with pytest.raises(VeilwoodError, match="VEILWOOD_SECRET"):
        Owner(gone).status()
    secret = (trained.folder / "secrets" / "owner-north.secret").read_text().strip()
    monkeypatch.setenv("VEILWOOD_SECRET", secret)
    assert Owner(gone).status()[0]["phase"] == "trained"


def test_logs_hold_no_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), place(tmp_path) as here:
        here.train()
        with here.user() as analyst:
            analyst.predict(X[:7])
    assert "scale: trained" in caplog.text
    assert not any(f" {label} " in caplog.text for label in SCHEMA.classes)
    assert not any(name in caplog.text for name in SCHEMA.feature_names)
