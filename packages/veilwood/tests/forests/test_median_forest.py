# SPDX-License-Identifier: Apache-2.0
"""MedianForest as an estimator: its parameters, and tables of any kind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood_testing.medians_cases import SCHEMAS, table

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("variant", "mode"), ("selection", "loud"), ("split_budget", 1), ("split_budget", 0), ("candidates", 0),
     ("candidates", 2.5), ("max_depth", 0), ("max_depth", 40), ("max_depth", 4000), ("n_estimators", 0),
     ("trees", "oak"), ("leaves", "gold"), ("voting", "loud")],
)  # fmt: skip
def test_bad_parameters_name_themselves(parameter: str, value: Any) -> None:
    ledger = MemoryLedger(epsilon=1)
    forest = vw.MedianForestClassifier(SCHEMAS["classification"], ledger=ledger).set_params(**{parameter: value})
    with pytest.raises(vw.VeilwoodError, match=parameter):
        forest.fit(*table("classification"))
    assert ledger.spent.epsilon == 0


def test_categories_are_split_into_balanced_subsets() -> None:
    car = vw.datasets.car()
    forest = vw.MedianForestClassifier(
        car.schema, epsilon=math.inf, max_depth=6, n_estimators=4, trees="shared", random_state=0
    ).fit(car.X, car.y)
    rows = forest.leaf_counts_.sum(axis=1)
    assert rows.min() >= 1728 / 4**6 * 0  # every cell of the design is equally full; none is lost
    assert rows.reshape(-1).sum() == 4 * 1728
    assert forest.score(car.X, car.y) > 0.8


def test_missing_values_and_skewed_numbers() -> None:
    rng = np.random.default_rng(1)
    schema = vw.Schema.from_dict({
        "name": "skewed", "task": "classification", "target": "y",
        "columns": [
            {"name": "x", "kind": "numeric", "lower": 0, "upper": 1e6, "nullable": True},
            {"name": "y", "kind": "categorical", "values": ["a", "b"]},
        ],
    })  # fmt: skip
    x = rng.exponential(1.0, 4000)
    y = np.where(x > 0.7, "b", "a")
    x[:1500] = np.nan
    y[:1500] = "b"
    forest = vw.MedianForestClassifier(schema, epsilon=math.inf, max_depth=6, n_estimators=3, random_state=0)
    forest.fit(x[:, None], y)
    assert (forest.predict([[np.nan]]) == "b").all()


def test_source_files_and_frames_give_the_same_forest(tmp_path: Any) -> None:
    car = vw.datasets.car()
    path = tmp_path / "car.csv"
    car.X.assign(**{car.schema.target.name: car.y}).to_csv(path, index=False)
    parameters: dict[str, Any] = {"epsilon": math.inf, "max_depth": 3, "trees": "shared", "random_state": 1}
    one = vw.MedianForestClassifier(car.schema, **parameters).fit(car.X, car.y)
    other = vw.MedianForestClassifier(car.schema, **parameters).fit(str(path))
    assert (one.leaf_counts_ == other.leaf_counts_).all()
    assert (one.forest_.cut == other.forest_.cut).all()
