# SPDX-License-Identifier: Apache-2.0
"""The compose file and the systemd unit, carried out in namespaces: no engine of containers runs in a test.

What they ask for is read from them: user, read-only root, writable folders, capabilities, address, proxy.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("yaml")

import yaml  # type: ignore[import-untyped]

from veilwood_service.client import Client
from veilwood_testing import ROOT
from veilwood_testing.processes import running_postgres
from veilwood_testing.running_service import CAR, CSV, PASSWORD, SMALL_JOB

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "ip", "mount"))),
        reason="needs root, for namespaces",
    ),
]
COMPOSE: Any = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
UNIT = (ROOT / "deploy" / "veilwood.service").read_text()
IMAGE = (ROOT / "deploy" / "Containerfile").read_text()
PYTHON = shutil.which("python3.11", path="/usr/bin:/usr/local/bin") or sys.executable  # one that every user may read
NETWORK = "vwdeploy"


def of_unit(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)


@contextmanager
def namespace(subnet: str, gateway: str) -> Iterator[str]:
    """A network of its own, joined to this machine as the network of a compose file is; yield the address in it."""
    prefix, inner = subnet.split("/")[1], gateway.rsplit(".", 1)[0] + ".2"
    words = [
        f"netns add {NETWORK}", f"link add {NETWORK}0 type veth peer name {NETWORK}1 netns {NETWORK}",
        f"addr add {gateway}/{prefix} dev {NETWORK}0", f"link set {NETWORK}0 up",
        f"-n {NETWORK} addr add {inner}/{prefix} dev {NETWORK}1", f"-n {NETWORK} link set {NETWORK}1 up",
        f"-n {NETWORK} link set lo up",
    ]  # fmt: skip
    try:
        for line in words:
            subprocess.run(["ip", *line.split()], check=True)
        yield inner
    finally:
        subprocess.run(["ip", "link", "del", f"{NETWORK}0"], check=False)
        subprocess.run(["ip", "netns", "del", NETWORK], check=False)


@contextmanager
def contained(
    writable: dict[Path, str], user: int, command: list[str], environment: dict[str, str], hosts: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """Run a command without privileges under a read-only root, as process 1 of its namespaces.

    ``writable`` maps folders of the machine to their places.
    """
    lines = ["set -e", "mount --make-rprivate /", "mount -t proc proc /proc", "mount -t tmpfs -o mode=1777 tmpfs /tmp"]
    lines.insert(3, "mount -t tmpfs tmpfs /srv")
    for folder, place in writable.items():  # before the new /tmp hides them
        os.chown(folder, user, user)
        folder.chmod(0o700)
        lines.insert(4, f"mkdir -p {place} && mount --bind {folder} {place}")
    lines += [f"printf '{hosts}\\n' > /srv/hosts", "mount --bind /srv/hosts /etc/hosts"] if hosts else []
    lines += ["mount -o remount,bind,ro /", "mount -o remount,ro /srv"]
    words = [f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
    # The libraries of this environment, from an interpreter that the user may read.
    paths = ":".join(path for path in sys.path if path and Path(path).exists())
    given = {"PATH": "/usr/bin:/bin", "PYTHONPATH": paths, **environment}
    visible = " ".join(f"{name}='{value}'" for name, value in given.items())
    program = " ".join(f"'{word}'" for word in command)
    lines.append(f"exec setpriv {' '.join(words)} --inh-caps=-all env -i {visible} {program}")
    outer = ["ip", "netns", "exec", NETWORK, "unshare", "--mount", "--pid", "--fork", "--ipc", "--uts"]
    with subprocess.Popen([*outer, "bash", "-c", "\n".join(lines)], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill process 1 of the namespaces, and with it everything in them."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    process.wait(20)


def started(process: subprocess.Popen[str]) -> str:
    """Return the link that a service prints when it listens."""
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Veilwood at ")
    return process.stdout.readline().strip()


def entry_point(words: list[str]) -> list[str]:
    """Return the command of the image or the unit, by the interpreter of this test."""
    assert words[0] == "/opt/veilwood/bin/veilwood"
    return [PYTHON, "-m", "veilwood", *words[1:]]


def test_the_compose_file_serves_trains_and_survives_kills(tmp_path: Path) -> None:
    service, (network,) = COMPOSE["services"]["veilwood"], COMPOSE["networks"]["default"]["ipam"]["config"]
    assert (service["read_only"], service["cap_drop"], service["tmpfs"]) == (True, ["ALL"], ["/tmp"])
    entry = re.findall(r'"([^"]+)"', re.findall(r"^ENTRYPOINT (.*)$", IMAGE, re.MULTILINE)[0])
    words = [word if "$" not in word else "https://forest.example" for word in service["command"]]
    command, user = entry_point([*entry, *words]), int(re.findall(r"--uid (\d+)", IMAGE)[0])
    rules, folder = tmp_path / "pg_hba.conf", tmp_path / "volume"
    rules.write_text("local all all trust\nhost all all 172.30.84.0/24 trust\n")
    for path in (tmp_path, *tmp_path.parents[:3]):
        path.chmod(0o755)
    folder.mkdir()
    with (
        namespace(network["subnet"], network["gateway"]) as inner,
        running_postgres(listen_addresses=network["gateway"], hba_file=str(rules)) as database,
    ):
        subprocess.run(["psql", "-q", database, "-c", "CREATE DATABASE veilwood"], check=True)
        environment = {"VEILWOOD_DATABASE": service["environment"]["VEILWOOD_DATABASE"], "HOME": "/tmp"}
        environment |= {"NUMBA_CACHE_DIR": "/tmp/numba", "PYTHONDONTWRITEBYTECODE": "1"}
        given = ({folder: "/srv/veilwood"}, user, command, environment, f"{network['gateway']} database")
        with contained(*given) as process:
            link = started(process)
            address = f"http://{inner}:8400"
            assert httpx.get(f"{address}/readyz", timeout=10).status_code in (200, 503)
            guesses = [guess(address, f"198.51.100.{i}, 203.0.113.9") for i in range(12)]
            assert guesses == [401] * 10 + [429] * 2  # the proxy appends the true address; what is before is forged
            with Client(address) as client:
                accept(client, link)
                token = client.issue_token("test", ["data", "sign", "plan", "run", "ask", "records"])
            with Client(address, token) as client:
                client.add_dataset("cars", "makers of cars", 3)
                (tmp_path / "cars.csv").write_bytes(CSV)
                client.upload("cars", tmp_path / "cars.csv")
                client.set_schema("cars", CAR.schema.to_dict())
                facts = dict(SMALL_JOB)
                plan = client.plan("cars", facts["estimator"], epsilon=facts["epsilon"], **facts["parameters"])
                client.sign(plan["id"], plan["fingerprint"])
                job = client._request_record("POST", f"/v1/plans/{plan['id']}/jobs")["id"]
                while client.job(job)["state"] == "queued":
                    time.sleep(0.05)
            kill(process)  # amid the job; the next process has the same name and number
        with contained(*given) as process:
            assert process.stdout is not None
            process.stdout.readline()
            with Client(address, token) as client:
                deadline = time.monotonic() + 120
                while client.job(job)["state"] in ("queued", "running"):
                    assert time.monotonic() < deadline
                    time.sleep(0.5)
                assert client.job(job)["state"] == "done"
                assert [one["id"] for one in client.models()] == [job]
                assert client.ledger("cars")["spent"] == "epsilon=0.5"
                assert client.predict(job, CAR.X[:1])["predictions"]


def accept(client: Client, link: str) -> None:
    """Create the first account as behind a proxy that ends TLS: browsers keep the cookie for https."""
    client.accept(link.partition("first=")[2], PASSWORD, "anna")
    (cookie,) = client._http.cookies.jar
    assert (cookie.name, cookie.secure) == ("__Host-veilwood_session", True)
    client._http.headers["Cookie"] = f"{cookie.name}={cookie.value}"


def guess(address: str, forwarded: str) -> int:
    """Guess a password through a proxy, which appends the address that it sees."""
    body = {"name": "root", "password": "a long enough guess"}
    return httpx.post(
        f"{address}/v1/session", json=body, headers={"X-Forwarded-For": forwarded}, timeout=30
    ).status_code


def test_the_unit_serves_with_its_folders_and_its_rights_alone(tmp_path: Path) -> None:
    assert (of_unit("ProtectSystem"), of_unit("NoNewPrivileges"), of_unit("CapabilityBoundingSet")) == (
        ["strict"],
        ["yes"],
        [""],
    )
    (line,), (limit,) = of_unit("ExecStart"), of_unit("LimitNOFILE")
    assert int(limit) > 4000  # connections
    environment = dict(word.split("=", 1) for line in of_unit("Environment") for word in line.split())
    state, cache = tmp_path / "state", tmp_path / "cache"
    for path in (tmp_path, *tmp_path.parents[:3]):
        path.chmod(0o755)
    state.mkdir()
    cache.mkdir()
    environment = {name: value.replace("/var/cache/veilwood", "/srv/cache") for name, value in environment.items()}
    command = entry_point(line.split())
    command = [word.replace("/var/lib/veilwood", "/srv/veilwood") for word in command] + ["--host", "0.0.0.0"]
    folders = {state: "/srv/veilwood", cache: "/srv/cache"}
    with (
        namespace("172.30.85.0/24", "172.30.85.1") as inner,
        contained(folders, 10002, command, environment) as process,
        Client(f"http://{inner}:8400") as client,
    ):
        accept(client, started(process))
        assert client.accounts()[0]["name"] == "anna"
        files = {path.name: path.stat().st_mode & 0o777 for path in state.iterdir()}
        assert (files["service.db"], files["tables"]) == (0o600, 0o700)
    if shutil.which("systemd-analyze"):
        copy = tmp_path / "veilwood.service"
        copy.write_text(UNIT.replace(line.split()[0], "/usr/bin/true"))  # which every machine has
        for command in (["verify"], ["security", "--offline=true", "--threshold=20"]):
            checked = subprocess.run(["systemd-analyze", *command, str(copy)], capture_output=True, check=False)
            assert (checked.returncode, checked.stderr) == (0, b""), command
