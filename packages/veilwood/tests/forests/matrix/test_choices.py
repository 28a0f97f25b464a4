# SPDX-License-Identifier: Apache-2.0
"""Choices of a search are read back, and forged ones refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilwood.errors import MechanismError, PlanError
from veilwood.forests.matrix.marginals import Mixture
from veilwood.forests.matrix.measurement import strategy_from_json, strategy_to_json
from veilwood.forests.matrix.workloads import PathWorkload
from veilwood_testing.mixtures_cases import leaves_of, some


def test_a_choice_is_read_back_and_a_forged_one_refused() -> None:
    workload = leaves_of((3, 2, 4), 4, 2, 5)
    for strategy in some(workload, np.random.default_rng(0)):
        again = strategy_from_json(workload, strategy_to_json(strategy))
        assert isinstance(again, Mixture)
        assert (again.trees, again.weights, again.l1) == (strategy.trees, strategy.weights, strategy.l1)
    forged: list[Any] = [
        [[1, [0, 1, 2]]], [[1, [0, 1, 2, 4]]], [[1, [0, 1, 2, -1]]], [[0, [0, 1, 2, 3]]], [[1, [0, 0, 1, 2]]],
        [[1, []], [2, [0, 1, 2, 3]]], [[1.5, [0, 1, 2, 3]]], [], "trees", [[1, "all"]],
    ]  # fmt: skip
    for trees in forged:
        with pytest.raises(PlanError, match="plan's strategy"):
            strategy_from_json(workload, {"marginals": [], "trees": trees})
    with pytest.raises(MechanismError, match="from_forest"):
        Mixture(PathWorkload.from_leaves((3,), [[0]] * 3, [[0], [1], [2]]), {1: (0,)}, {})
