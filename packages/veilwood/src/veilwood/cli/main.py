# SPDX-License-Identifier: Apache-2.0
"""The command line: words in, one line per error out, an exit code for each kind of ending; no computation of its own.

What a command does is in the library; the demo is in ``demo``.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from veilwood import estimators
from veilwood._version import __version__
from veilwood.cli.doctor import doctor
from veilwood.cli.fit import evaluate_model, evaluation_path, predict, tune_settings
from veilwood.cli.ledger import describe_remaining, ledgers, open_existing_ledger
from veilwood.cli.models import certificate, explain, export, report_model, sign, verify
from veilwood.cli.options import (
    DEFAULT_CSV,
    DEFAULT_SPEND_OPTIONS,
    AsJson,
    CsvOptions,
    Delta,
    Epsilon,
    Force,
    LedgerPath,
    Params,
    SpendOptions,
    check_output,
    confirm_spend,
    explicit_options,
    option_groups,
    pop_log_level,
    print_info,
    print_result,
    read_params,
    set_log_level,
)
from veilwood.cli.schema import SchemaPath, TableArgument, schemas
from veilwood.data.columns import did_you_mean
from veilwood.data.problems import show_private_values
from veilwood.data.schema import Schema, TaskKind
from veilwood.engines.sql.preview import preview_statements
from veilwood.engines.sql.session import is_database
from veilwood.errors import (
    BudgetExceededError,
    FileError,
    LedgerError,
    PrivacyWarning,
    SchemaError,
    UseError,
    UtilityWarning,
    VeilwoodError,
)
from veilwood.estimators.parameters import estimator_from_plan, tuned_parameters
from veilwood.models import file as model_file
from veilwood.privacy.ledger_stores import Ledger, open_ledger
from veilwood.privacy.plan import Plan
from veilwood.progress import no_progress
from veilwood.safe_io import write_file
from veilwood.tune import tune

__all__ = ["FAMILIES", "main"]


def _find_families() -> dict[str, dict[TaskKind, type]]:
    """Name the estimators that make a model as one types them."""
    found: dict[str, dict[TaskKind, type]] = {}
    for name in estimators.__all__:
        if not name.endswith("Predictor"):
            kind = getattr(estimators, name)
            found.setdefault(estimators.family_of(name), {})[kind._task] = kind
    return found


FAMILIES = _find_families()
"""The estimators by their name on the command line; the schema's task picks the one of a family."""

DEFAULT_FAMILY = "private-forest"
"""The one that most people should use."""

# Both click, and the copy of it inside newer typers, derive every complaint about the words typed from this one.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_SIBLING_COMMANDS: Final = {
    "audit": ("audit", "Attack an estimator, a model file or another library."),
    "bench": (None, "Measure estimators on public tables; no private data."),
    "papers": (None, "Reproduce the tables and figures of four papers."),
    "remote": ("service", "Plan, run and predict on a running service."),
    "secure": ("secure", "Train and predict among owners, servers and users."),
    "serve": ("service", "Start the service."),
    "service": ("service", "Copy a service, and bring it back."),
}
"""Commands of other packages: the extra that installs each (None: from a clone only), and its line of help."""


