# SPDX-License-Identifier: Apache-2.0
"""Owners that send nonsense are refused and named; those who keep to the protocol may replace their rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from veilwood.errors import PartyError
from veilwood_secure.roles.hidden_programs import HiddenForest
from veilwood_secure.roles.identity import PartyName, tls_context
from veilwood_secure.roles.owner import ServerConnections
from veilwood_secure.roles.transport import Channel, dial_server
from veilwood_secure.roles.uploads import seeded_shares
from veilwood_testing.secure_roles import TASK, Place, X, Y, first_word

UPLOAD = {"part": "rows", "upload": "0" * 32, "more": False}


def send_arrays(here: Place, arrays: dict[str, Any], rows: int, spoil: Any = None) -> None:
    """Contribute arrays as owner north, whatever they hold; ``spoil`` changes the shares of one server."""
    words = {"rows": rows, **here.owner("north").consent(), **UPLOAD}
    with ServerConnections(here.config("owner-north"), TASK, "contribute", **words) as call:
        call.receive_fields("send")
        call.send_fields(start=0)
        for array in arrays.values():
            parts = seeded_shares(array, np.uint32)
            call.send_parts([spoil(party, part) if spoil else part for party, part in enumerate(parts)])
        call.receive_fields("piece")
        call.receive_fields("accepted")


def test_bad_rows_are_refused_and_nobody_is_accused(here: Place) -> None:
    good, rows = HiddenForest(TASK).encode_rows("north", X[:20], Y[:20])
    two = {key: array.astype(np.int64) for key, array in good.items()}
    two["features"][0, :, 3] = 1
    negative = {key: array.astype(np.int64) for key, array in good.items()}
    negative["features"][0, :, 3] = [2, -1, 0, 0, 0]
    classes = {key: array.astype(np.int64) for key, array in good.items()}
    classes["classes"][:, 5] = 1
    short = {"features": good["features"][:, :4], "classes": good["classes"]}
    for arrays, why, party in (
        (two, "features that are not one-hot", None),  # or a server lied in the check
        (negative, "features that are not one-hot", None),
        (classes, "classes that are not one-hot", None),
        (short, "wrong length", "owner north"),  # each server sees that by itself
    ):
        with pytest.raises(PartyError, match=f"owner north .*{why}") as caught:
            send_arrays(here, arrays, rows)
        assert caught.value.party == party
    with pytest.raises(PartyError, match="owner north are refused: shares that do not fit together"):
        send_arrays(here, good, rows, lambda party, part: part[:-1] + b"\x07" if party == 1 else part)
    assert all(server._task_states["scale"].complete_uploads == {} for server in here.servers)
    here.train()  # and those who keep to the protocol are served


@pytest.mark.parametrize("rows", [0, -1, 1.5, "many", None, True, 1 << 40])
def test_numbers_of_rows_that_are_none(trained: Place, rows: Any) -> None:
    with pytest.raises(PartyError, match="is not a number of rows"):
        first_word(trained.config("owner-north"), TASK, "contribute", rows=rows)


def test_more_rows_than_a_server_takes_are_refused_unread(trained: Place) -> None:
    with pytest.raises(PartyError, match="too many rows or parts"):
        first_word(trained.config("owner-north"), TASK, "contribute", rows=1 << 30, **UPLOAD)


def test_an_owner_that_tells_servers_different_things_is_refused(here: Place) -> None:
    config = here.config("owner-north")
    with ServerConnections(config, TASK, "status") as call:  # to borrow its connections
        call.receive_fields("phase")
        call.send_fields(more=False)
    good, rows = HiddenForest(TASK).encode_rows("north", X[:20], Y[:20])
    fewer, _ = HiddenForest(TASK).encode_rows("north", X[:19], Y[:19])
    context = tls_context(config.identity, config.servers_authority, listens=False)
    lines = []
    for party, address in enumerate(config.servers):
        name = PartyName("server", str(party))
        channel = dial_server(address.host, address.participants, context, name, timeout=30, limit=1 << 20)
        count, arrays = (rows, good) if party else (rows - 1, fewer)
        about = {"task": "scale", "fingerprint": TASK.fingerprint(), "session": "cheat"}
        channel.send_fields(do="contribute", **about, rows=count, **here.owner("north").consent(), **UPLOAD)
        channel.receive_fields("send")
        lines.append((channel, [seeded_shares(array, np.uint32)[party] for array in arrays.values()]))

    def go_on(channel: Channel, parts: list[bytes]) -> None:
        channel.send_fields(start=0)
        for part in parts:
            channel.send(part)
        channel.receive_fields("accepted")

    with ThreadPoolExecutor(3) as pool:
        for ended in [pool.submit(go_on, *line) for line in lines]:
            error = ended.exception(60)
            assert isinstance(error, PartyError)
            assert "different facts about" in str(error)
            assert error.party is None


def test_an_owner_may_replace_its_rows_until_training_begins(here: Place) -> None:
    north = here.owner("north")
    north.contribute(X[:10], Y[:10])
    north.contribute(X[:30], Y[:30])
    assert [server._task_states["scale"].complete_uploads["north"][1] for server in here.servers] == [30, 30, 30]
    assert north.status()[0]["missing"] == ["south"]


def test_rows_come_with_a_signature_under_what_is_trained(here: Place) -> None:
    good, others = here.owner("north").consent(), here.owner("south").consent()
    stale = [*good["tickets"][:2], "0" * 16]
    for words in (
        {"approval": None, "tickets": good["tickets"]},
        {"approval": "00", "tickets": good["tickets"]},
        {"approval": good["approval"][:-2], "tickets": good["tickets"]},
        {"approval": good["approval"], "tickets": stale},
        {"approval": good["approval"]},
        others,
    ):
        with pytest.raises(PartyError, match="owner north has not signed the plan of task 'scale'") as caught:
            first_word(here.config("owner-north"), TASK, "contribute", rows=9, **words, **UPLOAD)
        assert caught.value.party == "owner north"
    here.train()
    here.settle()
    for server in here.servers:  # which the model keeps
        assert set(server._model_store.load("scale").facts["approvals"]) == {"north", "south"}


def test_servers_train_only_what_all_owners_have_signed(here: Place) -> None:
    here.owner("north").contribute(X[:250], Y[:250])
    here.servers[1]._task_states["scale"].checkpoint.approvals.clear()
    here.owner("south").contribute(X[250:], Y[250:])
    with pytest.raises(PartyError, match="north did not sign this training run"):
        here.owner("north").wait(60)
