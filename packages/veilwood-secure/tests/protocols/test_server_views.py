# SPDX-License-Identifier: Apache-2.0
"""What one server sees of a protocol has the same shape and the same law on neighbouring rows.

Everything that a server holds is kept fixed: its two parts of every input, and its two keys. What it lacks, the third
part and the third key, is drawn anew in each run, and the rows alternate between two neighbours. Then every bit that
reaches it must be a fair coin, independent of the rows and of every other bit. What is opened is what the plan
releases, and digests of checks are known to who compares them: of these the shape alone is compared. What people
outside see is in test_outside.py, and the messages of whole sessions are in test_server_messages.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from veilwood_secure.mpc.engine import Shared, as_ring_array
from veilwood_secure.mpc.replicated import Buffer, KeyStream, Links, ReplicatedEngine, run_in_threads
from veilwood_secure.protocols import hidden_forest
from veilwood_secure.roles.config import Task
from veilwood_secure.roles.hidden_programs import HiddenForest
from veilwood_secure.roles.program import Program, TrainingResult, program_for_task
from veilwood_testing.hidden_trees import PAIR

RUNS = 64
ALARM = 1e-8
WORD = 64  # bits
Inputs = dict[str, dict[str, Any]]

ROWS = [["0", "0"], ["1", "0"], ["0", "1"], ["1", "1"], ["1", "0"], ["0", "1"]]
CLASSES = ["0", "1", "1", "0", "1", "0"]
REPLACED = ([*ROWS[:5], ["1", "1"]], [*CLASSES[:5], "1"])
WITHOUT = (ROWS[:5], CLASSES[:5])
QUESTIONS = ([["0", "1"], ["1", "1"]], [["1", "0"], ["1", "1"]])

TREE = Task("t", PAIR.to_dict(), "4", {"north": None, "south": None}, ("user",), settings={"max_depth": 1})
PUBLIC = {"estimator": "RandomTreesClassifier", "parameters": {"random_state": 0, "n_estimators": 2, "max_depth": 1}}
VOTES = {"max_depth": 1, "n_trees": 2, "query_epsilon": "1"}
TASKS = {
    "hidden tree": TREE,
    "binary tree": replace(TREE, protocol="binary-tree"),
    "hidden forest": replace(TREE, settings={"max_depth": 1, "n_trees": 2}),
    "private votes": replace(TREE, protocol="private-votes", settings=VOTES),
    "public forest, dealt": replace(TREE, protocol="public-forest", settings=PUBLIC | {"noise_protocol": "dealt"}),
    "public forest, sampled": replace(TREE, protocol="public-forest", settings=PUBLIC | {"noise_protocol": "sampled"}),
}


@dataclass
class View:
    """What reached one server: for each message the sender, the kind and the length; and the bits of shares."""

    shape: list[tuple[int, str, int]] = field(default_factory=list)
    shares: list[bytes] = field(default_factory=list)


class Tap:
    """Links that keep what arrives, by kind."""

    def __init__(self, links: Links) -> None:
        self.party, self._links = links.party, links
        self.kind, self.view = "shares", View()

    def send(self, to: int, data: Buffer) -> None:
        self._links.send(to, data)

    def receive(self, sender: int) -> Buffer:
        data = self._links.receive(sender)
        self.view.shape.append((sender, self.kind, len(data)))
        if self.kind == "shares":
            self.view.shares.append(bytes(data))
        return data


class Watched(ReplicatedEngine):
    """An engine that says which messages open something or compare digests; all others are shares."""

    def open(self, x: Shared) -> Any:
        with self._kind("opened"):
            return super().open(x)

    def _all_agree(self, claim: Any, own: Any) -> bool:
        with self._kind("digests"):
            return super()._all_agree(claim, own)

    @contextmanager
    def _kind(self, kind: str) -> Iterator[None]:
        tap: Any = self._links
        tap.kind = kind
        yield
        tap.kind = "shares"


def serve(engine: ReplicatedEngine, program: Program, given: dict[str, Any]) -> None:
    """What a server does with shares, from the contributions of all owners to an answer."""
    loaded = {who: {key: engine.load(pair) for key, pair in arrays.items()} for who, arrays in given.items()}
    query = loaded.pop("user", None)
    for owner, shares in loaded.items():
        program.check_rows(engine, owner, shares)
    trained = program.train(engine, loaded)
    if query is not None and isinstance(program, HiddenForest):
        program.check_queries(engine, "user", query)
        program.answer_queries(engine, trained.hidden, query)


class Server:
    """One server of a task, with all that it holds: in every run it has the same keys and the same parts."""

    def __init__(self, program: Program, party: int) -> None:
        self.program, self.party = program, party
        self._rng = np.random.default_rng(party)
        self._keys = [self._rng.bytes(32) for _ in range(2)]
        self._parts: dict[str, Any] = {}

    def view(self, given: Inputs) -> View:
        """What reaches it in one run, in which the third key is a new one."""
        keys = {(self.party + at) % 3: key for at, key in enumerate([*self._keys, secrets.token_bytes(32)])}
        shared = {
            who: {key: self._shared(f"{who} {key}", array) for key, array in arrays.items()}
            for who, arrays in given.items()
        }

        def run(links: Links) -> View:
            at, tap = links.party, Tap(links)
            engine = Watched(tap, (keys[at], keys[(at + 1) % 3]), self.program.ring)
            serve(engine, self.program, {who: {key: p[at] for key, p in own.items()} for who, own in shared.items()})
            return tap.view

        return run_in_threads(run)[self.party]

    def _shared(self, name: str, secret: Any) -> list[tuple[Any, Any]]:
        """Share so that this server's two parts are those of every run; the third part makes up the secret."""
        words = as_ring_array(np.asarray(secret), np.dtype(self.program.ring))
        bits = np.iinfo(words.dtype)
        held = self._parts.setdefault(
            name, [self._rng.integers(0, bits.max, words.shape, words.dtype, endpoint=True) for _ in range(2)]
        )
        if held[0].shape != words.shape:  # of a table of another length: it has other parts anyway
            held = [np.resize(part, words.shape) for part in held]
        parts = {self.party: held[0], (self.party + 1) % 3: held[1], (self.party + 2) % 3: words - held[0] - held[1]}
        return [(parts[at], parts[(at + 1) % 3]) for at in range(3)]


