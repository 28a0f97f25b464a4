# SPDX-License-Identifier: Apache-2.0
"""Uploads of rows in pieces: two shares of a piece are expanded from seeds (PRSS), and the third is sent.

Pieces are sent in ``owner``, received in ``server`` and stored in ``checkpoints``.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from veilwood.arrays import AnyArray, Ints
from veilwood.errors import UseError
from veilwood.privacy import entropy
from veilwood_secure.mpc.engine import as_ring_array
from veilwood_secure.mpc.replicated import KeyStream
from veilwood_secure.mpc.shares import SharePair
from veilwood_secure.roles.program import Program, Shapes

PIECE_BYTES: Final = 1 << 22
"""Approximate size of one share of a piece, in bytes."""
_ROWS: Final = 64  # pieces hold complete words of packed rows
_SEED: Final = 32  # bytes of a seed

Ring = type[np.unsignedinteger[Any]]


class Piece(NamedTuple):
    """Next piece of an upload: its part, the entry of the part, the session, the piece's number and its shapes."""

    part: str
    upload_entry: dict[str, Any]
    session: str
    number: int
    shapes: Shapes


def max_rows_per_piece(program: Program, owner: str) -> int | None:
    """Return the number of rows of a piece, from the public schema; None if an owner sends sums instead of rows."""
    few, more = program.row_shapes(owner, _ROWS), program.row_shapes(owner, 2 * _ROWS)
    if few == more:
        return None
    size = sum(map(math.prod, few.values())) * np.dtype(program.ring).itemsize
    return _ROWS * max(1, PIECE_BYTES // size)


def piece_row_counts(program: Program, owner: str, rows: int) -> list[int]:
    """Return the number of rows of each piece of an upload."""
    max_rows = max_rows_per_piece(program, owner)
    if max_rows is None or rows <= max_rows:
        return [rows]
    return [min(max_rows, rows - start) for start in range(0, rows, max_rows)]


class UploadPieces:
    """Owner's table in pieces that are encoded on demand.

    Parameters
    ----------
    program : Program
        Program of the task.
    owner : str
        Name of the owner.
    X, y
        The rows.
    pad_to : int or None
        Number of rows that servers see.
    order : bytes or None
        Key of the random order in which rows and padding are sent; None for the order of the table.

    Notes
    -----
    Guarantee

    Under a key that servers do not have, the position of a row reveals nothing about the rows before it: removing a
    row has the same distribution as replacing it by padding (proofs/secure.md, attacked by
    packages/veilwood-secure/tests/roles/test_order_of_rows.py).
    """

    def __init__(
        self, program: Program, owner: str, X: Any, y: Any, pad_to: int | None, order: bytes | None = None
    ) -> None:
        self._program, self._owner, self._tables = program, owner, (X, y)
        self._pad_to, self._max_rows = pad_to, max_rows_per_piece(program, owner)
        n_rows = len(X) if hasattr(X, "__len__") else None
        if n_rows == 0:
            raise UseError("the table has no rows. Hint: pass at least one.")
        self._is_single_piece = self._max_rows is None or n_rows is None or max(n_rows, pad_to or 0) <= self._max_rows
        if self._is_single_piece:
            self._encoded, self.n_rows = program.encode_rows(owner, X, y, pad_to)
            self._order = _keyed_permutation(order, self.n_rows)
            return
        assert n_rows is not None
        if y is not None and len(y) != n_rows:
            raise UseError(f"X has {n_rows} rows and y has {len(y)}. Hint: pass equal, positive numbers of rows.")
        if pad_to is not None and pad_to < n_rows:
            raise UseError(f"{n_rows} rows cannot be padded to {pad_to}. Hint: choose a larger public number.")
        self._n_real_rows, self.n_rows = n_rows, pad_to or n_rows
        self._order = _keyed_permutation(order, self.n_rows)

    @property
    def row_counts(self) -> list[int]:
        """Number of rows of each piece."""
        return [self.n_rows] if self._is_single_piece else piece_row_counts(self._program, self._owner, self.n_rows)

    def __iter__(self) -> Iterator[dict[str, AnyArray]]:
        return (self.encode_piece(number) for number in range(len(self.row_counts)))

    def encode_piece(self, number: int) -> dict[str, AnyArray]:
        """Return the arrays of a piece in the order in which they are sent."""
        if self._order is None:
            return self._ordered_piece(number)
        if self._is_single_piece:
            return {name: array[..., self._order] for name, array in self._encoded.items()}
        assert self._max_rows is not None
        return self._shuffled_piece(
            self._order[number * self._max_rows : number * self._max_rows + self.row_counts[number]]
        )

    def _ordered_piece(self, number: int) -> dict[str, AnyArray]:
        """Return the arrays of a piece in the order of the table."""
        if self._is_single_piece:
            return self._encoded
        assert self._max_rows is not None
        start, count = number * self._max_rows, self.row_counts[number]
        if start < self._n_real_rows:
            X, y = (_take_rows(table, slice(start, start + count)) for table in self._tables)
            return self._program.encode_rows(self._owner, X, y, count if self._pad_to else None)[0]
        return self._padding_piece(count)

    def _shuffled_piece(self, indices: Ints) -> dict[str, AnyArray]:
        """Return a piece of the rows with these indices. Indices beyond the table are padding."""
        real = indices < self._n_real_rows
        if not real.any():
            return self._padding_piece(len(indices))
        X, y = (_take_rows(table, indices[real]) for table in self._tables)
        encoded = self._program.encode_rows(self._owner, X, y, len(indices))[0]  # padding comes last
        back = np.argsort(np.argsort(~real, kind="stable"))
        return {name: array[..., back] for name, array in encoded.items()}

    def _padding_piece(self, count: int) -> dict[str, AnyArray]:
        """Return a piece of padding rows, which are not counted."""
        shapes = self._program.row_shapes(self._owner, count)
        if all(shape[-1] == count for shape in shapes.values()):
            X, y = (_take_rows(table, slice(0, 1)) for table in self._tables)
            one = self._program.encode_rows(self._owner, X, y, count + 1)[0]
            return {name: array[..., 1:] for name, array in one.items()}
        some = self._ordered_piece(0)
        return {name: np.zeros(shape, some[name].dtype) for name, shape in shapes.items()}

    def upload_token(self, secret: bytes, about: str) -> str:
        """Return the name of an upload: a keyed hash of the rows, which reveals nothing without the secret."""
        digest = hmac.new(secret, about.encode(), hashlib.sha256)
        for number in range(len(self.row_counts)):
            for name, array in self._ordered_piece(number).items():
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:32]


