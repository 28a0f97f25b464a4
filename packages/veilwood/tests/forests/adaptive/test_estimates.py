# SPDX-License-Identifier: Apache-2.0
"""Counts and gradients as effects with standard errors."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood.data.counts import Axis, ContingencyTable
from veilwood.forests.adaptive.effects import MAX_PAIRS, StepMeasurement, TableScores, estimate_effects
from veilwood_testing.effects_cases import WARD

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]


def test_counts_give_their_log_odds_and_a_weight_that_tables_were_given_is_divided_out() -> None:
    """A single column of many rows: nothing is averaged over, so the estimate is exact."""
    counts = np.array([[900.0, 100.0], [500.0, 500.0], [200.0, 800.0]]) * 1e6
    deflated = 0.3 * np.log(counts[:, 1:] / counts[:, :1])
    (found,) = estimate_effects(
        [TableScores(ContingencyTable((WARD,)), deflated, StepMeasurement(counts, 0.0))], np.zeros(1), 2
    )
    true = np.log(counts[:, 1] / counts[:, 0])
    assert found.values[:, 0] == pytest.approx(true - true.mean(), abs=1e-9)


@pytest.mark.parametrize("taken", [0.0, 0.5, 1.0])
def test_gradients_are_read_together_with_what_was_predicted_before(taken: float) -> None:
    """However much of the truth earlier steps have taken, the estimate is the truth."""
    true, rows = np.array([[-1.0], [0.2], [0.8]]), np.full(3, 1e9)
    table = ContingencyTable((WARD,))
    share, now = 1 / (1 + np.exp(-true)), 1 / (1 + np.exp(-taken * true))
    first = TableScores(table, taken * true, StepMeasurement(np.zeros((3, 1)), 1e30, rows))
    second = TableScores(table, np.zeros((3, 1)), StepMeasurement((share - now) * rows[:, None], 0.0, rows))
    (found,) = estimate_effects([first, second], np.zeros(1), 2)
    assert found.values == pytest.approx(true - true.mean(), abs=1e-6)
    numbers = TableScores(
        table, np.zeros((3, 1)), StepMeasurement((1 - taken) * true * rows[:, None] / 0.25, 0.0, rows, limit=0.25)
    )
    (found,) = estimate_effects([first, numbers], np.zeros(1), 0)
    assert found.values == pytest.approx(true - true.mean(), abs=1e-6)


def test_only_the_strongest_pairs_are_told() -> None:
    axes = [Axis(feature, np.arange(2, dtype=np.uint16), False, 2, np.arange(2)) for feature in range(6)]
    steps = [
        TableScores(
            ContingencyTable((axes[i], axes[j])),
            np.zeros((4, 1)),
            StepMeasurement(1e6 + 1e4 * i * j * np.eye(4, 2), 1.0),
        )
        for i in range(6)
        for j in range(i)
    ]
    found = estimate_effects(steps, np.zeros(1), 2)
    pairs = [one.table.features for one in found if len(one.table.axes) == 2]
    assert len(pairs) == MAX_PAIRS
    assert pairs[0] == (4, 5)
    assert len(found) == 6 + MAX_PAIRS


def test_columns_that_say_the_same_do_not_push_each_other_up_without_end() -> None:
    """Five copies of a column that nearly decides: made-up rows take them to be independent, which cannot be."""
    counts = np.array([[48.0, 2.0, 1.0], [2.0, 40.0, 8.0], [1.0, 6.0, 42.0]])
    steps = []
    for feature in range(5):
        table = ContingencyTable((Axis(feature, np.arange(3, dtype=np.uint16), True, 3, np.arange(3)),))
        steps.append(TableScores(table, np.zeros((3, 3), np.int64), StepMeasurement(counts, 4.0)))
    told = estimate_effects(steps, np.zeros(3), 3)
    logs = np.log(counts)
    seen = np.abs(logs - logs.mean(axis=1, keepdims=True)).max()
    assert max(np.abs(one.values).max() for one in told) < 5 * seen