def encoded(program: Program, north: Any, questions: Any, pad_to: int | None) -> Inputs:
    """The arrays that both owners and a user share."""
    tables = {"north": north, "south": (ROWS[:3], CLASSES[:3])}
    given = {owner: program.encode_rows(owner, X, y, pad_to)[0] for owner, (X, y) in tables.items()}
    return given | ({"user": program.encode_queries(questions)[0]} if isinstance(program, HiddenForest) else {})


def seen(task: Task, party: int, runs: int = RUNS, other: Any = WITHOUT, pad_to: int | None = 6) -> list[View]:
    """The views of one server; the rows are those of one neighbour in even runs, of the other in odd ones."""
    program = program_for_task(task)
    neighbours = (ROWS, CLASSES), other
    given = [encoded(program, *each, pad_to) for each in zip(neighbours, QUESTIONS, strict=True)]
    server = Server(program, party)
    return [server.view(given[run % 2]) for run in range(runs)]


def find_differences(views: list[View]) -> list[str]:
    """What in these views depends on the rows, or is not uniform."""
    if any(view.shape != views[0].shape for view in views):
        return ["the shape of messages"]
    bits = np.unpackbits(np.array([np.frombuffer(b"".join(view.shares), np.uint8) for view in views]), axis=1)
    runs, n = bits.shape
    found = []
    which = (np.arange(runs) % 2).astype(np.uint8)
    # Each bit is a column of as many coins as there were runs; no two columns are the same or opposite, none is
    # constant, and none is the choice of the rows: by chance once in 2^63 / n^2.
    columns = np.concatenate([bits, np.zeros((runs, 1), np.uint8), which[:, None]], axis=1)
    alike = np.packbits(columns ^ columns[:1], axis=0).T.copy()
    if len(np.unique(alike.view([("", alike.dtype)] * alike.shape[1]))) < n + 2:
        found.append("bits that are constant, repeat, or follow the rows")
    # Biased coins, and coins that fall otherwise for one of the neighbours.
    for name, signs in (("biased bits", np.ones(runs)), ("bits that lean with the rows", 1.0 - 2.0 * which)):
        squares = (signs @ (2.0 * bits - 1.0)) ** 2 / runs
        by_place = [squares[place::WORD] for place in range(WORD)]  # a bit of each word by itself: leaks are in some
        if WORD * min(stats.chi2.sf(float(some.sum()), some.size) for some in by_place) < ALARM:
            found.append(name)
    return found


