# SPDX-License-Identifier: Apache-2.0
"""An experiment of five quick jobs, one that is interrupted and one that fails."""

from __future__ import annotations

from collections.abc import Iterator

from veilwood_papers.drawing import line_chart
from veilwood_papers.exhibit import Cell, Exhibit, Experiment, Job, Row
from veilwood_papers.tables import PublicTables

DONE: list[str] = []  # what this process has measured


def jobs(quick: bool) -> list[Job]:
    return [Job(f"job {i}", "car" if i < 4 else "banknote", {"i": i}) for i in range(2 if quick else 5)]


def measure(job: Job, tables: PublicTables) -> Iterator[Row]:
    DONE.append(job.name)
    yield Row(Cell("toy", "line", str(job.settings["i"])), 0, float(job.settings["i"]))


def interrupted(job: Job, tables: PublicTables) -> Iterator[Row]:
    if job.settings["i"] == 2:
        raise KeyboardInterrupt
    yield from measure(job, tables)


def failing(job: Job, tables: PublicTables) -> Iterator[Row]:
    if job.settings["i"] == 1:
        raise RuntimeError("out of luck")
    yield from measure(job, tables)


def exhibit(measuring: object = measure, packages: tuple[str, ...] = ()) -> Exhibit:
    experiment = Experiment("toy", jobs, measuring, packages)  # type: ignore[arg-type]
    return Exhibit("rdt", "table 1", "A toy", "none", experiment, line_chart("x", "y"))
