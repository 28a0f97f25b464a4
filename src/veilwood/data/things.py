# SPDX-License-Identifier: Apache-2.0
"""What columns hold when no schema says it: how often each text occurs, and how large numbers are, in powers of two.

Rows are read one by one and none is refused. The counts are exact, hence private; ``discover`` makes a schema of what
stands out of the noise.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from veilwood.data.canonical import ColumnCells, category_codes
from veilwood.data.dialect import DIALECT, Dialect
from veilwood.data.files import find_files
from veilwood.data.frames import Table
from veilwood.data.numbers import numbers_of
from veilwood.data.row_cap import choose_rows
from veilwood.errors import OutOfSchemaError
from veilwood.privacy.neighbours import RowsOf

__all__ = ["SIZES", "Size", "Things", "bounds_of", "size_of", "things_in"]

Size: TypeAlias = int
_SMALLEST: Final = -40  # powers of two; smaller and larger numbers count as these
_LARGEST: Final = 60
_SIGNED: Final = _LARGEST - _SMALLEST + 1
SIZES: Final = 2 * _SIGNED + 1
"""Sizes are 0 .. SIZES - 1, in the order of the numbers: the one in the middle is that of zero."""
_BATCH_ROWS: Final = 65536
_CODE: Final = re.compile("0[0-9]")  # of digits, but no number


def size_of(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """Return the size of each number: from 2^e up to, and without, 2^(e+1) is one size, and so below zero.

    Examples
    --------
    >>> [bounds_of(size) for size in size_of(np.array([0.0, 5.0, -0.3, 64.0])).tolist()]
    [(0.0, 0.0), (4.0, 8.0), (-0.5, -0.25), (64.0, 128.0)]
    """
    _, exponent = np.frexp(numbers)  # numbers are m * 2^exponent with m from 1/2 up to 1
    power = np.clip(exponent - 1, _SMALLEST, _LARGEST) - _SMALLEST + 1
    return np.where(numbers == 0, _SIGNED, _SIGNED + np.sign(numbers).astype(np.intp) * power)


def bounds_of(size: Size) -> tuple[float, float]:
    """Return between which numbers a size lies."""
    if size == _SIGNED:
        return 0.0, 0.0
    low = 2.0 ** (abs(size - _SIGNED) - 1 + _SMALLEST)
    return (low, 2 * low) if size > _SIGNED else (-2 * low, -low)


@dataclass(frozen=True, repr=False)  # it is as private as the rows
class Things:
    """A table whose columns can be counted."""

    name: str
    """What the table is called."""
    names: tuple[str, ...]
    """The names of its columns."""
    _read: Callable[[Sequence[str]], Iterable[Iterable[Table]]]
    _dialect: Dialect

    def count(self, columns: Sequence[str], cap: RowsOf | None) -> tuple[list[Counter[str]], npt.NDArray[np.int64]]:
        """Count the texts of each column, and the sizes of its numbers: a row adds one to one of either, at most.

        With a cap, at most so many rows of an id count, and none without an id.
        """
        kept = None
        if cap is not None:
            ids = ((table.named(cap.id) for table in part) for part in self._read([cap.id]))
            kept = choose_rows(ids, cap, "drop")
        texts = [Counter[str]() for _ in columns]
        sizes = np.zeros((len(columns), SIZES), np.int64)
        for partition, tables in enumerate(self._read(columns)):
            row = 0
            for table in tables:
                mask = slice(None) if kept is None else kept[partition][row : row + table.n_rows]
                row += table.n_rows
                for place, name in enumerate(columns):
                    cells = table.named(name)
                    assert cells is not None  # the name is the table's
                    _count(cells, mask, self._dialect.of(name), texts[place], sizes[place])
        return texts, sizes


def _count(cells: ColumnCells, mask: Any, dialect: Dialect, texts: Counter[str], sizes: npt.NDArray[np.int64]) -> None:
    codes, found = category_codes(cells)
    codes = codes[mask]
    counts = np.bincount(codes[codes >= 0], minlength=len(found))
    for text, count in zip(found, counts.tolist(), strict=True):
        if count:
            texts[text] += count
    written = isinstance(cells, pa.ChunkedArray) and (pa.types.is_binary(cells.type) or pa.types.is_string(cells.type))
    numbers, kinds = numbers_of(dialect.numbers(cells) if written else cells, parse=True)
    good = np.isfinite(numbers) & (kinds is None or kinds == 0)
    is_code = np.array([*(bool(_CODE.match(text)) for text in found), True, True])  # the last two: no text at all
    good = good[mask] & ~is_code[codes]
    sizes += np.bincount(size_of(numbers[mask][good]), minlength=SIZES)


def things_in(X: Any, dialect: Dialect = DIALECT) -> Things:
    """Open a dataframe, a file, a folder or a glob; names of columns are taken to be public, and nothing else is told.

    Examples
    --------
    >>> import pandas as pd
    >>> texts, sizes = things_in(pd.DataFrame({"x": [3, 3.0, "a"]})).count(["x"], None)
    >>> texts, sizes.sum()
    ([Counter({'3': 2, 'a': 1})], np.int64(2))
    """
    if not isinstance(X, str | PathLike):
        table = Table.of(X, width=1)
        if table.names is None:
            raise OutOfSchemaError("columns need names to be discovered. Hint: pass a dataframe or a file.")
        return Things("discovered", table.names, lambda columns: [[table]], dialect)
    files = find_files(X, None, as_bytes=True, dialect=dialect)
    for file in files[1:]:
        if set(file.names) != set(files[0].names):
            raise OutOfSchemaError(f"{file.where} has other columns than {files[0].where}. Hint: one table at a time.")

    def read(columns: Sequence[str]) -> Iterator[Iterator[Table]]:
        for file in files:
            yield file.batches(list(columns), _BATCH_ROWS)

    return Things(Path(files[0].where).name.split(".")[0], files[0].names, read, dialect)
