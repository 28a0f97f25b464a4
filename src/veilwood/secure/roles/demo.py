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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from veilwood import datasets
from veilwood.errors import SetupError
from veilwood.privacy.certificate import PrivacyStatement
from veilwood.secure.roles.local import LocalServers, local_servers

__all__ = ["Story", "run"]

EPSILON = "1"
DEPTH = 2
HELD_OUT = 30


@dataclass(frozen=True)
class Story:
    """What came out of the demonstration."""

    seconds: float
    accuracy: float
    majority: float
    statement: PrivacyStatement


def run(folder: Path | None = None, console: Console | None = None) -> Story:
    """Set up, share, train, ask and tell; keep configurations and logs if a folder is given."""
    out = console or Console(soft_wrap=True, highlight=False)
    began = time.monotonic()

    def tell(text: str) -> None:
        out.print(f"[dim]{time.monotonic() - began:5.1f} s[/dim]  {text}")

    schema, X, y = datasets.iris()
    order = np.random.default_rng(0).permutation(len(X))
    asked, north, south = np.split(order, [HELD_OUT, HELD_OUT + (len(X) - HELD_OUT) // 3])
    with (
        tempfile.TemporaryDirectory() as scratch,
        local_servers(schema, epsilon=EPSILON, max_depth=DEPTH, folder=folder, start=False) as here,
    ):
        tell(f"[bold]setup[/bold]    two authorities, six certificates; task iris: epsilon {EPSILON}, depth {DEPTH}")
        here.start()
        tables = {"north": Path(scratch, "north.csv"), "south": Path(scratch, "south.csv")}
        for owner, places in (("north", north), ("south", south)):
            X.iloc[places].assign(**{schema.target.name: y.iloc[places]}).to_csv(tables[owner], index=False)
        X.iloc[asked].to_csv(Path(scratch, "questions.csv"), index=False)
        tell(f"[bold]servers[/bold]  three processes listen on loopback ({_ports(here)})")

        owners = [_start("client", here.folder / f"client-{name}", tables[name], "--json") for name in tables]
        tell(f"[bold]owners[/bold]   north splits its {len(north)} rows into shares, south its {len(south)}")
        certificates = [json.loads(_finish(owner)) for owner in owners]
        statement = PrivacyStatement.from_dict(certificates[0])
        tell("[bold]servers[/bold]  checked that rows are one-hot and trained a hidden tree")
        answers = Path(scratch, "answers.csv")
        _finish(_start("user", here.folder / "user-analyst", Path(scratch, "questions.csv"), "-o", str(answers)))
        labels = pd.read_csv(answers, dtype=str)[schema.target.name].to_numpy()
        accuracy = float(np.mean(labels == y.iloc[asked].to_numpy()))
        majority = float(y.iloc[asked].value_counts(normalize=True).iloc[0])
        tell(
            f"[bold]user[/bold]     asked {HELD_OUT} questions in shares: {accuracy:.0%} of the answers are right "
            f"(most frequent class: {majority:.0%})"
        )
        log = here.log(0)
    seconds = time.monotonic() - began

    out.print("\n[bold]The certificate[/bold]")
    out.print(f"  {statement}")
    for assumption in statement.assumptions:
        out.print(f"  - {assumption}")
    out.print(_who_saw_what(len(north), len(south)))
    out.print("[bold]All that server 0 wrote down[/bold]")
    for line in log.splitlines():
        out.print(f"  {line}", markup=False)
    out.print(f"\nAll of it in {seconds:.0f} seconds. How to place real servers: docs/secure.md")
    return Story(seconds, accuracy, majority, statement)


def _who_saw_what(north: int, south: int) -> Table:
    table = Table("role", "saw", "did not see", title="What each role saw", box=SIMPLE_HEAD, title_justify="left")
    table.add_row(
        "owner north", f"its own {north} rows; the certificate", "rows of south, the tree, questions, answers"
    )
    table.add_row(
        "owner south", f"its own {south} rows; the certificate", "rows of north, the tree, questions, answers"
    )
    table.add_row(
        "each server",
        f"who sent how many rows ({north} and {south}), how many questions; shares, which are uniformly random",
        "any row, any count, the tree, a question, an answer",
    )
    table.add_row("user analyst", "its questions and the predicted classes; the certificate", "rows, counts, the tree")
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
