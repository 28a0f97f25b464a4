# SPDX-License-Identifier: Apache-2.0
"""A server that lies: changes one of its messages, or one of its own numbers, in a run of three servers.

All runs of a program use the same pairwise keys, so an honest run gives the right result. `protocol_program` is a
whole protocol on a small table: rows are checked, a model is trained and, if it stays hidden, queries are answered.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from veilwood.arrays import Ints
from veilwood.errors import VeilwoodError
from veilwood_secure.mpc import replicated
from veilwood_secure.mpc.checked import CheckedEngine
from veilwood_secure.mpc.replicated import Buffer, Links, ReplicatedEngine, ThreadLinks, run_in_threads
from veilwood_secure.mpc.shares import share
from veilwood_secure.roles.config import Task
from veilwood_secure.roles.hidden_programs import HiddenForest
from veilwood_secure.roles.program import program_for_task
from veilwood_testing.secure_roles import TASK, X, Y

KEYS = [bytes([party]) * 32 for party in range(3)]
CHANGES = ("flip", "random", "zeros", "replay", "truncate", "drop", "own number")

PLACES: Final = {"north": slice(0, None, 80), "south": slice(40, None, 80)}
"""Rows of each owner: few, so that thousands of runs are quick."""

SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "hidden-tree": {"max_depth": 2},
    "binary-tree": {"max_depth": 2},
    "private-votes": {"max_depth": 1, "n_trees": 1, "query_epsilon": "1"},
    "cdp-id3": {"max_depth": 1},
    "extra-trees": {"max_depth": 1, "n_trees": 1},
    "public-forest": {
        "estimator": "RandomTreesClassifier",
        "parameters": {"random_state": 0, "n_estimators": 2, "max_depth": 1},
    },
    "forest-on-shares": {},
}
"""Small settings of every protocol."""

HANG_S: Final = 60.0  # more than six times the wait for a message that does not come

Program = Callable[[ReplicatedEngine], Any]
MakeEngine = Callable[[Links, tuple[bytes, bytes]], ReplicatedEngine]


@dataclass
class Lie:
    """One deviation: which server, at which of its messages, and how."""

    party: int
    at: int
    change: str
    seed: int = 0
    happened: bool = False
    _sent: int = 0
    _older: list[bytes] = field(default_factory=list)

    def apply(self, data: bytes) -> bytes | None:
        """Return what is sent instead of a message; None for nothing."""
        number, self._sent = self._sent, self._sent + 1
        if self.change == "replay":
            self._older.append(data)
        if number != self.at or self.change == "own number" or not data:
            return data
        changed = self._change(data)
        self.happened = changed != data
        return changed

    def _change(self, data: bytes) -> bytes | None:
        rng = np.random.default_rng([self.seed, self.at])
        if self.change == "flip":
            at = int(rng.integers(8 * len(data)))
            return data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :]
        if self.change == "random":
            return rng.bytes(len(data))
        if self.change == "zeros":
            return bytes(len(data))
        if self.change == "replay":
            return next((one for one in reversed(self._older[:-1]) if len(one) == len(data) and one != data), data)
        return data[:-1] if self.change == "truncate" else None


class LyingLinks(ThreadLinks):
    """Links of the server that lies."""

    def __init__(self, links: Links, lie: Lie) -> None:
        self.party, self._links, self._lie = links.party, links, lie

    def send(self, to: int, data: Buffer) -> None:
        changed = self._lie.apply(bytes(data))
        if changed is not None:
            self._links.send(to, changed)

    def receive(self, sender: int) -> Buffer:
        return self._links.receive(sender)


def change_own_numbers(engine: ReplicatedEngine, lie: Lie) -> None:
    """Have a server add to one of its numbers before it uses and sends it."""
    send, rng = engine._send_array, np.random.default_rng([lie.seed, lie.at])
    sent = [0]

    def send_changed(to: int, words: Any) -> None:
        number, sent[0] = sent[0], sent[0] + 1
        if number == lie.at and words.size and words.flags.writeable and words.flags.c_contiguous:
            at = int(rng.integers(words.size))
            words.reshape(-1)[at : at + 1] += words.dtype.type(rng.integers(1, 255))
            lie.happened = True
        send(to, words)

    engine._send_array = send_changed  # type: ignore[method-assign]


def run(program: Program, make_engine: MakeEngine, lie: Lie | None = None) -> list[Any]:
    """Run a program at three servers, one of which may lie. Return the results of the honest ones, or their errors."""

    def serve(links: Links) -> Any:
        is_liar = lie is not None and links.party == lie.party
        own: Any = LyingLinks(links, lie) if is_liar and lie is not None else links
        engine = make_engine(own, (KEYS[links.party], KEYS[(links.party + 1) % 3]))
        if is_liar and lie is not None and lie.change == "own number":
            change_own_numbers(engine, lie)
        try:
            return program(engine)
        except (VeilwoodError, ValueError, IndexError) as error:
            if isinstance(links, ThreadLinks):
                links.close()  # as a server closes its session
            return error

    return run_in_threads(serve)


def count_messages(program: Program, make_engine: MakeEngine) -> list[int]:
    """Return the number of messages that each server sends in an honest run."""
    counts, lock = Counter[int](), threading.Lock()

    class Counting(LyingLinks):
        def __init__(self, links: Links) -> None:
            self.party, self._links = links.party, links

        def send(self, to: int, data: Buffer) -> None:
            with lock:
                counts[self.party] += 1
            self._links.send(to, data)

    run(program, lambda links, keys: make_engine(Counting(links), keys))
    return [counts[party] for party in range(3)]


def outcome(program: Program, make_engine: MakeEngine, truth: Any, lie: Lie) -> str:
    """Return how a run with a lie ended: unchanged, aborted, harmless, WRONG, or hang if it was very slow."""
    began = time.monotonic()
    found = run(program, make_engine, lie)
    if not lie.happened:
        return "unchanged"
    honest = [result for party, result in enumerate(found) if party != lie.party]
    values = [result for result in honest if not isinstance(result, Exception)]
    if any(not same(value, truth) for value in values):
        return "WRONG"
    if time.monotonic() - began > HANG_S:
        return "hang"
    return "harmless" if len(values) == 2 else "aborted"


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal, with all arrays in them."""
    if isinstance(one, Sequence) and not isinstance(one, str):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(np.array_equal(one, other))


