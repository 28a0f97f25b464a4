# SPDX-License-Identifier: Apache-2.0
"""The walk through a draft at the terminal: shows a question, reads a key, hands the answer to ``data.review``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from veilwood.bounded import rational
from veilwood.data.review import ColumnQuestion, Review
from veilwood.errors import UseError, VeilwoodError

__all__ = ["walk"]

_HELP = {
    "a": "accept the usual",
    "s": "name a source for the drafted",
    "e": "enter others",
    "k": "other kind",
    "x": "leave out",
    "l": "later",
    "q": "stop here",
}


def walk(review: Review, out: Path) -> bool:
    """Ask until all is reviewed or the person stops; each answer is saved at once. Return whether all is reviewed."""
    console = Console(highlight=False)
    if len(review.open) == len(review.to_dict()["columns"]) and not _ask_unit(console, review, out):  # at the beginning
        return False
    while (asked := review.question()) is not None:
        _show(console, asked)
        try:
            if not _answer(console, review, asked):
                return False
        except VeilwoodError as error:
            console.print(f"[red]{escape(str(error))}[/red]")
            continue
        review.save(out)
    return True


def _ask_unit(console: Console, review: Review, out: Path) -> bool:
    """Ask how many rows of one person may count; return False where the person stops."""
    if review.unit is None:
        return True
    console.print(
        f"Rows with the same [bold]{escape(str(review.unit['id']))}[/bold] seem to belong to one person, whom the "
        "guarantee then protects as a whole. Rows beyond the most that may count are not used; more rows of a person "
        "that count need more noise."
    )
    while True:
        text = typer.prompt("At most how many rows of one person may count (q stops)", default=review.unit["at_most"])
        if str(text).strip().lower() == "q":
            return False
        try:
            review.set_rows_of_a_unit(int(str(text)))
        except ValueError:
            console.print("[red]a whole number, such as 3, or q to stop[/red]")
        except VeilwoodError as error:
            console.print(f"[red]{escape(str(error))}[/red]")
        else:
            review.save(out)
            return True


def _show(console: Console, asked: ColumnQuestion) -> None:
    role = ", the target" if asked.is_target else ""
    lines = [f"drafted from the data:  {escape(asked.drafted)}"]
    if asked.proposal is not None:
        lines.append(f"[green]usual, public:          {escape(asked.proposal)}[/green]")
    offered = [key for key in _HELP if (key != "a" or asked.proposal) and (key != "x" or not asked.is_target)]
    said = _HELP | {"k": "they are categories" if asked.kind == "numeric" else "they are numbers"}
    lines += ["", "   ".join(f"[bold]{key}[/bold] {said[key]}".replace(" ", "\u00a0") for key in offered)]
    title = f"{asked.number} of {asked.of}: [bold]{escape(asked.name)}[/bold] ({asked.kind}{role})"
    console.print(Panel("\n".join(lines), title=title, title_align="left"))


def _answer(console: Console, review: Review, asked: ColumnQuestion) -> bool:
    """Carry out one key; return False where the person stops."""
    key = typer.getchar().lower()
    if key in ("\x03", "\x04", "q", "\x1b"):
        return False
    if key in ("a", "\r", "\n", " "):
        review.accept()
        console.print("  accepted")
    elif key == "s":
        review.state(_source())
    elif key in ("e", "k"):
        bounds = _bounds(as_numbers=(asked.kind == "numeric") == (key == "e"))
        review.state(_source(), **bounds)
    elif key == "x":
        review.leave_out()
        console.print("  left out")
    elif key == "l":
        return review.put_off()
    else:
        raise UseError(f"keys are {', '.join(_HELP)}.")
    return True


def _source() -> str:
    given: str = typer.prompt("From where is this publicly known", default="", show_default=False)
    return given


def _bounds(*, as_numbers: bool) -> dict[str, Any]:
    if as_numbers:
        text = typer.prompt("Lower and upper bound, such as 0 to 100")
        numbers = [word for word in re.split(r"\s+to\s+|\.\.+|\s+", text.strip()) if word]
        if len(numbers) != 2:
            raise UseError("that are not two numbers. Hint: 0 to 100.")
        lower, upper = (float(rational(number)) for number in numbers)
        return {"lower": lower, "upper": upper}
    text = typer.prompt("All categories, separated by commas")
    if re.fullmatch(r"\s*[-+]?[\d.,]+\s*(to|\.\.+)\s*[-+]?[\d.,]+\s*", text):
        raise UseError("these are bounds of numbers, and the draft holds texts. Hint: k makes numbers of them.")
    return {"values": [word.strip() for word in text.split(",") if word.strip()]}
