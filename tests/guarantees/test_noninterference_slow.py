# SPDX-License-Identifier: Apache-2.0
"""Tens of thousands of neighbouring pairs under noninterference, also on a cluster; the harness is attacked in
test_noninterference.py.

``VEILWOOD_PAIRS`` sets how many pairs there are.
"""

from __future__ import annotations

import os

import pytest

from fixtures.neighbour_pairs import DROPS, SETTINGS, pair_of
from veilwood.audit.noninterference import interference

pytestmark = pytest.mark.slow

PAIRS = int(os.environ.get("VEILWOOD_PAIRS", "20000"))
PART = 500  # pairs in one test
FIRST = 1000  # those before run with every change
TAKES_TIME = {i for i, (name, _) in enumerate(SETTINGS) if name == "PrivateForestClassifier"}
PARTS = range(FIRST, FIRST + PAIRS, PART)


def told_apart(numbers: range, *, drop: bool = False, form: str | None = None) -> list[str]:
    """The pairs that something tells apart; of forests that take a second each every tenth is looked at."""
    found = []
    for number in numbers:
        if number % len(SETTINGS) in TAKES_TIME and number // len(SETTINGS) % 10:
            continue
        pair = pair_of(number, drop=drop, form=form)
        if lines := interference(pair.run, pair.one, pair.other, draw=pair.draw):
            found.append(f"{pair}: {lines[:3]}")
    return found


@pytest.mark.parametrize("first", PARTS)
def test_many_valid_neighbours_leave_the_same_traces(first: int) -> None:
    assert told_apart(range(first, first + PART)) == []


@pytest.mark.skipif(not DROPS, reason="invalid='drop' is not there yet")
@pytest.mark.parametrize("first", PARTS)
def test_many_neighbours_of_any_kind_leave_the_same_traces_where_invalid_rows_are_dropped(first: int) -> None:
    assert told_apart(range(first, first + PART), drop=True) == []


def test_neighbours_on_a_cluster_leave_the_same_traces() -> None:
    dask = pytest.importorskip("dask")
    with dask.config.set(scheduler="synchronous"):
        for setting in range(len(SETTINGS)):
            found = told_apart(range(setting, setting + 2 * len(SETTINGS), len(SETTINGS)), form="dask")
            assert found == []
