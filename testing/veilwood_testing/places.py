# SPDX-License-Identifier: Apache-2.0
"""Three servers of the test process over real TLS, with the folders of all roles, and a task for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import veilwood as vw
from veilwood_secure.mpc.shares import reconstruct
from veilwood_secure.protocols.public_trees import PlainTree
from veilwood_secure.protocols.records import Domain
from veilwood_secure.roles.config import Address, Config, Task, set_up_roles
from veilwood_secure.roles.owner import Owner, ServerConnections
from veilwood_secure.roles.server import Server
from veilwood_secure.roles.user import User
from veilwood_testing.ports import free_ports

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
