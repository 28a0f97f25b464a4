# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of words that wrap around: matrix products through floating point, exact; signs; bytes.

Nothing here knows of shares or servers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["dot", "matmul", "signed"]

Words = NDArray[np.unsignedinteger[Any]]
Floats = NDArray[np.float64]

# A word is written in limbs; the product of two limbs, added over the inner dimension, must stay below 2**53, where
# doubles are exact. 32-bit words: 2 limbs of 16 bits, inner dimension up to 2**21. 64-bit words: 3 limbs of 22 bits,
# inner dimension up to 2**9.
LIMB_BITS = {4: 16, 8: 22}
BLOCK_VALUES = 1 << 17  # doubles made of one operand at a time: a megabyte, which stays near the processor


def matmul(terms: Sequence[tuple[Words, Words]]) -> Words:
    """Return the sum of the matrix products x @ y of all terms, over the last two axes; leading axes broadcast.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[2**31, 3]], dtype=np.uint32)
    >>> matmul([(x, x.T), (x, x.T)])
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
            left = _limbs(x[..., start : start + step], bits, limbs)
            right = _limbs(y[..., start : start + step, :], bits, limbs)
            for place in range(limbs):
                # Digits i + j = place; what lies above the word's width falls away in the shift.
                for i in range(place + 1):
                    digit = np.matmul(left[i], right[place - i]).astype(np.uint64).astype(dtype)
                    total += digit << dtype.type(bits * place)
    return total


def dot(terms: Sequence[tuple[Words, Words]], axis: int) -> Words:
    """Return the sum of the products x * y of all terms, added up along an axis, without storing all products.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1], [2]], dtype=np.uint32)
    >>> dot([(x, np.array([[1, 2], [3, 4]], dtype=np.uint32))], axis=0)
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


def signed(words: Words) -> NDArray[np.int64]:
    """Return words as the integers they stand for in two's complement."""
    return words.view(f"i{words.dtype.itemsize}").astype(np.int64)


def _limbs(words: Words, bits: int, count: int) -> list[Floats]:
    """Return the limbs of words as doubles, lowest first."""
    if (
        words.dtype == np.dtype("<u4") and words.size and sys.byteorder == "little"
    ):  # halves of a word are there to read
        if words.strides[-1] == 4:
            halves = words.view(np.uint16)
            return [halves[..., at::2].astype(np.float64) for at in range(2)]
        if words.strides[-2] == 4:
            return [half.swapaxes(-1, -2) for half in _limbs(words.swapaxes(-1, -2), bits, count)]
    mask = words.dtype.type((1 << bits) - 1)
    return [((words >> words.dtype.type(bits * at)) & mask).astype(np.float64) for at in range(count)]