def try_lies(
    program: Program, make_engine: MakeEngine, changes: Sequence[str] = CHANGES, *, every: int = 1, seed: int = 0,
    timeout_s: float = 10.0,
) -> Counter[tuple[str, str]]:  # fmt: skip
    """Lie at every message of each server, or at every n-th, in every way; count the outcomes by change."""
    truth = run(program, make_engine)[0]
    if isinstance(truth, Exception):
        raise truth
    found: Counter[tuple[str, str]] = Counter()
    counts, usual = count_messages(program, make_engine), replicated.THREAD_TIMEOUT_S
    replicated.THREAD_TIMEOUT_S = timeout_s
    try:
        for party, messages in enumerate(counts):
            for change in changes:
                for at in range((party + seed) % every, messages, every):
                    found[change, outcome(program, make_engine, truth, Lie(party, at, change, seed))] += 1
    finally:
        replicated.THREAD_TIMEOUT_S = usual
    return found


def protocol_task(protocol: str, **settings: Any) -> Task:
    """Return a small task of a protocol on checked servers."""
    return replace(TASK, protocol=protocol, settings={**SETTINGS.get(protocol, {}), "servers": "checked", **settings})


def protocol_program(task: Task) -> Program:
    """Return a program that checks rows, trains and answers queries: all that servers open or hand out."""
    program: Any = program_for_task(task)
    rows = {}
    for owner, places in PLACES.items():
        arrays, _ = program.encode_rows(owner, X.iloc[places], Y.iloc[places])
        rows[owner] = {key: share(array, program.ring) for key, array in arrays.items()}
    arrays = program.encode_queries(X.iloc[[3, 300]])[0] if isinstance(program, HiddenForest) else {}
    query = {key: share(array, program.ring) for key, array in arrays.items()}

    def work(engine: Any) -> list[Ints]:
        loaded = {
            owner: {key: engine.load(pairs[engine.party]) for key, pairs in own.items()} for owner, own in rows.items()
        }
        for owner, own in loaded.items():
            program.check_rows(engine, owner, own)
        result = program.train(engine, loaded)
        out = list(result.released.values())
        if query:
            own_query = {key: engine.load(pairs[engine.party]) for key, pairs in query.items()}
            program.check_queries(engine, "analyst", own_query)
            out.append(engine.open(program.answer_queries(engine, result.hidden, own_query)))
        return out

    return work


def make_checked_engine(task: Task) -> MakeEngine:
    """Return what makes the checked engine of a task."""
    counted_bits = program_for_task(task).checked_bits
    return lambda links, keys: CheckedEngine(links, keys, counted_bits=counted_bits)


def deal_zeros(engine: Any, draw: Callable[[int], Ints], shape: tuple[int, ...]) -> Any:
    """Stand in for `ReplicatedEngine.deal_sum`: a server may choose its own draw, so it is no lie."""
    return engine.constant(np.zeros(shape, np.int64))
