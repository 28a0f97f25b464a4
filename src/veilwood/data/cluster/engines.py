# SPDX-License-Identifier: Apache-2.0
"""The same pass on Dask, Spark or Ray: their partitions in, small arrays of sums out, added up by the engine.

What is counted is in ``counting`` and ``histograms``; noise is drawn once, by the door, where ``fit`` was called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Final, Protocol, TypeVar

import pandas as pd
import pyarrow as pa

from veilwood.data.batches import Count, Source, Sums
from veilwood.data.cluster.worker import (  # fmt: skip
    BATCH_ROWS,
    PREDICTION,
    PROBABILITY,
    Part,
    count_bucket,
    count_tables,
    encode_with_id,
    encoded_schema,
    features,
    label_type,
    packed,
    unpacked,
    with_column,
)
from veilwood.data.encoding import Encoding, check_names
from veilwood.data.private_text import may_show_values
from veilwood.data.problems import Invalid
from veilwood.data.row_cap import no_id
from veilwood.errors import FileError, OutOfSchemaError, UnreadableError, UseError, VeilwoodError
from veilwood.privacy import entropy
from veilwood.privacy.neighbours import RowsOf

__all__ = ["anywhere", "engine_of", "on_cluster", "open_frame"]

FAN_IN: Final = 8  # arrays that are added up at a time

Method = TypeVar("Method", bound=Callable[..., Any])


def open_frame(
    engine: Cluster, frame: Any, encoding: Encoding, *, cap: RowsOf | None, invalid: Invalid
) -> ClusterSource:
    """Make a source of a frame of Dask, Spark or Ray, which must hold the target column (``open_rows``)."""
    names = engine.columns(frame)
    check_names(encoding.schema, names, allowed_extra=() if cap is None else (cap.id,), target=True)
    if cap is not None and cap.id not in names:
        raise no_id(cap)
    return ClusterSource.of(engine, engine.project(frame, _wanted(encoding, cap)), encoding, cap, invalid)


def on_cluster(X: Any) -> bool:
    """Whether rows stay on a cluster, where they can be counted and not collected."""
    return engine_of(X) is not None


def anywhere(method: Method) -> Method:
    """Let a method that predicts for a table predict for frames of Dask, Spark and Ray too, on their workers.

    Dask gets a series (or a frame with a column for each class) with the index of its frame; Spark and Ray get their
    frame with one more column, ``prediction`` (or ``probability``, an array).
    """

    @wraps(method)
    def predict(self: Any, X: Any) -> Any:
        engine = engine_of(X)
        if engine is None:
            return method(self, X)
        model = object.__new__(type(self))
        own = {name: value for name, value in vars(self).items() if name != "_unfinished"}  # exact counts stay here
        vars(model).update(own, ledger=None, n_jobs=1)  # workers spend nothing, and each is a thread by itself
        name = PROBABILITY if method.__name__ == "predict_proba" else PREDICTION
        return engine.predict(X, partial(method, model), model, name)

    return predict  # type: ignore[return-value]


def engine_of(X: Any) -> Cluster | None:
    """Find whose frame this is without importing any engine."""
    module = type(X).__module__.split(".")[0]
    engines: dict[str, Cluster] = {"dask": Dask(), "pyspark": Spark(), "ray": Ray()}
    engine = engines.get(module)
    if engine is None:
        return None
    if not hasattr(X, engine.marker):
        raise OutOfSchemaError(f"{type(X).__name__} is not a table of {engine.name}. Hint: pass a {engine.frame}.")
    return engine


def _wanted(encoding: Encoding, cap: RowsOf | None) -> list[str]:
    schema = encoding.schema
    return list(dict.fromkeys([*schema.sources, *(() if cap is None else (cap.id,))]))


# -- the driver's side ------------------------------------------------------------------------------------------------


class Cluster(Protocol):
    """What is asked of an engine: a few dozen lines each, below."""

    name: str
    frame: str
    marker: str

    def columns(self, frame: Any) -> Sequence[str]:
        """Names of the columns."""

    def project(self, frame: Any, names: list[str]) -> Any:
        """Keep some columns."""

    def count(self, frame: Any, work: Callable[[int, Iterable[Any]], Part]) -> Part:
        """Run ``work`` on each partition and add up."""

    def count_by_id(
        self, frame: Any, encode: Callable[[Iterable[Any]], Iterator[pa.Table]], schema: pa.Schema,
        work: Callable[[pa.Table], Part],
    ) -> Part:  # fmt: skip
        """Encode, bring each bucket together by the engine's own group-by, run ``work`` on each and add up."""

    def predict(self, frame: Any, method: Callable[[Any], Any], model: Any, name: str) -> Any:
        """Predict for each partition, lazily where the engine is lazy."""


