# SPDX-License-Identifier: Apache-2.0
"""What classifiers share, and what regressors share: predictions from a model, scores, and scikit-learn's tags."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score

from veilwood.data.cluster.engines import anywhere
from veilwood.data.schema import Task
from veilwood.estimators.base import BaseForest


class Classifier(ClassifierMixin, BaseForest):  # type: ignore[misc]
    """Predicts classes of the schema."""

    task: ClassVar[Task] = "classification"

    @anywhere
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class. Free: computed from what was released."""
        codes = self.encode(X)
        shares: NDArray[np.float64] = self.model_.outputs(codes, self.n_jobs)
        return shares

    @anywhere
    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predicted classes. Free: computed from what was released."""
        codes = self.encode(X)
        labels: NDArray[Any] = self.classes_[self.model_.choices(codes, self.n_jobs)]
        return labels

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows whose class is predicted.

        Classes are compared as in ``fit``, whether ``y`` has them as numbers or as text.
        """
        predicted, encode = self.predict(X), self.model_.encoding.encode_target
        return float(accuracy_score(encode(y), encode(predicted), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return self._tags(tags, tags.classifier_tags)


class Regressor(RegressorMixin, BaseForest):  # type: ignore[misc]
    """Predicts numbers between the bounds of the schema's target."""

    task: ClassVar[Task] = "regression"

    @anywhere
    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return predicted targets, inside the schema's bounds. Free: computed from what was released."""
        codes = self.encode(X)
        numbers: NDArray[np.float64] = self.model_.outputs(codes, self.n_jobs)
        return numbers

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return self._tags(tags, tags.regressor_tags)
