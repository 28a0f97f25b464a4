# SPDX-License-Identifier: Apache-2.0
"""Encoded private rows in batches: one pass or several, each aggregated into counts.

Only this module decides what happens to a row that does not fit the schema (``encode_rows``). ``open_rows`` chooses the
source. ``file_source`` makes sources of files, ``veilwood_engines`` of databases and clusters. ``trees`` counts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from veilwood.arrays import Bools, Codes, Int32s, Ints, count_threads
from veilwood.data.contributions import IdFilter, Weights, bound_contributions, id_column
from veilwood.data.counts import RowBackend
from veilwood.data.encoding import Encoding
from veilwood.data.frames import Table, target_values
from veilwood.data.problems import Invalid
from veilwood.errors import OutOfSchemaError, UseError, VeilwoodError
from veilwood.privacy.neighbours import RowsOf, id_names
from veilwood.progress import track_progress

Sums: TypeAlias = Ints
Made = TypeVar("Made")

MAX_CELLS_PER_THREAD = 1 << 20  # above this number, threads share one array of sums instead of each having one


class Batch(NamedTuple):
    """Encoded rows and their location: row ``i`` of the batch is row ``first_row + i`` of ``partition``."""

    codes: Codes
    target: Int32s
    partition: int
    first_row: int


class Count(Protocol):
    """Integer aggregate of batches. The aggregates of disjoint subsets of the rows add up to that of all rows.

    Must be picklable, since workers of a cluster receive it, and must have no side effects.
    """

    def __call__(self, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> Sums:
        """Return the sums of these batches."""


class RowFilter(Protocol):
    """Filter that selects a fraction of the rows with a secret key: the same rows in every pass.

    Must be picklable, since workers of a cluster receive it. An engine that executes none of this library's code, such
    as a database, draws by ``key`` and the contents of a row instead.
    """

    @property
    def key(self) -> bytes:
        """Secret key of the draw."""

    @property
    def per_mille(self) -> int:
        """Size of the held-out fraction, in thousandths."""

    @property
    def held_out(self) -> bool:
        """Whether the held-out rows are selected, or the other rows."""

    def __call__(self, batch: Batch) -> Batch:
        """Return the selected rows of a batch."""


class AggregatePass(Protocol):
    """Function that passes over all rows and returns the sums of ``count``, as ``Source.aggregate`` does."""

    def __call__(self, count: Count, /, *, n_jobs: int | None = 1) -> Sums:
        """Return the sums of all batches."""


@dataclass(frozen=True, repr=False)
class Source:
    """Source of private rows, which returns the same batches with the same row numbers in every pass.

    Attributes
    ----------
    single_pass : bool
        Whether the rows can be read only once, like those of an iterator.
    n_partitions : int
        Upper limit of partition numbers.
    preserves_rows : bool
        Whether each row of the table is exactly one row of the source, whatever its contents. If weights copy rows, or
        contents decide the holdout, replacing a row can change the number of rows.
    """

    _read: Callable[
        [], Iterator[Callable[[], Batch]]
    ]  # functions that return one batch each; the consumer calls them, which encodes the batch
    single_pass: bool = False
    n_partitions: int = 1
    preserves_rows: bool = field(default=True, kw_only=True)

    def batches(self) -> Iterator[Batch]:
        """Read all rows once."""
        for unread in self._read():
            yield unread()

    def map_batches(self, function: Callable[[Batch], Made], *, n_jobs: int | None = 1) -> Iterator[Made]:
        """Read all rows once and apply ``function`` to each batch, in order. Threads take a few batches at a time."""
        if (n_threads := count_threads(n_jobs)) == 1:
            yield from map(function, self.batches())
            return
        made: deque[Future[Made]] = deque()
        with ThreadPoolExecutor(n_threads) as pool:
            for unread in self._read():
                made.append(pool.submit(lambda unread: function(unread()), unread))
                if len(made) > 2 * n_threads:
                    yield made.popleft().result()
            while made:
                yield made.popleft().result()

    def aggregate(self, count: Count, progress_label: str = "counting", *, n_jobs: int | None = 1) -> Sums:
        """Read all rows once and return the sums of ``count``. They are exact, hence private.

        Threads take turns in reading; each encodes and counts its own batches, so that no core waits.
        """
        n_threads = count_threads(n_jobs)
        if n_threads == 1 or count([]).size > MAX_CELLS_PER_THREAD:
            return self.share_sums(count(track_progress(self.batches(), progress_label), n_jobs=n_jobs))
        unread = track_progress(self._read(), progress_label)
        turn, stopped = threading.Lock(), threading.Event()

        def take_batches() -> Iterator[Batch]:
            try:
                while not stopped.is_set():
                    with turn:
                        own = next(unread, None)
                    if own is None:
                        return
                    yield own()
            except BaseException:
                stopped.set()  # the other threads can stop
                raise

        with ThreadPoolExecutor(n_threads) as pool:
            try:
                contexts = [copy_context() for _ in range(n_threads)]  # in which a GPU may be in use
                parts = list(pool.map(lambda context: context.run(partial(count, n_jobs=1), take_batches()), contexts))
            finally:
                stopped.set()
        total: Sums = parts[0]
        for part in parts[1:]:
            total += part
        return self.share_sums(total)

    def make_backend(self, columns: Sequence[Any], n_outputs: int) -> RowBackend | None:
        """Return a backend that leaves these rows in place, or None if rows must be read into memory.

        ``columns`` are the bins of each column (``forests.adaptive.contingency.BinnedColumn``).
        """
        return None

    def select_part(self, row_filter: RowFilter) -> Source:
        """Return a source of the rows that a filter selects."""

        def read_filtered() -> Iterator[Callable[[], Batch]]:
            for unread in self._read():
                yield partial(_read_filtered, unread, row_filter)

        return Source(read_filtered, self.single_pass, self.n_partitions, preserves_rows=self.preserves_rows)

    @property
    def executed_statements(self) -> list[str] | None:
        """Hashes of the statements that a database has executed so far, or None if this process reads the rows."""
        return None

    @property
    def is_complete(self) -> bool:
        """Whether this process has all rows. Otherwise its sums are partial sums or secret shares."""
        return True

    def share_sums(self, sums: Sums) -> Sums:
        """Return the sums, or secret shares of the joint sums if several owners have rows (``veilwood_secure``)."""
        return sums

    def check_passes(self, multi_pass: bool, estimator_name: str) -> None:
        """Raise UseError, before anything is spent, if ``multi_pass`` and the rows can be read only once."""
        if self.single_pass and multi_pass:
            raise UseError(
                f"{estimator_name} reads the rows several times, and an iterator of batches can be read only once. "
                "Hint: pass vw.spool(rows) to allow a temporary file, or write Parquet files and pass their folder."
            )


def _read_filtered(unread: Callable[[], Batch], row_filter: RowFilter) -> Batch:
    return row_filter(unread())


# -- encoding of features and target: the valid rows, or an error for the whole table ------------------------------


def view_table(X: Any, encoding: Encoding, invalid: Invalid) -> Table:
    """View a table. With ``invalid="drop"``, nothing that depends on its rows is rejected."""
    try:
        return Table.from_data(X, width=len(encoding.columns) if invalid == "drop" else None)
    except VeilwoodError:
        raise
    except Exception:  # an error of another library, whose message may contain values
        raise OutOfSchemaError("the table cannot be read. Hint: pass a dataframe, a 2-D array or a file.") from None


def encode_rows(
    encoding: Encoding,
    table: Table,
    y: Any,
    *,
    invalid: Invalid,
    allowed_extra: Collection[str] = (),
    estimator: str = "the schema",
    partition: int = 0,
    first_row: int = 0,
) -> tuple[Batch, Bools | None]:
    """Encode a table and its target. Return all rows, and a mask of the valid ones (None if all are valid).

    With "refuse", one invalid row rejects the table, and the error names every column and kind of problem. With "drop",
    whether a row is valid is a function of that row alone, and nothing about rows is raised or reported.
    """
    drop = invalid == "drop"
    codes, target, problems = encoding.read_rows(table, y, parse=drop, allowed_extra=allowed_extra, estimator=estimator)
    if len(codes) != len(target):
        raise OutOfSchemaError("X and y have inconsistent numbers of samples. Hint: pass one target for each row.")
    if problems.kinds_by_column and not drop:
        name = encoding.schema.target.name if y is not None else None
        problems.raise_if_any(
            lambda column: target_values(y) if column == name else encoding.column_values(table, column), first_row
        )
    return Batch(codes, target, partition, first_row), problems.valid_rows(
        len(codes)
    ) if problems.kinds_by_column else None


def split_target(piece: Any) -> tuple[Any, Any]:
    """Return table and target of a piece of a stream, which is ``(X, y)`` or a table that contains the target."""
    return piece if isinstance(piece, tuple) and len(piece) == 2 else (piece, None)


def empty_batch(encoding: Encoding) -> Batch:
    """Return a batch without rows, which stands for an empty table."""
    return Batch(np.empty((0, len(encoding.columns)), np.uint16), np.empty(0, np.int32), 0, 0)


def select_rows(batch: Batch, *factors: Bools | Ints | None) -> Batch:
    """Return each row repeated by the product of the factors. A mask is a factor of 0 or 1."""
    given = [factor for factor in factors if factor is not None]
    if not given:
        return batch
    copies = reduce(np.multiply, given)
    rows = copies if copies.dtype == bool else np.repeat(np.arange(len(copies)), copies)
    return batch._replace(codes=batch.codes[rows], target=batch.target[rows])


def open_memory(
    X: Any,
    y: Any,
    encoding: Encoding,
    *,
    cap: RowsOf | None,
    invalid: Invalid,
    batch_rows: int,
    estimator: str,
    id_filter: IdFilter | None = None,
    weights: Weights | None = None,
) -> Source:
    """Encode a table and its target, and return their source."""
    table = view_table(X, encoding, invalid)
    batch, fits = encode_rows(encoding, table, y, invalid=invalid, allowed_extra=id_names(cap), estimator=estimator)
    of_id = copies = None
    if cap is not None:
        times = None if encoding.time_index is None else [batch.codes[:, encoding.time_index]]
        (of_id,) = bound_contributions([[id_column(table, cap)]], cap, invalid, id_filter, times)
    if weights is not None:
        copies = weights.draw_copies(len(batch.target), invalid)
    codes, target, *_ = select_rows(batch, copies, of_id, fits)

    def read_slices() -> Iterator[Callable[[], Batch]]:
        for start in range(0, max(len(codes), 1), batch_rows):
            rows = slice(start, start + batch_rows)
            yield partial(Batch, codes[rows], target[rows], 0, start)

    return Source(read_slices, preserves_rows=weights is None)


def open_stream(pieces: Iterator[Any], encoding: Encoding, *, cap: RowsOf | None, invalid: Invalid) -> Source:
    """Return a source that reads an iterator of tables. The consumer of a batch encodes it."""
    if cap is not None:
        raise UseError(
            f"the rows of a stream cannot be limited per {cap.id!r}, because they are read only once. "
            "Hint: pass files or a table, which can be read several times."
        )

    def read_pieces() -> Iterator[Callable[[], Batch]]:
        first_row = 0
        for piece in pieces:
            X, y = split_target(piece)
            table = view_table(X, encoding, invalid)
            yield partial(_encode_streamed, encoding, table, y, invalid, first_row)
            first_row += table.n_rows
        if not first_row and invalid == "refuse":
            raise OutOfSchemaError(
                "the iterator returned no batches. Hint: pass a new iterator; this iterator may have been read before."
            )

    return Source(read_pieces, single_pass=True)


def _encode_streamed(encoding: Encoding, table: Table, y: Any, invalid: Invalid, first_row: int) -> Batch:
    return select_rows(*encode_rows(encoding, table, y, invalid=invalid, first_row=first_row))
