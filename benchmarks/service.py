# SPDX-License-Identifier: Apache-2.0
"""Measure how many free predictions per second one process of the service answers, over HTTP on loopback.

The script starts ``veilwood serve`` with its own command, trains a PrivateForest on Car over the public routes, and
has wrk send ten rows per request: once at full speed, and once at a fixed rate, with a pause after each connection's
requests; then one row per request, while a stranger without an account sends bodies of 8 MiB, one after the other. Next
to times it reports CPU seconds per request, which other load on the machine affects less. At the end it observes memory
for ten minutes. wrk and the service share the cores.

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
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

import veilwood as vw

ROWS = 10
CONNECTIONS = (1, 4, 16, 32)
RATE = 1000  # requests a second, wanted
SINGLE_PAUSE = 5  # milliseconds, on average, before each of 16 connections sends the next row
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
        client.headers["X-CSRF-Token"] = call("POST", "/v1/accounts/accept", json=first)["csrf"]
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


@contextmanager
def stranger(address: str) -> Iterator[list[int]]:
    """Send bodies of 8 MiB without a token to two routes, in turn; yield the statuses of the answers."""
    answers, is_over = list[int](), threading.Event()
    paths = ("/v1/models/x/answers", "/v1/session")
    body = b'{"a":{}},' * ((8 << 20) // 9)

    def send() -> None:
        while not is_over.is_set():
            with suppress(httpx.HTTPError), httpx.Client(base_url=address, timeout=20) as client:
                answers.append(client.post(paths[len(answers) % 2], content=body).status_code)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield answers
    finally:
        is_over.set()
        thread.join()


def memory(process: int) -> float:
    """Resident memory of a process, in MiB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def worked(process: int) -> float:
    """Seconds that the processor has worked for a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def write_script(path: Path, body: str, token: str, pause: float = 0) -> Path:
    """Write what wrk sends, and how many milliseconds a connection waits before it sends the next."""
    path.write_text(
        f'wrk.method="POST"\nwrk.body={body}\nwrk.headers["Content-Type"]="application/json"\n'
        f'wrk.headers["Authorization"]="Bearer {token}"\n'
        + (f"function delay() return math.random({int(2 * pause)}) end\n" if pause else "")
    )
    return path


def measure(process: int, url: str, script: Path, connections: int, seconds: int) -> dict[str, Any]:
    """Let wrk ask; return how many requests were answered a second, how fast, and how much work each was."""
    before = worked(process)
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(script), url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in text or "Socket errors" in text:
        raise SystemExit(f"some requests failed:\n{text}")
    rate, count = re.search(r"Requests/sec:\s+([\d.]+)", text), re.search(r"(\d+) requests in", text)
    times = dict(re.findall(r"(50|99)%\s+([\d.]+\w+)", text))
    assert rate is not None
    assert count is not None
    work = (worked(process) - before) / int(count[1])
    return {"connections": connections, "rate": float(rate[1]), "p50": times["50"], "p99": times["99"], "work": work}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=15, help="for each number of connections")
    parser.add_argument("--soak", type=int, default=600, help="seconds over which memory is watched")
    parser.add_argument("--soak-rate", type=int, default=100, help="requests a second meanwhile")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed")
    port, place = free_port(), tempfile.mkdtemp()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "veilwood", "serve", f"{place}/service", "--port", str(port)]
    command += ["--limit", "requests_a_minute=10000000"]  # one caller is refused above 2,000 a second otherwise
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            model, token = prepare(address, process.stdout.readline().strip().split("first=")[1])
            body = json.dumps(json.dumps({"rows": CAR.X[:ROWS].to_dict("records")}))
            fast = write_script(Path(place) / "fast.lua", body, token)
            url = f"{address}/v1/models/{model}/predict"
            asked = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            httpx.post(url, content=json.loads(body), headers=asked, timeout=120).raise_for_status()  # compiled
            measure(process.pid, url, fast, 4, 3)  # and warm
            found = [("as fast as it can", measure(process.pid, url, fast, c, options.seconds)) for c in CONNECTIONS]
            one_row = json.dumps(json.dumps({"rows": CAR.X[:1].to_dict("records")}))
            single = write_script(Path(place) / "single.lua", one_row, token)
            found.append(("one row", measure(process.pid, url, single, 16, options.seconds)))
            steady = write_script(Path(place) / "steady.lua", one_row, token, SINGLE_PAUSE)
            found.append(("one row, about 2400 a second", measure(process.pid, url, steady, 16, options.seconds)))
            with stranger(address) as refused:
                found.append(("one row, beside a stranger", measure(process.pid, url, single, 16, options.seconds)))
                how = "about 2400 a second, beside a stranger"
                found.append((f"one row, {how}", measure(process.pid, url, steady, 16, options.seconds)))
            assert set(refused) <= {401, 413}
            pause = 1000 * 32 / RATE - 3  # of 32 connections, each of which waits for its answer, too
            paced = write_script(Path(place) / "paced.lua", body, token, pause)
            found.append((f"about {RATE} a second", measure(process.pid, url, paced, 32, 2 * options.seconds)))
            load = os.getloadavg()[0]
            slow = write_script(Path(place) / "slow.lua", body, token, 1000 * 4 / options.soak_rate)
            watched = [memory(process.pid)]
            for _ in range(10):
                soaked = measure(process.pid, url, slow, 4, options.soak // 10)
                watched.append(memory(process.pid))
        finally:
            process.terminate()
            process.wait()
            shutil.rmtree(place)
    print("# Predictions over HTTP\n")
    print(f"Requests of {ROWS} rows to one process, PrivateForest on `car`, {os.cpu_count()} cores shared with wrk, ")
    print(f"load of the machine {load:.1f} after times were measured, Python {platform.python_version()}.", end="")
    if os.sched_getscheduler(0) == os.SCHED_RR:  # other load waits, and the kernel stops all for 50 ms in each second
        print(" Service, wrk and stranger ran with real-time priority (chrt -r 5).")
        print(
            "Linux pauses a processor that they keep busy for 50 ms in every second: the 99 % time at full speed.",
            end="",
        )
    print("\n")
    print(f"The stranger was refused {len(refused)} times.\n")
    print("| asked | connections | requests a second | p50 | p99 | CPU ms a request |\n|---|---:|---:|---:|---:|---:|")
    for how, one in found:
        print(f"| {how} | {one['connections']} | {one['rate']:.0f} | {one['p50']} | {one['p99']} ", end="")
        print(f"| {1000 * one['work']:.2f} |")
    print(f"\nMemory of the process, in MiB, before and after each tenth of {options.soak} s at about ", end="")
    print(f"{soaked['rate']:.0f} requests a second: {', '.join(f'{size:.0f}' for size in watched)}.")


if __name__ == "__main__":
    main()
