# SPDX-License-Identifier: Apache-2.0
"""Layout of text for a terminal: lines, labels and tables that wrap between words."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final

MAX_WIDTH: Final = 110  # characters: longer lines are hard to read


def terminal_width() -> int:
    """Return the width of the terminal in characters, at most ``MAX_WIDTH``."""
    return min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)


def wrap_lines(text: str, width: int | None = None, indent: str = "") -> str:
    """Return text with its lines wrapped between words and continuation lines indented."""
    width = width or terminal_width()
    return "\n".join(_fill(line, width, "", indent) for line in text.splitlines())


def labelled(rows: Iterable[tuple[str, str | Sequence[str]]], width: int | None = None) -> str:
    """Return labels next to their texts, wrapped. Each text of a label starts on a new line.

    >>> print(labelled([("Plan", "one two three"), ("Budget", ["epsilon 1", "at most"])], width=20))
    Plan    one two
            three
    Budget  epsilon 1
            at most
    """
    width = width or terminal_width()
    rows = list(rows)
    indent = " " * (max(len(label) for label, _ in rows) + 2)
    lines = []
    for label, texts in rows:
        for place, text in enumerate([texts] if isinstance(texts, str) else texts):
            head = f"{label:<{len(indent)}}" if place == 0 else indent
            head += " " * (len(text) - len(text.lstrip()))  # numbers are aligned to the right
            lines.append(_fill(text.lstrip(), width, head, indent))
    return "\n".join(lines)


def _fill(text: str, width: int, first: str, rest: str) -> str:
    """Wrap a text between words. A line that fits keeps its runs of spaces."""
    if len(first + text) <= width:
        return first + text
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )


def print_markdown(text: str) -> None:
    """Print Markdown: formatted at a terminal, unchanged to a file or pipe."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(width=terminal_width(), highlight=False)
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        print(text)


def format_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table whose last column wraps between words, so that no line is longer than the terminal.

    >>> print(format_table(("entry", "what"), [(1, "fit")]))
    entry  what
        1  fit
    """
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)][:-1]
    indent = " " * (sum(widths) + 2 * len(widths))
    lines = ["  ".join([*(f"{name:<{w}}" for name, w in zip(head, widths, strict=False)), head[-1]])]
    for row in texts:
        cells = [f"{cell:>{w}}" if cell[:1].isdigit() else f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)]
        lines.append(wrap_lines("  ".join([*cells, row[-1]]), indent=indent))
    return "\n".join(lines)
