# SPDX-License-Identifier: Apache-2.0
"""Where random bits come from: the operating system, or a marked stream in tests.

No noise is shaped here and public randomness (structure) does not come from here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilwood.errors import MechanismError, PrivacyWarning, SetupError

__all__ = ["check", "digit_bits", "is_seeded", "secret_key", "seeded_for_tests", "words"]

DIGIT_BITS = 16


@dataclass(frozen=True)
class _TestStream:
    """A repeatable stream; what is drawn from it is not private."""

    generator: np.random.Generator
    digit_bits: int


_stream: ContextVar[_TestStream | None] = ContextVar("veilwood_test_stream", default=None)


def words(n: int, bits: int = 64) -> NDArray[np.unsignedinteger[Any]]:
    """Return `n` independent uniform integers below ``2**bits``, as the smallest unsigned type that holds them.

    Every call reads fresh bytes: nothing is kept between calls, so forked processes never share bits.

    Examples
    --------
    >>> from veilwood.privacy.entropy import words
    >>> words(3).dtype, words(3, bits=16).dtype
    (dtype('uint64'), dtype('uint16'))
    """
    if not 1 <= bits <= 64:
        raise MechanismError(f"bits must be from 1 to 64, got {bits}. Hint: join several words for more.")
    size = next(size for size in (1, 2, 4, 8) if 8 * size >= bits)
    drawn: NDArray[np.unsignedinteger[Any]] = np.frombuffer(_bytes(n * size), dtype=f"u{size}")
    surplus = 8 * size - bits
    return np.right_shift(drawn, drawn.dtype.type(surplus)) if surplus else drawn


def check() -> bool:
    """Refuse to go on where no random bits can be had, before anything is spent; return whether they are seeded."""
    seeded = is_seeded()
    if not seeded:  # a test stream must not lose a byte here
        _bytes(1)
    return seeded


def secret_key() -> bytes:
    """Return a fresh 32-byte key, for example for the assignment of records to trees."""
    return _bytes(32)


def digit_bits() -> int:
    """Return how many bits a sampler reveals first: 16, or what the test context says."""
    stream = _stream.get()
    return DIGIT_BITS if stream is None else stream.digit_bits


def is_seeded() -> bool:
    """Return whether the bits are a repeatable test stream, so that nothing drawn now is private."""
    return _stream.get() is not None


@contextmanager
def seeded_for_tests(seed: int, digit_bits: int = DIGIT_BITS) -> Iterator[None]:
    """Replace the operating system's bits by a repeatable stream. For tests only: nothing made inside is private.

    The stream belongs to the current context: threads started inside draw from the operating system, unless
    Python hands them the context.

    Parameters
    ----------
    seed
        Key of the stream.
    digit_bits
        Bits a sampler reveals at a time, from 1 to 16. Small values make undecided draws common, so that
        tests reach the code that resolves them.

    Warns
    -----
    PrivacyWarning
        Always, on entering.

    Examples
    --------
    >>> import warnings
    >>> from veilwood.privacy import entropy
    >>> with warnings.catch_warnings(action="ignore"):
    ...     with entropy.seeded_for_tests(7):
    ...         first = entropy.words(2)
    ...     with entropy.seeded_for_tests(7):
    ...         again = entropy.words(2)
    >>> bool((first == again).all()), entropy.is_seeded()
    (True, False)
    """
    if not 1 <= digit_bits <= DIGIT_BITS:
        raise MechanismError(f"digit_bits must be from 1 to {DIGIT_BITS}, got {digit_bits}. Hint: try 6.")
    # Three frames up: past this generator and contextlib's __enter__, to the line that says `with`.
    warnings.warn("noise is seeded: results made in this context are NOT PRIVATE", PrivacyWarning, stacklevel=3)
    generator = np.random.Generator(np.random.Philox(key=seed))
    token = _stream.set(_TestStream(generator, digit_bits))
    try:
        yield
    finally:
        _stream.reset(token)


def _bytes(count: int) -> bytes:
    """Return `count` fresh random bytes."""
    stream = _stream.get()
    if stream is not None:
        return stream.generator.bytes(count)
    try:
        return os.urandom(count)
    except (OSError, NotImplementedError) as error:
        raise SetupError(
            f"the operating system gives no random bits ({error}), and without them nothing is private. "
            "Hint: try again later, or on another machine."
        ) from None
