# SPDX-License-Identifier: Apache-2.0
"""The commands about schemas: draft one and review it, or discover one privately, and check a table against it."""

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

__all__ = ["SchemaPath", "TableArgument", "run_review", "schemas"]


_KEY_HELP = {
    "a": "accept the usual",
    "s": "name a source for the drafted",
    "e": "enter others",
    "k": "other kind",
    "x": "leave out",
    "l": "later",
    "q": "stop here",
}


def run_review(review: Review, out: Path) -> bool:
    """Ask until all is reviewed or the person stops; each answer is saved at once. Return whether all is reviewed."""
    console = Console(highlight=False)
    if len(review.open_columns) == len(review.to_dict()["columns"]) and not _prompt_unit(
        console, review, out
    ):  # at the beginning
        return False
    while (asked := review.next_question()) is not None:
        _show_question(console, asked)
        try:
            if not _handle_key(console, review, asked):
                return False
        except VeilwoodError as error:
            console.print(f"[red]{escape(str(error))}[/red]")
            continue
        review.save(out)
    return True


def _prompt_unit(console: Console, review: Review, out: Path) -> bool:
    """Ask how many rows of one person may count; return False where the person stops."""
    if review.privacy_unit is None:
        return True
    console.print(
        f"Rows with the same [bold]{escape(str(review.privacy_unit['id']))}[/bold] seem to belong to one person, whom the "
        "guarantee then protects as a whole. Rows beyond the most that may count are not used; more rows of a person "
        "that count need more noise."
    )
    while True:
        text = typer.prompt(
            "At most how many rows of one person may count (q stops)", default=review.privacy_unit["at_most"]
        )
        if str(text).strip().lower() == "q":
            return False
        try:
            review.set_rows_per_unit(int(str(text)))
        except ValueError:
            console.print("[red]a whole number, such as 3, or q to stop[/red]")
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
    said = _KEY_HELP | {"k": "they are categories" if question.kind == "numeric" else "they are numbers"}
    lines += ["", "   ".join(f"[bold]{key}[/bold] {said[key]}".replace(" ", "\u00a0") for key in offered)]
    title = f"{question.number} of {question.of}: [bold]{escape(question.name)}[/bold] ({question.kind}{role})"
    console.print(Panel("\n".join(lines), title=title, title_align="left"))


def _handle_key(console: Console, review: Review, question: ColumnQuestion) -> bool:
    """Carry out one key; return False where the person stops."""
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
        console.print("  left out")
    elif key == "l":
        return review.defer()
    else:
        raise UseError(f"keys are {', '.join(_KEY_HELP)}.")
    return True


def _prompt_source() -> str:
    given: str = typer.prompt("From where is this publicly known", default="", show_default=False)
    return given


def _prompt_bounds(*, as_numbers: bool) -> dict[str, Any]:
    if as_numbers:
        text = typer.prompt("Lower and upper bound, such as 0 to 100")
        numbers = [word for word in re.split(r"\s+to\s+|\.\.+|\s+", text.strip()) if word]
        if len(numbers) != 2:
            raise UseError("that are not two numbers. Hint: 0 to 100.")
        lower, upper = (float(parse_fraction(number)) for number in numbers)
        return {"lower": lower, "upper": upper}
    text = typer.prompt("All categories, separated by commas")
    if re.fullmatch(r"\s*[-+]?[\d.,]+\s*(to|\.\.+)\s*[-+]?[\d.,]+\s*", text):
        raise UseError("these are bounds of numbers, and the draft holds texts. Hint: k makes numbers of them.")
    return {"values": [word.strip() for word in text.split(",") if word.strip()]}


_COMMA_NUMBER = re.compile(r"[-+]?\d+(\.\d{3})*,\d+")

schemas = typer.Typer(help="Draft, review, discover or check what is public of a table.", rich_markup_mode=None)

