# SPDX-License-Identifier: Apache-2.0
"""Steps with other borders, merged."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.clinic import COLUMNS
from forests.cells.test_rows import random_rows
from veilwood.forests.adaptive import merging
from veilwood.forests.cells.cell_tables import CellTable
from veilwood.forests.explained.estimates import Seen
from veilwood.forests.explained.estimates import TableScores as Taken

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


@pytest.mark.parametrize("most", [1, 1000])
def test_steps_with_other_borders_add_up_to_the_same_scores(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MOST_MERGED", most)
    rng, rows = np.random.default_rng(0), random_rows(3, 2000, np.random.default_rng(1))
    axes = [COLUMNS[0].of_mass(COLUMNS[0].prior, 4, shift) for shift in (0.0, 0.4, 0.0, -0.4)]
    other = COLUMNS[1].values()
    tables = [CellTable((axes[0], other)), *(CellTable((other, axis)) for axis in axes[1:]), CellTable((other,))]
    values = [rng.integers(-9, 9, (table.n_cells, 3)).astype(np.int32) for table in tables]
    seen = Seen(np.zeros((1, 3)), 0.0)
    found = merging.merged([Taken(*step, seen) for step in zip(tables, values, strict=True)])
    assert len(found) == (5 if most == 1 else 2)
    apart, together = (
        sum(values[table.cells(rows.cells)] for table, values in steps)
        for steps in (zip(tables, values, strict=True), found)
    )
    assert np.array_equal(apart, together)
