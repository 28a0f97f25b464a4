# SPDX-License-Identifier: Apache-2.0
"""Security with abort: three servers compute what one would, and no lie of one of them changes a result unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")
from veilwood.errors import PartyError
from veilwood_secure.mpc import checked
from veilwood_secure.mpc.checked import MIN_ARRANGEMENTS, REPETITIONS, CheckedEngine, DeviationError, bucket_size
from veilwood_secure.mpc.engine import Engine, Product, Shared
from veilwood_secure.mpc.replicated import KeyStream, ReplicatedEngine, run_in_threads
from veilwood_secure.mpc.shares import share
from veilwood_secure.protocols import circuits
from veilwood_testing.lies import CHANGES, Lie, run, try_lies


def accepted(verdict: bool) -> bool:
    """Return True, or end the run as whoever checks shares does."""
    if not verdict:
        raise PartyError("refused")
    return verdict


A = np.random.default_rng(0).integers(-(2**28), 2**28, (3, 4))
B = np.random.default_rng(1).integers(-(2**10), 2**10, (3, 4))
PROGRAMS: dict[str, tuple[Callable[[Engine, Shared, Shared], Any], Callable[[Any, Any], Any] | None]] = {
    "products": (lambda e, a, b: e.open(e.mul(a, b)), lambda a, b: a * b),
    "broadcast products": (
        lambda e, a, b: e.open(e.mul(a[:, None], b[None, :2])), lambda a, b: a[:, None] * b[None, :2],
    ),
    "outer products": (lambda e, a, b: e.open(e.mul(a[:, None, :1], b[None])), lambda a, b: a[:, None, :1] * b[None]),
    "one product": (lambda e, a, b: e.open(e.mul(a[0, 0], b[1, 1])), lambda a, b: a[0, 0] * b[1, 1]),
    "matrix products": (lambda e, a, b: e.open(e.matmul(a, b.transpose())), lambda a, b: a @ b.T),
    "many matrix products": (
        lambda e, a, b: e.open(e.matmul(a.reshape(3, 2, 2), b[:2, :2])), lambda a, b: a.reshape(3, 2, 2) @ b[:2, :2],
    ),
    "dot products": (
        lambda e, a, b: e.open(e.dot(a[:, None], b[None], axis=0)), lambda a, b: (a[:, None] * b[None]).sum(0),
    ),
    "fresh shares": (lambda e, a, b: e.open(e.refresh(a)), lambda a, b: a),
    "signs": (lambda e, a, b: e.open(e.is_negative(a)), lambda a, b: a < 0),
    "maxima": (lambda e, a, b: e.open(circuits.argmax(e, a)).argmax(axis=0), lambda a, b: a.argmax(axis=0)),
    "a chain": (
        lambda e, a, b: e.open(e.matmul(e.mul(b, e.is_negative(a)), b.transpose())), lambda a, b: (b * (a < 0)) @ b.T,
    ),
    "zeros": (lambda e, a, b: accepted(e.is_all_zero(e.mul(a, b) - e.mul(b, a))), lambda a, b: True),
    "no zeros": (lambda e, a, b: e.is_all_zero(e.mul(a, b) + 1), lambda a, b: False),
    "right claims": (lambda e, a, b: accepted(e.products_hold(b * 0 + 1, a, a)), lambda a, b: True),
    "wrong claims": (lambda e, a, b: e.products_hold(b, b, b), lambda a, b: False),
    "shares for a user": (lambda e, a, b: tuple(e.user_shares(e.mul(a, b))), None),
}  # fmt: skip


def program_of(name: str) -> Callable[[Any], Any]:
    shares = [share(values, np.uint64) for values in (A, B)]
    return lambda engine: PROGRAMS[name][0](engine, *(engine.load(pairs[engine.party]) for pairs in shares))


def make(counted_bits: int) -> Any:
    return lambda links, keys: CheckedEngine(links, keys, counted_bits=counted_bits)


def wrapped(values: Any, counted_bits: int) -> Any:
    """Integers as they are in words of so many bits."""
    half = 1 << counted_bits - 1
    return np.asarray((np.asarray(values, object) + half) % (2 * half) - half).astype(np.int64)


@pytest.mark.parametrize("counted_bits", REPETITIONS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_honest_servers_compute_what_one_would(name: str, counted_bits: int) -> None:
    expected = PROGRAMS[name][1]
    found = run(program_of(name), make(counted_bits))
    if expected is None:  # what leaves has no bits above those that count
        assert all(int(part.max()) < 1 << counted_bits for part in found[0])
        return
    for result in found:
        assert np.array_equal(result, wrapped(expected(A.astype(object), B.astype(object)), counted_bits))


@pytest.mark.parametrize(
    "name", ["matrix products", "signs", "a chain", "zeros", "right claims", "no zeros", "wrong claims"]
)
def test_no_lie_is_accepted(name: str) -> None:
    found = try_lies(program_of(name), make(32), [change for change in CHANGES if change != "drop"], every=3)
    assert {change for change, how in found if how == "aborted"} >= {"flip", "random", "truncate", "own number"}
    assert not any(how == "WRONG" for _, how in found), found
    if "no" not in name and "wrong" not in name:  # what is refused anyway
        assert not any(how == "harmless" for change, how in found if change in ("flip", "random")), found


def test_a_message_that_is_not_sent_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = try_lies(program_of("products"), make(32), ("drop",), timeout_s=0.2)
    assert set(found) == {("drop", "aborted")}


def test_lies_are_accepted_without_checks() -> None:
    """The harness has power: semi-honest servers accept wrong results."""
    shares = [share(values) for values in (A, B)]
    program = PROGRAMS["a chain"][0]
    found = try_lies(
        lambda engine: program(engine, *(engine.load(pairs[engine.party]) for pairs in shares)),
        lambda links, keys: ReplicatedEngine(links, keys), ("random", "own number"),
    )  # fmt: skip
    assert found["random", "WRONG"] > 0
    assert found["own number", "WRONG"] > 0


def without_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckedEngine, "_log_product", lambda self, product, result: result)


def without_ands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckedEngine, "land", ReplicatedEngine.land)


def without_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    class Agreeable(bytes):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = bytes.__hash__

    monkeypatch.setattr("veilwood_secure.mpc.replicated._hash_array", lambda words: Agreeable(32))


def without_a_check_before_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckedEngine, "open", ReplicatedEngine.open)


def without_the_second_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sacrifice compares nothing."""
    real = CheckedEngine._check_claim_sums
    monkeypatch.setattr(CheckedEngine, "_check_claim_sums", lambda self, claims: (real(self, claims)[1] * 0,) * 2)


