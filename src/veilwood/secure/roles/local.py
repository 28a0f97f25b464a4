# SPDX-License-Identifier: Apache-2.0
"""Three servers on this machine, for trying things out: real processes, real certificates, loopback only.

One machine is one operator, so nothing is protected from it; real servers are placed as docs/secure.md says.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from veilwood.data.schema import Schema
from veilwood.errors import SetupError
from veilwood.privacy.plan import Plan
from veilwood.secure.protocols.joint_forest import Law, Parties, stays_online
from veilwood.secure.roles.client import Client
from veilwood.secure.roles.config import Address, Task, set_up, task_name
from veilwood.secure.roles.user import User

__all__ = ["LocalServers", "local_servers"]

_START_SECONDS = 60.0
_STOP_SECONDS = 5.0
_READY = " listens on "  # a server's word in its log
_PORTS = range(20_000, 32_000)  # below those that systems give to outgoing connections: 32768 and more


def local_servers(
    schema: Schema | Mapping[str, Any] | str | os.PathLike[str],
    *,
    epsilon: object = 1,
    owners: Sequence[str] | Mapping[str, Sequence[str] | None] = ("north", "south"),
    users: Sequence[str] = ("analyst",),
    folder: str | os.PathLike[str] | None = None,
    timeout: float = 60.0,
    start: bool = True,
    protocol: str = "hidden-tree",
    **settings: Any,
) -> LocalServers:
    """Start three servers on this machine for one task; stop them when the ``with`` block ends.

    Parameters
    ----------
    schema : Schema, dict or path
        What is public about the rows.
    epsilon : number or str
        The privacy loss of training.
    owners : sequence of str, or dict
        Who contributes rows; a dict gives each owner the columns it holds, where all hold the same rows.
    users : sequence of str
        Who may ask.
    folder : path, optional
        Where configurations, encrypted keys and models go; without it, a folder that is removed at the end.
    timeout : float
        Seconds after which a silent party counts as lost.
    start : bool
        Whether the servers start with the ``with`` block, or by ``start()`` in it.
    protocol : str
        How the model is trained: ``"public-forest"`` for ordinary estimators, such as PrivateForest.
    settings
        Of the protocol: ``max_depth`` (3), ``n_trees`` (1); or ``estimator`` and its ``parameters``.

    Examples
    --------
    >>> import veilwood as vw
    >>> schema, X, y = vw.datasets.balance_scale()
    >>> with vw.secure.local_servers(schema, epsilon=2, max_depth=2) as servers:  # doctest: +SKIP
    ...     servers.client("north").contribute(X[:300], y[:300])
    ...     servers.client("south").contribute(X[300:], y[300:])
    ...     servers.user("analyst").wait()
    ...     servers.user("analyst").predict(X[:3])
    """
    public = Schema.resolve(schema)
    named = owners if isinstance(owners, Mapping) else dict.fromkeys(owners)
    task = Task(
        task_name(public), public.to_dict(), str(epsilon), named, tuple(users),
        protocol=protocol, settings=settings,
    )  # fmt: skip
    return LocalServers(task, folder, timeout, start)


class LocalServers:
    """Three server processes and the folders of all roles; made by ``local_servers``."""

    def __init__(self, task: Task, folder: str | os.PathLike[str] | None, timeout: float, start: bool) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="veilwood-secure-") if folder is None else None
        self.folder = Path(folder if folder is not None else self._temporary.name)  # type: ignore[union-attr]
        addresses = [
            Address("127.0.0.1", peers, people) for peers, people in zip(*[iter(_free_ports(6))] * 2, strict=True)
        ]
        set_up(self.folder, task, addresses=addresses, timeout=timeout)
        self._start = start
        self.processes: list[subprocess.Popen[bytes] | None] = [None, None, None]

    def add(self, task: Task) -> None:
        """Add a task, and the people it names; running servers read it when they are asked about it."""
        set_up(self.folder, task)

    def start(self, *parties: int) -> None:
        """Start servers, all three if none is named, and wait until they listen."""
        chosen = parties or (0, 1, 2)
        ready = {party: self.log(party).count(_READY) + 1 for party in chosen}
        for party in chosen:
            place = self.folder / f"server-{party}"
            with open(place / "log.txt", "ab") as log:
                self.processes[party] = subprocess.Popen(
                    [sys.executable, "-m", "veilwood", "secure", "server", str(place)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
        until = time.monotonic() + _START_SECONDS
        for party in chosen:
            process = self.processes[party]
            while self.log(party).count(_READY) < ready[party]:
                if process is None or process.poll() is not None or time.monotonic() > until:
                    raise SetupError(f"server {party} did not start: {' '.join(self.log(party).splitlines()[-1:])}")
                time.sleep(0.05)

    def kill(self, party: int) -> None:
        """End a server at once, as a power failure does; ``start(party)`` brings it back."""
        process = self.processes[party]
        if process is not None:
            process.kill()
            process.wait()

    def client(self, name: str, task: str | None = None) -> Client:
        """The client of an owner."""
        return Client(self.folder / f"client-{name}", task)

    def user(self, name: str, task: str | None = None) -> User:
        """A user."""
        return User(self.folder / f"user-{name}", task)

    def parties(self, tables: Mapping[str, tuple[Any, Any]], law: Law | None = None) -> Parties:
        """Owners with their rows, to be given to an estimator: ``PrivateForestClassifier(...).fit(parties)``.

        Parameters
        ----------
        tables : dict
            X and y of each owner.
        law : {"dealt", "sampled"}, optional
            Each server adds a part of the noise, or all three draw it together in shares; by default what fits.
        """
        return _LocalParties(self, tables, law)

    def log(self, party: int) -> str:
        """What a server wrote: names and times; never a value or a number of rows."""
        file = self.folder / f"server-{party}" / "log.txt"
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    def close(self) -> None:
        """Stop the servers; remove the folder if it was made for this."""
        running = [process for process in self.processes if process is not None and process.poll() is None]
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        try:
            if self._start:
                self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _LocalParties(Parties):
    """Owners on this machine: each fit is a task of its own."""

    def __init__(self, servers: LocalServers, tables: Mapping[str, tuple[Any, Any]], law: Law | None) -> None:
        super().__init__(law)
        self._servers, self._tables = servers, tables

    def release(self, estimator: Any, plan: Plan) -> NDArray[np.int64]:
        """Make the task, contribute every owner's rows, and return what the servers released."""
        parameters = estimator.get_params(deep=False)
        schema = Schema.resolve(parameters.pop("schema"))
        for own in ("epsilon", "ledger", "n_jobs"):
            parameters.pop(own)
        settings = {"estimator": type(estimator).__name__, "parameters": parameters, "law": self.law}
        task = Task(
            f"fit-{secrets.token_hex(4)}", schema.to_dict(), str(plan.loss.epsilon), dict.fromkeys(self._tables),
            ("analyst",), "public-forest", settings,
        )  # fmt: skip
        self._servers.add(task)
        clients = {owner: self._servers.client(owner, task.name) for owner in self._tables}
        if stays_online(estimator):
            with ThreadPoolExecutor(len(clients)) as pool:
                list(pool.map(lambda owner: clients[owner].attend(*self._tables[owner]), clients))
        else:
            for owner, (X, y) in self._tables.items():
                clients[owner].contribute(X, y)
        with self._servers.user("analyst", task.name) as analyst:
            return analyst.parties().release(estimator, plan)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, and that no system hands out by itself before the servers listen on them."""
    while True:
        first = _PORTS.start + secrets.randbelow(len(_PORTS) - count)
        ports = range(first, first + count)
        with ExitStack() as held:
            try:
                for port in ports:
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return list(ports)
