# SPDX-License-Identifier: Apache-2.0
"""The demonstration from a fresh clone, as a newcomer starts it: looked at, stopped amid a job, and started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
import httpx

from veilwood_service.client import Client
from veilwood_testing.processes import free_ports
from veilwood_testing.running_service import CAR, PASSWORD, Logbook, wait_until_ready

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git holds, and nothing else that lies about here."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not in a git repository")
    folder = tmp_path_factory.mktemp("newcomer") / "veilwood"
    safe = ["-c", f"safe.directory={ROOT}", "-c", f"safe.directory={ROOT / '.git'}"]
    subprocess.run(["git", *safe, "clone", "-q", "--no-hardlinks", str(ROOT), str(folder)], check=True)
    return folder


@contextmanager
def started(clone: Path, logbook: Logbook, name: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """Run ``veilwood serve --demo`` of the clone; give its process, its address and what it printed."""
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "veilwood", "serve", "--demo", "--port", str(port)]
    place = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, clone.glob("packages/*/src")))}
    with (
        (logbook.folder / f"{name}.log").open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=clone, env=place, start_new_session=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            printed = [process.stdout.readline()]
            wait_until_ready(port)
            yield process, f"http://127.0.0.1:{port}", printed
        finally:
            process.kill()


def wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not what():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_newcomer_looks_around_stops_it_and_finds_everything_again(clone: Path, logbook: Logbook) -> None:
    where = "import veilwood; print(veilwood.__file__)"
    place = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, clone.glob("packages/*/src")))}
    found = subprocess.run([sys.executable, "-c", where], env=place, cwd=clone, check=True, capture_output=True)
    assert Path(found.stdout.decode().strip()).is_relative_to(clone)

    with started(clone, logbook, "first") as (process, address, printed), httpx.Client(base_url=address) as page:
        assert printed == [f"Veilwood at {address}\n"]
        assert process.stdout is not None
        link = process.stdout.readline().removeprefix("First account: ").strip()
        assert page.get(link.split("#")[0]).status_code == 200
        request = {"name": "anna", "password": PASSWORD, "invitation": link.split("first=")[1]}
        word = {"X-CSRF-Token": page.post("/v1/accounts/accept", json=request).json()["csrf"]}
        (cars,) = page.get("/v1/datasets").json()
        assert (cars["name"], cars["has_table"], cars["has_schema"]) == ("cars", True, True)
        (model,) = page.get("/v1/models").json()
        rows = {"rows": CAR.X[:3].to_dict("records")}
        answer = page.post(f"/v1/models/{model['id']}/predict", json=rows, headers=word).json()
        assert len(answer["predictions"]) == 3
        scopes = ["plan", "sign", "run", "records", "ask"]
        token = page.post("/v1/tokens", json={"name": "script", "scopes": scopes}, headers=word).json()["token"]
        with Client(address, token) as client:
            plan = client.plan("cars", epsilon=0.5)
            client.sign(plan["id"], plan["fingerprint"])
        job = page.post(f"/v1/plans/{plan['id']}/jobs", headers=word).json()["id"]
        wait_for(lambda: page.get(f"/v1/jobs/{job}").json()["state"] != "queued")
        os.killpg(process.pid, signal.SIGINT)  # Ctrl-C in a terminal, which all processes of the command hear
        assert process.wait(60) in (0, 130, -signal.SIGINT)

    with started(clone, logbook, "second") as (_, address, _), Client(address, token) as client:
        again = client.predict(model["id"], CAR.X[:3])
        assert again == answer
        wait_for(lambda: client.job(job)["state"] not in ("queued", "running"))
        assert client.job(job)["state"] == "done", "what was stopped goes on"
        assert client.ledger("cars")["spent"] == "epsilon=1.5", "and is charged once"