@dataclass(frozen=True, repr=False, kw_only=True)
class ClusterSource(Source):
    """The rows of a frame; passes go over the cluster, and rows never come here."""

    _pass: Callable[[Count], Sums]

    @classmethod
    def of(cls, engine: Cluster, frame: Any, encoding: Encoding, cap: RowsOf | None, invalid: Invalid) -> ClusterSource:
        """Take a frame that has no columns but those that are needed."""

        def read() -> Iterator[Any]:
            raise UseError(
                f"the rows of a {engine.name} frame stay on the cluster, and they are needed here. "
                "Hint: pass files, or a sample in memory."
            )

        salt = 0 if cap is None else int(entropy.words(1)[0])
        on_workers = partial(_pass, engine, frame, encoding, cap, invalid, salt, {})
        # How many partitions there are is known after a pass only: leave room for any number.
        return cls(read, n_partitions=1 << 32, _pass=on_workers)

    def add_up(self, count: Count, doing: str = "counting", *, n_jobs: int | None = 1) -> Sums:
        """Count on the workers; threads are theirs, so ``n_jobs`` has no effect."""
        return self._pass(count)


def _pass(
    engine: Cluster,
    frame: Any,
    encoding: Encoding,
    cap: RowsOf | None,
    invalid: Invalid,
    salt: int,
    seen: dict[int, tuple[int, int]],
    count: Count,
) -> Sums:
    """Count on the cluster and check that rows are where they were in earlier passes."""
    try:
        if cap is None:
            total = engine.count(frame, partial(count_tables, count, encoding, invalid))
        else:
            encode = partial(encode_with_id, encoding, cap, invalid)
            choose = partial(count_bucket, count, cap, salt)
            total = engine.count_by_id(frame, encode, encoded_schema(encoding), choose)
    except VeilwoodError:
        raise
    except Exception as error:
        if may_show_values():
            raise
        raise UnreadableError(
            f"{engine.name} could not compute the frame ({type(error).__name__}). Its own words are left out, as they "
            "may hold rows. Hint: compute the frame by itself, or fit within veilwood.data.private_text.showing_values."
        ) from None
    if total.refusal is not None:
        raise total.refusal
    empty = total.sums is None or not any(rows for rows, _ in total.seen.values())
    if empty and invalid == "refuse":
        raise OutOfSchemaError(f"the {engine.name} frame holds no rows. Hint: check how it was made.")
    # A row that changes its place between passes would be given to another tree (proofs/disjoint-trees.md).
    if seen and seen != total.seen:
        raise FileError(
            f"the rows of the {engine.name} frame changed between two passes, or came in another order. "
            "Hint: write it to files and read those."
        )
    seen.update(total.seen)
    return count([]) if total.sums is None else total.sums


def _on_rows(work: Any, partition: int, rows: Any) -> Part:
    """Run ``work`` on a partition that an engine hands over in one piece."""
    part: Part = work(partition, [rows])
    return part


# -- Dask -------------------------------------------------------------------------------------------------------------


