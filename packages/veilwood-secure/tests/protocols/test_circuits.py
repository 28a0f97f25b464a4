# SPDX-License-Identifier: Apache-2.0
"""Circuits on shares, by enumeration."""

from __future__ import annotations

from typing import Any

import numpy as np

from veilwood_secure.mpc.engine import Bits
from veilwood_secure.protocols import circuits
from veilwood_testing.mpc_oracle import PlainEngine
from veilwood_testing.rows_on_shares_cases import RING


def opened(bits: Bits) -> Any:
    """Put the digits of planes together."""
    planes = circuits.unpacked(bits.parts[0]).astype(np.int64)
    return (planes * (1 << np.arange(len(planes))).reshape(-1, *[1] * (planes.ndim - 1))).sum(axis=0)


def test_circuits_by_enumeration() -> None:
    engine = PlainEngine(RING)
    x, y = (grid.ravel() for grid in np.meshgrid(np.arange(32), np.arange(32)))

    def planes(values: Any) -> Bits:
        return circuits.bits_of(engine, engine.constant(circuits.packed(circuits.digits_of(values, 5))))

    assert np.array_equal(opened(circuits.add(engine, planes(x), planes(y))), (x + y) % 32)
    assert np.array_equal(opened(circuits.subtract(engine, planes(x), planes(y))), (x - y) % 32)
    assert np.array_equal(opened(circuits.capped(engine, planes(x), 3)), np.minimum(x, 7))
    hot = circuits.one_hot_bits(engine, planes(x), 21)
    assert np.array_equal(circuits.unpacked(hot.parts[0]), x == np.arange(21)[:, None])
    table = np.arange(21) ** 2
    assert np.array_equal(opened(circuits.looked_up(hot, table, 9)), np.where(x < 21, table[np.minimum(x, 20)], 0))
    assert engine.open(circuits.counted(engine, hot)).tolist() == [32] * 21
    assert np.array_equal(engine.open(circuits.in_rows(engine, hot)), x == np.arange(21)[:, None])
