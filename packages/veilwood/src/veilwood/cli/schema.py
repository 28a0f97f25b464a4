# SPDX-License-Identifier: Apache-2.0
"""Commands on schemas: draft and review one, discover one privately, and check a table against it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from veilwood.cli.ledger import open_existing_ledger
from veilwood.cli.options import (
    DEFAULT_CSV,
    AsJson,
    CsvOptions,
    Delta,
    Epsilon,
    Force,
    LedgerPath,
    ShowValues,
    Yes,
    check_output,
    confirm_spend,
    option_groups,
    print_result,
    read_value,
)
from veilwood.data.dialect import Dialect
from veilwood.data.file_source import check_files
from veilwood.data.problems import show_private_values
from veilwood.data.schema import Schema
from veilwood.drafting.discover import discover
from veilwood.drafting.draft import draft_from_table
from veilwood.drafting.review import ColumnQuestion, Review, format_schema
from veilwood.errors import OutOfSchemaError, UseError, VeilwoodError
from veilwood.safe_io import parse_fraction

_KEY_HELP = {
    "a": "accept the usual",
    "s": "confirm with a source",
    "e": "enter other values",
    "k": "other kind",
    "x": "exclude column",
    "l": "decide later",
    "q": "stop here",
}


def run_review(review: Review, out: Path) -> bool:
    """Prompt until all columns are reviewed or the custodian stops. Return True if all are reviewed.

    Each answer is saved at once.
    """
    console = Console(highlight=False)
    is_new = len(review.open_columns) == len(review.to_dict()["columns"])
    if is_new and not _prompt_unit(console, review, out):
        return False
    while (question := review.next_question()) is not None:
        _show_question(console, question)
        try:
            if not _handle_key(console, review, question):
                return False
        except VeilwoodError as error:
            console.print(f"[red]{escape(str(error))}[/red]")
            continue
        review.save(out)
    return True


def _prompt_unit(console: Console, review: Review, out: Path) -> bool:
    """Prompt for the number of rows per person that count. Return False if the custodian stops."""
    if review.privacy_unit is None:
        return True
    console.print(
        f"Rows with the same [bold]{escape(str(review.privacy_unit['id']))}[/bold] seem to belong to one person. The "
        "guarantee then protects the person as a whole. At most this many rows per person are used; a larger limit "
        "requires more noise."
    )
    while True:
        text = typer.prompt("Maximum number of rows per person (q stops)", default=review.privacy_unit["at_most"])
        if str(text).strip().lower() == "q":
            return False
        try:
            review.set_rows_per_unit(int(str(text)))
        except ValueError:
            console.print("[red]enter an integer, such as 3, or q to stop[/red]")
        except VeilwoodError as error:
            console.print(f"[red]{escape(str(error))}[/red]")
        else:
            review.save(out)
            return True


def _show_question(console: Console, question: ColumnQuestion) -> None:
    role = ", the target" if question.is_target else ""
    lines = [f"drafted from the data:  {escape(question.drafted)}"]
    if question.proposal is not None:
        lines.append(f"[green]usual, public:          {escape(question.proposal)}[/green]")
    offered = [key for key in _KEY_HELP if (key != "a" or question.proposal) and (key != "x" or not question.is_target)]
    key_help = _KEY_HELP | {"k": "they are categories" if question.kind == "numeric" else "they are numbers"}
    lines += ["", "   ".join(f"[bold]{key}[/bold] {key_help[key]}".replace(" ", "\u00a0") for key in offered)]
    title = f"{question.number} of {question.of}: [bold]{escape(question.name)}[/bold] ({question.kind}{role})"
    console.print(Panel("\n".join(lines), title=title, title_align="left"))


def _handle_key(console: Console, review: Review, question: ColumnQuestion) -> bool:
    """Execute one key. Return False if the custodian stops."""
    key = typer.getchar().lower()
    if key in ("\x03", "\x04", "q", "\x1b"):
        return False
    if key in ("a", "\r", "\n", " "):
        review.accept_known()
        console.print("  accepted")
    elif key == "s":
        review.declare(_prompt_source())
    elif key in ("e", "k"):
        bounds = _prompt_bounds(as_numbers=(question.kind == "numeric") == (key == "e"))
        review.declare(_prompt_source(), **bounds)
    elif key == "x":
        review.exclude()
        console.print("  excluded")
    elif key == "l":
        return review.defer()
    else:
        raise UseError(f"that key has no meaning here. Hint: press one of {', '.join(_KEY_HELP)}.")
    return True


def _prompt_source() -> str:
    source: str = typer.prompt("Public source of this knowledge", default="", show_default=False)
    return source


def _prompt_bounds(*, as_numbers: bool) -> dict[str, Any]:
    if as_numbers:
        text = typer.prompt("Lower and upper bound, such as 0 to 100")
        numbers = [word for word in re.split(r"\s+to\s+|\.\.+|\s+", text.strip()) if word]
        if len(numbers) != 2:
            raise UseError('expected two numbers. Hint: type the bounds as "0 to 100".')
        lower, upper = (float(parse_fraction(number)) for number in numbers)
        return {"lower": lower, "upper": upper}
    text = typer.prompt("All categories, separated by commas")
    if re.fullmatch(r"\s*[-+]?[\d.,]+\s*(to|\.\.+)\s*[-+]?[\d.,]+\s*", text):
        raise UseError("these are bounds of numbers, and the column has categories. Hint: press k to make it numeric.")
    return {"values": [word.strip() for word in text.split(",") if word.strip()]}


_COMMA_NUMBER = re.compile(r"[-+]?\d+(\.\d{3})*,\d+")

schemas = typer.Typer(help="Draft, review, discover or check a schema.", rich_markup_mode=None)

TableArgument = Annotated[
    str, typer.Argument(metavar="TABLE", help="Table: CSV (also .gz), Parquet, Arrow or spreadsheet; folder or glob.")
]
SchemaPath = Annotated[Path, typer.Option("--schema", "-s", metavar="SCHEMA", help="Schema, a JSON file.")]


@schemas.command("draft")
@option_groups
def schema_draft(
    table: TableArgument,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Target column. Default: the last column.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Output file. Default: standard output.")
    ] = None,
    dates: Annotated[
        str | None, typer.Option(metavar="PARTS", help="Parts of dates to use as columns: year,month,weekday,hour.")
    ] = None,
    csv: CsvOptions = DEFAULT_CSV,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Draft a schema from a table, for a custodian to review.

    Excludes columns that look like an id, a date, free text or names, and states the reason. Bounds and categories
    come from the data: until schema review has replaced them, every model fitted with the draft is NOT PRIVATE. Only
    this command guesses the format of a CSV file; the draft records it.

    \b
    Example:
      veilwood schema draft visits.csv --target ill -o visits.json
      veilwood schema draft visits.csv --sep ";" --decimal , --encoding latin-1 --dates month,weekday -o visits.json
    """
    if out is not None:
        check_output(out, force)
    parts = [part.strip() for part in (dates or "").split(",") if part.strip()]
    draft = draft_from_table(table, target, dates=parts, **csv.dialect_options)
    text = format_schema(draft)
    if out is None:
        print(text)
        return
    out.write_text(text + "\n", encoding="utf-8")
    n_features, target, left_out = len(draft["columns"]) - 1, draft["target"], draft.get("left_out", {})
    reasons = "".join(f"\n  {name!r}: {reason}" for name, reason in left_out.items())
    print_result(
        as_json,
        {"schema": str(out), "task": draft["task"], "target": target, "left_out": left_out},
        f"Wrote {out}: {draft['task']} of {target!r} from {n_features} columns."
        + (f"\nExcluded:{reasons}" if reasons else "")
        + _describe_dialect(draft)
        + f"\nIts bounds and categories were read from the data. Next: veilwood schema review {out}",
        quiet_text=str(out),
    )


