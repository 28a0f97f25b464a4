# SPDX-License-Identifier: Apache-2.0
"""Command-line entry point: commands of the core and of sibling packages, one-line errors and exit codes."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any, Final

import typer

from veilwood._version import __version__
from veilwood.cli.options import pop_log_level, set_log_level
from veilwood.errors import PrivacyWarning, UseError, UtilityWarning, VeilwoodError
from veilwood.progress import no_progress

# Base of all errors about the arguments typed, in click and in the copy of it inside newer versions of typer.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_HELP_NAMES: Final = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True)
class _Command:
    """Command that is imported only when it runs or shows its help, so that other commands start faster.

    A command of the core is an attribute of a module in ``veilwood.cli``. A command of another package is an entry
    point; ``extra`` installs that package. Without an extra, the package exists only in a clone of the repository.
    """

    help: str  # the first line of the docstring of the command
    place: str | None = None
    extra: str | None = None

    def load(self, name: str) -> Any:
        """Import the command. Raise UseError if its package is not installed."""
        loaded = self._load_own(self.place) if self.place else self._load_entry_point(name)
        if isinstance(loaded, typer.Typer):
            return typer.main.get_group(loaded)
        single = typer.Typer(rich_markup_mode=None, context_settings=_HELP_NAMES)
        single.command(name)(loaded)
        return typer.main.get_command(single)

    def _load_own(self, place: str) -> Any:
        module, _, attribute = place.partition(":")
        return getattr(import_module(f"veilwood.cli.{module}"), attribute)

    def _load_entry_point(self, name: str) -> Any:
        try:
            (entry,) = entry_points(group="veilwood.commands", name=name)
            return entry.load()
        except (ValueError, ModuleNotFoundError) as error:
            hint = (
                f"run pip install 'veilwood[{self.extra}]'" if self.extra else "install from a clone (CONTRIBUTING.md)"
            )
            raise UseError(f"'veilwood {name}' needs a package that is not installed. Hint: {hint}.") from error


COMMANDS: Final = {
    "demo": _Command("Train private forests on embedded public data, in seconds.", "demo:demo"),
    "schema": _Command("Draft, review, discover or check a schema.", "schema:schemas"),
    "plan": _Command("Print what fit would release, without reading data.", "fit:plan"),
    "fit": _Command("Train a private model on a table and charge the ledger.", "fit:fit"),
    "predict": _Command("Predict for every row of a table.", "fit:predict"),
    "evaluate": _Command("Evaluate a model on private rows and charge the ledger.", "fit:evaluate_model"),
    "tune": _Command("Plan many settings and rank them, without reading data.", "fit:tune_settings"),
    "explain": _Command("Print the effects of columns and pairs in a PrivateForest.", "models:explain"),
    "report": _Command("Write a one-page HTML report on a model.", "models:report_model"),
    "series": _Command("Plan, release and show a series of models under one privacy loss.", "series:series_commands"),
    "certificate": _Command("Print the privacy certificate of a model.", "models:certificate"),
    "export": _Command("Write a model as ONNX, or its measurements as Parquet.", "models:export"),
    "sign": _Command("Sign a model or a plan.", "models:sign"),
    "verify": _Command("Verify the signature of a model, a plan or a release pack.", "models:verify"),
    "pack": _Command("Write a signed release pack: a model with all its documents.", "pack:pack"),
    "ledger": _Command("Create, show, verify or resolve a ledger.", "ledger:ledgers"),
    "doctor": _Command("Check this installation.", "doctor:doctor"),
    "audit": _Command("Attack an estimator, a model file or another library.", extra="audit"),
    "secure": _Command("Train one model on secret-shared rows of several owners.", extra="secure"),
    "serve": _Command("Start the service.", extra="service"),
    "service": _Command("Back up, restore and repair a service on its machine.", extra="service"),
    "remote": _Command("Work with a running service: data, plans, models, accounts.", extra="service"),
    "bench": _Command("Benchmark estimators on public tables."),
    "papers": _Command("Reproduce the tables and figures of four papers."),
}


GROUPS: Final = {
    "First steps": ("demo", "schema", "plan", "fit", "report", "predict"),
    "Inspect": ("explain", "certificate", "evaluate", "tune", "export"),
    "Budget and trust": ("ledger", "series", "sign", "verify", "pack", "audit"),
    "Parties and service": ("secure", "serve", "service", "remote"),
    "Check": ("doctor", "bench", "papers"),
}
"""Names of the commands, by section of the help."""


class _CommandGroup(typer.core.TyperGroup):
    """Group of the commands in ``COMMANDS``."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by purpose, without truncating their help lines."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name].help) for name in names])

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the loaded command, or a placeholder that has only a help line."""
        if cmd_name in self.commands or cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        return typer.core.TyperCommand(cmd_name, help=COMMANDS[cmd_name].help, rich_markup_mode=None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS and args[0] not in self.commands:
            self.add_command(COMMANDS[args[0]].load(args[0]), args[0])
        return super().resolve_command(ctx, args)


def whole_command() -> Any:
    """Return the command line with the commands of all installed packages, for documentation and tests."""
    whole: Any = typer.main.get_command(app)
    for name, command in COMMANDS.items():
        if command.place or entry_points(group="veilwood.commands", name=name):
            whole.add_command(command.load(name), name)
    return whole


app = typer.Typer(
    cls=_CommandGroup,
    name="veilwood",
    help="Differentially private tree ensembles. Start with: veilwood demo",
    context_settings=_HELP_NAMES,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    | code | meaning |
    |---|---|
    | 0 | success |
    | 1 | unexpected error: please report it |
    | 2 | invalid input: arguments, parameters, schema or table |
    | 3 | the remaining budget is too small; nothing was spent |
    | 4 | a file or ledger is damaged, missing or cannot be written |
    | 5 | an audit refuted a claim |
    | 130 | interrupted |

    Errors are one line on stderr, or one JSON object with ``--json``.

    Examples
    --------
    >>> main(["--version"])
    veilwood 0.1.0
    0
    """
    if argv is None and "_VEILWOOD_COMPLETE" in os.environ:  # the shell requests completions
        app(prog_name="veilwood")
    arguments = list(sys.argv[1:] if argv is None else argv)
    level, rest = pop_log_level(arguments)  # allowed anywhere on the line
    debug = level == "debug"
    command = typer.main.get_command(app)
    with warnings.catch_warnings(), no_progress() if level == "error" else nullcontext():
        _configure_warnings(level)
        try:
            set_log_level(level)
            with command.make_context("veilwood", rest or ["--help"]) as run:
                command.invoke(run)
            sys.stdout.flush()
            return 0
        except typer.Exit as ending:
            return int(ending.exit_code)
        except BrokenPipeError:  # the reader, such as head, closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (Exception, KeyboardInterrupt) as error:
            if debug:
                traceback.print_exc()
            if isinstance(error, UsageError) and error.format_message() == "Missing command.":  # type: ignore[attr-defined]
                print(error.ctx.get_help(), file=sys.stderr)  # type: ignore[attr-defined]
                return 2
            code, text = _exit_code_and_message(error)
            for note in getattr(error, "__notes__", ()):
                text += f" {note}" if text.endswith((".", "?", ")")) else f". {note}"
            text = " ".join(text.split())
            if "--json" in arguments:
                print(json.dumps({"error": type(error).__name__, "message": text, "exit_code": code}), file=sys.stderr)
            else:
                print(f"error: {text}", file=sys.stderr)
            return code


