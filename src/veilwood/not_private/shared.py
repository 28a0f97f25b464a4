# SPDX-License-Identifier: Apache-2.0
"""What as-published variants share: the paper's epsilon, and the reason why a result is not private.

What each paper prints is in a file of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilwood.data.schema import Schema
from veilwood.errors import ParameterError
from veilwood.estimators.base import BaseForest
from veilwood.forests.method import Parameters
from veilwood.privacy import entropy
from veilwood.privacy.loss import exact

PARTS = 2**20
"""The papers' noise is continuous: whole-number noise is drawn in this many parts of a row (or of a mean)."""


@dataclass(eq=False, repr=False, kw_only=True)
class PaperParameters(Parameters):
    """What a paper calls epsilon, which is not a privacy loss; papers know neither declared rows nor cleaned leaves."""

    epsilon_in_paper: float = 1.0
    n_rows: int | None = field(default=None, init=False)
    leaves: str = field(default="plain", init=False)

    def exact_epsilon(self) -> Fraction:
        """Return it as an exact number above 0."""
        value = exact(self.epsilon_in_paper, "epsilon_in_paper")
        if value <= 0:
            raise ParameterError("epsilon_in_paper", self.epsilon_in_paper, "must be above 0")
        return value


class AsPublished(BaseForest):
    """Mixin of a shell whose method follows a paper to the letter: no loss is promised, and the result says why."""

    epsilon = math.inf
    delta = 0.0
    privacy_unit = "row"
    adjacency = "add-remove"

    def declared_schema(self, X: Any = None, y: Any = None) -> tuple[Schema, str | None]:
        """Return the schema, and why no guarantee is stated."""
        schema, inferred = super().declared_schema(X, y)
        return schema, "; ".join(filter(None, (self._reason(), inferred)))

    def _reason(self) -> str:
        """Why no guarantee is stated."""
        raise NotImplementedError


def uniform(n: int) -> NDArray[np.float64]:
    """Return ``n`` numbers drawn uniformly from (0, 1]."""
    return np.asarray(((entropy.words(n) >> np.uint64(11)) + 1) / 2.0**53)
