# SPDX-License-Identifier: Apache-2.0
"""What all shells share: parameters as JSON holds them, plans without data, and what a failed fit leaves."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.errors import ParameterError, VeilwoodError
from veilwood.estimators.parameters import to_plain_value

SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (np.float64(0.5), 0.5), (np.int64(3), 3), (math.inf, "inf"), (Fraction(1, 3), "1/3"), (Decimal("0.1"), "0.1"),
        (vw.RowsOf("id", 3), {"id": "id", "at_most": 3}), ((1, [Fraction(1, 2)]), [1, ["1/2"]]),
        ({1: None}, {"1": None}),
    ],
)  # fmt: skip
def test_parameters_are_saved_as_exact_numbers_and_text(given: Any, plain: Any) -> None:
    found = to_plain_value("x", given)
    assert found == plain
    assert type(found) is type(plain)


def test_what_json_cannot_hold_is_refused_by_name() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for given in (object(), 10**1000, "x" * 1_000_000, deep):
        with pytest.raises(ParameterError, match=r"max_depth=.* cannot be saved"):
            to_plain_value("max_depth", given)


def test_a_plan_needs_no_data_and_is_what_a_fit_carries_out() -> None:
    forest = vw.RandomTreesClassifier(SCHEMA, epsilon=1.0, n_estimators=3, max_depth=2, random_state=0)
    planned = forest.plan().fingerprint()
    X = np.random.default_rng(0).random((50, 2))
    assert forest.fit(X, np.where(X[:, 0] > 0.5, "yes", "no")).plan_.fingerprint() == planned


def test_a_refused_fit_keeps_the_model_that_was_paid_for() -> None:
    forest = vw.RandomTreesClassifier(SCHEMA, epsilon=1.0, n_estimators=3, max_depth=2, random_state=0)
    X = np.random.default_rng(0).random((50, 2))
    forest.fit(X, ["no", "yes"] * 25)
    paid = {name: value for name, value in vars(forest).items() if name.endswith("_")}
    with pytest.raises(VeilwoodError):
        forest.fit(X, ["no", "maybe"] * 25)
    assert paid
    assert all(getattr(forest, name) is value for name, value in paid.items())


def test_the_repr_shows_epsilon_even_where_it_is_the_default() -> None:
    assert "epsilon=1.0" in repr(vw.RandomTreesClassifier(SCHEMA))
