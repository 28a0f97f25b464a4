# SPDX-License-Identifier: Apache-2.0
"""Questions to rows: one answer, however rows are cut."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from veilwood.data import counts as asked
from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import Encoding
from veilwood.forests.adaptive.row_backend import GRADIENT_UNITS, MemoryBackend, ScoredRows, answer_query
from veilwood_testing.clinic import COLUMNS, schema_of, small_table, table_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_rows_in_parts_answer_as_in_one(n_jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = Encoding(schema_of("three"))
    X, y = table_of("three", 500)
    codes, target = encoding.encode(X), encoding.encode_target(y)
    places = [*range(0, 500, 60), 500]
    source = Source(lambda: (partial(Batch, codes[i:j], target[i:j], 0, i) for i, j in pairwise(places)))
    whole = ScoredRows.from_batches(COLUMNS, source.batches(), 3)
    monkeypatch.setattr("veilwood.forests.adaptive.row_backend.PART_ROWS", 100)
    held = MemoryBackend(COLUMNS, source, 3, n_jobs)
    table = small_table()
    values = np.random.default_rng(0).integers(-500, 500, (table.n_cells, 3)).astype(np.int32)
    held.add_scores(table, values)
    whole.add_scores(table, values)
    for question in (
        asked.GradientSums([table], 3, GRADIENT_UNITS), asked.RowsByCell(table), asked.ClassesByCell([table], 3),
        asked.EvidenceGain(np.zeros(3, np.int32), 3, GRADIENT_UNITS, 100),
    ):  # fmt: skip
        assert (held.run(question) == answer_query(question, whole)).all()
    cells, counts = held.nonempty_cells(table.axes, 3)
    one_by_one = np.bincount(table.cell_indices(whole.cells) * 3 + whole.target)
    assert (np.flatnonzero(one_by_one) == cells).all()
    assert (one_by_one[cells] == counts).all()
    held.hold_out(0.3)
    count = asked.RowsByCell(asked.ALL_ROWS)
    assert held.run(count) + held.run_on_holdout(partial(answer_query, count)) == 500
    judged, share = held.run_on_sample(count, 0.5)
    assert 0 < judged < held.run(count)
    assert share == 0.5


def test_no_rows_are_one_part() -> None:
    held = MemoryBackend(COLUMNS, Source(lambda: iter(())), 1)
    assert held.run(asked.RowsByCell(small_table())).tolist() == [0] * small_table().n_cells
