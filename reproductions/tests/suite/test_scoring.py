# SPDX-License-Identifier: Apache-2.0
"""Splits keep test rows away from training."""

from __future__ import annotations

from veilwood_papers.suite.tables import MAX_TEST_ROWS, split_rows


def test_a_split_keeps_test_rows_away_from_training() -> None:
    train, test = split_rows(1_000, 3)
    assert not set(train) & set(test)
    assert len(train) == 750
    assert len(split_rows(100_000, 3)[1]) == MAX_TEST_ROWS