def order_key(secret: bytes, about: str) -> bytes:
    """Return the key of a row order. It does not depend on the rows, so an upload can resume."""
    return hmac.new(secret, f"order of rows: {about}".encode(), hashlib.sha256).digest()


def _keyed_permutation(key: bytes | None, count: int) -> Ints | None:
    if key is None:
        return None
    return np.argsort(KeyStream(key).next_integers((count,), np.dtype(np.uint64)), kind="stable")


def _take_rows(table: Any, places: slice | Ints) -> Any:
    if table is None:
        return None
    if hasattr(table, "iloc"):
        return table.iloc[places]
    if isinstance(places, slice) or isinstance(table, np.ndarray):
        return table[places]
    if isinstance(table, Sequence):
        return [table[place] for place in places]
    return table.take(places) if hasattr(table, "take") else table[places]


def seeded_shares(array: AnyArray, ring: Ring) -> list[bytes]:
    """Split an array for three servers: shares 0 and 1 are expanded from seeds, and only share 2 is sent.

    Examples
    --------
    >>> shares = seeded_shares(np.array([5, 7]), np.uint32)
    >>> [len(share) for share in shares]
    [64, 40, 40]
    >>> pairs = [expand_pair(party, share, (2,), np.uint32) for party, share in enumerate(shares)]
    >>> from veilwood_secure.mpc.shares import reconstruct
    >>> reconstruct(pairs)
    array([5, 7])
    """
    words = as_ring_array(array, np.dtype(ring))
    seeds = [entropy.secret_key() for _ in range(2)]
    first, second = (_expand_seed(seed, words.shape, ring) for seed in seeds)
    third = np.ascontiguousarray(words - first - second, np.dtype(ring).newbyteorder("<")).tobytes()
    return [seeds[0] + seeds[1], seeds[1] + third, seeds[0] + third]


def share_size(party: int, shape: tuple[int, ...], ring: Ring) -> int:
    """Return the number of bytes that a server receives for an array."""
    return 2 * _SEED if party == 0 else _SEED + math.prod(shape) * np.dtype(ring).itemsize


def expand_pair(party: int, data: bytes | bytearray | memoryview, shape: tuple[int, ...], ring: Ring) -> SharePair:
    """Expand a server's message to its pair of shares."""
    seed = bytes(data[:_SEED])
    if party == 0:
        return _expand_seed(seed, shape, ring), _expand_seed(bytes(data[_SEED:]), shape, ring)
    third = np.frombuffer(data, np.dtype(ring).newbyteorder("<"), offset=_SEED).astype(ring, copy=False).reshape(shape)
    drawn = _expand_seed(seed, shape, ring)
    return (drawn, third) if party == 1 else (third, drawn)


def _expand_seed(seed: bytes, shape: tuple[int, ...], ring: Ring) -> AnyArray:
    return KeyStream(seed).next_integers(shape, np.dtype(ring))


def split_piece(party: int, data: bytes, shapes: Shapes, ring: Ring) -> dict[str, SharePair]:
    """Return the pairs of all arrays of a piece, from its stored bytes."""
    out, start = {}, 0
    for name, shape in shapes.items():
        end = start + share_size(party, shape, ring)
        out[name] = expand_pair(party, memoryview(data)[start:end], shape, ring)
        start = end
    return out


def join_pieces(pieces: Sequence[Mapping[str, SharePair]], is_sum: bool) -> dict[str, SharePair]:
    """Join the shares of an owner's pieces: concatenate rows, or add sums."""
    if len(pieces) == 1:
        return dict(pieces[0])
    out = {}
    for name in pieces[0]:
        halves = [[piece[name][half] for piece in pieces] for half in range(2)]
        first, second = (sum(half[1:], half[0]) if is_sum else np.concatenate(half, axis=-1) for half in halves)
        out[name] = (first, second)
    return out
