# SPDX-License-Identifier: Apache-2.0
"""The inverted noise scale that papers print."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import veilwood as vw
from veilwood.datasets import car
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.noise import DiscreteLaplace
from veilwood_papers.not_private.as_published import PARTS_PER_ROW
from veilwood_testing.exhibits import forest_as_printed


def test_scale_is_the_inverted_one() -> None:
    (step,) = forest_as_printed(epsilon_in_paper=0.5).plan().steps
    assert step.mechanism == DiscreteLaplace(Fraction(1, 8) * PARTS_PER_ROW)
    sound = vw.RandomTreesClassifier(car().schema, epsilon=0.5, n_estimators=4, max_depth=3, random_state=0)
    assert sound.plan().steps[0].mechanism == DiscreteLaplace(8)


@pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning")
def test_released_counts_carry_noise_of_the_printed_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    noise: list[NDArray[np.int64]] = []
    noisy = Door.release_counts

    def spy(door: Door, step: Any, exact: NDArray[np.int64]) -> NDArray[np.int64]:
        out = noisy(door, step, exact)
        assert not (exact % PARTS_PER_ROW).any()
        assert exact.sum() == len(car().y) * 4 * PARTS_PER_ROW
        noise.append(out - exact)
        return out

    monkeypatch.setattr(Door, "release_counts", spy)
    with seeded_for_tests(1):
        for _ in range(20):
            forest_as_printed().fit(car().X, car().y)
    mean_size = np.abs(np.concatenate(noise)).mean() / PARTS_PER_ROW  # the scale, for Laplace noise
    assert mean_size == pytest.approx(1 / 4, rel=0.08)  # 2560 draws, standard error 2 %
