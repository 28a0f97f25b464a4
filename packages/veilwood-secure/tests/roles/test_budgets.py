# SPDX-License-Identifier: Apache-2.0
"""Every owner's own ledger: charged before a row leaves, once for what is opened once, and its budget is the last word.

What servers charge, and what they take back, is in test_refunds.py and test_server_crashes.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from veilwood.arrays import Ints
from veilwood.errors import BudgetExceededError, NotPrivateError, PartyError, VeilwoodError
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood_secure.roles import uploads
from veilwood_secure.roles.checkpoints import Checkpoint
from veilwood_secure.roles.owner import Owner, ServerConnections
from veilwood_secure.roles.sessions import BUDGETS_FOLDER
from veilwood_secure.roles.transport import Channel, LostError
from veilwood_testing.secure_roles import ROWS, TASK, Place, X, Y, contribute, place, role_ledger

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

SHARED = replace(TASK, protocol="forest-on-shares", epsilon="4", settings={})
PUBLIC_TREE = replace(TASK, protocol="cdp-id3", epsilon="4")
PRESENT = replace(TASK, protocol="public-forest", epsilon="4", settings={})


class Killed(BaseException):
    """The end of an owner's process, which nothing in it can catch."""


@pytest.fixture
def forest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr("veilwood_secure.roles.training.RETRY_DELAYS_S", (0.05,))
    with place(tmp_path, SHARED, timeout=60.0) as made:
        yield made


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A training that cannot be resumed once something was opened: one selection may take several openings."""
    monkeypatch.setattr("veilwood_secure.roles.training.RETRY_DELAYS_S", (0.05,))
    with place(tmp_path, PUBLIC_TREE, timeout=60.0) as made:
        yield made


def states(here: Place, role: str = "owner-north") -> list[str]:
    return [str(entry.state) for entry in role_ledger(here, role).entries()]


# -- charged once ------------------------------------------------------------------------------------------------------


def test_owners_are_charged_when_they_contribute_and_again_when_it_is_trained_again(here: Place) -> None:
    contribute(here, "north")
    assert states(here) == ["reserved"]
    here.owner("north").contribute(X[:30], Y[:30])  # other rows, for the same training
    assert states(here) == ["reserved"]
    contribute(here, "south")
    assert here.owner("north").wait(60).epsilon == 2
    assert states(here) == ["committed"]
    here.settle()
    with pytest.raises(VeilwoodError, match="already trained"):
        contribute(here, "north")
    assert states(here) == ["committed"]  # what was refused is not charged
    here.owner("south").retire()
    contribute(here)
    here.owner("north").wait(60)
    assert states(here) == ["committed", "committed"]
    assert role_ledger(here, "owner-north").spent.epsilon == 4
    south = here.owner("south")
    assert states(here, "owner-south") == ["reserved", "reserved"]  # it has not asked how it ended
    south.status()
    assert states(here, "owner-south") == ["committed", "committed"]


def test_rows_that_were_taken_back_before_anything_was_opened_cost_nothing(here: Place) -> None:
    contribute(here, "north")
    here.owner("north").retire()
    assert states(here) == ["cancelled"]
    contribute(here, "north")
    assert states(here) == ["cancelled", "reserved"]


@pytest.mark.parametrize("moment", ["before the call", "between two pieces", "before the last word"])
def test_an_owner_killed_on_the_way_is_charged_once(here: Place, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PIECE_BYTES", 1 << 13)
    sent: list[int] = []

    def killed(*words: Any, **more: Any) -> None:
        raise Killed

    with monkeypatch.context() as dying:
        if moment == "before the call":
            dying.setattr(Owner, "_send_pieces", lambda own, *words: (own.consent(), killed()))  # type: ignore[func-returns-value]
        elif moment == "between two pieces":
            send = ServerConnections.send_parts

            def one_piece(call: ServerConnections, parts: Any) -> None:
                if len(sent) == 2:  # a piece has two arrays
                    raise Killed
                sent.append(1)
                send(call, parts)

            dying.setattr(ServerConnections, "send_parts", one_piece)
        else:
            hear = ServerConnections.receive_fields

            def deaf(call: ServerConnections, *keys: str) -> Any:
                return killed() if keys == ("accepted",) else hear(call, *keys)

            dying.setattr(ServerConnections, "receive_fields", deaf)
        with pytest.raises(Killed):
            contribute(here, "north")
    assert states(here) == ["reserved"]
    contribute(here)
    here.owner("north").wait(60)
    assert states(here) == ["committed"]


def test_a_training_that_goes_on_is_charged_once_at_every_owner(forest: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[int] = []
    about_to_open = Checkpoint.record_intent
    state = forest.servers[1]._find_task("scale", SHARED.fingerprint()).checkpoint

    def interrupted(own: Checkpoint, number: int) -> None:
        if own is state and number == 3 and not lost:
            lost.append(number)
            raise LostError("server 1 is lost.", party="server 1")
        about_to_open(own, number)

    monkeypatch.setattr(Checkpoint, "record_intent", interrupted)
    contribute(forest)
    for owner in ROWS:
        forest.owner(owner).wait(60)
        assert states(forest, f"owner-{owner}") == ["committed"]
    assert lost


@pytest.mark.parametrize("liar", range(3))
def test_a_server_that_names_new_tickets_does_not_drain_a_ledger(
    here: Place, liar: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks off every upload, and names another ticket each time it is asked: one charge, whatever it does."""
    checkpoint, broken = here.servers[liar]._find_task("scale", TASK.fingerprint()).checkpoint, list[int]()

    def breaks_off(self: Owner, *words: Any) -> None:
        broken.append(1)
        self.consent()
        checkpoint.renew_ticket()
        raise LostError(f"server {liar} is lost.", party=f"server {liar}")

    monkeypatch.setattr("veilwood_secure.roles.owner._RETRY_DELAY_S", 0.01)
    with monkeypatch.context() as lying:
        lying.setattr(Owner, "_send_pieces", breaks_off)
        with pytest.raises(LostError):
            here.owner("north").contribute(X[:30], Y[:30], patience=1.0)
    assert len(broken) > 1  # of many, on an idle machine
    assert states(here) == ["reserved"]
    contribute(here)
    here.owner("north").wait(60)
    assert states(here) == ["committed"]


