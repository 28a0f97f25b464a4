# SPDX-License-Identifier: Apache-2.0
"""Checks where random bits come from: fresh on every call, repeatable only in the marked test context.

No law of any noise is tested here: see test_samplers.py and test_mechanisms.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

from veilwood.errors import MechanismError, PrivacyWarning
from veilwood.privacy import entropy
from veilwood_testing.errors import rejects


def buffered_source() -> Callable[[int], bytes]:
    """Return a mutant of os.urandom that keeps bytes between calls, as a buffering source would."""
    kept = os.urandom(4096)
    position = 0

    def read(count: int) -> bytes:
        nonlocal position
        position += count
        return kept[position - count : position]

    return read


def words_of_parent_and_child() -> tuple[bytes, bytes]:
    entropy.random_integers(4)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, entropy.random_integers(4).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    drawn = os.read(reader, 32)
    os.close(reader)
    os.close(writer)
    return entropy.random_integers(4).tobytes(), drawn


@pytest.mark.parametrize(("bits", "dtype"), [(1, "u1"), (6, "u1"), (16, "u2"), (24, "u4"), (48, "u8"), (64, "u8")])
def test_words_fill_exactly_their_range(bits: int, dtype: str) -> None:
    drawn = entropy.random_integers(4096, bits)
    assert drawn.dtype == np.dtype(dtype)
    # All ones and all zeros in every bit position: each bit is missed with probability 2**-4096.
    assert int(np.bitwise_or.reduce(drawn)) == 2**bits - 1
    assert int(np.bitwise_and.reduce(drawn)) == 0


def test_every_call_is_fresh() -> None:
    assert entropy.random_integers(4).tolist() != entropy.random_integers(4).tolist()
    assert entropy.secret_key() != entropy.secret_key()
    assert len(entropy.secret_key()) == 32
    assert entropy.random_integers(0).size == 0


def test_forked_processes_share_no_bits() -> None:
    parent, child = words_of_parent_and_child()
    assert parent != child


def test_fork_test_catches_a_buffered_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", buffered_source())
    parent, child = words_of_parent_and_child()
    assert parent == child


def test_seeded_context_repeats_and_warns() -> None:
    runs = []
    for seed in (5, 5, 6):
        context = entropy.seeded_for_tests(seed)
        with pytest.warns(PrivacyWarning, match="NOT PRIVATE"):
            context.__enter__()
        assert entropy.is_seeded()
        runs.append((entropy.random_integers(3).tolist(), entropy.secret_key()))
        context.__exit__(None, None, None)
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert not entropy.is_seeded()


@pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")
def test_nested_contexts_resume_the_outer_stream() -> None:
    with entropy.seeded_for_tests(1):
        expected = entropy.random_integers(4).tolist()
    with entropy.seeded_for_tests(1):
        first = entropy.random_integers(2).tolist()
        with entropy.seeded_for_tests(2, digit_bits=6):
            assert entropy.digit_bits() == 6
            entropy.random_integers(5)
        assert entropy.digit_bits() == 16
        assert first + entropy.random_integers(2).tolist() == expected


@pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")
def test_context_ends_on_an_exception() -> None:
    def fail() -> None:
        with entropy.seeded_for_tests(1):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not entropy.is_seeded()


@pytest.mark.parametrize("bits", [0, 65])
def test_impossible_word_sizes_are_refused(bits: int) -> None:
    with rejects(MechanismError, raised_in="random_integers"):
        entropy.random_integers(1, bits)


def test_impossible_digits_are_refused() -> None:
    with rejects(MechanismError, raised_in="seeded_for_tests"), entropy.seeded_for_tests(1, digit_bits=17):
        pass
