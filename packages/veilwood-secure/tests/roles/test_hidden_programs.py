# SPDX-License-Identifier: Apache-2.0
"""Hidden forests and private votes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import veilwood as vw
from veilwood.errors import PartyError, VeilwoodError
from veilwood_secure.protocols.records import encode_table
from veilwood_secure.roles.config import set_up_roles
from veilwood_secure.roles.hidden_programs import HiddenForest, PrivateVotes
from veilwood_secure.roles.owner import ServerConnections
from veilwood_testing.mpc_engines import PlainEngine
from veilwood_testing.secure_roles import ROWS, SCHEMA, TASK, Place, X, Y


def test_columns_are_joined_in_the_order_of_the_schema() -> None:
    names = list(SCHEMA.feature_names)
    task = replace(TASK, owners={"bank": [names[2], names[0]], "clinic": [names[3], names[1], SCHEMA.target.name]})
    program, engine = HiddenForest(task), PlainEngine()
    parts = {
        "bank": program.encode_rows("bank", X[[names[0], names[2]]], None)[0],
        "clinic": program.encode_rows("clinic", X[[names[1], names[3]]], Y)[0],
    }
    shares = {owner: {key: engine.load((array,)) for key, array in part.items()} for owner, part in parts.items()}
    joined = program.join_rows(engine, shares)
    features, classes = encode_table(SCHEMA, X, Y)
    assert np.array_equal(engine.open(joined.features), features)
    assert np.array_equal(engine.open(joined.classes), classes)


def test_padding_hides_the_number_of_rows_and_counts_nowhere(here: Place) -> None:
    program = HiddenForest(TASK)
    plain, rows = program.encode_rows("north", X[:50], Y[:50])
    padded, visible = program.encode_rows("north", X[:50], Y[:50], pad_to=400)
    assert (rows, visible) == (50, 400)
    assert np.array_equal(padded["classes"].sum(axis=1), plain["classes"].sum(axis=1))
    with pytest.raises(VeilwoodError, match="cannot be padded to 49"):
        program.encode_rows("north", X[:50], Y[:50], pad_to=49)
    here.owner("north").contribute(X[:50], Y[:50], pad_to=400)
    assert [server._task_states["scale"].complete_uploads["north"][1] for server in here.servers] == [400] * 3


def test_private_votes_cost_what_they_say(here: Place) -> None:
    settings = {"max_depth": 1, "n_trees": 5, "query_epsilon": "1/2"}
    task = replace(TASK, name="votes", epsilon="10", protocol="private-votes", settings=settings)
    set_up_roles(here.folder, task)
    for owner, rows in ROWS.items():
        here.owner(owner, "votes").contribute(X[rows], Y[rows])
    with here.user("analyst", "votes") as analyst:
        assert analyst.wait(60).epsilon == 10
        assert len(analyst.predict(X[:15])) == 15
        with pytest.raises(PartyError, match="insufficient privacy budget"):
            analyst.predict(X[:6])
        assert len(analyst.predict(X[:5])) == 5
    for server in here.servers:
        (book,) = server.config.folder.glob("answers-votes-*.db")
        entries = [(str(entry.state), float(entry.loss.epsilon or 0)) for entry in vw.open_ledger(book).entries()]
        assert [entry for entry in entries if entry[0] != "cancelled"] == [("committed", 7.5), ("committed", 2.5)]
        assert server._ledger.spent.epsilon == 10  # set aside as a whole when it was trained


def test_private_votes_refuse_questions_that_count_twice(here: Place) -> None:
    task = replace(TASK, name="votes", epsilon="10", protocol="private-votes", settings={"n_trees": 2, "max_depth": 1})
    set_up_roles(here.folder, task)
    for owner, rows in ROWS.items():
        here.owner(owner, "votes").contribute(X[rows], Y[rows])
    here.owner("north", "votes").wait(60)
    features = PrivateVotes(task).encode_queries(X[:3])[0]["features"].astype(np.int64)
    with ServerConnections(here.config("user-analyst"), task, "ask") as call:
        call.receive_fields("statement")
        call.start()
        call.send_fields(rows=3)
        call.send_shares({"features": features * 1000}, np.uint32)
        with pytest.raises(PartyError, match="queries of user analyst do not fit the schema"):
            call.receive_all()
    assert not any(list(server.config.folder.glob("answers-*.db")) for server in here.servers)


def test_the_law_of_private_votes() -> None:
    """The frequency of each class fits the exact law at range 2, and a range of 1 would break the promise."""
    settings = {"max_depth": 1, "n_trees": 1, "query_epsilon": "1"}
    program = PrivateVotes(replace(TASK, epsilon="10", protocol="private-votes", settings=settings))
    domain, engine, request = program.domain, PlainEngine(), 20_000
    splits = np.zeros((domain.n_features, 1), np.int64)
    splits[0] = 1
    leaves = np.zeros((domain.n_classes, domain.width), np.int64)
    leaves[0] = 1  # the one tree votes for the first class; its neighbour for the second
    model = {"0.0": engine.load((splits,)), "0.leaves": engine.load((leaves,))}
    query = {"features": engine.load((np.repeat(program.encode_queries(X[:1])[0]["features"], request, axis=2),))}
    counts = np.bincount(engine.open(program.answer_queries(engine, model, query)), minlength=domain.n_classes)
    scale = 2.0
    q, far = np.exp(-1 / scale), np.arange(200)
    law, below = (1 - q) * q**far, 1 - q ** (far + 1)  # of the noise: P(z), P(at most z)
    # The first class wins ties, so it wins if no other noise exceeds its own by more than its vote.
    first = float(np.sum(law * (1 - q ** (far + 2)) ** (domain.n_classes - 1)))
    assert abs(counts[0] / request - first) < 5 * np.sqrt(first * (1 - first) / request)
    neighbour = float(np.sum(law[1:] * (1 - q ** far[1:]) * below[1:]))  # the vote is for the second class instead
    assert np.log(first / neighbour) <= 1
    sharper = np.exp(-1.0)
    law = (1 - sharper) * sharper**far
    first = float(np.sum(law * (1 - sharper ** (far + 2)) ** 2))
    neighbour = float(np.sum(law[1:] * (1 - sharper ** far[1:]) * (1 - sharper ** (far[1:] + 1))))
    assert np.log(first / neighbour) > 1
