# SPDX-License-Identifier: Apache-2.0
"""A frame of Dask, Spark or Ray as a source of rows: every pass goes over the cluster, and rows never come here.

What is counted is in ``trees`` and ``forests``; noise is drawn once, by the door, where ``fit`` was called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from veilwood.data.batches import Batch, Count, Source, Sums
from veilwood.data.cluster.engines import Cluster
from veilwood.data.cluster.kept import Kept
from veilwood.data.cluster.worker import (  # fmt: skip
    NumberedBatches,
    PartSums,
    Summed,
    ask,
    count_rows,
    encode_with_id,
    encoded_schema,
    hold,
    move,
    of_bucket,
    of_tables,
)
from veilwood.data.encoding import Encoding, check_names
from veilwood.data.private_text import without_words_of
from veilwood.data.problems import Invalid
from veilwood.data.relations import types_from_rows
from veilwood.data.row_cap import no_id
from veilwood.errors import FileError, OutOfSchemaError, UseError
from veilwood.privacy import entropy
from veilwood.privacy.neighbours import RowsOf

__all__ = ["ClusterSource", "KeptRows", "open_frame"]


def open_frame(
    engine: Cluster, frame: Any, encoding: Encoding, *, cap: RowsOf | None, invalid: Invalid
) -> ClusterSource:
    """Make a source of a frame of Dask, Spark or Ray, which must hold the target column (``open_rows``)."""
    with _told(engine):
        if engine.guesses_types(frame):
            raise types_from_rows(f"a {engine.name} frame")
        names = engine.columns(frame)
    check_names(encoding.schema, names, allowed_extra=() if cap is None else (cap.id,), target=True)
    if cap is not None and cap.id not in names:
        raise no_id(cap)
    with _told(engine):
        wanted = engine.project(frame, _wanted(encoding, cap))
    return ClusterSource.of(engine, wanted, encoding, cap, invalid)


def _told(engine: Cluster) -> AbstractContextManager[None]:
    """Tell what an engine raises without its words."""
    return without_words_of(engine.name, "could not compute the frame", "compute the frame by itself")


def _wanted(encoding: Encoding, cap: RowsOf | None) -> list[str]:
    schema = encoding.schema
    return list(dict.fromkeys([*schema.sources, *(() if cap is None else (cap.id,))]))


@dataclass(frozen=True, repr=False, kw_only=True)
class ClusterSource(Source):
    """The rows of a frame; passes go over the cluster, and rows never come here."""

    _frame: Frame
    _filter: Callable[[Batch], Batch] | None = None  # which rows of a batch are there, where some were set aside

    @classmethod
    def of(cls, engine: Cluster, frame: Any, encoding: Encoding, cap: RowsOf | None, invalid: Invalid) -> ClusterSource:
        """Take a frame that has no columns but those that are needed."""

        def read() -> Iterator[Any]:
            raise UseError(
                f"the rows of a {engine.name} frame stay on the cluster, and they are needed here. "
                "Hint: pass files, or a sample in memory."
            )

        salt = 0 if cap is None else int(entropy.words(1)[0])
        # How many partitions there are is known after a pass only: leave room for any number.
        return cls(read, n_partitions=1 << 32, _frame=Frame(engine, frame, encoding, cap, invalid, salt))

    def add_up(self, count: Count, doing: str = "counting", *, n_jobs: int | None = 1) -> Sums:
        """Count on the workers; threads are theirs, so ``n_jobs`` has no effect."""
        counted = count if self._filter is None else partial(_count_some, count, self._filter)
        total = self._frame.checked(partial(self._frame.count, counted))
        sums: Any = total.sums
        return count([]) if sums is None else sums

    def keep(self, make: Callable[[list[Batch]], Any]) -> KeptRows:
        """Make something of the rows of each partition, and keep it there between passes."""
        made = make if self._filter is None else partial(_make_of_some, make, self._filter)
        return KeptRows(self._frame, made)

    def only(self, some: Callable[[Batch], Batch]) -> ClusterSource:
        """Return a part of the rows, which is the same in every pass."""
        return replace(self, _filter=some)


def _count_some(
    count: Count, some: Callable[[Batch], Batch], batches: Iterable[Batch], *, n_jobs: int | None = 1
) -> Sums:
    return count(map(some, batches), n_jobs=n_jobs)


def _make_of_some(make: Callable[[list[Batch]], Any], some: Callable[[Batch], Batch], batches: list[Batch]) -> Any:
    return make([some(batch) for batch in batches])


class KeptRows:
    """What was made of the rows of each partition: it is changed and asked where it is, and never comes here."""

    def __init__(self, frame: Frame, make: Callable[[list[Batch]], Any]) -> None:
        self._frame, self._make = frame, make
        self._kept: Kept | None = None

    def change(self, change: Callable[[Any], Any]) -> None:
        """Change what every partition holds into what this returns."""
        self._kept = self._now().moved(partial(move, change))

    def ask(self, question: Callable[[Any], Summed]) -> Any:
        """Add up the answers of all partitions; exact, hence private."""
        return self._frame.checked(lambda: self._now().ask(partial(ask, question))).sums

    def close(self) -> None:
        """Let everything go."""
        if self._kept is not None:
            self._kept.close()
        self._kept = None

    def _now(self) -> Kept:
        if self._kept is None:
            self._kept = self._frame.keep(self._make)
        return self._kept


@dataclass(frozen=True, repr=False, eq=False)
class Frame:
    """A frame of an engine, how it is encoded, and what its partitions looked like in earlier passes."""

    engine: Cluster
    frame: Any
    encoding: Encoding
    cap: RowsOf | None
    invalid: Invalid
    salt: int
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)

    def count(self, count: Count) -> PartSums:
        """Count on the workers."""
        if self.cap is None:
            return self.engine.count(self.frame, partial(count_rows, count, self._tables))
        return self.engine.count_by_id(self.frame, *self._by_id, partial(count_rows, count, self._bucket))

    def keep(self, make: Callable[[list[Batch]], Any]) -> Kept:
        """Keep what is made of rows on the workers."""
        if self.cap is None:
            return self.engine.keep(self.frame, partial(hold, make, self._tables))
        return self.engine.keep_by_id(self.frame, *self._by_id, partial(hold, make, self._bucket))

    @property
    def _tables(self) -> Callable[..., NumberedBatches]:
        return partial(of_tables, self.encoding, self.invalid)

    @property
    def _bucket(self) -> Callable[..., NumberedBatches]:
        assert self.cap is not None
        return partial(of_bucket, self.cap, self.salt)

    @property
    def _by_id(self) -> tuple[Callable[[Iterable[Any]], Iterator[pa.Table]], pa.Schema]:
        assert self.cap is not None
        return partial(encode_with_id, self.encoding, self.cap, self.invalid), encoded_schema(self.encoding)

    def checked(self, run: Callable[[], PartSums]) -> PartSums:
        """Run something on the cluster and check that rows are where they were in earlier passes."""
        with _told(self.engine):
            total = run()
        if total.refusal is not None:
            raise total.refusal
        empty = total.sums is None or not any(rows for rows, _ in total.seen.values())
        if empty and self.invalid == "refuse":
            raise OutOfSchemaError(f"the {self.engine.name} frame holds no rows. Hint: check how it was made.")
        # A row that changes its place between passes would be given to another tree (proofs/disjoint-trees.md).
        if self.seen and self.seen != total.seen:
            raise FileError(
                f"the rows of the {self.engine.name} frame changed between two passes, or came in another order. "
                "Hint: write it to files and read those."
            )
        self.seen.update(total.seen)
        return total
