# SPDX-License-Identifier: Apache-2.0
"""Fine cells: which columns they are made of and how finely, from noisy counts alone."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.arrays import Floats
from veilwood.data.counts import Axis
from veilwood.data.encoding import Encoding
from veilwood.forests.adaptive.contingency import BinnedColumn, bin_columns
from veilwood.forests.adaptive.sparse_histogram import MAX_BINS, choose_axes


def columns(*kinds: int) -> tuple[BinnedColumn, ...]:
    """Columns of a schema: 0 stands for a number, other numbers for so many categories."""
    described: list[dict[str, Any]] = [
        {"name": f"c{place}", "kind": "categorical", "values": [f"v{value}" for value in range(kind)]}
        if kind else {"name": f"c{place}", "kind": "numeric", "lower": 0, "upper": 1, "nullable": place == 0}
        for place, kind in enumerate(kinds)
    ]  # fmt: skip
    target = {"name": "t", "kind": "categorical", "values": ["no", "yes"]}
    schema = {"name": "s", "task": "classification", "target": "t", "columns": [*described, target]}
    return tuple(bin_columns(Encoding(vw.Schema.from_dict(schema), "grid")))


def counted(column: BinnedColumn, share: Any, rows: float = 10_000.0) -> Floats:
    """Counts of two classes in each cell of a column, given the share of the second among them."""
    mass = np.full(column.n_bins, rows / column.n_bins)
    shares = np.broadcast_to(np.asarray(share, float), column.n_bins)
    return np.stack([mass * (1 - shares), mass * shares], axis=1)


def strong(column: BinnedColumn) -> Floats:
    """Classes change along the column."""
    return counted(column, np.linspace(0.02, 0.98, column.n_bins))


def n_cells(axes: tuple[Axis, ...]) -> int:
    return prod(axis.size for axis in axes)


@pytest.mark.parametrize("seed", range(12))
def test_groups_fit_and_no_column_comes_twice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    asked = columns(*rng.permutation([0, 0, *rng.integers(2, 40, 5).tolist()]).tolist())
    variance = float(rng.choice([0.0, 2.0, 800.0]))
    tables = [rng.normal(rng.integers(0, 300, (column.n_bins, 3)), variance**0.5) for column in asked]
    most = int(rng.integers(1, 10**6))
    axes = choose_axes(asked, tables, variance, most)
    assert n_cells(axes) <= most
    assert len({axis.feature for axis in axes}) == len(axes)
    for axis in axes:
        assert axis.size > 1
        assert set(axis.groups.tolist()) == set(range(axis.size))  # no number is left out: cells are counted by them


def test_nothing_is_chosen_where_one_cell_is_all_there_can_be() -> None:
    asked = columns(0, 4)
    assert choose_axes(asked, [strong(column) for column in asked], 1.0, 1) == ()


def test_strong_columns_get_the_finer_groups() -> None:
    asked = columns(0, 0, 0, 16, 16)
    tables = [
        strong(asked[0]),
        counted(asked[1], 0.5),
        counted(asked[2], 0.5),
        strong(asked[3]),
        counted(asked[4], 0.5),
    ]
    sizes = {axis.feature: axis.size for axis in choose_axes(asked, tables, 1.0, 4096)}
    assert sizes[0] > max(sizes.get(1, 1), sizes.get(2, 1))
    assert sizes[3] > sizes.get(4, 1)


def test_more_cells_give_finer_groups_up_to_a_limit() -> None:
    (number,) = asked = columns(2, 0)[1:]
    sizes = [n_cells(choose_axes(asked, [strong(number)], 1.0, most)) for most in (2, 16, 10**9)]
    assert sizes[0] == 2
    assert sizes[0] < sizes[1] < sizes[2] <= MAX_BINS


def test_similar_categories_share_a_group() -> None:
    (ward,) = asked = columns(6)
    (axis,) = choose_axes(asked, [counted(ward, [0.9, 0.1, 0.9, 0.1, 0.9, 0.1])], 1.0, 2)
    assert len(set(axis.groups[[0, 2, 4]].tolist())) == len(set(axis.groups[[1, 3, 5]].tolist())) == 1
    assert axis.size == 2


def test_noise_alone_does_not_make_a_column_strong() -> None:
    """Mutant in mind: a strength from which the variance of the noise is not taken away."""
    asked = columns(0, 200)
    rng = np.random.default_rng(0)
    noisy = [strong(asked[0]), counted(asked[1], 0.5) + rng.normal(0, 30.0, (200, 2))]
    sizes = {axis.feature: axis.size for axis in choose_axes(asked, noisy, 900.0, 64)}
    assert sizes[0] > sizes.get(1, 1)
