# SPDX-License-Identifier: Apache-2.0
"""Source of secret random bits (the operating system, or a seeded stream in tests), and samplers that use few bits.

Probability distributions are in ``samplers``. Public randomness (structure of forests) does not come from here.
"""

from __future__ import annotations

import os
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from veilwood.arrays import Bools, Floats, Ints, NDArray
from veilwood.errors import MechanismError, PrivacyWarning, SetupError

DIGIT_BITS = 16

# Lower and upper ends of the enclosures of each cumulative probability, in units of 2**-(bits + GUARD_BITS).
# If the distribution is unbounded, the last enclosure extends to 1 and represents all later probabilities.
Enclosures = tuple[list[int], list[int]]

GUARD_BITS = 64  # bits of precision beyond the revealed bits, so that an enclosure is rarely wider than one word
FLOAT_ERROR = 2.0**-36  # of a cumulative probability: at least 4 times the true error (proofs/discrete-laplace.md)
MIN_GUIDED_DRAWS = 1 << 14  # from this many draws on, a table of the outcomes of all digits saves time


@dataclass(frozen=True)
class _TestStream:
    """Repeatable stream of bits for tests. Noise drawn from it is not private."""

    generator: np.random.Generator
    digit_bits: int


_test_stream: ContextVar[_TestStream | None] = ContextVar("veilwood_test_stream", default=None)


def random_integers(n: int, bits: int = 64) -> NDArray[np.unsignedinteger[Any]]:
    """Return `n` independent uniform integers below ``2**bits``, as the smallest unsigned type that holds them.

    Every call reads fresh bytes. Nothing is stored between calls, so forked processes never share bits.

    Examples
    --------
    >>> from veilwood.privacy.entropy import random_integers
    >>> random_integers(3).dtype, random_integers(3, bits=16).dtype
    (dtype('uint64'), dtype('uint16'))
    """
    if not 1 <= bits <= 64:
        raise MechanismError(f"bits must be from 1 to 64, got {bits}. Hint: draw several integers for more bits.")
    size = next(size for size in (1, 2, 4, 8) if 8 * size >= bits)
    drawn: NDArray[np.unsignedinteger[Any]] = np.frombuffer(_random_bytes(n * size), dtype=f"u{size}")
    surplus = 8 * size - bits
    return np.right_shift(drawn, drawn.dtype.type(surplus)) if surplus else drawn


