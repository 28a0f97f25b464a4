# SPDX-License-Identifier: Apache-2.0
"""The command that predicts for a table: free, since it reads the model alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from veilwood import estimators
from veilwood.cli.ledger import describe_remaining, open_existing_ledger
from veilwood.cli.options import (
    DEFAULT_CSV,
    DEFAULT_SPEND_OPTIONS,
    AsJson,
    CsvOptions,
    Delta,
    Epsilon,
    Force,
    LedgerPath,
    ModelPath,
    Params,
    SpendOptions,
    check_output,
    confirm_spend,
    is_quiet,
    option_groups,
    print_result,
    read_number,
    read_params,
)
from veilwood.cli.schema import SchemaPath, TableArgument
from veilwood.data import frames
from veilwood.data.problems import show_private_values
from veilwood.data.schema import Schema
from veilwood.data.tables import read_feature_batches
from veilwood.errors import UseError
from veilwood.evaluation.evaluate import evaluate
from veilwood.models import file as model_file
from veilwood.privacy.neighbours import RowsOf
from veilwood.tune import averaging_estimator, tunable_estimators, tune

__all__ = ["evaluate_model", "evaluation_path", "predict", "tune_settings"]


def evaluation_path(model: Path) -> Path:
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
    spend_options: SpendOptions = DEFAULT_SPEND_OPTIONS,
) -> None:
    """Measure a model on private rows, with noise, at a price.

    Prints accuracy, AUC, log-loss and calibration, or R2 and errors, with confidence intervals. All of it comes from
    one noisy histogram, which is charged. Unit and adjacency are the model's. Use rows that were not trained on.

    \b
    Example:
      veilwood evaluate visits.veilwood held-out.csv --epsilon 0.1 --ledger visits.db
    """
    if out is not None:
        check_output(out, spend_options.force)
    book = None if ledger is None else open_existing_ledger(ledger)
    forest = model_file.load(model)
    confirm_spend(f"epsilon={epsilon:g}", book, spend_options.yes)
    with show_private_values(spend_options.show_values):
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
    where = (
        "not recorded: no --ledger was given"
        if book is None
        else f"recorded in {book.name}, {describe_remaining(book)}"
    )
    print_result(
        spend_options.as_json, found.to_dict(), f"{found}\nSpend: {where}", quiet_text=None if out is None else str(out)
    )


@option_groups
def predict(
    model: ModelPath,
    table: TableArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="OUT.csv", help="Where to; else printed.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="COLUMN", help="Carry a column along, such as an id; repeat.")
    ] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    csv: CsvOptions = DEFAULT_CSV,
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
    schema, unit = csv.apply_to(forest.schema_), forest.plan_.neighbours.unit
    carried = list(dict.fromkeys(keep or ()))
    if "prediction" in carried:
        raise UseError("--keep prediction would stand beside the prediction itself. Hint: rename the column.")
    extra = [*carried, *([unit.id] if isinstance(unit, RowsOf) else [])]
    batches = read_feature_batches(table, schema, carried, allowed_extra=extra)
    answer = pd.concat([_predict_batch(forest, rows, kept, proba) for rows, kept in batches], ignore_index=True)
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


def _predict_batch(forest: Any, rows: frames.Table, carried: pd.DataFrame, proba: bool) -> pd.DataFrame:
    """Predict for a batch of rows, once; ``carried`` stands before the predictions."""
    if not proba:
        return carried.assign(prediction=forest.predict(rows))
    labels, shares = forest._predict_both(rows)
    named = {f"probability_{name}": share for name, share in zip(forest.classes_, shares.T, strict=True)}
    return carried.assign(prediction=labels, **named)


def tune_settings(
    schema: SchemaPath,
    rows: Annotated[int, typer.Option("--rows", metavar="N", help="How many rows, if public; or a guess.")],
    epsilon: Epsilon = 1.0,
    delta: Delta = 0.0,
    estimator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A family or class; may be repeated. Default: all."),
    ] = None,
    param: Params = None,
    as_json: AsJson = False,
) -> None:
    """Plan many settings and rank them; no data is read, nothing is spent.

    PrivateForest is not among them: it chooses for itself.

    \b
    Example:
      veilwood tune --schema visits.json --rows 2000 --epsilon 0.5 --estimator random-trees --param max_depth=[2,3,4]
    """
    declared = Schema.load(schema)
    own = [kind for kind in tunable_estimators() if kind._task == declared.task]
    if estimator:
        asked = {name if name not in estimators.__all__ else estimators.family_of(name) for name in estimator}
        unknown = asked - {estimators.family_of(kind.__name__) for kind in own}
        if unknown:
            known = ", ".join(dict.fromkeys(estimators.family_of(kind.__name__) for kind in own))
            raise UseError(f"{sorted(unknown)[0]!r} cannot be tuned for {declared.task}. Hint: one of {known}.")
        own = [kind for kind in own if estimators.family_of(kind.__name__) in asked]
    grid = {key: value if isinstance(value, list) else [value] for key, value in read_params(param).items()}
    found = tune(
        declared, [averaging_estimator(kind) for kind in own], n_rows=rows, epsilon=epsilon, delta=delta, grid=grid
    )
    print_result(as_json, found.to_dict(), str(found))
