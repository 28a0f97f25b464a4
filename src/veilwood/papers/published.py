# SPDX-License-Identifier: Apache-2.0
"""What the papers publish, as small CSV files: copied, or read off a figure where the file says so."""

from __future__ import annotations

import csv
import importlib.resources
import math
from collections.abc import Callable
from functools import lru_cache

from veilwood.papers.exhibit import Cell, Value, Values, as_text


@lru_cache
def read(name: str) -> list[dict[str, str]]:
    """Return the lines of a published table.

    >>> read("secure_claims")[0]["dataset"]
    'Heart'
    """
    file = importlib.resources.files("veilwood.papers") / "published" / f"{name}.csv"
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def mrf_values(name: str, x: str, curves: dict[str, str], panel: Callable[[dict[str, str]], str]) -> Values:
    """Return accuracies of the M-RF paper along the column ``x``; ``curves`` maps the authors' names to ours."""
    return {
        Cell(panel(row), curves[row["method"]], as_text(float(row[x]))): Value(
            float(row["acc_mean"]), float(row["acc_std"]) / int(row["n_trials"]) ** 0.5, int(row["n_trials"])
        )
        for row in read(name)
        if row["method"] in curves
    }


def number(text: str) -> float:
    """Read a number; nan where there is none."""
    return float(text) if text else math.nan
