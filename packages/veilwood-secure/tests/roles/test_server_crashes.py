# SPDX-License-Identifier: Apache-2.0
"""Servers that come back: with their rows, without opening anything twice, and never with older files than they had."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veilwood.arrays import Ints
from veilwood.data.encoding import Encoding
from veilwood.errors import PartyError, VeilwoodError
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood.privacy.loss import Loss
from veilwood_secure.mpc.shares import reconstruct
from veilwood_secure.roles import uploads
from veilwood_secure.roles.checkpoints import Checkpoint
from veilwood_secure.roles.owner import Owner
from veilwood_secure.roles.transport import LostError
from veilwood_secure.roles.uploads import UploadPieces, expand_pair, seeded_shares
from veilwood_testing.secure_roles import ROWS, SCHEMA, TASK, Place, X, Y, assert_nothing_in_clear, contribute, place

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

FOREST = replace(TASK, protocol="forest-on-shares", epsilon="4", settings={})


@pytest.fixture
def forest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr("veilwood_secure.roles.training.RETRY_DELAYS_S", (0.05,))
    with place(tmp_path, FOREST, timeout=60.0) as made:
        yield made


def states(here: Place, party: int) -> list[str]:
    return [str(entry.state) for entry in here.servers[party]._ledger.entries()]


def test_servers_come_back_with_their_rows(here: Place) -> None:
    contribute(here, "north")
    assert_nothing_in_clear(here.folder)
    here.stop()
    here.start()
    assert here.owner("north").status()[2]["missing"] == ["south"]
    contribute(here, "south")
    assert here.owner("north").wait(60).epsilon == 2
    here.settle()
    tree, codes = here.tree_in_the_open(), Encoding(SCHEMA, "bins").encode(X).astype(np.int64)
    with here.user() as analyst:
        assert np.array_equal(analyst.predict(X), np.array(SCHEMA.classes, dtype=object)[tree.predict(codes)])
    for party in range(3):  # no rows are left
        assert not list((here.folder / f"server-{party}" / "checkpoints").rglob("rows/*/*/*"))


def test_an_upload_cut_short_at_one_server_costs_nobody_else_its_rows(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server 2 is killed when the others have written the last piece of north: only north sends again."""
    keep, state = Checkpoint.write_piece, here.servers[2]._find_task("scale", TASK.fingerprint()).checkpoint

    def killed(own: Checkpoint, *words: Any) -> None:
        if own is state:
            raise LostError("server 2 is lost.", party="server 2")
        keep(own, *words)

    with monkeypatch.context() as dying:
        dying.setattr(Checkpoint, "write_piece", killed)
        with pytest.raises(LostError):
            here.owner("north").contribute(X[ROWS["north"]], Y[ROWS["north"]], patience=0)
    contribute(here, "south")
    assert [server["missing"] for server in here.owner("south").status()] == [["north"]] * 3
    contribute(here, "north")
    assert here.owner("south").wait(60).epsilon == 2
    here.settle()
    assert [states(here, party) for party in range(3)] == [["committed"]] * 3


