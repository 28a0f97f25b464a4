# SPDX-License-Identifier: Apache-2.0
"""Options shared by the commands, parsing of their values, and printing of results. Contains no commands."""

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
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from veilwood.cli.terminal import terminal_width, wrap_lines
from veilwood.errors import UseError, VeilwoodError

if TYPE_CHECKING:  # these modules import numpy and pandas, which help and errors do not need
    from veilwood.data.schema import Schema
    from veilwood.privacy.ledger import Ledger


def read_number(value: object) -> float:
    """Parse the number of an option. Only the word inf means infinity: a number with many digits does not."""
    from veilwood.safe_io import parse_fraction

    text = str(value)
    return math.inf if text == "inf" else float(parse_fraction(text))


Epsilon = Annotated[
    float,
    typer.Option(
        "--epsilon",
        metavar="E",
        parser=read_number,
        help="Privacy loss epsilon. With inf, no noise is added: NOT PRIVATE.",
    ),
]
Delta = Annotated[
    float,
    typer.Option(
        "--delta",
        metavar="D",
        parser=read_number,
        help="Privacy loss delta. Above 0, noise may be Gaussian instead of Laplace.",
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option("--param", "-p", metavar="KEY=VALUE", help="Parameter of the estimator; repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing output files.")]
Drop = Annotated[
    bool, typer.Option("--drop", help="Drop rows that do not fit the schema, instead of rejecting the table.")
]
ShowValues = Annotated[
    bool,
    typer.Option(
        "--show-values", help="Print private rows and values in errors. Only for the custodian, at a terminal."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Spend without confirmation at the terminal.")]
LedgerPath = Annotated[
    str | None,
    typer.Option("--ledger", metavar="LEDGER", help="Ledger to charge. Default: the charge is not recorded."),
]
ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="Model file written by veilwood fit.")]


LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_current_level: ContextVar[str] = ContextVar("level", default="info")


def pop_log_level(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return the log level and the arguments without log-level options, which may stand anywhere.

    Examples
    --------
    >>> pop_log_level(["fit", "visits.csv", "--quiet"])
    ('error', ['fit', 'visits.csv'])
    >>> pop_log_level(["--log-level", "warning", "demo"])
    ('warning', ['demo'])
    """
    level, rest = "info", []
    remaining = iter(argv)
    for argument in remaining:
        if argument in ("--quiet", "-q"):
            level = "error"
        elif argument == "--debug":
            level = "debug"
        elif argument == "--log-level" or argument.startswith("--log-level="):
            level = argument.partition("=")[2] if "=" in argument else next(remaining, "")
        else:
            rest.append(argument)
    return level, rest


def set_log_level(level: str) -> None:
    """Set the log level of the commands of this process."""
    if level not in LOG_LEVELS:
        raise UseError(f"--log-level {level!r} is not a level. Hint: choose one of {', '.join(LOG_LEVELS)}.")
    _current_level.set(level)


def log_level() -> str:
    """Return the log level: debug, info, warning or error."""
    return _current_level.get()


def is_quiet() -> bool:
    """Return True if only results, warnings and errors are printed."""
    return _current_level.get() in ("warning", "error")


def print_info(text: str) -> None:
    """Print information other than the result of the command, unless the level is quiet."""
    if not is_quiet():
        print(text)


def confirm_spend(cost: object, ledger: Ledger | None, yes: bool) -> None:
    """Prompt for confirmation before budget is spent: spending cannot be undone. Scripts are not prompted."""
    if yes or ledger is None or ledger.budget is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    question = f"Spend {cost} of the {ledger.remaining} left in {ledger.name}?"
    if not typer.confirm(wrap_lines(question, terminal_width() - len(" [y/N]: "))):
        raise UseError(
            "the charge was not confirmed. Nothing was spent. Hint: pass --yes to spend without confirmation."
        )


def print_result(as_json: bool, data: Any, text: str, *, quiet_text: str | None = None) -> None:
    """Print the result of a command as JSON or text; ``quiet_text`` replaces the text at quiet levels."""
    if as_json:
        print(json.dumps(data, indent=2))
    else:
        print(text if quiet_text is None or not is_quiet() else quiet_text)


def format_next_commands(commands: Sequence[str]) -> str:
    """Return a numbered list of the commands to run next."""
    return "\n".join(["Next:", *(f"  {number}. {command}" for number, command in enumerate(commands, 1))])


def explicit_options(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Return the names of the options that the user passed explicitly."""
    sources = ((name, context.get_parameter_source(name)) for name in names)
    return [name for name, source in sources if source is not None and source.name == "COMMANDLINE"]


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each dataclass parameter of a command with one option per field."""
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
    """Options of a command that charges a ledger: overwriting, confirmation, private values, output format."""

    force: Force = False
    yes: Yes = False
    show_values: ShowValues = False
    as_json: AsJson = False


DEFAULT_SPEND_OPTIONS: Final = SpendOptions()


@dataclass(frozen=True)
class CsvOptions:
    """Options that describe the format of a CSV file."""

    sep: Annotated[
        str | None, typer.Option("--sep", metavar="CHAR", help="Separator of CSV values; pass the word tab for a tab.")
    ] = None
    decimal: Annotated[
        str | None,
        typer.Option("--decimal", metavar="CHAR", help="Decimal separator of CSV numbers: a point or a comma."),
    ] = None
    encoding: Annotated[
        str | None, typer.Option("--encoding", metavar="NAME", help="Encoding of a CSV file, such as latin-1.")
    ] = None

    @property
    def dialect_options(self) -> dict[str, str]:
        """The options that were passed, by their field names in ``Dialect``."""
        options = {"sep": "\t" if self.sep == "tab" else self.sep, "decimal": self.decimal, "encoding": self.encoding}
        return {name: value for name, value in options.items() if value is not None}

    def apply_to(self, schema: Schema) -> Schema:
        """Return the schema with these options in its CSV dialect."""
        changes: dict[str, Any] = self.dialect_options
        if changes.get("decimal") == schema.dialect.thousands:
            changes["thousands"] = ""
        return replace(schema, dialect=replace(schema.dialect, **changes)) if changes else schema


DEFAULT_CSV: Final = CsvOptions()


def read_value(text: str) -> Any:
    """Parse a value as JSON, or return it as text: 5, null, majority, {"id": "patient", "at_most": 3}.

    Examples
    --------
    >>> read_value("5"), read_value("majority")
    (5, 'majority')
    """
    from veilwood.safe_io import read_json

    try:
        return read_json(text)
    except VeilwoodError:
        return text


def read_params(assignments: list[str] | None) -> dict[str, Any]:
    """Parse the values of ``--param``.

    Examples
    --------
    >>> read_params(["max_depth=3", "voting=majority"])
    {'max_depth': 3, 'voting': 'majority'}
    """
    parameters = {}
    for assignment in assignments or ():
        key, equals, value = assignment.partition("=")
        if not equals:
            raise UseError(f"--param {assignment!r} has no value. Hint: write KEY=VALUE.")
        parameters[key] = read_value(value)
    return parameters


def check_output(path: Path, force: bool) -> None:
    """Raise UseError if an output file cannot be written, before anything is spent."""
    if path.is_dir():
        raise UseError(f"{path} is a folder. Hint: pass the path of a file.")
    if path.exists() and not force:
        raise UseError(f"{path} exists already. Hint: pass another path with -o, or --force to overwrite it.")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise UseError(
            f"cannot write to {path.parent}: {error.strerror}. Hint: choose another folder with -o."
        ) from None
