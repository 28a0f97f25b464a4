# SPDX-License-Identifier: Apache-2.0
"""Commands ``plan``, ``fit``, ``evaluate``, ``predict`` and ``tune``."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import pandas as pd
import typer

from veilwood import estimators
from veilwood.cli import options
from veilwood.cli.ledger import describe_charge, open_existing_ledger
from veilwood.cli.schema import SchemaPath, TableArgument
from veilwood.cli.summaries import describe_plan, describe_quality
from veilwood.cli.terminal import format_table, labelled, wrap_lines
from veilwood.data.columns import did_you_mean
from veilwood.data.problems import show_private_values
from veilwood.data.schema import Schema, TaskKind
from veilwood.errors import NotFoundError, PrivacyWarning, SchemaError, UseError
from veilwood.estimators.new_rows import NewRowCounts, check_rule, predict_files
from veilwood.estimators.parameters import estimator_from_plan, separate_parameters, tuned_parameters
from veilwood.evaluation.evaluate import evaluate
from veilwood.forests.adaptive.private_forest import EXAMPLE_ROWS, row_epsilon_of
from veilwood.forests.expected_skill import describe_skill_scale, estimate_skill, holdout_cost
from veilwood.models import file as model_file
from veilwood.privacy.accountant import process_spend
from veilwood.privacy.ledger import NO_LEDGER, Ledger
from veilwood.privacy.loss import requested_loss
from veilwood.privacy.plan import Plan
from veilwood.safe_io import write_file
from veilwood.siblings import SQL_PREVIEW, find_database
from veilwood.tuning import Tuning, averaging_estimator, tunable_estimators, tune


def _find_families() -> dict[str, dict[TaskKind, type]]:
    """Return the estimators that fit a model, by family name and task."""
    families: dict[str, dict[TaskKind, type]] = {}
    for name in estimators.__all__:
        if not name.endswith("Predictor"):
            estimator = getattr(estimators, name)
            families.setdefault(estimators.family_of(name), {})[estimator._task] = estimator
    return families


FAMILIES = _find_families()
"""Estimators by family name and task. The task of the schema selects the estimator of a family."""

DEFAULT_FAMILY = "private-forest"
"""Family of estimators recommended for most users."""


def evaluation_path(model: Path) -> Path:
    """Return the path next to a model where a report looks for its evaluation."""
    return model.with_suffix(".quality.json")


@dataclass(frozen=True)
class EstimatorOptions:
    """Options that describe an estimator, by its family or the name of its class."""

    estimator: Annotated[
        str, typer.Option("--estimator", metavar="NAME", help=f"Family or class: {', '.join(FAMILIES)}.")
    ] = DEFAULT_FAMILY
    epsilon: options.Epsilon = 1.0
    delta: options.Delta = 0.0
    param: options.Params = None
    drop: options.Drop = False

    def make_estimator(self, schema: Schema, ledger: Ledger | None = None) -> Any:
        """Return the estimator for a schema."""
        family = self.estimator
        if family.endswith("Predictor") and family in estimators.__all__:
            raise UseError(
                f"{family} answers batches of queries and has no model to write to a file. Hint: use it in Python "
                f"or in the service, or choose {estimators.family_of(family)}, which fits a model."
            )
        if family in estimators.__all__:
            family = estimators.family_of(family)
        if family not in FAMILIES:
            hint = f"choose one of {', '.join(FAMILIES)}.{did_you_mean(family, FAMILIES)}"
            raise NotFoundError("estimator", family, hint=hint)
        estimator = FAMILIES[family].get(schema.task)
        if estimator is None:
            raise SchemaError(
                f"{family} has no estimator for {schema.task}, the task of schema {schema.name!r}. Hint: choose "
                f"another family: {', '.join(FAMILIES)}."
            )
        with_options = separate_parameters(estimator)
        allowed = [name for name in inspect.signature(estimator).parameters if name not in with_options]
        # The seed is public, and fixed so that fit executes exactly the printed plan.
        parameters: dict[str, Any] = {"random_state": 0, "invalid": "drop" if self.drop else "refuse"}
        for key, value in options.read_params(self.param).items():
            if key in with_options:
                raise UseError(f"--param cannot set {key!r}. Hint: use the option --{key}.")
            if key not in allowed:
                raise UseError(
                    f"{estimator.__name__} has no parameter {key!r}.{did_you_mean(key, allowed)} "
                    f"Hint: choose one of {', '.join(allowed)}."
                )
            parameters[key] = value
        return estimator(schema, epsilon=self.epsilon, delta=self.delta, ledger=ledger, **parameters)


DEFAULT_ESTIMATOR: Final = EstimatorOptions()

SqlOption = Annotated[
    str | None,
    typer.Option(
        "--sql", metavar="ENGINE|ADDRESS", help="Database engine or address for which to print the SQL statements too."
    ),
]


RowsOption = Annotated[
    int | None,
    typer.Option("--rows", metavar="N", help="Public or guessed number of rows, for which to estimate the quality."),
]


@options.option_groups
def plan(
    schema: SchemaPath,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Ignored: the table of the later fit.")] = None,
    estimator_options: EstimatorOptions = DEFAULT_ESTIMATOR,
    search: Annotated[
        bool, typer.Option("--search", help="Plan many settings and rank them; requires --rows.")
    ] = False,
    rows: RowsOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="PLAN.json", help="Output file, for fit --plan.")
    ] = None,
    sql: SqlOption = None,
    csv: options.CsvOptions = options.DEFAULT_CSV,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Print what fit would release, without reading data.

    Prints the released values, the loss, the sensitivity and the size of the noise. A saved plan can be signed, and
    fit --plan executes exactly that plan.

    \b
    Example:
      veilwood plan --schema visits.json --epsilon 0.5 --rows 20000 -o plan.json
      veilwood plan --schema visits.json --epsilon 0.5 --estimator random-trees --search --rows 2000
      veilwood plan --schema visits.json --sql postgres
    """
    declared = csv.apply_to(_load_schema(schema))
    forest = estimator_options.make_estimator(declared)
    if search and rows is None:
        raise UseError("--search requires --rows. Hint: pass --rows N with a public or noisy number of rows.")
    if out is not None:
        options.check_output(out, force)
    planned: Any
    if not search or rows is None:
        planned = forest.plan()
        if out is not None:
            planned.save(out)
    else:
        parameters = options.read_params(estimator_options.param)
        tuned = tuned_parameters(type(forest))
        grid = {key: v if isinstance(v, list) else [v] for key, v in parameters.items() if key in tuned}
        planned = tune(
            forest.schema,
            forest,
            n_rows=rows,
            epsilon=estimator_options.epsilon,
            delta=estimator_options.delta,
            grid=grid,
        )
    note = f"\nPlan: {out}, sha256 {planned.fingerprint()}" if isinstance(planned, Plan) and out is not None else ""
    payload = planned.to_dict()
    if sql is not None:
        statements = SQL_PREVIEW.load().preview_statements(forest, sql)
        payload["statements"] = statements
        note += "\n\n-- SQL statements. KEY replaces a secret key; later rounds have other constants.\n"
        note += "\n".join(f"{statement};" for statement in statements)
    text = str(planned)
    if isinstance(planned, Plan):
        text = describe_plan(planned, declared, expected=_expected_lines(planned, declared, rows))
    options.print_result(as_json, payload, f"{text}{note}", quiet_text=None if out is None else str(out))