def test_rows_that_differ_between_servers_are_sent_again_by_their_owner_alone(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    contribute(here, "north")
    task_state = here.servers[1]._find_task("scale", TASK.fingerprint())
    task_state.checkpoint.parts["north"]["rows"]["held"] = ["another session"]
    contribute(here, "south")
    until = time.monotonic() + 60
    while any("north" not in server["missing"] for server in here.owner("south").status()):
        assert time.monotonic() < until
        time.sleep(0.01)
    here.settle()
    assert [server["failure"] for server in here.owner("south").status()] == [None] * 3
    assert [server["missing"] for server in here.owner("south").status()] == [["north"]] * 3
    contribute(here, "north")
    assert here.owner("south").wait(60).epsilon == 2


def interrupt(monkeypatch: pytest.MonkeyPatch, here: Place, method: str, at: int) -> list[list[Ints]]:
    """Lose server 1 once, at an opening; return what was opened until then."""
    before: list[list[Ints]] = []
    original = getattr(Checkpoint, method)
    state = here.servers[1]._find_task("scale", here.owner("north").task.fingerprint()).checkpoint

    def lost(own: Checkpoint, word: Any) -> None:
        number = word if isinstance(word, int) else len(own.opened)
        if own is state and not before and number == at:
            before.append(list(own.opened))
            raise LostError("server 1 is lost.", party="server 1")
        original(own, word)

    monkeypatch.setattr(Checkpoint, method, lost)
    return before


def test_what_was_opened_is_not_opened_again(forest: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = interrupt(monkeypatch, forest, "record_intent", at=4)
    contribute(forest)
    model: Any = forest.user().model()
    forest.settle()
    assert (model.predict(X) == Y).mean() > 0.6
    released = [server._model_store.load("scale").arrays["released.opened"] for server in forest.servers]
    assert all(np.array_equal(released[0], other) for other in released)
    (kept,) = before
    assert len(kept) == 4
    first = np.concatenate([values.ravel() for values in kept])
    assert np.array_equal(released[0][: len(first)], first)  # the same numbers, not fresh noise
    assert [states(forest, party) for party in range(3)] == [["committed"]] * 3  # charged once


@pytest.mark.parametrize("who", ["nobody", "one", "two"])
def test_an_opening_that_somebody_may_have_seen_is_opened_again_unchanged(
    forest: Place, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All servers are lost before all of them have stored a result: the same shares are opened again."""
    keep = Checkpoint.record_opening
    first, seen = dict[str, str](), list[Ints]()
    states_of = [server._find_task("scale", FOREST.fingerprint()).checkpoint for server in forest.servers]
    keepers = {"nobody": [], "one": states_of[1:2], "two": states_of[:2]}[who]

    def keeps(own: Checkpoint, values: Ints) -> None:
        assert own.attempt is not None
        training = own.attempt["training"]
        is_first = training == first.setdefault("training", training)
        if len(own.opened) == 2 and is_first and own not in done:
            done.append(own)
            seen.append(values)
            if not any(own is other for other in keepers):
                raise LostError("server 1 is lost.", party="server 1")
            keep(own, values)
            raise LostError("server 1 is lost.", party="server 1")
        keep(own, values)

    done = list[Checkpoint]()
    monkeypatch.setattr(Checkpoint, "record_opening", keeps)
    contribute(forest)
    for owner in ROWS:
        assert forest.owner(owner).wait(120).epsilon == 4
    forest.settle()
    assert len(seen) >= 2
    for server in forest.servers:
        released = server._model_store.load("scale").arrays["released.opened"]
        assert " ".join(map(str, seen[0].ravel())) in " ".join(map(str, released))
    assert [states(forest, party) for party in range(3)] == [["committed"]] * 3


@pytest.mark.parametrize("liar", range(3))
def test_one_server_cannot_write_an_opening(forest: Place, liar: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It breaks off when a value is opened, and later claims to have it: nobody takes a value from one server."""
    intent, lied = Checkpoint.record_intent, list[Ints]()
    state = forest.servers[liar]._find_task("scale", FOREST.fingerprint()).checkpoint

    def forges(own: Checkpoint, number: int) -> None:
        intent(own, number)
        if own is state and number == 2 and not lied:
            pending = own.read_pending(number)
            assert pending is not None
            forged = np.full(pending.parts[0].shape, 12345, np.int64)
            lied.append(forged)
            own.record_opening(forged)
            raise LostError(f"server {liar} is lost.", party=f"server {liar}")

    monkeypatch.setattr(Checkpoint, "record_intent", forges)
    contribute(forest)
    assert forest.owner("north").wait(120).epsilon == 4
    forest.settle()
    assert lied
    for server in forest.servers:
        assert " 12345 " not in " ".join(map(str, server._model_store.load("scale").arrays["released.opened"]))


def test_older_files_are_refused_by_name(here: Place) -> None:
    contribute(here, "north")
    here.stop()
    place_of = here.folder / "server-1" / "checkpoints"
    shutil.copytree(place_of, here.folder / "backup")
    here.start()
    here.owner("north").contribute(X[:30], Y[:30])
    here.stop()
    shutil.rmtree(place_of)
    shutil.copytree(here.folder / "backup", place_of)
    here.start()
    with pytest.raises(PartyError, match="server 1 restarted with older files") as caught:
        contribute(here, "south")
    assert caught.value.party == "server 1"


def test_an_older_ledger_is_refused(here: Place) -> None:
    here.train()
    here.settle()
    here.stop()
    (here.folder / "server-2" / "ledger.db").unlink()
    (here.folder / "server-2" / "models" / "scale.share").unlink()
    for what in ("of another task", "of a third"):  # an older one that went on with others is as long
        spend = SQLiteLedger(here.folder / "server-2" / "ledger.db").reserve(
            Loss.pure(Fraction(1)), what=what, neighbours="rows", plan="0"
        )
        spend.commit()
    here.start()
    with pytest.raises(PartyError, match="the ledger of server 2 is older than its training runs"):
        here.owner("north").status()


# -- uploads in pieces -------------------------------------------------------------------------------------------------


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PIECE_BYTES", 6000)  # 64 rows of the scale


@pytest.mark.usefixtures("small_pieces")
def test_an_upload_goes_on_where_it_stopped(here: Place) -> None:
    lines: list[float] = []

    def stop_after_two(share: float) -> None:
        lines.append(share)
        if len(lines) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        here.owner("south").contribute(X[250:], Y[250:], progress=stop_after_two)
    time.sleep(0.2)
    assert here.owner("south").status()[0]["missing"] == ["north", "south"]
    here.stop()
    here.start()  # and the servers stopped as well
    here.owner("south").contribute(X[250:], Y[250:], progress=lines.append)
    assert lines == [pytest.approx(number / 6) for number in range(1, 7)]
    contribute(here, "north")
    assert here.owner("north").wait(60).epsilon == 2


@pytest.mark.usefixtures("small_pieces")
def test_other_rows_do_not_go_on_where_others_stopped(here: Place) -> None:
    lines: list[float] = []

    def stop(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        here.owner("south").contribute(X[250:], Y[250:], progress=stop)
    time.sleep(0.2)
    here.owner("south").contribute(X[250:][::-1], Y[250:][::-1], progress=lines.append)
    assert len(lines) == 6


@pytest.mark.usefixtures("small_pieces")
def test_parts_are_added_and_the_same_part_is_not_added_twice(here: Place) -> None:
    north = here.owner("north")
    north.contribute(X[:100], Y[:100], part="first", more=True)
    north.contribute(X[:100], Y[:100], part="first", more=True)
    assert north.status()[0]["missing"] == ["north", "south"]
    north.contribute(X[100:250], Y[100:250], part="second", pad_to=300)
    assert [server._task_states["scale"].complete_uploads["north"][1] for server in here.servers] == [400] * 3
    contribute(here, "south")
    assert north.wait(60).epsilon == 2
    here.settle()
    with pytest.raises(VeilwoodError, match="is not a name"):
        north.contribute(X[:9], Y[:9], part="../up")


@pytest.mark.parametrize("protocol", ["hidden-tree", "forest-on-shares"])
@pytest.mark.parametrize("pad_to", [None, 700])
def test_pieces_put_together_are_the_rows(
    protocol: str, pad_to: int | None, small_pieces: None, here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PIECE_BYTES", 250 if protocol == "forest-on-shares" else 6000)
    task = replace(FOREST, protocol=protocol)
    program = Owner(replace(here.config("owner-north"), tasks=(task,)))._program
    pieces = UploadPieces(program, "north", X, Y, pad_to)
    assert sum(pieces.row_counts) == pieces.n_rows == (pad_to or len(X))
    assert len(pieces.row_counts) > 1
    whole = program.encode_rows("north", X, Y, pad_to)[0]
    for name in whole:
        joined = np.concatenate([piece[name] for piece in pieces], axis=-1)
        assert np.array_equal(joined, whole[name]), name
    shares = seeded_shares(whole["target" if "target" in whole else "classes"], program.ring)
    assert len(shares[0]) == 64  # server 0 gets two seeds
    shape = next(reversed(whole.values())).shape
    found = reconstruct([expand_pair(party, share, shape, program.ring) for party, share in enumerate(shares)])
    assert np.array_equal(found.astype(program.ring), next(reversed(whole.values())).astype(program.ring))
