# SPDX-License-Identifier: Apache-2.0
"""Measure secure training between real processes: demo, network namespaces with latency, load, and a larger table.

python benchmarks/secure_roles.py [demo] [network] [load] [large]

Each part is stored in results/secure_roles.json, and all parts are written to results/secure_roles.md.

``network`` needs root on Linux (ip netns). Each server runs in its own namespace. Every byte between the namespaces
passes a bridge, where all packets are captured, and a relay that delays it by the one-way latency. If the kernel has
netem, it is used instead of the relay.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import veilwood as vw
from veilwood.errors import VeilwoodError
from veilwood_secure.mpc.engine import Stats
from veilwood_secure.roles.config import Address, Config, Task, set_up_roles
from veilwood_secure.roles.local import local_servers
from veilwood_secure.roles.owner import Owner, ServerConnections
from veilwood_secure.roles.program import program_for_task
from veilwood_secure.roles.user import User
from veilwood_testing.mpc_engines import PlainEngine

SCHEMA, X, Y = vw.datasets.car()
HALF = len(X) // 2
ROWS = {"north": slice(0, HALF), "south": slice(HALF, None)}
TASK = Task("car", SCHEMA.to_dict(), "2", dict.fromkeys(ROWS), ("analyst",), settings={"max_depth": 3})
RESULTS = Path(__file__).parent / "results"
GATE = "10.77.0.254"
NETWORK = [f"10.77.0.{party + 1}" for party in range(3)]


def cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds_of_training(owner: Owner) -> float:
    """Wait until all three servers have trained; servers do not tell how long it took, so the clock is here."""
    began = time.perf_counter()
    with ServerConnections(owner.config, owner.task, "status") as call:
        while True:
            found = call.receive_fields("phase", "failure")
            if all(server["phase"] == "trained" for server in found):
                call.send_fields(more=False)
                return time.perf_counter() - began
            if any(server["failure"] for server in found):
                raise VeilwoodError(f"not trained: {found}")
            time.sleep(0.005)
            call.send_fields(more=True)


def cost_of_training(task: Task, tables: dict[str, tuple[Any, Any]]) -> Stats:
    """Rounds and bytes of a server, counted by one process that runs the same protocol."""
    program, engine = program_for_task(task), PlainEngine()
    parts = {owner: program.encode_rows(owner, *table)[0] for owner, table in tables.items()}
    program.train(
        engine, {owner: {key: engine.constant(array) for key, array in part.items()} for owner, part in parts.items()}
    )
    return engine.stats


# -- the demo ----------------------------------------------------------------------------------------------------


def demo() -> list[str]:
    began, before = time.perf_counter(), os.times()
    run = subprocess.run(
        [sys.executable, "-m", "veilwood", "secure", "demo"], capture_output=True, text=True, check=True
    )
    took, after = time.perf_counter() - began, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    story = [line for line in run.stdout.splitlines() if " s  " in line[:10]]
    return [
        "## The demo",
        "",
        f"`veilwood secure demo` (six processes on loopback): {took:.0f} s, {used:.0f} CPU seconds of all processes "
        "together; most of it is importing, and five fits of the pooled rows.",
        "",
        "```text",
        *story,
        "```",
    ]


# -- three namespaces ----------------------------------------------------------------------------------------------


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def namespaces() -> Iterator[None]:
    """Three namespaces on one bridge, with this process at the gate."""
    tear_down()
    ip("link", "add", "vwbridge", "type", "bridge")
    ip("addr", "add", f"{GATE}/24", "dev", "vwbridge")
    ip("link", "set", "vwbridge", "up")
    try:
        for party, address in enumerate(NETWORK):
            ip("netns", "add", f"vw{party}")
            ip("link", "add", f"vwv{party}", "type", "veth", "peer", "name", "eth0", "netns", f"vw{party}")
            ip("link", "set", f"vwv{party}", "master", "vwbridge", "up")
            ip("-n", f"vw{party}", "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", f"vw{party}", "link", "set", "eth0", "up")
            ip("-n", f"vw{party}", "link", "set", "lo", "up")
        yield
    finally:
        tear_down()


def tear_down() -> None:
    for party in range(3):
        subprocess.run(["ip", "netns", "del", f"vw{party}"], capture_output=True)
    subprocess.run(["ip", "link", "del", "vwbridge"], capture_output=True)


class Relay:
    """Holds every byte for a while, one way, before it passes it on; rates are not limited."""

    def __init__(self, delay: float, routes: dict[int, tuple[str, int]]) -> None:
        self._delay, self._routes = delay, routes
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        started = threading.Event()
        threading.Thread(target=self._run, args=(started,), daemon=True).start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        for port, target in self._routes.items():
            begin = asyncio.start_server(lambda r, w, t=target: self._join(r, w, t), GATE, port)
            self._servers.append(self._loop.run_until_complete(begin))
        started.set()
        self._loop.run_forever()

    def stop(self) -> None:
        for server in self._servers:
            self._loop.call_soon_threadsafe(server.close)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: tuple[str, int]) -> None:
        far_reader, far_writer = await asyncio.open_connection(*target)
        for each in (writer, far_writer):
            each.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def hold() -> None:
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    with contextlib.suppress(OSError):
                        writer.close()
                    return
                writer.write(data)

        holding = asyncio.ensure_future(hold())
        data = b"start"
        while data:
            try:
                data = await reader.read(1 << 18)
            except OSError:
                data = b""
            waiting.put_nowait((time.monotonic() + self._delay, data))
        await holding


class Capture:
    """All packets on the bridge, as bytes."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
        self._socket.bind(("vwbridge", 0))
        self._socket.settimeout(0.5)
        self.packets: list[bytes] = []
        self._on = True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._on:
            with contextlib.suppress(TimeoutError):
                self.packets.append(self._socket.recv(1 << 16))

    def stop(self) -> bytes:
        time.sleep(1)
        self._on = False
        self._thread.join()
        return b"\n".join(self.packets)


