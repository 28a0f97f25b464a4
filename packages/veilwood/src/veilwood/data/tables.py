# SPDX-License-Identifier: Apache-2.0
"""Whole tables in memory, as pandas frames with the values of the schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from veilwood.data.canonical import ColumnValues, NoText, factorize_texts
from veilwood.data.columns import did_you_mean
from veilwood.data.encoding import class_labels
from veilwood.data.files import find_files
from veilwood.data.frames import Table
from veilwood.data.numbers import read_numbers
from veilwood.data.problems import Kinds, Problem, Problems
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError

__all__ = ["read_feature_batches", "read_features", "read_table"]


def read_table(
    path: str | PathLike[str], schema: Schema | str | PathLike[str] | dict[str, Any]
) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """Read a file, folder or glob into memory as features and target.

    Parameters
    ----------
    path : path
        CSV (also gzipped), Parquet or Arrow files.
    schema : Schema, path or dict
        The expected columns. Values are validated when they are used.

    Returns
    -------
    X : pandas.DataFrame
        The features in the order of the schema: texts as plain ``str`` (object dtype), numbers as float64. A column of
        which several features are parts appears once.
    y : pandas.Series
        The target: floats, or classes as the schema declares and models predict them.
    """
    schema = Schema.resolve(schema)
    frame = _read_frame(path, schema, target=True)
    return frame.drop(columns=schema.target.name), frame[schema.target.name]


def read_features(
    path: str | PathLike[str],
    schema: Schema | str | PathLike[str] | dict[str, Any],
    *,
    allowed_extra: Collection[str] = (),
) -> pd.DataFrame:
    """Read only the features, from a table with or without the target, as ``read_table`` does."""
    return _read_frame(path, Schema.resolve(schema), target=False, allowed_extra=allowed_extra)


def read_feature_batches(
    path: str | PathLike[str],
    schema: Schema,
    passthrough: Sequence[str] = (),
    *,
    allowed_extra: Collection[str] = (),
    batch_rows: int = 65536,
) -> Iterator[tuple[Table, pd.DataFrame]]:
    """Read the features in batches, and with them unchanged columns to pass through, such as an id."""
    features = list(dict.fromkeys(column.source for column in schema.features))
    wanted = list(dict.fromkeys([*features, *passthrough]))
    for file in find_files(path, schema, passthrough):
        lacking = [name for name in passthrough if name not in file.names]
        if lacking:
            raise OutOfSchemaError(
                f"{file.display_name}: the table has no column {lacking[0]!r}.{did_you_mean(lacking[0], file.names)}",
                column=lacking[0],
            )
        file.check_columns(schema, allowed_extra, target=False)
        empty = True
        for batch in file.read_batches(wanted, batch_rows):
            assert batch.arrow is not None  # files are read by Arrow
            yield Table.from_data(batch.arrow.select(features)), batch.arrow.select(list(passthrough)).to_pandas()
            empty = False
        if empty:
            raise OutOfSchemaError(f"{file.display_name} holds no rows. Hint: check the path.")


def _read_frame(
    path: str | PathLike[str], schema: Schema, *, target: bool, allowed_extra: Collection[str] = ()
) -> pd.DataFrame:
    columns = {column.source: column for column in (*schema.features, *((schema.target,) if target else ()))}
    series: dict[str, pd.Series[Any]] = {}
    tables = []
    for file in find_files(path, schema):
        file.check_columns(schema, allowed_extra, target=target)
        tables.append(Table.from_data(file.load(list(columns))))
    for name, column in columns.items():
        parts = []
        for table in tables:
            cells = table.column_by_name(name)
            assert cells is not None  # the file was checked
            is_number = column.kind == "numeric" and column.part is None
            values, kinds = read_numbers(cells) if is_number else _read_texts(cells)
            problems = Problems(schema.features, schema.target)
            problems.add(column.name, kinds)
            problems.raise_if_any(partial(_return_values, cells))
            parts.append(values)
        found: npt.NDArray[Any] = np.concatenate(parts)
        labels = class_labels(schema)
        known = dict(zip(column.values, labels, strict=True)) if column is schema.target and column.values else {}
        if known and known.keys() >= set(found.tolist()):  # others are for the estimator to refuse
            found = np.array([known[text] for text in found], dtype=labels.dtype)
        series[name] = pd.Series(found, dtype=found.dtype)  # else pandas 3 makes texts its own type
    return pd.DataFrame(series)


def _return_values(cells: ColumnValues, name: str) -> ColumnValues:
    return cells


def _read_texts(values: ColumnValues) -> tuple[npt.NDArray[np.object_], Kinds | None]:
    """Return a column as plain texts, by which categories are compared, None if missing."""
    codes, texts = factorize_texts(values)
    unusable = codes == NoText.UNUSABLE.value
    out: npt.NDArray[np.object_] = np.array([*texts, None], dtype=object)[np.maximum(codes, -1)]
    return out, unusable.astype(np.uint8) * np.uint8(Problem.UNUSABLE) if unusable.any() else None