def _describe_dialect(draft: dict[str, Any]) -> str:
    """Return the CSV dialect as text, and the columns of numbers that were read as text."""
    dialect = ", ".join(f"{name} {value!r}" for name, value in draft.get("dialect", {}).items())
    lines = [f"\nRead with {dialect}."] if dialect else []
    for column in draft["columns"]:
        texts = column.get("values", [])
        if sum(bool(_COMMA_NUMBER.fullmatch(str(text))) for text in texts) > len(texts) / 2:
            lines.append(f"\n{column['name']!r} looks like numbers with a decimal comma, and was read as text.")
    if len(lines) > bool(dialect):
        lines.append(" Hint: pass --decimal ',' if the whole file uses it, or press k in schema review.")
    return "".join(lines)


@schemas.command("review")
def schema_review(
    draft_path: Annotated[Path, typer.Argument(metavar="DRAFT", help="Draft, possibly reviewed in part.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Output file. Default: the draft.")
    ] = None,
    force: Force = False,
) -> None:
    """Review a draft, column by column, until every bound is public knowledge.

    One key accepts the usual bounds of the catalogue (age 0 to 120). A bound that was read from the data keeps its
    mark unless you name a public source. Each answer is saved: stop with q and continue later.

    \b
    Example:
      veilwood schema review visits.json
    """
    if out is not None:
        check_output(out, force)
    review, out = Review.load(draft_path), draft_path if out is None else out
    if review.open_columns and not sys.stdin.isatty():
        raise UseError("a review needs a terminal. Hint: run it at one, or edit the draft and delete the marks.")
    done = run_review(review, out)
    left = len(review.open_columns)
    rest = f"{left} column{'s' * (left != 1)} to review. To continue: veilwood schema review {out}"
    print(f"Reviewed: {out} has no marks left." if done else f"Saved {out}: {rest}")


