# SPDX-License-Identifier: Apache-2.0
"""Scheduling of the exhibits' jobs over processes, storage of their results, and a record of what was skipped."""

from __future__ import annotations

import csv
import datetime
import importlib
import importlib.util
import io
import json
import multiprocessing
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import sklearn

from veilwood._version import __version__
from veilwood.errors import FileError, UseError
from veilwood.safe_io import write_file
from veilwood_papers.exhibit import Cell, Exhibit, Experiment, Job, Row
from veilwood_papers.tables import PublicTables, describe_source

PAPERS = {
    "mrf": "Tajima, Wu, Houmansadr: Improving Private Random Forest Prediction Using Matrix Representation. AAAI 2025.",
    "rdt": "Bojarski, Choromanska, Choromanski, LeCun: Differentially- and non-differentially-private random decision "
    "trees. 2014.",
    "diprime": "Consul, Williamson: Balance is key: Private median splits yield high-utility random trees. 2020.",
    "secure": "Enhanced Privacy-Preserving Decision Trees using Secure Multiparty Computation and Differential "
    "Privacy.",
}


# One module per table or figure, or per group of them that shares an experiment. Each module defines EXHIBITS.
MODULES = (
    "mrf.figure_2", "mrf.sizes", "mrf.queries", "mrf.subsample", "mrf.table_1", "mrf.appendix_tables",
    "rdt.table_1", "rdt.size_figures", "rdt.eta_figures", "diprime.tables",
    "diprime.figures_1_and_5", "diprime.figures_2_and_6", "diprime.figure_3", "diprime.figure_4",
    "diprime.figures_7_and_8", "mpc.figures_2_to_4", "mpc.figure_5", "mpc.figure_6", "mpc.data",
)  # fmt: skip


N_EXHIBITS = 39
"""Number of tables and figures in the four papers that show measured values."""


@lru_cache
def all_exhibits() -> tuple[Exhibit, ...]:
    """Return every table and figure, by paper, kind and number.

    >>> len(all_exhibits()) == N_EXHIBITS
    True
    """
    exhibits = [
        exhibit for module in MODULES for exhibit in importlib.import_module(f"veilwood_papers.{module}").EXHIBITS
    ]
    return tuple(sorted(exhibits, key=_sort_key))


def _sort_key(exhibit: Exhibit) -> tuple[int, bool, str, int, str]:
    *kind, number = exhibit.number.split(" ")
    digits = number.rstrip("ab")
    return list(PAPERS).index(exhibit.paper), kind[0] == "appendix", kind[-1], int(digits), number


def select_exhibits(paper: str, *, figure: str | None = None, table: str | None = None) -> list[Exhibit]:
    """Return the exhibits of one paper or all papers, restricted to a figure or table if given.

    Raises UseError if there is no such paper or exhibit.

    >>> [exhibit.name for exhibit in select_exhibits("rdt", table="1")]
    ['rdt table 1']
    """
    if paper != "all" and paper not in PAPERS:
        raise UseError(f"there is no paper {paper!r}. Hint: choose one of {', '.join(PAPERS)} or all.")
    of_paper = [exhibit for exhibit in all_exhibits() if paper in ("all", exhibit.paper)]
    if figure is None and table is None:
        return of_paper
    wanted = {f"{kind} {n}" for kind, n in (("figure", figure), ("table", table)) if n is not None}
    wanted |= {f"appendix {name.replace(' a', ' ')}" for name in wanted if " a" in name}
    selected = [exhibit for exhibit in of_paper if exhibit.number in wanted]
    if not selected:
        known = ", ".join(exhibit.number for exhibit in of_paper)
        raise UseError(f"{paper} has no {' or '.join(sorted(wanted))}. Hint: choose one of {known}.")
    return selected


HEAD = ("job", "panel", "curve", "x", "measure", "repeat", "value")
SAVE_SECONDS = 2.0  # time between writes of the file


