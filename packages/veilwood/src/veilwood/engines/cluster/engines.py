# SPDX-License-Identifier: Apache-2.0
"""What is asked of Dask, Spark and Ray: their partitions in, small arrays of sums out, added up by the engine.

A frame as a source of rows is in ``source``, what is kept between passes in ``kept``.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, Final, Protocol, TypeVar

import pandas as pd
import pyarrow as pa

from veilwood.engines.cluster.worker import (
    BATCH_ROWS,
    PREDICTION,
    PROBABILITY,
    Held,
    PartSums,
    features,
    label_type,
    packed,
    unpacked,
    with_column,
)
from veilwood.errors import OutOfSchemaError

__all__ = [
    "FAN_IN",
    "Buckets",
    "Cluster",
    "DaskKept",
    "Kept",
    "RayKept",
    "SparkKept",
    "add_up_by_dask",
    "add_up_by_ray",
    "anywhere",
    "engine_of",
]


FAN_IN: Final = 8  # answers that are added up at a time


class Kept(Protocol):
    """All partitions of a frame, as they are now."""

    def moved(self, move: Callable[[Held], Held]) -> Kept:
        """Move every partition on; what it was before is let go."""

    def ask(self, answer: Callable[[Held], PartSums]) -> PartSums:
        """Add up the answers of all partitions."""

    def close(self) -> None:
        """Let everything go."""


class DaskKept:
    """Persisted tasks: on the workers of the current client where there is one, else here."""

    def __init__(self, tasks: Sequence[Any]) -> None:
        from dask import persist

        self._tasks = persist(*tasks)

    def moved(self, move: Callable[[Held], Held]) -> DaskKept:
        """Move every partition on."""
        from dask import delayed

        shared = delayed(move, traverse=False)  # sent once, not with every task
        return DaskKept([delayed(_call)(shared, task) for task in self._tasks])

    def ask(self, answer: Callable[[Held], PartSums]) -> PartSums:
        """Add up in a tree of tasks."""
        from dask import delayed

        shared = delayed(answer, traverse=False)
        return add_up_by_dask([delayed(_call)(shared, task) for task in self._tasks])

    def close(self) -> None:
        """Let everything go."""
        self._tasks = ()


def add_up_by_dask(parts: list[Any]) -> PartSums:
    """Add up tasks in a tree of them."""
    from dask import delayed

    while len(parts) > 1:
        parts = [delayed(PartSums.total)(parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
    total: PartSums = parts[0].compute()
    return total


class SparkKept:
    """A persisted RDD with one element for each partition; the one before is let go after the next was computed."""

    def __init__(self, elements: Any, before: SparkKept | None = None) -> None:
        from pyspark import StorageLevel

        self._elements, self._before = elements.persist(StorageLevel.MEMORY_AND_DISK), before

    def moved(self, move: Callable[[Held], Held]) -> SparkKept:
        """Move every partition on."""
        return SparkKept(self._elements.map(lambda held: pickle.dumps(move(pickle.loads(held)))), self)

    def ask(self, answer: Callable[[Held], PartSums]) -> PartSums:
        """Add up on the workers first."""

        def add(parts: Any) -> Any:
            yield pickle.dumps(PartSums.total(map(pickle.loads, parts)))

        answers = self._elements.map(lambda held: pickle.dumps(answer(pickle.loads(held))))
        if answers.getNumPartitions() > FAN_IN:
            answers = answers.mapPartitions(add).coalesce(FAN_IN)
        total = PartSums.total(map(pickle.loads, answers.mapPartitions(add).collect()))
        if self._before is not None:
            self._before.close()
            self._before = None
        return total

    def close(self) -> None:
        """Let everything go."""
        self._elements.unpersist()
        if self._before is not None:
            self._before.close()


class RayKept:
    """Objects of Ray's store, one for each block."""

    def __init__(self, objects: Sequence[Any]) -> None:
        self._objects = list(objects)

    def moved(self, move: Callable[[Held], Held]) -> RayKept:
        """Move every partition on."""
        import ray

        run, shared = ray.remote(_call), ray.put(move)
        return RayKept([run.remote(shared, held) for held in self._objects])

    def ask(self, answer: Callable[[Held], PartSums]) -> PartSums:
        """Add up in a tree of tasks."""
        import ray

        run, shared = ray.remote(_call), ray.put(answer)
        return add_up_by_ray([run.remote(shared, held) for held in self._objects])

    def close(self) -> None:
        """Let everything go."""
        self._objects = []


