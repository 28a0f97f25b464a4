# SPDX-License-Identifier: Apache-2.0
"""Three servers over real TLS with the folders of all roles, a training task, and comparable transcripts."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.errors import VeilwoodError
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood_secure.mpc.shares import reconstruct
from veilwood_secure.protocols.public_trees import PlainTree
from veilwood_secure.protocols.records import Domain
from veilwood_secure.roles.checkpoints import ModelStore
from veilwood_secure.roles.config import Address, Config, Task, set_up_roles
from veilwood_secure.roles.identity import PartyName, tls_context
from veilwood_secure.roles.local import LocalServers
from veilwood_secure.roles.owner import Owner, ServerConnections
from veilwood_secure.roles.server import Server
from veilwood_secure.roles.transport import Channel, dial_server
from veilwood_secure.roles.user import User
from veilwood_testing.processes import free_ports

SCHEMA, X, Y = vw.datasets.balance_scale()


ROWS = {"north": slice(0, 250), "south": slice(250, None)}


TASK = Task(
    "scale", SCHEMA.to_dict(), "2", {"north": None, "south": None}, ("analyst", "guest"), settings={"max_depth": 2}
)


class Place:
    """Three servers of this process, and the folders of all roles."""

    def __init__(self, folder: Path, task: Task = TASK, timeout: float = 30.0) -> None:
        self.folder = folder
        ports = iter(free_ports(6))
        addresses = [Address("127.0.0.1", next(ports), next(ports)) for _ in range(3)]
        set_up_roles(folder, task, addresses=addresses, timeout=timeout)
        self.servers: list[Server] = []

    def config(self, role: str) -> Config:
        return Config.load(self.folder / role)

    def start(self) -> None:
        self.servers = [Server(self.config(f"server-{party}")) for party in range(3)]
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        for server in self.servers:
            server.close()

    def owner(self, name: str, task: str | None = None) -> Owner:
        return Owner(self.folder / f"owner-{name}", task)

    def user(self, name: str = "analyst", task: str | None = None) -> User:
        return User(self.folder / f"user-{name}", task)

    def train(self) -> None:
        for owner, rows in ROWS.items():
            self.owner(owner).contribute(X[rows], Y[rows])
        self.owner("north").wait(60)

    def settle(self) -> None:
        """Wait until no server trains: an owner hears of a failure as soon as the first of them has settled it."""
        until = time.monotonic() + 60
        while any(study.is_training for server in self.servers for study in server._task_states.values()):
            assert time.monotonic() < until
            time.sleep(0.01)

    def tree_in_the_open(self, task: str = "scale") -> PlainTree:
        """Put the three servers' shares together, which is what no two of them may do."""
        parts = [server._model_store.load(task).arrays for server in self.servers]

        def joined(name: str) -> Any:
            return reconstruct([(part[f"first.{name}"], part[f"second.{name}"]) for part in parts])  # type: ignore[misc]

        splits = tuple(joined(f"0.{level}").argmax(axis=0) for level in range(2))
        width = Domain.from_schema(SCHEMA).width
        return PlainTree(splits, joined("0.leaves").argmax(axis=0), (width,) * len(SCHEMA.features))


@contextmanager
def place(folder: Path, task: Task = TASK, **options: Any) -> Iterator[Place]:
    here = Place(folder, task, **options)
    here.start()
    try:
        yield here
    finally:
        here.stop()


def contribute(here: Place, *owners: str) -> None:
    """Let these owners, or all, send their rows."""
    for owner in owners or ROWS:
        here.owner(owner).contribute(X[ROWS[owner]], Y[ROWS[owner]])


def first_word(config: Config, task: Task, do: str, **words: Any) -> None:
    """Ask for something and hear what the servers say to it."""
    with ServerConnections(config, task, do, **words) as call:
        call.receive_fields("send")


def assert_nothing_in_clear(folder: Path) -> None:
    """Every key is encrypted, every file is private, and no stored share is readable."""
    for key in [*folder.rglob("key.pem"), *folder.rglob("authorities/*.key")]:
        assert key.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
        assert key.stat().st_mode & 0o077 == 0
    for secret in folder.rglob("*.secret"):
        assert secret.parent.name == "secrets"
        assert secret.stat().st_mode & 0o077 == 0
    for model in folder.rglob("models/*"):
        assert model.read_bytes().startswith(b"VWSHARE1")
    secrets = [path.read_bytes().strip() for path in folder.rglob("*.secret")]
    for path in folder.rglob("*"):
        if path.is_file() and path.parent.name != "secrets":
            data = path.read_bytes()
            assert b"BEGIN PRIVATE KEY" not in data
            assert b"BEGIN EC PRIVATE KEY" not in data
            assert not any(secret in data for secret in secrets)


