# SPDX-License-Identifier: Apache-2.0
"""The command that predicts for a table: free, since it reads the model alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from veilwood.cli.options import UNSAID, AsJson, Csv, Force, ModelPath, check_output, is_quiet, option_groups
from veilwood.cli.schema import TableArgument
from veilwood.data import frames
from veilwood.data.tables import feature_batches
from veilwood.errors import UseError
from veilwood.models import file as model_file
from veilwood.privacy.neighbours import RowsOf

__all__ = ["predict"]


@option_groups
def predict(
    model: ModelPath,
    table: TableArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="OUT.csv", help="Where to; else printed.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="COLUMN", help="Carry a column along, such as an id; repeat.")
    ] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    csv: Csv = UNSAID,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Predict for every row of a table; free.

    Predictions come in the order of the rows and spend no budget.

    \b
    Example:
      veilwood predict visits.veilwood new-visits.csv -o predictions.csv --proba
      veilwood predict visits.veilwood new-visits.csv --keep patient_id
    """
    if out is not None:
        check_output(out, force)
    forest: Any = model_file.load(model)
    if proba and not hasattr(forest, "predict_proba"):
        raise UseError(f"{model} predicts numbers, which have no classes. Hint: leave --proba out.")
    schema, unit = csv.declared(forest.schema_), forest.plan_.neighbours.unit
    carried = list(dict.fromkeys(keep or ()))
    if "prediction" in carried:
        raise UseError("--keep prediction would stand beside the prediction itself. Hint: rename the column.")
    extra = [*carried, *([unit.id] if isinstance(unit, RowsOf) else [])]
    batches = feature_batches(table, schema, carried, allowed_extra=extra)
    answer = pd.concat([_answers(forest, rows, kept, proba) for rows, kept in batches], ignore_index=True)
    if as_json:
        text = answer.to_json(orient="records", indent=1) + "\n"
    else:
        text = answer.to_csv(index=False, lineterminator="\n")
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")
        if not is_quiet():
            print(f"Wrote {len(answer)} predictions to {out}", file=sys.stderr)


def _answers(forest: Any, rows: frames.Table, kept: pd.DataFrame, proba: bool) -> pd.DataFrame:
    """Predict for a batch of rows, once; ``kept`` stands before the predictions."""
    if not proba:
        return kept.assign(prediction=forest.predict(rows))
    labels, shares = forest.answers(rows)
    named = {f"probability_{name}": share for name, share in zip(forest.classes_, shares.T, strict=True)}
    return kept.assign(prediction=labels, **named)
