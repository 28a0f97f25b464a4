# SPDX-License-Identifier: Apache-2.0
"""Class weights in predictions: post-processing of a released model, without privacy loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from veilwood.arrays import AnyArray, Codes, Floats
from veilwood.data.canonical import to_canonical_texts
from veilwood.errors import ParameterError
from veilwood.estimators.method import Model

_HINT = "pass 'balanced', or a weight above 0 for some classes, such as {'yes': 5}"


@dataclass(frozen=True, eq=False)
class ReweightedModel(Model):
    """Model whose class probabilities are multiplied by weights, as if the number of rows per class were multiplied."""

    model: Model
    weights: Floats

    def predict_outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return the reweighted probability of each class."""
        shares = self.model.predict_outputs(codes, n_jobs) * self.weights
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return the arrays of the released model; the weights are a parameter of the estimator."""
        return self.model.to_arrays()


def weighted_model(class_weight: object, classes: AnyArray, model: Model) -> Model:
    """Return a model with reweighted classes, computed from the released model."""
    weights = resolve_weights(class_weight, classes, model)
    return model if weights is None else ReweightedModel(model.encoding, model, weights)


def resolve_weights(class_weight: object, classes: AnyArray, model: Model) -> Floats | None:
    """Return the weight of each class, or None if all weights are equal."""
    if class_weight is None:
        return None
    given = explicit_weights(class_weight, classes)
    if given is not None:
        return given
    weights = 1 / np.maximum(model.class_frequencies(), 1e-6)  # a frequency can be 0
    return np.asarray(weights / weights.mean())


def explicit_weights(class_weight: object, classes: AnyArray) -> Floats | None:
    """Return the weight of each class that the caller passed, or None for "balanced" or no weights."""
    if isinstance(class_weight, str) and class_weight == "balanced":
        return None
    if not isinstance(class_weight, Mapping):
        raise ParameterError("class_weight", class_weight, "must be 'balanced' or a dict of weights by class", _HINT)
    known = to_canonical_texts(list(classes))
    weights = np.ones(len(known))
    for label, weight in zip(to_canonical_texts(list(class_weight)), class_weight.values(), strict=True):
        number = isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
        if label not in known or not number or not 0 < float(weight) < float("inf"):
            raise ParameterError(
                "class_weight", class_weight, f"must map classes of {list(classes)} to positive weights", _HINT
            )
        weights[known.index(label)] = float(weight)
    return weights
