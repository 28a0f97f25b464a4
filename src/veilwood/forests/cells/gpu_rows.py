# SPDX-License-Identifier: Apache-2.0
"""Rows in the memory of a GPU: what PrivateForest asks is added up there, inside ``veilwood.gpu.use()``.

The whole numbers are those of ``rows.HeldRows``; noise, choices and everything public stay on the processor. The loops
are in ``gpu_rows.cu``; CuPy is imported only where a GPU is used. Batches may lie in either side's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.forests.cells import questions as asked
from veilwood.forests.cells.cell_tables import Axis, CellTable
from veilwood.forests.cells.columns import CellColumn
from veilwood.forests.cells.layouts import Laid
from veilwood.forests.cells.rows import (
    COINS,
    LARGEST_SCORE,
    LEVEL_UNITS,
    POWERS,
    SECOND_SHARES,
    TARGET_CELLS,
    Ints,
    Question,
    ScoredRows,
    added_up,
    joined_cells,
    set_apart,
)
from veilwood.privacy.entropy import words
from veilwood.trees import gpu

PART_ROWS: Final = 1 << 25  # that lie in the device's memory together
_LEAST_ROWS: Final = 1 << 12  # of a block, to be worth its copy of a table
_MOST_ROWS: Final = 1 << 18  # of a block: no sum of gradients leaves 32 bits
_BLOCKS: Final = 8  # for each multiprocessor
_MOST_COPIES: Final = 32  # of a table, one for each thread of a warp: they do not wait for each other
_ROOM: Final = 1 << 16  # bytes of a block's memory for them, so that several blocks fit
_THREADS = 256  # of a block
_ROWS, _CLASSES, _GRADIENTS = 0, 1, 2  # what ``add_up`` adds up


@dataclass(repr=False)
class _DeviceScores:
    """``ScoredRows`` in the device's memory."""

    cells: Any
    target: Any
    scores: Any

    @property
    def n_rows(self) -> int:
        return len(self.target)

    def some(self, kept: NDArray[np.bool_]) -> _DeviceScores:
        import cupy

        place = cupy.asarray(np.flatnonzero(kept))
        return _DeviceScores(
            cupy.ascontiguousarray(self.cells.take(place, axis=1)), self.target.take(place),
            self.scores.take(place, axis=0),
        )  # fmt: skip

    def on_host(self) -> ScoredRows:
        import cupy

        return ScoredRows(*(cupy.asnumpy(array) for array in (self.cells, self.target, self.scores)))

    @classmethod
    def joined(cls, parts: Sequence[_DeviceScores]) -> _DeviceScores:
        import cupy

        if len(parts) == 1:
            return parts[0]
        cells = cupy.ascontiguousarray(cupy.concatenate([rows.cells for rows in parts], axis=1))
        target, scores = ([getattr(rows, name) for rows in parts] for name in ("target", "scores"))
        return cls(cells, cupy.concatenate(target), cupy.concatenate(scores))


