# SPDX-License-Identifier: Apache-2.0
"""Rows that stream by: an iterator of tables, or of pairs of table and target, which can be read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from veilwood.data.batches import Batch, Source, encode_rows, kept_of, view
from veilwood.data.encoding import Encoding
from veilwood.data.frames import Table
from veilwood.data.problems import Invalid
from veilwood.errors import OutOfSchemaError, UseError
from veilwood.privacy.neighbours import RowsOf

__all__ = ["open_stream"]


def open_stream(pieces: Iterator[Any], encoding: Encoding, *, cap: RowsOf | None, invalid: Invalid) -> Source:
    """Make a source of an iterator; whoever takes a piece encodes it."""
    if cap is not None:
        raise UseError(
            f"at most {cap.at_most} rows of each {cap.id!r} cannot be chosen while rows stream by. "
            "Hint: pass files or a table, which can be read twice."
        )

    def read() -> Iterator[Callable[[], Batch]]:
        first_row = 0
        for piece in pieces:
            X, y = piece if isinstance(piece, tuple) and len(piece) == 2 else (piece, None)
            table = view(X, encoding, invalid)
            yield partial(_encode, encoding, table, y, invalid, first_row)
            first_row += table.n_rows
        if not first_row and invalid == "refuse":
            raise OutOfSchemaError("the iterator held no batches. Hint: has it been read before?")

    return Source(read, once=True)


def _encode(encoding: Encoding, table: Table, y: Any, invalid: Invalid, first_row: int) -> Batch:
    return kept_of(*encode_rows(encoding, table, y, invalid=invalid, first_row=first_row))
