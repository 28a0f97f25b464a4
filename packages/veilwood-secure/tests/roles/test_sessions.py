# SPDX-License-Identifier: Apache-2.0
"""Sessions of servers: restarts, lost models, failures that end at all three, users that say different things."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from veilwood.errors import PartyError, VeilwoodError
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood_secure.mpc.shares import pair_to_bytes, share
from veilwood_secure.roles.hidden_programs import HiddenForest
from veilwood_secure.roles.owner import ServerConnections
from veilwood_secure.roles.transport import _DATA
from veilwood_testing.secure_roles import TASK, Place, X, Y, place


def test_a_model_survives_a_restart_and_ends_by_retirement(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.train()
        with here.user() as analyst:
            before = analyst.predict(X)
        with pytest.raises(PartyError, match="already trained"):
            here.owner("north").contribute(X, Y)
        here.stop()
        here.start()
        analyst = here.user()
        assert np.array_equal(analyst.predict(X), before)
        here.owner("south").retire()
        with pytest.raises(PartyError, match=r"retired|no model"):
            analyst.predict(X)
        assert not list(tmp_path.glob("server-*/models/*"))
        assert here.owner("north").status()[0]["phase"] == "waiting"
        here.train()  # a new training, charged anew
        assert here.servers[0]._ledger.spent.epsilon == 4


def test_a_model_that_one_server_lost_is_answered_by_none_and_trained_anew(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.train()
        here.stop()
        (tmp_path / "server-1" / "models" / "scale.share").unlink()
        here.start()
        with pytest.raises(PartyError, match="no model 'scale' at server 1"):
            here.user().predict(X[:1])
        here.train()
        with here.user() as analyst:
            assert len(analyst.predict(X[:5])) == 5


def test_a_failing_server_ends_the_training_everywhere(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = here.servers[2]._find_task("scale", TASK.fingerprint()).program
    monkeypatch.setattr(failing, "train", lambda engine, rows, present: 1 / 0)
    with pytest.raises(VeilwoodError, match="was not trained") as caught:
        here.train()
    assert "Hint: contribute again" in str(caught.value)
    here.settle()
    for server in here.servers:
        task_state = server._task_states["scale"]
        assert task_state.model is None
        assert not task_state.complete_uploads
        assert not server._model_store.list_names()
        assert [entry.state for entry in server._ledger.entries()] == ["cancelled"]  # nothing was opened
    assert "server 2" in str(here.servers[0]._task_states["scale"].failure)
    monkeypatch.undo()
    here.train()


def test_a_budget_that_one_server_lacks_stops_all(tmp_path: Path) -> None:
    made = Place(tmp_path)
    SQLiteLedger(tmp_path / "server-1" / "ledger.db", epsilon=1)
    made.start()
    with pytest.raises(VeilwoodError, match="insufficient privacy budget"):
        made.train()
    made.settle()
    made.stop()
    for server in made.servers:
        assert server._ledger.spent.epsilon == 0


def test_a_user_that_tells_servers_different_things_is_refused(trained: Place) -> None:
    with ServerConnections(trained.config("user-analyst"), TASK, "ask") as call:
        call.receive_fields("statement")
        call.start()
        for party, channel in enumerate(call.channels):
            channel.send_fields(rows=3 if party else 4)
        arrays = [HiddenForest(TASK).encode_queries(X[: 3 if party else 4])[0]["features"] for party in range(3)]
        for channel in call.channels:
            channel.receive_fields("send")
        for party, channel in enumerate(call.channels):  # without listening: the first two may refuse it already
            channel._queue_frame(_DATA, pair_to_bytes(share(arrays[party])[party]))
            channel._write_pending()
        for channel in call.channels:
            with pytest.raises(PartyError, match="different facts about rows") as caught:
                channel.receive()
            assert caught.value.party is None  # or a server lied about what it was told


def test_a_user_that_speaks_to_two_servers_only_is_blamed(tmp_path: Path) -> None:
    with place(tmp_path, timeout=4.0) as here:
        here.train()
        patient = replace(here.config("user-analyst"), timeout=60.0)  # so that it is not the first to give up
        with ServerConnections(patient, TASK, "ask") as call:
            call.receive_fields("statement")
            call.start()
            features = HiddenForest(TASK).encode_queries(X[:3])[0]["features"]
            for party, channel in list(enumerate(call.channels))[:2]:
                channel.send_fields(rows=3)
                channel.receive_fields("send")
                channel.send(pair_to_bytes(share(features)[party]))
            with pytest.raises(PartyError, match="user analyst is too slow"):
                call.channels[2].receive()