def add_up_by_ray(parts: list[Any]) -> PartSums:
    """Add up objects in a tree of tasks."""
    import ray

    add = ray.remote(_add)
    while len(parts) > 1:
        parts = [add.remote(*parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
    return PartSums.total(ray.get(parts))


class Buckets:
    """Partitions that each hold several buckets, as a list."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def moved(self, move: Callable[[Held], Held]) -> Buckets:
        """Move every bucket on."""
        return Buckets(self._kept.moved(partial(_move_each, move)))

    def ask(self, answer: Callable[[Held], PartSums]) -> PartSums:
        """Add up the answers of all buckets."""
        return self._kept.ask(partial(_ask_each, answer))

    def close(self) -> None:
        """Let everything go."""
        self._kept.close()


def _move_each(move: Callable[[Held], Held], buckets: Any) -> Any:
    return [move(bucket) for bucket in buckets]


def _ask_each(answer: Callable[[Held], PartSums], buckets: Any) -> PartSums:
    return PartSums.total(map(answer, buckets))


def _call(work: Callable[[Held], Any], held: Held) -> Any:
    return work(held)


def _add(*parts: PartSums) -> PartSums:
    return PartSums.total(parts)


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def anywhere(method: Decorated) -> Decorated:
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


# -- the driver's side ------------------------------------------------------------------------------------------------


class Cluster(Protocol):
    """What is asked of an engine: a few dozen lines each, below."""

    name: str
    frame: str
    marker: str

    def columns(self, frame: Any) -> Sequence[str]:
        """Names of the columns."""

    def guesses_types(self, frame: Any) -> bool:
        """Whether the frame reads files of text, whose types are guessed from rows, so far as its plan tells."""

    def project(self, frame: Any, names: list[str]) -> Any:
        """Keep some columns."""

    def count(self, frame: Any, work: Callable[[int, Iterable[Any]], PartSums]) -> PartSums:
        """Run ``work`` on each partition and add up."""

    def count_by_id(
        self, frame: Any, encode: Callable[[Iterable[Any]], Iterator[pa.Table]], schema: pa.Schema,
        work: Callable[[pa.Table], PartSums],
    ) -> PartSums:  # fmt: skip
        """Encode, bring each bucket together by the engine's own group-by, run ``work`` on each and add up."""

    def keep(self, frame: Any, work: Callable[[int, Iterable[Any]], Held]) -> Kept:
        """Run ``work`` on each partition and keep what it returns where it is."""

    def keep_by_id(
        self, frame: Any, encode: Callable[[Iterable[Any]], Iterator[pa.Table]], schema: pa.Schema,
        work: Callable[[pa.Table], Held],
    ) -> Kept:  # fmt: skip
        """Encode, bring each bucket together, run ``work`` on each and keep what it returns where it is."""

    def predict(self, frame: Any, method: Callable[[Any], Any], model: Any, name: str) -> Any:
        """Predict for each partition, lazily where the engine is lazy."""


def _on_rows(work: Any, partition: int, rows: Any) -> Any:
    """Run ``work`` on a partition that an engine hands over in one piece."""
    return work(partition, [rows])


# -- Dask -------------------------------------------------------------------------------------------------------------


class Dask:
    """Dask: delayed tasks, on the current client where there is one."""

    name, frame, marker = "Dask", "dask.dataframe.DataFrame", "columns"

    def columns(self, frame: Any) -> Sequence[str]:
        """Names of the columns."""
        return list(frame.columns)

    def guesses_types(self, frame: Any) -> bool:
        """Find ``read_csv``, unless every cell stays a text, and ``read_json``."""
        from dask.delayed import Delayed

        parts = [part for node in _expressions(frame) for part in node.operands]
        tasks = (task for part in parts if isinstance(part, Delayed) for task in dict(part.dask).values())
        if any(getattr(getattr(task, "func", None), "__module__", "") == "dask.dataframe.io.json" for task in tasks):
            return True
        readers = (
            part for part in parts if isinstance(part, partial) and part.func.__module__ == "dask.dataframe.io.csv"
        )
        return any(part.keywords.get("kwargs", {}).get("dtype") not in (str, "str", "string") for part in readers)

    def project(self, frame: Any, names: list[str]) -> Any:
        """Keep some columns."""
        return frame[names]

    def count(self, frame: Any, work: Callable[[int, Iterable[Any]], PartSums]) -> PartSums:
        """Run ``work`` on each partition and add up in a tree of tasks."""
        return add_up_by_dask(self._tasks(frame, _on_rows, work))

    def count_by_id(self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], PartSums]) -> PartSums:
        """Shuffle encoded rows so that each bucket is in one partition."""
        return add_up_by_dask(self._tasks(self._shuffled(frame, encode, schema), _on_buckets, work))

    def keep(self, frame: Any, work: Callable[[int, Iterable[Any]], Held]) -> Kept:
        """Persist what ``work`` returns for each partition."""
        return DaskKept(self._tasks(frame, _on_rows, work))

    def keep_by_id(self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], Held]) -> Kept:
        """Persist a list of buckets for each partition of the shuffled rows, as one."""
        tasks = self._tasks(self._shuffled(frame, encode, schema), _hold_buckets, work)
        return Buckets(DaskKept(tasks))

    def _shuffled(self, frame: Any, encode: Any, schema: pa.Schema) -> Any:
        meta = schema.empty_table().to_pandas()
        return frame.map_partitions(_encoded_frame, encode, schema, meta=meta).shuffle("bucket")

    def _tasks(self, frame: Any, run: Callable[[Any, int, Any], Any], work: Any) -> list[Any]:
        from dask import delayed

        shared = delayed(work, traverse=False)  # sent once, not with every task
        return [delayed(run)(shared, i, rows) for i, rows in enumerate(frame.to_delayed())]

    def predict(self, frame: Any, method: Callable[[Any], Any], model: Any, name: str) -> Any:
        """Return a series, or a frame with a column for each class."""
        if name == PROBABILITY:
            meta: Any = pd.DataFrame(columns=list(model.classes_), dtype=float)
        else:
            meta = pd.Series([], dtype=label_type(model).to_pandas_dtype(), name=name)
        return frame.map_partitions(_predicted_frame, model, method, meta, meta=meta)


