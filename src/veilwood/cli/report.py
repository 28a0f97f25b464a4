# SPDX-License-Identifier: Apache-2.0
"""The command that writes a model as one page, for people who would rather look. The page is made in ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilwood.cli.evaluate import quality_file
from veilwood.cli.ledger import existing_ledger
from veilwood.cli.options import AsJson, Force, ModelPath, check_output, say
from veilwood.report import report

__all__ = ["report_model"]


def report_model(
    model: ModelPath,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="REPORT.html", help="Default: MODEL's name with .html.")
    ] = None,
    evaluation: Annotated[
        Path | None, typer.Option(metavar="QUALITY.json", help="What veilwood evaluate wrote; else MODEL.quality.json.")
    ] = None,
    ledger: Annotated[str | None, typer.Option(metavar="LEDGER", help="Show its entries and budget.")] = None,
    signed_by: Annotated[
        Path | None, typer.Option("--signed-by", metavar="PUB", help="Check the signature with this public key.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a model as one page to look at and print; free.

    What is promised to one person, how good the model is, what it learned, what was measured and why, the ledger, the
    certificate, the signature. The page needs no other file.

    \b
    Example:
      veilwood report visits.veilwood -o visits.html --ledger visits.db
    """
    place = model.with_suffix(".html") if out is None else out
    check_output(place, force)
    found = quality_file(model) if evaluation is None and quality_file(model).exists() else evaluation
    book = None if ledger is None else existing_ledger(ledger)
    report(model, place, evaluation=found, ledger=book, signed_by=signed_by)
    say(as_json, {"report": str(place)}, f"Wrote {place}: open it in a browser.", short=str(place))
