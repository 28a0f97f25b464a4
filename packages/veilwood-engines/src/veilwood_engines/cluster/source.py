# SPDX-License-Identifier: Apache-2.0
"""Sources for frames of Dask, Spark and Ray: every pass runs on the cluster, and rows never leave it.

Noise is drawn once, by the release door, in the process that called ``fit``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from operator import methodcaller
from typing import Any, Final

import numpy as np
import pyarrow as pa

from veilwood.arrays import Bools, Int32s, Ints
from veilwood.data.batches import Batch, Count, RowFilter, Source, Sums
from veilwood.data.contributions import missing_id_column_error
from veilwood.data.counts import Axis, ContingencyTable, RowBackend, RowQuery
from veilwood.data.encoding import Encoding, check_names
from veilwood.data.problems import Invalid, redact_errors_of
from veilwood.data.relations import inferred_types_error
from veilwood.errors import FileError, OutOfSchemaError, UseError
from veilwood.forests.adaptive.contingency import BinnedColumn
from veilwood.forests.adaptive.row_backend import PART_ROWS, MemoryBackend, ScoredRows, group_batches, merge_cells
from veilwood.privacy import entropy
from veilwood.privacy.entropy import secret_key
from veilwood.privacy.neighbours import RowsOf
from veilwood.trees.counting import Assignment
from veilwood_engines.cluster import worker
from veilwood_engines.cluster.engines import ClusterEngine, PersistedPartitions


def open_frame(
    engine: ClusterEngine, frame: Any, encoding: Encoding, *, cap: RowsOf | None, invalid: Invalid
) -> ClusterSource:
    """Create the source of a frame of Dask, Spark or Ray, which must contain the target column (``open_rows``)."""
    with _redact_engine_errors(engine):
        if engine.infers_types(frame):
            raise inferred_types_error(f"a {engine.name} frame")
        names = engine.column_names(frame)
    check_names(encoding.schema, names, allowed_extra=() if cap is None else (cap.id,), target=True)
    if cap is not None and cap.id not in names:
        raise missing_id_column_error(cap)
    with _redact_engine_errors(engine):
        wanted = engine.select_columns(frame, _required_columns(encoding, cap))
    return ClusterSource.from_frame(engine, wanted, encoding, cap, invalid)


def _redact_engine_errors(engine: ClusterEngine) -> AbstractContextManager[None]:
    """Redact the errors of an engine."""
    return redact_errors_of(engine.name, "could not compute the frame", "compute the frame without Veilwood")


def _required_columns(encoding: Encoding, cap: RowsOf | None) -> list[str]:
    schema = encoding.schema
    return list(dict.fromkeys([*schema.sources, *(() if cap is None else (cap.id,))]))


@dataclass(frozen=True, repr=False, kw_only=True)
class ClusterSource(Source):
    """Rows of a frame on a cluster."""

    _frame: EncodedFrame
    _filter: Callable[[Batch], Batch] | None = None  # selects the rows of this source after a split

    @classmethod
    def from_frame(
        cls, engine: ClusterEngine, frame: Any, encoding: Encoding, cap: RowsOf | None, invalid: Invalid
    ) -> ClusterSource:
        """Create the source of a frame, reduced to the required columns."""

        def reject_reading() -> Iterator[Any]:
            raise UseError(
                f"the rows of a {engine.name} frame stay on the cluster, but this method needs them here. "
                "Hint: pass files, or a sample in memory."
            )

        salt = 0 if cap is None else int(entropy.random_integers(1)[0])
        # The number of partitions is known only after a pass, so allow for any number.
        return cls(
            reject_reading, n_partitions=1 << 32, _frame=EncodedFrame(engine, frame, encoding, cap, invalid, salt)
        )

    def aggregate(self, count: Count, progress_label: str = "counting", *, n_jobs: int | None = 1) -> Sums:
        """Count on the workers, which choose their own number of threads: ``n_jobs`` has no effect."""
        counted = count if self._filter is None else partial(_count_filtered, count, self._filter)
        total = self._frame.run_checked(partial(self._frame.run_count, counted))
        sums: Any = total.sums
        return count([]) if sums is None else sums

    def persist(self, make: Callable[[list[Batch]], Any]) -> PersistedRows:
        """Build a state from the rows of each partition and keep it there between passes."""
        make_filtered = make if self._filter is None else partial(_make_filtered, make, self._filter)
        return PersistedRows(self._frame, make_filtered)

    def select_part(self, row_filter: RowFilter) -> ClusterSource:
        """Return a source of the rows that a filter selects."""
        return replace(self, _filter=row_filter)

    def make_backend(self, columns: Sequence[BinnedColumn], n_outputs: int) -> ClusterBackend:
        """Return a backend that holds the rows and their scores on the workers."""
        return ClusterBackend(columns, self, n_outputs)


def _count_filtered(
    count: Count, select: Callable[[Batch], Batch], batches: Iterable[Batch], *, n_jobs: int | None = 1
) -> Sums:
    return count(map(select, batches), n_jobs=n_jobs)


def _make_filtered(make: Callable[[list[Batch]], Any], select: Callable[[Batch], Batch], batches: list[Batch]) -> Any:
    return make([select(batch) for batch in batches])


class PersistedRows:
    """States built from the rows of each partition, which are updated and queried on the workers."""

    def __init__(self, frame: EncodedFrame, make: Callable[[list[Batch]], Any]) -> None:
        self._frame, self._make = frame, make
        self._partitions: PersistedPartitions | None = None

    def update(self, function: Callable[[Any], Any]) -> None:
        """Update the state of every partition."""
        self._partitions = self._current_partitions().update(partial(worker.update_state, function))

    def aggregate(self, query: Callable[[Any], worker.Addable]) -> Any:
        """Return the exact sum of a query over all partitions. The sum is private: it has no noise."""
        return self._frame.run_checked(
            lambda: self._current_partitions().aggregate(partial(worker.query_state, query))
        ).sums

    def close(self) -> None:
        """Release all states."""
        if self._partitions is not None:
            self._partitions.close()
        self._partitions = None

    def _current_partitions(self) -> PersistedPartitions:
        if self._partitions is None:
            self._partitions = self._frame.persist_states(self._make)
        return self._partitions


@dataclass(frozen=True, repr=False, eq=False)
class EncodedFrame:
    """A frame of an engine, its encoding, and checksums of its partitions from earlier passes."""

    engine: ClusterEngine
    frame: Any
    encoding: Encoding
    cap: RowsOf | None
    invalid: Invalid
    salt: int
    checksums: dict[int, tuple[int, int]] = field(default_factory=dict)

    def run_count(self, count: Count) -> worker.PartialSums:
        """Count on the workers."""
        if self.cap is None:
            return self.engine.aggregate_partitions(self.frame, partial(worker.count_rows, count, self._table_reader))
        return self.engine.aggregate_buckets(
            self.frame, *self._id_encoder, partial(worker.count_rows, count, self._bucket_reader)
        )

    def persist_states(self, make: Callable[[list[Batch]], Any]) -> PersistedPartitions:
        """Build states from the rows and persist them on the workers."""
        if self.cap is None:
            return self.engine.persist_partitions(self.frame, partial(worker.create_state, make, self._table_reader))
        return self.engine.persist_buckets(
            self.frame, *self._id_encoder, partial(worker.create_state, make, self._bucket_reader)
        )

    @property
    def _table_reader(self) -> Callable[..., worker.NumberedBatches]:
        return partial(worker.read_tables, self.encoding, self.invalid)

    @property
    def _bucket_reader(self) -> Callable[..., worker.NumberedBatches]:
        assert self.cap is not None
        return partial(worker.read_bucket, self.cap, self.salt, self.encoding.time_index)

    @property
    def _id_encoder(self) -> tuple[Callable[[Iterable[Any]], Iterator[pa.Table]], pa.Schema]:
        assert self.cap is not None
        return partial(worker.encode_with_id, self.encoding, self.cap, self.invalid), worker.encoded_schema(
            self.encoding
        )

    def run_checked(self, run: Callable[[], worker.PartialSums]) -> worker.PartialSums:
        """Run work on the cluster and raise FileError if rows moved or changed since an earlier pass."""
        with _redact_engine_errors(self.engine):
            total = run()
        if total.error is not None:
            raise total.error
        empty = total.sums is None or not any(rows for rows, _ in total.checksums.values())
        if empty and self.invalid == "refuse":
            raise OutOfSchemaError(f"the {self.engine.name} frame holds no rows. Hint: check how it was created.")
        # A row that moved between passes would be assigned to another tree (proofs/disjoint-trees.md).
        if self.checksums and self.checksums != total.checksums:
            raise FileError(
                f"the rows of the {self.engine.name} frame changed between two passes, or their order did. "
                "Hint: write the frame to files and read the files."
            )
        self.checksums.update(total.checksums)
        return total


_DRAW_UNITS: Final = 1 << 30  # secret draws are integers from 0 to this limit, exclusive
# Suffixes of the key, so that draws for different purposes are independent.
_HOLDOUT, _SAMPLE, _CELLS = b"apart  ", b"judges ", b"cells  "

Update = Callable[["PartitionBackend"], None]  # changes rows in place; arguments are public, or the secret key


@dataclass(frozen=True, repr=False)  # no repr, because workers log failed calls with their arguments
class DrawKey:
    """Secret key of all draws of a fit."""

    key: bytes


@dataclass(frozen=True, eq=False, repr=False)
class CellCounts:
    """Non-empty cells in ascending order, and their counts. Instances of several partitions can be added."""

    cells: Ints
    counts: Ints

    def __add__(self, other: CellCounts) -> CellCounts:
        return CellCounts(*merge_cells([(self.cells, self.counts), (other.cells, other.counts)]))

    def copy(self) -> CellCounts:
        """Return the same object: it is immutable."""
        return self


class PartitionBackend(MemoryBackend):
    """Private state of one partition on a worker. Draws depend only on a key and a row's position."""

    def __init__(self, columns: Sequence[BinnedColumn], n_outputs: int, batches: Sequence[Batch]) -> None:
        self._n_jobs, self._joint_source = 1, None
        read = list(group_batches(batches, PART_ROWS))
        self._parts = [ScoredRows.from_batches(columns, some, n_outputs) for some in read]
        self._places = [[(b.partition, b.first_row, len(b.target)) for b in some] for some in read]
        self._remaining: list[Bools] = []  # per part, a mask of the rows that are not held out
        self._holdout: list[ScoredRows] = []
        self._sample: list[ScoredRows] = []
        self._key = b""

    def apply_updates(self, updates: Sequence[Update]) -> PartitionBackend:
        """Return an updated copy. The current state stays valid, because an engine may need it again."""
        later = copy(self)
        later._remaining = list(self._remaining)
        for name in ("_parts", "_holdout", "_sample"):
            copies = [replace(rows, scores=rows.scores.copy()) for rows in getattr(self, name)]
            setattr(later, name, copies)
        for change in updates:
            change(later)
        return later

    def hold_out_keyed(self, draw_key: DrawKey, fraction: float) -> None:
        """Hold out a fraction of the rows."""
        self._key = draw_key.key + _HOLDOUT
        left = [~self._draw_mask(rows, fraction) for rows in self._parts]
        self.hold_out(fraction)
        self._remaining = left

    def draw_sample_keyed(self, draw_key: DrawKey, fraction: float) -> None:
        """Draw the sample of rows that score candidates."""
        self._key = draw_key.key + _SAMPLE
        self.draw_sample(fraction)

    def run_joined(self, asked: Sequence[RowQuery]) -> Ints:
        """Return the results of several queries, one after the other in one array, which can be added up."""
        return np.concatenate([answer.ravel() for answer in self.run_together(asked)])

    def run_on_drawn(self, query: RowQuery) -> Ints:
        """Return the result of a query on the sample."""
        return self.run_on_sample(query, 0.0)[0]

    def nonempty_cells_keyed(
        self, draw_key: DrawKey, axes: Sequence[Axis], n_classes: int, fraction: float
    ) -> CellCounts:
        """Return the non-empty cells."""
        keyed = copy(self)
        keyed._key = draw_key.key + _CELLS
        return CellCounts(*keyed.nonempty_cells(axes, n_classes, fraction))

    def _draw_mask(self, rows: ScoredRows, fraction: float) -> Bools:
        """Return the mask of drawn rows, from the key and each row's position."""
        part = next(place for place, each in enumerate(self._parts) if each is rows)
        assignment = Assignment(self._key, _DRAW_UNITS)
        draws = np.concatenate(
            [np.empty(0, np.int32), *(assignment.trees_of_rows(*place) for place in self._places[part])]
        )
        return np.asarray((draws[self._remaining[part]] if self._remaining else draws) < int(fraction * _DRAW_UNITS))


