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
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from veilwood._version import __version__
from veilwood.cli.doctor import doctor
from veilwood.cli.fit import evaluate_model, fit, plan, predict, tune_settings
from veilwood.cli.ledger import ledgers
from veilwood.cli.models import certificate, explain, export, report_model, sign, verify
from veilwood.cli.options import AsJson, pop_log_level, set_log_level
from veilwood.cli.schema import schemas
from veilwood.errors import PrivacyWarning, UseError, UtilityWarning, VeilwoodError
from veilwood.progress import no_progress

__all__ = ["main"]

# Base of all errors about the arguments typed, in click and in the copy of it inside newer versions of typer.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_SIBLING_COMMANDS: Final = {
    "audit": ("audit", "Attack an estimator, a model file or another library."),
    "bench": (None, "Measure estimators on public tables; no private data."),
    "papers": (None, "Reproduce the tables and figures of four papers."),
    "remote": ("service", "Plan, run and predict on a running service."),
    "secure": ("secure", "Train and predict among owners, servers and users."),
    "serve": ("service", "Start the service."),
    "service": ("service", "Back up a service, and restore it."),
}
"""Commands of other packages: the extra that installs each (None: from a clone only), and its help line."""


class _CommandGroup(typer.core.TyperGroup):
    """Command group that imports a sibling's command only when it is called: other commands start faster."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(name for name in _SIBLING_COMMANDS if name not in self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in _SIBLING_COMMANDS:
            return typer.core.TyperCommand(cmd_name, help=_SIBLING_COMMANDS[cmd_name][1], rich_markup_mode=None)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _SIBLING_COMMANDS and args[0] not in self.commands:
            self.add_command(_load_command(args[0]), args[0])
        return super().resolve_command(ctx, args)


def _load_command(name: str) -> Any:
    """Import a command of a sibling package. Raise UseError if the package is not installed."""
    extra, _ = _SIBLING_COMMANDS[name]
    hint = f"run pip install 'veilwood[{extra}]'." if extra else "install it from a clone: see CONTRIBUTING.md."
    try:
        (entry,) = entry_points(group="veilwood.commands", name=name)
        loaded = entry.load()
    except (ValueError, ModuleNotFoundError) as error:
        raise UseError(f"'veilwood {name}' needs a package that is not installed. Hint: {hint}") from error
    if isinstance(loaded, typer.Typer):
        return typer.main.get_group(loaded)
    single = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})
    single.command(name)(loaded)
    return typer.main.get_command(single)


def whole_command() -> Any:
    """Return the command line with the commands of all installed packages, for documentation and tests."""
    command: Any = typer.main.get_command(app)
    for name in _SIBLING_COMMANDS:
        if entry_points(group="veilwood.commands", name=name):
            command.add_command(_load_command(name), name)
    return command


app = typer.Typer(
    cls=_CommandGroup,
    name="veilwood",
    help="Differentially private tree ensembles. Start with: veilwood demo",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(schemas, name="schema")
app.add_typer(ledgers, name="ledger")
app.command()(certificate)
app.command()(doctor)
app.command()(explain)
app.command()(export)
app.command("evaluate")(evaluate_model)
app.command("report")(report_model)
app.command("tune")(tune_settings)
app.command()(plan)
app.command()(fit)
app.command()(predict)
app.command()(sign)
app.command()(verify)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    | code | meaning |
    |---|---|
    | 0 | success |
    | 1 | unexpected error: please report it |
    | 2 | invalid input: arguments, parameters, schema or table |
    | 3 | the budget does not allow it; nothing was spent |
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
        except BrokenPipeError:  # the reader has closed the pipe, as head does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (Exception, KeyboardInterrupt) as error:
            if debug:
                traceback.print_exc()
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
    """Print each warning of the library as one line, and those of other libraries only at level debug.

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


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Output folder.")] = Path("veilwood-demo"),
    as_json: AsJson = False,
) -> None:
    """Train private forests on embedded public data, in seconds.

    Compares several epsilons with an ordinary forest. Writes a figure, a model and its certificate.

    \b
    Example:
      veilwood demo --out veilwood-demo
    """
    from veilwood.cli import demo as demonstration  # matplotlib would double the start-up time of every other command

    if out.exists() and not out.is_dir():
        raise UseError(f"{out} is a file. Hint: pass the path of a folder with --out.")
    out.mkdir(parents=True, exist_ok=True)
    result = demonstration.run_demo(out)
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        result.print_table()
