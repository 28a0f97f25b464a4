# SPDX-License-Identifier: Apache-2.0
"""Measures of a model on private rows."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.evaluation.evaluate import evaluation_plan
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood_testing.neighbour_pairs import as_frame, row_of


def test_the_noise_that_was_attacked_is_the_noise_that_is_drawn(
    two_models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    sound = Door.release_counts

    def heard(door: Door, step: Any, exact: Any) -> Any:
        drawn.append(step)
        return sound(door, step, exact)

    monkeypatch.setattr(Door, "release_counts", heard)
    rng = np.random.default_rng(4)
    X, _ = as_frame([row_of(rng, "classification", 0.0) for _ in range(5)], "classification", Path())
    found = vw.evaluate(two_models["RandomTreesClassifier"], X, epsilon=1.0)
    planned = evaluation_plan(two_models["RandomTreesClassifier"], Loss.pure(Fraction(1)), Neighbours())
    assert drawn == [*found.plan.steps] == [*planned.steps]
