# SPDX-License-Identifier: Apache-2.0
"""Made tables."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood_papers.suite.synthetic_tables import SYNTHETIC, _synthetic_table
from veilwood_papers.suite.tables import load_table


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
    with pytest.raises(ValueError, match="two tables 'iris'"):
        _synthetic_table("validation", "iris")(SYNTHETIC["development"]["towns"])
    assert "iris" not in SYNTHETIC["validation"]


def test_the_strongest_vote_tells_the_party_better_than_any_other() -> None:
    votes = load_table("development", "party-votes", None)
    right = [float(np.mean((votes.X[column] == "yes") == (votes.y == "c1"))) for column in votes.X]
    assert right[0] > 0.9 > max(right[1:])
