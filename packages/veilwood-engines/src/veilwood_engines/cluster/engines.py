# SPDX-License-Identifier: Apache-2.0
"""Adapters for Dask, Spark and Ray: functions run on the partitions and return small arrays of sums.

Sources of rows are in ``source``, the work on a partition in ``worker``.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol

import pandas as pd
import pyarrow as pa

from veilwood.errors import OutOfSchemaError
from veilwood_engines.cluster import worker

FAN_IN: Final = (
    8  # partial sums that one task holds in memory and adds up; Spark returns at most this many to the driver
)


class PersistedPartitions(Protocol):
    """Persisted states of all partitions of a frame."""

    def update(self, function: Callable[[worker.PartitionState], worker.PartitionState]) -> PersistedPartitions:
        """Return the updated states of all partitions and release the current states."""

    def aggregate(self, query: Callable[[worker.PartitionState], worker.PartialSums]) -> worker.PartialSums:
        """Return the sum of a query over all partitions."""

    def close(self) -> None:
        """Release all states."""


class DaskPartitions:
    """Persisted Dask tasks: on the workers of the current client if there is one, else in this process."""

    def __init__(self, tasks: Sequence[Any]) -> None:
        from dask import persist

        self._tasks = persist(*tasks)

    @classmethod
    def joined(cls, tasks: Sequence[Any]) -> DaskPartitions:
        """Persist tasks that return lists of states, then join the lists so that each thread has one list.

        A fit of PrivateForest passes over the states hundreds of times, and a task costs about a millisecond.
        """
        from dask import delayed, persist

        tasks = persist(*tasks)
        return cls([delayed(_join_lists)(*group) for group in _group_by_thread(tasks)])

    def update(self, function: Callable[[worker.PartitionState], worker.PartitionState]) -> DaskPartitions:
        """Return the updated states of all partitions."""
        from dask import delayed

        shared = delayed(function, traverse=False)  # sent once, not with every task
        return DaskPartitions([delayed(_call_on_state)(shared, task) for task in self._tasks])

    def aggregate(self, query: Callable[[worker.PartitionState], worker.PartialSums]) -> worker.PartialSums:
        """Sum in a tree of tasks."""
        from dask import delayed

        shared = delayed(query, traverse=False)
        return sum_with_dask([delayed(_call_on_state)(shared, task) for task in self._tasks])

    def close(self) -> None:
        """Release all states."""
        self._tasks = ()


def _group_by_thread(tasks: Sequence[Any]) -> list[list[Any]]:
    """Group persisted tasks by the worker that holds their result, with one group per thread of the worker."""
    places, threads = dict.fromkeys(range(len(tasks)), ""), {"": os.cpu_count() or 1}
    try:
        from distributed import futures_of, wait

        futures = futures_of(tasks)
    except ImportError:
        futures = []
    if futures:  # otherwise the tasks were computed in this process
        wait(futures)
        client = futures[0].client
        holders = client.who_has(futures)
        threads |= client.nthreads()
        places = {i: next(iter(holders.get(future.key, ())), "") for i, future in enumerate(futures)}
    groups = []
    for place in sorted(set(places.values())):
        held = [tasks[i] for i, where in places.items() if where == place]
        n_groups = threads.get(place, 1)
        groups += [held[i::n_groups] for i in range(min(n_groups, len(held)))]
    return groups


def _join_lists(*lists: list[worker.PartitionState]) -> list[worker.PartitionState]:
    return [state for states in lists for state in states]


def sum_with_dask(parts: list[Any]) -> worker.PartialSums:
    """Sum the results of tasks in a tree of tasks."""
    from dask import delayed

    while len(parts) > 1:
        parts = [delayed(worker.PartialSums.total)(parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
    total: worker.PartialSums = parts[0].compute()
    return total


class SparkPartitions:
    """A persisted RDD with one element per partition; the previous RDD is released after the next one was computed."""

    def __init__(self, elements: Any, before: SparkPartitions | None = None) -> None:
        from pyspark import StorageLevel

        self._elements, self._before = elements.persist(StorageLevel.MEMORY_AND_DISK), before

    def update(self, function: Callable[[worker.PartitionState], worker.PartitionState]) -> SparkPartitions:
        """Return the updated states of all partitions."""
        return SparkPartitions(self._elements.map(lambda held: pickle.dumps(function(pickle.loads(held)))), self)

    def aggregate(self, query: Callable[[worker.PartitionState], worker.PartialSums]) -> worker.PartialSums:
        """Sum on the workers first."""

        def add_parts(parts: Any) -> Any:
            yield pickle.dumps(worker.PartialSums.total(map(pickle.loads, parts)))

        answers = self._elements.map(lambda held: pickle.dumps(query(pickle.loads(held))))
        if answers.getNumPartitions() > FAN_IN:
            answers = answers.mapPartitions(add_parts).coalesce(FAN_IN)
        total = worker.PartialSums.total(map(pickle.loads, answers.mapPartitions(add_parts).collect()))
        if self._before is not None:
            self._before.close()
            self._before = None
        return total

    def close(self) -> None:
        """Release all states."""
        self._elements.unpersist()
        if self._before is not None:
            self._before.close()


class RayPartitions:
    """Objects of Ray's store, one per block."""

    def __init__(self, objects: Sequence[Any]) -> None:
        self._objects = list(objects)

    def update(self, function: Callable[[worker.PartitionState], worker.PartitionState]) -> RayPartitions:
        """Return the updated states of all partitions."""
        import ray

        run, shared = ray.remote(_call_on_state), ray.put(function)
        return RayPartitions([run.remote(shared, held) for held in self._objects])

    def aggregate(self, query: Callable[[worker.PartitionState], worker.PartialSums]) -> worker.PartialSums:
        """Sum in a tree of tasks."""
        import ray

        run, shared = ray.remote(_call_on_state), ray.put(query)
        return sum_with_ray([run.remote(shared, held) for held in self._objects])

    def close(self) -> None:
        """Release all states."""
        self._objects = []


