# SPDX-License-Identifier: Apache-2.0
"""What each server is sent in whole sessions over TLS has one shape: which messages, in which order, of which lengths.

Owners contribute neighbouring rows, padded where servers would see their number. The law of the shares themselves is
in test_server_views.py, what people outside see in test_outside.py.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from veilwood_secure.roles.config import Task
from veilwood_secure.roles.hidden_programs import HiddenForest
from veilwood_secure.roles.server import Server
from veilwood_secure.roles.sessions import SessionBroker
from veilwood_secure.roles.transport import _WAITING, Channel
from veilwood_testing.secure_roles import (
    SCHEMA,
    TASK,
    Place,
    X,
    Y,
    log_lines,
    place,
    readable_message,
    wait_until_settled,
)

PAD = 300
SOUTH = slice(400, 500)
NAMES = list(SCHEMA.feature_names)
Heard = dict[tuple[int, str, int], list[str]]


class Servers:
    """Everything that the three servers are sent, by server, by sender and by the number of the connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: Heard = {}
        self._connections: Counter[tuple[int, str]] = Counter()
        self._lock = threading.Lock()
        call, on_peer, on_person = SessionBroker._dial_peer, SessionBroker.accept_peer, Server._serve_participant

        def calls(meetings: SessionBroker, other: int) -> Channel:
            return self._tapped(call(meetings, other), meetings._party)

        monkeypatch.setattr(SessionBroker, "_dial_peer", calls)
        monkeypatch.setattr(
            SessionBroker, "accept_peer", lambda own, channel: on_peer(own, self._tapped(channel, own._party))
        )
        monkeypatch.setattr(
            Server, "_serve_participant", lambda own, channel: on_person(own, self._tapped(channel, own.party))
        )

    def wait_for_farewells(self) -> None:
        """Wait until every server has heard from both others that a user has left."""
        until = time.monotonic() + 60
        while sum('"rows": 0' in " ".join(result[-1:]) for result in list(self.heard.values())) < 6 + 3:
            assert time.monotonic() < until
            time.sleep(0.01)

    def _tapped(self, channel: Channel, party: int) -> Channel:
        peer, turn = str(channel.peer), channel._advance_frame
        with self._lock:
            number = self._connections[party, peer] = self._connections[party, peer] + 1
            heard = self.heard[party, peer, number] = []

        def noted() -> None:
            if not channel._in_header and channel._kind != _WAITING:  # a word of patience is a matter of time
                heard.append(f"{channel._kind} {without_names(readable_message(bytes(channel._partial)))}")
            turn()

        channel._advance_frame = noted  # type: ignore[method-assign]
        return channel


def without_names(text: str) -> str:
    """Leave out the random names of sessions and trainings."""
    return re.sub(r'\b([0-9a-f]{128}|[0-9a-f]{32}|[0-9a-f]{16})(?=\\*[":-])', "random", text)


def session(folder: Path, task: Task, tables: dict[str, Any], pad_to: int | None, servers: Servers) -> Heard:
    """A training and, where the model is hidden, some answers."""
    with place(folder, task) as here:
        for owner, (rows, target) in tables.items():
            here.owner(owner).contribute(rows, target, pad_to=pad_to)
        wait_until_settled(here)
        if isinstance(here.servers[0]._task_states["scale"].program, HiddenForest):
            ask(here)
            servers.wait_for_farewells()
    return servers.heard


def ask(here: Place) -> None:
    with here.user() as user:
        assert len(user.predict(X[:4])) == 4


PUBLIC = {"estimator": "RandomTreesClassifier", "parameters": {"random_state": 0, "n_estimators": 2, "max_depth": 2}}
OTHER = (X[:250].iloc[::-1].reset_index(drop=True), Y[:250][::-1])  # every row is another
STORIES: dict[str, tuple[Task, Any, Any, int | None]] = {
    "a hidden tree, a row less": (TASK, (X[:250], Y[:250]), (X[:249], Y[:249]), PAD),
    "a hidden tree, other rows": (TASK, (X[:250], Y[:250]), OTHER, None),
    "a public forest, a row less": (
        replace(TASK, protocol="public-forest", settings=PUBLIC), (X[:250], Y[:250]), (X[:249], Y[:249]), None,
    ),
}  # fmt: skip


def facts(folder: Path, story: str, caplog: pytest.LogCaptureFixture, **changes: Any) -> list[dict[Any, Any]]:
    """What the servers were sent, and logged, on either of two neighbours."""
    task, one, other, pad_to = STORIES[story]
    found: list[dict[Any, Any]] = []
    for number, north in enumerate((one, other)):
        caplog.clear()
        older = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.INFO):
            tables = {"north": north, "south": (X[SOUTH], Y[SOUTH])}
            heard = session(folder / str(number), task, tables, changes.get("pad_to", pad_to), Servers(patch))
        found.append({**heard, "log": log_lines(caplog, older)})
    return found


@pytest.mark.parametrize("story", STORIES)
def test_what_servers_are_sent_has_one_shape(story: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other = facts(tmp_path, story, caplog)
    assert {party for party, *_ in one if party in (0, 1, 2)} == {0, 1, 2}
    assert sum(len(heard) for heard in one.values()) > 30
    for who in {*one, *other}:
        assert one.get(who) == other.get(who), who


def test_rows_that_are_not_padded_show(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other = facts(tmp_path, "a hidden tree, a row less", caplog, pad_to=None)
    assert one != other
    assert one["log"] == other["log"]
