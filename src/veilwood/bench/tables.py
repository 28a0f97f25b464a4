# SPDX-License-Identifier: Apache-2.0
"""The tables of the accuracy suite: real ones from a folder, those that scikit-learn brings, and made ones.

Each table belongs to the development suite or to the validation suite, never to both; families of tables are spread
over the two. Constants are settled on development alone. How scores become skills is in ``suite``.
Real tables have the bounds of their JSON schema.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from veilwood.bench.made_tables import MADE, Suite, SuiteTable
from veilwood.data.schema import Schema

__all__ = ["LONG", "MADE", "MOST_ROWS", "REAL", "Suite", "SuiteTable", "load", "names"]

MOST_ROWS: Final = 20_000
"""Of a table; of longer ones a fixed random part is used, except of those named in ``LONG``."""

LONG: Final = frozenset({"adult", "metro-traffic", "covertype", "adult-a1at", "gas-turbine"})

REAL: Final[dict[Suite, tuple[str, ...]]] = {
    "development": (
        "adult", "balance-scale", "banknote", "flight-delay-nyc2013", "heart", "higgs", "mammographic",
        "metro-traffic", "mushroom", "parkinsons", "wall-following-robot",
    ),
    "validation": (
        "adult-a1at", "appliances-energy", "blood-transfusion", "car", "congressional-voting", "covertype",
        "credit-default", "flight-delay-2008", "gas-turbine", "puc-rio", "titanic",
    ),
}  # fmt: skip


def names(suite: Suite, folder: Path | None) -> list[str]:
    """Return the tables of a suite; without a folder those that need none."""
    real = [name for name in REAL[suite] if folder is not None and (folder / f"{name}.csv.gz").exists()]
    return [*real, *MADE[suite]]


def load(suite: Suite, name: str, folder: Path | None) -> SuiteTable:
    """Make or read a table."""
    if name in MADE[suite]:
        return MADE[suite][name](np.random.default_rng(zlib.crc32(name.encode())))
    if name not in REAL[suite]:
        raise ValueError(f"there is no table {name!r}: {', '.join((*REAL[suite], *MADE[suite]))}")
    if folder is None:
        raise ValueError(f"table {name!r} is read from a folder: give it with --data")
    schema = Schema.load(folder / f"{name}.json")
    frame = pd.read_csv(folder / f"{name}.csv.gz", keep_default_na=False, dtype=str)
    if len(frame) > MOST_ROWS and name not in LONG:
        frame = frame.sample(MOST_ROWS, random_state=0).reset_index(drop=True)
    # The tables are public, and so are bounds that were read off them.
    facts, columns = replace(schema, inferred=False).to_dict(), {}
    for entry in facts["columns"]:
        values = frame[entry["name"]]
        if entry["kind"] == "numeric":
            values = pd.to_numeric(values.where(values != ""), errors="raise")
            if values.isna().any():
                entry["nullable"] = True
        columns[entry["name"]] = values
    schema = Schema.from_dict(facts)
    y = columns.pop(schema.target.name)
    return SuiteTable(schema, pd.DataFrame(columns), y)
