# SPDX-License-Identifier: Apache-2.0
"""Pieces of a page: paragraphs, tables, figures, and bars that keep their text readable on a telephone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple


class Mark(NamedTuple):
    """Something on a bar, between 0 and 1: a range, a dot or a tick."""

    kind: str
    start: float
    end: float | None = None
    title: str = ""


def paragraphs(texts: Iterable[str], kind: str = "") -> str:
    """Return paragraphs of text."""
    return "".join(f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>" for text in texts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table of texts. On a narrow page each cell is named by the head of its column."""
    body = "".join(
        "<tr>"
        + "".join(f'<td data-name="{escape(n)}">{escape(cell)}</td>' for n, cell in zip(head, row, strict=True))
        + "</tr>"
        for row in rows
    )
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f'<table class="{kind}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'


def figure(title: str, picture: str) -> str:
    """Return a picture with its title."""
    return f"<figure><figcaption>{escape(title)}</figcaption>{picture}</figure>"


def bar(name: str, marks: Iterable[Mark], text: str) -> str:
    """Return a line with a name, marks on a scale from 0 to 1, and the value as text."""
    drawn = "".join(_draw_mark(mark) for mark in marks)
    parts = f'<strong>{escape(name)}</strong><span class="track">{drawn}</span><span>{escape(text)}</span>'
    return f'<div class="bar">{parts}</div>'


def _draw_mark(mark: Mark) -> str:
    start = min(max(mark.start, 0.0), 1.0)
    style = f"left:{100 * start:.1f}%"
    if mark.end is not None:
        style += f";width:{100 * (min(max(mark.end, start), 1.0) - start):.1f}%"
    title = f' title="{escape(mark.title)}"' if mark.title else ""
    return f'<i class="{mark.kind}" style="{style}"{title}></i>'


def folded(title: str, text: str) -> str:
    """Return text that a reader unfolds."""
    return f"<details><summary>{escape(title)}</summary>{text}</details>"
