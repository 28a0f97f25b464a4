# SPDX-License-Identifier: Apache-2.0
"""Shared by forests/matrix/test_strategies.py and other tests."""

from __future__ import annotations

from fractions import Fraction

from veilwood.forests.matrix.strategies import NoiseName, Strategy, expected_error
from veilwood.forests.matrix.workloads import Workload

NOISES: list[NoiseName] = ["laplace", "gaussian"]


CAR = (4, 4, 4, 3, 3, 3)


SMALL = Fraction(1, 1000)  # epsilon so small that discrete noise has the variance of continuous noise, 2 / epsilon^2


def figure(workload: Workload, strategy: Strategy) -> float:
    """Error at epsilon = 1 with continuous noise, as the papers give it."""
    return expected_error(workload, strategy, budget=SMALL) * float(SMALL) ** 2
