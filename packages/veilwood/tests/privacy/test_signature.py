# SPDX-License-Identifier: Apache-2.0
"""Keys: whose they are, and what is none."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

import veilwood as vw
from veilwood.errors import SignatureError
from veilwood.models import file as signed
from veilwood.privacy import signature


@pytest.fixture
def here(signed_folder: Path) -> Path:
    return signed_folder


def test_the_private_key_is_its_owners_alone(here: Path) -> None:
    assert stat.S_IMODE((here / "clinic.key").stat().st_mode) == 0o600
    with pytest.raises(SignatureError, match="exists already"):
        signature.generate_key_pair(here / "clinic.key")
    (here / "clinic.key").chmod(0o644)
    with pytest.raises(SignatureError, match="can be read by others"):
        signed.sign(here / "model.veilwood", here / "clinic.key")
    assert b"PRIVATE" not in (here / "clinic.key.pub").read_bytes()


def test_keys_that_are_none_are_refused(here: Path) -> None:
    (here / "text.pub").write_text("no key")
    for key in (here / "text.pub", here / "nosuch.pub", here / "clinic.key", b"-----BEGIN x", 3, "", here):
        with pytest.raises(SignatureError):
            vw.load(here / "model.veilwood", signed_by=key)  # type: ignore[arg-type]
    for key in (here / "text.pub", here / "nosuch", here / "clinic.key.pub"):
        key.exists() and key.chmod(0o600)
        with pytest.raises(SignatureError):
            signed.sign(here / "model.veilwood", key)
