# SPDX-License-Identifier: Apache-2.0
"""The demonstration of secure training: all roles as processes on this machine, and what each of them saw.

Nothing here is needed by the library; the roles are in ``server``, ``client`` and ``user``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from veilwood import datasets
from veilwood.errors import SetupError
from veilwood.estimators.private_forest import PrivateForestClassifier
from veilwood.privacy.certificate import PrivacyStatement
from veilwood.privacy.ledger import open_ledger
from veilwood.secure.roles.local import LocalServers, local_servers

__all__ = ["Story", "run"]

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
