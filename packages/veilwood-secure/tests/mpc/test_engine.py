# SPDX-License-Identifier: Apache-2.0
"""Three servers compute what one would, say the same whatever the secrets are, and notice shares that disagree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from veilwood_secure.mpc.engine import Engine, Shared, concatenate, stack
from veilwood_testing.mpc_engines import EDGE_VALUES, RINGS, at_three, in_the_clear, random_integers

X, Y = random_integers(4, 5), random_integers(4, 5, seed=1)

# What is computed, and what it is in the clear (int64, wraps around as a 32-bit integer).
PROGRAMS: dict[str, tuple[Callable[[Engine, Shared, Shared], Shared], Callable[..., Any]]] = {
    "sums": (lambda e, x, y: x + y - x * 3, lambda x, y: y - 2 * x),
    "public sums": (lambda e, x, y: np.arange(5) - (x + 7), lambda x, y: np.arange(5) - x - 7),
    "public factors": (lambda e, x, y: x * np.arange(4)[:, None] * -1, lambda x, y: -x * np.arange(4)[:, None]),
    "axes": (lambda e, x, y: x.transpose().reshape(2, 10).sum(axis=0), lambda x, y: x.T.reshape(2, 10).sum(0)),
    "running sums": (lambda e, x, y: x.cumsum(axis=1), lambda x, y: x.cumsum(1)),
    "joined": (lambda e, x, y: concatenate([stack([x, y])[1], x]), lambda x, y: np.concatenate([y, x])),
    "repeated": (lambda e, x, y: x[0].broadcast_to((2, 5)) + 1, lambda x, y: np.stack([x[0], x[0]]) + 1),
    "constants": (lambda e, x, y: x[1:2] + e.constant(-np.arange(5)), lambda x, y: x[1:2] - np.arange(5)),
    "refreshed": (lambda e, x, y: e.refresh(x), lambda x, y: x),
    "products": (lambda e, x, y: e.mul(x, y), lambda x, y: x * y),
    "one product": (lambda e, x, y: e.mul(x[0, 0], y[1, 1]), lambda x, y: x[0, 0] * y[1, 1]),
    "broadcast products": (lambda e, x, y: e.mul(x[:, None], y[None, :2]), lambda x, y: x[:, None] * y[None, :2]),
    "products with a constant": (lambda e, x, y: e.mul(x, e.constant(-3)), lambda x, y: x * -3),
    "matrix products": (lambda e, x, y: e.matmul(x, y.transpose()), lambda x, y: x @ y.T),
    "many matrix products": (
        lambda e, x, y: e.matmul(x.reshape(2, 2, 5), y.transpose()),
        lambda x, y: x.reshape(2, 2, 5) @ y.T,
    ),
    "dot products": (lambda e, x, y: e.dot(x[:, None], y[None], axis=-1), lambda x, y: x @ y.T),
    "dealt by all": (
        lambda e, x, y: e.deal_sum(lambda server: np.arange(6), (2, 3)),
        lambda x, y: np.arange(6).reshape(2, 3) * 3,
    ),
    "signs": (lambda e, x, y: e.is_negative(x), lambda x, y: x < 0),
    "joined signs": (
        lambda e, x, y: e.to_ring(e.land(e.sign_bits(x), e.sign_bits(y) ^ 1)),
        lambda x, y: (x < 0) & (y >= 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("ring", RINGS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_three_servers_compute_what_one_would_and_cost_what_it_counts(name: str, ring: Any) -> None:
    shared, clear = PROGRAMS[name]

    def program(engine: Engine, x: Shared, y: Shared) -> Any:
        return engine.open(shared(engine, x, y)), engine.stats

    # 64-bit words hold the true product of 31-bit numbers; 32-bit words wrap around.
    expected = np.asarray(clear(X, Y)).astype(ring).view(f"i{np.dtype(ring).itemsize}")
    opened, counted = in_the_clear(program, X, Y, ring=ring)
    np.testing.assert_array_equal(opened, expected)
    results = at_three(program, X, Y, ring=ring)
    for result, _ in results:
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == np.int64
    assert results[0][1] == counted  # the simulation counts what server 0 sends,
    for _, spent in results[1:]:  # and no server sends more
        assert (spent.rounds, spent.products, spent.comparisons) == (
            counted.rounds, counted.products, counted.comparisons
        )  # fmt: skip
        assert spent.bytes_sent <= counted.bytes_sent


@pytest.mark.parametrize("ring", RINGS)
def test_signs_are_right_at_the_ends_of_the_range(ring: Any) -> None:
    top = np.iinfo(f"i{np.dtype(ring).itemsize}")
    values = np.concatenate([EDGE_VALUES, [top.max, top.min, top.max - 1, top.min + 1], random_integers(2000)])
    for signs in at_three(lambda engine, x: engine.open(engine.is_negative(x)), values, ring=ring):
        np.testing.assert_array_equal(signs, values < 0)


def test_a_comparison_takes_nine_rounds_and_under_60_bytes() -> None:
    def program(engine: Engine, x: Shared) -> Any:
        engine.is_negative(x)
        return engine.stats

    for spent in at_three(program, np.arange(1000)):
        assert spent.rounds == 9
        assert spent.bytes_sent <= 56 * 1000


def test_products_larger_than_a_block_come_in_order() -> None:
    x, y = random_integers(40, 1, 9000), random_integers(1, 3, 9000)  # 4 MB: several blocks
    result = at_three(lambda engine, x, y: engine.open(engine.mul(x, y)), x, y)[2]
    np.testing.assert_array_equal(result, (x * y).astype(np.int32))


def test_secret_bits_are_fair_and_agreed() -> None:
    first, second, third = at_three(lambda engine: engine.open(engine.random_bits((4000,))))
    assert set(first) == {0, 1}
    assert abs(first.mean() - 0.5) < 5 * 0.5 / 4000**0.5
    assert np.array_equal(first, second)
    assert np.array_equal(first, third)


# What a server sees


# Shares


# Misuse and failure
