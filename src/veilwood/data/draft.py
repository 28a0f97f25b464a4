# SPDX-License-Identifier: Apache-2.0
"""A first schema read off a table, for a person to review: marked as such until every bound is public knowledge."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, Final

import pandas as pd

from veilwood.data.columns import closest
from veilwood.data.files import find_files
from veilwood.data.frames import Table
from veilwood.data.schema import UNREVIEWED, Schema, Task
from veilwood.errors import OutOfSchemaError

__all__ = ["DRAFT", "draft"]

DRAFT: Final = (
    "DRAFT: every bound and category below was read off the data. Replace them by what is publicly known; delete "
    "each column's 'bounds' mark as you do, then this line and 'inferred'. Until then every result is NOT PRIVATE."
)


def draft(X: Any, target: str | None = None) -> dict[str, Any]:
    """Draft the JSON form of a schema from a table, for a person to review before it is used.

    Every bound and category in it is taken from the data and marked so: what the draft says is as private
    as the data until someone replaces it by what is publicly known and deletes the marks (``bounds``, ``notes``,
    ``inferred``). A model made with an unreviewed draft is NOT PRIVATE and says so.

    Parameters
    ----------
    X : dataframe or path
        The table, target included.
    target : str, optional
        Name of the target column; the last column by default.

    Examples
    --------
    >>> found = draft(pd.DataFrame({"age": [31, 58], "ill": ["no", "yes"]}))
    >>> found["columns"][0]
    {'name': 'age', 'kind': 'numeric', 'lower': 31.0, 'upper': 58.0, 'bounds': 'from data: review'}
    """
    name, frame = "draft", X
    if isinstance(X, str | PathLike):
        (file, *_) = find_files(X, None)
        name, frame = Path(file.where).name.split(".")[0], file.load(list(file.names))
    table = Table.of(frame)
    if table.names is None:
        raise OutOfSchemaError("a draft needs column names. Hint: pass a dataframe or a file.")
    frame = pd.DataFrame({label: _guess(table.column(place)) for place, label in enumerate(table.names)})
    target = table.names[-1] if target is None else target
    if target not in table.names:
        raise OutOfSchemaError(f"the table has no column {target!r}.{closest(target, table.names)}", column=target)
    y = frame.pop(target)
    many = pd.api.types.is_numeric_dtype(y.dtype) and y.nunique() > 20
    task: Task = "regression" if many else "classification"
    found = Schema.infer(frame, y, task, target=target).to_dict() | {"name": name}
    for column in found["columns"]:
        n_values = len(column.get("values", ()))
        column["bounds"] = UNREVIEWED + f" ({n_values} values: an identifier?)" * (n_values > 100)
    return {"notes": DRAFT} | found


def _guess(values: pd.Series[Any]) -> pd.Series[Any]:
    """Turn a column of texts that are all numbers into numbers."""
    if pd.api.types.infer_dtype(values, skipna=True) != "string":
        return values
    try:
        return pd.to_numeric(values)
    except ValueError:
        return values