def _expected_lines(planned: Plan, schema: Schema, rows: int | None, holdout: float | None = None) -> list[str]:
    """Return lines with the expected quality at the declared or given number of rows, otherwise at examples."""
    if not planned.expected or planned.loss.epsilon is None:
        return []
    declared = planned.layout.rows_planned if rows is None else rows
    lines = []
    for n in EXAMPLE_ROWS if declared is None else (declared,):
        facts = (schema.task, n, len(schema.features), row_epsilon_of(planned.loss, planned.neighbours))
        cost = "" if holdout is None else f"; the holdout costs {100 * holdout_cost(*facts, holdout):.0f} %"
        lines.append(f"{n:>9,} rows  {estimate_skill(*facts)}{cost}")
    return lines + ["(--rows N for yours)"] * (declared is None)


@options.option_groups
def fit(
    context: typer.Context,
    table: TableArgument,
    schema: SchemaPath,
    estimator_options: EstimatorOptions = DEFAULT_ESTIMATOR,
    ledger: options.LedgerPath = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="MODEL", help="Output file. Default: name of TABLE, with .veilwood."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="PLAN.json", help="Plan to execute; it sets estimator, budget and parameters."),
    ] = None,
    csv: options.CsvOptions = options.DEFAULT_CSV,
    holdout_fraction: Annotated[
        float | None,
        typer.Option("--holdout", metavar="FRACTION", help="Fraction of the units to hold out for evaluation."),
    ] = None,
    evaluate_epsilon: Annotated[
        float | None,
        typer.Option(
            "--evaluate-epsilon",
            metavar="E",
            help="Privacy loss of the evaluation with --holdout, if it adds to that of the fit.",
        ),
    ] = None,
    rows: RowsOption = None,
    spend_options: options.SpendOptions = options.DEFAULT_SPEND_OPTIONS,
) -> None:
    """Train a private model on a table and charge the ledger.

    Prints the plan, charges the ledger once and writes the model, which contains its certificate. With --plan, the plan
    sets the estimator, budget and parameters, and the certificate states the hash of the plan.

    \b
    Example:
      veilwood fit visits.csv --schema visits.json --epsilon 1 --ledger visits.db -o visits.veilwood
      veilwood fit visits.csv --schema visits.json --plan plan.json --ledger visits.db
    """
    out = Path(re.split(r"[.*?\[]", Path(table).name)[0] or "model").with_suffix(".veilwood") if out is None else out
    options.check_output(out, spend_options.force)
    if holdout_fraction is not None:
        options.check_output(evaluation_path(out), spend_options.force)
    if find_database(table) is not None:
        options.check_output(statements_file(out), spend_options.force)
    charged = NO_LEDGER if ledger is None else open_existing_ledger(ledger)
    declared = csv.apply_to(_load_schema(schema))
    if plan is None:
        forest = estimator_options.make_estimator(declared, charged)
        planned = forest.plan()
    else:
        planned = Plan.load(plan)
        if conflicts := options.explicit_options(context, inspect.signature(EstimatorOptions).parameters):
            raise UseError(f"--plan already sets {conflicts[0]}. Hint: omit --{conflicts[0]}, or make a new plan.")
        forest = estimator_from_plan(declared, planned, charged)
    if not spend_options.as_json:
        expected = _expected_lines(planned, declared, rows, holdout_fraction)
        options.print_info(f"{describe_plan(planned, declared, charged, expected)}\n")
    evaluation = "" if evaluate_epsilon is None else f" and epsilon={evaluate_epsilon:g} for the evaluation"
    if holdout_fraction is not None and not evaluation:
        evaluation = " for training and evaluation"
    options.confirm_spend(f"{planned.loss}{evaluation}", charged, spend_options.yes)
    with _note_spend(charged, planned), show_private_values(spend_options.show_values):
        forest.fit(table, plan=planned, holdout_fraction=holdout_fraction, evaluate_epsilon=evaluate_epsilon)
        model_file.save(forest, out)
        if forest.statements_:
            write_file(statements_file(out), "".join(f"{line}\n" for line in forest.statements_).encode())
        if holdout_fraction is not None:
            forest.evaluation_.save(evaluation_path(out))
    data = {"model": str(out), "certificate": forest.privacy_.to_dict(), "plan": forest.plan_.to_dict()}
    lines: list[tuple[str, str | Sequence[str]]] = []
    written = [str(out)]
    if holdout_fraction is not None:
        quality = forest.evaluation_.quality
        data["evaluation"] = forest.evaluation_.to_dict()
        about = "" if quality.rows.value is None else f"; about {quality.rows.value:,.0f} rows held out"
        lines.append(("Learned", f"{describe_quality(quality)}{about}"))
        written.append(str(evaluation_path(out)))
    if chosen := forest.plan_.learned:
        lines.append(("Chosen", chosen))
    certificate = forest.privacy_
    if certificate.is_private:
        loss = f"epsilon {certificate.epsilon:g}" + f", delta {certificate.delta:g}" * bool(certificate.delta)
    else:
        loss = str(certificate)
    entry = "" if charged.durability == "not" else f" (entry {certificate.ledger_entry})"
    lines.append(("Spent", f"{loss}; {describe_charge(charged)}{entry}"))
    if forest.statements_:
        written.append(f"{statements_file(out)} (SHA-256 of the SQL statements)")
    lines.append(("Wrote", ", ".join(written)))
    shown = "" if ledger is None else f" --ledger {ledger}"
    lines.append(
        ("Next", [f"veilwood report {out}{shown}", f"veilwood certificate {out}   (all steps and their noise)"])
    )
    options.print_result(spend_options.as_json, data, labelled(lines), quiet_text=str(out))