def sum_with_ray(parts: list[Any]) -> worker.PartialSums:
    """Sum objects in a tree of tasks."""
    import ray

    add = ray.remote(_total_parts)
    while len(parts) > 1:
        parts = [add.remote(*parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
    return worker.PartialSums.total(ray.get(parts))


class BucketedPartitions:
    """Partitions that each hold a list of buckets."""

    def __init__(self, partitions: PersistedPartitions) -> None:
        self._partitions = partitions

    def update(self, function: Callable[[worker.PartitionState], worker.PartitionState]) -> BucketedPartitions:
        """Return the updated states of all buckets."""
        return BucketedPartitions(self._partitions.update(partial(_update_each, function)))

    def aggregate(self, query: Callable[[worker.PartitionState], worker.PartialSums]) -> worker.PartialSums:
        """Return the sum of a query over all buckets."""
        return self._partitions.aggregate(partial(_query_each, query))

    def close(self) -> None:
        """Release all states."""
        self._partitions.close()


def _update_each(function: Callable[[worker.PartitionState], worker.PartitionState], buckets: Any) -> Any:
    return [function(bucket) for bucket in buckets]


def _query_each(query: Callable[[worker.PartitionState], worker.PartialSums], buckets: Any) -> worker.PartialSums:
    return worker.PartialSums.total(map(query, buckets))


def _call_on_state(work: Callable[[worker.PartitionState], Any], state: worker.PartitionState) -> Any:
    return work(state)


def _total_parts(*parts: worker.PartialSums) -> worker.PartialSums:
    return worker.PartialSums.total(parts)


def predict_frame(method: Callable[..., Any], estimator: Any, X: Any) -> Any:
    """Return the predictions of a method of an estimator for a frame, made on its workers.

    Dask returns a series (or a frame with one column per class) with the index of its frame. Spark and Ray return their
    frame with one more column, ``prediction`` (or ``probability``, an array).
    """
    model = object.__new__(type(estimator))
    own = {
        name: value for name, value in vars(estimator).items() if name != "_unfinished"
    }  # exact counts must not leave this process
    vars(model).update(own, ledger=None, n_jobs=1)  # workers charge no ledger, and each runs one thread
    name = worker.PROBABILITY if method.__name__ == "predict_proba" else worker.PREDICTION
    return find_engine(X).predict(X, partial(method, model), model, name)


def find_engine(X: Any) -> ClusterEngine:
    """Return the engine of a frame without importing it. Raise OutOfSchemaError for other objects of an engine."""
    engines: dict[str, ClusterEngine] = {"dask": Dask(), "pyspark": Spark(), "ray": Ray()}
    engine = engines[type(X).__module__.split(".")[0]]
    if not hasattr(X, engine.marker_attribute):
        raise OutOfSchemaError(f"{type(X).__name__} is not a frame of {engine.name}. Hint: pass a {engine.frame_type}.")
    return engine


# -- interface of engines ---------------------------------------------------------------------------------------------


class ClusterEngine(Protocol):
    """Interface of an engine."""

    name: str
    frame_type: str
    marker_attribute: str

    def column_names(self, frame: Any) -> Sequence[str]:
        """Names of the columns."""

    def infers_types(self, frame: Any) -> bool:
        """Return True if the frame's plan reads text files whose types are inferred from rows."""

    def select_columns(self, frame: Any, names: list[str]) -> Any:
        """Select columns."""

    def aggregate_partitions(
        self, frame: Any, work: Callable[[int, Iterable[Any]], worker.PartialSums]
    ) -> worker.PartialSums:
        """Run ``work`` on each partition and sum the results."""

    def aggregate_buckets(
        self, frame: Any, encode: Callable[[Iterable[Any]], Iterator[pa.Table]], schema: pa.Schema,
        work: Callable[[pa.Table], worker.PartialSums],
    ) -> worker.PartialSums:  # fmt: skip
        """Encode, group each bucket by the engine's own group-by, run ``work`` on each bucket and sum the results."""

    def persist_partitions(
        self, frame: Any, work: Callable[[int, Iterable[Any]], worker.PartitionState]
    ) -> PersistedPartitions:
        """Run ``work`` on each partition and persist the results on the workers."""

    def persist_buckets(
        self, frame: Any, encode: Callable[[Iterable[Any]], Iterator[pa.Table]], schema: pa.Schema,
        work: Callable[[pa.Table], worker.PartitionState],
    ) -> PersistedPartitions:  # fmt: skip
        """Encode, group each bucket, run ``work`` on each bucket and persist the results on the workers."""

    def predict(self, frame: Any, method: Callable[[Any], Any], model: Any, name: str) -> Any:
        """Predict for each partition, lazily if the engine is lazy."""


def _run_on_partition(work: Any, partition: int, rows: Any) -> Any:
    """Run ``work`` on a partition that an engine passes as one table."""
    return work(partition, [rows])


def _list_state(work: Any, partition: int, rows: Any) -> list[worker.PartitionState]:
    return [work(partition, [rows])]


# -- Dask -------------------------------------------------------------------------------------------------------------


class Dask:
    """Adapter for Dask: delayed tasks, on the current client if there is one."""

    name, frame_type, marker_attribute = "Dask", "dask.dataframe.DataFrame", "columns"

    def column_names(self, frame: Any) -> Sequence[str]:
        """Names of the columns."""
        return list(frame.columns)

    def infers_types(self, frame: Any) -> bool:
        """Detect ``read_json``, and ``read_csv`` unless every value is read as text."""
        from dask.delayed import Delayed

        parts = [part for node in _walk_expressions(frame) for part in node.operands]
        tasks = (task for part in parts if isinstance(part, Delayed) for task in dict(part.dask).values())
        if any(getattr(getattr(task, "func", None), "__module__", "") == "dask.dataframe.io.json" for task in tasks):
            return True
        readers = (
            part for part in parts if isinstance(part, partial) and part.func.__module__ == "dask.dataframe.io.csv"
        )
        return any(part.keywords.get("kwargs", {}).get("dtype") not in (str, "str", "string") for part in readers)

    def select_columns(self, frame: Any, names: list[str]) -> Any:
        """Select columns."""
        return frame[names]

    def aggregate_partitions(
        self, frame: Any, work: Callable[[int, Iterable[Any]], worker.PartialSums]
    ) -> worker.PartialSums:
        """Run ``work`` on each partition and sum in a tree of tasks."""
        return sum_with_dask(self._make_tasks(frame, _run_on_partition, work))

    def aggregate_buckets(
        self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], worker.PartialSums]
    ) -> worker.PartialSums:
        """Shuffle encoded rows so that each bucket is in one partition."""
        return sum_with_dask(self._make_tasks(self._shuffle_by_bucket(frame, encode, schema), _sum_buckets, work))

    def persist_partitions(
        self, frame: Any, work: Callable[[int, Iterable[Any]], worker.PartitionState]
    ) -> PersistedPartitions:
        """Persist what ``work`` returns for each partition."""
        return BucketedPartitions(DaskPartitions.joined(self._make_tasks(frame, _list_state, work)))

    def persist_buckets(
        self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], worker.PartitionState]
    ) -> PersistedPartitions:
        """Persist a list of buckets for each partition of the shuffled rows, as one."""
        tasks = self._make_tasks(self._shuffle_by_bucket(frame, encode, schema), _run_on_buckets, work)
        return BucketedPartitions(DaskPartitions.joined(tasks))

    def _shuffle_by_bucket(self, frame: Any, encode: Any, schema: pa.Schema) -> Any:
        meta = schema.empty_table().to_pandas()
        return frame.map_partitions(_encode_frame, encode, schema, meta=meta).shuffle("bucket")

    def _make_tasks(self, frame: Any, run: Callable[[Any, int, Any], Any], work: Any) -> list[Any]:
        from dask import delayed

        shared = delayed(work, traverse=False)  # sent once, not with every task
        return [delayed(run)(shared, i, rows) for i, rows in enumerate(frame.to_delayed())]

    def predict(self, frame: Any, method: Callable[[Any], Any], model: Any, name: str) -> Any:
        """Return a series, or a frame with a column for each class."""
        if name == worker.PROBABILITY:
            meta: Any = pd.DataFrame(columns=list(model.classes_), dtype=float)
        else:
            meta = pd.Series([], dtype=worker.label_type(model).to_pandas_dtype(), name=name)
        return frame.map_partitions(_predict_frame, model, method, meta, meta=meta)


