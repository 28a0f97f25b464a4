# SPDX-License-Identifier: Apache-2.0
"""`CheckedEngine`: replicated shares with security against one server that deviates. It detects errors and aborts.

A server that deviates can add a value of its choice to a product (an additive attack, Genkin et al. 2014). Products
are logged, and are checked in batches before anything that depends on them is opened or sent.

* Integers are the lowest ``counted_bits`` of 64-bit words. All products of a batch are folded by public coins into one
long inner product, which is checked against a second inner product with the same factor (sacrifice, Lindell and Nof
2017; with slack in rings, Eerikson et al. 2020). * The "and" of bits is checked against random triples (cut and choose,
Furukawa et al. 2017).

Each server aborts with probability at least 1 - 2^-40 if a product is wrong (proofs/secure-checked.md).

| symbol | meaning |
|---|---|
| x, y, z | factors and result of a logged product |
| u, v, t | folded batch: the claim is sum(u v) = t |
| a, c; r | random mask and c = sum(a v); public coin of the sacrifice |
| n, B | number of "and"s in a batch, in words; triples per "and" |
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache, partial
from itertools import count
from math import comb
from typing import Final, NamedTuple, TypeVar

import numpy as np

from veilwood.arrays import Ints, NDArray
from veilwood.errors import PartyError
from veilwood_secure.mpc.engine import Bits, Product, RingArray, Shared, concatenate
from veilwood_secure.mpc.replicated import KeyStream, Links, OpeningLog, ReplicatedEngine

Words = NDArray[np.uint64]
LoggedProduct = tuple[Product, Shared]
LoggedAnd = tuple[Bits, Bits, Bits]
Kind = TypeVar("Kind", Shared, Bits)

REPETITIONS: Final = {32: 2, 44: 4}
"""Independent repetitions of the check of products, by counted bits: each misses an error with probability 2^-23 or
2^-12."""

MIN_ARRANGEMENTS: Final = 1 << 41  # of the triples, of which one hides an error in a batch
MAX_LOGGED_BYTES: Final = 1 << 26  # bytes of results that wait for their check: bounds memory


class DeviationError(PartyError):
    """One of the three servers did not follow the protocol; which one is not known."""

    def __init__(self, check: str) -> None:
        super().__init__(f"one of the three servers did not keep to the protocol: {check}. Nothing wrong was released.")


class CheckedEngine(ReplicatedEngine):
    """Engine of one server, on replicated shares, that aborts if another server deviates.

    Parameters
    ----------
    links, keys, openings
        As for `ReplicatedEngine`.
    counted_bits
        Bits of the 64-bit words that count: 32, or 44 with more repetitions.

    Examples
    --------
    >>> from veilwood_secure.mpc.replicated import run_in_threads
    >>> from veilwood_secure.mpc.shares import share
    >>> pairs = share([3, -4], np.uint64)
    >>> def program(links):
    ...     engine = CheckedEngine(links)
    ...     x = engine.load(pairs[links.party])
    ...     return engine.open(engine.mul(x, x))
    >>> run_in_threads(program)[0]
    array([ 9, 16])
    """

    is_checked = True

    def __init__(
        self,
        links: Links,
        keys: tuple[bytes, bytes] | None = None,
        *,
        counted_bits: int = 32,
        openings: OpeningLog | None = None,
    ) -> None:
        super().__init__(links, keys, np.uint64, counted_bits, openings)
        self._products: list[LoggedProduct] = []
        self._ands: list[LoggedAnd] = []
        self._logged_bytes = 0

    # Logged operations

    def mul(self, x: Shared, y: Shared) -> Shared:
        """Return the elementwise products."""
        return self._log_product(Product("mul", x, y), super().mul(x, y))

    def matmul(self, x: Shared, y: Shared) -> Shared:
        """Return the matrix product."""
        return self._log_product(Product("matmul", x, y), super().matmul(x, y))

    def dot(self, x: Shared, y: Shared, axis: int) -> Shared:
        """Return the products summed along an axis."""
        return self._log_product(Product("dot", x, y, axis), super().dot(x, y, axis))

    def multiply_many(self, products: Sequence[Product]) -> list[Shared]:
        """Return several products."""
        if len(products) == 1:
            return super().multiply_many(products)  # calls one of the methods above
        found = super().multiply_many(products)
        return [self._log_product(*each) for each in zip(products, found, strict=True)]

    def refresh(self, x: Shared) -> Shared:
        """Return the same secrets in fresh shares."""
        return self._log_product(Product("mul", x, self.constant(1)), super().refresh(x))

    def land(self, x: Bits, y: Bits) -> Bits:
        """Return the bitwise and."""
        result = super().land(x, y)
        self._ands.append((x, y, result))
        self._count_logged(result.parts[0].nbytes)
        return result

    def _log_product(self, product: Product, result: Shared) -> Shared:
        self._products.append((product, result))
        self._count_logged(result.parts[0].nbytes)
        return result

    def _count_logged(self, count: int) -> None:
        """Check the batch if it is large. All three servers check after the same product, since shapes are public."""
        self._logged_bytes += count
        if self._logged_bytes > MAX_LOGGED_BYTES:
            self.verify()

    # Releases: nothing is sent before everything that it depends on has been checked

    def open(self, x: Shared) -> Ints:
        """Open the integers."""
        self.verify()
        return super().open(x)

    def is_all_zero(self, x: Shared) -> bool:
        """Return whether all secrets are zero."""
        self.verify()
        return super().is_all_zero(x)

    def local_shares(self, x: Shared) -> tuple[RingArray, ...]:
        """Return this server's shares, for storage."""
        self.verify()
        return super().local_shares(x)

    def user_shares(self, x: Shared) -> tuple[RingArray, ...]:
        """Return this server's shares, for a user."""
        self.verify()
        return super().user_shares(x)

    def products_hold(self, x: Shared, y: Shared, z: Shared) -> bool:
        """Return True if ``z`` holds the products, by the check of logged products."""
        self.verify()
        return self._check_products([(Product("mul", x, y), z)], [])

    # Checks

    def verify(self) -> None:
        """Check all logged operations. Raise DeviationError if any result is wrong."""
        products, ands = self._products, self._ands
        self._products, self._ands, self._logged_bytes = [], [], 0
        if (products or ands) and not self._check_products(products, ands):
            raise DeviationError("a product of secrets is wrong")

    def _check_products(self, products: Sequence[LoggedProduct], ands: Sequence[LoggedAnd]) -> bool:
        """Return True if all products and "and"s are right; seven rounds for both kinds together."""
        gates = _join_words(ands)
        triples = self._draw_triples(len(gates[0]))
        # Factors and the order of triples are drawn after all messages of the batch.
        coins = KeyStream(hashlib.sha256(self.toss_coins(4).tobytes()).digest())
        claims = [_fold_batch(coins, products) for _ in range(REPETITIONS[self.counted_bits] if products else 0)]
        zeros = [self._check_claim_sums(claims)] if claims else []
        if ands:
            zeros.append(self._verify_gates_with_triples(gates, triples, coins))
        claimed, own = (np.concatenate(side) for side in zip(*zeros, strict=True))
        return self._all_agree(claimed, own)

    def _check_claim_sums(self, claims: Sequence[_Claim]) -> tuple[RingArray, RingArray]:
        """Sacrifice a second inner product for each claim. Return two arrays that are equal if all claims are true."""
        masks = [self._secret_words(len(claim.u), Shared) for claim in claims]
        seconds = self._share_sums(
            np.array([_inner_product_share(mask, claim.v) for mask, claim in zip(masks, claims, strict=True)])
        )
        rates = self.toss_coins(len(claims)).view(np.uint64)  # after the second products
        masked = [claim.u * rate + mask for claim, rate, mask in zip(claims, rates, masks, strict=True)]
        opened = np.split(self._open_words(concatenate(masked), np.add), len(claims))
        rests = [
            (claim.t * rate + second - (claim.v * public).sum()).reshape(1)
            for claim, rate, second, public in zip(
                claims, rates, [seconds[at] for at in range(len(claims))], opened, strict=True
            )
        ]
        rest = concatenate(rests)
        return -(rest.parts[0] + rest.parts[1]), rest.parts[1]

    # Triples

    def _secret_words(self, count: int, kind: type[Kind]) -> Kind:
        """Return words that no server knows."""
        return kind(self.random_words((count,)).parts, self._public_at)

    def _draw_triples(self, n_gates: int) -> list[Bits]:
        """Return random secret words a, b and a & b: a bucket of triples per gate, and one bucket to open; one
        round."""
        if not n_gates:
            return []
        count = bucket_size(n_gates) * (n_gates + 1)
        a, b = (self._secret_words(count, Bits) for _ in range(2))
        return [a, b, super().land(a, b)]

    def _verify_gates_with_triples(
        self, gates: Sequence[Bits], triples: Sequence[Bits], coins: KeyStream
    ) -> tuple[RingArray, RingArray]:
        """Check each gate against a bucket of triples. Return two arrays that are equal if all gates are right."""
        n = len(gates[0])
        bucket = len(triples[0]) // (n + 1)
        order = np.argsort(coins.next_integers((len(triples[0]),), np.dtype(np.uint64)), kind="stable")
        a, b, c = (each[order] for each in triples)
        x, y, z = (each.map_parts(lambda part: np.tile(part, bucket)) for each in gates)
        kept = slice(bucket, None)
        masked = concatenate([each[:bucket] for each in (a, b, c)] + [x ^ a[kept], y ^ b[kept]])
        opened = self._open_words(masked, np.bitwise_xor)
        first, second, third, d, e = np.split(opened, np.cumsum([bucket] * 3 + [n * bucket]))
        if (first & second != third).any():
            raise DeviationError("a random triple is wrong")
        zero = z ^ c[kept] ^ (b[kept] & d) ^ (a[kept] & e) ^ (d & e)
        return zero.parts[0] ^ zero.parts[1], zero.parts[1]


