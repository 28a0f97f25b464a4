# SPDX-License-Identifier: Apache-2.0
"""Files are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from veilwood.errors import FileError
from veilwood.safe_io import write_file


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_file(path, b"a long first version")
    write_file(path, b"short")
    assert path.read_bytes() == b"short"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    write_file(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match=r"No space left on device.*Hint"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["plan.json"]  # nothing unfinished is left behind


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nowhere.*No such file"):
        write_file(tmp_path / "nowhere" / "plan.json", b"")
