# SPDX-License-Identifier: Apache-2.0
"""The command line: words in, one line per error out, exit code 2 for bad input; no computation of its own.

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
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from veilwood import estimators
from veilwood._version import __version__
from veilwood.cli.audit import audits, certificate
from veilwood.cli.options import AsJson, Delta, Epsilon, Force, ModelPath, Params, check_output, read_params, say
from veilwood.cli.secure import secure
from veilwood.data.columns import closest
from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema, Task
from veilwood.data.sources import draft, open_source, read_features
from veilwood.errors import LedgerError, PrivacyWarning, UtilityWarning, VeilwoodError
from veilwood.models import file as model_file
from veilwood.privacy.ledger import Ledger, SQLiteLedger, open_ledger
from veilwood.privacy.loss import Loss
from veilwood.privacy.plan import Plan
from veilwood.tune import SEARCHED, tune

__all__ = ["FAMILIES", "main"]


def _families() -> dict[str, dict[Task, type]]:
    """Name the estimators that make a model as one types them."""
    found: dict[str, dict[Task, type]] = {}
    for name in estimators.__all__:
        if not name.endswith("Predictor"):
            kind = getattr(estimators, name)
            found.setdefault(estimators.family_of(name), {})[kind._task] = kind
    return found


FAMILIES = _families()
"""The estimators by their name on the command line; the schema's task picks the one of a family."""

# Both click, and the copy of it inside newer typers, derive every complaint about the words typed from this one.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="veilwood",
    help="Differentially private tree ensembles. Start with: veilwood demo",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
schemas = typer.Typer(help="Draft or check what is public of a table.", rich_markup_mode=None)
ledgers = typer.Typer(help="Make, show or verify a record of spends.", rich_markup_mode=None)
app.add_typer(schemas, name="schema")
app.add_typer(ledgers, name="ledger")
app.add_typer(audits, name="audit")
app.add_typer(secure, name="secure")
app.command()(certificate)

Table = Annotated[str, typer.Argument(metavar="TABLE", help="CSV (also .gz), Parquet or Arrow; a folder or a glob.")]
SchemaPath = Annotated[Path, typer.Option("--schema", "-s", metavar="SCHEMA", help="The schema, a JSON file.")]
Family = Annotated[str, typer.Option("--estimator", metavar="NAME", help=f"One of: {', '.join(FAMILIES)}.")]
LedgerPath = Annotated[Path, typer.Argument(metavar="LEDGER", help="The file of the ledger.")]


# -- how a run ends ------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0, 1 unexpected, 2 bad input, 130 interrupted.

    Examples
    --------
    >>> main(["--version"])
    veilwood 0.1.0
    0
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words  # anywhere on the line, whatever the command
    command = typer.main.get_command(app)
    with warnings.catch_warnings():
        _plain_warnings(debug)
        try:
            with command.make_context("veilwood", [word for word in words if word != "--debug"] or ["--help"]) as run:
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
            code, text = _explained(error)
            for note in getattr(error, "__notes__", ()):
                text += f" {note}" if text.endswith((".", "?", ")")) else f". {note}"
            print(f"error: {' '.join(text.split())}", file=sys.stderr)
            return code


def _explained(error: BaseException) -> tuple[int, str]:
    """Exit code and message of an error."""
    match error:
        case KeyboardInterrupt():
            return 130, "interrupted."
        case VeilwoodError():
            return 2, str(error)
        case UsageError():
            return 2, f"{error.format_message()} Hint: see --help."  # type: ignore[attr-defined]
        case OSError():
            return 2, f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        case _:
            return 1, f"unexpected {type(error).__name__}: {error}. Hint: run again with --debug for the traceback."


def _plain_warnings(debug: bool) -> None:
    """Show our own warnings as one line each, and those of other libraries only to those who debug."""

    def show(message: Warning | str, *place: Any, **more: Any) -> None:
        print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)

    warnings.simplefilter("default" if debug else "ignore")
    warnings.simplefilter("always", PrivacyWarning)
    warnings.simplefilter("always", UtilityWarning)
    warnings.showwarning = show


def _version(asked: bool) -> None:
    if asked:
        print(f"veilwood {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere on the line.")] = False,
) -> None:
    pass


# -- demo and schemas ----------------------------------------------------------------------------------------


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
        raise VeilwoodError(f"{out} is a file. Hint: give the path of a folder with --out.")
    out.mkdir(parents=True, exist_ok=True)
    result = demonstration.run(out)
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        result.show()


