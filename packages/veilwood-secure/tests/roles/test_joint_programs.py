# SPDX-License-Identifier: Apache-2.0
"""Owners that stay while the servers train, over TLS: the model comes out, and what goes wrong is told to all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import veilwood as vw
from veilwood.errors import VeilwoodError
from veilwood_secure.roles.joint_programs import JointForest
from veilwood_secure.roles.server import Server
from veilwood_secure.roles.task_state import TaskState
from veilwood_testing.secure_roles import ROWS, SCHEMA, TASK, Place, X, Y, place

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


def test_an_owner_that_leaves_before_anything_was_opened_ends_the_training_and_costs_nothing(
    room: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves = room.owner("south")
    requests: list[int] = []

    def answer_once(self: JointForest, rows: Any, target: Any, voices: Any) -> None:
        if len(rows) == len(X[ROWS["south"]]):
            requests.append(1)
            raise VeilwoodError("the lights went out")
        original(self, rows, target, voices)

    original = JointForest.run_owner
    monkeypatch.setattr(JointForest, "run_owner", answer_once)
    with ThreadPoolExecutor(2) as pool:
        north = pool.submit(room.owner("north").participate, X[ROWS["north"]], Y[ROWS["north"]])
        south = pool.submit(leaves.participate, X[ROWS["south"]], Y[ROWS["south"]])
        with pytest.raises(VeilwoodError, match="lights"):
            south.result(60)
        with pytest.raises(VeilwoodError, match="owner south"):
            north.result(60)
    room.settle()
    assert requests == [1]
    for server in room.servers:  # no server recorded that it was about to open anything
        assert [entry.state for entry in server._ledger.entries()] == ["cancelled"]
    monkeypatch.setattr(JointForest, "run_owner", original)
    attend(room)  # everybody comes again, and it works
    assert room.user().wait(10).epsilon == 4


def test_an_owner_that_one_server_has_lost_comes_again_by_itself(room: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Server 2 was killed and is back while north waits for south: it does not know that north is there."""
    begin, study = Server._begin_training, room.servers[2]._find_task("scale", FOREST.fingerprint())

    def forgotten(own: Server, its_study: TaskState) -> None:
        if own is room.servers[0] and not its_study.missing_owners and not lost:
            lost.append(study.online_sessions.pop("north"))
        begin(own, its_study)

    lost: list[Any] = []
    monkeypatch.setattr(Server, "_begin_training", forgotten)
    attend(room)
    assert len(lost) == 1
    room.settle()
    for server in room.servers:
        assert [entry.state for entry in server._ledger.entries()] == ["committed"]


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