def statements_file(model: Path) -> Path:
    """Return the path of the file with the hashes of the SQL statements that a fit sent."""
    return model.with_suffix(".statements.txt")


@options.option_groups
def evaluate_model(
    model: options.ModelPath,
    table: TableArgument,
    epsilon: Annotated[
        float,
        typer.Option("--epsilon", metavar="E", parser=options.read_number, help="Privacy loss of the evaluation."),
    ],
    delta: options.Delta = 0.0,
    ledger: options.LedgerPath = None,
    drop: options.Drop = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="OUT.json", help="Output file, for veilwood report.")
    ] = None,
    spend_options: options.SpendOptions = options.DEFAULT_SPEND_OPTIONS,
) -> None:
    """Evaluate a model on private rows and charge the ledger.

    Prints accuracy, AUC, log-loss and calibration, or R2 and errors, with confidence intervals. All are computed from
    one noisy histogram, which is charged. The privacy unit and adjacency are those of the model. Use rows that the
    model was not trained on.

    \b
    Example:
      veilwood evaluate visits.veilwood held-out.csv --epsilon 0.1 --ledger visits.db
    """
    if out is not None:
        options.check_output(out, spend_options.force)
    charged = NO_LEDGER if ledger is None else open_existing_ledger(ledger)
    forest = model_file.load(model)
    options.confirm_spend(f"epsilon={epsilon:g}", charged, spend_options.yes)
    with show_private_values(spend_options.show_values):
        evaluation = evaluate(
            forest,
            table,
            epsilon=epsilon,
            delta=delta,
            ledger=None if ledger is None else charged,
            invalid="drop" if drop else "refuse",
        )
    if out is not None:
        evaluation.save(out)
    text = f"{evaluation.quality}\n\n" + labelled(
        [("Spent", f"epsilon {epsilon:g}; {describe_charge(charged)}"), ("Wrote", str(out))][: 2 if out else 1]
    )
    options.print_result(
        spend_options.as_json, evaluation.to_dict(), text, quiet_text=None if out is None else str(out)
    )