class _CommandGroup(typer.core.TyperGroup):
    """Group that imports a sibling's command when it is called, so that help and other commands start quickly."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(name for name in _SIBLING_COMMANDS if name not in self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in _SIBLING_COMMANDS:
            return typer.core.TyperCommand(cmd_name, help=_SIBLING_COMMANDS[cmd_name][1], rich_markup_mode=None)
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _SIBLING_COMMANDS and args[0] not in self.commands:
            self.add_command(_load_command(args[0]), args[0])
        return super().resolve_command(ctx, args)


def _load_command(name: str) -> Any:
    """Import a command of a sibling package; raise UseError if the package is not installed."""
    extra, _ = _SIBLING_COMMANDS[name]
    hint = f"pip install 'veilwood[{extra}]'." if extra else "install it from a clone: see CONTRIBUTING.md."
    try:
        (entry,) = entry_points(group="veilwood.commands", name=name)
        loaded = entry.load()
    except (ValueError, ModuleNotFoundError) as error:
        raise UseError(f"'veilwood {name}' needs a package that is not installed. Hint: {hint}") from error
    if isinstance(loaded, typer.Typer):
        return typer.main.get_group(loaded)
    alone = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})
    alone.command(name)(loaded)
    return typer.main.get_command(alone)


def whole_command() -> Any:
    """Return the command line with the commands of all installed packages, as documents and tests walk it."""
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
app.command()(predict)
app.command()(sign)
app.command()(verify)


# -- how a run ends ------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    | code | meaning |
    |---|---|
    | 0 | done |
    | 1 | unexpected: please report it |
    | 2 | bad input: words, parameters, schema or table |
    | 3 | the budget does not allow it; nothing was spent |
    | 4 | a file or ledger is damaged, missing or cannot be written |
    | 5 | an audit refuted a claim |
    | 130 | interrupted |

    With ``--json`` an error is printed as JSON too, on stderr.

    Examples
    --------
    >>> main(["--version"])
    veilwood 0.1.0
    0
    """
    if argv is None and "_VEILWOOD_COMPLETE" in os.environ:  # a shell asks what could come next
        app(prog_name="veilwood")
    words = list(sys.argv[1:] if argv is None else argv)
    level, rest = pop_log_level(words)  # anywhere on the line, whatever the command
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
        except BrokenPipeError:  # the reader, such as head, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (Exception, KeyboardInterrupt) as error:
            if debug:
                traceback.print_exc()
            code, text = _exit_code_and_message(error)
            for note in getattr(error, "__notes__", ()):
                text += f" {note}" if text.endswith((".", "?", ")")) else f". {note}"
            text = " ".join(text.split())
            if "--json" in words:
                print(json.dumps({"error": type(error).__name__, "message": text, "exit_code": code}), file=sys.stderr)
            else:
                print(f"error: {text}", file=sys.stderr)
            return code


def _exit_code_and_message(error: BaseException) -> tuple[int, str]:
    """Exit code and message of an error."""
    match error:
        case KeyboardInterrupt() | typer.Abort():
            return 130, "interrupted."
        case BudgetExceededError():
            return 3, str(error)
        case FileError() | LedgerError():
            return 4, str(error)
        case VeilwoodError():
            return 2, str(error)
        case UsageError():
            return 2, f"{error.format_message()} Hint: see --help."  # type: ignore[attr-defined]
        case OSError():
            return 4, f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        case _:
            return 1, f"unexpected {type(error).__name__}: {error}. Hint: run again with --debug for the traceback."


def _configure_warnings(level: str) -> None:
    """Show our own warnings as one line each, those of privacy always; others' only to those who debug."""

    def print_warning(message: Warning | str, *place: Any, **more: Any) -> None:
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
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Tell only results, errors and what is NOT PRIVATE; stands anywhere.")
    ] = False,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error; stands anywhere.")
    ] = "info",
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; stands anywhere.")] = False,
) -> None:
    pass


# -- demo ----------------------------------------------------------------------------------------


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where files go.")] = Path("veilwood-demo"),
    as_json: AsJson = False,
) -> None:
    """See it work on embedded data, in seconds.

    Trains at several epsilons beside an ordinary forest; writes a picture, a model and its certificate.

    \b
    Example:
      veilwood demo --out veilwood-demo
    """
    from veilwood.cli import demo as demonstration  # matplotlib would double the start of every other command

    if out.exists() and not out.is_dir():
        raise UseError(f"{out} is a file. Hint: give the path of a folder with --out.")
    out.mkdir(parents=True, exist_ok=True)
    result = demonstration.run_demo(out)
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        result.print_table()


# -- plan, fit, predict ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EstimatorOptions:
    """The estimator that a command line describes: by its family, or by the name of its class."""

    estimator: Annotated[
        str, typer.Option("--estimator", metavar="NAME", help=f"One of: {', '.join(FAMILIES)}; or a class.")
    ] = DEFAULT_FAMILY
    epsilon: Epsilon = 1.0
    delta: Delta = 0.0
    param: Params = None

    def make_estimator(self, schema: Schema, ledger: Ledger | None = None) -> Any:
        """Make it for a schema."""
        family = self.estimator
        if family in estimators.__all__:
            family = estimators.family_of(family)
        if family not in FAMILIES:
            raise UseError(
                f"there is no estimator {family!r}.{did_you_mean(family, FAMILIES)} Hint: one of {', '.join(FAMILIES)}."
            )
        kind = FAMILIES[family].get(schema.task)
        if kind is None:
            raise SchemaError(f"{family} does not do {schema.task}, the task of schema {schema.name!r}.")
        own = {"schema", "epsilon", "delta", "ledger"}  # these have options of their own
        known = [name for name in inspect.signature(kind).parameters if name not in own]
        given: dict[str, Any] = {"random_state": 0}  # public; fixed, so that the plan shown is the plan carried out
        if schema.privacy_unit is not None:
            given["privacy_unit"] = schema.privacy_unit
        for key, value in read_params(self.param).items():
            if key not in known:
                slip = f"--{key} has an option of its own" if key in own else f"keys are {', '.join(known)}"
                raise UseError(f"--param {key!r} is not understood.{did_you_mean(key, known)} Hint: {slip}.")
            given[key] = value
        return kind(schema, epsilon=self.epsilon, delta=self.delta, ledger=ledger, **given)