def _walk_expressions(frame: Any) -> Iterator[Any]:
    """Iterate over the expressions of a frame, fused ones included; older versions do not expose them."""
    for node in () if getattr(frame, "expr", None) is None else frame.expr.walk():
        yield node
        fused = (part for part in node.operands if isinstance(part, list))
        yield from (inner for part in fused for inner in part if hasattr(inner, "operands"))


def _sum_buckets(work: Any, partition: int, rows: pd.DataFrame) -> worker.PartialSums:
    return worker.PartialSums.total(_run_on_buckets(work, partition, rows))


def _run_on_buckets(work: Any, partition: int, rows: pd.DataFrame) -> list[Any]:
    groups = (group for _, group in rows.groupby("bucket"))
    return [work(pa.Table.from_pandas(group, preserve_index=False)) for group in groups]


def _encode_frame(rows: pd.DataFrame, encode: Any, schema: pa.Schema) -> pd.DataFrame:
    frame: pd.DataFrame = pa.concat_tables([schema.empty_table(), *encode([rows])]).to_pandas()
    return frame


def _predict_frame(rows: pd.DataFrame, model: Any, method: Callable[[Any], Any], meta: Any) -> Any:
    if not len(rows):
        return meta
    out = method(worker.select_features(model, rows))
    if isinstance(meta, pd.DataFrame):
        return pd.DataFrame(out, index=rows.index, columns=meta.columns)
    return pd.Series(out, index=rows.index, name=meta.name, dtype=meta.dtype)


