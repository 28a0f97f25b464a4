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
from veilwood.safe_io import parse_fraction, read_json

__all__ = [
    "DEFAULT_CSV",
    "DEFAULT_SPEND_OPTIONS",
    "AsJson",
    "CsvOptions",
    "Delta",
    "Epsilon",
    "Force",
    "LedgerPath",
    "ModelPath",
    "Params",
    "ShowValues",
    "SpendOptions",
    "Yes",
    "check_output",
    "confirm_spend",
    "explicit_options",
    "is_quiet",
    "log_level",
    "option_groups",
    "pop_log_level",
    "print_info",
    "print_result",
    "read_number",
    "read_value",
    "set_log_level",
]


def read_number(value: object) -> float:
    """Read a number, or the default that is one; only the word inf means infinity, not a number of many digits."""
    text = str(value)
    return math.inf if text == "inf" else float(parse_fraction(text))


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


LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_current_level: ContextVar[str] = ContextVar("level", default="info")


def pop_log_level(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Take out what says how much is told, which may stand anywhere; return the level and the other words.

    Examples
    --------
    >>> pop_log_level(["fit", "visits.csv", "--quiet"])
    ('error', ['fit', 'visits.csv'])
    >>> pop_log_level(["--log-level", "warning", "demo"])
    ('warning', ['demo'])
    """
    level, rest = "info", []
    coming = iter(argv)
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


def set_log_level(level: str) -> None:
    """Say how much the commands of this process tell."""
    if level not in LOG_LEVELS:
        raise UseError(f"--log-level {level!r} is not understood. Hint: one of {', '.join(LOG_LEVELS)}.")
    _current_level.set(level)


def log_level() -> str:
    """Return how much is told, for programs that log: debug, info, warning or error."""
    return _current_level.get()


def is_quiet() -> bool:
    """Whether only results, warnings and errors are wanted."""
    return _current_level.get() in ("warning", "error")


def print_info(text: str) -> None:
    """Print what helps a person along, and is not what was asked for."""
    if not is_quiet():
        print(text)


def confirm_spend(cost: object, ledger: Ledger | None, yes: bool) -> None:
    """Ask the person at a terminal before a budget is spent, which nothing brings back; scripts are not asked."""
    if yes or ledger is None or ledger.budget is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    if not typer.confirm(f"Spend {cost} of the {ledger.remaining} left in {ledger.name}?"):
        raise UseError("not confirmed. Nothing was spent. Hint: --yes spends without asking.")


def print_result(as_json: bool, data: Any, text: str, *, quiet_text: str | None = None) -> None:
    """Print for a machine or for a person; ``quiet_text`` is what is left of it for one who wants quiet."""
    if as_json:
        print(json.dumps(data, indent=2))
    else:
        print(text if quiet_text is None or not is_quiet() else quiet_text)


def explicit_options(context: typer.Context, names: Iterable[str]) -> list[str]:
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
class SpendOptions:
    """The last options of a command that spends: what it may overwrite, ask, show and print."""

    force: Force = False
    yes: Yes = False
    show_values: ShowValues = False
    as_json: AsJson = False


DEFAULT_SPEND_OPTIONS: Final = SpendOptions()


@dataclass(frozen=True)
class CsvOptions:
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
    def dialect_options(self) -> dict[str, str]:
        """What was said, by the names of a ``Dialect``."""
        said = {"sep": "\t" if self.sep == "tab" else self.sep, "decimal": self.decimal, "encoding": self.encoding}
        return {name: value for name, value in said.items() if value is not None}

    def apply_to(self, schema: Schema) -> Schema:
        """Return the schema for a table that is written in another way than it says; it is part of what is declared."""
        changes: dict[str, Any] = self.dialect_options
        if changes.get("decimal") == schema.dialect.thousands:
            changes["thousands"] = ""
        return replace(schema, dialect=replace(schema.dialect, **changes)) if changes else schema


DEFAULT_CSV: Final = CsvOptions()


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


def read_params(assignments: list[str] | None) -> dict[str, Any]:
    """Read what stands behind ``--param``.

    Examples
    --------
    >>> read_params(["max_depth=3", "voting=majority"])
    {'max_depth': 3, 'voting': 'majority'}
    """
    given = {}
    for word in assignments or ():
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
