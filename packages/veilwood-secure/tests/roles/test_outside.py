# SPDX-License-Identifier: Apache-2.0
"""What leaves the servers does not tell how many rows an owner has: every message, log line and file, byte by byte.

All roles run twice, on tables of different lengths, and everything people outside get is compared. What a server sees
of the rows of others is in test_server_views.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from veilwood.cli.main import main
from veilwood.errors import PartyError, VeilwoodError
from veilwood_secure.roles import owner as calls
from veilwood_secure.roles.config import Config, Task
from veilwood_secure.roles.hidden_programs import HiddenForest
from veilwood_secure.roles.identity import PartyName, tls_context
from veilwood_secure.roles.owner import ServerConnections
from veilwood_secure.roles.transport import Channel, dial_server
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
    without_random_parts,
)

NEIGHBOUR, OTHER = 251, 480
SIZES = [250, NEIGHBOUR, OTHER]
SOUTH = slice(500, 600)
Seen = dict[str, Any]


class Outside:
    """Everything that one person after another hears from each server, action by action."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: Seen = {}
        self._heard: dict[str, list[str]] = {}
        monkeypatch.setattr(calls, "dial_server", self._dial)
        monkeypatch.setattr(ServerConnections, "close", self._close)

    def ask(self, what: str, config: Config, task: Task, do: str, **more: Any) -> None:
        """Say first words to one server after the other, and keep all that each says to them."""
        self._heard = {}
        context = tls_context(config.identity, config.servers_authority, listens=False)
        for party, address in enumerate(config.servers):
            name = PartyName("server", str(party))
            channel = self._dial(address.host, address.participants, context, name, timeout=30, limit=1 << 20)
            with suppress(PartyError):  # a refusal may arrive before the words have left; it is kept
                channel.send_fields(do=do, task=task.name, fingerprint=task.fingerprint(), session="s", **more)
                if do == "status":
                    channel.send_fields(more=False)
            drain(channel)
        self.seen[what] = self._heard

    def note(self, what: str, action: Callable[[], Any]) -> None:
        """Do something as a person, and keep what each server said to it, up to the end of the connection."""
        self._heard = {}
        with suppress(VeilwoodError):  # which of three servers is heard first is chance; what each says is kept
            action()
        assert what not in self.seen
        assert len(self._heard) == 3
        self.seen[what] = self._heard

    def _dial(self, *words: Any, **options: Any) -> Channel:
        channel = dial_server(*words, **options)
        heard, turn = self._heard.setdefault(str(channel.peer), []), channel._advance_frame

        def noted() -> None:
            if not channel._in_header:
                heard.append(f"{channel._kind} {readable_message(bytes(channel._partial))}")
            turn()

        channel._advance_frame = noted  # type: ignore[method-assign]
        return channel

    @staticmethod
    def _close(call: ServerConnections) -> None:
        for channel in call.channels:
            drain(channel)


def drain(channel: Channel) -> None:
    with suppress(PartyError):
        while True:
            channel.receive()
    assert channel._end_reason is not None, "a server did not end the conversation"
    channel.close()


def left_on_disk(here: Place) -> dict[str, int]:
    """The names and lengths of models and ledgers: what the thief of a disk sees of them."""
    files = [path for server in here.servers for path in server.config.folder.rglob("*")]
    return {
        str(path.relative_to(here.folder)): path.stat().st_size for path in files if path.suffix in (".share", ".db")
    }


def training(folder: Path, rows: int, outside: Outside) -> Seen:
    """A training from the first contribution to retirement, with refusals on the way."""
    with place(folder) as here:
        north, south, user = here.owner("north"), here.owner("south"), here.user()
        outside.note("north contributes", lambda: north.contribute(X[:rows], Y[:rows]))
        for person in (north, south, user):
            outside.ask(f"status before, for {person.config.party_name}", person.config, TASK, "status")
        outside.ask("asked too early", user.config, TASK, "ask")
        outside.ask("fetched too early", user.config, TASK, "fetch")
        outside.ask("another task", user.config, replace(TASK, epsilon="1"), "status")
        outside.ask("an unknown task", user.config, replace(TASK, name="unknown"), "status")
        outside.ask("not for users", user.config, TASK, "retire")
        outside.ask("too many rows", south.config, TASK, "contribute", rows=1 << 30)
        outside.ask("no number of rows", south.config, TASK, "contribute", rows=-1)
        outside.note("south contributes", lambda: south.contribute(X[SOUTH], Y[SOUTH]))
        wait_until_settled(here)
        for person in (north, south, user):
            outside.ask(f"status after, for {person.config.party_name}", person.config, TASK, "status")

        def ask() -> None:
            with user:
                assert len(user.predict(X[:4])) == 4

        outside.note("answers", ask)
        outside.ask("fetch", user.config, TASK, "fetch")
        outside.note("contributed again", lambda: south.contribute(X[SOUTH], Y[SOUTH]))
        outside.seen["files"] = left_on_disk(here)
        outside.note("retired", south.retire)
        outside.ask("status at the end", south.config, TASK, "status")
    return outside.seen