# -- Spark ------------------------------------------------------------------------------------------------------------


class Spark:
    """Adapter for Spark: ``mapInArrow``, and ``applyInArrow`` after its own group-by."""

    name, frame_type, marker_attribute = "Spark", "pyspark.sql.DataFrame", "mapInArrow"

    def column_names(self, frame: Any) -> Sequence[str]:
        """Names of the columns."""
        return list(frame.columns)

    def infers_types(self, frame: Any) -> bool:
        """Detect JSON, and CSV with ``inferSchema``; frames of Spark Connect have no plan that can be read here."""
        if not hasattr(frame, "_jdf"):
            return False
        leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
        return any(_relation_infers_types(leaves.apply(place)) for place in range(leaves.size()))

    def select_columns(self, frame: Any, names: list[str]) -> Any:
        """Select columns."""
        return frame.select(*(f"`{name}`" for name in names))

    def aggregate_partitions(
        self, frame: Any, work: Callable[[int, Iterable[Any]], worker.PartialSums]
    ) -> worker.PartialSums:
        """Run ``work`` on each partition and sum in two stages."""

        def aggregate_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            yield from worker.pack_part(work(TaskContext.get().partitionId(), batches)).to_batches()

        return self._sum_parts(frame.mapInArrow(aggregate_batches, "part binary"))

    def aggregate_buckets(
        self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], worker.PartialSums]
    ) -> worker.PartialSums:
        """Group encoded rows by bucket."""
        groups = self._group_by_bucket(frame, encode, schema)
        return self._sum_parts(groups.applyInArrow(lambda table: worker.pack_part(work(table)), "part binary"))

    def _group_by_bucket(self, frame: Any, encode: Any, schema: pa.Schema) -> Any:
        def encode_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for table in encode(batches):
                yield from table.to_batches()

        columns = ", ".join(f"{name} {'string' if name == 'id' else 'int'}" for name in schema.names)
        return frame.mapInArrow(encode_batches, columns).groupBy("bucket")

    def persist_partitions(
        self, frame: Any, work: Callable[[int, Iterable[Any]], worker.PartitionState]
    ) -> PersistedPartitions:
        """Persist what ``work`` returns for each partition."""

        def persist_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            yield from worker.pack_part(work(TaskContext.get().partitionId(), batches)).to_batches()

        return SparkPartitions(frame.mapInArrow(persist_batches, "part binary").rdd.map(_part_bytes))

    def persist_buckets(
        self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], worker.PartitionState]
    ) -> PersistedPartitions:
        """Persist what ``work`` returns for each bucket."""
        groups = self._group_by_bucket(frame, encode, schema)
        return SparkPartitions(
            groups.applyInArrow(lambda table: worker.pack_part(work(table)), "part binary").rdd.map(_part_bytes)
        )

    def _sum_parts(self, cells: Any) -> worker.PartialSums:
        def sum_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            parts = (part for batch in batches for part in batch.column(0).to_pylist())
            yield from worker.pack_part(worker.sum_packed(parts)).to_batches()

        return worker.sum_packed(
            row.part for row in cells.repartition(FAN_IN).mapInArrow(sum_batches, "part binary").collect()
        )

    def predict(self, frame: Any, method: Callable[[Any], Any], model: Any, name: str) -> Any:
        """Return the frame with one more column."""
        from pyspark.sql.types import StructType

        def predict_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield worker.append_predictions(model, method, name, batch)

        arrow = str(worker.label_type(model))
        kind = {"int64": "bigint", "bool": "boolean"}.get(arrow, arrow)
        added = StructType.fromDDL(f"{name} {'array<double>' if name == worker.PROBABILITY else kind}")
        return frame.mapInArrow(predict_batches, StructType([*frame.schema.fields, *added.fields]))


