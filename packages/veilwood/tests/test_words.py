# SPDX-License-Identifier: Apache-2.0
"""What the page says about odds and guarantees."""

from __future__ import annotations

import numpy as np
import pytest

import veilwood as vw
from veilwood.charts import posterior_range
from veilwood.forests.adaptive.steps import AdaptiveStep
from veilwood.forests.matrix.measurement import MatrixStep
from veilwood.forests.noisy_leaves import TreeStep
from veilwood.reporting import STEP_PURPOSES, describe_guarantee, purpose_of


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_picture_of_odds_is_bayes_rule(epsilon: float) -> None:
    """The worst two answers of a mechanism with this epsilon move a belief exactly to the ends of the band."""
    low, high = posterior_range(0.3, epsilon)
    for answer, end in ((np.exp(epsilon), high), (np.exp(-epsilon), low)):
        assert end == pytest.approx(0.3 * answer / (0.3 * answer + 0.7))


def test_words() -> None:
    assert purpose_of("nothing of the kind").startswith("Part of")
    assert set(STEP_PURPOSES) <= {kind.key for family in (AdaptiveStep, TreeStep, MatrixStep) for kind in family}
    car = vw.datasets.car()
    weak = vw.RandomTreesClassifier(car.schema, epsilon=10.0, random_state=0).fit(car.X, car.y).privacy_
    assert "weak" in describe_guarantee(weak)[-1]
