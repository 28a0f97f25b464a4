# SPDX-License-Identifier: Apache-2.0
"""Tests of columns, as databases are asked them: every code goes where its group says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from veilwood.data.counts import CellRule, split_by_code
from veilwood_testing.forest_structures import follow_rule


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=30))
def test_every_code_goes_to_its_group_and_no_border_is_idle(groups: list[int]) -> None:
    split = split_by_code(0, np.array(groups))
    assert [follow_rule(split, [code]) for code in range(len(groups))] == [None if g < 0 else g for g in groups]
    assert len(split.starts) == 1 + sum(one != other for one, other in pairwise(groups))


def test_a_group_is_made_something_of_once() -> None:
    made: list[int] = []

    def further(group: int) -> CellRule:
        made.append(group)
        return split_by_code(1, np.array([10 * group, 10 * group + 1]))

    split = split_by_code(0, np.array([1, 0, 1, -1]), further)
    assert sorted(made) == [0, 1]
    assert split.targets[0] is split.targets[2]
    assert [follow_rule(split, [code, 1]) for code in range(4)] == [11, 1, 11, None]
