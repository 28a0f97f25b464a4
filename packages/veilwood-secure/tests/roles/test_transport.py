# SPDX-License-Identifier: Apache-2.0
"""Messages over TLS: whole and in order, bounded, and whoever is lost or slow is named."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from veilwood.errors import PartyError, VeilwoodError
from veilwood_secure.roles.config import Config
from veilwood_secure.roles.identity import PartyName, tls_context
from veilwood_secure.roles.transport import Channel, Listener, TlsLinks, dial_server
from veilwood_testing.secure_roles import Place


@contextmanager
def two_ends(folder: Path, timeout: float = 5.0) -> Iterator[tuple[Channel, Channel]]:
    """A connection of server 0 and server 1, from both ends."""
    made = Place(folder) if not (folder / "server-0").exists() else None
    del made
    configs = [Config.load(folder / f"server-{party}") for party in range(2)]
    arrived: list[Channel] = []
    there = threading.Event()

    def take(channel: Channel) -> None:
        arrived.append(channel)
        there.set()

    listens = tls_context(configs[1].identity, configs[1].servers_authority, listens=True)
    listener = Listener("127.0.0.1", 0, listens, timeout, take)
    dials = tls_context(configs[0].identity, configs[0].servers_authority, listens=False)
    near = dial_server("127.0.0.1", listener.port, dials, PartyName("server", "1"), timeout=timeout, limit=1 << 24)
    assert there.wait(10)
    yield near, arrived[0]
    near.close()
    arrived[0].close()
    listener.close()


def test_messages_arrive_whole_and_in_order(tmp_path: Path) -> None:
    with two_ends(tmp_path) as (near, far):
        assert far.peer == PartyName("server", "0")
        far.limit = 1 << 24
        parts = [b"", b"x", bytes(100_000), b"last"]
        for part in parts:
            near.send(part)
        assert [bytes(far.receive()) for _ in parts] == parts
        near.send_fields(a=1)
        assert far.receive_fields("a") == {"a": 1}


def test_two_parties_that_both_send_much_do_not_wait_for_ever(tmp_path: Path) -> None:
    with two_ends(tmp_path) as (near, far):
        far.limit = 1 << 24
        much = bytes(1 << 24)
        other = threading.Thread(target=lambda: (far.send(much), far.receive()))  # type: ignore[func-returns-value]
        other.start()
        near.send(much)
        assert near.receive() == much
        other.join()


def test_messages_beyond_the_limit_are_refused_unread(tmp_path: Path) -> None:
    with two_ends(tmp_path) as (near, far):
        far.limit = 1000
        near._queue_frame(0, bytes(1001))
        near._write_pending()
        with pytest.raises(PartyError, match="announced a message longer than is allowed") as caught:
            far.receive()
        assert caught.value.party == "server 0"


@pytest.mark.parametrize(
    "raw", [b"\x07" + bytes(12), b"\x00" + b"\x00\x00\x00\x09" + bytes(8)], ids=["unknown kind", "wrong number"]
)
def test_frames_out_of_place_are_refused(tmp_path: Path, raw: bytes) -> None:
    with two_ends(tmp_path) as (near, far):
        near._socket.send(raw)
        with pytest.raises(PartyError, match="server 0 does not keep to the protocol"):
            far.receive()


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[1]", b'{"b": 1}', b"not json"])
def test_words_that_are_none_are_refused(tmp_path: Path, text: bytes) -> None:
    with two_ends(tmp_path) as (near, far):
        near.send(text)
        with pytest.raises(PartyError, match="a message with a was expected"):
            far.receive_fields("a")


def test_the_lost_and_the_slow_are_named(tmp_path: Path) -> None:
    with two_ends(tmp_path, timeout=0.2) as (near, far):
        with pytest.raises(PartyError, match="server 0 is too slow"):
            far.receive()
        near.close_with_error(VeilwoodError("budget is gone"))
        with pytest.raises(PartyError, match="server 0 gave up: budget is gone"):
            far.receive()
    with two_ends(tmp_path) as (near, far):
        near.close()
        with pytest.raises(PartyError, match="server 0 is lost"):
            far.receive()


def test_the_server_at_the_end_of_the_chain_is_blamed(tmp_path: Path) -> None:
    """Server 0 waits for 1, which waits for 2, which says nothing: both name 2."""
    with two_ends(tmp_path, 0.5) as a, two_ends(tmp_path, 0.5) as b, two_ends(tmp_path, 0.5) as c:
        ends = {(0, 1): a[0], (1, 0): a[1], (1, 2): b[0], (2, 1): b[1], (0, 2): c[0], (2, 0): c[1]}
        for (_, other), channel in ends.items():
            channel.peer = PartyName("server", str(other))
        links = [TlsLinks(p, {o: ends[p, o] for o in range(3) if o != p}) for p in range(3)]
        blamed: dict[int, str | None] = {}

        def wait(party: int, sender: int) -> None:
            try:
                links[party].receive(sender)
            except PartyError as error:
                blamed[party] = error.party

        threads = [threading.Thread(target=wait, args=pair) for pair in ((0, 1), (1, 2))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert blamed == {0: "server 2", 1: "server 2"}
