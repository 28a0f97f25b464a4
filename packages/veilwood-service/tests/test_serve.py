# SPDX-License-Identifier: Apache-2.0
"""The command that starts a service, and those that copy one."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("fastapi")
import httpx

from veilwood.errors import SetupError
from veilwood_service.commands import _check_port, serve, service_commands
from veilwood_testing.errors import rejects
from veilwood_testing.processes import free_ports
from veilwood_testing.running_service import PASSWORD, serving


def test_a_service_starts_in_one_command_and_prints_how_to_begin(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "veilwood", serve.__name__, str(tmp_path / "service"), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"Veilwood at http://127.0.0.1:{port}\n"
        word = process.stdout.readline().strip().split("#first=")[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=httpx.HTTPTransport(retries=8)) as client:
            request = {"invitation": word, "name": "anna", "password": PASSWORD}
            assert client.post("/v1/accounts/accept", json=request).status_code == 200
            assert client.get("/v1/session").json()["name"] == "anna"
            assert client.get("/healthz").json()["status"] == "alive"
        process.terminate()
        assert process.wait(30) in (0, -signal.SIGTERM)
    assert (tmp_path / "service").stat().st_mode & 0o077 == 0


def test_a_port_that_is_taken_is_refused_before_a_link_is_printed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, rejects(SetupError, raised_in="_check_port"):
        _check_port("127.0.0.1", taken.getsockname()[1])
    with rejects(SetupError, raised_in="_check_port"):
        _check_port("256.0.0.1", 8400)


def test_a_service_speaks_tls_by_itself(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(make, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("openssl is not installed")
    command = [sys.executable, "-m", "veilwood", "serve", str(tmp_path / "service"), "--port", str(port)]
    command += ["--certfile", str(certificate), "--keyfile", str(key)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"Veilwood at https://127.0.0.1:{port}\n"
        word = process.stdout.readline().strip().split("#first=")[1]
        trusted = ssl.create_default_context(cafile=str(certificate))
        transport = httpx.HTTPTransport(retries=8, verify=trusted)
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", transport=transport) as client:
            request = {"invitation": word, "name": "anna", "password": PASSWORD}
            cookie = client.post("/v1/accounts/accept", json=request).headers["set-cookie"].lower()
        assert "secure" in cookie
        process.terminate()


def test_a_service_is_copied_and_brought_back(tmp_path: Path) -> None:
    with serving(tmp_path / "one") as running:
        running.add_cars()
    run = CliRunner().invoke
    wrote = run(service_commands, ["backup", str(tmp_path / "one"), "-o", str(tmp_path / "copy.tar")])
    assert "private rows" in wrote.output
    back = run(service_commands, ["restore", str(tmp_path / "copy.tar"), str(tmp_path / "two")])
    assert back.output.startswith("Frozen: cars.")
    assert run(service_commands, ["freeze", str(tmp_path / "two")]).output.startswith("Frozen: cars.")
