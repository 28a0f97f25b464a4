# SPDX-License-Identifier: Apache-2.0
"""What each of three servers sees of replicated shares."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("cryptography")
from veilwood_secure.mpc.engine import Engine, Shared
from veilwood_secure.mpc.replicated import (
    Buffer,
    KeyStream,
    Links,
    ReplicatedEngine,
    ThreadLinks,
    agree_keys,
    run_in_threads,
)
from veilwood_secure.mpc.shares import share
from veilwood_testing.mpc_engines import N_DRAWS, Program, at_three, random_integers


class Listening(ThreadLinks):
    """Links that keep what arrives."""

    def __init__(self, links: Links) -> None:
        self.party, self._links = links.party, links
        self.heard: list[Any] = []

    def send(self, to: int, data: Buffer) -> None:
        self._links.send(to, data)

    def receive(self, sender: int) -> Buffer:
        data = self._links.receive(sender)
        self.heard.append(bytes(data))
        return data


ALARM = 1e-8  # keys are fresh in every run; without masks the p-value is 0 to all digits


def views(secret: int, program: Program) -> list[list[np.ndarray]]:
    """For each server all words it has: its pair, the streams it draws, and what it hears; COUNT of each.

    The program gets the engine, COUNT shares of the secret, and the secret itself for a server that deals it.
    """
    pairs = share(np.full(N_DRAWS, secret))

    def serve(links: Links) -> list[np.ndarray]:
        listening = Listening(links)
        keys = agree_keys(links)
        engine = ReplicatedEngine(listening, keys)
        program(engine, engine.load(pairs[links.party]), secret)
        words = [*pairs[links.party], *(KeyStream(key).next_integers((N_DRAWS,), np.dtype(np.uint32)) for key in keys)]
        return words + [part for heard in listening.heard for part in words_of(heard)]

    return run_in_threads(serve)


def words_of(message: bytes) -> np.ndarray:
    """The words of a message, N_DRAWS in a row. Short ones are written so that the highest bits are theirs too."""
    size = next(size for size in (4, 2, 1) if len(message) % (size * N_DRAWS) == 0)
    words = np.frombuffer(message, f"u{size}").reshape(-1, N_DRAWS).astype(np.uint32)
    return words if size == 4 else words | words >> np.uint32(8 * size - 2) << np.uint32(30)


SEEN: dict[str, Program] = {
    "product": lambda engine, x, secret: engine.mul(x, x),
    "comparison": lambda engine, x, secret: engine.is_negative(x),
    "refresh": lambda engine, x, secret: engine.refresh(x),
    "dot": lambda engine, x, secret: engine.dot(x.reshape(1, N_DRAWS), x.reshape(1, N_DRAWS), axis=0),
}


def distinguished(program: Program, servers: tuple[int, ...] = (0, 1, 2)) -> float:
    """How surely the sight of any three words tells the secret 5 from the secret -70000: the least p-value, corrected.

    Three words are looked at together, through two bits of each: the lowest, then the highest.
    """
    p_values = []
    one, other = views(5, program), views(-70000, program)
    for ours, expected in [(one[server], other[server]) for server in servers]:
        assert [len(word) for word in ours] == [len(word) for word in expected]
        for shift in (0, 30):
            bits = [[word >> np.uint32(shift) & np.uint32(3) for word in words] for words in (ours, expected)]
            for i, j, k in combinations(range(len(ours)), 3):
                cells = np.array([np.bincount(16 * b[i] + 4 * b[j] + b[k], minlength=64) for b in bits])
                p_values.append(_same_law(cells[:, cells.sum(axis=0) > 0]))
    return min(p_values) * len(p_values)


def _same_law(cells: np.ndarray) -> float:
    """p-value of the chi-square test that two rows of counts have one law."""
    expected = cells.sum(axis=0) / 2
    return float(stats.chi2.sf(((cells - expected) ** 2 / expected).sum(), max(cells.shape[1] - 1, 1)))


@pytest.mark.parametrize("name", SEEN)
def test_no_server_can_tell_two_secrets_apart(name: str) -> None:
    assert distinguished(SEEN[name]) > ALARM


@pytest.mark.parametrize("name", ["product", "comparison", "dot"])
def test_a_server_that_does_not_mask_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyStream, "next_integers", lambda self, shape, dtype: np.zeros(shape, dtype))
    assert distinguished(SEEN[name]) < ALARM


@pytest.mark.parametrize("dealer", [0, 1, 2])
def test_what_one_server_deals_the_others_cannot_tell(dealer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(engine: Engine, x: Shared, secret: int) -> None:
        engine.deal_sum(lambda server: np.full(N_DRAWS, secret if server == dealer else 0), (N_DRAWS,))

    others = ((dealer + 1) % 3, (dealer + 2) % 3)
    assert distinguished(program, others) > ALARM
    monkeypatch.setattr(KeyStream, "next_integers", lambda self, shape, dtype: np.zeros(shape, dtype))
    assert distinguished(program, others) < ALARM


def test_messages_have_the_same_lengths_whatever_the_secrets() -> None:
    def lengths(values: np.ndarray) -> list[list[int]]:
        pairs = share(values)

        def serve(links: Links) -> list[int]:
            listening = Listening(links)
            engine = ReplicatedEngine(listening)
            x = engine.load(pairs[links.party])
            engine.mul(engine.is_negative(x), x)
            return [len(data) for data in listening.heard]

        return run_in_threads(serve)

    assert lengths(np.zeros(50, dtype=int)) == lengths(random_integers(50))


@pytest.mark.parametrize("server", [0, 1, 2])
@pytest.mark.parametrize("part", [0, 1])
def test_servers_notice_an_owner_whose_shares_disagree(server: int, part: int) -> None:
    pairs = [list(pair) for pair in share(np.arange(6))]
    pairs[server][part] = pairs[server][part] + np.array([0, 0, 1, 0, 0, 0], dtype=np.uint32)

    def program(links: Links) -> bool:
        engine = ReplicatedEngine(links)
        return engine.is_consistent(engine.load(pairs[engine.party]))

    assert run_in_threads(program) == [False, False, False]
    assert at_three(lambda engine, x: engine.is_consistent(x), np.arange(6)) == [True, True, True]