# -- charged again, if the owners agree ----------------------------------------------------------------------------


def lose_an_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """All three servers were about to open a number, and were lost before any of them kept it; once."""
    keep, lost = Checkpoint.record_opening, set()

    def nobody_keeps(own: Checkpoint, values: Ints) -> None:
        if len(own.opened) == 1 and id(own) not in lost:
            lost.add(id(own))
            raise LostError("server 1 is lost.", party="server 1")
        keep(own, values)

    monkeypatch.setattr(Checkpoint, "record_opening", nobody_keeps)


def test_what_must_be_charged_again_waits_for_owners_whose_ledgers_refuse(
    tree: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    SQLiteLedger(tree.folder / "owner-north" / "ledger.db", epsilon=5, delta="1e-6")
    lose_an_opening(monkeypatch)
    contribute(tree)
    with pytest.raises(BudgetExceededError, match="requested epsilon=4"):
        tree.owner("north").wait(60)
    assert states(tree) == ["reserved"]
    assert tree.owner("south").status()[0]["disagree"] == ["north", "south"]
    assert [states(tree, f"server-{party}") for party in range(3)] == [["reserved"]] * 3
    monkeypatch.undo()
    # With another ledger that allows it, nobody sends rows again.
    monkeypatch.setattr(Owner, "contribute", None)
    tree.owner("south")._send_consent()
    generous = Owner(
        tree.folder / "owner-north", ledger=SQLiteLedger(tree.folder / "other.db", epsilon=9, delta="1e-6")
    )
    assert generous.wait(60).epsilon == 4
    assert tree.owner("south").wait(60).epsilon == 4
    assert states(tree, "owner-south") == ["committed", "committed"]
    tree.settle()
    assert [states(tree, f"server-{party}") for party in range(3)] == [["reserved", "committed"]] * 3


# -- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["ledger.db", f"{BUDGETS_FOLDER}/task-scale.db"])
@pytest.mark.parametrize("task", [TASK, SHARED, PRESENT], ids=["hidden", "on shares", "present"])
def test_an_owner_whose_budget_is_used_up_sends_nothing(
    tmp_path: Path, file: str, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place(tmp_path, task) as here:
        SQLiteLedger(tmp_path / "owner-north" / file, epsilon=1, delta="1e-6")
        lines: list[Any] = []
        say = Channel.send_fields

        def noted(channel: Channel, **words: Any) -> None:
            if channel.peer.role == "server":
                lines.append(words)
            say(channel, **words)

        monkeypatch.setattr(Channel, "send_fields", noted)
        north = here.owner("north")
        with pytest.raises(BudgetExceededError, match="insufficient privacy budget"):
            (north.participate if north.participates else north.contribute)(X[:50], Y[:50])
        assert {words.get("do") for words in lines} == {"status", None}  # and "no more"
        assert not any("rows" in words or "upload" in words for words in lines)
        assert here.owner("south").status()[1]["missing"] == ["north", "south"]
        assert role_ledger(here, "owner-north").spent.epsilon == 0


def test_what_is_not_private_is_refused_by_an_owners_budget(tmp_path: Path) -> None:
    with place(tmp_path, replace(TASK, protocol="mpc-id3")) as here:
        SQLiteLedger(tmp_path / "owner-north" / "ledger.db", epsilon=100)
        with pytest.raises(NotPrivateError):
            contribute(here, "north")


def test_a_training_begins_though_the_last_owner_was_gone_before_it_heard_so(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    contribute(here, "north")
    say = Channel.send_fields

    def gone(channel: Channel, **words: Any) -> None:
        if "accepted" in words:
            raise LostError("owner south is lost.", party="owner south")
        say(channel, **words)

    monkeypatch.setattr(Channel, "send_fields", gone)
    with pytest.raises(PartyError):
        here.owner("south").contribute(X[ROWS["south"]], Y[ROWS["south"]], patience=0)
    monkeypatch.undo()
    assert here.owner("north").wait(60).epsilon == 2
