# SPDX-License-Identifier: Apache-2.0
"""Adult as the authors grouped it."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from veilwood.data.encoding import Encoding
from veilwood_papers.mrf import adult
from veilwood_papers.tables import PublicTable, known_tables


def random_adult(n: int) -> PublicTable:
    facts, rng = known_tables()["adult-both"], np.random.default_rng(0)
    columns = {
        c["name"]: rng.uniform(c["lower"], c["upper"], n) if c["kind"] == "numeric" else rng.choice(c["values"], n)
        for c in facts["columns"]
    }
    frame = pd.DataFrame(columns)
    return PublicTable(
        {**facts, "columns": [dict(c) for c in facts["columns"]]}, frame.drop(columns="income"), frame.income
    )


def test_adult_is_grouped_and_complete() -> None:
    table = random_adult(500)
    complete = int((table.X != adult.MISSING).all(axis=1).sum())
    grouped = adult.adult_in_groups(table)
    assert len(grouped.X) == len(grouped.y) == complete < 500
    assert grouped.X.notna().all(axis=None), "every category has a group"
    for column in grouped.facts["columns"]:
        if "mrf_cutoffs" in column:
            column["cutoffs"] = column["mrf_cutoffs"]
    cells = math.prod(column.n_codes for column in Encoding(grouped.schema, "bins").columns)
    assert cells == 168_000
    assert set(grouped.X.columns) == {c["name"] for c in grouped.facts["columns"]} - {"income"}
