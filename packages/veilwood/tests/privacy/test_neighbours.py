# SPDX-License-Identifier: Apache-2.0
"""From one row to one unit: distances by formula and by enumeration."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from veilwood.errors import ParameterError
from veilwood.privacy.neighbours import (
    ADJACENCIES,
    MAX_ROWS_PER_UNIT,
    Neighbours,
    Rows,
    RowsOf,
    id_names,
    may_protect_less,
    resolve_unit,
)
from veilwood_testing.errors import rejects

ROWS = [np.array(row) for row in product((0, 1), repeat=3)]  # what one row may add: squared and L1 norm at most 3


def distances(adjacency: str, k: int) -> tuple[int, int]:
    """The largest L1 and squared L2 distance of two sums that differ in one unit of k rows."""
    gone = list(product(ROWS, repeat=k))
    come = gone if adjacency == "replace-one" else [(np.zeros(3, int),) * k]
    moved = [np.sum(one, axis=0) - np.sum(other, axis=0) for one in gone for other in come]
    return max(int(np.abs(move).sum()) for move in moved), max(int((move**2).sum()) for move in moved)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("k", [1, 2])
def test_formulas_bound_what_enumeration_finds(adjacency: Any, k: int) -> None:
    neighbours = Neighbours(adjacency, Rows(k))
    l1, squared_l2 = distances(adjacency, k)
    assert l1 <= neighbours.l1_sensitivity(3)
    assert squared_l2 <= neighbours.squared_l2_sensitivity(3)
    if adjacency == "add-remove":
        assert (l1, squared_l2) == (neighbours.l1_sensitivity(3), neighbours.squared_l2_sensitivity(3))
        assert l1 > Neighbours(adjacency, Rows(k)).l1_sensitivity(2)  # a bound that is too small would be seen


def test_rows_of_an_id_count_as_many_rows() -> None:
    by_id, by_rows = (Neighbours("replace-one", unit) for unit in (RowsOf("patient", 5), Rows(5)))
    for one_row in (1, 7):
        assert by_id.l1_sensitivity(one_row) == by_rows.l1_sensitivity(one_row) == 10 * one_row
        assert by_id.squared_l2_sensitivity(one_row) == by_rows.squared_l2_sensitivity(one_row) == 50 * one_row
        assert by_id.score_range(one_row) == 10 * one_row
    assert str(by_id) == "all rows of one patient (counted as at most 5), replaced"


@pytest.mark.parametrize("unit", [0, -1, 10**10, True, 1.5, "rows", {"id": "a"}, {"id": 3, "at_most": 1}, None])
def test_units_that_are_none_are_refused(unit: Any) -> None:
    with rejects(ParameterError, name="privacy_unit"):
        resolve_unit(unit)


def test_numbers_of_numpy_become_plain_ones() -> None:
    unit = resolve_unit(np.int8(100))
    assert Neighbours("add-remove", unit).squared_l2_sensitivity(1) == 10_000


def test_unknown_neighbours_are_refused() -> None:
    with rejects(ParameterError, name="adjacency"):
        Neighbours("near")  # type: ignore[arg-type]


def test_only_one_row_or_one_id_that_is_added_or_removed_is_in_one_part() -> None:
    """Parts compose in parallel for these only; each of the others can have a unit in both parts."""
    units: list[Rows | RowsOf] = [Rows(), Rows(2), RowsOf("patient", 1), RowsOf("patient", 5)]
    assert [Neighbours("add-remove", unit).in_one_part for unit in units] == [True, False, True, True]
    assert not any(Neighbours("replace-one", unit).in_one_part for unit in units)


@pytest.mark.parametrize(
    ("unit", "declared", "less"),
    [
        (RowsOf("patient", 1), RowsOf("patient", 9), False),
        (RowsOf("visit", 9), RowsOf("patient", 9), True),
        (Rows(3), Rows(3), False),
        (Rows(2), Rows(3), True),
        (Rows(4), Rows(3), False),
        (Rows(9), RowsOf("patient", 2), True),
        (RowsOf("patient", 9), Rows(2), True),
    ],
)
def test_which_units_may_protect_less_than_declared(unit: Any, declared: Any, less: bool) -> None:
    assert may_protect_less(unit, declared) is less


def test_units_are_what_parameters_denote() -> None:
    assert [resolve_unit(unit) for unit in ("row", 1, 3)] == [Rows(1), Rows(1), Rows(3)]
    assert resolve_unit({"id": "patient", "at_most": 1}) == RowsOf("patient", 1)
    assert resolve_unit(MAX_ROWS_PER_UNIT) == Rows(10**9)
    for more in (MAX_ROWS_PER_UNIT + 1, {"id": "patient", "at_most": MAX_ROWS_PER_UNIT + 1}):
        with rejects(ParameterError, name="privacy_unit"):
            resolve_unit(more)
    assert Neighbours.from_parameters("replace-one", 3) == Neighbours("replace-one", Rows(3))
    assert (Neighbours(), Rows().at_most) == (Neighbours("add-remove", Rows(1)), 1)
    assert [str(Rows(k)) for k in (1, 2)] == ["one row", "any 2 rows"]
    assert (id_names(RowsOf("patient", 2)), id_names(Rows(2)), id_names(None)) == (("patient",), (), ())
