# SPDX-License-Identifier: Apache-2.0
"""Counting and prediction on an NVIDIA GPU with CuPy: ``with veilwood_engines.gpu.use(): forest.fit(X, y)``.

Sums equal those of ``counting``, bit for bit. Noise is drawn and splits are selected on the CPU only. The
kernels are in ``gpu.cu`` and ``gpu_rows.cu``; CuPy is imported only when a GPU is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

import numpy as np

from veilwood.arrays import Bools, Codes, Floats, Int32s, Ints
from veilwood.data import counts as queries
from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.errors import SetupError
from veilwood.forests.adaptive import row_backend
from veilwood.forests.adaptive.contingency import BinnedColumn, PackedTables
from veilwood.privacy.entropy import random_integers
from veilwood.trees.counting import ACCELERATOR
from veilwood.trees.forest import Forest

__all__ = ["in_use", "use"]  # the names of the public module ``veilwood.gpu``


CodedRows: TypeAlias = tuple[Codes, Int32s, Int32s | None]

_BLOCK_THREADS = 1024  # threads per block; one block fills a multiprocessor's shared memory with trees
_MIN_ROWS_PER_BLOCK = 4 * _BLOCK_THREADS  # with fewer rows per block, copying the trees takes too long
_PREDICTED_ROWS = 1 << 22  # rows on the device at once during prediction
_NODE_BYTES = 16  # bytes of a node in shared memory


@contextmanager
def use() -> Iterator[None]:
    """Count and predict on the current GPU inside this block.

    Every result is the same as without a GPU, bit for bit; only the time differs. Splits of median and greedy forests
    are still chosen on the CPU. Only the calling thread uses the GPU.

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
    _require_gpu()
    token = ACCELERATOR.set(_Gpu())
    try:
        yield
    finally:
        ACCELERATOR.reset(token)


def in_use() -> bool:
    """Return True inside ``use``.

    >>> in_use()
    False
    """
    return ACCELERATOR.get() is not None


class _Gpu:
    """Adapter of this module to ``counting.Accelerator``."""

    def leaf_totals(
        self, forest: Forest, rows: Iterable[CodedRows], *, n_classes: int | None, target_levels: int
    ) -> Ints:
        return leaf_totals(forest, rows, n_classes=n_classes, target_levels=target_levels)

    def sum_over_trees(self, forest: Forest, codes: Codes, leaf_values: Floats) -> Floats:
        return sum_over_trees(forest, codes, leaf_values)

    def make_backend(self, columns: Sequence[BinnedColumn], source: Source, n_outputs: int) -> GpuBackend:
        return GpuBackend(columns, source, n_outputs)


def leaf_totals(forest: Forest, rows: Iterable[CodedRows], *, n_classes: int | None, target_levels: int) -> Ints:
    """Return ``counting.leaf_totals`` of (codes, target, tree or None) triples, in host or device memory."""
    import cupy

    width = n_classes or 2
    on_device = DeviceForest(forest, width, np.uint32)
    totals = cupy.zeros((forest.n_leaves, width), np.uint64)
    for codes, target, owner in rows:
        on_device.count_rows(to_device_columns(codes), target, owner, 0 if n_classes else target_levels, totals)
    return np.asarray(totals.get().view(np.int64))


def sum_over_trees(forest: Forest, codes: Codes, leaf_values: Floats) -> Floats:
    """Return ``counting.sum_over_trees``."""
    import cupy

    values = cupy.asarray(np.ascontiguousarray(leaf_values, np.float64))
    on_device = DeviceForest(forest, values.shape[1], np.float64)
    sums = np.empty((len(codes), values.shape[1]))
    for start in range(0, len(codes), _PREDICTED_ROWS):
        part = to_device_columns(codes[start : start + _PREDICTED_ROWS])
        sums[start : start + _PREDICTED_ROWS] = on_device.sum_leaf_values(part, values).get()
    return sums


def to_device_columns(codes: Any) -> Any:
    """Copy codes to the device, shape (n_columns, n_rows): adjacent threads read adjacent rows."""
    import cupy

    return cupy.ascontiguousarray(cupy.asarray(codes, np.uint16).T)


class TreeGroup(NamedTuple):
    """Consecutive trees of one kernel launch; ``staged`` if they fit into shared memory together."""

    first: int
    last: int
    staged: bool