def failing(folder: Path, rows: int, outside: Outside) -> Seen:
    """A training that ends because one server takes shorter messages than the others send."""
    made = Place(folder)
    replace(made.config("server-2"), largest_message=80_000).save()
    made.start()
    try:
        outside.note("north contributes", lambda: made.owner("north").contribute(X[:rows], Y[:rows]))
        outside.note("south contributes", lambda: made.owner("south").contribute(X[SOUTH], Y[SOUTH]))
        wait_until_settled(made)
        outside.ask("status", made.config("user-analyst"), TASK, "status")
        assert "longer than is allowed" in str(outside.seen["status"])
    finally:
        made.stop()
    return outside.seen


def crashing(folder: Path, rows: int, outside: Outside, error: type[Exception]) -> Seen:
    """A training that ends with an error whose text speaks of the table's shape."""
    with place(folder) as here:
        program: Any = here.servers[1]._find_task("scale", TASK.fingerprint()).program

        def fail(engine: Any, shares: Any) -> None:
            raise error(f"arrays of {shares['north']['features'].shape} do not fit")

        program.train = fail
        outside.note("north contributes", lambda: here.owner("north").contribute(X[:rows], Y[:rows]))
        outside.note("south contributes", lambda: here.owner("south").contribute(X[SOUTH], Y[SOUTH]))
        wait_until_settled(here)
        outside.ask("status", here.config("owner-south"), TASK, "status")
    return outside.seen


def columns(folder: Path, rows: int, outside: Outside) -> Seen:
    """Owners of columns that do not have the same rows."""
    names = list(SCHEMA.feature_names)
    task = replace(TASK, owners={"bank": names[:2], "clinic": [*names[2:], SCHEMA.target.name]})
    with place(folder, task) as here:
        outside.note("bank", lambda: here.owner("bank").contribute(X[names[:2]][:rows]))
        outside.note("clinic", lambda: here.owner("clinic").contribute(X[names[2:]][SOUTH], Y[SOUTH]))
        outside.ask("status", here.config("owner-clinic"), task, "status")
    return outside.seen


def public(folder: Path, rows: int, outside: Outside) -> Seen:
    """A forest that is public, with what is fetched of it."""
    parameters = {"random_state": 0, "n_estimators": 2, "max_depth": 2}
    settings = {"estimator": "RandomTreesClassifier", "parameters": parameters}
    task = replace(TASK, protocol="public-forest", settings=settings)
    with place(folder, task) as here:
        outside.note("north contributes", lambda: here.owner("north").contribute(X[:rows], Y[:rows]))
        outside.note("south contributes", lambda: here.owner("south").contribute(X[SOUTH], Y[SOUTH]))
        wait_until_settled(here)
        outside.ask("status", here.config("owner-south"), task, "status")
        outside.ask("fetch", here.config("user-analyst"), task, "fetch")
        outside.seen["files"] = left_on_disk(here)
    return outside.seen


STORIES: dict[str, Callable[[Path, int, Outside], Seen]] = {
    "training": training,
    "failing": failing,
    "an error of the library": lambda folder, rows, outside: crashing(folder, rows, outside, VeilwoodError),
    "an unexpected error": lambda folder, rows, outside: crashing(folder, rows, outside, ArithmeticError),
    "columns": columns,
    "public": public,
}


@pytest.mark.parametrize("story", STORIES)
def test_nothing_that_leaves_a_server_tells_the_number_of_rows(
    story: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = []
    for attempt in range(3):  # which server speaks first is chance; what rows decide differs every time
        found = []
        for rows in SIZES:
            caplog.clear()
            older = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
            with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.INFO):
                seen = STORIES[story](tmp_path / f"{attempt}-{rows}", rows, Outside(patch))
            found.append(seen | {"log": log_lines(caplog, older)})
        lines = [
            f"{what}, of {rows} rows"
            for rows, seen in zip(SIZES, found, strict=True)
            for what, heard in found[0].items()
            if seen[what] != heard
        ]
        if not lines:
            break
    assert lines == []


def test_the_command_line_does_not_tell_the_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = X.assign(**{SCHEMA.target.name: Y})
    table[SOUTH].to_csv("south.csv", index=False)
    printed = []
    for rows in SIZES:
        table[:rows].to_csv("north.csv", index=False)
        with place(tmp_path / str(rows)) as here:
            assert main(["secure", "owner", f"{rows}/owner-north", "north.csv", "--no-wait"]) == 0
            assert main(["secure", "owner", f"{rows}/owner-south", "--json"]) == 0
            assert main(["secure", "owner", f"{rows}/owner-south", "south.csv"]) == 0
            wait_until_settled(here)
            assert main(["secure", "owner", f"{rows}/owner-south", "--json"]) == 0
        printed.append(without_random_parts(capsys.readouterr().out))
    assert printed[0].count("\n") > 3
    assert len(set(printed)) == 1, printed


def test_the_certificate_says_who_sees_the_number_of_rows(tmp_path: Path) -> None:
    names = list(SCHEMA.feature_names)
    of_columns = replace(TASK, owners={"bank": names, "clinic": [SCHEMA.target.name]})
    for task, who in ((TASK, "servers see how many rows each owner sent"), (of_columns, "owners of columns know")):
        assumptions = HiddenForest(task).make_certificate("ledger", 1).assumptions
        assert sum(who in assumption for assumption in assumptions) == 1
        assert any("times the training" in assumption for assumption in assumptions)
    assert not any("owners of columns" in text for text in HiddenForest(TASK).make_certificate("ledger", 1).assumptions)
