# SPDX-License-Identifier: Apache-2.0
"""The commands of those who keep a ledger: create, show, verify, resolve. What they mean is in ``privacy.ledger``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from veilwood.cli.options import AsJson, print_result, read_number
from veilwood.errors import LedgerError
from veilwood.privacy.ledger_stores import Ledger, PostgresLedger, SQLiteLedger, open_ledger
from veilwood.privacy.loss import Loss

__all__ = ["describe_remaining", "ledgers", "open_existing_ledger"]

ledgers = typer.Typer(help="Make, show, verify or settle a record of spends.", rich_markup_mode=None)

LedgerPlace = Annotated[str, typer.Argument(metavar="LEDGER", help="Its file, or postgresql://host/database#name.")]


@ledgers.command("create")
def ledger_create(
    ledger: LedgerPlace,
    epsilon: Annotated[
        float | None, typer.Option(metavar="E", parser=read_number, help="The budget; without it, no limit.")
    ] = None,
    delta: Annotated[float, typer.Option(metavar="D", parser=read_number, help="The budget's delta.")] = 0.0,
    of: Annotated[str | None, typer.Option(metavar="PEOPLE", help="Whom it protects, in words.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a ledger with a budget, which then refuses what would exceed it.

    One ledger for the same people, whatever tables and schemas they are in: their losses add up. A ledger with a
    budget refuses what is NOT PRIVATE; one without records it and shows its total as unbounded.

    \b
    Example:
      veilwood ledger create visits.db --epsilon 3 --of "patients of clinic X"
    """
    if not _is_database_address(ledger) and Path(ledger).exists():
        raise LedgerError(f"{ledger} exists already. Hint: veilwood ledger show {ledger}, or give a new path.")
    maker: Callable[..., Ledger] = PostgresLedger if _is_database_address(ledger) else SQLiteLedger
    book = maker(ledger, epsilon, delta, of)
    whom = "" if of is None else f" of {of}"
    print_result(as_json, _ledger_summary(book), f"Made {book.name}{whom}, {describe_remaining(book)}.")


@ledgers.command("show")
def ledger_show(ledger: LedgerPlace, as_json: AsJson = False) -> None:
    """Print the budget, what is left and every spend, by table.

    \b
    Example:
      veilwood ledger show visits.db
    """
    book = open_existing_ledger(ledger)
    entries = [{**asdict(entry), "loss": str(entry.loss)} for entry in book.entries()]
    print_result(as_json, {**_ledger_summary(book), "entries": entries}, f"{book}\n{describe_remaining(book)}")


@ledgers.command("verify")
def ledger_verify(ledger: LedgerPlace, as_json: AsJson = False) -> None:
    """Recompute the chain of hashes and the totals; print the last hash, to be noted elsewhere.

    \b
    Example:
      veilwood ledger verify visits.db
    """
    book = open_existing_ledger(ledger)
    head = book.verify()
    print_result(as_json, {"intact": True, "head": head}, f"{book.name} is intact; its last event has the hash {head}")


@ledgers.command("resolve")
def ledger_resolve(
    ledger: LedgerPlace,
    entry: Annotated[int, typer.Argument(metavar="ENTRY", help="Its number, as ledger show prints it.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded.")],
    as_json: AsJson = False,
) -> None:
    """Settle what a crash left reserved: always as spent, since noise may have been drawn.

    \b
    Example:
      veilwood ledger resolve visits.db 4 --reason "power failure during the fit of May 3"
    """
    book = open_existing_ledger(ledger)
    book.resolve(entry, reason)
    text = f"Entry {entry} of {book.name} is settled as spent; {describe_remaining(book)}."
    print_result(as_json, {**_ledger_summary(book), "resolved": entry}, text)


def open_existing_ledger(place: str) -> Ledger:
    """Open a ledger, which must be there."""
    if _is_database_address(place):
        return PostgresLedger(place, create=False)
    if not Path(place).exists():
        raise LedgerError(f"there is no ledger {place!r}. Hint: veilwood ledger create {place} --epsilon 3")
    return open_ledger(place)


def _is_database_address(place: str) -> bool:
    return place.startswith(("postgresql://", "postgres://"))


def describe_remaining(ledger: Ledger) -> str:
    """Say what is left."""
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