class DeviceRows:
    """Asks rows that lie in the memory of the current GPU, with their scores (``rows.AskedRows``). Private."""

    holds_back: ClassVar[bool] = True

    def __init__(self, columns: Sequence[CellColumn], source: Source, n_outputs: int) -> None:
        self._columns, self._n_outputs = columns, n_outputs
        self._parts = list(self._read(source.batches()))
        self._held_back: list[_DeviceScores] = []
        self._judges: list[_DeviceScores] = []

    def _read(self, batches: Iterable[Batch]) -> Iterable[_DeviceScores]:
        """Bring batches over, and put them together."""
        import cupy

        dtype = np.uint8 if all(column.n_cells <= 256 for column in self._columns) else np.uint16
        every = np.arange(1 << 16, dtype=np.uint16)
        of_code = [cupy.asarray(column.cells(every).astype(dtype)) for column in self._columns]
        empty = (
            cupy.zeros((len(of_code), 0), dtype),
            cupy.zeros(0, np.int32),
            cupy.zeros((0, self._n_outputs), np.int32),
        )
        some, n_rows = [_DeviceScores(*empty)], 0
        for batch in batches:
            codes, target = cupy.asarray(batch.codes), cupy.asarray(batch.target, np.int32)
            cells = cupy.empty((len(of_code), len(target)), dtype)
            for feature, lookup in enumerate(of_code):
                cells[feature] = lookup[codes[:, feature]]
            some.append(_DeviceScores(cells, target, cupy.zeros((len(target), self._n_outputs), np.int32)))
            n_rows += len(target)
            if n_rows >= PART_ROWS:
                yield _DeviceScores.joined(some[1:])
                some, n_rows = some[:1], 0
        yield _DeviceScores.joined(some[1:] or some)

    def ask(self, question: Question) -> Ints:
        """Return the answer, added up over all rows."""
        return added_up([self._answer(question, rows) for rows in self._parts])

    def ask_some(self, question: Question, share: float) -> tuple[Ints, float]:
        """Ask about a share of the rows, drawn once by secret coins, one for each row; return the share too."""
        if not self._judges:
            drawn = [rows.some(self._drawn(rows, share)) for rows in self._parts]
            self._judges = [_DeviceScores.joined(drawn)]
        return self._answer(question, self._judges[0]), share

    def add(self, table: CellTable, values: NDArray[np.int32]) -> None:
        """Take a step."""
        import cupy

        laid, there = Laid.of([table]), cupy.asarray(np.ascontiguousarray(values))
        for rows in (*self._parts, *self._held_back, *self._judges):
            per_block, n_blocks = _division(rows.n_rows, 1)
            if n_blocks:
                _loop("add_step", laid, rows, self._n_outputs)(
                    (n_blocks,), (_THREADS,),
                    (rows.cells, rows.scores, np.int64(rows.n_rows), np.int64(per_block), *_tables(laid), there,
                     np.int32(LARGEST_SCORE)),
                    shared_mem=0,
                )  # fmt: skip

    def hold_back(self, share: float) -> None:
        """Set rows apart by secret coins, one for each row: no question reaches them but the last one."""
        self._held_back += set_apart(self._parts, share, self._drawn)

    def _drawn(self, rows: _DeviceScores, share: float) -> NDArray[np.bool_]:
        return np.asarray(words(rows.n_rows, 16) < int(share * COINS))

    def ask_held_back(self, question: Question) -> Ints:
        """Return the answer of the rows that were set apart, found on the processor."""
        return added_up([question(rows.on_host()) for rows in self._held_back])

    def occupied(self, axes: Sequence[Axis], n_classes: int, share: float = 1.0) -> tuple[Ints, Ints]:
        """Return the cells of columns and classes that hold rows, ascending, and how many each."""
        import cupy

        found = []
        for rows in self._parts if share >= 1 else (rows.some(self._drawn(rows, share)) for rows in self._parts):
            every = cupy.zeros(rows.n_rows, np.int64)
            for axis in axes:
                every *= axis.size
                every += cupy.asarray(axis.groups.astype(np.int64))[rows.cells[axis.feature]]
            cells, counts = cupy.unique(every * n_classes + rows.target, return_counts=True)
            found.append((cupy.asnumpy(cells), cupy.asnumpy(counts)))
        return joined_cells(found)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _answer(self, question: Question, rows: _DeviceScores) -> Ints:
        import cupy

        match question:
            case asked.RowCount():
                return np.array([rows.n_rows], np.int64)
            case asked.ClassCounts(n_classes):
                return self._sums(_CLASSES, [CellTable(())], n_classes, rows).ravel()
            case asked.Histogram(column, n_cells):
                table = CellTable((self._columns[column].values(),))
                return self._sums(_ROWS, [table], 1, rows).ravel()[:n_cells]
            case asked.RowsByCell(table):
                return self._sums(_ROWS, [table], 1, rows).ravel()
            case asked.ClassesByCell(tables, n_classes):
                return self._sums(_CLASSES, tables, n_classes, rows)
            case asked.GradientSums(tables, n_classes, limit):
                return self._sums(_GRADIENTS, tables, self._n_outputs, rows, n_classes, limit)
            case asked.TargetSums():
                up = int(rows.target.sum(dtype=np.int64))
                return np.array([up, TARGET_LEVELS * rows.n_rows - up], np.int64)
            case asked.TargetHistogram():
                cell = rows.target.astype(np.int64) * TARGET_CELLS // (TARGET_LEVELS + 1)
                return np.asarray(cupy.asnumpy(cupy.bincount(cell, minlength=TARGET_CELLS)), np.int64)
            case asked.ResidualHistogram(marks):
                away = abs(rows.target.astype(np.int64) * LEVEL_UNITS - rows.scores[:, 0])
                mark = cupy.minimum(cupy.searchsorted(cupy.asarray(marks), away), len(marks) - 1)
                return np.asarray(cupy.asnumpy(cupy.bincount(mark, minlength=len(marks))), np.int64)
        return question(rows.on_host())

    def _sums(
        self,
        what: int,
        tables: Sequence[CellTable],
        width: int,
        rows: _DeviceScores,
        n_classes: int = 0,
        limit: int = 0,
    ) -> Ints:
        import cupy

        laid = Laid.of(tables)
        totals = cupy.zeros((laid.n_cells, width), np.uint64)
        sizes = np.diff(laid.layout.starts.astype(np.int64), append=laid.n_cells).astype(np.int32)
        per_block, n_blocks = _division(rows.n_rows, len(tables))
        if n_blocks:
            largest = 4 * width * int(sizes.max())
            copies = next((n for n in (_MOST_COPIES, 16, 8, 4, 2, 1) if n * largest <= _ROOM), 0)
            _loop("add_up", laid, rows, width, what, n_classes, copies)(
                (n_blocks * len(tables),), (_THREADS,),
                (rows.cells, rows.target, rows.scores, np.int64(rows.n_rows), np.int64(per_block), np.int32(n_blocks),
                 *_tables(laid), cupy.asarray(laid.layout.starts), cupy.asarray(sizes), np.int32(limit),
                 cupy.asarray(SECOND_SHARES), np.int32(len(SECOND_SHARES)), cupy.asarray(POWERS),
                 np.int32(len(POWERS)), totals),
                shared_mem=copies * largest,
            )  # fmt: skip
        return np.asarray(cupy.asnumpy(totals).view(np.int64))


