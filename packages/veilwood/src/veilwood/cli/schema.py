# SPDX-License-Identifier: Apache-2.0
"""Commands for schemas: draft, review, discover privately, and check a table."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from veilwood.cli import options
from veilwood.cli.ledger import describe_charge, open_existing_ledger
from veilwood.cli.review import ReviewPrompt
from veilwood.data.columns import TEXT_RULES
from veilwood.data.dialect import Dialect
from veilwood.data.file_source import check_files
from veilwood.data.problems import show_private_values
from veilwood.data.schema import Schema
from veilwood.drafting.discover import discover
from veilwood.drafting.draft import draft_columns_again, draft_from_table
from veilwood.drafting.review import Review, format_schema
from veilwood.errors import OutOfSchemaError, UseError
from veilwood.privacy.ledger import NO_LEDGER

_COMMA_NUMBER = re.compile(r"[-+]?\d+(\.\d{3})*,\d+")

schemas = typer.Typer(help="Draft, review, discover or check a schema.", rich_markup_mode=None)

TableArgument = Annotated[
    str,
    typer.Argument(
        metavar="TABLE", help="Table as CSV (also .gz), Parquet, Arrow or spreadsheet; or a folder or glob."
    ),
]
SchemaPath = Annotated[Path, typer.Option("--schema", "-s", metavar="SCHEMA", help="Schema file (JSON).")]


@schemas.command("draft")
@options.option_groups
def schema_draft(
    table: TableArgument,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Target column. Default: the last column.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Output file. Default: standard output.")
    ] = None,
    dates: Annotated[
        str | None,
        typer.Option(metavar="PARTS", help="Parts of dates to add as columns, such as month,weekday; also year, hour."),
    ] = None,
    csv: options.CsvOptions = options.DEFAULT_CSV,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Draft a schema from a table, for a custodian to review.

    Excludes columns that look like an id, a date, free text or names, and states the reason. Bounds and categories
    come from the data: until schema review has replaced them, every model fitted with the draft is NOT PRIVATE. This
    command, unlike all others, guesses the format of a CSV file and records it in the draft.

    \b
    Example:
      veilwood schema draft visits.csv --target ill -o visits.json
      veilwood schema draft visits.csv --sep ";" --decimal , --encoding latin-1 --dates month,weekday -o visits.json
    """
    if out is not None:
        options.check_output(out, force)
    parts = [part.strip() for part in (dates or "").split(",") if part.strip()]
    draft = {"table": table} | draft_from_table(table, target, dates=parts, **csv.dialect_options)
    text = format_schema(draft)
    if out is None:
        print(text)
        return
    out.write_text(text + "\n", encoding="utf-8")
    n_features, target, left_out = len(draft["columns"]) - 1, draft["target"], draft.get("left_out", {})
    excluded = "".join(f"\n  {name!r}: {reason}" for name, reason in left_out.items())
    described = ((column["name"], _describe_rules(column, draft)) for column in draft["columns"])
    rules = "".join(f"\n  {name!r}: {rule}" for name, rule in described if rule)
    options.print_result(
        as_json,
        {"schema": str(out), "task": draft["task"], "target": target, "left_out": left_out},
        f"Wrote {out}: {draft['task']} of {target!r} from {n_features} columns."
        + (f"\nExcluded:{excluded}" if excluded else "")
        + ("\nTo use parts of dates, draft again with --dates month,weekday." if "a date" in left_out.values() else "")
        + (f"\nRead by a rule, which you can change in the review:{rules}" if rules else "")
        + _describe_dialect(draft)
        + "\nIts bounds and categories were read from the data, so you must review them.\n"
        + options.format_next_commands([f"veilwood schema review {out}", *_commands_after_review(draft, out)]),
        quiet_text=str(out),
    )


def _describe_rules(column: dict[str, Any], draft: dict[str, Any]) -> str:
    """Return the rules for reading irregular values of a drafted column, as text; empty if it has none."""
    rules = []
    if draft.get("dialect", {}).get("decimals", {}).get(column["name"]) == "either":
        rules.append("decimal points and commas")
    if "texts" in column:
        rules.append(TEXT_RULES[column["texts"]])
    if "aliases" in column:
        rules.append("spellings " + ", ".join(f"{one!r} of {other!r}" for one, other in column["aliases"].items()))
    return "; ".join(rules)


