# SPDX-License-Identifier: Apache-2.0
"""Three servers compute what one would, say the same whatever the secrets are, and notice shares that disagree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("cryptography")

from veilwood.errors import PartyError, VeilwoodError
from veilwood.secure.mpc import ring as arithmetic
from veilwood.secure.mpc.engine import Bits, Engine, Shared, concatenate, stack
from veilwood.secure.mpc.links import Buffer, Links, ThreadLinks, agree_keys, run_threads
from veilwood.secure.mpc.plain import PlainEngine
from veilwood.secure.mpc.replicated import KeyStream, ReplicatedEngine
from veilwood.secure.mpc.shares import from_bytes, reconstruct, share, to_bytes

RINGS = [np.uint32, np.uint64]
Program = Callable[..., Any]


def at_three(program: Program, *secrets: Any, ring: Any = np.uint32) -> list[Any]:
    """Share the secrets, run the program at three servers, return what each of them returns."""
    shared = [share(secret, ring) for secret in secrets]

    def serve(links: Links) -> Any:
        engine = ReplicatedEngine(links, ring=ring)
        return program(engine, *(engine.load(pairs[engine.party]) for pairs in shared))

    return run_threads(serve)


def in_the_clear(program: Program, *secrets: Any, ring: Any = np.uint32) -> Any:
    engine = PlainEngine(ring)
    return program(engine, *(engine.load((secret,)) for secret in secrets))


def numbers(*shape: int, bits: int = 32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(-(2 ** (bits - 1)), 2 ** (bits - 1), shape)


X, Y = numbers(4, 5), numbers(4, 5, seed=1)
EDGES = np.array([0, 1, -1, 2, -2, 2**30, -(2**30), 2**31 - 1, -(2**31 - 1), -(2**31), 255, -256])

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
    "dealt": (lambda e, x, y: x + e.deal(0, None if e.party else [[9]], (4, 5)), lambda x, y: x + 9),
    "dealt by all": (
        lambda e, x, y: e.deal_sum(lambda: np.arange(6), (2, 3)),
        lambda x, y: np.arange(6).reshape(2, 3) * 3,
    ),
    "signs": (lambda e, x, y: e.negative(x), lambda x, y: x < 0),
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
    values = np.concatenate([EDGES, [top.max, top.min, top.max - 1, top.min + 1], numbers(2000)])
    for signs in at_three(lambda engine, x: engine.open(engine.negative(x)), values, ring=ring):
        np.testing.assert_array_equal(signs, values < 0)


def test_a_comparison_takes_nine_rounds_and_under_60_bytes() -> None:
    def program(engine: Engine, x: Shared) -> Any:
        engine.negative(x)
        return engine.stats

    for spent in at_three(program, np.arange(1000)):
        assert spent.rounds == 9
        assert spent.bytes_sent <= 56 * 1000


@pytest.mark.parametrize("ring", RINGS)
def test_matrix_products_are_exact_at_the_largest_words(ring: Any) -> None:
    largest = np.full((2, 3001), np.iinfo(ring).max, dtype=ring)  # -1: limbs all ones, the worst for doubles
    half = np.full((3001, 2), 2 ** (8 * np.dtype(ring).itemsize - 1) + 1, dtype=ring)
    for x, y in [(largest, largest.T), (largest, half), (half.T, half)]:
        exact = [[sum(int(a) * int(b) for a, b in zip(row, column, strict=True)) for column in y.T] for row in x]
        np.testing.assert_array_equal(
            arithmetic.matmul([(x, y)]), np.array(exact, dtype=object) % (int(np.iinfo(ring).max) + 1)
        )


def test_limbs_too_many_for_a_double_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "LIMB_BITS", {8: 26})
    x = np.full((1, 3001), 2**64 - 1, dtype=np.uint64)
    assert arithmetic.matmul([(x, x.T)])[0, 0] != 3001  # (-1) * (-1), 3001 times


def test_products_larger_than_a_block_come_in_order() -> None:
    x, y = numbers(40, 1, 9000), numbers(1, 3, 9000)  # 4 MB: several blocks
    result = at_three(lambda engine, x, y: engine.open(engine.mul(x, y)), x, y)[2]
    np.testing.assert_array_equal(result, (x * y).astype(np.int32))


def test_secret_bits_are_fair_and_agreed() -> None:
    first, second, third = at_three(lambda engine: engine.open(engine.random_bits((4000,))))
    assert set(first) == {0, 1}
    assert abs(first.mean() - 0.5) < 5 * 0.5 / 4000**0.5
    assert np.array_equal(first, second)
    assert np.array_equal(first, third)


# What a server sees


class Listening(ThreadLinks):
    """Links that keep what arrives."""

    def __init__(self, links: Links) -> None:
        self.party, self._links = links.party, links
        self.heard: list[Any] = []

    def send(self, to: int, data: Buffer) -> None:
        self._links.send(to, data)

    def receive(self, sender: int) -> Buffer:
        data = self._links.receive(sender)
        self.heard.append(bytes(data))
        return data


COUNT = 20_000
ALARM = 1e-8  # keys are fresh in every run; without masks the p-value is 0 to all digits


def views(secret: int, program: Program) -> list[list[np.ndarray]]:
    """For each server all words it has: its pair, the streams it draws, and what it hears; COUNT of each.

    The program gets the engine, COUNT shares of the secret, and the secret itself for a server that deals it.
    """
    pairs = share(np.full(COUNT, secret))

    def serve(links: Links) -> list[np.ndarray]:
        listening = Listening(links)
        keys = agree_keys(links)
        engine = ReplicatedEngine(listening, keys)
        program(engine, engine.load(pairs[links.party]), secret)
        words = [*pairs[links.party], *(KeyStream(key).words((COUNT,), np.dtype(np.uint32)) for key in keys)]
        return words + [
            part for heard in listening.heard for part in np.frombuffer(heard, np.uint32).reshape(-1, COUNT)
        ]

    return run_threads(serve)


SEEN: dict[str, Program] = {
    "product": lambda engine, x, secret: engine.mul(x, x),
    "comparison": lambda engine, x, secret: engine.negative(x),
    "refresh": lambda engine, x, secret: engine.refresh(x),
    "dot": lambda engine, x, secret: engine.dot(x.reshape(1, COUNT), x.reshape(1, COUNT), axis=0),
}


def distinguished(program: Program, servers: tuple[int, ...] = (0, 1, 2)) -> float:
    """How surely the sight of any three words tells the secret 5 from the secret -70000: the least p-value, corrected.

    Three words are looked at together, through two bits of each: the lowest, then the highest.
    """
    p_values = []
    one, other = views(5, program), views(-70000, program)
    for ours, theirs in [(one[server], other[server]) for server in servers]:
        assert [len(word) for word in ours] == [len(word) for word in theirs]
        for shift in (0, 30):
            bits = [[word >> np.uint32(shift) & np.uint32(3) for word in words] for words in (ours, theirs)]
            for i, j, k in combinations(range(len(ours)), 3):
                cells = np.array([np.bincount(16 * b[i] + 4 * b[j] + b[k], minlength=64) for b in bits])
                p_values.append(_same_law(cells[:, cells.sum(axis=0) > 0]))
    return min(p_values) * len(p_values)


def _same_law(cells: np.ndarray) -> float:
    """p-value of the chi-square test that two rows of counts have one law."""
    expected = cells.sum(axis=0) / 2
    return float(stats.chi2.sf(((cells - expected) ** 2 / expected).sum(), max(cells.shape[1] - 1, 1)))


@pytest.mark.parametrize("name", SEEN)
def test_no_server_can_tell_two_secrets_apart(name: str) -> None:
    assert distinguished(SEEN[name]) > ALARM


@pytest.mark.parametrize("name", ["product", "comparison", "dot"])
def test_a_server_that_does_not_mask_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyStream, "words", lambda self, shape, dtype: np.zeros(shape, dtype))
    assert distinguished(SEEN[name]) < ALARM


@pytest.mark.parametrize("dealer", [0, 1, 2])
@pytest.mark.parametrize("together", [False, True])
def test_what_one_server_deals_the_others_cannot_tell(
    dealer: int, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(engine: Engine, x: Shared, secret: int) -> None:
        values = np.full(COUNT, secret if engine.party == dealer else 0)
        if together:
            engine.deal_sum(lambda: values, (COUNT,))
        else:
            engine.deal(dealer, values, (COUNT,))

    others = ((dealer + 1) % 3, (dealer + 2) % 3)
    assert distinguished(program, others) > ALARM
    monkeypatch.setattr(KeyStream, "words", lambda self, shape, dtype: np.zeros(shape, dtype))
    assert distinguished(program, others) < ALARM


def test_messages_have_the_same_lengths_whatever_the_secrets() -> None:
    def lengths(values: np.ndarray) -> list[list[int]]:
        pairs = share(values)

        def serve(links: Links) -> list[int]:
            listening = Listening(links)
            engine = ReplicatedEngine(listening)
            x = engine.load(pairs[links.party])
            engine.mul(engine.negative(x), x)
            return [len(data) for data in listening.heard]

        return run_threads(serve)

    assert lengths(np.zeros(50, dtype=int)) == lengths(numbers(50))


# Shares


def test_shares_of_one_server_are_uniform_whatever_the_secret() -> None:
    for secret in (0, -1):
        for pair in share(np.full(COUNT, secret)):
            for words in (*pair, pair[0] - pair[1], pair[0] + pair[1]):
                counts = np.bincount(words.view(np.uint8), minlength=256)
                assert stats.chisquare(counts).pvalue > 1e-7


@pytest.mark.parametrize("ring", RINGS)
def test_shares_join_again_and_travel_as_bytes(ring: Any) -> None:
    values = EDGES.reshape(3, 4)
    pairs = [from_bytes(to_bytes(pair), values.shape, ring) for pair in share(values, ring)]
    np.testing.assert_array_equal(reconstruct(pairs), values)
    with pytest.raises(VeilwoodError, match="not a pair of shape"):
        from_bytes(to_bytes(pairs[0]), (3, 5), ring)


def test_a_user_notices_a_server_that_sends_something_else() -> None:
    pairs = share([1, 2, 3])
    pairs[1] = (pairs[1][0] + np.uint32(1), pairs[1][1])
    with pytest.raises(VeilwoodError, match="servers 0 and 1 disagree"):
        reconstruct(pairs)


@pytest.mark.parametrize("server", [0, 1, 2])
@pytest.mark.parametrize("part", [0, 1])
def test_servers_notice_an_owner_whose_shares_disagree(server: int, part: int) -> None:
    pairs = [list(pair) for pair in share(np.arange(6))]
    pairs[server][part] = pairs[server][part] + np.array([0, 0, 1, 0, 0, 0], dtype=np.uint32)

    def program(links: Links) -> bool:
        engine = ReplicatedEngine(links)
        return engine.consistent(engine.load(pairs[engine.party]))

    assert run_threads(program) == [False, False, False]
    assert at_three(lambda engine, x: engine.consistent(x), np.arange(6)) == [True, True, True]


@pytest.mark.parametrize("values", [[0, 0, 1], [0, -1, 0], [2**31, 0, 0]])
def test_anything_but_zero_is_noticed_by_all(values: list[int]) -> None:
    assert at_three(lambda engine, x: engine.all_zero(x), values) == [False, False, False]
    assert at_three(lambda engine, x: engine.all_zero(engine.mul(x, x - x)), values) == [True, True, True]
    assert not in_the_clear(lambda engine, x: engine.all_zero(x), values)


# Misuse and failure


def test_misuse_is_refused_with_a_hint() -> None:
    engine = PlainEngine()
    x = engine.constant([1, 2])
    with pytest.raises(VeilwoodError, match=r"engine\.mul"):
        x * x  # type: ignore[operator]
    with pytest.raises(VeilwoodError, match="scale and round"):
        x + 0.5
    with pytest.raises(VeilwoodError, match="uint32"):
        PlainEngine(np.uint16)
    with pytest.raises(VeilwoodError, match=r"shares\.share"):
        at_three(lambda engine: engine.load((np.zeros(2, np.uint64), np.zeros(2, np.uint64))))
    with pytest.raises(VeilwoodError, match="must give values"):
        at_three(lambda engine: engine.deal(1, None, (2,)))


def test_servers_that_run_different_programs_are_told_so() -> None:
    with pytest.raises(PartyError, match="were due"):
        at_three(lambda engine: engine.open(engine.constant(np.zeros(2 if engine.party == 0 else 3, dtype=int))))


def test_the_error_of_the_server_that_failed_is_reported() -> None:
    def program(engine: Engine) -> None:
        if engine.party == 2:
            raise ArithmeticError("out of ink")
        engine.open(engine.constant([1]))

    with pytest.raises(ArithmeticError, match="out of ink"):
        at_three(program)


def test_secret_words_take_public_ones() -> None:
    def program(engine: Engine) -> Any:
        word = engine.random_words((3,), np.uint8)
        flipped = ~word ^ word
        return engine.open(engine.to_ring(flipped >> 7)), engine.open(engine.to_ring(((flipped << 3) & 8) >> 3))

    for high, low in (*at_three(program), in_the_clear(program)):
        assert high.tolist() == low.tolist() == [1, 1, 1]
    assert repr(Bits([np.zeros(2, np.uint8)], None)) == "Bits(shape=(2,), dtype=uint8)"


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_products_of_words_that_lie_in_memory_in_any_way(dtype: Any) -> None:
    random, size = np.random.default_rng(0), 1 << (8 * np.dtype(dtype).itemsize)

    def laid_out(rows: int, columns: int) -> list[Any]:
        words = random.integers(0, size - 1, (2 * rows, 2 * columns), dtype=dtype, endpoint=True)
        turned = np.ascontiguousarray(words[:rows, :columns].T).T
        repeated = np.broadcast_to(words[:1, :columns], (rows, columns))
        return [
            words[:rows, :columns],
            words[::2, ::2],
            turned,
            repeated,
            np.broadcast_to(words[:rows, :1], turned.shape),
        ]

    for x in laid_out(3, 40):
        for y in laid_out(40, 2):
            expected = np.array(x, dtype=object) @ np.array(y, dtype=object) % size
            assert np.array_equal(arithmetic.matmul([(x, y)]).astype(object), expected)
