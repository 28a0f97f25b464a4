# SPDX-License-Identifier: Apache-2.0
"""Certificates name one role, and an authority signs its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from veilwood.errors import PartyError, VeilwoodError
from veilwood_secure.roles.identity import Authority, PartyName, peer_name


def test_an_authority_signs_its_own_roles_only(tmp_path: Path) -> None:
    people = Authority.create(("owner", "user"))
    with pytest.raises(VeilwoodError, match="does not sign for a server"):
        people.issue(PartyName("server", "0"), tmp_path / "c", tmp_path / "k")
    for role, name in (("server", "3"), ("owner", "UPPER"), ("user", "a.b"), ("owner", "")):
        with pytest.raises(VeilwoodError):
            PartyName(role, name)  # type: ignore[arg-type]


def test_certificates_name_one_role(tmp_path: Path) -> None:
    class Fake:
        def __init__(self, *names: str) -> None:
            self.names = names

        def getpeercert(self) -> dict[str, Any]:
            return {"subjectAltName": [("DNS", name) for name in self.names]}

    assert peer_name(Fake("north.owner.veilwood")) == PartyName("owner", "north")  # type: ignore[arg-type]
    for names in ((), ("north.owner.veilwood", "0.server.veilwood"), ("north.client.example",), ("0.king.veilwood",)):
        with pytest.raises(PartyError):
            peer_name(Fake(*names))  # type: ignore[arg-type]
