# SPDX-License-Identifier: Apache-2.0
"""Roles as processes that are killed, frozen and overloaded: clean errors, nothing in clear, and all goes on after.

Who is let in and what is refused is in test_secure_roles.py.
"""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import os
import random
import re
import shutil
import signal
import struct
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.errors import PartyError, VeilwoodError
from veilwood_secure.roles import owner as client_module
from veilwood_secure.roles import training
from veilwood_secure.roles.config import Config
from veilwood_secure.roles.local import local_servers
from veilwood_secure.roles.owner import Owner, ServerConnections
from veilwood_secure.roles.server import Server
from veilwood_secure.roles.transport import Channel, exchange_until
from veilwood_secure.roles.uploads import piece_row_counts, share_size
from veilwood_secure.roles.user import User
from veilwood_testing.secure_roles import (
    CAR_ROWS,
    CAR_SCHEMA,
    CAR_X,
    CAR_Y,
    assert_nothing_in_clear,
    expected_predictions,
)

pytestmark = pytest.mark.slow

FEW = slice(None, None, len(CAR_X) // 100)
KILLS = {"hidden-tree": 200, "forest-on-shares": 40, "public-forest": 200}
KILLS_A_SESSION = 2


# -- killed at random points -----------------------------------------------------------------------------------

fork = multiprocessing.get_context("forkserver")
fork.set_forkserver_preload([f"veilwood_secure.roles.{role}" for role in ("server", "owner", "user")])


def serve(folder: Path, ready: Connection) -> None:
    training.RETRY_DELAYS_S = (0.1, 0.2, 0.5)  # type: ignore[misc,assignment]
    logging.basicConfig(filename=folder / "log.txt", level=logging.INFO)
    Server(Config.load(folder)).start()
    ready.send("listens")
    signal.pause()


def play(role: str, folder: Path, word: Connection) -> None:
    """Be an owner or a user, and report how it ended."""
    client_module._POLL_INTERVAL_S = client_module._RETRY_DELAY_S = 0.1
    word.send(("begins", ""))
    try:
        if role.startswith("owner"):
            take_part(Owner(folder / role))
        else:
            with User(folder / role) as user:
                for _ in range(20):
                    user.predict(CAR_X[FEW])
        word.send(("done", ""))
    except VeilwoodError as error:
        word.send(("refused", str(error)))
    except BaseException as error:
        word.send(("broken", repr(error)))


def take_part(client: Owner) -> None:
    """Share rows, unless the other owner's met those of this one from before a kill, and the training has begun."""
    rows = slice(0, 50) if client.config.name == "north" else slice(50, 100)
    if client.participates:
        client.participate(CAR_X[FEW][rows], CAR_Y[FEW][rows])
        return
    try:
        client.contribute(CAR_X[FEW][rows], CAR_Y[FEW][rows])
    except PartyError as error:
        if "is being trained" not in str(error) and "is already trained" not in str(error):
            raise
    client.wait()


class Cast:
    """The processes of all roles; any of them can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers: dict[int, BaseProcess] = {}

    def raise_the_dead(self) -> None:
        for party in range(3):
            if party not in self.servers or not self.servers[party].is_alive():
                near, far = fork.Pipe()
                process = fork.Process(target=serve, args=(self.folder / f"server-{party}", far), daemon=True)
                process.start()
                assert near.recv() == "listens"
                self.servers[party] = process

    def begin(self, *roles: str) -> dict[str, tuple[BaseProcess, Connection]]:
        running: dict[str, tuple[BaseProcess, Connection]] = {}
        for role in roles:
            near, far = fork.Pipe()
            process = fork.Process(target=play, args=(role, self.folder, far), daemon=True)
            process.start()
            far.close()
            running[role] = (process, near)
        for _, word in running.values():  # imports are behind them: from here on a kill hits the work
            assert word.recv() == ("begins", "")
        return running

    def owner(self, name: str) -> Owner:
        return Owner(self.folder / f"owner-{name}")

    def has_model(self) -> bool:
        found = self.owner("north").status()
        while any(server["phase"] == "training" for server in found):  # by rows that had arrived before the kill
            time.sleep(0.1)
            found = self.owner("north").status()
        trainings = {server["training"] for server in found}
        return len(trainings) == 1 and None not in trainings

    def train(self) -> None:
        with ThreadPoolExecutor(2) as owners:
            list(owners.map(lambda owner: take_part(self.owner(owner)), CAR_ROWS))

    def kill(self, process: BaseProcess) -> None:
        process.kill()
        process.join()
        self.raise_the_dead()

    def ending(self, role: str, word: Connection, victims: list[str]) -> tuple[str, str]:
        """How somebody ended that was not killed: one that waits for an owner that was, waits."""
        until = time.monotonic() + 90
        while not word.poll(0.5):
            assert time.monotonic() < until, f"{victims} killed: {role} does not end"
            if victims[0].startswith("owner") and self.owner("north").status()[0]["missing"]:
                return "waits", ""
        return word.recv()  # type: ignore[no-any-return]


@pytest.mark.parametrize("protocol", KILLS)
def test_kill_of_each_role_at_random_points(protocol: str, tmp_path: Path) -> None:
    """Killed 200 times: a server comes back and owners notice nothing; nothing is left in clear, all goes on after.

    Every model is charged once in all five ledgers, however often somebody was killed while it was trained.
    """
    settings: dict[str, Any] = {"max_depth": 2} if protocol == "hidden-tree" else {}
    servers = local_servers(
        CAR_SCHEMA, epsilon=2, folder=tmp_path / "roles", timeout=10.0, protocol=protocol, **settings
    )
    cast, rng, endings, n_models = Cast(servers.folder), random.Random(8), Counter[str](), 1
    sessions = KILLS[protocol] // KILLS_A_SESSION
    for number in range(sessions):
        cast.raise_the_dead()
        owners_act = number % 3 < 2
        if owners_act and cast.has_model():
            cast.owner("north").retire()
            n_models += 1
        elif not owners_act and not cast.has_model():
            cast.train()
        running = cast.begin("owner-north", "owner-south") if owners_act else cast.begin("user-analyst")
        parties = ["server-0", "server-1", "server-2"]
        victims = [rng.choice([*parties, *running]), *rng.choices(parties, k=KILLS_A_SESSION - 1)]
        for victim in victims:
            time.sleep(rng.uniform(0, 0.4))
            cast.kill(running[victim][0] if victim in running else cast.servers[int(victim[-1])])
        for role, (process, word) in running.items():
            if role not in victims:
                ending, text = cast.ending(role, word, victims)
                endings[ending] += 1
                assert ending != "broken", f"{victims} killed: {role} ended with {text}"
                if role.startswith("owner"):  # nobody is asked to contribute again
                    assert ending in ("done", "waits"), f"{victims} killed: {role} ended with {text}"
            process.kill()
            process.join()
        assert_nothing_in_clear(cast.folder)
    cast.raise_the_dead()
    if cast.has_model():
        cast.owner("north").retire()
        n_models += 1
    cast.train()
    with User(cast.folder / "user-analyst") as analyst:
        answers = analyst.predict(CAR_X)
        assert protocol != "hidden-tree" or np.array_equal(answers, expected_predictions(servers, depth=2))
    for party, process in cast.servers.items():
        process.kill()
        process.join()
        log = servers.read_log(party)
        assert "Traceback" not in log
        assert not re.search(r": unexpected [A-Z]", log), log  # an error without a word of explanation
        vw.open_ledger(cast.folder / f"server-{party}" / "ledger.db").verify()
    assert endings["done"] >= sessions // 3, endings
    for role in ("server-0", "server-1", "server-2", "owner-north", "owner-south"):
        entries = vw.open_ledger(cast.folder / role / "ledger.db").entries()
        assert sum(entry.state != "cancelled" for entry in entries) == n_models, role
    print(f"{protocol}: {KILLS[protocol]} kills, {n_models} models, each charged once; {dict(endings)}")


# -- frozen and overloaded -------------------------------------------------------------------------------------


def test_the_python_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[4] / "docs" / "owners.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)
    exec(compile(code, "owners.md", "exec"), {})
    assert "epsilon=2" in capsys.readouterr().out


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("ip"), reason="needs root, ip")
def test_three_namespaces_with_latency_and_a_capture_without_plaintext() -> None:
    path = Path(__file__).parents[4] / "benchmarks" / "secure_roles.py"
    spec = importlib.util.spec_from_file_location("secure_roles", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = module.one_network(10.0)
    assert result["found"] == []
    assert result["control"]  # the search finds what was sent without TLS
    assert result["captured"] > 1_000_000
    # A round cannot be faster than the latency where a server needs what another computes from its message.
    assert result["train_s"] > 0.5 * result["rounds"] * 0.010


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_six_unfinished_uploads_take_little_memory(tmp_path: Path) -> None:
    """Six owners announce a million rows each, send all of a piece but its last byte, and stay; a seventh is served."""
    owners = [f"owner-{number}" for number in range(7)]
    with local_servers(
        CAR_SCHEMA, epsilon=2, folder=tmp_path / "roles", owners=owners, protocol="forest-on-shares"
    ) as here:
        process = here.processes[1]  # server 1 gets a whole share, server 0 seeds
        assert process is not None
        before, calls = resident(process.pid), []
        try:
            for owner in owners[:6]:
                client = here.owner(owner)
                program = client._program
                rows = {"rows": 1_000_000, "part": "rows", "upload": "0" * 32, "more": False}
                call = ServerConnections(client.config, client.task, "contribute", **rows, **client.consent())
                calls.append(call)
                call.receive_fields("send")
                call.send_fields(start=0)
                shape = next(iter(program.row_shapes(owner, piece_row_counts(program, owner, 1_000_000)[0]).values()))
                size = share_size(1, shape, program.ring)
                assert size > 1 << 20
                send_all_but_one(call.channels[1], size)
            here.owner("owner-6").contribute(CAR_X, CAR_Y)
            assert resident(process.pid) - before < 300 << 20
            with suppress(PartyError):  # the refusal may come before all has left
                send_all_but_one(calls[0].channels[2], 1 << 29)
            with pytest.raises(PartyError):
                calls[0].channels[2].receive()
            assert "longer than is allowed" in here.read_log(2)
        finally:
            for call in calls:
                call.close()


def resident(pid: int) -> int:
    """Bytes of memory that a process has ever held at once."""
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) << 10


def send_all_but_one(channel: Channel, size: int) -> None:
    """Announce a message and send it but for its last byte; at most some megabytes of one that nobody will take."""
    sent = bytes(min(size - 1, 1 << 23))
    channel._queue_frame(0, sent)
    channel._outgoing[-2] = memoryview(struct.pack("!BIQ", 0, channel._sent - 1 & 0xFFFFFFFF, size))
    exchange_until([channel], channel, lambda: not channel._outgoing)
