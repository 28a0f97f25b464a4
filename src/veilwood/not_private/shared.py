# SPDX-License-Identifier: Apache-2.0
"""What as-published variants share: the paper's epsilon, and the reason why a result is not private.

What each paper prints is in a file of its own.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilwood.data.schema import Schema
from veilwood.errors import VeilwoodError
from veilwood.forests.base import BaseForest
from veilwood.privacy import entropy
from veilwood.privacy.loss import exact

PARTS = 2**20
"""The papers' noise is continuous: whole-number noise is drawn in this many parts of a row (or of a mean)."""


class AsPublished(BaseForest):
    """Mixin of a forest that follows a paper to the letter; put it before the sound forest."""

    epsilon_in_paper: Any

    def _reason(self) -> str:
        """Why no guarantee is stated."""
        raise NotImplementedError

    def _declared_schema(self, X: Any, y: Any) -> tuple[Schema, str | None]:
        schema, inferred = super()._declared_schema(X, y)
        return schema, "; ".join(filter(None, (self._reason(), inferred)))

    def _exact_epsilon_in_paper(self) -> Fraction:
        value = exact(self.epsilon_in_paper, "epsilon_in_paper")
        if value <= 0:
            raise VeilwoodError(f"epsilon_in_paper={self.epsilon_in_paper!r} must be above 0.")
        return value


def uniform(n: int) -> NDArray[np.float64]:
    """Return ``n`` numbers drawn uniformly from (0, 1]."""
    return np.asarray(((entropy.words(n) >> np.uint64(11)) + 1) / 2.0**53)
