# SPDX-License-Identifier: Apache-2.0
"""Work on one partition of a cluster: encode, count, bound contributions, predict. Independent of the engine.

Transport of partitions and sums is in ``engines``.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from veilwood.data import contributions
from veilwood.data.batches import Batch, Count, Sums, encode_rows, select_rows, view_table
from veilwood.data.encoding import Encoding
from veilwood.data.problems import Invalid
from veilwood.errors import OutOfSchemaError
from veilwood.privacy.neighbours import RowsOf

N_BUCKETS: Final = 256  # all rows of an id are in one bucket; with more buckets, each needs less memory
ERROR_BUCKET: Final = -1  # bucket of an error message, which replaces the rows
BATCH_ROWS: Final = 65536  # rows of a batch, to bound the memory of a worker
PREDICTION, PROBABILITY = "prediction", "probability"  # names as in Spark MLlib


class Addable(Protocol):
    """Values that can be added: an array of sums, or a list of non-empty cells."""

    def __add__(self, other: Any, /) -> Any:
        """Return the sum with another value."""

    def copy(self) -> Any:
        """Return a copy."""


@dataclass(repr=False)  # no repr, because workers log failed calls with their arguments, and sums are exact
class PartialSums:
    """Sums of some partitions, checksums of their rows, and the first error. Partial sums can be added."""

    sums: Addable | None = None
    checksums: dict[int, tuple[int, int]] = field(default_factory=dict)  # rows and checksum of each partition
    error: OutOfSchemaError | None = None

    @classmethod
    def total(cls, parts: Iterable[PartialSums]) -> PartialSums:
        """Return the total of partial sums without changing them: an engine may reuse them after a failure."""
        total = cls()
        for part in parts:
            if part.sums is not None:
                total.sums = part.sums.copy() if total.sums is None else total.sums + part.sums
            total.checksums |= part.checksums
            total.error = total.error or part.error
        return total


@dataclass(repr=False)
class PartitionState:
    """State of one partition between passes: an object built from its rows, and the checksums of the rows."""

    value: Any
    part: PartialSums  # without sums


def create_state(
    make: Callable[[list[Batch]], Any], read: Callable[..., NumberedBatches], *where: Any
) -> PartitionState:
    """Build the state of one partition."""
    states: list[Any] = []

    def collect_all(batches: Iterable[Batch], *, n_jobs: int | None = 1) -> Sums:
        states.append(make(list(batches)))
        return np.zeros(0, np.int64)

    part = count_rows(collect_all, read, *where)
    return PartitionState(states[0] if states else None, replace(part, sums=None))


def update_state(function: Callable[[Any], Any], state: PartitionState) -> PartitionState:
    """Return the updated state of a partition. The old state stays valid, because an engine may need it again."""
    return state if state.part.error is not None else replace(state, value=function(state.value))


def query_state(query: Callable[[Any], Addable], state: PartitionState) -> PartialSums:
    """Query the state of a partition."""
    return state.part if state.part.error is not None else replace(state.part, sums=query(state.value))


NumberedBatches: TypeAlias = tuple[int, Iterator[Batch]]  # the number of a partition, and its rows


def count_rows(count: Count, read: Callable[..., NumberedBatches], *where: Any) -> PartialSums:
    """Count the rows of one partition, read by ``read``: ``read_tables`` or ``read_bucket``."""
    try:
        partition, batches = read(*where)
    except OutOfSchemaError as error:
        return PartialSums(error=error)
    return _count_batches(count, partition, batches)


def read_tables(encoding: Encoding, invalid: Invalid, partition: int, tables: Iterable[Any]) -> NumberedBatches:
    """Read the rows of a partition."""

    def view_batches() -> Iterator[Batch]:
        row = 0
        for piece in _split_tables(tables):
            table = view_table(piece, encoding, invalid)
            yield select_rows(*encode_rows(encoding, table, None, invalid=invalid, partition=partition, first_row=row))
            row += table.n_rows

    return partition, view_batches()


def read_bucket(cap: RowsOf, salt: int, time_index: int | None, encoded: pa.Table) -> NumberedBatches:
    """Repeat the rows of each id of one bucket to k rows, or take its first k rows if there is a time column.

    How often a row counts depends only on the contents of the id's own rows and on the salt. It is therefore the same
    in every pass, wherever an engine's shuffle puts the rows.
    """
    partition = int(encoded.column("bucket")[0].as_py())
    if partition == ERROR_BUCKET:
        raise OutOfSchemaError(encoded.column("id")[0].as_py())
    values = np.column_stack([encoded.column(name).to_numpy() for name in encoded.column_names[2:]])
    ids = np.array(encoded.column("id").to_pylist(), dtype=object)  # NumPy strings would lose trailing NULs
    _, person = np.unique(ids, return_inverse=True)
    order = contributions.row_hash(values, salt)
    order = order if time_index is None else contributions.order_by_time(values[:, 1 + time_index], order)
    copies = contributions.copies_per_row(person.astype(np.int64), order, cap.at_most, shared=time_index is None)
    rows = np.lexsort((order, person))  # by content, wherever the shuffle put them
    repeated = values[np.repeat(rows, copies[rows])]
    batch = Batch(repeated[:, 1:].astype(np.uint16), repeated[:, 0].astype(np.int32), partition, 0)
    return partition, iter([batch])


def encode_with_id(encoding: Encoding, cap: RowsOf, invalid: Invalid, tables: Iterable[Any]) -> Iterator[pa.Table]:
    """Encode rows for the engine's own group-by: bucket, id as text, target and codes.

    Ids are compared by the rule of ``canonical``: an engine would treat 7 and "7.0" as two people.
    """
    schema = encoded_schema(encoding)
    try:
        for piece in _split_tables(tables):
            table = view_table(piece, encoding, invalid)
            column = table.column_by_name(cap.id)
            if column is None:
                raise contributions.missing_id_column_error(cap)
            ids, texts = contributions.encode_ids(column, cap, invalid)
            batch, fits = encode_rows(encoding, table, None, invalid=invalid, allowed_extra=(cap.id,))
            known = ids >= 0
            batch, ids = select_rows(batch, fits, known), ids[known if fits is None else known & fits]
            buckets = np.array([zlib.crc32(text.encode()) % N_BUCKETS for text in texts], np.int32)
            numbers = [batch.target, *batch.codes.T.astype(np.int32)]
            yield pa.table([buckets[ids], np.array(texts, dtype=object)[ids], *numbers], schema=schema)
    except OutOfSchemaError as error:
        yield pa.table([[ERROR_BUCKET], [str(error)], *([0] for _ in schema.names[2:])], schema=schema)


def _count_batches(count: Count, partition: int, batches: Iterator[Batch]) -> PartialSums:
    seen = [0, 0]

    def with_checksums() -> Iterator[Batch]:
        for batch in batches:
            seen[0] += len(batch.target)
            seen[1] = zlib.crc32(batch.target.tobytes(), zlib.crc32(batch.codes.tobytes(), seen[1]))
            yield batch

    try:
        sums = count(with_checksums(), n_jobs=1)
    except OutOfSchemaError as error:  # returned, because engines retry failed tasks and wrap their errors
        return PartialSums(error=error)
    return PartialSums(sums, {partition: (seen[0], seen[1])})


def _split_tables(tables: Iterable[Any]) -> Iterator[Any]:
    """Split the tables of an engine into batches of bounded size; drop empty batches."""
    for table in tables:
        for start in range(0, len(table), BATCH_ROWS):
            yield table[start : start + BATCH_ROWS]


def encoded_schema(encoding: Encoding) -> pa.Schema:
    """Return the Arrow schema of rows that were encoded with their id."""
    codes = [(f"code{i}", pa.int32()) for i in range(len(encoding.columns))]
    return pa.schema([("bucket", pa.int32()), ("id", pa.string()), ("target", pa.int32()), *codes])


def select_features(model: Any, piece: Any) -> Any:
    """Select the model's columns of a table."""
    names = piece.columns if isinstance(piece, pd.DataFrame) else piece.column_names
    known = [name for name in model.feature_names_in_ if name in names]
    return piece[known] if isinstance(piece, pd.DataFrame) else piece.select(known)


def append_predictions(model: Any, method: Callable[[Any], Any], name: str, piece: Any) -> Any:
    """Append a column of predictions, or of class probabilities, to an Arrow table or batch."""
    kind = pa.list_(pa.float64()) if name == PROBABILITY else label_type(model)
    if not piece.num_rows:
        return piece.append_column(name, pa.array([], kind))
    return piece.append_column(name, pa.array(method(select_features(model, piece)).tolist(), kind))


def label_type(model: Any) -> pa.DataType:
    """Return the type of a model's predictions."""
    return pa.array(model.classes_.tolist()).type if hasattr(model, "classes_") else pa.float64()


def pack_part(part: PartialSums | PartitionState) -> pa.Table:
    """Pickle partial sums or a state into a table with one cell, for engines that exchange tables."""
    return pa.table({"part": pa.array([pickle.dumps(part)], pa.binary())})


def sum_packed(packed_parts: Iterable[bytes]) -> PartialSums:
    """Return the total of packed partial sums. Unpickling is safe: they come from the user's own workers."""
    return PartialSums.total(map(pickle.loads, packed_parts))
