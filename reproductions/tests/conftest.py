# SPDX-License-Identifier: Apache-2.0
"""What one cheap job of each experiment finds on random rows, for all tests of this room."""

from __future__ import annotations

import csv
import gzip

import numpy as np
import pytest

from veilwood_papers.exhibit import Row
from veilwood_papers.runner import all_exhibits
from veilwood_papers.tables import PublicTables, known_tables
from veilwood_testing.exhibits import CHEAP_EXPERIMENTS, first_job, random_rows


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> PublicTables:
    """Random rows for every data set that needs a file."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    for name, facts in known_tables().items():
        with gzip.open(folder / f"{name}.csv.gz", "wt", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([column["name"] for column in facts["columns"]])
            writer.writerows(random_rows(facts, rng))
    return PublicTables([folder])


@pytest.fixture(scope="session")
def found(tables: PublicTables) -> dict[str, list[Row]]:
    """What one job of every experiment finds that takes less than a second."""
    experiments = {exhibit.experiment.name: exhibit.experiment for exhibit in all_exhibits()}
    return {name: first_job(experiments[name], tables) for name in CHEAP_EXPERIMENTS}