class ResultStore:
    """Stored rows of one experiment, by job. The file is rewritten every few seconds and at the end.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> open_store = ResultStore(folder / "mrf.csv")
    >>> open_store.add("Car, 0", [Row(Cell("Car", "training", "1"), 0, 0.75)])
    >>> open_store.save()
    >>> "Car, 0" in ResultStore(folder / "mrf.csv")
    True
    """

    def __init__(self, path: Path) -> None:
        self.path, self._saved = path, time.monotonic()
        self._rows: dict[str, list[Row]] = {}
        if path.exists():
            self._read_file(path)

    def __contains__(self, job: str) -> bool:
        return job in self._rows

    def add(self, job: str, rows: Iterable[Row]) -> None:
        """Add the rows of a job. They reach the disk with the next periodic write or ``save``."""
        self._rows[job] = list(rows)
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self.save()

    def rows_of(self, jobs: Iterable[str]) -> list[Row]:
        """Return the rows of the given jobs; unfinished jobs have no rows."""
        return [row for job in jobs for row in self._rows.get(job, ())]

    def save(self) -> None:
        """Write the file atomically."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(HEAD)
        for job, rows in self._rows.items():
            writer.writerows([job, *row.cell, row.repeat, repr(float(row.value))] for row in rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.path, text.getvalue().encode())
        self._saved = time.monotonic()

    def _read_file(self, path: Path) -> None:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.reader(file)
            if tuple(next(lines, ())) != HEAD:
                raise FileError(f"{path} is not a file of results. Hint: pass another folder with --out.")
            try:
                for job, panel, curve, x, measure, repeat, value in lines:
                    row = Row(Cell(panel, curve, x, measure), int(repeat), float(value))
                    self._rows.setdefault(job, []).append(row)
            except ValueError:
                raise FileError(f"{path} is damaged. Hint: delete it to measure its results again.") from None


ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
SECONDS_PER_LINE = 30.0  # time between progress lines, if standard error is not a terminal


@dataclass
class Run:
    """Folder of results, with the jobs that were skipped or failed."""

    folder: Path
    quick: bool
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def open_store(self, experiment: Experiment) -> ResultStore:
        """Return the stored results of an experiment."""
        return ResultStore(self.folder / "cells" / f"{experiment.name}.csv")

    def read_rows(self, exhibit: Exhibit) -> list[Row]:
        """Return the measured rows of an exhibit."""
        return self.open_store(exhibit.experiment).rows_of(job.name for job in exhibit.jobs(self.quick))


def open_run(out: Path, quick: bool) -> Run:
    """Return the run in a folder. Full and quick results have separate subfolders."""
    return Run(out / ("quick" if quick else "full"), quick)


def measure_exhibits(
    exhibits: Sequence[Exhibit],
    tables: PublicTables,
    out: Path,
    *,
    quick: bool = False,
    workers: int = 1,
    fresh: bool = False,
) -> Run:
    """Run the jobs that have no results yet, and return the run.

    Parameters
    ----------
    exhibits : sequence of Exhibit
        Exhibits to measure. An experiment that several of them share runs once.
    tables : PublicTables
        Source of the data sets. Jobs with a missing data set are skipped and listed in ``skipped``.
    out : Path
        Folder of results. An interrupted run resumes from it.
    workers : int
        Number of processes, each with one thread.
    fresh : bool
        Whether to measure again and replace existing results.
    """
    result = open_run(out, quick)
    _begin_run(result, fresh)
    experiments = {exhibit.experiment.name: exhibit.experiment for exhibit in exhibits}
    stores = {name: result.open_store(experiment) for name, experiment in experiments.items()}
    todo: dict[tuple[str, str], tuple[Experiment, Job]] = {}
    missing: dict[str, list[str]] = {}
    for exhibit in exhibits:
        experiment, jobs = exhibit.experiment, exhibit.jobs(quick)
        lacking = [name for name in experiment.packages if importlib.util.find_spec(name) is None]
        if lacking:
            result.skipped.append(
                f"{exhibit.name}: needs {', '.join(lacking)}. Hint: install veilwood with the extra [papers]."
            )
            continue
        if not jobs:
            result.skipped.append(f"{exhibit.name}: its data set is not available.")
        for table in sorted({job.table for job in jobs if job.table and not tables.has_table(job.table)}):
            missing.setdefault(table, []).append(exhibit.name)
        for job in jobs:
            if job.table not in missing and (fresh or job.name not in stores[experiment.name]):
                todo[experiment.name, job.name] = experiment, job
    for table, users in sorted(missing.items()):
        result.skipped.append(f"{table} is missing, for {', '.join(users)}. Hint: {describe_source(table)}.")
    for line in result.skipped:
        print(f"skipped: {line}", file=sys.stderr)
    waiting = sorted(todo.values(), key=lambda entry: -entry[1].weight)  # longest first, to balance the processes
    progress = _JobProgress(waiting)
    try:
        for experiment, job, rows, problem in _run_jobs(waiting, tables, workers):
            if problem is None:
                stores[experiment.name].add(job.name, rows)
            else:
                result.failed.append(f"{experiment.name}, {job.name}: {problem}")
                print(f"failed: {result.failed[-1]}", file=sys.stderr)
            progress.count_job(experiment, job)
    finally:  # saves the finished jobs of an interrupted run too
        progress.close()
        for store in stores.values():
            if waiting:
                store.save()
    return result


def run_job(experiment: Experiment, job: Job, tables: PublicTables) -> list[Row]:
    """Run one job, and suppress the warnings of estimators about the settings of the papers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(experiment.measure(job, tables))