def _expressions(frame: Any) -> Iterator[Any]:
    """What a frame is computed by, and what has been fused into one; older versions do not tell."""
    for node in () if getattr(frame, "expr", None) is None else frame.expr.walk():
        yield node
        fused = (part for part in node.operands if isinstance(part, list))
        yield from (inner for part in fused for inner in part if hasattr(inner, "operands"))


def _on_buckets(work: Any, partition: int, rows: pd.DataFrame) -> PartSums:
    return PartSums.total(_hold_buckets(work, partition, rows))


def _hold_buckets(work: Any, partition: int, rows: pd.DataFrame) -> list[Any]:
    groups = (group for _, group in rows.groupby("bucket"))
    return [work(pa.Table.from_pandas(group, preserve_index=False)) for group in groups]


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

    def guesses_types(self, frame: Any) -> bool:
        """Find JSON, and CSV with ``inferSchema``; frames of Spark Connect have no plan that can be read here."""
        if not hasattr(frame, "_jdf"):
            return False
        leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
        return any(_guesses(leaves.apply(place)) for place in range(leaves.size()))

    def project(self, frame: Any, names: list[str]) -> Any:
        """Keep some columns."""
        return frame.select(*(f"`{name}`" for name in names))

    def count(self, frame: Any, work: Callable[[int, Iterable[Any]], PartSums]) -> PartSums:
        """Run ``work`` on each partition and add up in two stages."""

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            yield from packed(work(TaskContext.get().partitionId(), batches)).to_batches()

        return self._add_up(frame.mapInArrow(run, "part binary"))

    def count_by_id(self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], PartSums]) -> PartSums:
        """Group encoded rows by bucket."""
        groups = self._groups(frame, encode, schema)
        return self._add_up(groups.applyInArrow(lambda table: packed(work(table)), "part binary"))

    def _groups(self, frame: Any, encode: Any, schema: pa.Schema) -> Any:
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for table in encode(batches):
                yield from table.to_batches()

        columns = ", ".join(f"{name} {'string' if name == 'id' else 'int'}" for name in schema.names)
        return frame.mapInArrow(run, columns).groupBy("bucket")

    def keep(self, frame: Any, work: Callable[[int, Iterable[Any]], Held]) -> Kept:
        """Persist what ``work`` returns for each partition."""

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            yield from packed(work(TaskContext.get().partitionId(), batches)).to_batches()

        return SparkKept(frame.mapInArrow(run, "part binary").rdd.map(_cell))

    def keep_by_id(self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], Held]) -> Kept:
        """Persist what ``work`` returns for each bucket."""
        groups = self._groups(frame, encode, schema)
        return SparkKept(groups.applyInArrow(lambda table: packed(work(table)), "part binary").rdd.map(_cell))

    def _add_up(self, cells: Any) -> PartSums:
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