class ClusterBackend(RowBackend):
    """Backend that queries rows on the workers (``counts.RowBackend``)."""

    supports_holdout = True

    def __init__(self, columns: Sequence[BinnedColumn], source: ClusterSource, n_outputs: int) -> None:
        make = partial(PartitionBackend, tuple(columns), n_outputs)
        self._rows, self._empty = source.persist(make), make([])
        self._updates: list[Update] = []
        self._sample_drawn = False
        self._draw_key: DrawKey | None = None

    def _shared_key(self) -> DrawKey:
        """Return the secret key that all draws of a fit share."""
        self._draw_key = self._draw_key or DrawKey(secret_key())
        return self._draw_key

    def _run_remote(self, query: Callable[[PartitionBackend], Any]) -> Any:
        if self._updates:
            self._rows.update(methodcaller("apply_updates", tuple(self._updates)))
            self._updates = []
        answer = self._rows.aggregate(query)
        return query(self._empty) if answer is None else answer

    def run(self, query: RowQuery) -> Ints:
        """Return the sum of a query over all rows that are not held out."""
        sums: Ints = self._run_remote(methodcaller("run", query))
        return sums

    def run_together(self, asked: Sequence[RowQuery]) -> list[Ints]:
        """Return the results of several queries, from one task per partition."""
        joined = self._run_remote(methodcaller("run_joined", tuple(asked)))
        shapes = [answer.shape for answer in self._empty.run_together(asked)]
        ends = np.cumsum([prod(shape) for shape in shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(joined, ends), shapes, strict=True)]

    def run_on_sample(self, query: RowQuery, fraction: float) -> tuple[Ints, float]:
        """Run a query on a fraction of the rows, drawn once with secret randomness. Return the fraction too."""
        if not self._sample_drawn:
            self._updates.append(methodcaller("draw_sample_keyed", self._shared_key(), fraction))
            self._sample_drawn = True
        return self._run_remote(methodcaller("run_on_drawn", query)), fraction

    def add_scores(self, table: ContingencyTable, values: Int32s) -> None:
        """Add values to the scores; they are sent with the next query."""
        self._updates.append(methodcaller("add_scores", table, values))

    def hold_out(self, fraction: float) -> None:
        """Hold out rows at random, each independently: only the last query reaches them."""
        self._updates.append(methodcaller("hold_out_keyed", self._shared_key(), fraction))

    def run_on_holdout(self, count: Callable[[ScoredRows], Ints]) -> Ints:
        """Return the sum of a function over the held-out rows."""
        sums: Ints = self._run_remote(methodcaller("run_on_holdout", count))
        return sums

    def nonempty_cells(self, axes: Sequence[Axis], n_classes: int, fraction: float = 1.0) -> tuple[Ints, Ints]:
        """Return the non-empty cells of columns and classes in ascending order, and their counts."""
        cell_counts = self._run_remote(
            methodcaller("nonempty_cells_keyed", self._shared_key(), tuple(axes), n_classes, fraction)
        )
        return cell_counts.cells, cell_counts.counts

    def close(self) -> None:
        """Release the rows on the workers."""
        self._rows.close()