def readable_message(message: bytes) -> str:
    """Return a message as text without random parts."""
    try:
        json.loads(message)
    except ValueError:
        return f"shares or noisy counts, {len(message)} bytes"
    return without_random_parts(message.decode())


def without_random_parts(text: str) -> str:
    """Replace random numbers of fixed length, and the name of the server that forwarded an error first."""
    for pattern, replacement in (
        (r'"(training|ticket)": "[0-9a-f]{16}"', r'"\1": "random"'),
        (r'"(certificate|signature)": "[0-9a-f ]{128,}"', r'"\1": "random"'),
        (r'"opened": "[0-9a-f]{64}"', '"opened": "digest"'),
        (r'"party": (null|"server \d")', '"party": "a server"'),
        (r"server \d gave up: ", ""),
    ):
        text = re.sub(pattern, replacement, text)
    return text


def wait_until_settled(here: Place, task: str = "scale") -> None:
    """Wait until no server is training, and each has a model or the reason of its failure."""
    deadline = time.monotonic() + 60
    studies = [
        server._find_task(task, here.servers[0]._task_states[task].task.fingerprint()) for server in here.servers
    ]
    while any(study.is_training or not (study.model or study.failure) for study in studies):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def log_lines(caplog: pytest.LogCaptureFixture, older: set[int | None]) -> list[str]:
    """Return the distinct log lines of the three servers, sorted: their progress before an error is random.

    Threads of servers that other tests have closed may still log while they wait; they are ``older``.
    """
    ours = [record for record in caplog.records if record.name.startswith("veilwood") and record.thread not in older]
    texts = [record.getMessage() for record in ours]
    return sorted({re.sub(r"ports \d+ and \d+", "ports", without_random_parts(text)) for text in texts})


CAR_SCHEMA, CAR_X, CAR_Y = vw.datasets.car()


HALF = len(CAR_X) // 2


CAR_ROWS = {"north": slice(0, HALF), "south": slice(HALF, None)}


def reconstruct_tree(servers: LocalServers, task: str, depth: int) -> PlainTree:
    """Put the stored shares of the three servers together, with all three secrets."""
    parts = []
    for party in range(3):
        secret = (servers.folder / "secrets" / f"server-{party}.secret").read_bytes().strip()
        parts.append(
            ModelStore(servers.folder / f"server-{party}" / "models", secret, f"server {party}").load(task).arrays
        )
    joined = {
        key.removeprefix("first."): reconstruct([(p[key], p[key.replace("first", "second", 1)]) for p in parts])
        for key in parts[0]
        if key.startswith("first.")
    }
    splits = tuple(joined[f"0.{level}"].argmax(axis=0) for level in range(depth))
    domain = Domain.from_schema(CAR_SCHEMA)
    return PlainTree(splits, joined["0.leaves"].argmax(axis=0), (domain.width,) * domain.n_features)


def expected_predictions(servers: LocalServers, task: str = "car", depth: int = 3) -> np.ndarray:
    codes = Encoding(CAR_SCHEMA, "bins").encode(CAR_X).astype(np.int64)
    return np.array(CAR_SCHEMA.classes, dtype=object)[reconstruct_tree(servers, task, depth).predict(codes)]


def role_ledger(here: Place, role: str) -> SQLiteLedger:
    return SQLiteLedger(here.folder / role / "ledger.db")


FIRST_SERVER = PartyName("server", "0")


def connect_channel(here: Place, role: str = "user-analyst") -> Channel:
    config = here.config(role)
    context = tls_context(config.identity, config.servers_authority, listens=False)
    return dial_server("127.0.0.1", config.servers[0].participants, context, FIRST_SERVER, timeout=30, limit=1 << 16)


TREE_PARAMETERS: dict[str, Any] = {"random_state": 0, "n_estimators": 2, "max_depth": 2}


PUBLIC_FOREST_TASK = replace(
    TASK, protocol="public-forest", settings={"estimator": "RandomTreesClassifier", "parameters": TREE_PARAMETERS}
)


def train_until_failure(here: Place, message: str) -> None:
    """Train, and wait until all three servers have given up."""
    for owner, rows in ROWS.items():
        here.owner(owner).contribute(X[rows], Y[rows])
    with pytest.raises(VeilwoodError, match=message):
        here.owner("north").wait(60)
    here.settle()


def assert_spent(here: Place) -> None:
    for server in here.servers:
        assert [entry.state for entry in server._ledger.entries() if entry.state != "cancelled"], server.party
        assert server._ledger.spent.epsilon == 2


def entry_states(here: Place) -> list[list[str]]:
    return [[str(entry.state) for entry in server._ledger.entries()] for server in here.servers]
