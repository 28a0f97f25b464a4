# SPDX-License-Identifier: Apache-2.0
"""The order in which rows are sent: secret, so that who knows which places share a tree learns nothing by it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest

from veilwood_secure.mpc.shares import reconstruct
from veilwood_secure.roles import uploads
from veilwood_secure.roles.program import program_for_task
from veilwood_secure.roles.uploads import UploadPieces, order_key, split_piece
from veilwood_testing.secure_roles import TASK, Place, X, Y

PROGRAM = program_for_task(TASK)
FRAME = pd.DataFrame(X, columns=list(TASK.public_schema.feature_names))


def all_of(pieces: UploadPieces) -> dict[str, Any]:
    found = list(pieces)
    return {name: np.concatenate([piece[name] for piece in found], axis=-1) for name in found[0]}


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize(("table", "target"), [(X, Y), (FRAME, list(Y))], ids=["arrays", "frame and list"])
def test_every_row_and_all_padding_is_sent_once(
    in_pieces: bool, table: Any, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_pieces:
        monkeypatch.setattr(uploads, "PIECE_BYTES", 6000)
    plain = PROGRAM.encode_rows("north", X, Y, 700)[0]
    mixed = UploadPieces(PROGRAM, "north", table, target, 700, order_key(b"secret", "rows"))
    assert (len(mixed.row_counts) > 1) == in_pieces
    sent = all_of(mixed)
    order = uploads._keyed_permutation(order_key(b"secret", "rows"), 700)
    for name, array in plain.items():
        assert np.array_equal(sent[name], array[..., order]), name
    other = all_of(UploadPieces(PROGRAM, "north", table, target, 700, order_key(b"another", "rows")))
    assert not np.array_equal(other["features"], sent["features"])
    assert mixed.upload_token(b"secret", "") == UploadPieces(PROGRAM, "north", table, target, 700).upload_token(
        b"secret", ""
    )


def test_a_client_sends_its_rows_in_another_order_than_they_stand(here: Place) -> None:
    here.owner("north").contribute(X[:100], Y[:100])
    shapes = PROGRAM.row_shapes("north", 100)
    pieces = [server._task_states["scale"].checkpoint.read_piece("north", "rows", 0) or b"" for server in here.servers]
    pairs = [split_piece(party, piece, shapes, np.uint32) for party, piece in enumerate(pieces)]
    sent = reconstruct([pair["features"] for pair in pairs])
    assert not np.array_equal(sent, PROGRAM.encode_rows("north", X[:100], Y[:100])[0]["features"])


def test_owners_of_columns_keep_to_one_order() -> None:
    names = [*TASK.public_schema.feature_names, TASK.public_schema.target.name]
    held = {"north": names[:2], "south": names[2:]}
    assert not program_for_task(type(TASK)(**{**TASK.to_dict(), "owners": held})).shuffles_rows
    assert PROGRAM.shuffles_rows


def test_all_orders_are_as_likely() -> None:
    """Then a row less has the law of padding in its place: taking it out only gives the others another order."""
    keys = [order_key(str(number).encode(), "rows") for number in range(4800)]  # fixed, so that chance has no part
    found = Counter(tuple(np.asarray(uploads._keyed_permutation(key, 4)).tolist()) for key in keys)
    assert len(found) == 24
    assert all(abs(count - 200) < 75 for count in found.values())
