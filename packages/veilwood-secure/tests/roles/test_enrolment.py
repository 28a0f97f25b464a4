# SPDX-License-Identifier: Apache-2.0
"""Roles that draw their own keys: requests, certificates, renewal and revocation while the servers run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from veilwood.cli.main import main
from veilwood.errors import VeilwoodError
from veilwood_secure.roles.config import Address, load_or_create_authority, set_up_roles
from veilwood_secure.roles.identity import Authority, PartyName, install_certificate, request_certificate, sign_request
from veilwood_testing.processes import free_ports
from veilwood_testing.secure_roles import TASK, Place, X, Y, assert_nothing_in_clear


def enrol(folder: Path, role: str, *, days: int = 365) -> None:
    """Let a role ask for a certificate, and get it."""
    kind, _, name = role.partition("-")
    place, who = folder / role, PartyName(kind, name)  # type: ignore[arg-type]
    known = (place / "secret").read_bytes().strip() if (place / "secret").exists() else None
    request = request_certificate(place, who, known)
    servers = kind == "server"
    signer = load_or_create_authority(
        folder, "servers" if servers else "participants", ("server",) if servers else ("owner", "user")
    )
    install_certificate(place, sign_request(signer, request, who, days=days), who)


@pytest.fixture
def enrolled(tmp_path: Path) -> Place:
    made = Place.__new__(Place)
    made.folder, made.servers = tmp_path, []
    ports = iter(free_ports(6))
    addresses = [Address("127.0.0.1", next(ports), next(ports)) for _ in range(3)]
    for config in set_up_roles(tmp_path, TASK, addresses=addresses, timeout=10.0, keys=False):
        assert {file.name for file in config.folder.iterdir() if file.is_file()} == {
            "config.json",
            "tasks.json",
            "servers.pem",
            "participants.pem",
        }
        enrol(tmp_path, config.folder.name)
    assert not list((tmp_path / "secrets").glob("owner-*"))
    return made


def wait_until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_roles_that_enrolled_themselves_train_renew_and_are_revoked(enrolled: Place) -> None:
    here, folder = enrolled, enrolled.folder
    here.start()
    try:
        here.owner("north").contribute(X[:250], Y[:250])
        before = [server._certificate_mtime for server in here.servers]
        for role in ("server-0", "server-1", "server-2", "owner-south"):
            enrol(folder, role)  # renewal, while all run and rows are there
        wait_until(
            lambda: all(server._certificate_mtime != old for server, old in zip(here.servers, before, strict=True))
        )
        here.owner("south").contribute(X[250:], Y[250:])
        assert here.owner("north").wait(60).epsilon == 2
        fingerprint = _fingerprint(folder / "user-analyst" / "certificate.pem")
        with here.user("analyst") as stolen:  # the certificate that a thief has, and asks with
            assert len(stolen.predict(X[:1])) == 1
            replace(here.config("server-1"), refused=(fingerprint,)).save()
            with pytest.raises(VeilwoodError, match="the certificate of user analyst was revoked"):
                stolen.predict(X[:1])
        with pytest.raises(VeilwoodError, match="the certificate of user analyst was revoked"):
            here.user("analyst").predict(X[:1])
        enrol(folder, "user-analyst")
        assert len(here.user("analyst").predict(X[:1])) == 1  # the same name with another certificate
    finally:
        here.stop()
    for secret in folder.glob("*/secret"):
        secret.rename(folder / "secrets" / f"{secret.parent.name}.secret")
    assert_nothing_in_clear(folder)


def _fingerprint(certificate: Path) -> str:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    return x509.load_pem_x509_certificate(certificate.read_bytes()).fingerprint(hashes.SHA256()).hex()


def test_requests_are_signed_for_whom_they_are_and_certificates_fit_their_key(tmp_path: Path) -> None:
    people, north = Authority.create(("owner", "user")), PartyName("owner", "north")
    request = request_certificate(tmp_path / "north", north)
    with pytest.raises(VeilwoodError, match="the request is not for owner south"):
        sign_request(people, request, PartyName("owner", "south"))
    with pytest.raises(VeilwoodError, match="does not sign for a server"):
        sign_request(people, request_certificate(tmp_path / "0", PartyName("server", "0")), PartyName("server", "0"))
    with pytest.raises(VeilwoodError, match="not a request"):
        sign_request(people, b"hello", north)
    other = sign_request(people, request_certificate(tmp_path / "other", north), north)
    with pytest.raises(VeilwoodError, match="not the one that owner north requested"):
        install_certificate(tmp_path / "north", other, north)
    install_certificate(tmp_path / "north", sign_request(people, request, north), north)
    with pytest.raises(VeilwoodError, match="has no open certificate request"):
        install_certificate(tmp_path / "north", sign_request(people, request, north), north)


def test_the_commands_of_enrolment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    set_up_roles(tmp_path / "roles", TASK, addresses=[Address("127.0.0.1", 1, 2)] * 3, keys=False)
    for _ in range(2):  # once more is a renewal
        assert main(["secure", "request", "roles/owner-north"]) == 0
        signing = ["secure", "sign", "roles", "roles/owner-north/request.pem", "owner north", "-o", "signed.pem"]
        assert main([*signing, "--force"]) == 0
        assert main(["secure", "install", "roles/owner-north", "signed.pem"]) == 0
    assert main(["secure", "request", "roles/owner-north"]) == 0
    assert main([*signing[:4], "owner south", "-o", "other.pem"]) != 0
