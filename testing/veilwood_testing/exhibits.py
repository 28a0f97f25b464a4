# SPDX-License-Identifier: Apache-2.0
"""One cheap job of each experiment of the papers, on random rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from veilwood_papers.exhibit import Exhibit, Experiment, Job, Row
from veilwood_papers.runner import run_job
from veilwood_papers.show import ExhibitResults
from veilwood_papers.tables import PublicTables

SLOW = (
    "Adult, 8 columns",
    "Adult, training file",
    "Mushroom",
    "Heart",
    "Car",
)  # panels of M-RF, as other panels run the same code
N_ROWS = 240
CHEAP = (
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
        (job for job in jobs if job.settings.get("panel") not in SLOW), key=lambda job: job.weight, default=jobs[0]
    )


def first_job(experiment: Experiment, tables: PublicTables) -> list[Row]:
    job = cheapest(list(experiment.jobs(True)))
    few = {name: value[:2] if isinstance(value, tuple) else value for name, value in job.settings.items()}
    return run_job(experiment, job._replace(settings=few), tables)  # two places of an axis run the code of all


def shown_of(exhibit: Exhibit, found: dict[str, list[Row]]) -> ExhibitResults:
    return ExhibitResults(exhibit, exhibit.values(found.get(exhibit.experiment.name, [])), exhibit.published(), True)
