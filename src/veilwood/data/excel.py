# SPDX-License-Identifier: Apache-2.0
"""Spreadsheets as tables of text: the first sheet, with names in its first row; needs the extra ``excel``."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection
from typing import Any, Final

import pyarrow as pa

from veilwood.data.canonical import text_of
from veilwood.errors import OutOfSchemaError, SetupError

__all__ = ["excel_dataset"]

_FIRST_ROUNDED: Final = 2.0**53
_UNREAD: Final = "a row that cannot be read"


def excel_dataset(where: str, opened: Callable[[], Any], nulls: Collection[str] = ()) -> Any:
    """Read the first sheet of a workbook whole; each cell becomes its text, whatever stands in other rows."""
    try:
        from python_calamine import CalamineError, CalamineWorkbook
    except ImportError:
        raise SetupError("spreadsheets need an extra. Hint: pip install 'veilwood[excel]', or save as CSV.") from None
    try:
        with opened() as file, CalamineWorkbook.from_filelike(io.BytesIO(file.read())) as book:
            rows = _rows(book.get_sheet_by_index(0))
    except CalamineError:  # its words may hold cells
        raise OutOfSchemaError(f"cannot read {where!r}: it is damaged or of another format.") from None
    names = [str(name) for name in rows[0]] if rows else []
    while names and not names[-1]:  # cells beside the table, in any row, are not part of it
        names.pop()
    if not any(names):
        raise OutOfSchemaError(f"cannot read {where!r}: the first row of its first sheet must name the columns.")
    if len(set(names)) < len(names):
        raise OutOfSchemaError(f"cannot read {where!r}: two columns share a name, or have none.")
    columns = [[_text(row[place], nulls) for row in rows[1:]] for place in range(len(names))]
    table = pa.table([pa.array(cells, pa.string()) for cells in columns], names=names)
    import pyarrow.dataset as datasets  # slow to load

    return datasets.dataset(table)


def _rows(sheet: Any) -> list[list[Any]]:
    """Read each row by itself: one with a cell that Python cannot hold, as a duration of ages, has no usable cells."""
    left = [""] * (sheet.start or (0, 0))[1]
    rows: list[list[Any]] = []
    unread = sheet.iter_rows()
    while True:
        try:
            rows.append([*left, *next(unread)])
        except StopIteration:
            return rows
        except (OverflowError, ValueError):
            rows.append([_UNREAD] * (len(left) + sheet.width))


def _text(cell: Any, nulls: Collection[str]) -> str | None:
    text = text_of(cell)
    if not isinstance(text, str) or text in nulls:
        return None
    # The digits of a number that the sheet has rounded would pass for an id.
    return repr(float(cell)) if isinstance(cell, int | float) and abs(cell) >= _FIRST_ROUNDED else text
