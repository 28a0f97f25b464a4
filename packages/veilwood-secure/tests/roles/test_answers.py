# SPDX-License-Identifier: Apache-2.0
"""Questions that are no rows: they would read the hidden tree out, and are refused before the tree is touched.

Questions that are rows, and who may ask, are in test_secure_roles.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from veilwood.arrays import Ints
from veilwood.errors import PartyError
from veilwood_secure.mpc.shares import SharePair, pair_from_bytes, pair_to_bytes, reconstruct, share
from veilwood_secure.protocols.records import Domain
from veilwood_secure.roles.hidden_programs import HiddenForest
from veilwood_secure.roles.owner import ServerConnections
from veilwood_testing.mpc_engines import PlainEngine
from veilwood_testing.secure_roles import SCHEMA, TASK, Place, X, place

Ask = Callable[[Ints], Ints]
Spoil = Callable[[int, SharePair], SharePair]

DOMAIN = Domain.from_schema(SCHEMA)
BATCH = 5


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("asked")) as made:
        made.train()
        yield made


def good_questions(rows: int = BATCH) -> Ints:
    return HiddenForest(TASK).encode_queries(X[:rows])[0]["features"].astype(np.int64)


def request(here: Place, features: Ints, spoil: Spoil | None = None) -> Ints:
    """Ask three servers anything; ``spoil`` changes what one of them gets. Return the words that come back."""
    rows = features.shape[-1]
    with ServerConnections(here.config("user-analyst"), TASK, "ask") as call:
        call.receive_fields("statement")
        call.start()
        call.send_fields(rows=rows)
        call.receive_fields("send")
        pairs = share(features)
        for party, channel in enumerate(call.channels):
            channel.send(pair_to_bytes(spoil(party, pairs[party]) if spoil else pairs[party]))
        return reconstruct([pair_from_bytes(bytes(data), (rows,)) for data in call.receive_all()])


# -- reading a tree out ----------------------------------------------------------------------------------------


def read_out(ask: Ask) -> tuple[int, dict[int, int], dict[tuple[int, int], int]]:
    """Read a tree of depth 2 with questions of two lit values: they are answered by 0 unless a path has both.

    Returns the feature of the root, the feature below each of its values, and the class of each leaf that is not
    the first one.
    """
    pairs = list(combinations(range(DOMAIN.n_features), 2))
    lit = [((f, a), (g, b)) for f, g in pairs for a, b in product(range(DOMAIN.width), repeat=2)]
    questions = np.zeros((DOMAIN.n_features, DOMAIN.width, len(lit)), np.int64)
    for number, places in enumerate(lit):
        for feature, value in places:
            questions[feature, value, number] = 1
    answers = ask(questions)
    found = {places: int(answer) for places, answer in zip(lit, answers, strict=True) if answer}
    (root,) = set.intersection(*({feature for feature, _ in places} for places in found))
    below, leaves = {}, {}
    for places, answer in found.items():
        (_, first), (feature, second) = sorted(places, key=lambda place: place[0] != root)
        below[first], leaves[first, second] = feature, answer
    return root, below, leaves


def test_the_attack_reads_a_tree_that_answers_anything() -> None:
    """The power of the attack, on the circuit without the check."""
    rng, m, w = np.random.default_rng(0), DOMAIN.n_features, DOMAIN.width
    engine, program = PlainEngine(), HiddenForest(TASK)
    splits = np.array([0, 3, 1, 0, 3])
    leaves = rng.integers(0, DOMAIN.n_classes, w * w)
    model = {
        "0.0": engine.constant(np.eye(m, dtype=np.int64)[:, [2]]),
        "0.1": engine.constant(np.eye(m, dtype=np.int64)[:, splits]),
        "0.leaves": engine.constant(np.eye(DOMAIN.n_classes, dtype=np.int64)[:, leaves]),
    }

    def ask(questions: Ints) -> Ints:
        return engine.open(program.answer_queries(engine, model, {"features": engine.constant(questions)}))

    root, below, found = read_out(ask)
    assert root == 2
    assert below == dict(enumerate(splits))
    assert found == {divmod(place, w): label for place, label in enumerate(leaves) if label}


def test_three_servers_do_not_let_a_tree_be_read(trained: Place) -> None:
    with pytest.raises(PartyError, match="queries of user analyst do not fit the schema") as caught:
        read_out(lambda questions: request(trained, questions))
    assert caught.value.party is None  # a server could have had the user accused


# -- every kind of badness, one refusal ------------------------------------------------------------------------


def changed(**places: Any) -> Callable[[Ints, int], None]:
    def change(features: Ints, at: int) -> None:
        features[0, :, at] = places["block"]

    return change


def times_1000(features: Ints, at: int) -> None:
    features[:, :, at] *= 1000


def nothing_lit(features: Ints, at: int) -> None:
    features[:, :, at] = 0


def everything_lit(features: Ints, at: int) -> None:
    features[:, :, at] = 1


BAD: dict[str, Callable[[Ints, int], None]] = {
    "two": changed(block=[2, 0, 0, 0, 0]),
    "two and minus one": changed(block=[2, -1, 0, 0, 0]),
    "minus one": changed(block=[-1, 0, 0, 0, 0]),
    "two values": changed(block=[1, 1, 0, 0, 0]),
    "three values that add up to one": changed(block=[1, 1, -1, 0, 0]),
    "no value": changed(block=[0, 0, 0, 0, 0]),
    "half of the ring": changed(block=[1 << 31, 0, 0, 0, 0]),
    "half of the ring twice": changed(block=[1 << 31, (1 << 31) + 1, 0, 0, 0]),
    "a thousandfold question": times_1000,
    "nothing": nothing_lit,
    "everything": everything_lit,
}


def inconsistent(server: int, part: int) -> Spoil:
    def spoil(party: int, pair: SharePair) -> SharePair:
        return (pair[0] + (party == server and part == 0), pair[1] + (party == server and part == 1))

    return spoil


def too_short(party: int, pair: SharePair) -> SharePair:
    return (pair[0][:, 1:], pair[1][:, 1:])


def test_every_bad_question_gets_the_same_refusal_before_the_tree_is_touched(
    trained: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    touched: list[int] = []
    for server in trained.servers:
        program: Any = server._find_task("scale", TASK.fingerprint()).program
        monkeypatch.setattr(
            program,
            "answer_queries",
            lambda *words: touched.append(1) or PlainEngine().constant([0] * BATCH),  # type: ignore[func-returns-value]
        )
    refusals: dict[str, tuple[str, str | None]] = {}

    def refused(what: str, features: Ints, spoil: Spoil | None = None) -> None:
        with pytest.raises(PartyError) as caught:
            request(trained, features, spoil)
        refusals[what] = (str(caught.value), caught.value.party)

    with caplog.at_level(logging.INFO):
        for what, change in BAD.items():
            for at in (0, BATCH // 2, BATCH - 1):  # one bad question among good ones, wherever it stands
                features = good_questions()
                change(features, at)
                refused(f"{what} at {at}", features)
        for server_, part in product(range(3), range(2)):
            refused(f"part {part} of server {server_}", good_questions(), inconsistent(server_, part))
        refused("too short", good_questions(), too_short)
    assert len(set(refusals.values())) == 1, refusals
    assert not touched
    assert caplog.text.count("queries of user analyst") >= len(refusals)  # the operators see it


def test_after_a_refusal_good_questions_are_answered(trained: Place) -> None:
    with pytest.raises(PartyError):
        request(trained, 2 * good_questions())
    assert set(request(trained, good_questions())) <= set(range(DOMAIN.n_classes))