def _exit_code_and_message(error: BaseException) -> tuple[int, str]:
    """Return exit code and message of an error."""
    match error:
        case KeyboardInterrupt() | typer.Abort():
            return 130, "interrupted."
        case VeilwoodError():
            return error.exit_code, str(error)
        case UsageError():
            return 2, f"{error.format_message()} Hint: run the command with --help."  # type: ignore[attr-defined]
        case OSError():
            return 4, f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        case _:
            return 1, f"unexpected {type(error).__name__}: {error}. Hint: run again with --debug for the traceback."


def _configure_warnings(level: str) -> None:
    """Print warnings of Veilwood as one line each, and warnings of other libraries only at level debug.

    Privacy warnings are printed at every level.
    """

    def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)

    warnings.simplefilter("default" if level == "debug" else "ignore")
    warnings.simplefilter("always", PrivacyWarning)
    warnings.simplefilter("ignore" if level == "error" else "always", UtilityWarning)
    warnings.showwarning = print_warning


def _print_version(requested: bool) -> None:
    if requested:
        print(f"veilwood {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only results, errors and privacy warnings; allowed anywhere.")
    ] = False,
    log_level: Annotated[
        str,
        typer.Option("--log-level", metavar="LEVEL", help="Level: debug, info, warning or error; allowed anywhere."),
    ] = "info",
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks; allowed anywhere.")] = False,
) -> None:
    pass