DEFAULT_ESTIMATOR: Final = EstimatorOptions()

SqlOption = Annotated[
    str | None,
    typer.Option("--sql", metavar="ENGINE|ADDRESS", help="Show the statements that a database would get."),
]


@app.command()
@option_groups
def plan(
    schema: SchemaPath,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Never opened: for symmetry with fit.")] = None,
    estimator_options: EstimatorOptions = DEFAULT_ESTIMATOR,
    search: Annotated[bool, typer.Option("--search", help="Plan many settings and rank them; needs --rows.")] = False,
    rows: Annotated[int | None, typer.Option(metavar="N", help="For --search: how many rows, if public.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="PLAN.json", help="Save it, for fit --plan.")
    ] = None,
    sql: SqlOption = None,
    csv: CsvOptions = DEFAULT_CSV,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say what fit would cost; no data is read.

    Prints what would be released, the loss, the sensitivity and how large the noise would be. A saved plan can be
    signed, and is carried out as it stands by fit --plan.

    \b
    Example:
      veilwood plan --schema visits.json --epsilon 0.5 -o plan.json
      veilwood plan --schema visits.json --epsilon 0.5 --estimator random-trees --search --rows 2000
      veilwood plan --schema visits.json --sql postgres
    """
    declared = csv.apply_to(_load_schema(schema))
    forest = estimator_options.make_estimator(declared)
    if search != (rows is not None):
        raise UseError(
            "--search and --rows go together. Hint: --search --rows N, with N public or noisy; the number of rows for "
            "a private-forest is --param n_rows=N."
        )
    if out is not None:
        check_output(out, force)
    if rows is None:
        made = forest.plan()
        if out is not None:
            made.save(out)
    else:
        given = read_params(estimator_options.param)
        tuned = tuned_parameters(type(forest))
        grid = {key: v if isinstance(v, list) else [v] for key, v in given.items() if key in tuned}
        made = tune(
            forest.schema,
            forest,
            n_rows=rows,
            epsilon=estimator_options.epsilon,
            delta=estimator_options.delta,
            grid=grid,
        )
    saved = f"\nPlan: {out}, sha256 {made.fingerprint()}" if isinstance(made, Plan) and out is not None else ""
    told = made.to_dict()
    if sql is not None:
        statements = preview_statements(forest, sql)
        told["statements"] = statements
        saved += "\n\n-- What the database would get. KEY stands for a secret key; later rounds have other constants.\n"
        saved += "\n".join(f"{statement};" for statement in statements)
    print_result(as_json, told, f"{made}{saved}", quiet_text=None if out is None else str(out))


@app.command()
@option_groups
def fit(
    context: typer.Context,
    table: TableArgument,
    schema: SchemaPath,
    estimator_options: EstimatorOptions = DEFAULT_ESTIMATOR,
    ledger: LedgerPath = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="MODEL", help="Default: TABLE's name with .veilwood.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="PLAN.json", help="Carry out exactly this; it names the rest.")
    ] = None,
    csv: CsvOptions = DEFAULT_CSV,
    holdout_fraction: Annotated[
        float | None,
        typer.Option("--evaluate-share", metavar="S", help="Set this share of the units aside and evaluate on them."),
    ] = None,
    evaluate_epsilon: Annotated[
        float | None,
        typer.Option("--evaluate-epsilon", metavar="E", help="Its price, where it costs something of its own."),
    ] = None,
    spend_options: SpendOptions = DEFAULT_SPEND_OPTIONS,
) -> None:
    """Train a private model on a table.

    Prints the plan, charges the ledger once, writes the model with its certificate inside. With --plan, estimator,
    budget and parameters are those of the plan, and the certificate shows its hash.

    \b
    Example:
      veilwood fit visits.csv --schema visits.json --epsilon 1 --ledger visits.db -o visits.veilwood
      veilwood fit visits.csv --schema visits.json --plan plan.json --ledger visits.db
    """
    out = Path(re.split(r"[.*?\[]", Path(table).name)[0] or "model").with_suffix(".veilwood") if out is None else out
    check_output(out, spend_options.force)
    if holdout_fraction is not None:
        check_output(evaluation_path(out), spend_options.force)
    if is_database(table):
        check_output(statements_file(out), spend_options.force)
    book = open_ledger(None) if ledger is None else open_existing_ledger(ledger)
    declared = csv.apply_to(_load_schema(schema))
    if plan is None:
        forest = estimator_options.make_estimator(declared, book)
        planned = forest.plan()
    else:
        planned = Plan.load(plan)
        if named := explicit_options(context, inspect.signature(EstimatorOptions).parameters):
            raise UseError(f"--plan names its own {named[0]}. Hint: leave --{named[0]} out, or make a new plan.")
        forest = estimator_from_plan(declared, planned, book)
    if not spend_options.as_json:
        print_info(planned.explain())
    beside = "" if evaluate_epsilon is None else f" and epsilon={evaluate_epsilon:g} of the evaluation"
    if holdout_fraction is not None and not beside:
        beside = " (training and evaluation together: nobody is in both)"
    confirm_spend(f"{planned.loss}{beside}", None if ledger is None else book, spend_options.yes)
    with _note_spend(book, planned), show_private_values(spend_options.show_values):
        forest.fit(table, plan=planned, holdout_fraction=holdout_fraction, evaluate_epsilon=evaluate_epsilon)
        model_file.save(forest, out)
        if forest.statements_:
            write_file(statements_file(out), "".join(f"{one}\n" for one in forest.statements_).encode())
        if holdout_fraction is not None:
            forest.evaluation_.save(evaluation_path(out))
    if not spend_options.as_json and (learned := forest.plan_.choices.get("learned")):
        print_info(f"Chosen on the way, from what had been released: {learned}.")
    data = {"model": str(out), "certificate": forest.privacy_.to_dict(), "plan": forest.plan_.to_dict()}
    if holdout_fraction is not None:
        data["evaluation"] = forest.evaluation_.to_dict()
        told = f"\nOn the units set aside:\n{forest.evaluation_.quality}\nWritten to {evaluation_path(out)}"
        if not spend_options.as_json:
            print_info(told)
    where = (
        "not recorded: no --ledger was given"
        if ledger is None
        else f"recorded in {book.name}, {describe_remaining(book)}"
    )
    record = f"\nStatements, by their SHA-256: {statements_file(out)}" if forest.statements_ else ""
    told = f"\nCertificate: {forest.privacy_}\nSpend: {where}\nModel: {out}{record}"
    print_result(spend_options.as_json, data, told, quiet_text=str(out))


def statements_file(model: Path) -> Path:
    """Where the hashes of the statements that a database got are written."""
    return model.with_suffix(".statements.txt")


# -- helpers ---------------------------------------------------------------------------------------------------


def _load_schema(path: Path) -> Schema:
    schema = Schema.load(path)
    if schema.inferred:
        warnings.warn(
            f"{path} is an unreviewed draft: its bounds and categories were read off the data, so the result is NOT "
            'PRIVATE. Hint: replace them by public knowledge and delete the marks "bounds", "notes" and "inferred".',
            PrivacyWarning,
            stacklevel=2,
        )
    return schema


@contextmanager
def _note_spend(ledger: Ledger, planned: Plan) -> Iterator[None]:
    """Add to whatever goes wrong inside, Ctrl-C too, whether the budget was spent."""
    before = {entry.id for entry in ledger.entries()}
    try:
        yield
    except BaseException as error:
        if getattr(error, "__notes__", ()):  # the door has said it
            raise
        mine = [e for e in ledger.entries() if e.id not in before and e.plan == planned.fingerprint()]
        spent = any(entry.state != "cancelled" for entry in mine)
        error.add_note(f"{planned.loss} counts as spent ({ledger.name})." if spent else "Nothing was spent.")
        raise