@options.option_groups
def predict(
    model: options.ModelPath,
    table: TableArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="OUT.csv", help="Output file. Default: standard output.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="COLUMN", help="Column to copy to the output, such as an id; repeatable."),
    ] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    unknown: Annotated[
        str,
        typer.Option(
            "--unknown", metavar="RULE", help="Treatment of values outside the schema: other, missing, skip or refuse."
        ),
    ] = "other",
    csv: options.CsvOptions = options.DEFAULT_CSV,
    show_values: options.ShowValues = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict for every row of a table.

    Spends no budget. Predictions are in the order of the rows. By default, a category that is not in the schema counts
    as the mean over all categories, and an unusable number as missing. A row that lacks a required number gets no
    prediction. A note states how many rows were affected.

    \b
    Example:
      veilwood predict visits.veilwood new-visits.csv -o predictions.csv --proba
      veilwood predict visits.veilwood new-visits.csv --keep patient_id --unknown skip --show-values
    """
    rule = check_rule(unknown, "other")
    if out is not None:
        options.check_output(out, force)
    forest: Any = model_file.load(model)
    if proba and not hasattr(forest, "predict_proba"):
        raise UseError(f"{model} is a regression model and has no class probabilities. Hint: omit --proba.")
    copied = list(dict.fromkeys(keep or ()))
    if "prediction" in copied:
        raise UseError("--keep prediction conflicts with the column of predictions. Hint: rename the column.")
    counts = NewRowCounts()
    with show_private_values(show_values):
        parts = list(predict_files(forest, table, csv.apply_to(forest.schema_), rule, counts, copied))
    names = [f"probability_{name}" for name in forest.classes_] if proba else []
    predictions = pd.concat(
        [
            kept.assign(prediction=labels, **dict(zip(names, outputs.T, strict=True) if proba else ()))
            for kept, outputs, labels in parts
        ],
        ignore_index=True,
    )
    if as_json:
        text = predictions.to_json(orient="records", indent=1) + "\n"
    else:
        text = predictions.to_csv(index=False, lineterminator="\n")
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")
        if not options.is_quiet():
            print(f"Wrote {len(predictions):,} predictions to {out}", file=sys.stderr)
    if counts.by_column and not options.is_quiet():
        hint = "pass --unknown other, missing or skip to choose" + ", --show-values to see them" * (not show_values)
        print(f"Note: {counts}. Hint: {hint}.", file=sys.stderr)


def tune_settings(
    schema: SchemaPath,
    rows: Annotated[int, typer.Option("--rows", metavar="N", help="Public or estimated number of rows.")],
    epsilon: options.Epsilon = 1.0,
    delta: options.Delta = 0.0,
    estimator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Family or class; repeatable. Default: all."),
    ] = None,
    param: options.Params = None,
    as_json: options.AsJson = False,
) -> None:
    """Plan many settings and rank them, without reading data.

    Excludes PrivateForest, which chooses its own settings.

    \b
    Example:
      veilwood tune --schema visits.json --rows 2000 --epsilon 0.5 --estimator random-trees --param max_depth=[2,3,4]
    """
    declared = Schema.load(schema)
    candidates = [each for each in tunable_estimators() if each._task == declared.task]
    if estimator:
        families = {name if name not in estimators.__all__ else estimators.family_of(name) for name in estimator}
        tunable = list(dict.fromkeys(estimators.family_of(each.__name__) for each in candidates))
        if unknown := sorted(families - set(tunable)):
            raise UseError(
                f"{unknown[0]!r} cannot be tuned for {declared.task}. Hint: choose one of {', '.join(tunable)}."
            )
        candidates = [each for each in candidates if estimators.family_of(each.__name__) in families]
    grid = {key: value if isinstance(value, list) else [value] for key, value in options.read_params(param).items()}
    averaging = [averaging_estimator(each) for each in candidates]
    tuning = tune(declared, averaging, n_rows=rows, epsilon=epsilon, delta=delta, grid=grid)
    own = estimate_skill(
        declared.task, rows, len(declared.features), row_epsilon_of(requested_loss(epsilon, 0), tuning.neighbours)
    )
    first = f"PrivateForest chooses its own settings: expect {own}, {describe_skill_scale(declared.classes)[:-1]}"
    options.print_result(as_json, tuning.to_dict(), f"{wrap_lines(first)}\n\n{_describe_tuning(tuning)}")


def _describe_tuning(tuning: Tuning) -> str:
    """Return the ten best settings as a table no wider than the terminal."""
    head = ("skill", "score", "leaves", "rows/leaf", "noise", "setting")
    rows = []
    for each in tuning.settings[:10]:
        setting = ", ".join(f"{name}={value}" for name, value in each.parameters.items())
        numbers = (f"{each.skill:.2f}", f"{each.score:.2f}", f"{each.n_leaves:,}", f"{each.rows_per_leaf:,.0f}")
        rows.append((*numbers, f"{each.noise_std:.1f}", f"{each.estimator}({setting})"))
    return f"{wrap_lines(tuning.summary)}\n{format_table(head, rows)}"


def _load_schema(path: Path) -> Schema:
    schema = Schema.load(path)
    if schema.inferred:
        warnings.warn(
            f"{path} is an unreviewed draft: its bounds and categories were read from the data, so the result is NOT "
            'PRIVATE. Hint: replace them with public knowledge and delete the marks "bounds", "notes" and "inferred".',
            PrivacyWarning,
            stacklevel=2,
        )
    return schema


@contextmanager
def _note_spend(ledger: Ledger, planned: Plan) -> Iterator[None]:
    """Add to any error inside, including Ctrl-C, whether the budget was spent."""
    before = _count_charges(ledger, planned)
    try:
        yield
    except BaseException as error:
        if getattr(error, "__notes__", ()):  # the release door added this note already
            raise
        spent = _count_charges(ledger, planned) > before
        error.add_note(f"{planned.loss} counts as spent ({ledger.name})." if spent else "Nothing was spent.")
        raise


def _count_charges(ledger: Ledger, planned: Plan) -> int:
    """Return the number of charges for a plan or, without a ledger, of releases in this process."""
    if ledger.durability == "not":
        return sum(process_spend().releases.values())
    return sum(entry.is_counted and entry.plan == planned.fingerprint() for entry in ledger.entries())
