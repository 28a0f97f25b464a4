# SPDX-License-Identifier: Apache-2.0
"""Review of a drafted schema at a terminal: one key per column, and a summary at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from veilwood.drafting.review import MIN_SOURCE_LENGTH, ColumnQuestion, Review, parse_bounds, parse_categories
from veilwood.errors import UseError, VeilwoodError

_KEY_HELP: Final = {
    "a": "accept the usual bounds",
    "s": "confirm with a source",
    "e": "enter other values",
    "k": "other kind",
    "r": "change how text values are read",
    "m": "change missing values",
    "x": "exclude column",
    "u": "undo",
    "l": "decide later",
    "q": "stop here",
}
_STOP_KEYS: Final = ("\x03", "\x04", "\x1b", "q")


class ReviewPrompt:
    """Prompts of a review. Each answer is saved at once."""

    def __init__(self, review: Review, out: Path) -> None:
        self.review, self.out = review, out
        self.console = Console(highlight=False)
        self.last_source = ""

    def run(self) -> bool:
        """Prompt until all columns are reviewed or the custodian stops. Return True if all are reviewed."""
        is_new = len(self.review.open_columns) == len(self.review.to_dict()["columns"])
        if is_new and not self._prompt_unit():
            return False
        while self.review.open_columns:
            while (question := self.review.next_question()) is not None:
                if not self._answer_question(question):
                    return False
                self.review.save(self.out)
            self._prompt_changes()
        return True

    def _prompt_unit(self) -> bool:
        """Prompt for the maximum number of rows per person. Return False if the custodian stops."""
        unit = self.review.privacy_unit
        if unit is None:
            return True
        self.console.print(
            f"Rows with the same [bold]{escape(str(unit['id']))}[/bold] seem to belong to one person. The guarantee "
            "then protects the person as a whole. At most a given number of rows per person is used; a larger number "
            "requires more noise. If the numbers of rows and persons are public, type them as 20000/9000."
        )
        while True:
            text = str(
                typer.prompt("Maximum number of rows per person (q stops)", default=str(unit["at_most"]))
            ).strip()
            if text.lower() == "q":
                return False
            rows, slash, people = text.partition("/")
            try:
                self.review.set_rows_per_unit(-(-int(rows) // int(people)) if slash else int(rows))
            except VeilwoodError as error:
                self._show_error(str(error))
            except (ValueError, ZeroDivisionError):
                self._show_error("enter an integer such as 3, rows and persons such as 20000/9000, or q to stop")
            else:
                self.review.save(self.out)
                return True

    def _answer_question(self, question: ColumnQuestion) -> bool:
        """Show a question and execute one key. Return False if the custodian stops."""
        keys = _keys_of(question)
        self._show_question(question, keys)
        while True:
            self.console.print("Key: ", end="")
            key = typer.getchar().lower()
            self.console.print(key if key.isprintable() else "")
            if key in _STOP_KEYS:
                return False
            if key in keys:
                break
            if key.strip():  # Enter and the space bar do nothing: they may follow the answer to a prompt
                self._show_error(f"this key has no function here. Hint: press one of {', '.join(keys)}.")
        try:
            return self._execute_key(key, question)
        except VeilwoodError as error:
            self._show_error(str(error))
            return True

    def _show_question(self, question: ColumnQuestion, keys: dict[str, str]) -> None:
        role = ", the target" if question.is_target else ""
        lines = [f"drafted from the data:  {escape(question.drafted)}"]
        if question.proposal is not None:
            lines.append(f"[green]usual, public:          {escape(question.proposal)}[/green]")
        if question.odd:
            lines.append(f"texts among numbers:    {escape(', '.join(map(repr, question.odd[:6])))}")
        title = f"{question.number} of {question.of}: [bold]{escape(question.name)}[/bold] ({question.kind}{role})"
        help_of_keys = Columns([f"[bold]{key}[/bold] {text}" for key, text in keys.items()], padding=(0, 3))
        self.console.print(Panel(Group(*lines, "", help_of_keys), title=title, title_align="left"))

    def _execute_key(self, key: str, question: ColumnQuestion) -> bool:
        """Execute a key. Return False if no question is left to ask now."""
        match key:
            case "a":
                self.review.accept_known()
            case "s":
                self.review.declare(self._prompt_source())
            case "e" | "k":
                bounds = _prompt_bounds(as_numbers=(question.kind == "numeric") == (key == "e"))
                self.review.declare(self._prompt_source(), **bounds)
            case "r":
                self._prompt_text_rule(question)
            case "m":
                self.review.allow_missing(not question.missing)
            case "x":
                self.review.exclude()
            case "u":
                self.review.undo()
            case "l":
                return self.review.defer()
        return True

    def _prompt_source(self) -> str:
        """Prompt for a public source. Enter repeats the previous source."""
        again = f" (Enter: {self.last_source})" if self.last_source else ""
        typed = typer.prompt(f"Public source of these values{again}", default=self.last_source, show_default=False)
        source = str(typed).strip()
        self.last_source = source if len(source) >= MIN_SOURCE_LENGTH else self.last_source
        return source

    def _prompt_text_rule(self, question: ColumnQuestion) -> None:
        choices = ["1 missing", "2 limits such as <0.6: their number; other text: missing"]
        choices += ["3 as 2, plus a categorical column for frequent text values"] if question.odd else []
        answer = str(typer.prompt(f"Read text values as: {'; '.join(choices)}", default="2")).strip()
        if answer not in ("1", "2", "3")[: len(choices)]:
            raise UseError(f"{answer!r} is not a choice. Hint: type a number from 1 to {len(choices)}.")
        if answer == "3":
            self.review.add_text_column()
        self.review.set_text_rule("missing" if answer == "1" else "limit")

    def _prompt_changes(self) -> None:
        """Show the declared columns and prompt for a column to change."""
        table = Table("column", "declared", "source", box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
        for row in self.review.summary():
            table.add_row(*map(escape, row))
        self.console.print(table)
        schema = self.review.schema()
        if schema.left_out:
            left_out = "; ".join(f"{name} ({reason})" for name, reason in schema.left_out.items())
            self.console.print(f"Left out: {escape(left_out)}")
        self.console.print(f"Protected: {escape(str(schema.privacy_unit or 'one row'))}")
        while name := str(typer.prompt("Column to change (Enter: none)", default="", show_default=False)).strip():
            try:
                self.review.reopen(name)
            except VeilwoodError as error:
                self._show_error(str(error))
            else:
                return

    def _show_error(self, text: str) -> None:
        self.console.print(f"[red]{escape(text)}[/red]")


def _keys_of(question: ColumnQuestion) -> dict[str, str]:
    """Return the keys that can answer a question, with their help."""
    is_absent = {
        "a": question.proposal is None,
        "r": question.texts is None,
        "m": question.is_target or question.texts is not None,
        "x": question.is_target,
    }
    own = {
        "k": "they are categories" if question.kind == "numeric" else "they are numbers",
        "m": "reject missing values" if question.missing else "allow missing values",
    }
    return {key: own.get(key, text) for key, text in _KEY_HELP.items() if not is_absent.get(key)}


def _prompt_bounds(*, as_numbers: bool) -> dict[str, Any]:
    if as_numbers:
        bounds = parse_bounds(str(typer.prompt("Lower and upper bound, such as 0 to 100")))
        if bounds is None:
            raise UseError('expected two numbers. Hint: type the bounds as "0 to 100", without separators.')
        return {**bounds}
    text = str(typer.prompt("All categories, separated by commas"))
    if parse_bounds(text) is not None:
        raise UseError(
            "the answer has numeric bounds, but the column is categorical. Hint: press k to make the column numeric."
        )
    return {"values": parse_categories(text)}
