# SPDX-License-Identifier: Apache-2.0
"""What the modules of the command line share: options, reading of values, checks of outputs; no commands."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from veilwood.data.schema import Schema
from veilwood.errors import UseError, VeilwoodError
from veilwood.privacy.ledger_stores import Ledger
from veilwood.safe_io import rational, read_json

__all__ = [
    "ASKED_FIRST",
    "UNSAID",
    "AsJson",
    "Care",
    "Csv",
    "Delta",
    "Epsilon",
    "Force",
    "LedgerPath",
    "ModelPath",
    "Params",
    "ShowValues",
    "Yes",
    "check_output",
    "confirm_spend",
    "is_quiet",
    "log_level",
    "option_groups",
    "read_number",
    "read_value",
    "say",
    "set_level",
    "take_level",
    "tell",
    "typed",
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
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Spend without asking, where a terminal would be asked.")]
LedgerPath = Annotated[
    str | None,
    typer.Option("--ledger", metavar="LEDGER", help="Charge this ledger; else the spend is not recorded."),
]
ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file written by veilwood fit.")]


LEVELS: Final = ("debug", "info", "warning", "error")
_level: ContextVar[str] = ContextVar("level", default="info")


def take_level(words: Sequence[str]) -> tuple[str, list[str]]:
    """Take out what says how much is told, which may stand anywhere; return the level and the other words.

    Examples
    --------
    >>> take_level(["fit", "visits.csv", "--quiet"])
    ('error', ['fit', 'visits.csv'])
    >>> take_level(["--log-level", "warning", "demo"])
    ('warning', ['demo'])
    """
    level, rest = "info", []
    coming = iter(words)
    for word in coming:
        if word in ("--quiet", "-q"):
            level = "error"
        elif word == "--debug":
            level = "debug"
        elif word == "--log-level" or word.startswith("--log-level="):
            level = word.partition("=")[2] if "=" in word else next(coming, "")
        else:
            rest.append(word)
    return level, rest


def set_level(level: str) -> None:
    """Say how much the commands of this process tell."""
    if level not in LEVELS:
        raise UseError(f"--log-level {level!r} is not understood. Hint: one of {', '.join(LEVELS)}.")
    _level.set(level)


def log_level() -> str:
    """Return how much is told, for programs that log: debug, info, warning or error."""
    return _level.get()


def is_quiet() -> bool:
    """Whether only results, warnings and errors are wanted."""
    return _level.get() in ("warning", "error")


def tell(text: str) -> None:
    """Print what helps a person along, and is not what was asked for."""
    if not is_quiet():
        print(text)


def confirm_spend(cost: object, book: Ledger | None, yes: bool) -> None:
    """Ask the person at a terminal before a budget is spent, which nothing brings back; scripts are not asked."""
    if yes or book is None or book.budget is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    if not typer.confirm(f"Spend {cost} of the {book.remaining} left in {book.name}?"):
        raise UseError("not confirmed. Nothing was spent. Hint: --yes spends without asking.")


def say(as_json: bool, data: Any, text: str, *, short: str | None = None) -> None:
    """Print for a machine or for a person; ``short`` is what is left of it for one who wants quiet."""
    if as_json:
        print(json.dumps(data, indent=2))
    else:
        print(text if short is None or not is_quiet() else short)


def typed(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Return those of a command's options that were typed, and not left to their defaults."""
    sources = ((name, context.get_parameter_source(name)) for name in names)
    return [name for name, source in sources if source is not None and source.name == "COMMANDLINE"]


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of each dataclass among its parameters, in the place of that parameter."""
    groups: dict[str, type] = {}
    parameters: list[Parameter] = []
    for each in signature(command, eval_str=True).parameters.values():
        if is_dataclass(group := each.annotation) and isinstance(group, type):
            groups[each.name] = group
            kinds = get_type_hints(group, include_extras=True)
            options = signature(group).parameters.values()
            parameters += [option.replace(kind=each.kind, annotation=kinds[option.name]) for option in options]
        else:
            parameters.append(each)

    @wraps(command)
    def in_groups(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{option: given.pop(option) for option in signature(group).parameters})
        command(**given)

    in_groups.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return in_groups


@dataclass(frozen=True)
class Care:
    """The last options of a command that spends: what it may overwrite, ask, show and print."""

    force: Force = False
    yes: Yes = False
    show_values: ShowValues = False
    as_json: AsJson = False


ASKED_FIRST: Final = Care()


@dataclass(frozen=True)
class Csv:
    """How a CSV file is written, as far as options say it."""

    sep: Annotated[
        str | None, typer.Option("--sep", metavar="CHAR", help="What separates cells of CSV; tab for a tab.")
    ] = None
    decimal: Annotated[
        str | None, typer.Option("--decimal", metavar="CHAR", help="Decimal sign of CSV: a point or a comma.")
    ] = None
    encoding: Annotated[
        str | None, typer.Option("--encoding", metavar="NAME", help="Encoding of CSV, such as latin-1.")
    ] = None

    @property
    def given(self) -> dict[str, str]:
        """What was said, by the names of a ``Dialect``."""
        said = {"sep": "\t" if self.sep == "tab" else self.sep, "decimal": self.decimal, "encoding": self.encoding}
        return {name: value for name, value in said.items() if value is not None}

    def declared(self, schema: Schema) -> Schema:
        """Return the schema for a table that is written in another way than it says; it is part of what is declared."""
        changes: dict[str, Any] = self.given
        if changes.get("decimal") == schema.dialect.thousands:
            changes["thousands"] = ""
        return replace(schema, dialect=replace(schema.dialect, **changes)) if changes else schema


UNSAID: Final = Csv()


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
