# SPDX-License-Identifier: Apache-2.0
"""Three servers on this machine, for tests and examples, and the demonstration of all roles.

Servers are real processes with real certificates on the loopback address. One machine is one operator, so nothing is
protected from it; docs/secure.md describes how to place real servers.
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
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from veilwood import datasets
from veilwood.arrays import Ints
from veilwood.data.schema import Schema
from veilwood.errors import SetupError
from veilwood.forests.adaptive.private_forest import PrivateForestClassifier
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.plan import Plan
from veilwood_secure.protocols.joint_forest import NoiseProtocol, Parties, needs_online_owners
from veilwood_secure.roles.config import Address, Task, default_task_name, set_up_roles
from veilwood_secure.roles.owner import Owner
from veilwood_secure.roles.user import User

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
_READY_MARK = " listens on "  # in the log of a server that is ready
_PORTS = range(20_000, 32_000)  # below the ephemeral ports, which begin at 32768


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
    """Create three servers on this machine for one task. They start and stop with the ``with`` block.

    Parameters
    ----------
    schema : Schema, dict or path
        Public schema of the rows.
    epsilon : number or str
        Privacy loss of training.
    owners : sequence of str, or dict
        Owners of rows. A dict names the columns of each owner, if all hold the same rows.
    users : sequence of str
        Users who may query the model.
    folder : path, optional
        Folder of configurations, encrypted keys and models. By default, a temporary folder.
    timeout : float
        Seconds after which a silent party counts as lost.
    start : bool
        Whether the servers start with the ``with`` block, or by a call of ``start()``.
    protocol : str
        Name of the protocol: ``"public-forest"`` for ordinary estimators, such as PrivateForest.
    **settings
        Settings of the protocol: ``max_depth`` (3), ``n_trees`` (1); or ``estimator`` and its ``parameters``.

    Examples
    --------
    >>> import veilwood as vw
    >>> schema, X, y = vw.datasets.balance_scale()
    >>> with vw.secure.local_servers(schema, epsilon=2, max_depth=2) as servers:  # doctest: +SKIP
    ...     servers.owner("north").contribute(X[:300], y[:300])
    ...     servers.owner("south").contribute(X[300:], y[300:])
    ...     servers.user("analyst").wait()
    ...     servers.user("analyst").predict(X[:3])
    """
    public = Schema.resolve(schema)
    named = owners if isinstance(owners, Mapping) else dict.fromkeys(owners)
    task = Task(
        default_task_name(public), public.to_dict(), str(epsilon), named, tuple(users),
        protocol=protocol, settings=settings,
    )  # fmt: skip
    return LocalServers(task, folder, timeout, start)


class LocalServers:
    """Three server processes and the folders of all roles, created by ``local_servers``."""

    def __init__(self, task: Task, folder: str | os.PathLike[str] | None, timeout: float, start: bool) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="veilwood-secure-") if folder is None else None
        self.folder = Path(folder if folder is not None else self._temporary.name)  # type: ignore[union-attr]
        addresses = [
            Address("127.0.0.1", peers, participants)
            for peers, participants in zip(*[iter(_free_ports(6))] * 2, strict=True)
        ]
        set_up_roles(self.folder, task, addresses=addresses, timeout=timeout)
        self._start = start
        self.processes: list[subprocess.Popen[bytes] | None] = [None, None, None]

    def add_task(self, task: Task) -> None:
        """Add a task and its participants. Running servers read it on the first request."""
        set_up_roles(self.folder, task)

    def start(self, *parties: int) -> None:
        """Start the given servers, or all three, and wait until they listen."""
        chosen = parties or (0, 1, 2)
        ready = {party: self.read_log(party).count(_READY_MARK) + 1 for party in chosen}
        for party in chosen:
            place = self.folder / f"server-{party}"
            with open(place / "log.txt", "ab") as log:
                self.processes[party] = subprocess.Popen(
                    [sys.executable, "-m", "veilwood", "secure", "server", str(place)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
        until = time.monotonic() + _START_TIMEOUT_S
        for party in chosen:
            process = self.processes[party]
            while self.read_log(party).count(_READY_MARK) < ready[party]:
                if process is None or process.poll() is not None or time.monotonic() > until:
                    raise SetupError(
                        f"server {party} did not start: {' '.join(self.read_log(party).splitlines()[-1:])}"
                    )
                time.sleep(0.05)

    def kill(self, party: int) -> None:
        """Kill a server, as a power failure would. ``start(party)`` starts it again."""
        process = self.processes[party]
        if process is not None:
            process.kill()
            process.wait()

    def owner(self, name: str, task: str | None = None) -> Owner:
        """Return an owner of a task."""
        return Owner(self.folder / f"owner-{name}", task)

    def user(self, name: str, task: str | None = None) -> User:
        """Return a user of a task."""
        return User(self.folder / f"user-{name}", task)

    def parties(self, tables: Mapping[str, tuple[Any, Any]], noise_protocol: NoiseProtocol | None = None) -> Parties:
        """Return owners with their rows, as input of ``fit``: ``PrivateForestClassifier(...).fit(parties)``.

        Parameters
        ----------
        tables : dict
            X and y by owner.
        noise_protocol : {"dealt", "sampled"}, optional
            Each server adds a part of the noise, or all three sample it on shares. By default, dealt noise if it is
            sufficient.
        """
        return _LocalParties(self, tables, noise_protocol)

    def read_log(self, party: int) -> str:
        """Return the log of a server. It contains no value and no number of rows."""
        file = self.folder / f"server-{party}" / "log.txt"
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    def close(self) -> None:
        """Stop the servers and remove a temporary folder."""
        running = [process for process in self.processes if process is not None and process.poll() is None]
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(_STOP_TIMEOUT_S)
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
    """Owners on this machine. Each fit is a task of its own."""

    def __init__(
        self, servers: LocalServers, tables: Mapping[str, tuple[Any, Any]], noise_protocol: NoiseProtocol | None
    ) -> None:
        super().__init__(noise_protocol)
        self._servers, self._tables = servers, tables

    def release(self, estimator: Any, plan: Plan) -> Ints:
        """Create the task, contribute the rows of every owner, and return the released values."""
        parameters = estimator.get_params(deep=False)
        schema = Schema.resolve(parameters.pop("schema"))
        for name in ("epsilon", "ledger", "n_jobs"):
            parameters.pop(name)
        settings = {
            "estimator": type(estimator).__name__,
            "parameters": parameters,
            "noise_protocol": self.noise_protocol,
        }
        task = Task(
            f"fit-{secrets.token_hex(4)}", schema.to_dict(), str(plan.loss.epsilon), dict.fromkeys(self._tables),
            ("analyst",), "public-forest", settings,
        )  # fmt: skip
        self._servers.add_task(task)
        owners = {owner: self._servers.owner(owner, task.name) for owner in self._tables}
        if needs_online_owners(estimator):
            with ThreadPoolExecutor(len(owners)) as pool:
                list(pool.map(lambda owner: owners[owner].participate(*self._tables[owner]), owners))
        else:
            for owner, (X, y) in self._tables.items():
                owners[owner].contribute(X, y)
        with self._servers.user("analyst", task.name) as analyst:
            return analyst.parties().release(estimator, plan)


def _free_ports(count: int) -> list[int]:
    """Return consecutive ports that are unused and below the ephemeral range."""
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
N_QUERIES = 400
N_POOLED_FITS = 5
KILLED_SERVER = 2
KILL_AFTER_OPENINGS = 3


@dataclass(frozen=True)
class SecureDemoResult:
    """Results of the demonstration."""

    seconds: float
    accuracy: float
    pooled_accuracy: float
    majority_accuracy: float
    certificate: PrivacyCertificate
    openings_before_kill: int
    n_charges: int


def run_demo(folder: Path | None = None, console: Console | None = None) -> SecureDemoResult:
    """Run the demonstration and print it. Keep configurations and logs if a folder is given."""
    out = console or Console(soft_wrap=True, highlight=False)
    start = time.monotonic()

    def print_step(text: str) -> None:
        out.print(f"[dim]{time.monotonic() - start:5.1f} s[/dim]  {text}")

    schema, X, y = datasets.car()
    order = np.random.default_rng(0).permutation(len(X))
    queries, north, south = np.split(order, [N_QUERIES, N_QUERIES + (len(X) - N_QUERIES) // 3])
    with (
        tempfile.TemporaryDirectory() as scratch,
        local_servers(schema, epsilon=EPSILON, folder=folder, start=False, protocol="public-forest") as servers,
    ):
        print_step(
            f"[bold]setup[/bold]    two authorities, six certificates; task car: PrivateForest, epsilon {EPSILON}"
        )
        servers.start()
        tables = {"north": Path(scratch, "north.csv"), "south": Path(scratch, "south.csv")}
        for owner, places in (("north", north), ("south", south)):
            X.iloc[places].assign(**{schema.target.name: y.iloc[places]}).to_csv(tables[owner], index=False)
        X.iloc[queries].to_csv(Path(scratch, "questions.csv"), index=False)
        print_step(f"[bold]servers[/bold]  three processes listen on loopback ({_format_ports(servers)})")

        owners = [_start_role("owner", servers.folder / f"owner-{name}", tables[name], "--json") for name in tables]
        print_step(f"[bold]owners[/bold]   north has {len(north)} rows, south {len(south)}; both send shares of sums")
        opened = _kill_during_training(servers, owners)
        print_step(
            f"[bold]kill[/bold]     server {KILLED_SERVER} is killed while it trains, with {opened} openings on disk"
        )
        servers.start(KILLED_SERVER)
        print_step(f"[bold]servers[/bold]  server {KILLED_SERVER} is back; owners reconnect, and the training resumes")
        certificates = [json.loads(_finish_role(owner)) for owner in owners]
        statement = PrivacyCertificate.from_dict(certificates[0])
        print_step("[bold]servers[/bold]  the adaptive queries opened only noisy sums and selections")
        answers = Path(scratch, "answers.csv")
        _finish_role(
            _start_role("user", servers.folder / "user-analyst", Path(scratch, "questions.csv"), "-o", str(answers))
        )
        labels = pd.read_csv(answers, dtype=str)[schema.target.name].to_numpy()
        truth = y.iloc[queries].to_numpy()
        accuracy, majority = float(np.mean(labels == truth)), float(pd.Series(truth).value_counts(normalize=True).max())
        print_step(
            f"[bold]user[/bold]     {accuracy:.1%} of {N_QUERIES} answers are correct (majority class: {majority:.1%})"
        )
        entries = open_ledger(servers.folder / "server-0" / "ledger.db").entries()
        charged = sum(entry.state != "cancelled" for entry in entries)
        print_step(f"[bold]ledger[/bold]   {charged} training{'s' * (charged > 1)} charged to server 0")
        log = servers.read_log(0)
    seconds = time.monotonic() - start
    rows = np.concatenate([north, south])
    pooled = np.mean([_fit_pooled(X.iloc[rows], y.iloc[rows], X.iloc[queries], truth) for _ in range(N_POOLED_FITS)])
    print_step(f"[bold]pooled[/bold]   the same estimator on pooled rows: {pooled:.1%} (mean of {N_POOLED_FITS} fits)")

    out.print("\n[bold]The certificate[/bold]")
    out.print(f"  {statement}")
    for assumption in statement.assumptions:
        out.print(f"  - {assumption}")
    out.print(_visibility_table(len(north), len(south)))
    out.print("[bold]The complete log of server 0[/bold]")
    for line in log.splitlines():
        out.print(f"  {line}", markup=False)
    out.print(f"\nThe demonstration took {seconds:.0f} seconds. How to place real servers: docs/secure.md")
    return SecureDemoResult(seconds, accuracy, float(pooled), majority, statement, opened, charged)


def _kill_during_training(servers: LocalServers, owners: Sequence[subprocess.Popen[str]]) -> int:
    """Kill a server after some openings. Return the number of openings it had recorded."""
    written = servers.folder / f"server-{KILLED_SERVER}" / "checkpoints" / "car"
    while len(list(written.glob("opening-*"))) < KILL_AFTER_OPENINGS:
        if any(owner.poll() is not None for owner in owners):
            raise SetupError("the training ended before anything was opened. Hint: run the demonstration again.")
        time.sleep(0.005)
    servers.kill(KILLED_SERVER)
    return len(list(written.glob("opening-*")))


def _fit_pooled(X: pd.DataFrame, y: pd.Series, queries: pd.DataFrame, truth: object) -> float:
    """Return the accuracy of a fit on pooled rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forest = PrivateForestClassifier(datasets.car().schema, epsilon=float(EPSILON), random_state=0).fit(X, y)
    return float(np.mean(forest.predict(queries) == truth))


def _visibility_table(north: int, south: int) -> Table:
    table = Table("role", "saw", "did not see", title="What each role saw", box=SIMPLE_HEAD, title_justify="left")
    public = "the model; the certificate"
    table.add_row("owner north", f"its own {north} rows; {public}", "rows or sums of south")
    table.add_row("owner south", f"its own {south} rows; {public}", "rows or sums of north")
    table.add_row(
        "each server",
        f"who took part; shares of sums, which are uniformly random; {public}",
        "any row, any exact sum, the number of rows, a query of the user",
    )
    table.add_row("user analyst", f"its own rows; {public}", "rows or sums of any owner")
    return table


def _format_ports(servers: LocalServers) -> str:
    addresses = servers.owner("north").config.servers
    return "ports " + ", ".join(f"{address.peers}/{address.participants}" for address in addresses)


def _start_role(role: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "veilwood", "secure", role, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finish_role(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate()
    if process.returncode:
        raise SetupError(error.strip().removeprefix("error: "))
    return out