class Dask:
    """Dask: delayed tasks, on the current client where there is one."""

    name, frame, marker = "Dask", "dask.dataframe.DataFrame", "columns"

    def columns(self, frame: Any) -> Sequence[str]:
        """Names of the columns."""
        return list(frame.columns)

    def project(self, frame: Any, names: list[str]) -> Any:
        """Keep some columns."""
        return frame[names]

    def count(self, frame: Any, work: Callable[[int, Iterable[Any]], Part]) -> Part:
        """Run ``work`` on each partition and add up in a tree of tasks."""
        return self._add_up(frame, _on_rows, work)

    def count_by_id(self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], Part]) -> Part:
        """Shuffle encoded rows so that each bucket is in one partition."""
        meta = schema.empty_table().to_pandas()
        encoded = frame.map_partitions(_encoded_frame, encode, schema, meta=meta).shuffle("bucket")
        return self._add_up(encoded, _on_buckets, work)

    def _add_up(self, frame: Any, run: Callable[[Any, int, Any], Part], work: Any) -> Part:
        from dask import delayed

        shared = delayed(work, traverse=False)  # sent once, not with every task
        parts = [delayed(run)(shared, i, rows) for i, rows in enumerate(frame.to_delayed())]
        while len(parts) > 1:
            parts = [delayed(Part.total)(parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
        total: Part = parts[0].compute()
        return total

    def predict(self, frame: Any, method: Callable[[Any], Any], model: Any, name: str) -> Any:
        """Return a series, or a frame with a column for each class."""
        if name == PROBABILITY:
            meta: Any = pd.DataFrame(columns=list(model.classes_), dtype=float)
        else:
            meta = pd.Series([], dtype=label_type(model).to_pandas_dtype(), name=name)
        return frame.map_partitions(_predicted_frame, model, method, meta, meta=meta)


def _on_buckets(work: Any, partition: int, rows: pd.DataFrame) -> Part:
    groups = (group for _, group in rows.groupby("bucket"))
    return Part.total(work(pa.Table.from_pandas(group, preserve_index=False)) for group in groups)


def _encoded_frame(rows: pd.DataFrame, encode: Any, schema: pa.Schema) -> pd.DataFrame:
    frame: pd.DataFrame = pa.concat_tables([schema.empty_table(), *encode([rows])]).to_pandas()
    return frame


def _predicted_frame(rows: pd.DataFrame, model: Any, method: Callable[[Any], Any], meta: Any) -> Any:
    if not len(rows):
        return meta
    out = method(features(model, rows))
    if isinstance(meta, pd.DataFrame):
        return pd.DataFrame(out, index=rows.index, columns=meta.columns)
    return pd.Series(out, index=rows.index, name=meta.name, dtype=meta.dtype)


# -- Spark ------------------------------------------------------------------------------------------------------------


class Spark:
    """Spark: ``mapInArrow``, and ``applyInArrow`` after its own group-by."""

    name, frame, marker = "Spark", "pyspark.sql.DataFrame", "mapInArrow"

    def columns(self, frame: Any) -> Sequence[str]:
        """Names of the columns."""
        return list(frame.columns)

    def project(self, frame: Any, names: list[str]) -> Any:
        """Keep some columns."""
        return frame.select(*(f"`{name}`" for name in names))

    def count(self, frame: Any, work: Callable[[int, Iterable[Any]], Part]) -> Part:
        """Run ``work`` on each partition and add up in two stages."""

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            yield from packed(work(TaskContext.get().partitionId(), batches)).to_batches()

        return self._add_up(frame.mapInArrow(run, "part binary"))

    def count_by_id(self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], Part]) -> Part:
        """Group encoded rows by bucket."""

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for table in encode(batches):
                yield from table.to_batches()

        columns = ", ".join(f"{name} {'string' if name == 'id' else 'int'}" for name in schema.names)
        groups = frame.mapInArrow(run, columns).groupBy("bucket")
        return self._add_up(groups.applyInArrow(lambda table: packed(work(table)), "part binary"))

    def _add_up(self, cells: Any) -> Part:
        def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            parts = (part for batch in batches for part in batch.column(0).to_pylist())
            yield from packed(unpacked(parts)).to_batches()

        return unpacked(row.part for row in cells.repartition(FAN_IN).mapInArrow(add, "part binary").collect())

    def predict(self, frame: Any, method: Callable[[Any], Any], model: Any, name: str) -> Any:
        """Return the frame with one more column."""
        from pyspark.sql.types import StructType

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield with_column(model, method, name, batch)

        arrow = str(label_type(model))
        kind = {"int64": "bigint", "bool": "boolean"}.get(arrow, arrow)
        added = StructType.fromDDL(f"{name} {'array<double>' if name == PROBABILITY else kind}")
        return frame.mapInArrow(run, StructType([*frame.schema.fields, *added.fields]))


# -- Ray --------------------------------------------------------------------------------------------------------------


class Ray:
    """Ray: one task for each block of a data set."""

    name, frame, marker = "Ray", "ray.data.Dataset", "map_batches"

    def columns(self, frame: Any) -> Sequence[str]:
        """Names of the columns."""
        return list(frame.columns())

    def project(self, frame: Any, names: list[str]) -> Any:
        """Keep some columns, and hold the blocks in Ray's object store: another run could cut them differently."""
        frame = frame.select_columns(names)
        frame.context.execution_options.preserve_order = True
        return frame.materialize()

    def count(self, frame: Any, work: Callable[[int, Iterable[Any]], Part]) -> Part:
        """Run ``work`` on each block and add up in a tree of tasks."""
        import ray

        run, add, shared = ray.remote(_on_rows), ray.remote(_add_parts), ray.put(work)
        parts = [run.remote(shared, i, block) for i, block in enumerate(frame.to_arrow_refs())]
        while len(parts) > 1:
            parts = [add.remote(*parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
        return Part.total(ray.get(parts))

    def count_by_id(self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], Part]) -> Part:
        """Group encoded rows by bucket."""

        def run(table: pa.Table) -> pa.Table:
            return pa.concat_tables([schema.empty_table(), *encode([table])])

        arrow = {"batch_format": "pyarrow"}
        encoded = frame.map_batches(run, batch_size=None, **arrow)
        groups = encoded.groupby("bucket", num_partitions=max(2, frame.num_blocks())).map_groups(
            lambda table: packed(work(table)), **arrow
        )
        return unpacked(row["part"] for row in groups.iter_rows())

    def predict(self, frame: Any, method: Callable[[Any], Any], model: Any, name: str) -> Any:
        """Return the data set with one more column."""

        def run(table: pa.Table) -> pa.Table:
            return with_column(model, method, name, table)

        return frame.map_batches(run, batch_size=BATCH_ROWS, batch_format="pyarrow")


def _add_parts(*parts: Part) -> Part:
    return Part.total(parts)