@pytest.fixture(autouse=True)
def _same_trees_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are given to trees by a public key that is drawn anew in each run; here they take turns."""
    monkeypatch.setattr(
        hidden_forest,
        "assign_rows_to_trees",
        lambda engine, n_rows, n_trees: np.arange(n_rows, dtype=np.int64) % n_trees,
    )


FAST = ("hidden tree", "public forest, dealt")


@pytest.mark.parametrize("party", range(3))
@pytest.mark.parametrize("task", [pytest.param(t, marks=() if t in FAST else pytest.mark.slow) for t in TASKS])
def test_what_a_server_sees_is_uniform_whatever_the_rows(task: str, party: int) -> None:
    views = seen(TASKS[task], party)
    assert {"shares", "digests"} <= {kind for _, kind, _ in views[0].shape}
    assert find_differences(views) == []


@pytest.mark.slow
@pytest.mark.parametrize("party", range(3))
@pytest.mark.parametrize("task", TASKS)
def test_many_runs_on_a_replaced_row(task: str, party: int) -> None:
    assert find_differences(seen(TASKS[task], party, runs=4 * RUNS, other=REPLACED, pad_to=None)) == []


def test_a_server_learns_what_is_opened_and_no_more() -> None:
    """Hidden trees open nothing; a public forest opens each number of its plan once, and nothing before the noise."""
    for name, task in TASKS.items():
        # Server 2 sends the part that server 0 lacks, server 1 its digest.
        opened = [length for sender, kind, length in seen(task, 0, runs=1)[0].shape if (sender, kind) == (2, "opened")]
        plan = program_for_task(task).plan
        released = [8 * int(np.prod(step.shape)) for step in plan.steps] if task.protocol == "public-forest" else []
        assert opened == released, name


# -- planted leaks ---------------------------------------------------------------------------------------------------


def no_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are sent in clear."""
    monkeypatch.setattr(KeyStream, "next_integers", lambda self, shape, dtype: np.zeros(shape, dtype))


def constant_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks are the same in every run."""
    begin = KeyStream.__init__
    monkeypatch.setattr(KeyStream, "__init__", lambda self, key: begin(self, bytes(32)))


def masks_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message is masked by the beginning of the stream."""
    begin = KeyStream.__init__

    def remember(self: Any, key: bytes) -> None:
        self.key = key
        begin(self, key)

    words = KeyStream.next_integers

    def again(self: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        begin(self, self.key)
        return words(self, shape, dtype)

    monkeypatch.setattr(KeyStream, "__init__", remember)
    monkeypatch.setattr(KeyStream, "next_integers", again)


def loaded_coins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest bit of a mask is 1 more often than 0: 5 times in 8."""
    words = KeyStream.next_integers

    def loaded(self: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        first, second = words(self, shape, dtype), words(self, shape, dtype)
        return first | (second >> np.array(1, dtype) & second >> np.array(2, dtype) & np.array(1, dtype))

    monkeypatch.setattr(KeyStream, "next_integers", loaded)


def one_part_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they train, servers send each other a part that the receiver lacks."""
    load = ReplicatedEngine.load

    def tell(self: Any, parts: Any) -> Shared:
        self._send_array(self._next, parts[0])
        self._receive_array(self._previous, parts[0].shape, parts[0].dtype)
        return load(self, parts)

    monkeypatch.setattr(ReplicatedEngine, "load", tell)


LEAKS = [no_masks, constant_masks, masks_used_twice, loaded_coins, one_part_too_many]


@pytest.mark.parametrize("leak", LEAKS)
def test_planted_leaks_are_caught(leak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While rows are checked: the first part of every training of hidden trees."""
    monkeypatch.setattr(HiddenForest, "train", lambda self, engine, rows, present=None: TrainingResult())
    monkeypatch.setattr(HiddenForest, "answer_queries", lambda self, engine, model, query: None)
    assert find_differences(seen(TREE, 1)) == []
    leak(monkeypatch)
    assert find_differences(seen(TREE, 1)) not in ([], ["the shape of messages"])


# A public forest with dealt noise sends one masked message, so no mask is used twice, and what it masks is a draw of
# noise, whose lowest bit is a coin anyway.
HARMLESS = [("public forest, dealt", masks_used_twice), ("public forest, dealt", loaded_coins)]
EVERYWHERE = [pytest.param(task, leak) for task in TASKS for leak in LEAKS if (task, leak) not in HARMLESS]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "leak"), EVERYWHERE)
def test_planted_leaks_are_caught_in_every_protocol(task: str, leak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    leak(monkeypatch)
    assert any(find_differences(seen(TASKS[task], party)) for party in range(3))


def test_rows_without_padding_are_caught() -> None:
    assert find_differences(seen(TREE, 2, runs=2, pad_to=None)) == ["the shape of messages"]
