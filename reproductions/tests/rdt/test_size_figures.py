# SPDX-License-Identifier: Apache-2.0
"""Figures of random trees by their size."""

from __future__ import annotations

from veilwood_papers.exhibit import Cell, Value
from veilwood_papers.rdt.size_figures import arrange_panels, parse_size
from veilwood_papers.rdt.sizes import ERROR, PRINTED


def test_panels_are_arranged_by_height_and_by_count() -> None:
    cells = {Cell("T", PRINTED["RFMV"], f"k={k} h={h}", ERROR): Value(float(k * h)) for k in (3, 21) for h in (5, 11)}
    arranged = arrange_panels(cells)
    assert parse_size(next(iter(cells))) == (3, 5)
    assert {cell.panel[:3] for cell in arranged} == {"T a", "T b", "T c", "T d"}
    assert arranged[Cell("T a) against h, k = 21", PRINTED["RFMV"], "11", ERROR)].mean == 231