def _division(n_rows: int, n_tables: int) -> tuple[int, int]:
    """Rows of a block, and blocks for each table."""
    wanted = _BLOCKS * gpu.device_attribute("MultiProcessorCount")
    per_block = min(_MOST_ROWS, max(_LEAST_ROWS, -(-n_rows * n_tables // wanted)))
    return per_block, -(-n_rows // per_block)


def _tables(laid: Laid) -> tuple[Any, ...]:
    """What loops are told about tables."""
    import cupy

    features, groups, axes, strides, _ = laid.layout
    return (
        cupy.asarray(features), cupy.asarray(groups), np.int32(groups.shape[1]), cupy.asarray(axes),
        cupy.asarray(strides),
    )  # fmt: skip


def _loop(
    name: str, laid: Laid, rows: _DeviceScores, width: int, what: int = 0, n_classes: int = 0, copies: int = 0
) -> Any:
    settings = {
        "THREADS": _THREADS, "CELL_BYTES": rows.cells.itemsize, "GROUP_BYTES": laid.layout.groups.itemsize,
        "WIDTH": width, "ASKED": what, "N_CLASSES": n_classes, "MOST_AXES": laid.layout.axes.shape[1], "COPIES": copies,
    }  # fmt: skip
    return _compiled(name, tuple(settings.items()))


@cache
def _compiled(name: str, settings: tuple[tuple[str, int], ...]) -> Any:
    return gpu.compiled(Path(__file__).with_suffix(".cu"), name, dict(settings), _ROOM)