def draw_below(n: int) -> int:
    """Draw an integer below ``n``, of any size.

    >>> draw_below(1)
    0
    """
    if n < 1:
        raise MechanismError(f"n must be at least 1, got {n}. Hint: pass the number of outcomes.")
    bits = (n - 1).bit_length()
    while True:
        words = random_integers(-(-bits // 64)) if bits else ()
        drawn = 0
        for word in words:
            drawn = drawn << 64 | int(word)
        drawn >>= -bits % 64
        if drawn < n:
            return drawn


def require_entropy() -> bool:
    """Return True if random bits are seeded. Raise SetupError if there is no source of random bits.

    Called before any budget is spent.
    """
    seeded = is_seeded()
    if not seeded:  # reading a byte would shift a test stream
        _random_bytes(1)
    return seeded


def secret_key() -> bytes:
    """Return a fresh 32-byte key, for example for the assignment of rows to trees."""
    return _random_bytes(32)


def digit_bits() -> int:
    """Return the number of bits that a sampler reveals first: 16, unless a test context sets another."""
    stream = _test_stream.get()
    return DIGIT_BITS if stream is None else stream.digit_bits


def is_seeded() -> bool:
    """Return True if the bits are a repeatable test stream, so that nothing drawn now is private."""
    return _test_stream.get() is not None


@contextmanager
def seeded_for_tests(seed: int, digit_bits: int = DIGIT_BITS) -> Iterator[None]:
    """Replace the operating system's bits with a repeatable stream. For tests only: results are not private.

    The stream belongs to the current context: threads started inside draw from the operating system, unless
    Python hands them the context.

    Parameters
    ----------
    seed
        Key of the stream.
    digit_bits
        Number of bits that a sampler reveals at a time, from 1 to 16. Small values make undecided draws common, so
        that tests reach the code that resolves such draws.

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
    ...         first = entropy.random_integers(2)
    ...     with entropy.seeded_for_tests(7):
    ...         again = entropy.random_integers(2)
    >>> bool((first == again).all()), entropy.is_seeded()
    (True, False)
    """
    if not 1 <= digit_bits <= DIGIT_BITS:
        raise MechanismError(f"digit_bits must be from 1 to {DIGIT_BITS}, got {digit_bits}. Hint: pass 6, for example.")
    # Three frames up: past this generator and contextlib's __enter__, to the line that says `with`.
    warnings.warn("noise is seeded: results made in this context are NOT PRIVATE", PrivacyWarning, stacklevel=3)
    generator = np.random.Generator(np.random.Philox(key=seed))
    token = _test_stream.set(_TestStream(generator, digit_bits))
    try:
        yield
    finally:
        _test_stream.reset(token)


def _random_bytes(count: int) -> bytes:
    """Return `count` fresh random bytes."""
    stream = _test_stream.get()
    if stream is not None:
        return stream.generator.bytes(count)
    try:
        return os.urandom(count)
    except (OSError, NotImplementedError) as error:
        raise SetupError(
            f"the operating system provides no random bits ({error}), and without them nothing is private. "
            "Hint: try again later, or use another machine."
        ) from None


class LazyTable:
    """Inverse table: draws the number of cumulative probabilities that are at most a uniform U, from few bits of U.

    The first digit of U (16 bits outside tests) is compared with cumulative probabilities in floating point, whose
    error is below ``FLOAT_ERROR``. If the outcome is still undecided, three more digits are compared, and finally
    Python integers of any length. Floating point never decides an outcome within its error of a cumulative probability.

    Parameters
    ----------
    cumulative : ndarray
        Approximate cumulative probabilities, ascending, at least up to ``1 - FLOAT_ERROR``.
    enclose : callable
        Function that returns exact enclosures for a number of revealed bits.
    digit_bits : int
        Size of the first digit.
    """

    def __init__(self, cumulative: Floats, enclose: Callable[[int], Enclosures], digit_bits: int) -> None:
        self._cumulative, self._enclose = cumulative, enclose
        self._digit_bits = digit_bits
        self._word_bits = 4 * digit_bits
        self._ambiguous: dict[int, tuple[list[int], list[int]]] = {}

    def draw(self, n: int) -> Ints:
        """Return `n` independent outcomes."""
        digit = random_integers(n, self._digit_bits)
        if n > MIN_GUIDED_DRAWS:
            outcomes, are_open = self._guide_outcomes
            outcome: Ints = outcomes[digit]
            is_open = are_open[digit]
        else:
            outcome, is_open = self._rank_prefixes(digit, self._digit_bits)
        open_at = np.flatnonzero(is_open)
        if open_at.size:
            outcome[open_at] = self._draw_word(digit[open_at].astype(np.uint64))
        return outcome

    @cached_property
    def _guide_outcomes(self) -> tuple[Ints, Bools]:
        """Outcome of each possible first digit, and whether the digit leaves the outcome undecided."""
        return self._rank_prefixes(np.arange(1 << self._digit_bits, dtype=np.uint64), self._digit_bits)

    def _rank_prefixes(self, prefix: NDArray[np.unsignedinteger[Any]], bits: int) -> tuple[Ints, Bools]:
        """Return the outcome of uniforms that begin with ``prefix``, and a mask of those still undecided."""
        unit = 2.0**-bits
        uniform = prefix * unit
        below = np.searchsorted(self._cumulative, uniform - FLOAT_ERROR, side="right")
        up_to = np.searchsorted(self._cumulative, uniform + (unit + FLOAT_ERROR), side="right")
        return below.astype(np.int64), below != up_to

    def _draw_word(self, digit: NDArray[np.uint64]) -> Ints:
        """Return the outcomes of uniforms that begin with `digit`."""
        rest_bits = self._word_bits - self._digit_bits
        word = (digit << np.uint64(rest_bits)) | random_integers(digit.size, rest_bits)
        outcome, is_open = self._rank_prefixes(word, self._word_bits)
        for at in np.flatnonzero(is_open):
            outcome[at] = self._resolve_outcome(int(word[at]))
        return outcome

    def _resolve_outcome(self, prefix: int) -> int:
        """Return the outcome of one uniform that begins with `prefix`, with as many bits as needed to decide it."""
        bits = self._word_bits
        while True:
            first, last = self._ambiguous_words(bits)
            rank = bisect_right(first, prefix)
            if rank == 0 or prefix > last[rank - 1]:
                return rank
            prefix = prefix << self._word_bits | int(random_integers(1, self._word_bits)[0])
            bits += self._word_bits

    def _ambiguous_words(self, bits: int) -> tuple[list[int], list[int]]:
        """Return the first and last `bits`-bit prefix that leaves each threshold undecided."""
        if bits not in self._ambiguous:
            low, high = self._enclose(bits)
            # [u, u+1) lies below F if u + 1 <= low, and not below it if u >= high: in between, u is undecided.
            first = [end >> GUARD_BITS for end in low]
            last = [(end - 1) >> GUARD_BITS for end in high]
            self._ambiguous[bits] = first, last
        return self._ambiguous[bits]
