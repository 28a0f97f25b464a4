# SPDX-License-Identifier: Apache-2.0
"""Steps are shrunk by how much of them is noise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from veilwood.data.counts import Axis, ContingencyTable
from veilwood.forests.adaptive import shrinkage as shrinking
from veilwood.forests.adaptive.shrinkage import (
    log_ratios,
    newton_step,
    pool_class_counts,
    posterior_means,
    shrunken_counts,
    split_components,
)
from veilwood_testing.clinic import COLUMNS

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (2, 0)])
def test_components_are_orthogonal_and_add_up(axes: tuple[int, ...]) -> None:
    table = ContingencyTable(tuple(COLUMNS[j].equal_mass_groups(COLUMNS[j].prior, 4) for j in axes))
    sums = np.random.default_rng(0).normal(size=(table.n_cells, 2))
    parts = split_components(sums, table)
    assert np.allclose(sum(part for part, _ in parts), sums)
    assert sum(size for _, size in parts) == table.n_cells
    assert all(abs(float((a * b).sum())) < 1e-9 for (a, _), (b, _) in itertools.combinations(parts, 2))


def test_a_step_is_none_where_noise_rules_and_newtons_where_there_is_none() -> None:
    table, cells = ContingencyTable((COLUMNS[1].ungrouped_axis(),)), np.full(4, 1e6)
    sums = np.array([[1e5], [2e5], [-1e5], [0.0]])
    values = posterior_means(sums, 0.0, cells, table, 0.2)
    assert np.allclose(values, sums / 1e6, atol=1e-3)
    nothing = posterior_means(sums, 1e14, cells, table, 0.2)
    assert np.abs(nothing).max() < 1e-2
    even = pool_class_counts([np.array([5.0, -3.0])], [1e9], None)
    assert even[0] == even[1] > 0


def test_a_frequent_class_of_many_takes_smaller_steps() -> None:
    """Its probability bends more than that of an even class: a step as large as theirs would overshoot."""
    table, cells = ContingencyTable((COLUMNS[1].ungrouped_axis(),)), np.full(4, 1e6)
    sums = np.random.default_rng(0).normal(0, 1e4, (4, 10))
    even, uneven = (
        newton_step(sums, 0.0, cells, table, 0.0, frequencies)
        for frequencies in (np.full(10, 0.1), np.array([0.5, *np.full(9, 0.5 / 9)]))
    )
    assert np.allclose(uneven[:, 0] / even[:, 0], 0.09 / 0.25, rtol=1e-3)
    assert np.allclose(uneven[:, 1:], even[:, 1:])


def test_noise_on_few_rows_is_no_strong_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 rows, whose cells hold 6 and get noise of deviation 28: before, an empty cell spoke as loudly as it could."""
    rng, totals, variance = np.random.default_rng(0), np.array([25.0, 25.0]), 800.0
    noisy = [6.25 + rng.laplace(0, (variance / 2) ** 0.5, (4, 2)) for _ in range(200)]

    def told(counts: NDArray[np.float64], totals: NDArray[np.float64], variance: float) -> NDArray[np.float64]:
        return log_ratios(shrunken_counts(counts, totals, variance), totals, variance, 1)

    def loudest() -> float:
        return max(float(np.abs(told(count, totals, variance)).max()) for count in noisy)

    now = loudest()
    monkeypatch.setattr(shrinking, "NOISE_MARGIN", 0.0)
    assert now < 0.6 * loudest()
    exact = np.array([[10.0, 40.0], [40.0, 10.0]])
    assert np.allclose(told(exact * 1e6, exact.sum(axis=0) * 1e6, 1.0)[:, 0], [1.386, -1.386], atol=1e-3)


def test_what_is_believed_of_a_table_keeps_its_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrinking, "MIN_CELL_FRACTION", 0.0)
    counts, totals = np.random.default_rng(0).random((12, 2)) * 20, np.array([100.0, 50.0])
    for variance in (0.0, 5.0, 1e6):
        np.testing.assert_allclose(shrunken_counts(counts, totals, variance).sum(axis=0), totals)
    np.testing.assert_allclose(shrunken_counts(counts, totals, 1e6), np.broadcast_to(totals / 12, (12, 2)))
    exact = np.array([[9000.0, 1000.0], [1000.0, 9000.0]])
    np.testing.assert_allclose(shrunken_counts(exact, exact.sum(axis=0), 0.0), exact, rtol=1e-3)


def test_effects_of_many_cells_are_those_of_cells_that_share_only_a_mean() -> None:
    rng = np.random.default_rng(1)
    n_cells = 2 * shrinking.MAX_CORRELATED_CELLS
    table = ContingencyTable((Axis(0, np.arange(n_cells, dtype=np.uint16), False, n_cells, np.arange(n_cells)),))
    effects, cells = rng.normal(0.05, 0.1, n_cells), rng.uniform(50, 500, n_cells)
    sums = (effects * cells + rng.normal(0, np.sqrt(40 + 0.2 * cells)))[:, None]
    values = posterior_means(sums, 40.0, cells, table, 0.2)[:, 0]
    seen, weight = sums[:, 0] / np.sqrt(40 + 0.2 * cells), cells / np.sqrt(40 + 0.2 * cells)
    logs, means = [], []
    for mean, own in itertools.product(shrinking.MEAN_SCALES, shrinking.EFFECT_SCALES):  # the naive computation
        prior = mean**2 * np.ones((n_cells, n_cells)) + own**2 * np.eye(n_cells)
        total = prior * np.outer(weight, weight) + np.eye(n_cells)
        solved = np.linalg.solve(total, seen)
        logs.append(-(seen @ solved + np.linalg.slogdet(total)[1]) / 2)
        means.append((prior * weight) @ solved)
    likelihood = np.exp(np.array(logs) - max(logs))
    assert np.allclose(values, likelihood @ np.array(means) / likelihood.sum())
    assert np.corrcoef(values, effects)[0, 1] > 0.8
