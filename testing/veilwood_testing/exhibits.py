# SPDX-License-Identifier: Apache-2.0
"""Exhibits of papers for tests: one cheap job of each experiment, a toy experiment, fake peers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veilwood.datasets import car
from veilwood_papers.drawing import line_chart
from veilwood_papers.exhibit import Cell, Exhibit, Experiment, Job, Row
from veilwood_papers.not_private.as_published import RandomTreesAsPrintedNotPrivate
from veilwood_papers.runner import run_job
from veilwood_papers.show import ExhibitResults
from veilwood_papers.suite import peers
from veilwood_papers.tables import PublicTables

SLOW_PANELS = (
    "Adult, 8 columns",
    "Adult, training file",
    "Mushroom",
    "Heart",
    "Car",
)  # panels of M-RF, as other panels run the same code


N_ROWS = 240


CHEAP_EXPERIMENTS = (
    "mrf-queries", "mrf-subsample", "mrf-sizes", "rdt-sizes", "rdt-eta", "diprime-banknote", "diprime-leaves",
    "diprime-balance", "diprime-regression", "diprime-classes", "secure-epsilon", "secure-depth", "secure-leaves",
    "secure-sizes",
)  # fmt: skip


def random_rows(facts: dict[str, Any], rng: np.random.Generator) -> list[list[str]]:
    columns = []
    for column in facts["columns"]:
        if column["kind"] == "numeric":
            columns.append([repr(round(float(x), 3)) for x in rng.uniform(column["lower"], column["upper"], N_ROWS)])
        else:
            columns.append(list(rng.choice(column["values"], N_ROWS)))
    return [list(row) for row in zip(*columns, strict=True)]


def cheapest(jobs: list[Job]) -> Job:
    return min(
        (job for job in jobs if job.settings.get("panel") not in SLOW_PANELS),
        key=lambda job: job.weight,
        default=jobs[0],
    )


def first_job(experiment: Experiment, tables: PublicTables) -> list[Row]:
    job = cheapest(list(experiment.jobs(True)))
    few = {name: value[:2] if isinstance(value, tuple) else value for name, value in job.settings.items()}
    return run_job(experiment, job._replace(settings=few), tables)  # two places of an axis run the code of all


def results_of_exhibit(exhibit: Exhibit, found: dict[str, list[Row]]) -> ExhibitResults:
    return ExhibitResults(exhibit, exhibit.values(found.get(exhibit.experiment.name, [])), exhibit.published(), True)


MEASURED_JOBS: list[str] = []  # what this process has measured


def toy_jobs(quick: bool) -> list[Job]:
    return [Job(f"job {i}", "car" if i < 4 else "banknote", {"i": i}) for i in range(2 if quick else 5)]


def measure_toy(job: Job, tables: PublicTables) -> Iterator[Row]:
    MEASURED_JOBS.append(job.name)
    yield Row(Cell("toy", "line", str(job.settings["i"])), 0, float(job.settings["i"]))


def measure_interrupted(job: Job, tables: PublicTables) -> Iterator[Row]:
    if job.settings["i"] == 2:
        raise KeyboardInterrupt
    yield from measure_toy(job, tables)


def measure_failing(job: Job, tables: PublicTables) -> Iterator[Row]:
    if job.settings["i"] == 1:
        raise RuntimeError("out of luck")
    yield from measure_toy(job, tables)


def toy_exhibit(measuring: object = measure_toy, packages: tuple[str, ...] = ()) -> Exhibit:
    experiment = Experiment("toy", toy_jobs, measuring, packages)  # type: ignore[arg-type]
    return Exhibit("rdt", "table 1", "A toy", "none", experiment, line_chart("x", "y"))


FAKE_DIFFPRIVLIB = """
from sklearn.ensemble import RandomForestClassifier as Plain
def RandomForestClassifier(epsilon, bounds, classes, random_state, shuffle):
    if epsilon > 10:
        raise RuntimeError("too much")
    return Plain(10, random_state=random_state)
"""


CHEAP_ESTIMATOR = """
class Cheap:
    def __init__(self, schema, epsilon, delta, random_state):
        self.note_ = f"{epsilon}"
    def fit(self, X, y):
        self.most = y.mode()[0] if y.dtype == object else y.mean()
        with open("fits", "a") as file:
            file.write("x")
        return self
    def predict(self, X):
        return [self.most] * len(X)
"""


def use_fake_peer(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let our own interpreter be the environment, with a library of that name that is none."""
    (folder / "diffprivlib").mkdir()
    (folder / "diffprivlib" / "__init__.py").write_text("")
    (folder / "diffprivlib" / "models.py").write_text(FAKE_DIFFPRIVLIB)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(peers, "peer_python", lambda peer, say=print: Path(sys.executable))


def forest_as_printed(**parameters: Any) -> RandomTreesAsPrintedNotPrivate:
    return RandomTreesAsPrintedNotPrivate(
        car().schema, **{"n_estimators": 4, "max_depth": 3, "random_state": 0, **parameters}
    )