def network(latency_ms: float = 10.0) -> list[str]:
    """Train and ask without and with a one-way latency."""
    quick, slow = one_network(0.0), one_network(latency_ms)
    extra = float(slow["train_s"]) - float(quick["train_s"])
    rounds = int(slow["rounds"])
    found = [*quick["found"], *slow["found"]]
    return [
        "## Three network namespaces",
        "",
        f"Three servers, each in a namespace of its own; owners and user at the gate. Car, {len(X)} rows, depth 3. The "
        f"latency is one way, added by {slow['by']}.",
        "",
        "| one-way latency | rounds of training | training, s | per round, ms | 1,728 answers, s | captured, MB |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row['delay']:g} ms | {row['rounds']} | {row['train_s']:.2f} | "
            f"{row['train_s'] / row['rounds'] * 1e3:.1f} | {row['ask_s']:.2f} | {row['captured'] / 1e6:.1f} |"
            for row in (quick, slow)
        ),
        "",
        f"The latency adds {extra:.2f} s to training, {extra / rounds * 1e3:.1f} ms for each of the {rounds} rounds of "
        f"the protocol. {latency_ms:g} ms a round are {rounds * latency_ms / 1e3:.2f} s: rounds explain the time. The "
        "rest is the session's own (calls, keys, agreements), less what is computed while messages travel.",
        "",
        f"Plaintext in the captures: {', '.join(map(repr, found)) or 'none'}. Searched for: names of the task, its "
        "columns and parties; words of the protocol; the first 64 bytes of every share stored at a server, of the "
        "one-hot rows and of the answers. A row sent without TLS from a namespace, for comparison, "
        f"{'is found' if quick['control'] and slow['control'] else 'IS NOT FOUND: the search is worthless'}.",
    ]


