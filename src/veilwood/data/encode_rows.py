# SPDX-License-Identifier: Apache-2.0
"""Features and target of a table together: a batch of the rows that fit, or a refusal of all of them.

This is the one place where it is decided what becomes of a row that does not fit the schema.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from veilwood.data.batches import Batch
from veilwood.data.encoding import Encoding, target_cells
from veilwood.data.frames import Table
from veilwood.data.problems import Invalid
from veilwood.errors import OutOfSchemaError, VeilwoodError

__all__ = ["encode_rows", "kept_of", "view"]


def view(X: Any, encoding: Encoding, invalid: Invalid) -> Table:
    """View a table; where rows that do not fit are dropped, nothing about its rows is refused."""
    try:
        return Table.of(X, width=len(encoding.columns) if invalid == "drop" else None)
    except VeilwoodError:
        raise
    except Exception:  # of another library, whose words may hold cells
        raise OutOfSchemaError("the table cannot be read. Hint: pass a dataframe, a 2-D array or a file.") from None


def encode_rows(
    encoding: Encoding,
    table: Table,
    y: Any,
    *,
    invalid: Invalid,
    allowed_extra: Collection[str] = (),
    estimator: str = "the schema",
    partition: int = 0,
    first_row: int = 0,
) -> tuple[Batch, npt.NDArray[np.bool_] | None]:
    """Encode a table and its target; return all rows, and which of them fit (None: all).

    With "refuse", a row that does not fit makes all of them refused, with every column and kind of problem named. With
    "drop", whether a row fits is a function of that row alone, and nothing is raised or told about rows.
    """
    name, drop = encoding.schema.target.name, invalid == "drop"
    y = table.named(encoding.schema.target.source) if y is None else y
    if y is None:
        raise OutOfSchemaError(
            "fit requires y to be passed, but the target y is None. "
            f"Hint: pass y, or a table with the target column {name!r}.",
            column=name,
        )
    codes, problems = encoding.read(table, parse=drop, allowed_extra=allowed_extra, estimator=estimator)
    cells = target_cells(y, total=drop)
    target, kinds = encoding.read_target(cells, parse=drop)
    if len(codes) != len(target):
        raise OutOfSchemaError("X and y have inconsistent numbers of samples. Hint: pass one target for each row.")
    if kinds is not None:
        problems.add(name, kinds)
    if problems.found and not drop:
        problems.refuse(lambda column: cells if column == name else encoding.cells(table, column), first_row)
    return Batch(codes, target, partition, first_row), problems.kept(len(codes)) if problems.found else None


def kept_of(batch: Batch, *masks: npt.NDArray[np.bool_] | None) -> Batch:
    """Keep the rows that every mask marks."""
    chosen = [mask for mask in masks if mask is not None]
    if not chosen:
        return batch
    kept = np.logical_and.reduce(chosen)
    return batch._replace(codes=batch.codes[kept], target=batch.target[kept])
