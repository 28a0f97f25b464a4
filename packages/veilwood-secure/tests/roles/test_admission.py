# SPDX-License-Identifier: Apache-2.0
"""Who is let in: strangers, wrong ports, old TLS and people without a part in a task are refused, by name."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from veilwood.errors import PartyError
from veilwood_secure.roles.identity import Authority, Identity, PartyName, tls_context
from veilwood_secure.roles.transport import dial_server
from veilwood_testing.secure_roles import TASK, Place, X, place


def strangers(here: Place, tmp_path: Path) -> dict[str, tuple[str, Identity]]:
    """Identities that must be refused, with the ports they must be refused at."""
    secrets = here.folder / "secrets"
    read = {name: (secrets / f"authority-{name}.secret").read_bytes().strip() for name in ("servers", "participants")}
    kept = here.folder / "authorities"
    servers = Authority.load(("server",), kept / "servers.pem", kept / "servers.key", read["servers"])
    people = Authority.load(
        ("owner", "user"), kept / "participants.pem", kept / "participants.key", read["participants"]
    )
    other = Authority.create(("server", "owner", "user"))

    def issue(authority: Authority, role: Any, name: str, **options: Any) -> Identity:
        spot = tmp_path / f"stranger-{len(list(tmp_path.glob('stranger-*')))}"
        spot.mkdir()
        return authority.issue(PartyName(role, name), spot / "certificate.pem", spot / "key.pem", **options)

    return {
        "server of another authority": ("peers participants", issue(other, "server", "0")),
        "owner of another authority": ("peers participants", issue(other, "owner", "north")),
        "expired server": ("peers participants", issue(servers, "server", "0", days=-1)),
        "expired owner": ("peers participants", issue(people, "owner", "north", days=-1)),
        "owner at the servers' port": ("peers", issue(people, "owner", "north")),
        "server at the participants' port": ("participants", issue(servers, "server", "0")),
        "server that calls the wrong way": ("peers", issue(servers, "server", "2")),
        "owner nobody named": ("participants", issue(people, "owner", "nobody")),
    }


def refused(port: int, context: ssl.SSLContext, name: PartyName) -> bool:
    """Whether a server says nothing to somebody who asks as an owner, or as a server, would."""
    try:
        channel = dial_server("127.0.0.1", port, context, name, timeout=20, limit=1 << 16)
        words = {"do": "status", "task": "scale", "fingerprint": TASK.fingerprint(), "session": "s"}
        channel.send_fields(**words, invites=False)
        channel.receive_fields("phase")
    except PartyError as error:
        return "knows nothing of this session" not in str(error)  # which a server says to one it has let in
    return False


def test_strangers_are_refused_on_every_port(trained: Place, tmp_path: Path) -> None:
    for what, (ports, identity) in strangers(trained, tmp_path).items():
        for port in ports.split():
            for party in range(3):
                address = trained.config("server-0").servers[party]
                context = tls_context(identity, trained.config("server-0").servers_authority, listens=False)
                where, name = getattr(address, port), PartyName("server", str(party))
                assert refused(where, context, name), f"{what}: let in by server {party} at its {port} port"
    assert trained.owner("north").status()[0]["phase"] == "trained"


def nothing_heard(context: ssl.SSLContext, plain: socket.socket) -> bool:
    try:
        secured = context.wrap_socket(plain)
        secured.send(b"hello")
        return not secured.recv(1)
    except (ssl.SSLError, ConnectionError):
        return True


def test_without_certificate_or_tls_nothing_is_said(trained: Place) -> None:
    address = trained.config("server-0").servers[1]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for port in (address.peers, address.participants):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
            assert nothing_heard(context, plain)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionResetError):
                assert plain.recv(100)[:1] in (b"", b"\x15")  # closed, or a TLS alert


def test_old_tls_is_refused(trained: Place) -> None:
    config = trained.config("owner-north")
    context = tls_context(config.identity, config.servers_authority, listens=False)
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    with pytest.raises(PartyError, match="is not server 0"):
        dial_server(
            "127.0.0.1", config.servers[0].participants, context, PartyName("server", "0"), timeout=30, limit=100
        )


def test_a_server_with_the_certificate_of_another_is_refused(trained: Place) -> None:
    config = trained.config("owner-north")
    context = tls_context(config.identity, config.servers_authority, listens=False)
    with pytest.raises(PartyError, match="is not server 1") as caught:
        dial_server(
            "127.0.0.1", config.servers[0].participants, context, PartyName("server", "1"), timeout=30, limit=100
        )
    assert caught.value.party == "server 1"


def test_a_server_serves_no_more_whom_its_operator_refuses(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.train()
        assert len(here.user("guest").predict(X[:1])) == 1
        replace(here.config("server-1"), refused=("user guest",)).save()
        with pytest.raises(PartyError, match="user guest was revoked"):
            here.user("guest").predict(X[:1])
        assert len(here.user("analyst").predict(X[:1])) == 1