@cache
def bucket_size(n_gates: int) -> int:
    """Return the least number of triples per gate that lets a wrong gate pass with probability at most 2^-41.

    >>> bucket_size(1 << 20), bucket_size(1 << 13), bucket_size(1)
    (2, 3, 23)
    """
    return next(size for size in count(2) if comb(size * (n_gates + 1), size) >= MIN_ARRANGEMENTS)


def _join_words(ands: Sequence[LoggedAnd]) -> list[Bits]:
    """Return x, y and z of all gates, concatenated, as 64-bit words."""

    def flatten_part(part: RingArray, shape: tuple[int, ...]) -> Words:
        data = np.ascontiguousarray(np.broadcast_to(part, shape)).reshape(-1).view(np.uint8)
        return np.concatenate([data, np.zeros(-data.size % 8, np.uint8)]).view(np.uint64)

    if not ands:
        return [Bits([np.zeros(0, np.uint64)] * 2, None)] * 3
    return [
        Bits(
            [np.concatenate([flatten_part(gate[place].parts[at], gate[2].shape) for gate in ands]) for at in range(2)],
            ands[0][0].public_at,
        )
        for place in range(3)
    ]


class _Claim(NamedTuple):
    """Folded batch in shares: a claim that the sum of u v is t."""

    u: Shared
    v: Shared
    t: Shared