TableArgument = Annotated[
    str, typer.Argument(metavar="TABLE", help="CSV (also .gz), Parquet, Arrow or a spreadsheet; a folder or a glob.")
]
SchemaPath = Annotated[Path, typer.Option("--schema", "-s", metavar="SCHEMA", help="The schema, a JSON file.")]


@schemas.command("draft")
@option_groups
def schema_draft(
    table: TableArgument,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The target; the last column if unsaid.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where to; else printed.")] = None,
    dates: Annotated[
        str | None, typer.Option(metavar="PARTS", help="Parts of dates to use: year,month,weekday,hour.")
    ] = None,
    csv: CsvOptions = DEFAULT_CSV,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a table and draft a schema for a person to review.

    Leaves out, with a reason, what looks like an id, a date, free text or names. Bounds and categories come from the
    data: go through them with schema review, until then every model made with the draft is NOT PRIVATE. How a CSV
    file is written is guessed here and nowhere else; the draft says it.

    \b
    Example:
      veilwood schema draft visits.csv --target ill -o visits.json
      veilwood schema draft visits.csv --sep ";" --decimal , --encoding latin-1 --dates month,weekday -o visits.json
    """
    if out is not None:
        check_output(out, force)
    parts = [part.strip() for part in (dates or "").split(",") if part.strip()]
    found = draft_from_table(table, target, dates=parts, **csv.dialect_options)
    text = format_schema(found)
    if out is None:
        print(text)
        return
    out.write_text(text + "\n", encoding="utf-8")
    n_features, goal, left_out = len(found["columns"]) - 1, found["target"], found.get("left_out", {})
    reasons = "".join(f"\n  {name!r}: {reason}" for name, reason in left_out.items())
    print_result(
        as_json,
        {"schema": str(out), "task": found["task"], "target": goal, "left_out": left_out},
        f"Wrote {out}: {found['task']} of {goal!r} from {n_features} columns."
        + (f"\nLeft out:{reasons}" if reasons else "")
        + _describe_dialect(found)
        + f"\nIt was read off the data. Go on with: veilwood schema review {out}",
        quiet_text=str(out),
    )


def _describe_dialect(found: dict[str, Any]) -> str:
    """Say how a CSV file was read, and which columns hold numbers that were not read as such."""
    words = ", ".join(f"{name} {value!r}" for name, value in found.get("dialect", {}).items())
    lines = [f"\nRead with {words}."] if words else []
    for column in found["columns"]:
        texts = column.get("values", [])
        if sum(bool(_COMMA_NUMBER.fullmatch(str(text))) for text in texts) > len(texts) / 2:
            lines.append(f"\n{column['name']!r} looks like numbers with a comma, and is taken for texts.")
    if len(lines) > bool(words):
        lines.append(
            " Hint: --decimal ',' where the whole file is written so; or k in schema review makes numbers of it."
        )
    return "".join(lines)


@schemas.command("review")
def schema_review(
    draft_path: Annotated[Path, typer.Argument(metavar="DRAFT", help="A draft, also one reviewed in part.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where to; else the draft.")] = None,
    force: Force = False,
) -> None:
    """Go through a draft, column by column, until every bound is public knowledge.

    One key accepts usual bounds of the catalogue (age 0 to 120). A bound read off the data keeps its mark unless you
    type from where it is publicly known. Each answer is saved: stop with q and go on later.

    \b
    Example:
      veilwood schema review visits.json
    """
    if out is not None:
        check_output(out, force)
    review, out = Review.load(draft_path), draft_path if out is None else out
    if review.open_columns and not sys.stdin.isatty():
        raise UseError("a review needs a terminal. Hint: or edit the draft and delete the marks.")
    done = run_review(review, out)
    left = len(review.open_columns)
    rest = f"{left} column{'s' * (left != 1)} left; go on with: veilwood schema review {out}"
    print(f"Reviewed: {out} has no mark left." if done else f"Saved {out}: {rest}")


@schemas.command("discover")
@option_groups
def schema_discover(
    table: TableArgument,
    epsilon: Epsilon,
    delta: Delta,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The target; the last column if unsaid.")] = None,
    ledger: LedgerPath = None,
    unit: Annotated[
        str | None, typer.Option("--privacy-unit", metavar="UNIT", help='Whom to protect: 3, {"id": "patient", ...}.')
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="COLUMN", help="Do not measure it; a pattern; repeat.")
    ] = None,
    dialect: Annotated[
        str | None, typer.Option(metavar="JSON", help='More of how CSV is written: {"nulls": ["NA"], "money": true}.')
    ] = None,
    bounds_only: Annotated[bool, typer.Option("--bounds-only", help="Numbers alone; delta may then be 0.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where to; else printed.")] = None,
    csv: CsvOptions = DEFAULT_CSV,
    force: Force = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Measure what a schema needs where it is not public: at a price, with a certificate.

    Frequent categories and bounds of numbers that stand out of the noise are released; what one person has stays
    hidden but for a probability of delta. Names of columns are taken to be public. Ignore columns you do not need:
    each one adds noise to the others. The schema needs no review.

    \b
    Example:
      veilwood schema discover visits.csv --target ill --epsilon 0.5 --delta 1e-6 --ignore "note*" \\
        --privacy-unit '{"id": "patient", "at_most": 3}' --ledger visits.db -o visits.json
    """
    if out is not None:
        check_output(out, force)
    more = {} if dialect is None else read_value(dialect)
    if not isinstance(more, dict):
        raise UseError('--dialect is not understood. Hint: {"thousands": ".", "nulls": ["NA"], "money": true}.')
    way = Dialect.from_dict({**more, **csv.dialect_options})
    book = None if ledger is None else open_existing_ledger(ledger)
    confirm_spend(f"epsilon={epsilon:g}", book, yes)
    found = discover(
        table,
        target,
        epsilon=epsilon,
        delta=delta,
        ledger=book,
        privacy_unit="row" if unit is None else read_value(unit),
        ignore=ignore or (),
        bounds_only=bounds_only,
        dialect=way,
    )
    text = format_schema(found.to_dict())
    if out is None:
        print(text)
        return
    out.write_text(text + "\n", encoding="utf-8")
    data = {"schema": str(out), "certificate": found.privacy.to_dict()}
    print_result(as_json, data, f"{found.schema}\n\nCertificate: {found.privacy}\nSchema: {out}", quiet_text=str(out))


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

    Lists every column and kind of problem, and how many rows have it; with --show-values also how many rows count as
    the other category of a column. Such counts are private: this command is for whoever holds the data.

    \b
    Example:
      veilwood schema check visits.csv --schema visits.json
      veilwood schema check visits.csv --schema visits.json --show-values
    """
    declared = csv.apply_to(Schema.load(schema))
    with show_private_values(show_values):
        checked = check_files(table, declared)
    misfits = checked.violations
    data = {
        "fits": not misfits,
        "inferred": declared.inferred,
        "schema": declared.to_dict(),
        "problems": [misfit.to_dict() for misfit in misfits],
        **({"others": checked.other_counts} if show_values else {}),
    }
    if misfits:
        if as_json:
            print(json.dumps(data, indent=2))
        raise OutOfSchemaError(
            f"{table} does not fit {schema}: {'; '.join(map(str, misfits))}. "
            f"Hint: {'correct the table or the schema' if show_values else '--show-values shows rows and values'}.",
            column=misfits[0].column,
        )
    mark = "\nIt is an unreviewed draft: what is made with it is NOT PRIVATE." if declared.inferred else ""
    fits = f"{declared}\nEvery row of {table} fits; numbers outside the bounds are clamped."
    print_result(as_json, data, f"{fits}{checked.other_counts_text if show_values else ''}{mark}")
