# SPDX-License-Identifier: Apache-2.0
"""Weights of classes, known before the data: they cost nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import veilwood as vw
from veilwood_testing.weights_cases import SMALL

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning", "ignore::veilwood.UtilityWarning")

CAR = vw.datasets.car()
CLASSIFIERS = [getattr(vw, name) for name in vw.estimators.__all__ if name.endswith("Classifier")]


class TestClasses:
    @pytest.mark.parametrize("Forest", CLASSIFIERS)
    def test_rare_classes_are_found_more_often_for_nothing(self, Forest: Any, tmp_path: Path) -> None:
        ledger = vw.MemoryLedger()
        forest = Forest(CAR.schema, epsilon=10.0, random_state=0, ledger=ledger).fit(CAR.X, CAR.y)
        before = forest.predict_proba(CAR.X)
        rare = forest.classes_ == "vgood"
        forest.set_params(class_weight={"vgood": 30.0})
        after = forest.predict_proba(CAR.X)
        expected = before * np.where(rare, 30.0, 1.0)
        np.testing.assert_allclose(after, expected / expected.sum(axis=1, keepdims=True))
        assert (forest.predict(CAR.X) == "vgood").sum() >= (forest.classes_[before.argmax(axis=1)] == "vgood").sum()
        assert ledger.spent.epsilon == 10
        forest.set_params(class_weight="balanced")
        assert forest.predict_proba(CAR.X)[:, rare].mean() > before[:, rare].mean()
        forest.set_params(ledger=None)
        vw.save(forest, tmp_path / "model")
        np.testing.assert_array_equal(vw.load(tmp_path / "model").predict(CAR.X), forest.predict(CAR.X))

    @pytest.mark.parametrize("given", ["heavy", {"superb": 2.0}, {"acc": 0.0}, {"acc": -1}, {"acc": "x"}, 3.0])
    def test_other_weights_are_refused(self, given: Any) -> None:
        forest = vw.RandomTreesClassifier(CAR.schema, **SMALL).fit(CAR.X, CAR.y)
        with pytest.raises(vw.VeilwoodError, match="class_weight"):
            forest.set_params(class_weight=given).predict(CAR.X)
        ledger = vw.MemoryLedger()
        with pytest.raises(vw.VeilwoodError, match="class_weight"):  # before anything is spent
            clone(forest).set_params(ledger=ledger).fit(CAR.X, CAR.y)
        assert ledger.entries() == []
