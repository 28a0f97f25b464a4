# SPDX-License-Identifier: Apache-2.0
"""Bounds that runs give, and enumerations of neighbours."""

from __future__ import annotations

import numpy as np
import pytest

import veilwood_audit as audit
from veilwood.arrays import Ints
from veilwood.privacy.neighbours import Neighbours
from veilwood_audit.statistics import ALPHA, epsilon_lower_bound, worst_distances
from veilwood_testing.noise_checks import CODE_TARGET_PAIRS, NEIGHBOUR_UNITS

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_class_counts_as_scores_have_the_range_of_the_adjacency() -> None:
    def counts(cells: tuple[int, ...]) -> Ints:
        return np.bincount([CODE_TARGET_PAIRS[cell][1] for cell in cells], minlength=2)

    for neighbours in NEIGHBOUR_UNITS:
        assert worst_distances(counts, len(CODE_TARGET_PAIRS), 3, neighbours).score_range == neighbours.score_range(1)
    # Mutant: scores that only rise are called monotone, which they no longer are when a record is replaced.
    assert worst_distances(counts, len(CODE_TARGET_PAIRS), 3, Neighbours("replace-one")).score_range > 1


def test_lower_bounds_are_lower_bounds_and_close() -> None:
    assert epsilon_lower_bound(0, 100, 0, 100) == 0
    assert epsilon_lower_bound(100, 100, 100, 100) == 0
    assert epsilon_lower_bound(500_000, 10**6, 183_940, 10**6) == pytest.approx(1, abs=0.03)
    assert epsilon_lower_bound(500_000, 10**6, 183_940, 10**6) < 1
    assert epsilon_lower_bound(5_000, 10**6, 0, 10**6, delta=0.01) == 0
    assert epsilon_lower_bound(50_000, 10**6, 0, 10**6, delta=0.01) > 5
    assert audit.one_run_lower_bound(0, 100) == audit.one_run_lower_bound(50, 100) == 0
    assert 0.8 < audit.one_run_lower_bound(7311, 10**4) < 1


def test_the_one_run_bound_is_the_binomial_tail() -> None:
    from scipy import stats

    epsilon = audit.one_run_lower_bound(700, 1000)
    success = np.exp(epsilon) / (1 + np.exp(epsilon))
    assert stats.binom.sf(699, 1000, success) == pytest.approx(ALPHA, rel=1e-6)


def test_the_one_run_bound_with_delta_is_below_and_approaches_the_one_without() -> None:
    pure = audit.one_run_lower_bound(700, 1000)
    bounds = [audit.one_run_lower_bound(700, 1000, canaries=5000, delta=delta) for delta in (1e-15, 1e-12, 1e-6, 1e-2)]
    assert pure >= bounds[0] >= bounds[1] >= bounds[2] >= bounds[3] == 0
    assert bounds[0] == pytest.approx(pure, abs=1e-3)
    assert audit.one_run_lower_bound(1000, 1000, delta=1e-15) > 3


def test_enumeration_is_complete() -> None:
    pairs = list(audit.neighbouring_tables(3, 3))
    assert len(pairs) == len(set(pairs)) == 3 + 9 + 27
    replaced = set(audit.neighbouring_tables(3, 2, "replace-one"))
    assert len(replaced) == 3 * 2 + 9 * 2 * 2
    assert all((other, one) in replaced for one, other in replaced)
    two = set(audit.neighbouring_tables(2, 2, "replace-one", rows=2))
    assert two == {(a, b) for n in (1, 2) for a in np.ndindex(*(2,) * n) for b in np.ndindex(*(2,) * n) if a != b}