@schemas.command("draft")
def schema_draft(
    table: Table,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The target; the last column if unsaid.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where to; else printed.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a table and draft a schema for a person to review.

    Bounds and categories in the draft come from the data. Replace them by what is publicly known and delete the
    marks (each column's "bounds", "notes", "inferred"); until then every model made with it is NOT PRIVATE.

    \b
    Example:
      veilwood schema draft visits.csv --target ill -o visits.json
    """
    if out is not None:
        check_output(out, force)
    found = draft(table, target)
    columns = ",\n".join(f"  {json.dumps(column, ensure_ascii=False)}" for column in found["columns"])
    head = json.dumps({key: value for key, value in found.items() if key != "columns"}, indent=1, ensure_ascii=False)
    text = f'{head[:-2]},\n "columns": [\n{columns}\n ]\n}}'  # a column a line: easier to review
    if out is None:
        print(text)
        return
    out.write_text(text + "\n", encoding="utf-8")
    n_features, goal = len(found["columns"]) - 1, found["target"]
    say(
        as_json,
        {"schema": str(out), "task": found["task"], "target": goal},
        f"Wrote {out}: {found['task']} of {goal!r} from {n_features} columns. It was read off the data: review every "
        'bound and category, and delete the marks: "bounds" of each column, "notes" and "inferred".',
    )


@schemas.command("check")
def schema_check(table: Table, schema: SchemaPath, as_json: AsJson = False) -> None:
    """Check that every row of a table fits a schema, before any budget is spent.

    \b
    Example:
      veilwood schema check visits.csv --schema visits.json
    """
    declared = Schema.load(schema)
    for _ in open_source(table, None, Encoding(declared, "grid")).batches():
        pass
    data = {"fits": True, "inferred": declared.inferred, "schema": declared.to_dict()}
    mark = "\nIt is an unreviewed draft: what is made with it is NOT PRIVATE." if declared.inferred else ""
    say(as_json, data, f"{declared}\nEvery row of {table} fits; numbers outside the bounds are clamped.{mark}")


# -- plan, fit, predict ----------------------------------------------------------------------------------------


@app.command()
def plan(
    schema: SchemaPath,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Never opened: for symmetry with fit.")] = None,
    estimator: Family = "random-trees",
    epsilon: Epsilon = 1.0,
    delta: Delta = 0.0,
    param: Params = None,
    search: Annotated[bool, typer.Option("--search", help="Plan many settings and rank them; needs --rows.")] = False,
    rows: Annotated[int | None, typer.Option(metavar="N", help="For --search: how many rows, if public.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what fit would cost; no data is read.

    Prints what would be released, the loss, the sensitivity and how large the noise would be.

    \b
    Example:
      veilwood plan --schema visits.json --epsilon 0.5 --param n_estimators=10 --param max_depth=4
      veilwood plan --schema visits.json --epsilon 0.5 --search --rows 2000 --param max_depth=[2,3,4]
    """
    forest = _estimator(_load_schema(schema), estimator, epsilon, delta, param, None)
    if search != (rows is not None):
        raise VeilwoodError(
            "--search and --rows go together. Hint: --search --rows N, with N public or noisy; the number of rows for "
            "a private-forest is --param n_rows=N."
        )
    if rows is None:
        made = forest.plan()
    else:
        given = read_params(param)
        grid = {key: v if isinstance(v, list) else [v] for key, v in given.items() if key in SEARCHED}
        made = tune(forest.schema, forest, n=rows, epsilon=epsilon, delta=delta, grid=grid)
    say(as_json, made.to_dict(), str(made))


@app.command()
def fit(
    table: Table,
    schema: SchemaPath,
    estimator: Family = "random-trees",
    epsilon: Epsilon = 1.0,
    delta: Delta = 0.0,
    param: Params = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="LEDGER", help="Charge this ledger; else the spend is not recorded.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="MODEL", help="Default: TABLE's name with .veilwood.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train a private model on a table.

    Prints the plan, charges the ledger once, writes the model with its certificate inside.

    \b
    Example:
      veilwood fit visits.csv --schema visits.json --epsilon 1 --ledger visits.db -o visits.veilwood
    """
    out = Path(re.split(r"[.*?\[]", Path(table).name)[0] or "model").with_suffix(".veilwood") if out is None else out
    check_output(out, force)
    book = open_ledger(None) if ledger is None else _existing_ledger(ledger)
    forest = _estimator(_load_schema(schema), estimator, epsilon, delta, param, book)
    planned = forest.plan()
    if not as_json:
        print(planned.explain())
    with _spend_noted(book, planned):
        forest.fit(table)
        model_file.save(forest, out)
    if not as_json and (chosen := forest.plan_.notes.get("choice")) and "choice" not in planned.notes:
        print(f"Chosen after the rows were counted: {chosen}.")
    data = {"model": str(out), "certificate": forest.privacy_.to_dict(), "plan": forest.plan_.to_dict()}
    where = "not recorded: no --ledger was given" if ledger is None else f"recorded in {ledger}, {_left(book)}"
    say(as_json, data, f"\nCertificate: {forest.privacy_}\nSpend: {where}\nModel: {out}")


@app.command()
def predict(
    model: ModelPath,
    table: Table,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="OUT.csv", help="Where to; else printed.")] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Predict for every row of a table; free.

    Predictions come in the order of the rows and spend no budget.

    \b
    Example:
      veilwood predict visits.veilwood new-visits.csv -o predictions.csv --proba
    """
    if out is not None:
        check_output(out, force)
    forest: Any = model_file.load(model)
    if proba and not hasattr(forest, "predict_proba"):
        raise VeilwoodError(f"{model} predicts numbers, which have no classes. Hint: leave --proba out.")
    rows = read_features(table, forest.schema_)
    answer = pd.DataFrame({"prediction": forest.predict(rows)})
    if proba:
        shares = forest.predict_proba(rows).T
        answer = answer.assign(**{f"probability_{name}": p for name, p in zip(forest.classes_, shares, strict=True)})
    if as_json:
        text = answer.to_json(orient="records", indent=1) + "\n"
    else:
        text = answer.to_csv(index=False, lineterminator="\n")
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")
        print(f"Wrote {len(answer)} predictions to {out}", file=sys.stderr)


# -- ledgers ---------------------------------------------------------------------------------------------------


@ledgers.command("create")
def ledger_create(
    ledger: LedgerPath,
    epsilon: Annotated[float | None, typer.Option(metavar="E", help="The budget; without it, no limit.")] = None,
    delta: Annotated[float, typer.Option(metavar="D", help="The budget's delta.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Make a ledger with a budget, which then refuses what would exceed it.

    \b
    Example:
      veilwood ledger create visits.db --epsilon 3
    """
    if ledger.exists():
        raise LedgerError(f"{ledger} exists already. Hint: veilwood ledger show {ledger}, or give a new path.")
    book = SQLiteLedger(ledger, epsilon, delta)
    say(as_json, _facts(book), f"Made {ledger}, {_left(book)}.")


@ledgers.command("show")
def ledger_show(ledger: LedgerPath, as_json: AsJson = False) -> None:
    """Print the budget, what is left and every spend.

    \b
    Example:
      veilwood ledger show visits.db
    """
    book = _existing_ledger(ledger)
    entries = [{**asdict(entry), "loss": str(entry.loss)} for entry in book.entries()]
    say(as_json, {**_facts(book), "entries": entries}, f"{book}\n{_left(book)}")


@ledgers.command("verify")
def ledger_verify(ledger: LedgerPath, as_json: AsJson = False) -> None:
    """Recompute the chain of hashes and the totals; print the last hash, to be noted elsewhere.

    \b
    Example:
      veilwood ledger verify visits.db
    """
    head = _existing_ledger(ledger).verify()
    say(as_json, {"intact": True, "head": head}, f"{ledger} is intact; its last event has the hash {head}")


def _existing_ledger(path: Path) -> Ledger:
    if not path.exists():
        raise LedgerError(f"there is no ledger {str(path)!r}. Hint: veilwood ledger create {path} --epsilon 3")
    return open_ledger(path)


def _facts(book: Ledger) -> dict[str, Any]:
    amounts: dict[str, Loss | None] = {"budget": book.budget, "spent": book.spent, "remaining": book.remaining}
    return {"ledger": book.name, **{name: None if loss is None else str(loss) for name, loss in amounts.items()}}


def _left(book: Ledger) -> str:
    return "no limit" if book.budget is None else f"{book.remaining} left of {book.budget}"


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


def _estimator(
    schema: Schema, family: str, epsilon: float, delta: float, params: list[str] | None, ledger: Ledger | None
) -> Any:
    """Make the estimator that a command line describes."""
    if family not in FAMILIES:
        raise VeilwoodError(
            f"there is no estimator {family!r}.{closest(family, FAMILIES)} Hint: one of {', '.join(FAMILIES)}."
        )
    kind = FAMILIES[family].get(schema.task)
    if kind is None:
        raise VeilwoodError(f"{family} does not do {schema.task}, the task of schema {schema.name!r}.")
    own = {"schema", "epsilon", "delta", "ledger"}  # these have options of their own
    known = [name for name in inspect.signature(kind).parameters if name not in own]
    given: dict[str, Any] = {"random_state": 0}  # public; fixed, so that the plan shown is the plan carried out
    for key, value in read_params(params).items():
        if key not in known:
            slip = f"--{key} has an option of its own" if key in own else f"keys are {', '.join(known)}"
            raise VeilwoodError(f"--param {key!r} is not understood.{closest(key, known)} Hint: {slip}.")
        given[key] = value
    return kind(schema, epsilon=epsilon, delta=delta, ledger=ledger, **given)


@contextmanager
def _spend_noted(book: Ledger, planned: Plan) -> Iterator[None]:
    """Add to whatever goes wrong inside, Ctrl-C too, whether the budget was spent."""
    before = {entry.id for entry in book.entries()}
    try:
        yield
    except BaseException as error:
        if getattr(error, "__notes__", ()):  # the door has said it
            raise
        mine = [e for e in book.entries() if e.id not in before and e.plan == planned.fingerprint()]
        spent = any(entry.state != "cancelled" for entry in mine)
        error.add_note(f"{planned.loss} counts as spent ({book.name})." if spent else "Nothing was spent.")
        raise
