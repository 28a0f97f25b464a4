# SPDX-License-Identifier: Apache-2.0
"""Every estimator goes through skops and back; MLflow's default format, which is skops, in the slow tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood import estimators
from veilwood.errors import ModelFileError

io = pytest.importorskip("skops.io")
pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]
CAR = vw.datasets.car()
LINE = {
    "name": "line", "task": "regression", "target": "y",
    "columns": [{"name": name, "kind": "numeric", "lower": 0, "upper": 1} for name in "xzy"],
}  # fmt: skip
NAMES = [name for name in estimators.__all__ if name != "MatrixForestPredictor"]  # which is never saved


def fitted(name: str) -> tuple[Any, Any]:
    small = {} if name.startswith("Private") else {"n_estimators": 3, "max_depth": 2}
    if name.endswith("Regressor"):
        schema: Any = LINE
        X, y = pd.DataFrame({"x": np.linspace(0, 1, 500), "z": 0.5}), np.linspace(0, 1, 500)
    else:
        schema, X, y = CAR.schema, CAR.X, CAR.y.to_numpy()
    return getattr(vw, name)(schema, epsilon=2.0, random_state=0, **small).fit(X, y), X


@pytest.mark.parametrize("name", NAMES)
def test_a_forest_comes_back_from_skops(name: str) -> None:
    forest, X = fitted(name)
    again = io.loads(io.dumps(forest), trusted=vw.skops_types(forest))
    assert np.array_equal(again.predict(X), forest.predict(X))
    assert again.privacy_ == forest.privacy_


def test_what_is_not_ours_is_not_named() -> None:
    forest, _ = fitted("RandomTreesClassifier")
    forest.more_ = Path("somewhere")
    with pytest.raises(ModelFileError, match="which no forest of this library needs"):
        vw.skops_types(forest)
    with pytest.raises(ModelFileError, match="not a fitted forest"):
        vw.skops_types(vw.RandomTreesClassifier())


@pytest.mark.slow
def test_mlflow_keeps_a_forest_in_its_default_format(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow.sklearn")
    forest, X = fitted("PrivateForestClassifier")
    mlflow.save_model(forest, tmp_path / "model", skops_trusted_types=vw.skops_types(forest))
    assert np.array_equal(mlflow.load_model(str(tmp_path / "model")).predict(X), forest.predict(X))
