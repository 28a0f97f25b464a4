# SPDX-License-Identifier: Apache-2.0
"""Small plans and steps, charges of ledgers, and an estimator that only charges one."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from veilwood.privacy.ledger import Ledger, Reservation
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.loss import Loss, exact_fraction
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import Step, counting_step

EPSILON_ONE = Loss.pure(Fraction(1))


def three_counts(name: str = "counts", loss: Loss = EPSILON_ONE) -> Step:
    return counting_step(name, (3,), loss, Neighbours(), l1=1, squared_l2=1)


def small_plan(*steps: Step, loss: Loss = EPSILON_ONE) -> Plan:
    return Plan("Test", loss, Neighbours(), steps, "three counts", "test", "0", Layout(leaves=3), 1.0)


ONE_ROW = "one row, added or removed"


def pure_loss(epsilon: object) -> Loss:
    return Loss.pure(exact_fraction(epsilon))


def spend(ledger: Ledger, loss: Loss, neighbours: str = ONE_ROW, **facts: Any) -> Reservation:
    return ledger.reserve(loss, what="leaf counts", neighbours=neighbours, plan="1f3a", **facts)


class ChargingClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Estimator whose only effect is a charge. It is here because worker processes must be able to import it."""

    def __init__(self, ledger: Ledger | None = None, epsilon: float = 0.1) -> None:
        self.ledger = ledger
        self.epsilon = epsilon

    def fit(self, X: np.ndarray, y: np.ndarray) -> ChargingClassifier:
        spend(open_ledger(self.ledger), pure_loss(self.epsilon)).commit()
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X), dtype=int)
