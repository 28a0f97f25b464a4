# SPDX-License-Identifier: Apache-2.0
"""Counting and prediction on an NVIDIA GPU, by CuPy: ``with veilwood.trees.gpu.use(): forest.fit(X, y)``.

The sums are those of ``counting``, bit for bit. Noise is never drawn here, nor are splits chosen: both stay on the
processor. The loops are in ``gpu.cu``; CuPy is imported only where a GPU is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veilwood.errors import SetupError
from veilwood.trees.forest import Forest

__all__ = ["in_use", "leaf_totals", "sum_over_trees", "use"]

CodedRows: TypeAlias = tuple[NDArray[np.uint16], NDArray[np.int32], NDArray[np.int32] | None]

IN_USE: ContextVar[bool] = ContextVar("gpu_in_use", default=False)
_THREADS = 1024  # of a block; one block fills a multiprocessor's shared memory with trees
_LEAST_ROWS = 4 * _THREADS  # a block takes at least so many rows, to be worth its copy of the trees
_PREDICTED_ROWS = 1 << 22  # rows on the device at a time in a prediction
_NODE_BYTES = 16


@contextmanager
def use() -> Iterator[None]:
    """Count and predict on the current GPU inside this block.

    Every result is the same as without it, bit for bit; only the time differs. Splits of median and greedy forests are
    still chosen on the processor. The choice holds for the calling thread.

    Raises
    ------
    VeilwoodError
        If CuPy is not installed, or finds no GPU.

    Examples
    --------
    >>> import veilwood as vw
    >>> schema, X, y = vw.datasets.car()
    >>> with vw.gpu.use():  # doctest: +SKIP
    ...     forest = vw.RandomTreesClassifier(schema, epsilon=1).fit(X, y)
    """
    _require()
    token = IN_USE.set(True)
    try:
        yield
    finally:
        IN_USE.reset(token)


def in_use() -> bool:
    """Whether the caller is inside ``use``.

    >>> in_use()
    False
    """
    return IN_USE.get()


def leaf_totals(
    forest: Forest, rows: Iterable[CodedRows], *, n_classes: int | None, target_levels: int
) -> NDArray[np.int64]:
    """Return ``counting.leaf_totals`` of (codes, target, tree of each row or None) triples, on either side's memory."""
    import cupy

    width = n_classes or 2
    on_device = DeviceForest(forest, width, np.uint32)
    totals = cupy.zeros((forest.n_leaves, width), np.uint64)
    for codes, target, owner in rows:
        on_device.count(column_after_column(codes), target, owner, 0 if n_classes else target_levels, totals)
    return np.asarray(totals.get().view(np.int64))


