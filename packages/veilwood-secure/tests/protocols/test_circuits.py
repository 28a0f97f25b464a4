# SPDX-License-Identifier: Apache-2.0
"""Circuits on shares, by enumeration."""

from __future__ import annotations

from typing import Any

import numpy as np

from veilwood_secure.mpc.engine import Bits
from veilwood_secure.protocols import circuits
from veilwood_secure.protocols.joint_forest import RING
from veilwood_testing.mpc_engines import PlainEngine


def opened(bits: Bits) -> Any:
    """Put the digits of planes together."""
    planes = circuits.unpack_bits(bits.parts[0]).astype(np.int64)
    return (planes * (1 << np.arange(len(planes))).reshape(-1, *[1] * (planes.ndim - 1))).sum(axis=0)


def test_circuits_by_enumeration() -> None:
    engine = PlainEngine(RING)
    x, y = (grid.ravel() for grid in np.meshgrid(np.arange(32), np.arange(32)))

    def planes(values: Any) -> Bits:
        return circuits.decompose_bits(engine, engine.constant(circuits.pack_bits(circuits.binary_digits(values, 5))))

    assert np.array_equal(opened(circuits.add_bits(engine, planes(x), planes(y))), (x + y) % 32)
    assert np.array_equal(opened(circuits.subtract_bits(engine, planes(x), planes(y))), (x - y) % 32)
    assert np.array_equal(opened(circuits.saturate(engine, planes(x), 3)), np.minimum(x, 7))
    hot = circuits.one_hot_bits(engine, planes(x), 21)
    assert np.array_equal(circuits.unpack_bits(hot.parts[0]), x == np.arange(21)[:, None])
    table = np.arange(21) ** 2
    assert np.array_equal(opened(circuits.lookup(hot, table, 9)), np.where(x < 21, table[np.minimum(x, 20)], 0))
    assert engine.open(circuits.popcount(engine, hot)).tolist() == [32] * 21
    assert np.array_equal(engine.open(circuits.to_rows(engine, hot)), x == np.arange(21)[:, None])
