# SPDX-License-Identifier: Apache-2.0
"""Choosing the largest quotient on shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilwood_secure.mpc.replicated import Links, ReplicatedEngine, run_in_threads
from veilwood_secure.mpc.shares import share
from veilwood_secure.protocols.circuits import floor_divide
from veilwood_secure.protocols.joint_forest import RING
from veilwood_testing.mpc_engines import PlainEngine

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


@pytest.mark.parametrize("engine", ["plain", "shares"])
def test_quotients_are_exact_to_the_edges(engine: str) -> None:
    rng = np.random.default_rng(3)
    below = rng.integers(1, 1 << 26, 500, endpoint=True)
    times = rng.integers(0, 1 << 32, 500)
    x = np.minimum(below * times + rng.integers(0, below), 1 << 58)
    x = np.concatenate([x, [0, 0, 1 << 57, (1 << 58) - 1, 31, 32]])
    y = np.concatenate([below, [1, 1 << 26, 1 << 26, 1 << 26, 32, 32]])
    x = np.minimum(x, (y << 32) - 1)
    if engine == "plain":
        plain = PlainEngine(RING)
        found = plain.open(floor_divide(plain, plain.constant(x), plain.constant(y)))
    else:
        parts = [share(x, RING), share(y, RING)]

        def served(links: Links) -> Any:
            own = ReplicatedEngine(links, ring=RING)
            return own.open(floor_divide(own, *(own.load(pairs[links.party]) for pairs in parts)))

        found = run_in_threads(served)[0]
    assert np.array_equal(found, x // y)
