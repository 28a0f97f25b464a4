# SPDX-License-Identifier: Apache-2.0
"""How many free predictions a second one process of the service answers, over HTTP on loopback.

Starts ``veilwood serve`` with its own command, trains a PrivateForest on the cars by the routes that people use, and
lets wrk ask for ten rows at a time. The machine should be idle: wrk and the service share its cores.

    python benchmarks/service.py > benchmarks/results/service.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

import veilwood as vw

ROWS = 10
CONNECTIONS = (1, 4, 16, 32)
CAR = vw.datasets.car()


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def prepare(address: str, invitation: str) -> tuple[str, str]:
    """Train a model; return its number and a token that may ask."""
    with httpx.Client(base_url=address, timeout=60, transport=httpx.HTTPTransport(retries=8)) as client:

        def call(method: str, path: str, **more: Any) -> Any:
            return client.request(method, path, **more).raise_for_status().json()

        first = {"invitation": invitation, "name": "bench", "password": "only for this minute"}
        client.headers["X-CSRF-Token"] = call("POST", "/v1/accounts/first", json=first)["csrf"]
        token = call("POST", "/v1/tokens", json={"name": "bench", "scopes": ["ask"], "days": 1})["token"]
        call("POST", "/v1/datasets", json={"name": "cars", "people": "makers of cars", "epsilon": 3})
        table = CAR.X.assign(**{str(CAR.y.name): CAR.y}).to_csv(index=False).encode()
        call("PUT", "/v1/datasets/cars/table", content=table, headers={"Content-Type": "text/csv"})
        call("PUT", "/v1/datasets/cars/schema", json=CAR.schema.to_dict())
        plan = call("POST", "/v1/datasets/cars/plans", json={"epsilon": 1})
        call("POST", f"/v1/plans/{plan['id']}/signature", json={"fingerprint": plan["fingerprint"]})
        job = call("POST", f"/v1/plans/{plan['id']}/jobs")["id"]
        while (state := call("GET", f"/v1/jobs/{job}")["state"]) in ("queued", "running"):
            time.sleep(0.2)
        assert state == "done", call("GET", f"/v1/jobs/{job}")["detail"]
        return job, token


def memory(process: int) -> float:
    """Resident memory of a process, in MiB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def measure(url: str, script: Path, connections: int, seconds: int) -> dict[str, Any]:
    """Let wrk ask as fast as it is answered."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(script), url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in text or "Socket errors" in text:
        raise SystemExit(f"some requests failed:\n{text}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    times = dict(re.findall(r"(50|99)%\s+([\d.]+\w+)", text))
    assert rate is not None
    return {"connections": connections, "rate": float(rate[1]), "p50": times["50"], "p99": times["99"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=15, help="for each number of connections")
    parser.add_argument("--soak", type=int, default=60, help="seconds over which memory is watched")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed")
    port, place = free_port(), tempfile.mkdtemp()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "veilwood", "serve", f"{place}/service", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            model, token = prepare(address, process.stdout.readline().strip().split("invitation=")[1])
            body = json.dumps(json.dumps({"rows": CAR.X[:ROWS].to_dict("records")}))
            script = Path(place) / "ask.lua"
            script.write_text(
                f'wrk.method="POST"\nwrk.body={body}\nwrk.headers["Content-Type"]="application/json"\n'
                f'wrk.headers["Authorization"]="Bearer {token}"\n'
            )
            url = f"{address}/v1/models/{model}/predict"
            measure(url, script, 4, 3)  # compiled and warm
            found = [measure(url, script, connections, options.seconds) for connections in CONNECTIONS]
            before = memory(process.pid)
            soak = measure(url, script, 16, options.soak)
            after = memory(process.pid)
        finally:
            process.terminate()
            process.wait()
            shutil.rmtree(place)
    print("# Predictions over HTTP\n")
    print(f"Requests of {ROWS} rows to one process, PrivateForest on `car`, {os.cpu_count()} cores shared with wrk, ")
    print(f"load of the machine {os.getloadavg()[0]:.1f} at the end, Python {platform.python_version()}.\n")
    print("| connections | requests a second | p50 | p99 |\n|---:|---:|---:|---:|")
    for one in found:
        print(f"| {one['connections']} | {one['rate']:.0f} | {one['p50']} | {one['p99']} |")
    asked = int(soak["rate"] * options.soak)
    print(f"\nMemory of the process before and after {asked:,} more requests in {options.soak} s: ", end="")
    print(f"{before:.0f} MiB and {after:.0f} MiB.")


if __name__ == "__main__":
    main()
