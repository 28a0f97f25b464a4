# SPDX-License-Identifier: Apache-2.0
"""What servers keep of owners' rows: what was checked, for what was signed, once, and no more than words can count.

Pieces and their resumption are in test_server_crashes.py, rows that are none in test_contributions.py.
"""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veilwood.errors import PartyError, VeilwoodError
from veilwood_secure.mpc.shares import reconstruct
from veilwood_secure.roles.hidden_programs import HiddenForest
from veilwood_secure.roles.owner import ServerConnections
from veilwood_secure.roles.uploads import seeded_shares, split_piece
from veilwood_testing.secure_roles import TASK, Place, X, Y, contribute, entry_states, place


def put_in_place(here: Place, task: Any) -> None:
    """Give every role another task under the same name, and start the servers again."""
    here.stop()
    for folder in [*here.folder.glob("server-*"), *here.folder.glob("owner-*"), *here.folder.glob("user-*")]:
        replace(here.config(folder.name), tasks=(task,)).save()
    here.start()


# -- what was checked --------------------------------------------------------------------------------------------------


def test_servers_keep_pieces_of_one_session_when_a_part_is_sent_twice_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers that keep a piece of this session and a piece of that one hold numbers that nobody has checked."""
    check, slow, go_on = HiddenForest.check_rows, threading.Event(), threading.Event()

    def slowly(own: HiddenForest, engine: Any, owner: str, shares: Any) -> None:
        check(own, engine, owner, shares)
        if engine.party == 1 and not slow.is_set():
            slow.set()
            assert go_on.wait(60)

    monkeypatch.setattr(HiddenForest, "check_rows", slowly)
    with place(tmp_path, timeout=60.0) as here:
        north, (arrays, rows) = here.owner("north"), HiddenForest(TASK).encode_rows("north", X[:20], Y[:20])

        def send() -> None:
            words = {"rows": rows, "part": "rows", "upload": "0" * 32, "more": False, **north.consent()}
            with ServerConnections(north.config, TASK, "contribute", **words) as call:
                call.receive_fields("send")
                call.send_fields(start=0)
                for array in arrays.values():
                    call.send_parts(seeded_shares(array, np.uint32))
                call.receive_fields("piece")
                call.receive_fields("accepted")

        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(send)
            assert slow.wait(60)
            send()
            go_on.set()
            assert isinstance(first.exception(60), PartyError)
        task_states = [server._task_states["scale"] for server in here.servers]
        shapes = task_states[0].program.row_shapes("north", rows)
        pieces = [task_state.checkpoint.read_piece("north", "rows", 0) or b"" for task_state in task_states]
        pairs = [split_piece(party, piece, shapes, np.uint32) for party, piece in enumerate(pieces)]
        for name, array in arrays.items():
            assert np.array_equal(reconstruct([pair[name] for pair in pairs]), array)
        assert len({task_state.complete_uploads["north"] for task_state in task_states}) == 1


# -- what was signed ---------------------------------------------------------------------------------------------------


def test_rows_that_were_signed_for_one_task_are_not_used_for_another(here: Place) -> None:
    contribute(here, "north")
    put_in_place(here, replace(TASK, epsilon="20"))
    contribute(here, "south")
    assert here.owner("north").status()[0]["missing"] == ["north"]
    assert entry_states(here) == [[]] * 3
    contribute(here, "north")  # who agrees
    assert here.owner("north").wait(60).epsilon == 20


def test_a_model_is_not_served_to_the_users_of_another_task(here: Place) -> None:
    here.train()
    here.settle()
    put_in_place(here, replace(TASK, users=("guest",)))
    assert [server["phase"] for server in here.owner("north").status()] == ["waiting"] * 3
    with pytest.raises(PartyError, match="there is no model"):
        here.user("guest").predict(X[:3])


# -- once, and no more than there is room for --------------------------------------------------------------------------


def test_the_same_rows_under_two_names_are_refused(here: Place) -> None:
    north = here.owner("north")
    north.contribute(X[:100], Y[:100], part="first", more=True)
    with pytest.raises(VeilwoodError, match="these rows were already sent as part 'first'"):
        north.contribute(X[:100], Y[:100], part="second")
    north.contribute(X[100:250], Y[100:250], part="second")
    assert here.servers[0]._task_states["scale"].complete_uploads["north"][1] == 250


@pytest.mark.slow
def test_a_task_that_was_retired_begins_anew_also_at_a_server_that_was_set_back(here: Place) -> None:
    contribute(here, "north")
    here.stop()
    checkpoints, backup = here.folder / "server-1" / "checkpoints", here.folder / "backup"
    shutil.copytree(checkpoints, backup)
    here.start()
    here.owner("north").contribute(X[:30], Y[:30])
    here.stop()
    shutil.rmtree(checkpoints)
    shutil.copytree(backup, checkpoints)
    here.start()
    with pytest.raises(PartyError, match="server 1 restarted with older files"):
        contribute(here, "south")
    here.owner("north").retire()
    contribute(here, "north")
    here.stop()
    shutil.rmtree(checkpoints)  # and is found out when it is set back once more
    shutil.copytree(backup, checkpoints)
    here.start()
    with pytest.raises(PartyError, match="server 1 restarted with older files"):
        contribute(here, "south")
    here.owner("north").retire()
    contribute(here)
    assert here.owner("north").wait(60).epsilon == 2
