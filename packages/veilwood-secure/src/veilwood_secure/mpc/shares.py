# SPDX-License-Identifier: Apache-2.0
"""Secret shares of integers for three servers: splitting, joining, serialising, and sums of products in the ring.

Owners and users need only this module. Computation on shares is in engine.py.

An integer x is the sum of three shares x0 + x1 + x2, modulo the word size. Server i gets the pair (x_i, x_(i+1)): any
two servers can reconstruct x, and the pair of one server is uniform for every x.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from veilwood.arrays import ArrayLike, Floats, Ints, NDArray
from veilwood.errors import PartyError, UnreadableError
from veilwood.privacy import entropy
from veilwood_secure.mpc.engine import as_ring_array

RingArray = NDArray[np.unsignedinteger[Any]]

# A word is written in limbs; the product of two limbs, added over the inner dimension, must stay below 2**53, where
# doubles are exact. 32-bit words: 2 limbs of 16 bits, inner dimension up to 2**21. 64-bit words: 3 limbs of 22 bits,
# inner dimension up to 2**9.
LIMB_BITS = {4: 16, 8: 22}
BLOCK_VALUES = 1 << 17  # doubles per operand and block: one megabyte, which fits the processor's cache


def sum_matrix_products(terms: Sequence[tuple[RingArray, RingArray]]) -> RingArray:
    """Return the sum of the matrix products x @ y of all terms over the last two axes; leading axes broadcast.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[2**31, 3]], dtype=np.uint32)
    >>> sum_matrix_products([(x, x.T), (x, x.T)])
    array([[18]], dtype=uint32)
    """
    x, y = terms[0]
    inner, dtype = x.shape[-1], x.dtype
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    total = np.zeros((*batch, x.shape[-2], y.shape[-1]), dtype=dtype)
    bits = LIMB_BITS[dtype.itemsize]
    limbs = -(-8 * dtype.itemsize // bits)
    widest = max(x.size, y.size) // max(inner, 1)
    step = max(min(BLOCK_VALUES // max(widest, 1), 1 << (53 - 2 * bits)), 16)
    for start in range(0, inner, step):
        for x, y in terms:
            left = _split_limbs(x[..., start : start + step], bits, limbs)
            right = _split_limbs(y[..., start : start + step, :], bits, limbs)
            for place in range(limbs):
                # Digits i + j = place; bits above the word's width are lost in the shift.
                for i in range(place + 1):
                    digit = np.matmul(left[i], right[place - i]).astype(np.uint64).astype(dtype)
                    total += digit << dtype.type(bits * place)
    return total


def sum_products_along(terms: Sequence[tuple[RingArray, RingArray]], axis: int) -> RingArray:
    """Return the products x * y of all terms, summed over terms and along an axis, without storing all products.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1], [2]], dtype=np.uint32)
    >>> sum_products_along([(x, np.array([[1, 2], [3, 4]], dtype=np.uint32))], axis=0)
    array([ 7, 10], dtype=uint32)
    """
    x, y = terms[0]
    shape = np.broadcast_shapes(x.shape, y.shape)
    at = axis % len(shape)
    total = np.zeros((*shape[:at], *shape[at + 1 :]), dtype=x.dtype)
    for x, y in terms:
        left, right = (np.moveaxis(np.broadcast_to(one, shape), at, 0) for one in (x, y))
        for one, other in zip(left, right, strict=True):
            total += one * other
    return total


def to_signed(words: RingArray) -> Ints:
    """Return ring elements as signed integers (two's complement)."""
    return words.view(f"i{words.dtype.itemsize}").astype(np.int64)


def _split_limbs(words: RingArray, bits: int, count: int) -> list[Floats]:
    """Return the limbs of words as doubles, lowest first."""
    if words.dtype == np.dtype("<u4") and words.size and sys.byteorder == "little":  # 16-bit limbs can be read in place
        if words.strides[-1] == 4:
            halves = words.view(np.uint16)
            return [halves[..., at::2].astype(np.float64) for at in range(2)]
        if words.strides[-2] == 4:
            return [half.swapaxes(-1, -2) for half in _split_limbs(words.swapaxes(-1, -2), bits, count)]
    mask = words.dtype.type((1 << bits) - 1)
    return [((words >> words.dtype.type(bits * at)) & mask).astype(np.float64) for at in range(count)]


SharePair = tuple[RingArray, RingArray]
N_SERVERS = 3


def share(values: ArrayLike, ring: type[np.unsignedinteger[Any]] = np.uint32) -> list[SharePair]:
    """Split integers into the pairs of servers 0, 1 and 2, with randomness from the operating system.

    Examples
    --------
    >>> pairs = share([5, -7])
    >>> reconstruct(pairs)
    array([ 5, -7])
    """
    words = as_ring_array(values, np.dtype(ring))
    bits = 8 * words.dtype.itemsize
    first, second = (entropy.random_integers(words.size, bits).reshape(words.shape) for _ in range(2))
    parts = [first, second, words - first - second]
    return [(parts[i], parts[(i + 1) % N_SERVERS]) for i in range(N_SERVERS)]


def reconstruct(pairs: Sequence[SharePair]) -> Ints:
    """Reconstruct integers from the pairs of servers 0, 1 and 2, if copies of the same share agree.

    Raises
    ------
    VeilwoodError
        If two servers hold different values of the same share.
    """
    for i in range(N_SERVERS):
        if not np.array_equal(pairs[i][1], pairs[(i + 1) % N_SERVERS][0]):
            raise UnreadableError(
                f"servers {i} and {(i + 1) % N_SERVERS} hold different values of the same share. "
                "Hint: discard the result; one of them did not follow the protocol."
            )
    return to_signed(pairs[0][0] + pairs[1][0] + pairs[2][0])


def find_majority(messages: Sequence[bytes]) -> bytes:
    """Return the message that at least two of three servers sent. If at most one server deviates, it is correct.

    Examples
    --------
    >>> find_majority([b"3", b"4", b"3"])
    b'3'
    """
    for message in messages:
        if messages.count(message) > 1:
            return message
    raise PartyError("the three servers sent three different results, so none is accepted. Hint: read their logs.")


def pair_to_bytes(pair: SharePair) -> bytes:
    """Serialise a pair as little-endian words, first share first."""
    return b"".join(np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("<")).tobytes() for part in pair)


def pair_from_bytes(
    data: bytes | memoryview, shape: tuple[int, ...], ring: type[np.unsignedinteger[Any]] = np.uint32
) -> SharePair:
    """Parse the output of `pair_to_bytes` for arrays of a known shape.

    Examples
    --------
    >>> pair = share([[1, 2, 3]])[0]
    >>> again = pair_from_bytes(pair_to_bytes(pair), (1, 3))
    >>> all(np.array_equal(*parts) for parts in zip(pair, again))
    True
    """
    word = np.dtype(ring).newbyteorder("<")
    expected = 2 * int(np.prod(shape)) * word.itemsize
    if len(data) != expected:
        raise UnreadableError(
            f"a pair of shape {shape} takes {expected} bytes, got {len(data)}. "
            "Hint: use the same shape and word type on both sides."
        )
    first, second = np.frombuffer(data, dtype=word).astype(ring, copy=False).reshape(2, *shape)
    return first, second
