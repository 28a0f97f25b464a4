# SPDX-License-Identifier: Apache-2.0
"""Why a file cannot be read, in one line: told by its header, which is public, and by the kind of an error alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, TypeAlias

from veilwood.data.dialect import SEPARATORS, Dialect, header_of
from veilwood.data.private_text import may_show_values
from veilwood.data.problems import Problem
from veilwood.errors import OutOfSchemaError
from veilwood.wording import shorten

__all__ = ["unreadable", "written_otherwise"]

Opened: TypeAlias = Callable[[], Any]
"""Opens the file once more."""


def written_otherwise(where: str, opened: Opened, dialect: Dialect, wanted: Collection[str]) -> str | None:
    """Tell by the header that a CSV file has another separator or encoding than was said."""
    if any("\ufffd" in name for name in header_of(opened, where, dialect)):
        return (
            "the names of its columns are not in UTF-8. Hint: say how the file is written, as "
            '"dialect": {"encoding": "latin-1"} in the schema or as --encoding latin-1.'
        )
    return _other_separator(where, opened, dialect, wanted)


def _other_separator(where: str, opened: Opened, dialect: Dialect, wanted: Collection[str] = ()) -> str | None:
    """Say by the header alone that a file has another separator: it gives more names, those that are wanted."""
    names = header_of(opened, where, dialect)
    for sep in SEPARATORS:
        others = header_of(opened, where, replace(dialect, sep=sep))
        better = len(set(wanted).intersection(others)) > len(set(wanted).intersection(names)) or not wanted
        if better and len(others) > len(names):
            return (
                f"its header is separated by {sep!r} and not by {dialect.sep!r}. Hint: say so, as "
                f'"dialect": {{"sep": {json.dumps(sep)}}} in the schema or as --sep {json.dumps(sep)}.'
            )
    return None


def unreadable(where: str, opened: Opened | None, error: Exception, dialect: Dialect) -> OutOfSchemaError:
    """Say in one line why a file cannot be read; Arrow's own words may hold whole records."""
    text = str(error)
    detail = f" ({shorten(text)})" if may_show_values() else ""
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in text:
        return OutOfSchemaError(
            f"cannot read {where!r}: it is not in UTF-8{detail}. Hint: say how the file is written, as "
            '"dialect": {"encoding": "latin-1"} in the schema or as --encoding latin-1.'
        )
    number = re.search(r"In CSV column #(\d+): ", text)
    if number:
        # A damaged header is shorter, and a dataset has none.
        names = [] if opened is None else header_of(opened, where, dialect)
        name = dict(enumerate(names)).get(int(number[1]))
        return OutOfSchemaError(
            f"cannot read {where!r}: column {name!r} has a cell that is not a number or not text{detail}. "
            "Hint: numbers have a decimal point and missing cells are empty, unless the schema's dialect says else.",
            column=name,
            problems=() if name is None else ((name, Problem.NO_NUMBER.in_short),),
        )
    if re.search(r"Expected \d+ columns, got \d+", text):
        if opened is not None and (other := _other_separator(where, opened, dialect)):
            return OutOfSchemaError(f"cannot read {where!r}: {other}")
        problem = (
            f"a row has more or fewer cells than the header. Hint: cells are separated by {dialect.sep!r}; one that "
            "holds it stands in quotation marks"
        )
    elif re.search("multiple (?:matches|columns)", text, re.I):
        problem = "two of its columns have the same name. Hint: rename one"
    elif "Empty CSV file" in text:
        problem = "the file is empty. Hint: its first line must name the columns"
    elif isinstance(error, OSError) and error.errno:
        problem = os.strerror(error.errno)
    else:
        problem = "it is damaged or of another format"
    return OutOfSchemaError(f"cannot read {where!r}: {problem}{detail}.")
