# SPDX-License-Identifier: Apache-2.0
"""Everything about a table on disk that does not fit a schema, counted: for whoever holds the data, and nobody else."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Final

from veilwood.data.encoding import Encoding
from veilwood.data.files import find_checked
from veilwood.data.private_text import may_show_values
from veilwood.data.problems import Problem, cell_of
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError
from veilwood.wording import shown

__all__ = ["Checked", "Misfit", "check_files"]

_BATCH_ROWS: Final = 65536
_MOST_SHOWN: Final = 5


@dataclass(repr=False)  # it is as private as the rows
class Misfit:
    """One kind of problem of one column: how many rows have it, and some of them where values may be shown."""

    column: str
    kind: Problem
    rows: int = 0
    examples: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        some = f" ({', '.join(self.examples)}{', ...' * (self.rows > len(self.examples))})" if self.examples else ""
        return f"{self.column!r}: {self.kind.in_short} in {self.rows} row{'s' * (self.rows != 1)}{some}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"column": self.column, "problem": self.kind.in_short, "rows": self.rows, "examples": self.examples}


@dataclass(frozen=True, repr=False)
class Checked:
    """What was found: problems, and how many rows count as the ``other`` of a column. As private as the rows."""

    n_rows: int
    misfits: list[Misfit]
    others: dict[str, int]

    @property
    def others_in_words(self) -> str:
        """Say how many rows fall into ``other``, a column a line."""
        return "".join(
            f"\n{name!r}: {rows} of {self.n_rows} rows count as its 'other'" for name, rows in self.others.items()
        )


def check_files(path: str | PathLike[str], schema: Schema) -> Checked:
    """Read a file, folder or glob whole, and return every column and kind of problem; none where all rows fit."""
    encoding, found, n_rows = Encoding(schema), dict[tuple[str, Problem], Misfit](), 0
    places = [(i, each.name, each.values.index(each.other)) for i, each in enumerate(schema.features) if each.other]
    others = {name: 0 for _, name, _ in places}
    wanted = list(schema.sources)
    files = find_checked(path, schema, as_bytes=True, skip_rows=False)
    for file in files:
        first_row = 0
        for table in file.batches(wanted, _BATCH_ROWS):
            codes, _, problems = encoding.read_rows(table, parse=file.is_text)
            for feature, name, other in places:
                others[name] += int((codes[:, feature] == other).sum())
            for column, kind, rows in problems.each():
                misfit = found.setdefault((column.name, kind), Misfit(column.name, kind))
                misfit.rows += len(rows)
                for row in rows[: _MOST_SHOWN - len(misfit.examples)].tolist() if may_show_values() else ():
                    where = f"{file.where}, " if len(files) > 1 else ""
                    cell = cell_of(encoding.cells(table, column.name), row)
                    text = cell.decode("utf-8", "backslashreplace") if isinstance(cell, bytes) else cell
                    misfit.examples.append(f"{where}row {first_row + row + 1}: {shown(text)}")
            first_row += table.n_rows
        n_rows += first_row
    if not n_rows:
        raise OutOfSchemaError(f"{files[0].where} holds no rows. Hint: check the path.")
    return Checked(n_rows, list(found.values()), others)
