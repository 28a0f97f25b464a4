# SPDX-License-Identifier: Apache-2.0
"""One row moves as many cells as planned, whatever rows are beside it; and what the counts say is what was counted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from veilwood.arrays import Codes, Floats
from veilwood.data.batches import Batch
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.evaluation.scoring import SCORE_EDGES, SIZE_EDGES, Scoring
from veilwood.privacy.loss import requested_loss
from veilwood.privacy.neighbours import Neighbours, Rows
from veilwood_testing.small_forests import FunctionModel, letter_schema, random_model


def counted(scoring: Scoring, rows: list[tuple[int, int]]) -> NDArray[np.int64]:
    codes = np.array([[code] for code, _ in rows], np.uint16).reshape(-1, 1)
    target = np.array([target for _, target in rows], np.int32)
    return scoring.make_count()([Batch(codes, target, 0, 0)])


@pytest.mark.parametrize(("n_classes", "voting"), [(2, ""), (2, "probabilistic"), (3, ""), (5, ""), (0, "")])
def test_one_row_moves_as_many_cells_as_planned(n_classes: int, voting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows, beside all rows, under the same coins: L1 and squared L2 norms are those of the step, and no less."""
    key = bytes(32)
    monkeypatch.setattr("veilwood.evaluation.scoring.secret_key", lambda: key)
    scoring = Scoring(random_model(n_classes, voting))
    targets = range(n_classes) if n_classes else (0, 1, 30_000, TARGET_LEVELS)
    universe = list(itertools.product(range(4), targets))
    worst = {"l1": 0, "squared": 0, "replaced": 0, "squared replaced": 0}
    for others in ([], universe[:2], universe):
        # The last place, so that the coins of the others stay where they are.
        before = counted(scoring, others)
        after = [counted(scoring, [*others, row]) for row in universe]
        for own in after:
            assert (own >= before).all()
            worst["l1"] = max(worst["l1"], int(np.abs(own - before).sum()))
            worst["squared"] = max(worst["squared"], int(((own - before) ** 2).sum()))
        for own, yours in itertools.product(after, after):
            worst["replaced"] = max(worst["replaced"], int(np.abs(own - yours).sum()))
            worst["squared replaced"] = max(worst["squared replaced"], int(((own - yours) ** 2).sum()))
    pure, gauss = requested_loss(1, 0), requested_loss(1, 1e-6)
    planned = {
        "l1": scoring.plan_step(pure, Neighbours()).sensitivity,
        "squared": scoring.plan_step(gauss, Neighbours()).sensitivity,
        "replaced": scoring.plan_step(pure, Neighbours("replace-one")).sensitivity,
        "squared replaced": scoring.plan_step(gauss, Neighbours("replace-one")).sensitivity,
    }
    assert worst == planned
    assert scoring.plan_step(pure, Neighbours("replace-one", Rows(3))).sensitivity == 3 * worst["replaced"]


@pytest.mark.parametrize("n_classes", [2, 3, 0])
def test_the_cells_of_a_row_do_not_depend_on_the_rows_beside_it(n_classes: int) -> None:
    """A model whose sums are rounded another way in larger batches; scores lie on edges, ties are ties."""
    edge = SCORE_EDGES[4] if n_classes else SIZE_EDGES[20]

    def says(codes: Codes) -> Floats:
        off = 1e-14 * (len(codes) > 1)
        if n_classes == 0:
            return np.where(codes[:, 0] == 0, 3 - 4 * (edge + off), 1.0)
        first = np.where(codes[:, 0] == 0, edge + off, 1 / 2 + off)
        rest = (1 - first) / (n_classes - 1)
        shares = np.column_stack([rest] * (n_classes - 1) + [first])
        if n_classes > 2:
            shares[codes[:, 0] == 1] = [0.4 - off, 0.2, 0.4 + off]
        return shares

    scoring = Scoring(FunctionModel(Encoding(letter_schema(n_classes), "bins"), says))
    target = TARGET_LEVELS if n_classes == 0 else 0
    drawn = np.array([n_classes - 1], np.int32) if "drawn" in scoring.table_shapes else None
    for code in (0, 1):
        codes = np.array([[code], [code], [2]], np.uint16)
        targets = np.array([target] * 3, np.int32)
        alone = scoring.cell_indices(codes[:1], targets[:1], drawn)
        together = scoring.cell_indices(codes, targets, None if drawn is None else np.repeat(drawn, 3))
        assert (together[:2] == alone).all(), code
        if n_classes:
            naive, _ = scoring._cells_and_ties(codes, targets, None if drawn is None else np.repeat(drawn, 3))
            assert (naive[0] != alone[0]).any(), "the rounding of this model must matter, or nothing is tested"
