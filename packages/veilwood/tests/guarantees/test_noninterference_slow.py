# SPDX-License-Identifier: Apache-2.0
"""Tens of thousands of neighbouring pairs under noninterference, also on clusters; the harness is attacked in
test_noninterference.py.

``VEILWOOD_PAIRS`` sets how many pairs there are, ``VEILWOOD_SEED`` which ones: other computers can run others. The same
without pytest, on all cores: run_pairs.py.
"""

from __future__ import annotations

import os

import pytest

from veilwood_testing.neighbour_pairs import COUNTED_THERE, HANDED_OVER, SETTINGS
from veilwood_testing.run_pairs import PARTS, numbered, run

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("VEILWOOD_SEED", "1"))
CHUNK = 500  # pairs in one test
PAIRS = numbered(int(os.environ.get("VEILWOOD_PAIRS", "20000")), SEED)


@pytest.mark.parametrize("first", range(0, len(PAIRS), CHUNK))
def test_many_neighbours_leave_the_same_traces(first: int) -> None:
    found = run(PAIRS[first : first + CHUNK])
    assert (found.apart, found.failed) == ([], [])


def test_every_part_of_the_adaptive_loop_is_reached() -> None:
    adaptive = [place for place, (name, _) in enumerate(SETTINGS) if name.startswith("PrivateForest")]
    pairs = ((number, drop) for number, drop in numbered(10**6, SEED) if number % len(SETTINGS) in adaptive)
    reached: set[str] = set()
    for _, pair in zip(range(2000), pairs, strict=False):
        reached |= set(run([pair]).parts)
        if reached >= PARTS:
            break
    assert PARTS - reached == set()


def pairs_for(form: str) -> list[tuple[int, bool]]:
    """A few pairs of each setting; a predictor takes no rows that stay on a cluster or in a database."""
    several = numbered(4 * len(SETTINGS), SEED)
    predictor = [setting for setting, (name, _) in enumerate(SETTINGS) if name == "MatrixForestPredictor"]
    return [pair for pair in several if form not in COUNTED_THERE or pair[0] % len(SETTINGS) not in predictor]


def test_neighbours_on_a_cluster_leave_the_same_traces() -> None:
    """On Dask, whose scheduler can stay in this process; other engines are held to its counts in data/test_cluster."""
    dask = pytest.importorskip("dask")
    with dask.config.set(scheduler="synchronous"):
        found = run(pairs_for("dask"), form="dask")
    assert (found.apart, found.failed) == ([], [])


@pytest.mark.parametrize("form", [form for form in HANDED_OVER if form not in ("dask", "postgres")])
def test_neighbours_handed_over_by_other_libraries_leave_the_same_traces(form: str) -> None:
    for package in ("duckdb", "fsspec", "deltalake"):
        pytest.importorskip(package)
    found = run(pairs_for(form), form=form)
    assert (found.apart, found.failed) == ([], [])
