# SPDX-License-Identifier: Apache-2.0
"""What partitions need between passes, kept beside their rows: read once, moved on step by step, asked for sums.

Each engine keeps what a move gives and remembers how it came about. Where a worker dies, its partitions are read and
moved on once more; moves follow from public numbers and the partition alone, so that nothing changes by that.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from veilwood.data.cluster.worker import Held, PartSums

__all__ = ["FAN_IN", "Buckets", "DaskKept", "Kept", "RayKept", "SparkKept", "add_up_by_dask", "add_up_by_ray"]

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
