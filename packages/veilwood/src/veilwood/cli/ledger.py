# SPDX-License-Identifier: Apache-2.0
"""Commands for the custodian of a ledger: create, show, verify and resolve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from veilwood.cli.options import AsJson, print_result, read_number
from veilwood.cli.terminal import wrap_lines
from veilwood.errors import LedgerError
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.ledger_stores import PostgresLedger, SQLiteLedger, open_ledger
from veilwood.privacy.loss import Loss

ledgers = typer.Typer(help="Create, show, verify or resolve a ledger.", rich_markup_mode=None)

LedgerPlace = Annotated[
    str, typer.Argument(metavar="LEDGER", help="Ledger: path of a file, or postgresql://host/database#name.")
]


@ledgers.command("create")
def ledger_create(
    ledger: LedgerPlace,
    epsilon: Annotated[
        float | None, typer.Option(metavar="E", parser=read_number, help="Epsilon of the budget. Default: no limit.")
    ] = None,
    delta: Annotated[float, typer.Option(metavar="D", parser=read_number, help="Delta of the budget.")] = 0.0,
    population: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Description of the people whose privacy the ledger protects.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a ledger. With a budget, it rejects every charge that would exceed it.

    Use one ledger for all tables and schemas about the same people: the losses add up. A ledger with a budget rejects
    releases that are NOT PRIVATE. A ledger without a budget records them and shows its total as unbounded.

    \b
    Example:
      veilwood ledger create visits.db --epsilon 3 --population "patients of clinic X"
    """
    if not _is_database_address(ledger) and Path(ledger).exists():
        raise LedgerError(f"{ledger} exists already. Hint: run veilwood ledger show {ledger}, or pass a new path.")
    ledger_class: Callable[..., Ledger] = PostgresLedger if _is_database_address(ledger) else SQLiteLedger
    opened = ledger_class(ledger, epsilon, delta, population)
    people = "" if population is None else f" of {population}"
    print_result(as_json, _ledger_summary(opened), f"Created {opened.name}{people}, {describe_remaining(opened)}.")


@ledgers.command("show")
def ledger_show(ledger: LedgerPlace, as_json: AsJson = False) -> None:
    """Print the budget, the remaining budget and every entry, by table.

    \b
    Example:
      veilwood ledger show visits.db
    """
    opened = open_existing_ledger(ledger)
    entries = [{**asdict(entry), "loss": str(entry.loss)} for entry in opened.entries()]
    text = wrap_lines(f"{opened}\n{describe_remaining(opened)}", indent=" " * 8)
    print_result(as_json, {**_ledger_summary(opened), "entries": entries}, text)


@ledgers.command("verify")
def ledger_verify(ledger: LedgerPlace, as_json: AsJson = False) -> None:
    """Recompute the hash chain and the totals, and print the last hash.

    Store the hash elsewhere: a ledger that later lacks this hash is an older copy, or was rewritten.

    \b
    Example:
      veilwood ledger verify visits.db
    """
    opened = open_existing_ledger(ledger)
    head = opened.verify()
    print_result(
        as_json, {"intact": True, "head": head}, f"{opened.name} is intact; the hash of its last event is {head}"
    )


@ledgers.command("resolve")
def ledger_resolve(
    ledger: LedgerPlace,
    entry: Annotated[int, typer.Argument(metavar="ENTRY", help="Number of the entry, as printed by ledger show.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Reason to record in the ledger.")],
    as_json: AsJson = False,
) -> None:
    """Settle an entry that a crash left reserved. It counts as spent, because noise may have been drawn.

    \b
    Example:
      veilwood ledger resolve visits.db 4 --reason "power failure during the fit of May 3"
    """
    opened = open_existing_ledger(ledger)
    opened.resolve(entry, reason)
    text = f"Entry {entry} of {opened.name} is settled as spent; {describe_remaining(opened)}."
    print_result(as_json, {**_ledger_summary(opened), "resolved": entry}, text)


def open_existing_ledger(place: str) -> Ledger:
    """Open a ledger. Raise LedgerError if it does not exist."""
    if _is_database_address(place):
        return PostgresLedger(place, create=False)
    if not Path(place).exists():
        raise LedgerError(f"there is no ledger {place!r}. Hint: run veilwood ledger create {place} --epsilon 3.")
    return open_ledger(place)


def _is_database_address(place: str) -> bool:
    return place.startswith(("postgresql://", "postgres://"))


def describe_charge(ledger: Ledger) -> str:
    """Return a text that states where a charge was recorded, and the remaining budget."""
    if ledger.durability == "not":
        return "not recorded: no --ledger was given"
    return f"recorded in {ledger.name}, {describe_remaining(ledger)}"


def describe_remaining(ledger: Ledger) -> str:
    """Return the remaining budget as text."""
    return "no limit" if ledger.budget is None else f"{ledger.remaining} left of {ledger.budget}"


def _ledger_summary(ledger: Ledger) -> dict[str, Any]:
    amounts: dict[str, Loss | None] = {"budget": ledger.budget, "spent": ledger.spent, "remaining": ledger.remaining}
    cause = ledger.unbounded_by
    return {
        "ledger": ledger.name,
        "of": ledger.population,
        **{name: None if loss is None else str(loss) for name, loss in amounts.items()},
        "unbounded_by": None if cause is None else cause.id,
    }
