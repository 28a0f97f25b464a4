# SPDX-License-Identifier: Apache-2.0
"""Errors of random trees at every size, beside trees of others, and their figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from veilwood_papers.exhibit import Cell, Value
from veilwood_papers.rdt.all_sizes import SplitRows
from veilwood_papers.rdt.size_figures import arrange_panels, parse_size
from veilwood_papers.rdt.sizes import ERROR, PRINTED, _cart_error, list_jobs, size_name


def test_large_tables_are_run_less_often_in_short() -> None:
    quick, full = list_jobs(True), list_jobs(False)
    assert {job.table for job in quick} == {job.table for job in full}
    runs = {name: sum(job.settings["panel"] == name for job in quick) for name in ("Adult", "Mushroom")}
    assert runs == {"Adult": 2, "Mushroom": 10}
    assert all(sum(job.settings["panel"] == name for job in full) == 10 for name in runs)
    assert size_name(11, 6) == "k=11 h=6"


def test_the_pruned_tree_splits_where_it_helps_and_only_there() -> None:
    codes = np.repeat(np.arange(10, dtype=np.uint16), 20)[:, None]
    rows = np.arange(200)
    parts: dict[str, Any] = {"train": rows[::2], "validation": rows[:0], "test": rows[1::2], "codes": codes}
    easy = SplitRows(**parts, classes=(codes[:, 0] > 4).astype(np.int64))
    assert _cart_error(easy) == 0.0
    hard = SplitRows(**parts, classes=np.arange(200) // 2 % 2)
    assert 40 <= _cart_error(hard) <= 60


def test_panels_are_arranged_by_height_and_by_count() -> None:
    cells = {Cell("T", PRINTED["RFMV"], f"k={k} h={h}", ERROR): Value(float(k * h)) for k in (3, 21) for h in (5, 11)}
    arranged = arrange_panels(cells)
    assert parse_size(next(iter(cells))) == (3, 5)
    assert {cell.panel[:3] for cell in arranged} == {"T a", "T b", "T c", "T d"}
    assert arranged[Cell("T a) against h, k = 21", PRINTED["RFMV"], "11", ERROR)].mean == 231