def describe_machine() -> dict[str, str]:
    """Return the software versions and the machine, on which results depend."""
    return {
        "veilwood": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def _begin_run(result: Run, fresh: bool) -> None:
    """Record the versions of a run; raise UseError if the folder holds results of another version."""
    note = result.folder / "run.json"
    now = datetime.datetime.now(datetime.UTC).date().isoformat()
    facts: dict[str, Any] = {**describe_machine(), "quick": result.quick, "begun": now}
    if note.exists() and not fresh:
        try:
            before = json.loads(note.read_text(encoding="utf-8"))
        except ValueError:
            raise FileError(f"{note} is damaged. Hint: pass another folder with --out, or --fresh.") from None
        if before.get("veilwood") != __version__:
            raise UseError(
                f"{result.folder} holds results of version {before.get('veilwood')}, and this is {__version__}. "
                "Hint: pass another folder with --out, or --fresh to measure everything again."
            )
        return
    result.folder.mkdir(parents=True, exist_ok=True)
    write_file(note, json.dumps(facts, indent=1).encode() + b"\n")


FinishedJob = tuple[Experiment, Job, list[Row], str | None]


def _run_jobs(todo: list[tuple[Experiment, Job]], tables: PublicTables, workers: int) -> Iterator[FinishedJob]:
    """Yield jobs as they finish, each with its rows or its error message."""
    if workers <= 1 or len(todo) <= 1:
        for experiment, job in todo:
            try:
                yield experiment, job, run_job(experiment, job, tables), None
            except Exception as error:
                yield experiment, job, [], f"{type(error).__name__}: {error}"
        return
    with _one_thread(), ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        waiting: dict[Future[list[Row]], tuple[Experiment, Job]] = {}
        rest = iter(todo)
        try:
            while True:
                while len(waiting) < 2 * workers and (entry := next(rest, None)) is not None:
                    waiting[pool.submit(run_job, *entry, tables)] = entry
                if not waiting:
                    return
                for ended in wait(waiting, return_when=FIRST_COMPLETED).done:
                    entry = waiting.pop(ended)
                    failure = ended.exception()
                    problem = None if failure is None else f"{type(failure).__name__}: {failure}"
                    yield *entry, [] if failure else ended.result(), problem
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit processes started in this context to one thread, and restore the environment afterwards."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


class _JobProgress:
    """Progress and estimated remaining time on stderr: one updating line, or periodic lines without a terminal."""

    def __init__(self, todo: list[tuple[Experiment, Job]]) -> None:
        self.total, self.done = sum(job.weight for _, job in todo), 0.0
        self.n, self.i = len(todo), 0
        self.began = self.last_line = time.monotonic()
        self.live = sys.stderr.isatty()

    def count_job(self, experiment: Experiment, job: Job) -> None:
        """Count a finished job, and print the progress if a line is due."""
        self.done, self.i, now = self.done + job.weight, self.i + 1, time.monotonic()
        if not self.live and now - self.last_line < SECONDS_PER_LINE and self.i < self.n:
            return
        self.last_line = now
        left = (now - self.began) * (self.total - self.done) / self.done
        line = f"{self.i} of {self.n} jobs, {_format_duration(left)} left: {experiment.name}, {job.name}"
        print(
            f"\r\x1b[K{line[:110]}" if self.live else line, end="" if self.live else "\n", file=sys.stderr, flush=True
        )

    def close(self) -> None:
        """Clear the progress line."""
        if self.live and self.i:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _format_duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours.

    >>> _format_duration(50), _format_duration(300), _format_duration(7300)
    ('50 s', '5 min', '2.0 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
