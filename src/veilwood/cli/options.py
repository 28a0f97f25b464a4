# SPDX-License-Identifier: Apache-2.0
"""What the modules of the command line share: options, reading of values, checks of outputs; no commands."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from veilwood.bounded import rational, read_json
from veilwood.data.schema import Schema
from veilwood.errors import UseError, VeilwoodError

__all__ = [
    "AsJson",
    "Decimal",
    "Delta",
    "Encoding",
    "Epsilon",
    "Force",
    "ModelPath",
    "Params",
    "Sep",
    "ShowValues",
    "check_output",
    "read_number",
    "read_value",
    "say",
    "with_dialect",
]


def read_number(given: object) -> float:
    """Read a number, or the default that is one; only the word inf means infinity, not a number of many digits."""
    text = str(given)
    return math.inf if text == "inf" else float(rational(text))


Epsilon = Annotated[
    float,
    typer.Option("--epsilon", metavar="E", parser=read_number, help="Privacy loss; inf adds no noise: NOT PRIVATE."),
]
Delta = Annotated[
    float,
    typer.Option("--delta", metavar="D", parser=read_number, help="Above 0, Gaussian instead of Laplace noise."),
]
Params = Annotated[
    list[str] | None,
    typer.Option("--param", "-p", metavar="KEY=VALUE", help="A parameter of the estimator; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output.")]
ShowValues = Annotated[
    bool,
    typer.Option("--show-values", help="Show private rows and values: for the data holder at a terminal."),
]
Sep = Annotated[str | None, typer.Option("--sep", metavar="CHAR", help="What separates cells of CSV; tab for a tab.")]
Decimal = Annotated[
    str | None, typer.Option("--decimal", metavar="CHAR", help="Decimal sign of CSV: a point or a comma.")
]
Encoding = Annotated[str | None, typer.Option("--encoding", metavar="NAME", help="Encoding of CSV, such as latin-1.")]
ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file written by veilwood fit.")]


def say(as_json: bool, data: Any, text: str) -> None:
    """Print for a machine or for a person."""
    print(json.dumps(data, indent=2) if as_json else text)


def with_dialect(schema: Schema, sep: str | None, decimal: str | None, encoding: str | None) -> Schema:
    """Return the schema for a table that is written in another way than it says; it is part of what is declared."""
    given = {"sep": "\t" if sep == "tab" else sep, "decimal": decimal, "encoding": encoding}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if decimal is not None and decimal == schema.dialect.thousands:
        changes["thousands"] = ""
    return replace(schema, dialect=replace(schema.dialect, **changes)) if changes else schema


def read_value(text: str) -> Any:
    """Read a value as JSON, or else as the text it is: 5, null, majority, {"id": "patient", "at_most": 3}.

    Examples
    --------
    >>> read_value("5"), read_value("majority")
    (5, 'majority')
    """
    try:
        return read_json(text)
    except VeilwoodError:
        return text


def read_params(words: list[str] | None) -> dict[str, Any]:
    """Read what stands behind ``--param``.

    Examples
    --------
    >>> read_params(["max_depth=3", "voting=majority"])
    {'max_depth': 3, 'voting': 'majority'}
    """
    given = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals:
            raise UseError(f"--param {word!r} is not understood. Hint: write KEY=VALUE.")
        given[key] = read_value(value)
    return given


def check_output(path: Path, force: bool) -> None:
    """Refuse an output that cannot be written, while nothing has been spent."""
    if path.is_dir():
        raise UseError(f"{path} is a folder. Hint: give the path of a file.")
    if path.exists() and not force:
        raise UseError(f"{path} exists already. Hint: give another path with -o, or --force to overwrite it.")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise UseError(
            f"cannot write to {path.parent}: {error.strerror}. Hint: choose another place with -o."
        ) from None
