# SPDX-License-Identifier: Apache-2.0
"""Tables of the two suites, and splits that keep test rows away from training."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood_papers.suite import tables
from veilwood_papers.suite.synthetic_tables import SYNTHETIC, _synthetic_table
from veilwood_papers.suite.tables import MAX_TEST_ROWS, load_table, split_rows


def test_no_table_is_in_both_suites_and_each_has_25() -> None:
    both = [{*tables.REAL_TABLES[name], *SYNTHETIC[name]} for name in ("development", "validation")]
    assert both[0] & both[1] == set()
    assert min(map(len, both)) >= 25


def test_a_table_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no table 'nosuch': adult"):
        tables.load_table("development", "nosuch", None)
    with pytest.raises(ValueError, match="--data"):
        tables.load_table("development", "adult", None)


def test_a_split_keeps_test_rows_away_from_training() -> None:
    train, test = split_rows(1_000, 3)
    assert not set(train) & set(test)
    assert len(train) == 750
    assert len(split_rows(100_000, 3)[1]) == MAX_TEST_ROWS


@pytest.mark.parametrize("name", ["late-payments", "party-votes", "towns", "wide-interaction"])
def test_a_made_table_is_always_the_same_and_inside_its_schema(name: str) -> None:
    one, again = load_table("development", name, None), load_table("development", name, None)
    assert one.X.equals(again.X)
    assert one.y.equals(again.y)
    for column in one.schema.features:
        values = one.X[column.name]
        if column.kind == "numeric":
            low, high = column.bounds
            assert ((values >= low) & (values <= high)).mean() > 0.99
        else:
            assert set(values) <= set(column.values)


def test_no_two_tables_share_a_name() -> None:
    with pytest.raises(ValueError, match="'iris'"):
        _synthetic_table("validation", "iris")(SYNTHETIC["development"]["towns"])
    assert "iris" not in SYNTHETIC["validation"]


def test_the_strongest_vote_tells_the_party_better_than_any_other() -> None:
    votes = load_table("development", "party-votes", None)
    right = [float(np.mean((votes.X[column] == "yes") == (votes.y == "c1"))) for column in votes.X]
    assert right[0] > 0.9 > max(right[1:])
