# SPDX-License-Identifier: Apache-2.0
"""Servers under attack: silent crowds, greedy users, slow senders, bad tasks and forged lines harm nobody else."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from veilwood.errors import PartyError
from veilwood_secure.roles import transport as listener_module
from veilwood_secure.roles.config import TASKS_FILE
from veilwood_secure.roles.identity import PartyName, tls_context
from veilwood_secure.roles.transport import Channel, LostError, ReceiveQuota, dial_server
from veilwood_testing.secure_roles import FIRST_SERVER, Place, X, Y, connect_channel, place


def test_silent_connections_shut_nobody_out(here: Place) -> None:
    address = here.config("server-0").servers[0]
    with ExitStack() as crowd:
        for port in (address.participants, address.peers):
            for _ in range(205):
                crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        here.owner("north").contribute(X[:20], Y[:20])  # which needs both ports of server 0
        assert here.owner("north").status()[0]["missing"] == ["south"]


def test_one_user_with_many_connections_shuts_nobody_out_and_is_told_why(here: Place) -> None:
    with ExitStack() as crowd:
        refused: list[str] = []
        for _ in range(60):
            channel = connect_channel(here)
            crowd.callback(channel.close)
            if len(refused) < 3:  # the first ones that are one too many
                try:
                    channel.receive_fields("nothing", time_limit=0.01 if len(crowd._exit_callbacks) <= 16 else 5)  # type: ignore[attr-defined]
                except LostError:
                    continue
                except PartyError as error:
                    refused.append(str(error))
        assert len(refused) == 3
        assert all("user analyst has 16 connections open" in text for text in refused)
        assert len(here.owner("north").status()) == 3
        assert len(here.config("user-guest").tasks) == 1


def test_places_come_free_again(here: Place) -> None:
    for _ in range(40):
        connect_channel(here).close()
    until = time.monotonic() + 60
    while here.servers[0]._listeners[1].n_connections:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_what_is_announced_takes_no_memory_and_so_much_only(here: Place) -> None:
    room = ReceiveQuota(4000)
    one, other = PartyName("user", "one"), PartyName("user", "other")
    room.reserve_memory(one, 1000)
    with pytest.raises(PartyError, match="user one sent more data at once than one party may"):
        room.reserve_memory(one, 1)
    room.reserve_memory(other, 1000)
    room.free_memory(one, 1000)
    room.reserve_memory(one, 1000)
    far, near = socket.socketpair()
    channel = Channel(_Plain(near), one, 5, limit=1 << 30, quota=ReceiveQuota(1 << 32))  # type: ignore[arg-type]
    far.sendall(struct.pack("!BIQ", 0, 0, 1 << 30) + b"x" * 10)
    with pytest.raises(PartyError):
        channel.receive(time_limit=0.2)
    assert len(channel._partial) <= 1 << 18
    channel.close()
    assert channel._quota is not None
    assert channel._quota._taken[one] == 0
    far.close()


class _Plain:
    """A socket that says it wants to read as TLS does."""

    def __init__(self, plain: socket.socket) -> None:
        self._plain = plain

    def setsockopt(self, *_: Any) -> None: ...

    def getpeercert(self, binary_form: bool) -> bytes:
        return b""

    def recv_into(self, space: memoryview) -> int:
        try:
            return self._plain.recv_into(space)
        except BlockingIOError:
            raise ssl.SSLWantReadError from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def _messages(far: socket.socket, count: int, length: int) -> threading.Thread:
    data = b"".join(struct.pack("!BIQ", 0, number, length) + b"x" * length for number in range(count))

    def send() -> None:
        with suppress(OSError):
            far.sendall(data)

    sender = threading.Thread(target=send)
    sender.start()
    return sender


@pytest.mark.parametrize(("count", "length", "why"), [(40, 10, "more messages than were"), (3, 90_000, "data at once")])
def test_messages_that_nobody_asked_for_do_not_fill_a_server(count: int, length: int, why: str) -> None:
    far, near = socket.socketpair()
    room, one = ReceiveQuota(4 * 200_000), PartyName("user", "one")
    channel = Channel(_Plain(near), one, 20, limit=1 << 20, quota=room)  # type: ignore[arg-type]
    sender = _messages(far, count, length)

    def read_all() -> None:
        while len(channel._incoming) < count:
            channel._read_available()

    with pytest.raises(PartyError, match=f"user one .*{why}"):  # before the first of them is asked for
        read_all()
    channel.close()
    assert room._taken[one] == 0
    far.close()
    sender.join(20)


def test_messages_that_are_read_make_room_for_others() -> None:
    far, near = socket.socketpair()
    room, one = ReceiveQuota(4 * 200_000), PartyName("user", "one")
    channel = Channel(_Plain(near), one, 20, limit=1 << 20, quota=room)  # type: ignore[arg-type]
    for number in range(5):
        sender = threading.Thread(target=far.sendall, args=(struct.pack("!BIQ", 0, number, 150_000) + b"x" * 150_000,))
        sender.start()
        assert len(channel.receive()) == 150_000
        sender.join(20)
    assert room._taken[one] == 0
    channel.close()
    far.close()


def test_somebody_that_sends_byte_after_byte_gets_no_more_time(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKE_TIMEOUT_S", 0.5)
    address = here.config("server-0").servers[0]
    with socket.create_connection(("127.0.0.1", address.participants), timeout=30) as slow, suppress(OSError):
        for byte in b"\x16\x03\x01\x02\x00" + bytes(1000):
            slow.sendall(bytes([byte]))
            time.sleep(0.05)
        pytest.fail("it was never cut off")


def test_a_full_server_is_not_called_a_forger(tmp_path: Path) -> None:
    made = Place(tmp_path)
    config = made.config("user-analyst")
    context = tls_context(config.identity, config.servers_authority, listens=False)
    with socket.create_server(("127.0.0.1", 0)) as closes:
        closes.settimeout(5)

        def turn_away() -> None:
            while True:
                try:
                    connection, _ = closes.accept()
                except OSError:
                    return
                connection.recv(1 << 12)
                connection.close()

        threading.Thread(target=turn_away, daemon=True).start()
        with pytest.raises(LostError, match="it is full, or stopping") as caught:
            dial_server(
                "127.0.0.1", closes.getsockname()[1], context, FIRST_SERVER, timeout=5, limit=100, connect_timeout=0.3
            )  # fmt: skip
        assert "certificates" not in str(caught.value)


def test_a_bad_task_stops_no_other(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.train()
        for party in range(3):
            file = tmp_path / f"server-{party}" / TASKS_FILE
            data = json.loads(file.read_text())
            good = data["tasks"][0]
            data["tasks"] += [
                {**good, "name": "no-owners", "owners": {}},
                {**good, "name": "no-protocol", "protocol": "witchcraft"},
                {**good, "name": "no-setting", "settings": {"max_depth": "deep"}},
                17,
                {**good, "name": "later"},
            ]
            file.write_text(json.dumps(data))
        assert here.owner("north").status()[0]["phase"] == "trained"
        assert [server._task_states.keys() for server in here.servers] == [{"scale", "later"}] * 3
        assert set(here.servers[0]._task_faults) == {"no-owners", "no-protocol", "no-setting"}
        file.write_text("{")  # and a file that is none leaves all as it was
        assert here.owner("north").status()[2]["phase"] == "trained"
        here.stop()
        (tmp_path / "server-2" / TASKS_FILE).write_text(json.dumps(data))
        (tmp_path / "server-2" / "models" / "later.share").write_bytes(b"rubbish")
        here.start()
        assert here.owner("north").status()[2]["phase"] == "trained"