def group_trees(forest: Forest, leaf_bytes: int, capacity_bytes: int) -> list[TreeGroup]:
    """Split a forest into groups of at most ``capacity_bytes``; a larger tree is a group of its own.

    >>> from veilwood.data.encoding import EncodedColumn
    >>> from veilwood.trees.random import grow_multiway
    >>> row_bucket = EncodedColumn("row_bucket", ordered=False, n_codes=2, missing_code=None)
    >>> forest = grow_multiway([row_bucket], 5, 1)  # trees of three nodes, two of them leaves: 3 * 16 + 2 * 8 bytes
    >>> [tuple(group) for group in group_trees(forest, 8, 128)]
    [(0, 2, True), (2, 4, True), (4, 5, True)]
    >>> group_trees(forest, 8, 60)[0]
    TreeGroup(first=0, last=1, staged=False)
    """
    nodes = np.diff(np.append(forest.roots, forest.n_nodes))
    sizes = (_NODE_BYTES * nodes.astype(np.int64) + leaf_bytes * np.diff(forest.tree_leaves)).tolist()
    groups, first = [], 0
    while first < len(sizes):
        last, used = first + 1, sizes[first]
        while last < len(sizes) and used + sizes[last] <= capacity_bytes:
            used += sizes[last]
            last += 1
        groups.append(TreeGroup(first, last, used <= capacity_bytes))
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
        self._arrays = tuple(cupy.asarray(a) for a in (forest.packed_nodes, forest.roots, forest.lookup))

    def count_rows(self, columns: Any, target: Any, owner: Any, levels: int, totals: Any) -> None:
        """Add the rows with these codes and targets to ``totals``, shape (n_leaves, width)."""
        import cupy

        target = cupy.ascontiguousarray(cupy.asarray(target, np.int32))
        owner = 0 if owner is None else cupy.ascontiguousarray(cupy.asarray(owner, np.int32))
        # A counter of a block has 32 bits, so no block may count more rows than fit in it.
        self._launch_kernel(
            "count_rows", columns, (2**32 - 1) // max(levels, 1), target, owner, np.int32(levels), totals
        )

    def sum_leaf_values(self, columns: Any, values: Any) -> Any:
        """Return the sums over trees of the leaf values, shape (n_rows, width)."""
        import cupy

        sums = cupy.zeros((columns.shape[1], self._width))
        self._launch_kernel("sum_rows", columns, 2**31, values, sums)
        return sums

    def _launch_kernel(self, loop: str, columns: Any, most_rows: int, *arguments: Any) -> None:
        n_columns, n_rows = columns.shape
        if not n_rows:
            return
        forest = self._forest
        staged_rows = columns.itemsize * n_columns * _BLOCK_THREADS
        stage_rows = staged_rows <= self._shared_bytes // 2
        room = self._shared_bytes - (staged_rows if stage_rows else 0)
        per_block = min(most_rows, max(_MIN_ROWS_PER_BLOCK, -(-n_rows // self._n_processors)))
        for first, last, staged in group_trees(forest, self._leaf_bytes, room):
            node, leaf = int(forest.roots[first]), int(forest.tree_leaves[first])
            end = int(forest.roots[last]) if last < forest.n_trees else forest.n_nodes
            n_nodes, n_leaves = (end - node, int(forest.tree_leaves[last]) - leaf) if staged else (0, 0)
            used = _NODE_BYTES * n_nodes + self._leaf_bytes * n_leaves + (staged_rows if stage_rows else 0)
            _load_kernel(loop, self._width, staged, stage_rows, self._shared_bytes)(
                (-(-n_rows // per_block),), (_BLOCK_THREADS,),
                (*self._arrays, *np.array([first, last, node, n_nodes, leaf, n_leaves], np.int32),
                 columns, np.int64(n_rows), np.int32(n_columns), np.int64(per_block), *arguments),
                shared_mem=used,
            )  # fmt: skip


@cache
def _load_kernel(loop: str, width: int, stage_trees: bool, stage_rows: bool, shared_bytes: int) -> Any:
    settings = {
        "THREADS": _BLOCK_THREADS,
        "WIDTH": width,
        "STAGE_TREES": int(stage_trees),
        "STAGE_ROWS": int(stage_rows),
    }
    return compile_kernel(Path(__file__).with_suffix(".cu"), loop, settings, shared_bytes)


def compile_kernel(source: Path, loop: str, settings: dict[str, int], shared_bytes: int) -> Any:
    """Compile one kernel of a file; CuPy caches the result on disk."""
    import cupy

    options = tuple(f"-D{name}={value}" for name, value in settings.items())
    kernel = cupy.RawModule(code=source.read_text(), options=("--std=c++17", *options)).get_function(loop)
    kernel.max_dynamic_shared_size_bytes = shared_bytes
    return kernel


def device_attribute(name: str) -> int:
    """Return an attribute of the current GPU."""
    import cupy

    return int(cupy.cuda.Device().attributes[name])


def _require_gpu() -> None:
    """Raise SetupError if CuPy is not installed or finds no GPU."""
    try:
        import cupy

        n_devices = cupy.cuda.runtime.getDeviceCount()
    except ImportError as missing:
        raise SetupError(
            "the GPU needs CuPy. Hint: run pip install 'veilwood[gpu]' (CUDA 13) or pip install cupy-cuda12x (CUDA 12)."
        ) from missing
    except cupy.cuda.runtime.CUDARuntimeError as broken:
        raise SetupError(f"CuPy finds no GPU ({broken}). Hint: check nvidia-smi, or leave out use().") from broken
    if not n_devices:
        raise SetupError("CuPy finds no GPU. Hint: check nvidia-smi, or leave out use().")


PART_ROWS: Final = 1 << 25  # rows per part in the device's memory
_MIN_SCORED_ROWS: Final = 1 << 12  # rows per block; with fewer, copying the table takes too long
_MAX_ROWS: Final = 1 << 18  # rows per block, so that no sum of gradients exceeds 32 bits
_BLOCKS: Final = 8  # blocks per multiprocessor, so that it has work while others wait for memory
_MAX_COPIES: Final = 32  # copies of a table, one per thread of a warp, so that no thread waits
_SHARED_MEMORY: Final = 1 << 16  # bytes per block for these copies, so that several blocks fit
_SCORING_THREADS = 256  # threads per block of the kernels in ``gpu_rows.cu``
_ROWS, _CLASSES, _GRADIENTS = 0, 1, 2  # modes of the kernel ``add_up``


@dataclass(repr=False)
class _GpuRows:
    """``ScoredRows`` in the device's memory."""

    cells: Any
    target: Any
    scores: Any

    @property
    def n_rows(self) -> int:
        return len(self.target)

    def select(self, mask: Bools) -> _GpuRows:
        import cupy

        place = cupy.asarray(np.flatnonzero(mask))
        return _GpuRows(
            cupy.ascontiguousarray(self.cells.take(place, axis=1)), self.target.take(place),
            self.scores.take(place, axis=0),
        )  # fmt: skip

    def to_host(self) -> row_backend.ScoredRows:
        import cupy

        return row_backend.ScoredRows(*(cupy.asnumpy(array) for array in (self.cells, self.target, self.scores)))

    @classmethod
    def concatenate(cls, parts: Sequence[_GpuRows]) -> _GpuRows:
        import cupy

        if len(parts) == 1:
            return parts[0]
        cells = cupy.ascontiguousarray(cupy.concatenate([rows.cells for rows in parts], axis=1))
        target, scores = ([getattr(rows, name) for rows in parts] for name in ("target", "scores"))
        return cls(cells, cupy.concatenate(target), cupy.concatenate(scores))


class GpuBackend(queries.RowBackend):
    """Backend that queries rows in the memory of the current GPU (``counts.RowBackend``). Private."""

    supports_holdout = True

    def __init__(self, columns: Sequence[BinnedColumn], source: Source, n_outputs: int) -> None:
        self._columns, self._n_outputs = columns, n_outputs
        self._parts = list(self._load_batches(source.batches()))
        self._holdout: list[_GpuRows] = []
        self._sample: list[_GpuRows] = []

    def _load_batches(self, batches: Iterable[Batch]) -> Iterable[_GpuRows]:
        """Copy batches to the device and concatenate them."""
        import cupy

        dtype = np.uint8 if all(column.n_bins <= 256 for column in self._columns) else np.uint16
        every = np.arange(1 << 16, dtype=np.uint16)
        of_code = [cupy.asarray(column.bin_codes(every).astype(dtype)) for column in self._columns]
        empty = (
            cupy.zeros((len(of_code), 0), dtype),
            cupy.zeros(0, np.int32),
            cupy.zeros((0, self._n_outputs), np.int32),
        )
        some, n_rows = [_GpuRows(*empty)], 0
        for batch in batches:
            codes, target = cupy.asarray(batch.codes), cupy.asarray(batch.target, np.int32)
            cells = cupy.empty((len(of_code), len(target)), dtype)
            for feature, lookup in enumerate(of_code):
                cells[feature] = lookup[codes[:, feature]]
            some.append(_GpuRows(cells, target, cupy.zeros((len(target), self._n_outputs), np.int32)))
            n_rows += len(target)
            if n_rows >= PART_ROWS:
                yield _GpuRows.concatenate(some[1:])
                some, n_rows = some[:1], 0
        yield _GpuRows.concatenate(some[1:] or some)

    def run(self, query: queries.RowQuery) -> Ints:
        """Return the result of a query, summed over all rows."""
        return row_backend.sum_answers([self._run_on(query, rows) for rows in self._parts])

    def run_on_sample(self, query: queries.RowQuery, fraction: float) -> tuple[Ints, float]:
        """Run a query on a fraction of the rows, drawn once with secret randomness; return the fraction too."""
        if not self._sample:
            drawn = [rows.select(self._draw_mask(rows, fraction)) for rows in self._parts]
            self._sample = [_GpuRows.concatenate(drawn)]
        return self._run_on(query, self._sample[0]), fraction

    def add_scores(self, table: queries.ContingencyTable, values: Int32s) -> None:
        """Add the value of each row's cell to its scores."""
        import cupy

        laid, there = PackedTables.pack([table]), cupy.asarray(np.ascontiguousarray(values))
        for rows in (*self._parts, *self._holdout, *self._sample):
            per_block, n_blocks = _grid_shape(rows.n_rows, 1)
            if n_blocks:
                _configure_kernel("add_step", laid, rows, self._n_outputs)(
                    (n_blocks,), (_SCORING_THREADS,),
                    (rows.cells, rows.scores, np.int64(rows.n_rows), np.int64(per_block), *_table_arguments(laid),
                     there, np.int32(row_backend.MAX_SCORE)),
                    shared_mem=0,
                )  # fmt: skip

    def hold_out(self, fraction: float) -> None:
        """Hold out rows at random, each independently: only the last query reaches them."""
        self._holdout += row_backend.split_off(self._parts, fraction, self._draw_mask)

    def _draw_mask(self, rows: _GpuRows, fraction: float) -> Bools:
        return np.asarray(random_integers(rows.n_rows, 16) < int(fraction * row_backend.DRAW_UNITS))

    def run_on_holdout(self, count: Callable[[row_backend.ScoredRows], Ints]) -> Ints:
        """Return the sum of a function over the held-out rows, computed on the CPU."""
        return row_backend.sum_answers([count(rows.to_host()) for rows in self._holdout])

    def nonempty_cells(self, axes: Sequence[queries.Axis], n_classes: int, fraction: float = 1.0) -> tuple[Ints, Ints]:
        """Return the non-empty cells of columns and classes in ascending order, and their counts."""
        import cupy

        parts = []
        for rows in (
            self._parts if fraction >= 1 else (rows.select(self._draw_mask(rows, fraction)) for rows in self._parts)
        ):
            cell = cupy.zeros(rows.n_rows, np.int64)
            for axis in axes:
                cell *= axis.size
                cell += cupy.asarray(axis.groups.astype(np.int64))[rows.cells[axis.feature]]
            cells, counts = cupy.unique(cell * n_classes + rows.target, return_counts=True)
            parts.append((cupy.asnumpy(cells), cupy.asnumpy(counts)))
        return row_backend.merge_cells(parts)

    # -- queries -----------------------------------------------------------------------------------------------------

    def _run_on(self, query: queries.RowQuery, rows: _GpuRows) -> Ints:
        import cupy

        match query:
            case queries.RowsByCell(table):
                return self._sum_tables(_ROWS, [table], 1, rows).ravel()
            case queries.ClassesByCell(tables, n_classes):
                return self._sum_tables(_CLASSES, tables, n_classes, rows)
            case queries.GradientSums(tables, n_classes, limit):
                return self._sum_tables(_GRADIENTS, tables, self._n_outputs, rows, n_classes, limit)
            case queries.TargetSums():
                up = int(rows.target.sum(dtype=np.int64))
                return np.array([up, TARGET_LEVELS * rows.n_rows - up], np.int64)
            case queries.ResidualHistogram(marks):
                residual = rows.target.astype(np.int64) * row_backend.LEVEL_UNITS - rows.scores[:, 0]
                mark = cupy.minimum(cupy.searchsorted(cupy.asarray(marks), residual), len(marks) - 1)
                return np.asarray(cupy.asnumpy(cupy.bincount(mark, minlength=len(marks))), np.int64)
            case queries.EvidenceGain():
                return row_backend.answer_query(query, rows.to_host())
        assert_never(query)

    def _sum_tables(
        self,
        kernel_mode: int,
        tables: Sequence[queries.ContingencyTable],
        width: int,
        rows: _GpuRows,
        n_classes: int = 0,
        limit: int = 0,
    ) -> Ints:
        import cupy

        laid = PackedTables.pack(tables)
        totals = cupy.zeros((laid.n_cells, width), np.uint64)
        sizes = np.diff(laid.arrays.starts.astype(np.int64), append=laid.n_cells).astype(np.int32)
        per_block, n_blocks = _grid_shape(rows.n_rows, len(tables))
        if n_blocks:
            largest = 4 * width * int(sizes.max())
            copies = next((n for n in (_MAX_COPIES, 16, 8, 4, 2, 1) if n * largest <= _SHARED_MEMORY), 0)
            _configure_kernel("add_up", laid, rows, width, kernel_mode, n_classes, copies)(
                (n_blocks * len(tables),), (_SCORING_THREADS,),
                (rows.cells, rows.target, rows.scores, np.int64(rows.n_rows), np.int64(per_block), np.int32(n_blocks),
                 *_table_arguments(laid), cupy.asarray(laid.arrays.starts), cupy.asarray(sizes), np.int32(limit),
                 cupy.asarray(row_backend.SIGMOID_TABLE), np.int32(len(row_backend.SIGMOID_TABLE)),
                 cupy.asarray(row_backend.EXP_TABLE), np.int32(len(row_backend.EXP_TABLE)), totals),
                shared_mem=copies * largest,
            )  # fmt: skip
        return np.asarray(cupy.asnumpy(totals).view(np.int64))


def _grid_shape(n_rows: int, n_tables: int) -> tuple[int, int]:
    """Return the number of rows per block, and of blocks per table."""
    wanted = _BLOCKS * device_attribute("MultiProcessorCount")
    per_block = min(_MAX_ROWS, max(_MIN_SCORED_ROWS, -(-n_rows * n_tables // wanted)))
    return per_block, -(-n_rows // per_block)


def _table_arguments(packed: PackedTables) -> tuple[Any, ...]:
    """Return the arguments of the kernels that describe tables."""
    import cupy

    features, groups, axes, strides, _ = packed.arrays
    return (
        cupy.asarray(features), cupy.asarray(groups), np.int32(groups.shape[1]), cupy.asarray(axes),
        cupy.asarray(strides),
    )  # fmt: skip


def _configure_kernel(
    name: str,
    packed: PackedTables,
    rows: _GpuRows,
    width: int,
    kernel_mode: int = 0,
    n_classes: int = 0,
    copies: int = 0,
) -> Any:
    settings = {
        "THREADS": _SCORING_THREADS, "CELL_BYTES": rows.cells.itemsize, "GROUP_BYTES": packed.arrays.groups.itemsize,
        "WIDTH": width, "ASKED": kernel_mode, "N_CLASSES": n_classes, "MOST_AXES": packed.arrays.axes.shape[1],
        "COPIES": copies,
    }  # fmt: skip
    return _compile_kernel(name, tuple(settings.items()))


@cache
def _compile_kernel(name: str, settings: tuple[tuple[str, int], ...]) -> Any:
    return compile_kernel(Path(__file__).with_name("gpu_rows.cu"), name, dict(settings), _SHARED_MEMORY)
