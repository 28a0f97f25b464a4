# SPDX-License-Identifier: Apache-2.0
"""The shape of tables follows from public facts, and more rows or budget never make it worth less."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.forests.adaptive.contingency import BinnedColumn, bin_columns
from veilwood.forests.adaptive.table_design import (
    SCORE_GROUPS,
    ColumnStrengths,
    TableDesign,
    TableDesigns,
    design_tables,
    groups_per_column,
)
from veilwood.privacy.adaptive_budget import AdaptiveBudget, TableNoise
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours

NUMBERS = bin_columns(Encoding(vw.Schema.numeric((0, 1), classes=["a", "b"], n_features=20), "grid"))
CAR = bin_columns(Encoding(vw.datasets.car().schema, "grid"))
NOISES = [TableNoise(gaussian, jointly) for gaussian, jointly in ((False, True), (False, False), (True, False))]


@pytest.mark.parametrize("columns", [NUMBERS, CAR], ids=["numbers", "car"])
@pytest.mark.parametrize("noise", NOISES, ids=["together", "alone", "gaussian"])
def test_more_rows_and_more_budget_are_worth_more(columns: tuple[object, ...], noise: TableNoise) -> None:
    by_rows = [TableDesigns(columns, 2, n, noise).best_design(1.0, 0.8) for n in (10, 100, 1000, 10_000, 100_000)]  # type: ignore[arg-type]
    by_price = [TableDesigns(columns, 2, 2000, noise).best_design(e, 0.8 * e) for e in (0.01, 0.1, 1.0, 10.0)]  # type: ignore[arg-type]
    for shapes in (by_rows, by_price):
        assert all(one.gain <= other.gain + 1e-9 for one, other in pairwise(shapes))
        assert all(one.n_columns <= other.n_columns for one, other in pairwise(shapes))


def test_no_more_columns_are_counted_than_there_are() -> None:
    for noise in NOISES:
        for n_classes in (2, 10, 100):
            assert 1 <= TableDesigns(CAR, n_classes, 10**6, noise).best_design(10.0, 8.0).n_columns <= len(CAR)


def test_few_strong_columns_get_few_tables_and_many_equal_ones_all() -> None:
    """Of 20 columns: one that explains half and nothing else, two, or all alike; the mean tells them apart."""
    shapes = [
        design_tables(
            NUMBERS, 2, 5_000.0, AdaptiveBudget(Loss.pure(Fraction(1)), Neighbours()), 1.0, ColumnStrengths(0.5, mean)
        )
        for mean in (0.5 / 20, 1.0 / 20, 0.5)
    ]
    measured, parts = [shape.n_columns for shape, _ in shapes], [part for _, part in shapes]
    assert measured[0] <= measured[1] < measured[2] == 20
    assert parts[0] <= parts[1] < parts[2]


@pytest.mark.parametrize("mean", [-1.0, 0.0, 0.1, 0.4, 9.0])
@pytest.mark.parametrize("best", [-1.0, 0.0, 0.4, 9.0])
def test_whatever_noise_says_effects_are_finite_and_fall(best: float, mean: float) -> None:
    effects = ColumnStrengths(best, mean).expected_effects(20)
    assert effects.shape == (20,)
    assert np.isfinite(effects).all()
    assert effects.min() >= 0
    assert (np.diff(effects) <= 0).all()


def test_groups_in_a_set_have_the_median_as_a_border() -> None:
    for bins in range(3, 17):
        assert groups_per_column(bins, 1) == bins
        assert groups_per_column(bins, 2) % 2 == groups_per_column(bins, 3) % 2 == 0
        assert groups_per_column(bins, 2) ** 2 <= 64
        assert groups_per_column(bins, 3) ** 3 <= 64


def test_one_column_that_tells_all_or_none_that_tells_anything_need_no_tables() -> None:
    assert ColumnStrengths(0.9, 0.2).rounds_threshold(2) < ColumnStrengths(0.9, 0.2).rounds_threshold(3) < np.inf
    assert ColumnStrengths(0.9, 0.2).rounds_threshold(2) < ColumnStrengths(0.0, 0.0).rounds_threshold(2) < np.inf
    assert ColumnStrengths(0.4, 0.2).rounds_threshold(2) == np.inf
    assert ColumnStrengths(0.0, best_error=0.1).rounds_threshold(2) == np.inf  # it may be more than nothing
    assert ColumnStrengths(-0.2, best_error=0.1).rounds_threshold(2) < np.inf


def test_where_one_of_many_columns_stands_out_fewer_are_counted_in_finer_groups() -> None:
    purse = AdaptiveBudget(Loss.pure(Fraction(1)), Neighbours())

    def shape(n_rows: float, best: float, columns: Sequence[BinnedColumn] = NUMBERS) -> TableDesign:
        return design_tables(columns, 2, n_rows, purse, purse.remaining, ColumnStrengths(best))[0]

    assert shape(1000.0, 0.5).n_columns < 20 == shape(1000.0, 0.3).n_columns
    assert shape(1000.0, 0.5).bins >= SCORE_GROUPS > shape(1000.0, 0.3).bins
    assert shape(300.0, 0.5) == shape(300.0, 0.3)  # too poor
    assert shape(500.0, 0.5, NUMBERS[:8]) == shape(500.0, 0.3, NUMBERS[:8])  # too few to choose from
    assert shape(500.0, 0.5, NUMBERS[:9]) != shape(500.0, 0.3, NUMBERS[:9])


def test_columns_are_chosen_where_few_stand_out_or_rows_are_few() -> None:
    """Together all columns have little noise, and a choice costs; one by one, or by rho, all of them are dear."""
    purse = AdaptiveBudget(Loss.pure(Fraction(1)), Neighbours())

    def counted(n_rows: float, purse: AdaptiveBudget = purse, strengths: ColumnStrengths | None = None) -> int:
        return design_tables(NUMBERS, 2, n_rows, purse, purse.remaining, strengths)[0].n_columns

    assert counted(200.0) == counted(2000.0) == 20
    assert counted(40.0) < 20
    assert counted(2000.0, strengths=ColumnStrengths(0.5, 0.4)) == 20
    assert counted(2000.0, strengths=ColumnStrengths(0.5, 0.03)) < 5
    assert counted(2000.0, strengths=ColumnStrengths(0.3)) == 20  # of the mean nothing is known
    few = design_tables(NUMBERS[:8], 2, 2000.0, purse, purse.remaining, ColumnStrengths(0.5, 0.07))[0].n_columns
    assert few == 8  # little would be saved
    assert counted(200.0, AdaptiveBudget(requested_loss(1, 1e-6), Neighbours())) < 20
