# SPDX-License-Identifier: Apache-2.0
"""The command that measures a model on private rows, at a price. What it means is in ``veilwood.evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilwood.cli.ledger import existing_ledger, left_of
from veilwood.cli.options import (
    ASKED_FIRST,
    Care,
    Delta,
    LedgerPath,
    ModelPath,
    check_output,
    confirm_spend,
    option_groups,
    read_number,
    say,
)
from veilwood.cli.schema import TableArgument
from veilwood.data.private_text import showing_values
from veilwood.evaluate import evaluate
from veilwood.models import file as model_file

__all__ = ["evaluate_model", "quality_file"]


def quality_file(model: Path) -> Path:
    """Where an evaluation of a model is kept beside it, so that a report finds it."""
    return model.with_suffix(".quality.json")


@option_groups
def evaluate_model(
    model: ModelPath,
    table: TableArgument,
    epsilon: Annotated[
        float, typer.Option("--epsilon", metavar="E", parser=read_number, help="Privacy loss of the evaluation.")
    ],
    delta: Delta = 0.0,
    ledger: LedgerPath = None,
    drop: Annotated[bool, typer.Option("--drop", help="Leave out rows that do not fit, instead of refusing.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="OUT.json", help="Write it for veilwood report.")
    ] = None,
    care: Care = ASKED_FIRST,
) -> None:
    """Measure a model on private rows, with noise, at a price.

    Prints accuracy, AUC, log-loss and calibration, or R2 and errors, with confidence intervals. All of it comes from
    one noisy histogram, which is charged. Unit and adjacency are the model's. Use rows that were not trained on.

    \b
    Example:
      veilwood evaluate visits.veilwood held-out.csv --epsilon 0.1 --ledger visits.db
    """
    if out is not None:
        check_output(out, care.force)
    book = None if ledger is None else existing_ledger(ledger)
    forest = model_file.load(model)
    confirm_spend(f"epsilon={epsilon:g}", book, care.yes)
    with showing_values(care.show_values):
        found = evaluate(
            forest,
            table,
            epsilon=epsilon,
            delta=delta,
            ledger=book,
            invalid="drop" if drop else "refuse",
        )
    if out is not None:
        found.save(out)
    where = "not recorded: no --ledger was given" if book is None else f"recorded in {book.name}, {left_of(book)}"
    say(care.as_json, found.to_dict(), f"{found}\nSpend: {where}", short=None if out is None else str(out))
