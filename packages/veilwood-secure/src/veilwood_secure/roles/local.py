# SPDX-License-Identifier: Apache-2.0
"""Three local servers for tests and examples, and the demonstration of all roles.

Servers are real processes with real certificates on the loopback address. One machine is one operator, so nothing is
protected from it; docs/owners.md describes how to place real servers.
"""

from __future__ import annotations

import logging
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
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from veilwood import datasets
from veilwood.arrays import AnyArray, Ints
from veilwood.data.schema import Schema
from veilwood.errors import PartyError, SetupError
from veilwood.forests.adaptive.private_forest import PrivateForestClassifier
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.plan import Plan
from veilwood_secure.mpc.replicated import Buffer, Links
from veilwood_secure.mpc.shares import share
from veilwood_secure.protocols.joint_forest import NoiseProtocol, Parties, needs_online_owners
from veilwood_secure.roles.config import Address, Config, Task, default_task_name, set_up_roles
from veilwood_secure.roles.hidden_programs import HiddenForest
from veilwood_secure.roles.owner import Owner
from veilwood_secure.roles.server import Server
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
            With "dealt", each server adds noise that it draws itself; with "sampled", all three sample the noise on
            shares. By default, dealt noise if it is sufficient.
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


EPSILON: Final = "1"
N_QUERIES: Final = 400
N_POOLED_FITS: Final = 3
LYING_SERVER: Final = 1
CHANGED_MESSAGE: Final = 100
"""Number of the message in which the lying server of ``demo --lie`` changes one bit."""


@dataclass(frozen=True)
class SecureDemoResult:
    """Results of the demonstration."""

    seconds: float
    tree_accuracy: float
    forest_accuracy: float
    pooled_accuracy: float
    majority_accuracy: float
    certificate: PrivacyCertificate
    n_charges: int
    caught: str | None = None
    """Error that stopped the training run in which a server lied, if any."""


class _OneBitLinks:
    """Links of a server that changes one bit of one of its messages."""

    def __init__(self, links: Links) -> None:
        self.party, self._links, self._sent = links.party, links, 0

    def send(self, to: int, data: Buffer) -> None:
        """Send a message, with one bit changed in the selected message."""
        self._sent += 1
        if self._sent == CHANGED_MESSAGE:
            data = bytes(data[:-1]) + bytes([data[-1] ^ 1])
        self._links.send(to, data)

    def receive(self, sender: int) -> Buffer:
        """Return the next message from a server."""
        return self._links.receive(sender)