def without_comparing_triples(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CheckedEngine._verify_gates_with_triples
    monkeypatch.setattr(CheckedEngine, "_verify_gates_with_triples", lambda self, *x: (real(self, *x)[1] * 0,) * 2)


MUTANTS = {
    without_products: "matrix products", without_ands: "signs", without_digests: "products",
    without_a_check_before_opening: "products", without_the_second_product: "products",
    without_comparing_triples: "signs",
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_check_that_is_left_out_is_missed(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    found = try_lies(program_of(MUTANTS[mutant]), make(32), ("random", "own number"))
    assert any(how == "WRONG" for _, how in found), found


# -- soundness -------------------------------------------------------------------------------------------------------


class AddingEngine(CheckedEngine):
    """A server that adds a number to the result of its first product."""

    error = np.uint64(0)
    once = True

    def _reshare_parts(self, *words: Any, **more: Any) -> Any:
        own, received = super()._reshare_parts(*words, **more)
        if self.once and self.party == 0:
            self.once = False
            own.reshape(-1)[:1] += self.error  # and the other holder of this part learns of it
        elif self.once and self.party == 2:
            self.once = False
            received.reshape(-1)[:1] += self.error
        return own, received


@pytest.mark.parametrize(("counted_bits", "exponent", "caught"), [(32, 31, True), (44, 43, True), (32, 63, False)])
def test_errors_in_counted_bits_are_caught_and_others_do_no_harm(
    counted_bits: int, exponent: int, caught: bool
) -> None:
    """An error of the highest counted bit is the hardest to see; one above it may pass and changes nothing."""
    pairs = share([3, 5], np.uint64)
    accepted = 0
    for _ in range(12):

        def program(links: Any) -> Any:
            engine = AddingEngine(links, counted_bits=counted_bits)
            engine.error = np.uint64(1 << exponent)
            x = engine.load(pairs[links.party])
            try:
                return engine.open(engine.mul(x, x)).tolist()
            except DeviationError:
                return None

        results = run_in_threads(program)
        assert all(result in (None, [9, 25]) for result in results)
        accepted += results[0] is not None
    assert accepted == 0 if caught else accepted > 0


def test_two_repetitions_with_the_same_factors_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repetitions draw their own factors: the fold of one is not that of the other."""
    seen: list[Any] = []
    real = checked._fold_batch

    def noted(row_draws: Any, products: Any) -> Any:
        claim = real(row_draws, products)
        seen.append(claim.u.parts[0].copy())
        return claim

    monkeypatch.setattr(checked, "_fold_batch", noted)
    run(program_of("products"), make(32))
    assert len(seen) == 3 * REPETITIONS[32]
    assert not any(np.array_equal(a, b) for i, a in enumerate(seen) for b in seen[:i])


@pytest.mark.parametrize("n_gates", [1, 2, 10, 1000, 1 << 13, 1 << 20, 1 << 24])
def test_wrong_triples_fit_a_wrong_gate_hardly_ever(n_gates: int) -> None:
    bucket = bucket_size(n_gates)
    assert comb(bucket * (n_gates + 1), bucket) >= MIN_ARRANGEMENTS
    assert bucket == 2 or comb((bucket - 1) * (n_gates + 1), bucket - 1) < MIN_ARRANGEMENTS


def test_what_is_folded_has_the_sum_of_the_products() -> None:
    """For right products the claim holds exactly, and for a wrong one it fails nearly always, whatever the shapes."""
    rng = np.random.default_rng(3)
    for kind, left, right, axis in [
        ("mul", (2, 3), (2, 3), 0), ("mul", (2, 1, 3), (4, 3), 0), ("mul", (), (2, 2), 0), ("mul", (1, 5), (3, 1), 0),
        ("matmul", (2, 3), (3, 4), 0), ("matmul", (5, 2, 3), (3, 4), 0), ("matmul", (2, 3), (6, 3, 1), 0),
        ("mul", (), (), 0), ("dot", (4,), (4,), 0),
        ("dot", (2, 3), (2, 3), 1), ("dot", (2, 1, 3), (4, 3), -1), ("dot", (4, 1, 3), (1, 2, 3), 0),
    ]:  # fmt: skip
        x, y = (rng.integers(0, 2**63, shape, np.uint64) for shape in (left, right))
        z = np.matmul(x, y) if kind == "matmul" else x * y if kind == "mul" else (x * y).sum(axis=axis)
        z = np.asarray(z)
        for wrong in (False, True):
            if wrong:
                z = z.copy()
                z.reshape(-1)[-1] += np.uint64(1 << 20)
            words = [Shared([part], 0) for part in (x, y, z)]
            product: Any = Product(kind, words[0], words[1], axis)  # type: ignore[arg-type]
            claim = checked._fold_product(KeyStream(bytes(32)), product, words[2])
            u, v, t = (each.parts[0] for each in claim)
            assert u.shape == v.shape
            assert ((u * v).sum(dtype=np.uint64) == t) != wrong, (kind, left, right)


@pytest.mark.parametrize("shape", [(), (4,)])
def test_errors_of_two_products_do_not_cancel(shape: tuple[int, ...]) -> None:
    """One product is too large by one and the next too small by one: numbers, or inner products of vectors."""
    rng = np.random.default_rng(5)
    batch = []
    for error in (1, -1):
        x, y = (rng.integers(0, 2**63, shape, np.uint64) for _ in range(2))
        z = np.asarray((x * y).sum(dtype=np.uint64) + np.array(error).astype(np.uint64))
        kind: Any = "dot" if shape else "mul"
        words = [Shared([np.asarray(part)], 0) for part in (x, y, z)]
        batch.append((Product(kind, words[0], words[1]), words[2]))
    u, v, t = (each.parts[0] for each in checked._fold_batch(KeyStream(bytes(32)), batch))
    assert (u * v).sum(dtype=np.uint64) != t


def test_an_error_names_nobody() -> None:
    """A server that sees a contradiction cannot tell which of the others lies."""
    lie = Lie(1, 0, "own number")

    errors = run(program_of("products"), make(32), lie)
    assert lie.happened
    assert isinstance(errors[0], DeviationError)
    assert errors[0].party is None
