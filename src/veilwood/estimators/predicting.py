# SPDX-License-Identifier: Apache-2.0
"""What classifiers share, and what regressors share: predictions from a model, scores, and scikit-learn's tags."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score

from veilwood.data.cluster.engines import anywhere
from veilwood.data.schema import TaskKind
from veilwood.estimators.base import BaseForest
from veilwood.estimators.class_weights import weighed_model
from veilwood.forests.method import Codes, Model
from veilwood.privacy.spending import tell_once


def _warn_of_exact_scores() -> None:
    tell_once(
        "score",
        "score() is exact: whoever sees it learns something about each of its rows that no certificate covers. On "
        "public rows that is fine. Hint: on private rows use vw.evaluate(model, X, y, epsilon=0.1, ledger=...).",
    )


class Classifier(ClassifierMixin, BaseForest):  # type: ignore[misc]
    """Predicts classes of the schema."""

    task: ClassVar[TaskKind] = "classification"

    @anywhere
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class. Free: computed from what was released."""
        return self.answers_for(self.encode(X))[0]

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithm of each class's probability. Free: computed from what was released."""
        logs: NDArray[np.float64] = np.log(self.predict_proba(X))
        return logs

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return log-odds: of the second of two classes, or of each class against the mean of all. Free.

        For two classes, above 0 is where the second one is the more probable.
        """
        logs = self.predict_log_proba(X)
        if logs.shape[1] == 2:
            return np.asarray(logs[:, 1] - logs[:, 0])
        return np.asarray(logs - logs.mean(axis=1, keepdims=True))

    @anywhere
    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predicted classes. Free: computed from what was released."""
        return self.answers_for(self.encode(X))[1]

    def answers(self, X: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the predicted classes and the probability of each, from one walk through the trees."""
        shares, labels = self.answers_for(self.encode(X))
        return labels, shares

    def answers_for(self, codes: Codes) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Return the probability of each class and the predicted class, for rows that are encoded already.

        All predictions go this way, so that ``class_weight`` counts in each of them.
        """
        shares, places = self.weighed_model().answers(codes, self.n_jobs)
        return shares, self.classes_[places]

    def weighed_model(self) -> Model:
        """Return the model, with classes weighed as ``class_weight`` says."""
        return weighed_model(getattr(self, "class_weight", None), self.classes_, self.model_)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows whose class is predicted.

        Classes are compared as in ``fit``, whether ``y`` has them as numbers or as text. The number is exact: rows
        that are private are judged by ``vw.evaluate``.
        """
        _warn_of_exact_scores()
        predicted, encode = self.predict(X), self.model_.encoding.encode_target
        return float(accuracy_score(encode(y), encode(predicted), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return self._tags(tags, tags.classifier_tags)


class Regressor(RegressorMixin, BaseForest):  # type: ignore[misc]
    """Predicts numbers between the bounds of the schema's target."""

    task: ClassVar[TaskKind] = "regression"

    @anywhere
    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return predicted targets, inside the schema's bounds. Free: computed from what was released."""
        return self.answers_for(self.encode(X))

    def answers_for(self, codes: Codes) -> NDArray[np.float64]:
        """Return predicted targets, for rows that are encoded already: all predictions go this way."""
        numbers: NDArray[np.float64] = self.model_.outputs(codes, self.n_jobs)
        return numbers

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R2. The number is exact: rows that are private are judged by ``vw.evaluate``."""
        _warn_of_exact_scores()
        return float(super().score(X, y, sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return self._tags(tags, tags.regressor_tags)
