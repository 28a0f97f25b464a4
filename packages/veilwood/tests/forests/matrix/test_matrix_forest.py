# SPDX-License-Identifier: Apache-2.0
"""MatrixForest as an estimator: an example from end to end, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood_testing.matrix_forests import (
    DAYS,
    PLAYED,
    TENNIS,
    schema,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_tennis_example_end_to_end() -> None:
    """Figure 1 of the paper: one tree on the outlook, one on the wind; leaves are T D."""
    leaves = {
        0: [[2, 0], [0, 2], [1, 1]],  # sunny, overcast, rainy: no, yes
        1: [[1, 2], [2, 1]],  # not windy, windy
    }
    split = set()
    for state in range(10):
        forest = vw.MatrixForestClassifier(
            TENNIS, epsilon=math.inf, n_estimators=2, max_depth=1, random_state=state
        ).fit(DAYS, PLAYED)
        chosen = tuple(forest.forest_.feature[forest.forest_.roots])
        np.testing.assert_allclose(forest.leaf_counts_, np.concatenate([leaves[f] for f in chosen]), atol=1e-9)
        split.add(chosen)
    assert {(0, 1), (1, 0)} & split
    weighing = vw.MatrixForestClassifier(
        TENNIS, epsilon=math.inf, n_estimators=40, max_depth=2, voting="weight", random_state=0
    )
    assert weighing.fit(DAYS, PLAYED).score(DAYS, PLAYED) == 1


def test_numeric_columns_are_cut_in_public_and_missing_values_are_a_value() -> None:
    columns = [
        {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "cutoffs": [18, 65], "nullable": True},
        {"name": "income", "kind": "numeric", "lower": 0, "upper": 1e6, "bins": 4, "transform": "log1p"},
        {"name": "y", "kind": "categorical", "values": ["no", "yes"]},
    ]
    facts = vw.Schema.from_dict({"name": "people", "task": "classification", "target": "y", "columns": columns})
    rng = np.random.default_rng(0)
    age = np.where(rng.random(600) < 0.3, np.nan, rng.uniform(0, 100, 600))
    X = pd.DataFrame({"age": age, "income": rng.uniform(0, 1e6, 600)})
    y = np.where(np.isnan(age) | (age < 18), "yes", "no")
    forest = vw.MatrixForestClassifier(facts, epsilon=20.0, n_estimators=16, max_depth=2, random_state=0).fit(X, y)
    assert forest.score(X, y) == 1
    assert forest.forest_.n_leaves == 16 * 4 * 4


@pytest.mark.parametrize(
    ("facts", "parameters", "message"),
    [
        (schema((500,) * 5, 2), {"n_estimators": 128, "max_depth": 3}, r"widest: 500, 500, 500.*max_depth"),
        (schema((3000, 3000), 2), {"max_depth": 2, "n_estimators": 20}, r"180,000,000 leaves"),
        (schema((3, 2), 2), {"max_depth": 3}, r"max_depth=3 exceeds the 2 features"),
        (schema((3, 2), 2), {"max_features": 1, "max_depth": 2}, r"max_depth=2 exceeds the 1 features"),
        (schema((3, 2), 2), {"max_features": 3}, r"max_features=3"),
        (schema((3, 2), 2), {"n_ensembles": 0}, r"n_ensembles=0"),
        (schema((3, 2), 2), {"n_ensembles": 3, "n_estimators": 2}, r"n_estimators=2 is less than one tree"),
        (schema((3, 2), 2), {"n_ensembles": 3, "n_estimators": [2, 2]}, r"one entry per ensemble, 3"),
        (schema((3, 2), 2), {"n_estimators": [0], "max_depth": 1}, r"n_estimators"),
        (schema((3, 2), 2), {"max_depth": 1, "trees": "disjoint"}, r"mechanism='laplace'"),
        (schema((3, 2), 2), {"mechanism": "magic"}, r"mechanism='magic'"),
        (schema((3, 2), 2), {"feature_subsets": "odd"}, r"feature_subsets='odd'"),
        (
            schema((3, 2), 2),
            {"feature_subsets": "disjoint", "max_features": 1},
            r"max_features=1 cannot be combined with disjoint",
        ),
        (schema((3, 2), 2), {"feature_subsets": "disjoint", "n_ensembles": 3}, r"n_ensembles=3 exceeds the 2"),
        (schema((3, 2), 2), {"branching": "fractal"}, r"branching='fractal'"),
        (schema((3, 2), 2), {"voting": "loud"}, r"voting='loud'"),
    ],
)
def test_what_cannot_be_built_says_why_and_costs_nothing(
    facts: vw.Schema, parameters: dict[str, Any], message: str
) -> None:
    ledger = vw.MemoryLedger(epsilon=1)
    X = np.zeros((4, len(facts.features)), int)
    with pytest.raises(vw.VeilwoodError, match=message):
        vw.MatrixForestClassifier(facts, ledger=ledger, **parameters).fit(X, ["c0", "c1"] * 2)
    assert ledger.spent.epsilon == 0
    assert ledger.entries() == []