def _fold_batch(coins: KeyStream, products: Sequence[LoggedProduct]) -> _Claim:
    """Fold all products of a batch and join them."""
    folded = [_fold_product(coins, *each) for each in products]
    total = folded[0].t
    for one in folded[1:]:
        total = total + one.t
    return _Claim(concatenate([one.u for one in folded]), concatenate([one.v for one in folded]), total)


def _fold_product(coins: KeyStream, product: Product, result: Shared) -> _Claim:
    """Fold a product over its output axes, with a random factor per index.

    Axes that only x has are contracted in x, axes that only y has in y, and factors of common axes are multiplied into
    x. Each of these three kinds of axes shares a factor, so at most three factors are multiplied. A product without
    common axes has one factor for the whole product, so that errors of two products do not cancel.
    """
    kind, x, y, axis = product
    if kind == "matmul":  # a product over (..., rows, columns, inner), summed over the last axis
        x, y, axis = _expand_axis(x, -2), _expand_axis(y.map_parts(lambda part: np.swapaxes(part, -1, -2)), -3), -1
    n_axes = max(len(x.shape), len(y.shape))
    x, y = (each.reshape(*[1] * (n_axes - len(each.shape)), *each.shape) for each in (x, y))
    full = np.broadcast_shapes(x.shape, y.shape)
    inner = [] if kind == "mul" else [axis % n_axes]
    only_x = [i for i in range(n_axes) if i not in inner and y.shape[i] == 1 < full[i]]
    only_y = [i for i in range(n_axes) if i not in inner and x.shape[i] == 1 < full[i]]
    common = [i for i in range(n_axes) if i not in (*inner, *only_x, *only_y)]
    groups = (only_x, only_y, common)
    factors = [coins.next_integers(tuple(full[i] for i in group), np.dtype(np.uint64)) for group in groups]
    places = tuple(1 if i in (*only_x, *only_y) else full[i] for i in range(n_axes))
    spread = factors[2].reshape([full[i] if i in common else 1 for i in range(n_axes)])
    u = x.map_parts(lambda part: _sum_weighted(part, only_x, factors[0]) * spread).broadcast_to(places)
    v = y.map_parts(lambda part: _sum_weighted(part, only_y, factors[1])).broadcast_to(places)
    total = result.reshape(*(1 if i in inner else full[i] for i in range(n_axes)))
    for group, factor in zip(groups, factors, strict=True):
        total = total.map_parts(partial(_sum_weighted, axes=group, factor=factor))
    if not common:
        total = total.map_parts(lambda part: part * factors[2])
    return _Claim(u.reshape(-1), v.reshape(-1), total.reshape())


def _expand_axis(x: Shared, axis: int) -> Shared:
    return x.map_parts(lambda part: np.expand_dims(part, axis))


def _sum_weighted(part: RingArray, axes: Sequence[int], factor: Words) -> RingArray:
    """Return the sum over axes, weighted by a factor; the axes stay, with length 1."""
    if not axes:
        return part
    return np.expand_dims(np.tensordot(part, factor, axes=(axes, range(len(axes)))), tuple(axes))


def _inner_product_share(x: Shared, y: Shared) -> np.uint64:
    """Return this server's additive share of the inner product."""
    return np.uint64((x.parts[0] * (y.parts[0] + y.parts[1]) + x.parts[1] * y.parts[0]).sum(dtype=np.uint64))
