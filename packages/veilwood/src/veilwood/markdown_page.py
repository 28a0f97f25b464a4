# SPDX-License-Identifier: Apache-2.0
"""Conversion of certificates and audit reports from Markdown to HTML pages."""

from __future__ import annotations

import html
import re

_STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; font-size: 0.9em } td, th { border: 1px solid #ccc; padding: 0.3em 0.6em;
text-align: left; vertical-align: top; overflow-wrap: anywhere } code { background: #f3f3f3 } img { max-width: 100% }
@media print { body { margin: 0; font-size: 12px } }"""


def html_page(markdown: str) -> str:
    """Convert Markdown written by this library (headings, tables, lists, images, paragraphs) to an HTML page.

    Examples
    --------
    >>> print(html_page("# A < B"))  # doctest: +ELLIPSIS
    <!DOCTYPE html>
    ...
    <h1>A &lt; B</h1>
    ...
    """
    blocks = [block for block in re.split(r"\n\s*\n", markdown.strip()) if block]
    title = html.escape(blocks[0].lstrip("# ").splitlines()[0]) if blocks else "Veilwood"
    body = "\n".join(_block_to_html(block) for block in blocks)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>\n{_STYLE}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _block_to_html(block: str) -> str:
    """Return one block of Markdown as HTML."""
    lines = block.splitlines()
    if heading := re.match(r"(#{1,3}) (.*)", lines[0]):
        level = len(heading[1])
        return f"<h{level}>{_inline_to_html(heading[2])}</h{level}>"
    if lines[0].startswith("|"):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        head = rows[0] if any(rows[0]) else None
        marks = [("th", head)] if head else []
        cells = [*marks, *(("td", row) for row in rows[2:])]
        return "\n".join(
            [
                "<table>",
                *(f"<tr>{''.join(f'<{m}>{_inline_to_html(c)}</{m}>' for c in row)}</tr>" for m, row in cells),
                "</table>",
            ]
        )
    if lines[0].startswith("- "):
        items = re.split(r"\n?^- ", block, flags=re.M)[1:]
        return "\n".join(["<ul>", *(f"<li>{_inline_to_html(item)}</li>" for item in items), "</ul>"])
    return f"<p>{_inline_to_html(block)}</p>"


def _inline_to_html(text: str) -> str:
    """Return a line of Markdown as HTML. All other markup in it is escaped."""
    text = html.escape(text)
    text = re.sub(r"!\[([^\]]*)\]\(([\w./-]+)\)", r'<img alt="\1" src="\2">', text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
