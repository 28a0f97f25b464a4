# SPDX-License-Identifier: Apache-2.0
"""The twin in the clear: what it refuses, and what it notices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")
from veilwood.errors import MechanismError
from veilwood_secure.mpc.engine import Bits, Engine
from veilwood_testing.errors import rejects
from veilwood_testing.mpc_engines import PlainEngine, at_three, in_the_clear


@pytest.mark.parametrize("values", [[0, 0, 1], [0, -1, 0], [2**31, 0, 0]])
def test_anything_but_zero_is_noticed_by_all(values: list[int]) -> None:
    assert at_three(lambda engine, x: engine.is_all_zero(x), values) == [False, False, False]
    assert at_three(lambda engine, x: engine.is_all_zero(engine.mul(x, x - x)), values) == [True, True, True]
    assert not in_the_clear(lambda engine, x: engine.is_all_zero(x), values)


def test_misuse_is_refused_with_a_hint() -> None:
    engine = PlainEngine()
    x = engine.constant([1, 2])
    with rejects(MechanismError, raised_in="Shared.__mul__"):
        x * x  # type: ignore[operator]
    with rejects(MechanismError, raised_in="as_ring_array"):
        x + 0.5
    with rejects(MechanismError, raised_in="Engine.__init__"):
        PlainEngine(np.uint16)
    with rejects(MechanismError, raised_in="ReplicatedEngine.load"):
        at_three(lambda engine: engine.load((np.zeros(2, np.uint64), np.zeros(2, np.uint64))))


def test_secret_words_take_public_ones() -> None:
    def program(engine: Engine) -> Any:
        word = engine.random_words((3,), np.uint8)
        flipped = ~word ^ word
        return engine.open(engine.to_ring(flipped >> 7)), engine.open(engine.to_ring(((flipped << 3) & 8) >> 3))

    for high, low in (*at_three(program), in_the_clear(program)):
        assert high.tolist() == low.tolist() == [1, 1, 1]
    assert repr(Bits([np.zeros(2, np.uint8)], None)) == "Bits(shape=(2,), dtype=uint8)"