@schemas.command("discover")
@option_groups
def schema_discover(
    table: TableArgument,
    epsilon: Epsilon,
    delta: Delta,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Target column. Default: the last column.")
    ] = None,
    ledger: LedgerPath = None,
    unit: Annotated[
        str | None, typer.Option("--privacy-unit", metavar="UNIT", help='Protected unit: 3, {"id": "patient", ...}.')
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="COLUMN", help="Column or pattern not to measure; repeatable."),
    ] = None,
    dialect: Annotated[
        str | None, typer.Option(metavar="JSON", help='Further CSV options: {"nulls": ["NA"], "money": true}.')
    ] = None,
    bounds_only: Annotated[
        bool, typer.Option("--bounds-only", help="Measure numeric columns only; delta may be 0.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Output file. Default: standard output.")
    ] = None,
    csv: CsvOptions = DEFAULT_CSV,
    force: Force = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Measure a schema privately if it is not public, and charge the ledger.

    Releases frequent categories, and bounds of numbers, that exceed the noise. Values of a single person stay hidden
    except with probability delta. Column names are assumed to be public. Ignore columns that you do not need: each
    one adds noise to the others. The schema needs no review.

    \b
    Example:
      veilwood schema discover visits.csv --target ill --epsilon 0.5 --delta 1e-6 --ignore "note*" \\
        --privacy-unit '{"id": "patient", "at_most": 3}' --ledger visits.db -o visits.json
    """
    if out is not None:
        check_output(out, force)
    csv_options = {} if dialect is None else read_value(dialect)
    if not isinstance(csv_options, dict):
        raise UseError(
            '--dialect is not a JSON object. Hint: pass one like {"thousands": ".", "nulls": ["NA"], "money": true}.'
        )
    declared = Dialect.from_dict({**csv_options, **csv.dialect_options})
    opened = None if ledger is None else open_existing_ledger(ledger)
    confirm_spend(f"epsilon={epsilon:g}", opened, yes)
    discovery = discover(
        table,
        target,
        epsilon=epsilon,
        delta=delta,
        ledger=opened,
        privacy_unit="row" if unit is None else read_value(unit),
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
    text = f"{discovery.schema}\n\nCertificate: {discovery.privacy}\nSchema: {out}"
    print_result(as_json, data, text, quiet_text=str(out))


@schemas.command("check")
@option_groups
def schema_check(
    table: TableArgument,
    schema: SchemaPath,
    csv: CsvOptions = DEFAULT_CSV,
    show_values: ShowValues = False,
    as_json: AsJson = False,
) -> None:
    """Check that every row of a table fits a schema, before any budget is spent.

    Lists every column and kind of problem with the number of rows; with --show-values, also the number of rows that
    fall into the "other" category of a column. These counts are private: this command is for the custodian.

    \b
    Example:
      veilwood schema check visits.csv --schema visits.json
      veilwood schema check visits.csv --schema visits.json --show-values
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
        **({"others": checked.other_counts} if show_values else {}),
    }
    if violations:
        if as_json:
            print(json.dumps(data, indent=2))
        hint = "correct the table or the schema" if show_values else "pass --show-values to see rows and values"
        raise OutOfSchemaError(
            f"{table} does not fit {schema}: {'; '.join(map(str, violations))}. Hint: {hint}.",
            column=violations[0].column,
        )
    mark = "\nThe schema is an unreviewed draft: releases under it are NOT PRIVATE." if declared.inferred else ""
    fits = f"{declared}\nEvery row of {table} fits; numbers outside the bounds are clamped."
    print_result(as_json, data, f"{fits}{checked.other_counts_text if show_values else ''}{mark}")