def sum_over_trees(forest: Forest, codes: NDArray[np.uint16], leaf_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``counting.sum_over_trees``."""
    import cupy

    values = cupy.asarray(np.ascontiguousarray(leaf_values, np.float64))
    on_device = DeviceForest(forest, values.shape[1], np.float64)
    sums = np.empty((len(codes), values.shape[1]))
    for start in range(0, len(codes), _PREDICTED_ROWS):
        part = column_after_column(codes[start : start + _PREDICTED_ROWS])
        sums[start : start + _PREDICTED_ROWS] = on_device.sum(part, values).get()
    return sums


def column_after_column(codes: Any) -> Any:
    """Bring codes to the device, shape (n_columns, n_rows): threads side by side read rows side by side."""
    import cupy

    return cupy.ascontiguousarray(cupy.asarray(codes, np.uint16).T)


class Group(NamedTuple):
    """Successive trees that one launch takes; ``staged`` if they fit into shared memory together."""

    first: int
    last: int
    staged: bool


def groups_of(forest: Forest, leaf_bytes: int, room: int) -> list[Group]:
    """Cut a forest into groups whose nodes and leaves take at most ``room`` bytes; a larger tree stands alone.

    >>> from veilwood.data.encoding import EncodedColumn
    >>> from veilwood.trees.random import grow_multiway
    >>> coin = EncodedColumn("coin", ordered=False, n_codes=2, missing_code=None)
    >>> forest = grow_multiway([coin], 5, 1)  # trees of three nodes, two of them leaves: 3 * 16 + 2 * 8 bytes
    >>> [tuple(group) for group in groups_of(forest, 8, 128)]
    [(0, 2, True), (2, 4, True), (4, 5, True)]
    >>> groups_of(forest, 8, 60)[0]
    Group(first=0, last=1, staged=False)
    """
    nodes = np.diff(np.append(forest.roots, forest.n_nodes))
    sizes = (_NODE_BYTES * nodes.astype(np.int64) + leaf_bytes * np.diff(forest.tree_leaves)).tolist()
    groups, first = [], 0
    while first < len(sizes):
        last, used = first + 1, sizes[first]
        while last < len(sizes) and used + sizes[last] <= room:
            used += sizes[last]
            last += 1
        groups.append(Group(first, last, used <= room))
        first = last
    return groups


class DeviceForest:
    """A forest in the memory of the current GPU, for leaves of ``width`` numbers of a type."""

    def __init__(self, forest: Forest, width: int, leaf_type: type[np.generic]) -> None:
        import cupy

        self._shared_bytes = device_attribute("MaxSharedMemoryPerBlockOptin")
        self._n_processors = device_attribute("MultiProcessorCount")
        self._forest, self._width = forest, width
        self._leaf_bytes = width * np.dtype(leaf_type).itemsize
        self._arrays = tuple(cupy.asarray(a) for a in (forest.packed, forest.roots, forest.lookup))

    def count(self, columns: Any, target: Any, owner: Any, levels: int, totals: Any) -> None:
        """Add the rows with these codes and targets to ``totals``, shape (n_leaves, width)."""
        import cupy

        target = cupy.ascontiguousarray(cupy.asarray(target, np.int32))
        owner = 0 if owner is None else cupy.ascontiguousarray(cupy.asarray(owner, np.int32))
        # A counter of a block is a 32-bit number: none may see more rows than it can hold.
        self._launch("count_rows", columns, (2**32 - 1) // max(levels, 1), target, owner, np.int32(levels), totals)

    def sum(self, columns: Any, values: Any) -> Any:
        """Return the sums over trees of the leaf values, shape (n_rows, width)."""
        import cupy

        sums = cupy.zeros((columns.shape[1], self._width))
        self._launch("sum_rows", columns, 2**31, values, sums)
        return sums

    def _launch(self, loop: str, columns: Any, most_rows: int, *arguments: Any) -> None:
        n_columns, n_rows = columns.shape
        if not n_rows:
            return
        forest = self._forest
        staged_rows = columns.itemsize * n_columns * _THREADS
        stage_rows = staged_rows <= self._shared_bytes // 2
        room = self._shared_bytes - (staged_rows if stage_rows else 0)
        per_block = min(most_rows, max(_LEAST_ROWS, -(-n_rows // self._n_processors)))
        for first, last, staged in groups_of(forest, self._leaf_bytes, room):
            node, leaf = int(forest.roots[first]), int(forest.tree_leaves[first])
            end = int(forest.roots[last]) if last < forest.n_trees else forest.n_nodes
            n_nodes, n_leaves = (end - node, int(forest.tree_leaves[last]) - leaf) if staged else (0, 0)
            used = _NODE_BYTES * n_nodes + self._leaf_bytes * n_leaves + (staged_rows if stage_rows else 0)
            _kernel(loop, self._width, staged, stage_rows, self._shared_bytes)(
                (-(-n_rows // per_block),), (_THREADS,),
                (*self._arrays, *np.array([first, last, node, n_nodes, leaf, n_leaves], np.int32),
                 columns, np.int64(n_rows), np.int32(n_columns), np.int64(per_block), *arguments),
                shared_mem=used,
            )  # fmt: skip


@cache
def _kernel(loop: str, width: int, stage_trees: bool, stage_rows: bool, shared_bytes: int) -> Any:
    settings = {"THREADS": _THREADS, "WIDTH": width, "STAGE_TREES": int(stage_trees), "STAGE_ROWS": int(stage_rows)}
    return compiled(Path(__file__).with_suffix(".cu"), loop, settings, shared_bytes)


def compiled(source: Path, loop: str, settings: dict[str, int], shared_bytes: int) -> Any:
    """Compile one loop of a file; CuPy keeps the result on disk."""
    import cupy

    options = tuple(f"-D{name}={value}" for name, value in settings.items())
    kernel = cupy.RawModule(code=source.read_text(), options=("--std=c++17", *options)).get_function(loop)
    kernel.max_dynamic_shared_size_bytes = shared_bytes
    return kernel


def device_attribute(name: str) -> int:
    """Return a number that describes the current GPU."""
    import cupy

    return int(cupy.cuda.Device().attributes[name])


def _require() -> None:
    """Refuse if there is no CuPy or no GPU, saying what to do."""
    try:
        import cupy

        n_devices = cupy.cuda.runtime.getDeviceCount()
    except ImportError as missing:
        raise SetupError(
            "the GPU needs CuPy. Hint: pip install 'veilwood[gpu]' (CUDA 13), or cupy-cuda12x for CUDA 12."
        ) from missing
    except cupy.cuda.runtime.CUDARuntimeError as broken:
        raise SetupError(f"CuPy finds no GPU ({broken}). Hint: see nvidia-smi, or leave out gpu.use().") from broken
    if not n_devices:
        raise SetupError("CuPy finds no GPU. Hint: see nvidia-smi, or leave out gpu.use().")
