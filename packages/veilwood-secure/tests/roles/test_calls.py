# SPDX-License-Identifier: Apache-2.0
"""One conversation with three servers: all of it or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from veilwood.errors import PartyError, SetupError, VeilwoodError
from veilwood_secure.mpc.shares import pair_from_bytes, reconstruct
from veilwood_secure.roles import owner as calls
from veilwood_secure.roles.owner import ServerConnections
from veilwood_secure.roles.transport import Channel, dial_server
from veilwood_testing.secure_roles import TASK, Place


class Mouth:
    """A channel to a server that asks for what it is told to."""

    def __init__(self, wants: list[str]) -> None:
        self.wants = wants
        self.sent: list[Any] = []

    def receive_fields(self, *keys: str, watched: Any) -> dict[str, Any]:
        return {"send": self.wants}

    def send(self, content: bytes) -> None:
        self.sent.append(content)


def call_of(*wants: list[str]) -> ServerConnections:
    call = ServerConnections.__new__(ServerConnections)
    call.channels = [Mouth(names) for names in wants]  # type: ignore[misc]
    return call


def test_each_server_gets_shares_that_only_together_are_the_rows() -> None:
    call = call_of(["rows"], ["rows"], ["rows"])
    rows = np.arange(6).reshape(2, 3)
    call.send_shares({"rows": rows}, np.uint32)
    pairs = [pair_from_bytes(channel.sent[0], rows.shape, np.uint32) for channel in call.channels]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(reconstruct(pairs), rows)
    assert all((np.asarray(part) != rows).any() for pair in pairs for part in pair)


def test_servers_that_ask_for_something_else_get_nothing() -> None:
    call = call_of(["rows"], ["rows"], ["rows", "more"])
    with pytest.raises(SetupError, match="compare versions"):
        call.send_shares({"rows": np.zeros(2, np.int64)}, np.uint32)
    assert all(channel.sent == [] for channel in call.channels)  # type: ignore[attr-defined]


def test_a_call_that_finds_one_server_away_hangs_up_on_the_others(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def dial_two(*place: Any, **more: Any) -> Any:
        if len(opened) == 2:
            raise PartyError("away", party="server 2")
        opened.append(dial_server(*place, **more))
        return opened[-1]

    closed: list[Any] = []
    monkeypatch.setattr(calls, "dial_server", dial_two)
    hang_up = Channel.close

    def close(channel: Channel) -> None:
        closed.append(channel)
        hang_up(channel)

    monkeypatch.setattr(Channel, "close", close)
    with pytest.raises(VeilwoodError, match="away"):
        ServerConnections(here.owner("north").config, TASK, "status")
    assert all(channel in closed for channel in opened)
