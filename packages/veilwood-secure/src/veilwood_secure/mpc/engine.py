# SPDX-License-Identifier: Apache-2.0
"""Shared integers (`Shared`), shared bits (`Bits`), and the interface `Engine` for computing on them.

Sending and multiplying shares among three servers is implemented in replicated.py.

All three servers run the same program and call the same methods in the same order. Integers are elements of the ring
of the engine's words, in two's complement, and wrap around, so a program must keep its sums within range.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, TypeVar

import numpy as np

from veilwood.arrays import ArrayLike, Ints, NDArray
from veilwood.errors import MechanismError

RingArray = NDArray[np.unsignedinteger[Any]]
Kind = TypeVar("Kind", "Shared", "Bits")


@dataclass
class Stats:
    """Cost counters of a server: rounds of messages, bytes sent, products and comparisons of secrets."""

    rounds: int = 0
    bytes_sent: int = 0
    products: int = 0
    comparisons: int = 0


class Product(NamedTuple):
    """Request for a product of two secrets: elementwise, of matrices, or summed along an axis."""

    kind: Literal["mul", "matmul", "dot"]
    x: Shared
    y: Shared
    axis: int = 0


class Parts:
    """Array of secrets, represented by the shares that this server holds. All methods are local.

    Public numbers are added to one of the shares only: `public_at` is its index at this server, or None.
    """

    __slots__ = ("parts", "public_at")
    __array_ufunc__ = None  # `numbers + shared` must call Shared.__radd__, not numpy

    def __init__(self, parts: Sequence[RingArray], public_at: int | None) -> None:
        self.parts = tuple(parts)
        self.public_at = public_at

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.parts[0].shape

    @property
    def size(self) -> int:
        """The number of secrets."""
        return self.parts[0].size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The word type."""
        return self.parts[0].dtype

    def __len__(self) -> int:
        return len(self.parts[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"

    def __getitem__(self, index: Any) -> Self:
        return self.map_parts(lambda part: part[index])

    def map_parts(self, operation: Callable[[RingArray], RingArray]) -> Self:
        """Apply an operation to each share that this server holds. The result is correct for linear operations only."""
        return type(self)([np.asarray(operation(part)) for part in self.parts], self.public_at)

    def reshape(self, *shape: int) -> Self:
        """Return the same secrets in another shape."""
        return self.map_parts(lambda part: part.reshape(shape))

    def transpose(self, *axes: int) -> Self:
        """Return the same secrets with the axes in a different order."""
        return self.map_parts(lambda part: part.transpose(*axes))

    def broadcast_to(self, shape: tuple[int, ...]) -> Self:
        """Return the secrets repeated to a shape, without copying."""
        return self.map_parts(lambda part: np.broadcast_to(part, shape))

    def _combine_parts(self, other: Self, operation: Callable[[RingArray, RingArray], RingArray]) -> Self:
        """Apply an operation to the corresponding shares of two arrays."""
        return type(self)([operation(a, b) for a, b in zip(self.parts, other.parts, strict=True)], self.public_at)

    def _combine_public(self, values: ArrayLike, operation: Callable[[RingArray, RingArray], RingArray]) -> Self:
        """Apply an operation with public values to the one share that includes public values."""
        words = as_ring_array(values, self.dtype)
        shape = np.broadcast_shapes(self.shape, words.shape)
        joined = [
            operation(part, words) if at == self.public_at else np.broadcast_to(part, shape)
            for at, part in enumerate(self.parts)
        ]
        return type(self)(joined, self.public_at)


class Shared(Parts):
    """Secret integers: the sum of all shares, modulo 2 to the number of bits of a word.

    Supports ``+``, ``-``, indexing, `sum`, and products with *public* integers and matrices, all without a message. The
    product of two secrets takes one message: see `Engine.mul`.

    Examples
    --------
    >>> from veilwood_testing.mpc_engines import PlainEngine
    >>> engine = PlainEngine()
    >>> x = engine.constant([1, 2, 3])
    >>> engine.open(2 * x - 5)
    array([-3, -1,  1])
    """

    __slots__ = ()

    def __add__(self, other: Shared | ArrayLike) -> Shared:
        return self._combine_parts(other, np.add) if isinstance(other, Shared) else self._combine_public(other, np.add)

    __radd__ = __add__

    def __sub__(self, other: Shared | ArrayLike) -> Shared:
        return (
            self._combine_parts(other, np.subtract)
            if isinstance(other, Shared)
            else self._combine_public(other, np.subtract)
        )

    def __rsub__(self, other: ArrayLike) -> Shared:
        return -self + other

    def __neg__(self) -> Shared:
        return self.map_parts(np.negative)

    def __mul__(self, factor: ArrayLike) -> Shared:
        if isinstance(factor, Shared):
            raise MechanismError("multiplying two secrets requires communication. Hint: call engine.mul(x, y).")
        words = as_ring_array(factor, self.dtype)
        return self.map_parts(lambda part: part * words)

    __rmul__ = __mul__

    def sum(self, axis: int | tuple[int, ...] | None = None) -> Shared:
        """Return the sums along an axis."""
        return self.map_parts(lambda part: np.asarray(np.sum(part, axis=axis, dtype=part.dtype)))

    def cumsum(self, axis: int) -> Shared:
        """Return the running sums along an axis."""
        return self.map_parts(lambda part: np.cumsum(part, axis=axis, dtype=part.dtype))


class Bits(Parts):
    """Secret words of bits: the bitwise exclusive or of all shares.

    Supports ``^``, ``~``, shifts and ``&`` with *public* words, all without a message; the ``&`` of two secrets
    takes one message: see `Engine.land`.
    """

    __slots__ = ()

    def __xor__(self, other: Bits | ArrayLike) -> Bits:
        return (
            self._combine_parts(other, np.bitwise_xor)
            if isinstance(other, Bits)
            else self._combine_public(other, np.bitwise_xor)
        )

    __rxor__ = __xor__

    def __invert__(self) -> Bits:
        return self ^ np.iinfo(self.dtype).max

    def __and__(self, mask: ArrayLike) -> Bits:
        words = as_ring_array(mask, self.dtype)
        return self.map_parts(lambda part: part & words)

    def __lshift__(self, count: int) -> Bits:
        return self.map_parts(lambda part: part << part.dtype.type(count))

    def __rshift__(self, count: int) -> Bits:
        return self.map_parts(lambda part: part >> part.dtype.type(count))


class Engine(ABC):
    """Operations that three servers carry out together on shared integers.

    Parameters
    ----------
    party
        The server that runs this program: 0, 1 or 2.
    ring
        Word type of the integers, ``numpy.uint32`` or ``numpy.uint64``.
    counted_bits
        Number of significant bits of a word, from the lowest; by default all. Errors may remain in the other bits, the
        slack.
    """

    is_checked: bool = False
    """Whether a server that deviates is detected."""

    def __init__(
        self, party: int, ring: type[np.unsignedinteger[Any]] = np.uint32, counted_bits: int | None = None
    ) -> None:
        self.party = party
        self.ring: np.dtype[Any] = np.dtype(ring)
        self.stats = Stats()
        if self.ring not in (np.uint32, np.uint64):
            raise MechanismError(f"ring must be numpy.uint32 or numpy.uint64, got {ring!r}. Hint: leave it out.")
        self.counted_bits = counted_bits or 8 * self.ring.itemsize
        self.counted_word = np.dtype(np.uint32 if self.counted_bits <= 32 else np.uint64)
        self.slack_bits = 8 * self.counted_word.itemsize - self.counted_bits

    # Secrets in and out

    @abstractmethod
    def constant(self, values: ArrayLike) -> Shared:
        """Return public integers as a shared array."""

    @abstractmethod
    def load(self, parts: Sequence[RingArray]) -> Shared:
        """Return the shared array of which this server holds the shares `parts`, from an owner, a user or storage."""

    def local_shares(self, x: Shared) -> tuple[RingArray, ...]:
        """Return this server's shares, for storage. Call `refresh` first if they are linear in inputs."""
        return x.parts

    def user_shares(self, x: Shared) -> tuple[RingArray, ...]:
        """Return this server's shares, for a user: counted bits only, in words of type `counted_word`."""
        return self._drop_slack(x).map_parts(lambda part: part >> part.dtype.type(self.slack_bits)).parts

    def _drop_slack(self, x: Shared) -> Shared:
        """Return integers without slack bits, in words of type `counted_word`, of which they fill the highest bits."""
        words = x.map_parts(lambda part: part.astype(self.counted_word, copy=False))
        return words.map_parts(lambda part: part << part.dtype.type(self.slack_bits)) if self.slack_bits else words

    @abstractmethod
    def refresh(self, x: Shared) -> Shared:
        """Return the same secrets in fresh, independent shares (resharing); one round."""

    @abstractmethod
    def deal_sum(self, draw: Callable[[int], Ints], shape: tuple[int, ...]) -> Shared:
        """Return the shared sum of three arrays ``draw(server)``, each known to one server only; one round."""

    @abstractmethod
    def open(self, x: Shared) -> Ints:
        """Open the integers to all three servers; one round."""

    @abstractmethod
    def is_all_zero(self, x: Shared) -> bool:
        """Return True if all secrets are zero; two rounds. If they are, the servers learn nothing else."""

    @abstractmethod
    def is_consistent(self, x: Shared) -> bool:
        """Return True if servers that hold the same share hold equal values, so that `x` is a valid sharing."""

    def products_hold(self, x: Shared, y: Shared, z: Shared) -> bool:
        """Return True if ``z`` holds the elementwise products of ``x`` and ``y``. Reveals only the answer."""
        return self.is_all_zero(z - self.mul(x, y))

    # Products: one round each, traffic of the size of the result

    @abstractmethod
    def mul(self, x: Shared, y: Shared) -> Shared:
        """Return the elementwise products of secrets, broadcast as in numpy."""

    @abstractmethod
    def matmul(self, x: Shared, y: Shared) -> Shared:
        """Return the matrix product over the last two axes; leading axes broadcast."""

    @abstractmethod
    def dot(self, x: Shared, y: Shared, axis: int) -> Shared:
        """Return the products, broadcast as in numpy, summed along an axis of the broadcast shape."""

    @abstractmethod
    def multiply_many(self, products: Sequence[Product]) -> list[Shared]:
        """Return several products, all in one round."""

    @abstractmethod
    def land(self, x: Bits, y: Bits) -> Bits:
        """Return the bitwise and of secret words."""

    # Random secrets, unknown to every server: no message

    @abstractmethod
    def random_words(self, shape: tuple[int, ...], dtype: type[np.unsignedinteger[Any]] = np.uint64) -> Bits:
        """Return words of uniform secret bits."""

    def random_bits(self, shape: tuple[int, ...]) -> Shared:
        """Return uniform secret integers 0 or 1; two rounds."""
        return self.to_ring(self.random_words(shape, np.uint8) & 1)

    @abstractmethod
    def toss_coins(self, count: int) -> Ints:
        """Return uniform public words that no server could predict (coin tossing); one round."""

    # Comparisons

    @abstractmethod
    def isolate_parts(self, x: Parts, kind: type[Kind]) -> list[Kind]:
        """Return a sharing of each of the three shares. This takes no message, since two servers know each share."""

    def split(self, x: Shared) -> tuple[Bits, Bits]:
        """Return shared words u, v with u + v = x; one round.

        First step from arithmetic to binary shares (A2B): a carry-save adder of the three shares.
        """
        words = x.map_parts(lambda part: part.astype(self.counted_word, copy=False))
        first, second, third = self.isolate_parts(words, Bits)
        carries = self.land(first ^ third, second ^ third) ^ third
        return first ^ second ^ third, carries << 1

    def split_bits(self, x: Bits) -> tuple[Shared, Shared]:
        """Return integers c, d of 0 or 1 whose exclusive or is the lowest bit of `x`; one round.

        First step from binary to arithmetic shares (B2A, bit injection): c combines two of the three shares.
        """
        # The other bits of the shares are random even if those bits of the secret are 0.
        first, second, third = self.isolate_parts((x & 1).map_parts(lambda part: part.astype(self.ring)), Shared)
        return first + second - self.mul(first, second) * 2, third

    def sign_bits(self, x: Shared) -> Bits:
        """Return the sign of each integer in the lowest bit of a byte, 1 if negative; seven rounds (32 bits).

        A2B with an adder that computes the top carry only (carry lookahead). Combine bits with `land` before
        `to_ring` turns them into integers.
        """
        self.stats.comparisons += x.size
        u, v = (words << self.slack_bits for words in self.split(x))
        propagate = u ^ v
        sign = propagate >> (8 * self.counted_word.itemsize - 1)
        # The sign is u ^ v ^ carry at the top. Carries come from the bits below: shift the top bit out, then join pairs
        # of neighbouring groups until one group is left. The group that ends below bit 0 generates nothing.
        generate, propagate = self.land(u, v) << 1, propagate << 1
        for width in _halving_widths(self.counted_word):
            (generate, low), (propagate, other) = _pair_up(generate, width), _pair_up(propagate, width)
            if width == 2:
                generate = generate ^ self.land(propagate, low)
            else:
                both = self.land(propagate[None], stack([low, other]))
                generate, propagate = generate ^ both[0], both[1]
        return sign.map_parts(lambda part: part.astype(np.uint8)) ^ generate

    def to_ring(self, x: Bits) -> Shared:
        """Convert the lowest bit of each word to an integer 0 or 1 (B2A); two rounds."""
        c, d = self.split_bits(x)
        return c + d - self.mul(c, d) * 2

    def is_negative(self, x: Shared) -> Shared:
        """Return 1 where an integer is negative, else 0; nine rounds (32 bits)."""
        return self.to_ring(self.sign_bits(x))


def _halving_widths(word: np.dtype[Any]) -> list[int]:
    """Return the number of bits in use before each halving: 32, 16, 8, 4, 2 for 32-bit words.

    >>> _halving_widths(np.dtype(np.uint32))
    [32, 16, 8, 4, 2]
    """
    return [1 << exponent for exponent in range((8 * word.itemsize).bit_length() - 1, 0, -1)]


def _pair_up(x: Bits, width: int) -> tuple[Bits, Bits]:
    """Return the odd and the even bits of the lowest ``width`` bits, each packed into half the width. No message."""

    def pack_even(part: RingArray) -> RingArray:
        word, kept = part.dtype.type, part
        for distance in (0, *(1 << step for step in range(width.bit_length() - 2))):
            mask = word(sum(((1 << max(2 * distance, 1)) - 1) << at for at in range(0, width, max(4 * distance, 2))))
            kept = (kept | kept >> word(distance)) & mask
        return kept.astype(f"u{max(width // 16, 1)}")

    return (x >> 1).map_parts(pack_even), x.map_parts(pack_even)


def stack(arrays: Sequence[Kind], axis: int = 0) -> Kind:
    """Return arrays stacked along a new axis."""
    return _join_parts(arrays, lambda parts: np.stack(parts, axis=axis))


def concatenate(arrays: Sequence[Kind], axis: int = 0) -> Kind:
    """Return arrays joined along an axis."""
    return _join_parts(arrays, lambda parts: np.concatenate(parts, axis=axis))


def as_ring_array(values: ArrayLike, dtype: np.dtype[Any]) -> RingArray:
    """Return public integers as words that wrap around."""
    array = np.asarray(values)
    if array.dtype.kind not in "iub":
        raise MechanismError(f"only integers can be shared, got {array.dtype}. Hint: scale and round the values first.")
    return array.astype(dtype, copy=False)


def _join_parts(arrays: Sequence[Kind], join: Callable[[list[RingArray]], RingArray]) -> Kind:
    """Join several arrays share by share."""
    parts = [join(list(parts)) for parts in zip(*(array.parts for array in arrays), strict=True)]
    return type(arrays[0])(parts, arrays[0].public_at)
