# SPDX-License-Identifier: Apache-2.0
"""Commands for a series of releases: plan, release and show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilwood.cli import options
from veilwood.cli.fit import EstimatorOptions
from veilwood.cli.ledger import open_existing_ledger
from veilwood.cli.schema import SchemaPath, TableArgument
from veilwood.data.columns import Column
from veilwood.data.problems import show_private_values
from veilwood.data.schema import Schema
from veilwood.models import file as model_file
from veilwood.series import ReleaseSeries

series_commands = typer.Typer(
    help="Plan, release and show a series of models under one privacy loss.", rich_markup_mode=None
)

SeriesPath = Annotated[Path, typer.Argument(metavar="SERIES", help="File written by veilwood series plan.")]


@series_commands.command("plan")
def plan_series(
    schema: SchemaPath,
    releases: Annotated[int, typer.Option(metavar="T", help="Number of releases.")],
    period: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the period in which each row arrived.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="SERIES", help="Output file for the series.")],
    estimator: Annotated[
        str, typer.Option("--estimator", metavar="NAME", help="Family: random-trees, matrix-forest or private-forest.")
    ] = "random-trees",
    epsilon: options.Epsilon = 1.0,
    delta: options.Delta = 0.0,
    param: options.Params = None,
    drop: options.Drop = False,
    periods: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Periods in chronological order. Default: 1 to T.")
    ] = None,
    prefix: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Number of leading characters of the column that give the period, such as 7 of a date."
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(metavar="NAME", help="Factorisation over time: auto, optimized, banded, toeplitz or splitting."),
    ] = "auto",
    objective: Annotated[
        str, typer.Option(metavar="NAME", help="Variance to minimise over the releases: largest or mean.")
    ] = "largest",
    tree_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with the tree of each row, for disjoint trees.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN.json", help="Output file for the plan, which can be signed.")
    ] = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Plan a series of releases, without reading data.

    Prints the total privacy loss of all releases, the largest noise of any release, and a comparison of strategies. The
    first release charges the ledger for the whole series.

    \b
    Example:
      veilwood series plan --schema visits.json --releases 12 --period month --epsilon 3 --delta 1e-6 \\
        -p n_rows=20000 -p trees=shared -o visits.series --plan plan.json
    """
    options.check_output(out, force)
    if plan is not None:
        options.check_output(plan, force)
    estimator_options = EstimatorOptions(estimator, epsilon, delta, param, drop)
    values = tuple(str(number + 1) for number in range(releases)) if periods is None else tuple(periods.split(","))
    plain = periods is None and prefix is None
    column = period if plain else Column(period, "categorical", values=values, prefix=prefix)
    series = ReleaseSeries(
        estimator_options.make_estimator(Schema.load(schema)), releases=releases, period=column, strategy=strategy,
        objective=objective, tree_column=tree_column,
    )  # fmt: skip
    series.save(out)
    planned = series.plan()
    if plan is not None:
        planned.save(plan)
    text = f"{planned}\n\nWrote {out}. Plan sha256 {planned.fingerprint()}"
    options.print_result(as_json, planned.to_dict(), text, quiet_text=str(out))


@series_commands.command("release")
@options.option_groups
def make_release(
    series: SeriesPath,
    table: TableArgument,
    ledger: Annotated[str, typer.Option("--ledger", metavar="LEDGER", help="Ledger to charge.")],
    number: Annotated[
        int | None, typer.Option(metavar="N", help="Number of the release. A job that passes it can safely run twice.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="MODEL", help="Output file. Default: name of SERIES and number of the release."
        ),
    ] = None,
    spend: options.SpendOptions = options.DEFAULT_SPEND_OPTIONS,
) -> None:
    """Release the model of the next period of a series.

    The first release charges the ledger for the whole series. If the release was made before, its model is written
    again without reading a row. No period is measured twice.

    \b
    Example:
      veilwood series release visits.series visits.csv --ledger visits.db --number 3
    """
    opened = open_existing_ledger(ledger)
    loaded = ReleaseSeries.load(series, ledger=opened)
    if out is not None:
        options.check_output(out, spend.force)
    if not loaded.is_open:
        options.confirm_spend(loaded.plan().loss, opened, spend.yes)
    with show_private_values(spend.show_values):
        model = loaded.release(table, number=number)
    made = max(loaded.numbers) if number is None else number
    path = series.with_name(f"{series.stem}-{made}.veilwood") if out is None else out
    if out is None:
        options.check_output(path, spend.force)
    model_file.save(model, path)
    text = f"Release {made} of {loaded.n_releases}: wrote {path}. {model.privacy_}"
    data = {"model": str(path), "release": made, "privacy": model.privacy_.to_dict()}
    options.print_result(spend.as_json, data, text, quiet_text=str(path))


@series_commands.command("show")
def show_series(
    series: SeriesPath,
    withdrawn: Annotated[
        bool, typer.Option("--withdrawn", help="Print what the guarantee covers after rows are removed.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Print the plan and releases of a series, or a statement for people who withdraw consent.

    \b
    Example:
      veilwood series show visits.series --withdrawn
    """
    loaded = ReleaseSeries.load(series)
    made = ", ".join(map(str, loaded.numbers)) or "none"
    data = {"releases": loaded.n_releases, "made": loaded.numbers, "charged": loaded.is_open}
    if withdrawn:
        options.print_result(as_json, {**data, "withdrawn": loaded.withdrawn()}, loaded.withdrawn())
        return
    charged = "charged" if loaded.is_open else "not charged yet"
    text = f"{loaded.plan()}\n\nReleases made: {made}, of {loaded.n_releases}. The loss is {charged}."
    options.print_result(as_json, {**data, "plan": loaded.plan().to_dict()}, text)
