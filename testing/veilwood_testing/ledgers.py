# SPDX-License-Identifier: Apache-2.0
"""Charges of a ledger, as tests make them, and an estimator that does nothing but charge one."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from veilwood.privacy.ledger import Ledger, Reservation
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.loss import Loss, exact_fraction

ROW = "one row, added or removed"


def pure(epsilon: object) -> Loss:
    return Loss.pure(exact_fraction(epsilon))


def spend(ledger: Ledger, loss: Loss, neighbours: str = ROW, **facts: Any) -> Reservation:
    return ledger.reserve(loss, what="leaf counts", neighbours=neighbours, plan="1f3a", **facts)


class ChargingClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Estimator whose only effect is a charge. It is here because worker processes must be able to import it."""

    def __init__(self, ledger: Ledger | None = None, epsilon: float = 0.1) -> None:
        self.ledger = ledger
        self.epsilon = epsilon

    def fit(self, X: np.ndarray, y: np.ndarray) -> ChargingClassifier:
        spend(open_ledger(self.ledger), pure(self.epsilon)).commit()
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X), dtype=int)
