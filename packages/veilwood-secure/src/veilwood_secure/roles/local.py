# SPDX-License-Identifier: Apache-2.0
"""Three servers on this machine, for trying things out: real processes, real certificates, loopback only.

One machine is one operator, so nothing is protected from it; real servers are placed as docs/secure.md says.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from veilwood import datasets
from veilwood.data.schema import Schema
from veilwood.errors import SetupError
from veilwood.forests.adaptive.private_forest import PrivateForestClassifier
from veilwood.privacy.certificate import PrivacyStatement
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.plan import Plan
from veilwood_secure.protocols.joint_forest import Law, Parties, stays_online
from veilwood_secure.roles.config import Address, Task, set_up, task_name
from veilwood_secure.roles.owner import Client
from veilwood_secure.roles.user import User

__all__ = ["LocalServers", "Story", "local_servers", "run"]


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


EPSILON = "1"
HELD_OUT = 400
POOLED_FITS = 5
VICTIM = 2
KILLED_AFTER = 3  # openings


@dataclass(frozen=True)
class Story:
    """What came out of the demonstration."""

    seconds: float
    accuracy: float
    pooled: float
    majority: float
    statement: PrivacyStatement
    opened_before: int
    charged: int


def run(folder: Path | None = None, console: Console | None = None) -> Story:
    """Set up, share, train, ask and tell; keep configurations and logs if a folder is given."""
    out = console or Console(soft_wrap=True, highlight=False)
    began = time.monotonic()

    def tell(text: str) -> None:
        out.print(f"[dim]{time.monotonic() - began:5.1f} s[/dim]  {text}")

    schema, X, y = datasets.car()
    order = np.random.default_rng(0).permutation(len(X))
    asked, north, south = np.split(order, [HELD_OUT, HELD_OUT + (len(X) - HELD_OUT) // 3])
    with (
        tempfile.TemporaryDirectory() as scratch,
        local_servers(schema, epsilon=EPSILON, folder=folder, start=False, protocol="public-forest") as here,
    ):
        tell(f"[bold]setup[/bold]    two authorities, six certificates; task car: PrivateForest, epsilon {EPSILON}")
        here.start()
        tables = {"north": Path(scratch, "north.csv"), "south": Path(scratch, "south.csv")}
        for owner, places in (("north", north), ("south", south)):
            X.iloc[places].assign(**{schema.target.name: y.iloc[places]}).to_csv(tables[owner], index=False)
        X.iloc[asked].to_csv(Path(scratch, "questions.csv"), index=False)
        tell(f"[bold]servers[/bold]  three processes listen on loopback ({_ports(here)})")

        owners = [_start("client", here.folder / f"client-{name}", tables[name], "--json") for name in tables]
        tell(f"[bold]owners[/bold]   north has {len(north)} rows, south {len(south)}; both answer with shares of sums")
        opened = _kill_in_the_middle(here, owners)
        tell(f"[bold]kill[/bold]     server {VICTIM} is killed while it trains, with {opened} openings on disk")
        here.start(VICTIM)
        tell(f"[bold]servers[/bold]  server {VICTIM} is back; owners call again, and the training goes on")
        certificates = [json.loads(_finish(owner)) for owner in owners]
        statement = PrivacyStatement.from_dict(certificates[0])
        tell("[bold]servers[/bold]  asked round after round, and opened nothing but noisy sums and choices")
        answers = Path(scratch, "answers.csv")
        _finish(_start("user", here.folder / "user-analyst", Path(scratch, "questions.csv"), "-o", str(answers)))
        labels = pd.read_csv(answers, dtype=str)[schema.target.name].to_numpy()
        truth = y.iloc[asked].to_numpy()
        accuracy, majority = float(np.mean(labels == truth)), float(pd.Series(truth).value_counts(normalize=True).max())
        tell(f"[bold]user[/bold]     {accuracy:.1%} of {HELD_OUT} answers are right (always the same: {majority:.1%})")
        entries = open_ledger(here.folder / "server-0" / "ledger.db").entries()
        charged = sum(entry.state != "cancelled" for entry in entries)
        tell(f"[bold]ledger[/bold]   {charged} training{'s' * (charged > 1)} charged to server 0")
        log = here.log(0)
    seconds = time.monotonic() - began
    rows = np.concatenate([north, south])
    pooled = np.mean([_pooled(X.iloc[rows], y.iloc[rows], X.iloc[asked], truth) for _ in range(POOLED_FITS)])
    tell(
        f"[bold]pooled[/bold]   the same estimator on all rows in one place: {pooled:.1%} (mean of {POOLED_FITS} fits)"
    )

    out.print("\n[bold]The certificate[/bold]")
    out.print(f"  {statement}")
    for assumption in statement.assumptions:
        out.print(f"  - {assumption}")
    out.print(_who_saw_what(len(north), len(south)))
    out.print("[bold]All that server 0 wrote down[/bold]")
    for line in log.splitlines():
        out.print(f"  {line}", markup=False)
    out.print(f"\nAll of it in {seconds:.0f} seconds. How to place real servers: docs/secure.md")
    return Story(seconds, accuracy, float(pooled), majority, statement, opened, charged)


def _kill_in_the_middle(here: LocalServers, owners: Sequence[subprocess.Popen[str]]) -> int:
    """Kill a server when some numbers were opened; return how many it had written down."""
    written = here.folder / f"server-{VICTIM}" / "checkpoints" / "car"
    while len(list(written.glob("opening-*"))) < KILLED_AFTER:
        if any(owner.poll() is not None for owner in owners):
            raise SetupError("the training ended before anything was opened.")
        time.sleep(0.005)
    here.kill(VICTIM)
    return len(list(written.glob("opening-*")))


def _pooled(X: pd.DataFrame, y: pd.Series, asked: pd.DataFrame, truth: object) -> float:
    """How often a fit of one table is right."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forest = PrivateForestClassifier(datasets.car().schema, epsilon=float(EPSILON), random_state=0).fit(X, y)
    return float(np.mean(forest.predict(asked) == truth))


def _who_saw_what(north: int, south: int) -> Table:
    table = Table("role", "saw", "did not see", title="What each role saw", box=SIMPLE_HEAD, title_justify="left")
    public = "the model; the certificate"
    table.add_row("owner north", f"its own {north} rows; {public}", "rows or sums of south")
    table.add_row("owner south", f"its own {south} rows; {public}", "rows or sums of north")
    table.add_row(
        "each server",
        f"who took part; shares of sums, which are uniformly random; {public}",
        "any row, any exact sum, how many rows there are, a question of the user",
    )
    table.add_row("user analyst", f"its own rows; {public}", "rows or sums of anybody")
    return table


def _ports(here: LocalServers) -> str:
    addresses = here.client("north").config.servers
    return "ports " + ", ".join(f"{address.peers}/{address.people}" for address in addresses)


def _start(role: str, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "veilwood", "secure", role, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finish(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate()
    if process.returncode:
        raise SetupError(error.strip().removeprefix("error: "))
    return out