def _relation_infers_types(leaf: Any) -> bool:
    if leaf.getClass().getSimpleName() != "LogicalRelation":
        return False
    relation = leaf.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return False
    options = str(relation.options().toString()).lower()
    kind = str(relation.fileFormat().toString()).upper()
    return kind == "JSON" or (kind in ("CSV", "XML") and "inferschema -> true" in options)


def _part_bytes(row: Any) -> bytes:
    return bytes(row.part)


# -- Ray --------------------------------------------------------------------------------------------------------------


_RAY_TEXT_READERS: Final = re.compile("Read.*(CSV|JSON)")  # ReadCSV, ReadJSON, ReadArrowJSON, ReadPandasJSON


class Ray:
    """Adapter for Ray: one task per block of a data set."""

    name, frame_type, marker_attribute = "Ray", "ray.data.Dataset", "map_batches"

    def column_names(self, frame: Any) -> Sequence[str]:
        """Names of the columns."""
        return list(frame.columns())

    def infers_types(self, frame: Any) -> bool:
        """Detect ``read_csv`` and ``read_json``."""
        plan = getattr(frame, "_logical_plan", None)  # not public: a later version may hide it
        operators = [] if plan is None else [plan.dag]
        for operator in operators:
            operators += operator.input_dependencies
        return any(_RAY_TEXT_READERS.match(operator.name) for operator in operators)

    def select_columns(self, frame: Any, names: list[str]) -> Any:
        """Select columns and keep the blocks in Ray's object store: another run could cut them differently."""
        frame = frame.select_columns(names)
        frame.context.execution_options.preserve_order = True
        return frame.materialize()

    def aggregate_partitions(
        self, frame: Any, work: Callable[[int, Iterable[Any]], worker.PartialSums]
    ) -> worker.PartialSums:
        """Run ``work`` on each block and sum in a tree of tasks."""
        return sum_with_ray(self._make_tasks(frame, work))

    def aggregate_buckets(
        self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], worker.PartialSums]
    ) -> worker.PartialSums:
        """Group encoded rows by bucket."""
        return worker.sum_packed(row["part"] for row in self._map_buckets(frame, encode, schema, work).iter_rows())

    def persist_partitions(
        self, frame: Any, work: Callable[[int, Iterable[Any]], worker.PartitionState]
    ) -> PersistedPartitions:
        """Keep what ``work`` returns for each block in Ray's object store."""
        return RayPartitions(self._make_tasks(frame, work))

    def persist_buckets(
        self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], worker.PartitionState]
    ) -> PersistedPartitions:
        """Keep what ``work`` returns for each bucket in Ray's object store."""
        import ray

        run = ray.remote(_unpack_buckets)
        blocks = self._map_buckets(frame, encode, schema, work).materialize().to_arrow_refs()
        return BucketedPartitions(RayPartitions([run.remote(block) for block in blocks]))

    def _make_tasks(self, frame: Any, work: Any) -> list[Any]:
        import ray

        run, shared = ray.remote(_run_on_partition), ray.put(work)
        return [run.remote(shared, i, block) for i, block in enumerate(frame.to_arrow_refs())]

    def _map_buckets(self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], Any]) -> Any:
        def encode_bucket(table: pa.Table) -> pa.Table:
            return pa.concat_tables([schema.empty_table(), *encode([table])])

        arrow = {"batch_format": "pyarrow"}
        encoded = frame.map_batches(encode_bucket, batch_size=None, **arrow)
        return encoded.groupby("bucket", num_partitions=max(2, frame.num_blocks())).map_groups(
            lambda table: worker.pack_part(work(table)), **arrow
        )

    def predict(self, frame: Any, method: Callable[[Any], Any], model: Any, name: str) -> Any:
        """Return the data set with one more column."""

        def predict_table(table: pa.Table) -> pa.Table:
            return worker.append_predictions(model, method, name, table)

        return frame.map_batches(predict_table, batch_size=worker.BATCH_ROWS, batch_format="pyarrow")


def _unpack_buckets(block: pa.Table) -> list[worker.PartitionState]:
    return [pickle.loads(cell) for cell in block.column("part").to_pylist()]
