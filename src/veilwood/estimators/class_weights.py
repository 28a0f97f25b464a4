# SPDX-License-Identifier: Apache-2.0
"""Classes that count for more: what was released is weighed anew, which costs nothing and can be changed at will."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veilwood.data.canonical import texts_of
from veilwood.errors import ParameterError
from veilwood.forests.method import Codes, Floats, Model

__all__ = ["ClassWeights", "WeighedModel", "given_weights", "weighed_model", "weights_of"]

_HINT = "'balanced', or a number above 0 for some classes: {'yes': 5}"


@dataclass(eq=False, repr=False, kw_only=True)
class ClassWeights:
    """The parameter of every classifier."""

    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None


@dataclass(frozen=True, eq=False)
class WeighedModel(Model):
    """A model whose class shares are multiplied by weights, as if each class had so many times its rows."""

    model: Model
    weights: Floats

    def outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return the weighed probability of each class."""
        shares = self.model.outputs(codes, n_jobs) * self.weights
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """A file holds the model as it was released; weights are a parameter."""
        return self.model.arrays()


def weighed_model(class_weight: object, classes: NDArray[Any], model: Model) -> Model:
    """Return a model with its classes weighed: post-processing of what it was released as."""
    weights = weights_of(class_weight, classes, model)
    return model if weights is None else WeighedModel(model.encoding, model, weights)


def weights_of(class_weight: object, classes: NDArray[Any], model: Model) -> Floats | None:
    """Return the weight of each class; None where all count alike."""
    if class_weight is None:
        return None
    given = given_weights(class_weight, classes)
    if given is not None:
        return given
    found = 1 / np.maximum(model.class_shares(), 1e-6)
    return np.asarray(found / found.mean())


def given_weights(class_weight: object, classes: NDArray[Any]) -> Floats | None:
    """Return the weights that are given; None where they are to be balanced."""
    if isinstance(class_weight, str) and class_weight == "balanced":
        return None
    if not isinstance(class_weight, Mapping):
        raise ParameterError("class_weight", class_weight, "is not understood", _HINT)
    known = texts_of(list(classes))
    found = np.ones(len(known))
    for label, weight in zip(texts_of(list(class_weight)), class_weight.values(), strict=True):
        number = isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
        if label not in known or not number or not 0 < float(weight) < float("inf"):
            raise ParameterError("class_weight", class_weight, f"does not fit the classes {list(classes)}", _HINT)
        found[known.index(label)] = float(weight)
    return found
