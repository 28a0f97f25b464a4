# SPDX-License-Identifier: Apache-2.0
"""Models in memory, and only those that were trained here; they predict what their estimators do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import veilwood as vw

pytest.importorskip("fastapi")
from veilwood_service.predictions import LoadedModel, RowEncoder, predict_rows

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


CAR = vw.datasets.car()
ROWS: list[dict[str, Any]] = [
    dict(zip(CAR.X.columns, row, strict=True)) for row in CAR.X.astype(str).to_numpy().tolist()
]


@pytest.mark.parametrize("kind", [vw.RandomTreesClassifier, vw.PrivateForestClassifier, vw.MatrixForestClassifier])
@pytest.mark.parametrize("weights", [{"vgood": 50, "good": 20}, "balanced", None], ids=["given", "balanced", "none"])
def test_predictions_are_those_of_the_estimator(kind: Any, weights: Any) -> None:
    """Classes that count for more do so in the service too, in rows encoded by either way."""
    model = kind(CAR.schema, epsilon=4.0, random_state=0, n_jobs=1).fit(CAR.X, CAR.y).set_params(class_weight=weights)
    loaded = LoadedModel(model, RowEncoder(model))
    values = predict_rows(loaded, ROWS)
    assert values["predictions"] == model.predict(CAR.X).tolist()
    np.testing.assert_array_equal(values["probabilities"], model.predict_proba(CAR.X).round(6))
    unweighed = model.model_.predict_both(model._encode_rows(CAR.X))[1]
    changed = (model.classes_[unweighed] != np.array(values["predictions"])).mean()
    assert bool(changed > 0.01) == (weights is not None)


def test_numbers_are_those_of_the_estimator() -> None:
    schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=2)
    X = np.random.default_rng(0).random((300, 2))
    model = vw.RandomTreesRegressor(schema, epsilon=4.0, random_state=0, n_jobs=1).fit(X, 10 * X[:, 0])
    rows = [dict(zip(schema.feature_names, row, strict=True)) for row in X.tolist()]
    assert predict_rows(LoadedModel(model, RowEncoder(model)), rows) == {"predictions": model.predict(X).tolist()}