def _commands_after_review(draft: dict[str, Any], schema: Path) -> list[str]:
    """Return the commands from a reviewed schema to a report."""
    table = str(draft.get("table", "TABLE"))
    stem = Path(table).name.split(".")[0]
    drop = " --drop" if draft.get("drop") else ""
    return [
        f'veilwood ledger create {stem}.db --epsilon 3 --population "the people in {stem}"',
        f"veilwood fit {table} --schema {schema} --epsilon 1 --ledger {stem}.db --holdout 0.3{drop}",
        f"veilwood report {stem}.veilwood --ledger {stem}.db",
    ]


def _describe_dialect(draft: dict[str, Any]) -> str:
    """Return the CSV dialect as text, with a hint on numeric columns that were read as text."""
    dialect = ", ".join(f"{name} {value!r}" for name, value in draft.get("dialect", {}).items())
    lines = [f"\nRead with {dialect}."] if dialect else []
    for column in draft["columns"]:
        texts = column.get("values", [])
        if sum(bool(_COMMA_NUMBER.fullmatch(str(text))) for text in texts) > len(texts) / 2:
            lines.append(f"\n{column['name']!r} seems to contain numbers with a decimal comma but was read as text.")
    if len(lines) > bool(dialect):
        lines.append(" Hint: press k in schema review.")
    return "".join(lines)