def delayed(delay_ms: float) -> str:
    """Let the kernel delay what leaves a namespace, or else say that a relay has to."""
    for party in range(3):
        command = ["tc", "-n", f"vw{party}", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", f"{delay_ms:g}ms"]
        if subprocess.run(command, capture_output=True).returncode:
            return "a relay at the bridge (this kernel has no netem)"
    return "netem"


def one_network(delay_ms: float) -> dict[str, Any]:
    """Train and ask across namespaces, with everything on the bridge captured."""
    rounds = cost_of_training(TASK, {owner: (X[rows], Y[rows]) for owner, rows in ROWS.items()}).rounds
    with namespaces(), tempfile.TemporaryDirectory() as name:
        folder, by = Path(name), delayed(delay_ms)
        places = NETWORK if by == "netem" else [GATE] * 3
        addresses = [Address(place, 7100 + party, 7200 + party) for party, place in enumerate(places)]
        relay = None
        if by != "netem":
            relay = Relay(delay_ms / 1e3, {base + p: (NETWORK[p], base + p) for p in range(3) for base in (7100, 7200)})
        set_up_roles(folder, TASK, addresses=addresses, listen=NETWORK)
        capture = Capture()
        processes = []
        for party in range(3):
            command = ["ip", "netns", "exec", f"vw{party}", sys.executable, "-m", "veilwood", "secure", "server"]
            with open(folder / f"server-{party}" / "log.txt", "wb") as log:
                processes.append(subprocess.Popen([*command, str(folder / f"server-{party}")], stdout=log, stderr=log))
        try:
            while not all(b"listens" in (folder / f"server-{p}" / "log.txt").read_bytes() for p in range(3)):
                time.sleep(0.1)
            for owner, rows in ROWS.items():
                Owner(folder / f"owner-{owner}").contribute(X[rows], Y[rows])
            seconds = seconds_of_training(Owner(folder / "owner-north"))
            with User(folder / "user-analyst") as analyst:
                analyst.predict(X[:1])  # opens the session
                began = time.perf_counter()
                labels = analyst.predict(X)
                ask = time.perf_counter() - began
        finally:
            for process in processes:
                process.terminate()
                process.wait()
            if relay is not None:
                relay.stop()
        with socket.create_server((GATE, 7999)):
            send = f"printf CONTROL,vhigh,2,more > /dev/tcp/{GATE}/7999"
            subprocess.run(["ip", "netns", "exec", "vw0", "bash", "-c", send], check=True)
            captured = capture.stop()
        return {
            "delay": delay_ms, "by": by, "rounds": rounds, "train_s": seconds, "ask_s": ask,
            "captured": len(captured), "found": [piece for piece in wanted(folder, labels) if piece in captured],
            "control": b"CONTROL,vhigh,2,more" in captured,
        }  # fmt: skip


def wanted(folder: Path, labels: np.ndarray) -> list[bytes]:
    """What must not be seen on the wire."""
    from veilwood_secure.roles.checkpoints import ModelStore
    from veilwood_secure.roles.hidden_programs import HiddenForest

    out = [b'"fingerprint"', b'"session"', b'"statement"', b'"rows"', TASK.name.encode() + b'"', b"analyst"]
    out += [column.name.encode() for column in SCHEMA.features]
    for party in range(3):
        config = Config.load(folder / f"server-{party}")
        stored = ModelStore(config.folder / "models", config.identity.secret, str(config.party_name)).load(TASK.name)
        out += [array.tobytes()[:64] for array in stored.arrays.values() if array.nbytes >= 16]
    arrays, _ = HiddenForest(TASK).encode_rows("north", X[:HALF], Y[:HALF])
    out += [array.astype(np.uint32).tobytes()[:64] for array in arrays.values()]
    out.append(",".join(map(str, labels[:8])).encode())
    return out


# -- load ----------------------------------------------------------------------------------------------------------


def load(users: int = 20, questions: int = 1000, batch: int = 50) -> list[str]:
    names = tuple(f"reader-{number}" for number in range(users))
    with local_servers(SCHEMA, epsilon=2, max_depth=3) as servers:
        request = replace(servers.owner("north").task, name="asked", users=names)
        servers.add_task(request)
        for owner, rows in ROWS.items():
            servers.owner(owner, "asked").contribute(X[rows], Y[rows])
        servers.owner("north", "asked").wait(120)
        with servers.user(names[0], "asked") as first:
            truth = first.predict(X)
        faults: list[str] = []

        def ask(name: str, seed: int) -> None:
            rng = np.random.default_rng(seed)
            try:
                with servers.user(name, "asked") as user:
                    for _ in range(questions // batch):
                        rows = rng.integers(0, len(X), batch)
                        if not np.array_equal(user.predict(X.iloc[rows]), truth[rows]):
                            faults.append(name)
            except VeilwoodError as error:
                faults.append(str(error))

        pids = [process.pid for process in servers.processes if process is not None]
        before, began = [cpu(pid) for pid in pids], time.perf_counter()
        threads = [threading.Thread(target=ask, args=(name, seed)) for seed, name in enumerate(names)]
        for thread in threads:
            thread.start()
        for owner, rows in ROWS.items():
            servers.owner(owner, "car").contribute(X[rows], Y[rows])
        servers.owner("north", "car").wait(300)
        trained = time.perf_counter() - began
        for thread in threads:
            thread.join()
        took = time.perf_counter() - began
        used = max(cpu(pid) - start for pid, start in zip(pids, before, strict=True))
    return [
        "## Load",
        "",
        f"{users} users ask {questions:,} questions each, {batch} at a time, while a second job trains on {len(X)} "
        f"rows: {users * questions:,} answers in {took:.1f} s ({users * questions / took:,.0f} a second; the users "
        f"share the machine), the second job trained after {trained:.1f} s, {used:.1f} CPU seconds at the busiest "
        f"server. Wrong answers or errors: {len(faults) or 'none'}.",
    ]


# -- a larger table --------------------------------------------------------------------------------------------------


def large(rows: int = 26_120, features: int = 12, values: int = 7, depth: int = 4) -> list[str]:
    rng = np.random.default_rng(0)
    words = [str(value) for value in range(values)]
    columns = [{"name": f"x{i}", "kind": "categorical", "values": words} for i in range(features)]
    target = {"name": "y", "kind": "categorical", "values": ["no", "yes"]}
    facts = {"name": "large", "task": "classification", "target": "y", "columns": [*columns, target]}
    codes = rng.integers(0, values, (rows, features))
    table = pd.DataFrame(codes.astype(str), columns=[f"x{i}" for i in range(features)])
    label = np.where(codes[:, 0] + codes[:, 3] + rng.integers(0, 3, rows) > values, "yes", "no")
    half = rows // 2
    with local_servers(vw.Schema.from_dict(facts), epsilon=1, max_depth=depth) as servers:
        pids = [process.pid for process in servers.processes if process is not None]
        before, began = [cpu(pid) for pid in pids], time.perf_counter()
        servers.owner("north").contribute(table[:half], label[:half])
        servers.owner("south").contribute(table[half:], label[half:])
        shared = time.perf_counter() - began
        seconds = seconds_of_training(servers.owner("north"))
        used = max(cpu(pid) - start for pid, start in zip(pids, before, strict=True))
        memory = max(int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) for pid in pids)
        task = servers.owner("north").task
    cost = cost_of_training(task, {"north": (table[:half], label[:half]), "south": (table[half:], label[half:])})
    return [
        "## A table of the shape of Adult",
        "",
        f"{rows:,} rows x {features} features of {values} values, hidden tree of depth {depth}, all on one machine: "
        f"rows shared and checked in {shared:.1f} s; trained in {seconds:.1f} s, {cost.rounds} rounds, "
        f"{cost.bytes_sent / 1e6:.0f} MB sent by a server; {used:.1f} CPU seconds and {memory / 1024:.0f} MB at "
        "the busiest server, TLS included.",
    ]


PARTS = {"demo": demo, "network": network, "load": load, "large": large}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    options = parser.parse_args()
    file = RESULTS / "secure_roles.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    for part in options.parts:
        busy = os.getloadavg()[0]
        kept[part] = {"load": busy, "cores": os.cpu_count(), "lines": PARTS[part]()}
        print("\n".join(kept[part]["lines"]), flush=True)
        file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        write(kept)


def write(kept: dict[str, Any]) -> None:
    lines = ["# Secure training between processes", "", "`python benchmarks/secure_roles.py`, part by part."]
    for part in PARTS:
        if part in kept:
            (title, *text), busy = kept[part]["lines"], f"load average {kept[part]['load']:.1f} at the start"
            lines += ["", title, "", f"{kept[part]['cores']} cores, {busy}.", *text]
    (RESULTS / "secure_roles.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
