# SPDX-License-Identifier: Apache-2.0
"""Engines for programs on shares: in the clear, and at three servers that are threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veilwood.arrays import Ints
from veilwood.privacy import entropy
from veilwood_secure.mpc import shares as ring
from veilwood_secure.mpc.engine import Bits, Engine, Kind, Parts, Product, RingArray, Shared, as_ring_array
from veilwood_secure.mpc.replicated import Links, ReplicatedEngine, run_in_threads
from veilwood_secure.mpc.shares import share

DIGEST_BYTES = 32


class PlainEngine(Engine):
    """The three servers as one, without secrets; its counters are those of server 0, which sends the most.

    A handle has a single part, the value itself, so `load` takes ``(values,)``.

    Examples
    --------
    >>> engine = PlainEngine()
    >>> x = engine.load((np.array([3, -4]),))
    >>> engine.open(engine.is_negative(x)), engine.stats.rounds
    (array([0, 1]), 10)
    """

    def __init__(self, ring: type[np.unsignedinteger[Any]] = np.uint32) -> None:
        super().__init__(0, ring)

    def constant(self, values: ArrayLike) -> Shared:
        """Return public integers."""
        return Shared([as_ring_array(values, self.ring)], 0)

    def load(self, parts: Sequence[ArrayLike]) -> Shared:
        """Return the integers."""
        (values,) = parts
        return self.constant(values)

    def refresh(self, x: Shared) -> Shared:
        """Return the integers."""
        self._count_round(x.size * x.dtype.itemsize)
        return x

    def deal_sum(self, draw: Callable[[int], Ints], shape: tuple[int, ...]) -> Shared:
        """Return the sum of three draws."""
        drawn = draw(0) + draw(1) + draw(2)
        self._count_round(drawn.size * self.ring.itemsize)
        return self.constant(drawn.reshape(shape))

    def open(self, x: Shared) -> Ints:
        """Return the integers."""
        self._count_round(x.size * x.dtype.itemsize + DIGEST_BYTES)
        return ring.to_signed(x.parts[0])

    def is_all_zero(self, x: Shared) -> bool:
        """Return whether all are zero."""
        self._count_comparison()
        return not x.parts[0].any()

    def is_consistent(self, x: Shared) -> bool:
        """Return True: there is only one copy."""
        self._count_comparison()
        return True

    def mul(self, x: Shared, y: Shared) -> Shared:
        """Return the products."""
        return Shared([self._count_product(x.parts[0] * y.parts[0])], 0)

    def matmul(self, x: Shared, y: Shared) -> Shared:
        """Return the matrix product."""
        return Shared([self._count_product(ring.sum_matrix_products([(x.parts[0], y.parts[0])]))], 0)

    def dot(self, x: Shared, y: Shared, axis: int) -> Shared:
        """Return the products added up along an axis."""
        return Shared([self._count_product(ring.sum_products_along([(x.parts[0], y.parts[0])], axis))], 0)

    def multiply_many(self, products: Sequence[Product]) -> list[Shared]:
        """Return several products; one round."""
        rounds = self.stats.rounds
        found = [self.dot(x, y, axis) if kind == "dot" else getattr(self, kind)(x, y) for kind, x, y, axis in products]
        self.stats.rounds = rounds + 1
        return found

    def land(self, x: Bits, y: Bits) -> Bits:
        """Return the bitwise and."""
        return Bits([self._count_product(x.parts[0] & y.parts[0])], 0)

    def random_words(self, shape: tuple[int, ...], dtype: type[np.unsignedinteger[Any]] = np.uint64) -> Bits:
        """Return words of uniform bits."""
        word = np.dtype(dtype)
        drawn = entropy.random_integers(int(np.prod(shape)), 8 * word.itemsize)
        return Bits([drawn.astype(word, copy=False).reshape(shape)], 0)

    def toss_coins(self, count: int) -> Ints:
        """Return fair coins."""
        self._count_round(8 * count + DIGEST_BYTES)
        return self.random_words((count,)).parts[0].view(np.int64)

    def isolate_parts(self, x: Parts, kind: type[Kind]) -> list[Kind]:
        """Return the three parts of a fresh sharing."""
        first, second = (self.random_words(x.shape, x.dtype.type).parts[0] for _ in range(2))
        if isinstance(x, Bits):
            first, second = (part & part.dtype.type(1) for part in (first, second))
            third = x.parts[0] ^ first ^ second
        else:
            third = x.parts[0] - first - second
        return [kind([part], 0) for part in (first, second, third)]

    def _count_product(self, product: RingArray) -> RingArray:
        """Return the product, after counting what it would send."""
        self.stats.products += product.size
        self._count_round(product.nbytes)
        return product

    def _count_comparison(self) -> None:
        """Count a comparison of digests and the verdicts on it."""
        self._count_round(DIGEST_BYTES)
        self._count_round(2)

    def _count_round(self, count: int) -> None:
        """Count one round in which this server sent `count` bytes."""
        self.stats.rounds += 1
        self.stats.bytes_sent += count


RINGS = [np.uint32, np.uint64]


Program = Callable[..., Any]


EDGE_VALUES = np.array([0, 1, -1, 2, -2, 2**30, -(2**30), 2**31 - 1, -(2**31 - 1), -(2**31), 255, -256])


N_DRAWS = 20_000


def at_three(program: Program, *secrets: Any, ring: Any = np.uint32) -> list[Any]:
    """Share the secrets, run the program at three servers, return what each of them returns."""
    shared = [share(secret, ring) for secret in secrets]

    def serve(links: Links) -> Any:
        engine = ReplicatedEngine(links, ring=ring)
        return program(engine, *(engine.load(pairs[engine.party]) for pairs in shared))

    return run_in_threads(serve)


def in_the_clear(program: Program, *secrets: Any, ring: Any = np.uint32) -> Any:
    engine = PlainEngine(ring)
    return program(engine, *(engine.load((secret,)) for secret in secrets))


def random_integers(*shape: int, bits: int = 32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(-(2 ** (bits - 1)), 2 ** (bits - 1), shape)