@schemas.command("review")
def schema_review(
    draft_path: Annotated[
        Path,
        typer.Argument(metavar="DRAFT", help="Draft written by veilwood schema draft, or a partly reviewed draft."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Output file. Default: DRAFT, which is overwritten."),
    ] = None,
    force: options.Force = False,
) -> None:
    """Review a draft, column by column, until every bound is public knowledge.

    Press a to accept the usual bounds from the catalogue, such as 0 to 120 for an age. A bound that was read from the
    data stays marked as not public until you name a public source. Each answer is saved and can be undone. Press q to
    stop, and run the command again to continue.

    \b
    Example:
      veilwood schema review visits.json
    """
    if out is not None:
        options.check_output(out, force)
    review, out = Review.load(draft_path), draft_path if out is None else out
    if review.open_columns and not sys.stdin.isatty():
        raise UseError(
            "a review needs a terminal. Hint: run the command at a terminal, or edit the draft and delete the marks."
        )
    draft = review.to_dict()
    done = ReviewPrompt(review, out).run()
    left = len(review.open_columns)
    if done:
        print(f"Reviewed: {out} has no marks left.\n{options.format_next_commands(_commands_after_review(draft, out))}")
    else:
        print(f"Saved {out}: {left} column{'s' * (left != 1)} to review. To continue: veilwood schema review {out}")


@schemas.command("discover")
@options.option_groups
def schema_discover(
    table: TableArgument,
    epsilon: options.Epsilon,
    delta: options.Delta,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Target column. Default: the last column.")
    ] = None,
    ledger: options.LedgerPath = None,
    unit: Annotated[
        str | None,
        typer.Option(
            "--privacy-unit", metavar="UNIT", help='Protected unit, such as 3 (rows) or {"id": "patient", ...}.'
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="COLUMN", help="Column or pattern not to measure; repeatable."),
    ] = None,
    dialect: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='Additional CSV options, such as {"nulls": ["NA"], "money": true}.'),
    ] = None,
    bounds_only: Annotated[
        bool, typer.Option("--bounds-only", help="Measure numeric columns only; delta may be 0.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Output file. Default: standard output.")
    ] = None,
    csv: options.CsvOptions = options.DEFAULT_CSV,
    force: options.Force = False,
    yes: options.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure a schema privately if it is not public, and charge the ledger.

    Releases categories and numeric bounds whose noisy counts are large enough. Values of a single person stay hidden
    except with probability delta. Column names are assumed to be public. Ignore columns that you do not need: each
    column adds noise to the others. The schema needs no review.

    \b
    Example:
      veilwood schema discover visits.csv --target ill --epsilon 0.5 --delta 1e-6 --ignore "note*" \\
        --privacy-unit '{"id": "patient", "at_most": 3}' --ledger visits.db -o visits.json
    """
    if out is not None:
        options.check_output(out, force)
    csv_options = {} if dialect is None else options.read_value(dialect)
    if not isinstance(csv_options, dict):
        raise UseError(
            '--dialect is not a JSON object. Hint: pass one like {"thousands": ".", "nulls": ["NA"], "money": true}.'
        )
    declared = Dialect.from_dict({**csv_options, **csv.dialect_options})
    opened = None if ledger is None else open_existing_ledger(ledger)
    options.confirm_spend(f"epsilon={epsilon:g}", opened, yes)
    discovery = discover(
        table,
        target,
        epsilon=epsilon,
        delta=delta,
        ledger=opened,
        privacy_unit="row" if unit is None else options.read_value(unit),
        ignore=ignore or (),
        bounds_only=bounds_only,
        dialect=declared,
    )
    text = format_schema(discovery.to_dict())
    if out is None:
        print(text)
        return
    out.write_text(text + "\n", encoding="utf-8")
    data = {"schema": str(out), "certificate": discovery.privacy.to_dict()}
    charge = describe_charge(NO_LEDGER if opened is None else opened)
    text = f"{discovery.schema}\n\nCertificate: {discovery.privacy}\nCharge: {charge}\nSchema: {out}"
    options.print_result(as_json, data, text, quiet_text=str(out))


@schemas.command("check")
@options.option_groups
def schema_check(
    table: TableArgument,
    schema: SchemaPath,
    csv: options.CsvOptions = options.DEFAULT_CSV,
    reopen: Annotated[
        bool, typer.Option("--reopen", help="Redraft the columns that do not fit, for veilwood schema review.")
    ] = False,
    show_values: options.ShowValues = False,
    as_json: options.AsJson = False,
) -> None:
    """Check that every row of a table fits a schema, before any budget is spent.

    Lists every column and kind of problem with the number of rows. With --show-values, prints examples, and how many
    values of each column are missing, clamped to the bounds or unknown. These counts are private: this command is for
    the custodian.

    \b
    Example:
      veilwood schema check visits.csv --schema visits.json --show-values
      veilwood schema check visits.csv --schema visits.json --reopen
    """
    declared = csv.apply_to(Schema.load(schema))
    with show_private_values(show_values):
        checked = check_files(table, declared)
    violations = checked.violations
    data = {
        "fits": not violations,
        "inferred": declared.inferred,
        "schema": declared.to_dict(),
        "problems": [violation.to_dict() for violation in violations],
        **({"counts": checked.counts} if show_values else {}),
    }
    if violations and reopen:
        names = list(dict.fromkeys(violation.column for violation in violations))
        review = Review.load(schema)
        for name, column, decimal in draft_columns_again(table, declared, names):
            review.reopen(name, column, decimal)
        review.save(schema)
        text = (
            f"Drafted again: {', '.join(names)}.\n{options.format_next_commands([f'veilwood schema review {schema}'])}"
        )
        options.print_result(as_json, data | {"reopened": names}, text)
        return
    if violations:
        if as_json:
            print(json.dumps(data, indent=2))
        hint = "" if show_values else "pass --show-values to see rows and values, or "
        raise OutOfSchemaError(
            f"{table} does not fit {schema}: {'; '.join(map(str, violations))}. Hint: {hint}pass --reopen to review "
            "these columns again.",
            column=violations[0].column,
        )
    mark = "\nThe schema is an unreviewed draft: releases under it are NOT PRIVATE." if declared.inferred else ""
    counts = f"\n{checked.format_counts()}" if show_values else ""
    fits = f"{declared}\nEvery row of {table} fits; numbers outside the bounds are clamped."
    options.print_result(as_json, data, f"{fits}{counts}{mark}")