class _Demo:
    """The demonstration: a hidden tree, a question that no server sees, then a forest that everybody may read."""

    def __init__(self, console: Console | None) -> None:
        self._out, self._start = console or Console(soft_wrap=True, highlight=False), time.monotonic()
        self._schema, self._X, self._y = datasets.car()
        order = np.random.default_rng(0).permutation(len(self._X))
        self._queries, north, south = np.split(order, [N_QUERIES, N_QUERIES + (len(order) - N_QUERIES) // 3])
        self._owners = {"north": north, "south": south}

    def run(self, folder: Path | None, *, lie: bool) -> SecureDemoResult:
        """Run all roles on this machine."""
        owners, forest = dict.fromkeys(self._owners), "joint-forest"
        tree = Task("car", self._schema.to_dict(), EPSILON, owners, ("analyst",), settings={"servers": "checked"})
        servers = LocalServers(tree, folder, 60.0, start=False)
        servers.add_task(replace(tree, name=forest, protocol="public-forest", settings={}))
        self._print_step(
            "setup", f"two authorities, six certificates; two tasks on the rows of two owners, epsilon {EPSILON} each"
        )
        caught: str | None = None
        with servers:
            servers.start(*(party for party in range(3) if not (lie and party == LYING_SERVER)))
            if lie:
                caught = self._show_lie(servers)
            self._print_step(
                "servers", f"three processes listen on loopback ({_format_ports(servers)}) and check one another"
            )
            certificate = self._train_tree(servers)
            labels = self._ask_questions(servers)
            truth = self._y.iloc[self._queries].to_numpy()
            tree_accuracy = float(np.mean(labels == truth))
            majority = float(pd.Series(truth).value_counts(normalize=True).max())
            self._print_step(
                "user", f"{tree_accuracy:.1%} of {N_QUERIES} answers are right (most frequent class: {majority:.1%})"
            )
            forest_accuracy = float(np.mean(self._train_forest(servers, forest) == truth))
            self._print_step(
                "user", f"{forest_accuracy:.1%} right by the joint PrivateForest, which everybody may read"
            )
            entries = open_ledger(servers.folder / "server-0" / "ledger.db").entries()
            charged = sum(entry.state != "cancelled" for entry in entries)
            log = servers.read_log(0)
        seconds = time.monotonic() - self._start
        pooled = float(np.mean([self._fit_pooled() for _ in range(N_POOLED_FITS)]))
        self._print_step("pooled", f"PrivateForest on pooled rows: {pooled:.1%} (mean of {N_POOLED_FITS} fits)")
        self._print_report(certificate, log)
        self._out.print(f"\nThe demonstration took {seconds:.0f} seconds. How to place real servers: docs/owners.md")
        return SecureDemoResult(seconds, tree_accuracy, forest_accuracy, pooled, majority, certificate, charged, caught)

    def _print_step(self, what: str, text: str) -> None:
        self._out.print(f"[dim]{time.monotonic() - self._start:5.1f} s[/dim]  [bold]{what:<9}[/bold] {text}")

    def _owner_rows(self, owner: str) -> tuple[pd.DataFrame, pd.Series]:
        return self._X.iloc[self._owners[owner]], self._y.iloc[self._owners[owner]]

    def _train_tree(self, servers: LocalServers) -> PrivacyCertificate:
        for name, places in self._owners.items():
            servers.owner(name, "car").contribute(*self._owner_rows(name))
            self._print_step(
                "owner", f"{name} shares its {len(places)} rows: each server gets uniformly random numbers"
            )
        certificate = servers.owner("north", "car").wait(60)
        self._print_step("tree", "trained on shares; splits and leaves stay in shares, and nothing was opened")
        return certificate

    def _ask_questions(self, servers: LocalServers) -> AnyArray:
        questions = self._X.iloc[self._queries]
        with servers.user("analyst", "car") as analyst:
            one = questions.iloc[:1]
            program = analyst._program
            assert isinstance(program, HiddenForest)
            query = program.encode_queries(one)[0]["features"]
            seen = " ".join(f"{word:08x}" for word in share(query, np.uint32)[0][0].ravel()[:4])
            text = ", ".join(map(str, one.to_numpy()[0]))
            self._print_step("question", f"{text}; what server 0 sees of it: {seen} ...")
            answer = analyst.predict(one)[0]
            self._print_step("answer", f"{answer}, put together from three shares; only the user sees it")
            return analyst.predict(questions)

    def _train_forest(self, servers: LocalServers, task: str) -> AnyArray:
        self._print_step("owners", "stay online and answer PrivateForest's queries with shares of sums")
        with ThreadPoolExecutor(len(self._owners)) as pool:
            list(pool.map(lambda name: servers.owner(name, task).participate(*self._owner_rows(name)), self._owners))
        with servers.user("analyst", task) as analyst:
            return analyst.predict(self._X.iloc[self._queries])

    def _show_lie(self, servers: LocalServers) -> str:
        """Train with a server, in this process, that changes one bit of one message; return what stopped it."""
        logging.getLogger("veilwood").addHandler(logging.NullHandler())
        liar = Server(Config.load(servers.folder / f"server-{LYING_SERVER}"))
        liar.start()
        program = liar._task_states["car"].program
        honest_engine = program.make_engine
        program.make_engine = lambda links, openings=None: honest_engine(  # type: ignore[method-assign]
            _OneBitLinks(links) if liar._task_states["car"].is_training else links, openings
        )
        self._print_step(
            "lie", f"server {LYING_SERVER} will change one bit of message {CHANGED_MESSAGE} of the training"
        )
        try:
            self._train_tree(servers)
        except PartyError as error:
            caught = str(error)
        else:
            raise SetupError("a changed message was accepted. Hint: report this, it should never happen.")
        finally:
            liar.close()
        self._print_step("caught", f"{caught} Ledgers charge nothing, since nothing was opened.")
        time.sleep(1.0)  # until all servers have settled it
        servers.start(LYING_SERVER)
        self._print_step(
            "servers", f"server {LYING_SERVER} is replaced by an honest one; the owners send their rows again"
        )
        return caught

    def _fit_pooled(self) -> float:
        """Return the accuracy of a fit on pooled rows."""
        rows = np.concatenate(list(self._owners.values()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            forest = PrivateForestClassifier(self._schema, epsilon=float(EPSILON), random_state=0)
            forest.fit(self._X.iloc[rows], self._y.iloc[rows])
        return float(np.mean(forest.predict(self._X.iloc[self._queries]) == self._y.iloc[self._queries]))

    def _print_report(self, certificate: PrivacyCertificate, log: str) -> None:
        self._out.print("\n[bold]The certificate of the hidden tree[/bold]")
        self._out.print(f"  {certificate}")
        for assumption in certificate.assumptions:
            self._out.print(f"  - {assumption}")
        self._out.print(_visibility_table({name: len(places) for name, places in self._owners.items()}))
        self._out.print("[bold]The complete log of server 0[/bold]")
        for line in log.splitlines():
            self._out.print(f"  {line}", markup=False)


def run_demo(folder: Path | None = None, console: Console | None = None, *, lie: bool = False) -> SecureDemoResult:
    """Run and print the demonstration. Keep configurations and logs if a folder is given.

    With ``lie``, a server changes one bit of one message first.
    """
    return _Demo(console).run(folder, lie=lie)


def _visibility_table(n_rows: Mapping[str, int]) -> Table:
    table = Table("role", "saw", "did not see", title="What each role saw", box=SIMPLE_HEAD, title_justify="left")
    for name, rows in n_rows.items():
        table.add_row(f"owner {name}", f"its own {rows} rows; the forest", "rows or sums of others; the tree; answers")
    table.add_row(
        "each server",
        "who sent how many rows and questions; shares, which are uniformly random; the forest",
        "any row, any exact sum, the tree, a question, an answer",
    )
    table.add_row("user analyst", "its own questions and answers; the forest", "rows or sums of any owner; the tree")
    return table


def _format_ports(servers: LocalServers) -> str:
    addresses = servers.owner("north", "car").config.servers
    return "ports " + ", ".join(f"{address.peers}/{address.participants}" for address in addresses)
