# SPDX-License-Identifier: Apache-2.0
"""Splitting integers into shares for three servers, and joining them again; what clients and users need.

Nothing is computed on shares here: see engine.py.

An integer x is written as a sum of three parts x0 + x1 + x2 that wraps around. Server i gets the pair
(x_i, x_(i+1)): any two servers can rebuild x, and the pair of one server is uniform whatever x is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from veilwood.errors import UnreadableError
from veilwood.privacy import entropy
from veilwood.secure.mpc import ring as arithmetic
from veilwood.secure.mpc.engine import Words, as_words

__all__ = ["Pair", "from_bytes", "reconstruct", "share", "to_bytes"]

Pair = tuple[Words, Words]
SERVERS = 3


def share(values: ArrayLike, ring: type[np.unsignedinteger[Any]] = np.uint32) -> list[Pair]:
    """Split integers into the pairs of servers 0, 1 and 2, with bits of the operating system.

    Examples
    --------
    >>> pairs = share([5, -7])
    >>> reconstruct(pairs)
    array([ 5, -7])
    """
    words = as_words(values, np.dtype(ring))
    bits = 8 * words.dtype.itemsize
    first, second = (entropy.words(words.size, bits).reshape(words.shape) for _ in range(2))
    parts = [first, second, words - first - second]
    return [(parts[i], parts[(i + 1) % SERVERS]) for i in range(SERVERS)]


def reconstruct(pairs: Sequence[Pair]) -> NDArray[np.int64]:
    """Join the pairs of servers 0, 1 and 2, after checking that servers with the same part agree on it.

    Raises
    ------
    VeilwoodError
        If two servers hold different numbers for the same part.
    """
    for i in range(SERVERS):
        if not np.array_equal(pairs[i][1], pairs[(i + 1) % SERVERS][0]):
            raise UnreadableError(
                f"servers {i} and {(i + 1) % SERVERS} disagree about a part they both hold. "
                "Hint: one of them sent something else than it computed; do not use the result."
            )
    return arithmetic.signed(pairs[0][0] + pairs[1][0] + pairs[2][0])


def to_bytes(pair: Pair) -> bytes:
    """Return a pair as raw little-endian words, first part first."""
    return b"".join(np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("<")).tobytes() for part in pair)


def from_bytes(
    data: bytes | memoryview, shape: tuple[int, ...], ring: type[np.unsignedinteger[Any]] = np.uint32
) -> Pair:
    """Return the pair that `to_bytes` wrote, of arrays of a shape agreed before.

    Examples
    --------
    >>> pair = share([[1, 2, 3]])[0]
    >>> again = from_bytes(to_bytes(pair), (1, 3))
    >>> all(np.array_equal(*parts) for parts in zip(pair, again))
    True
    """
    word = np.dtype(ring).newbyteorder("<")
    expected = 2 * int(np.prod(shape)) * word.itemsize
    if len(data) != expected:
        raise UnreadableError(
            f"{len(data)} bytes are not a pair of shape {shape}, which takes {expected}. "
            "Hint: both sides must agree on shape and word type."
        )
    first, second = np.frombuffer(data, dtype=word).astype(ring, copy=False).reshape(2, *shape)
    return first, second
