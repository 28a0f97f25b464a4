# SPDX-License-Identifier: Apache-2.0
"""Owners that stay while the servers train, over TLS: the model comes out, and what goes wrong is told to all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.errors import PartyError, VeilwoodError
from veilwood.privacy.certificate import Assumption
from veilwood_secure.protocols.joint_forest import ServerChannels
from veilwood_secure.roles.joint_programs import JointForest
from veilwood_secure.roles.server import Server
from veilwood_secure.roles.task_state import TaskState
from veilwood_testing.secure_roles import ROWS, SCHEMA, TASK, Place, X, Y, contribute, place, role_ledger

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

FOREST = replace(TASK, protocol="public-forest", epsilon="4", settings={})


@pytest.fixture
def room(tmp_path: Path) -> Any:
    with place(tmp_path, FOREST) as made:
        yield made


def attend(here: Place) -> None:
    """Both owners attend."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda owner: here.owner(owner).participate(X[ROWS[owner]], Y[ROWS[owner]]), ROWS))


def test_two_owners_teach_a_private_forest(room: Place) -> None:
    attend(room)
    with room.user() as analyst:
        assert analyst.wait(10).epsilon == 4
        model: Any = analyst.model()
        assert isinstance(model, vw.PrivateForestClassifier)
        assert (analyst.predict(X) == model.predict(X)).all()
        assert (model.predict(X) == Y).mean() > 0.7
        assert model.predict_proba(X[:5]).shape == (5, len(SCHEMA.classes))
    for server in room.servers:
        assert [entry.state for entry in server._ledger.entries()] == ["committed"]


@pytest.mark.parametrize("protocol", ["public-forest", "forest-on-shares"])
def test_checked_servers_teach_a_private_forest(tmp_path: Path, protocol: str) -> None:
    task = replace(FOREST, protocol=protocol, settings={"servers": "checked"})
    with place(tmp_path, task, timeout=60.0) as room:
        if protocol == "public-forest":
            attend(room)
        else:
            contribute(room)
        with room.user() as analyst:
            certificate = analyst.wait(120)
            assert Assumption.ONE_DEVIATES.value in certificate.assumptions
            assert (analyst.predict(X) == Y).mean() > 0.7
        room.settle()
        for server in room.servers:
            assert [entry.state for entry in server._ledger.entries()] == ["committed"]


def drop_out(monkeypatch: pytest.MonkeyPatch, error: Exception, at: int) -> list[int]:
    """Have owner south fail once, when it receives opened values for the n-th time; return when that was."""
    receive, n_south, times = ServerChannels.receive_opened, len(X[ROWS["south"]]), list[int]()
    run = JointForest.run_owner
    south: set[int] = set()

    def noted(self: JointForest, rows: Any, target: Any, channels: Any) -> None:
        if len(rows) == n_south:
            south.add(threading.get_ident())
        run(self, rows, target, channels)

    def failing(self: ServerChannels, count: int) -> Any:
        values = receive(self, count)
        if threading.get_ident() in south and len(times) <= at:
            times.append(len(times))
            if len(times) == at + 1:
                raise error
        return values

    monkeypatch.setattr(JointForest, "run_owner", noted)
    monkeypatch.setattr(ServerChannels, "receive_opened", failing)
    return times


@pytest.mark.parametrize("at", [0, 2])
def test_a_training_waits_for_an_owner_that_drops_out(room: Place, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    times = drop_out(monkeypatch, VeilwoodError("the lights went out"), at)
    with ThreadPoolExecutor(2) as pool:
        north = pool.submit(room.owner("north").participate, X[ROWS["north"]], Y[ROWS["north"]])
        south = pool.submit(room.owner("south").participate, X[ROWS["south"]], Y[ROWS["south"]])
        with pytest.raises(VeilwoodError, match="lights"):
            south.result(60)
        room.settle()
        opened = [np.concatenate([np.zeros(0)] + [values.ravel() for values in state.checkpoint.opened])
                  for state in (server._task_states["scale"] for server in room.servers)]  # fmt: skip
        assert not north.done()
        room.owner("south").participate(X[ROWS["south"]], Y[ROWS["south"]])
        north.result(60)
    assert len(times) == at + 1
    room.settle()
    assert_charged_once(room)
    for server, before in zip(room.servers, opened, strict=True):
        released = server._model_store.load("scale").arrays["released.opened"]
        assert np.array_equal(released[: len(before)], before)  # the same numbers, not fresh noise


def assert_charged_once(here: Place) -> None:
    for role in (*(f"server-{party}" for party in range(3)), *(f"owner-{owner}" for owner in ROWS)):
        assert [str(entry.state) for entry in role_ledger(here, role).entries()] == ["committed"], role


def test_a_damaged_message_costs_nothing(room: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that cannot read what the servers sent comes again by itself, and is not charged again."""
    times = drop_out(monkeypatch, PartyError("the servers opened another number of values."), 1)
    attend(room)
    assert len(times) == 2
    room.settle()
    assert_charged_once(room)


def test_an_owner_that_one_server_has_lost_comes_again_by_itself(room: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Server 2 was killed and is back while north waits for south: it does not know that north is there."""
    begin, task_state = Server._begin_training, room.servers[2]._find_task("scale", FOREST.fingerprint())

    def forgotten(own: Server, its_study: TaskState) -> None:
        if own is room.servers[0] and not its_study.missing_owners and not lost:
            lost.append(task_state.online_sessions.pop("north"))
        begin(own, its_study)

    lost: list[Any] = []
    monkeypatch.setattr(Server, "_begin_training", forgotten)
    attend(room)
    assert len(lost) == 1
    room.settle()
    for server in room.servers:
        assert [entry.state for entry in server._ledger.entries()] == ["committed"]


def test_an_owner_that_comes_while_a_run_without_it_ends_tries_again_by_itself(
    room: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server 0 began a run on a lost connection of south just when south is back, and gives it up soon after."""
    admit, raced = Server._admit_owner, list[str]()

    def admit_late(own: Server, channel: Any, task_state: TaskState, *more: Any) -> str:
        name = admit(own, channel, task_state, *more)
        if own is room.servers[0] and channel.peer.name == "south" and not raced:
            raced.append(name)
            task_state.is_training = True
            threading.Timer(0.2, setattr, (task_state, "is_training", False)).start()
        return name

    monkeypatch.setattr(Server, "_admit_owner", admit_late)
    attend(room)
    assert raced
    room.settle()
    assert_charged_once(room)


def test_rows_are_not_contributed_where_owners_attend_and_other_plans_are_refused(
    room: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    north = room.owner("north")
    assert north.participates
    with pytest.raises(VeilwoodError, match="call participate"):
        north.contribute(X[:9], Y[:9])
    program: Any = north._program
    program.plan = replace(program.plan, released="something else")
    with pytest.raises(VeilwoodError, match="another training"):
        north.participate(X[:9], Y[:9])


def test_owners_of_columns_share_them_and_leave(tmp_path: Path) -> None:
    names = list(SCHEMA.feature_names)
    held = {"north": names[:2], "south": [*names[2:], SCHEMA.target.name]}
    with place(tmp_path, replace(FOREST, protocol="forest-on-shares", owners=held)) as room:
        assert not room.owner("north").participates
        room.owner("north").contribute(X[names[:2]], pad_to=640)
        room.owner("south").contribute(X[names[2:]], Y, pad_to=640)
        model: Any = room.user().model()
        assert model.privacy_.epsilon == 4
        assert (model.predict(X) == Y).mean() > 0.7