def _guesses(leaf: Any) -> bool:
    if leaf.getClass().getSimpleName() != "LogicalRelation":
        return False
    relation = leaf.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return False
    options = str(relation.options().toString()).lower()
    kind = str(relation.fileFormat().toString()).upper()
    return kind == "JSON" or (kind in ("CSV", "XML") and "inferschema -> true" in options)


def _cell(row: Any) -> bytes:
    return bytes(row.part)


# -- Ray --------------------------------------------------------------------------------------------------------------


_RAY_TEXTS: Final = re.compile("Read.*(CSV|JSON)")  # ReadCSV, ReadJSON, ReadArrowJSON, ReadPandasJSON


class Ray:
    """Ray: one task for each block of a data set."""

    name, frame, marker = "Ray", "ray.data.Dataset", "map_batches"

    def columns(self, frame: Any) -> Sequence[str]:
        """Names of the columns."""
        return list(frame.columns())

    def guesses_types(self, frame: Any) -> bool:
        """Find ``read_csv`` and ``read_json``."""
        plan = getattr(frame, "_logical_plan", None)  # not public: a later version may hide it
        operators = [] if plan is None else [plan.dag]
        for operator in operators:
            operators += operator.input_dependencies
        return any(_RAY_TEXTS.match(operator.name) for operator in operators)

    def project(self, frame: Any, names: list[str]) -> Any:
        """Keep some columns, and hold the blocks in Ray's object store: another run could cut them differently."""
        frame = frame.select_columns(names)
        frame.context.execution_options.preserve_order = True
        return frame.materialize()

    def count(self, frame: Any, work: Callable[[int, Iterable[Any]], PartSums]) -> PartSums:
        """Run ``work`` on each block and add up in a tree of tasks."""
        return add_up_by_ray(self._tasks(frame, work))

    def count_by_id(self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], PartSums]) -> PartSums:
        """Group encoded rows by bucket."""
        return unpacked(row["part"] for row in self._grouped(frame, encode, schema, work).iter_rows())

    def keep(self, frame: Any, work: Callable[[int, Iterable[Any]], Held]) -> Kept:
        """Keep what ``work`` returns for each block in Ray's object store."""
        return RayKept(self._tasks(frame, work))

    def keep_by_id(self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], Held]) -> Kept:
        """Keep what ``work`` returns for each bucket in Ray's object store."""
        import ray

        run = ray.remote(_unpacked_buckets)
        blocks = self._grouped(frame, encode, schema, work).materialize().to_arrow_refs()
        return Buckets(RayKept([run.remote(block) for block in blocks]))

    def _tasks(self, frame: Any, work: Any) -> list[Any]:
        import ray

        run, shared = ray.remote(_on_rows), ray.put(work)
        return [run.remote(shared, i, block) for i, block in enumerate(frame.to_arrow_refs())]

    def _grouped(self, frame: Any, encode: Any, schema: pa.Schema, work: Callable[[pa.Table], Any]) -> Any:
        def run(table: pa.Table) -> pa.Table:
            return pa.concat_tables([schema.empty_table(), *encode([table])])

        arrow = {"batch_format": "pyarrow"}
        encoded = frame.map_batches(run, batch_size=None, **arrow)
        return encoded.groupby("bucket", num_partitions=max(2, frame.num_blocks())).map_groups(
            lambda table: packed(work(table)), **arrow
        )

    def predict(self, frame: Any, method: Callable[[Any], Any], model: Any, name: str) -> Any:
        """Return the data set with one more column."""

        def run(table: pa.Table) -> pa.Table:
            return with_column(model, method, name, table)

        return frame.map_batches(run, batch_size=BATCH_ROWS, batch_format="pyarrow")


def _unpacked_buckets(block: pa.Table) -> list[Held]:
    return [pickle.loads(cell) for cell in block.column("part").to_pylist()]
