# SPDX-License-Identifier: Apache-2.0
"""Reading of whole tables into memory, as pandas frames with the values of the schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from os import PathLike
from typing import Any, Literal, overload

import numpy as np
import pandas as pd

from veilwood.arrays import AnyArray, Indices
from veilwood.data.canonical import factorize_texts
from veilwood.data.columns import Column, did_you_mean
from veilwood.data.contributions import missing_id_column_error
from veilwood.data.encoding import class_labels
from veilwood.data.files import find_files, no_rows_error
from veilwood.data.frames import Table
from veilwood.data.numbers import read_column
from veilwood.data.problems import Problems, unusable_kinds
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError
from veilwood.privacy.neighbours import RowsOf, id_names


@overload
def read_table(
    path: str | PathLike[str],
    schema: Schema | str | PathLike[str] | dict[str, Any],
    *,
    target: Literal[True] = True,
) -> tuple[pd.DataFrame, pd.Series[Any]]: ...
@overload
def read_table(
    path: str | PathLike[str], schema: Schema | str | PathLike[str] | dict[str, Any], *, target: Literal[False]
) -> pd.DataFrame: ...
def read_table(
    path: str | PathLike[str], schema: Schema | str | PathLike[str] | dict[str, Any], *, target: bool = True
) -> tuple[pd.DataFrame, pd.Series[Any]] | pd.DataFrame:
    """Read a file, folder or glob into memory as features and target.

    Parameters
    ----------
    path : path
        CSV (also gzipped), Parquet or Arrow files.
    schema : Schema, path or dict
        The expected columns. Values are validated when they are used.
    target : bool, default True
        Whether to read the target. Pass False for new rows, which need no target column.

    Returns
    -------
    X : pandas.DataFrame
        The columns of the features, in the order of the schema, each once: text as ``str`` (object dtype), numbers as
        float64. If the schema protects all rows of an id and the table has the id column, that column comes last.
    y : pandas.Series
        The target: floats, or classes of the declared type. Not returned if ``target`` is False.
    """
    schema = Schema.resolve(schema)
    frame = _read_frame(path, schema, target=target)
    return (frame.drop(columns=schema.target.name), frame[schema.target.name]) if target else frame


def read_feature_batches(
    path: str | PathLike[str],
    schema: Schema,
    passthrough: Sequence[str] = (),
    *,
    allowed_extra: Collection[str] = (),
    batch_rows: int = 65536,
    as_text: bool = False,
) -> Iterator[tuple[Table, pd.DataFrame]]:
    """Read the features in batches, with columns to pass through unchanged, such as an id.

    With ``as_text``, values of CSV files are unchanged strings, so that no value makes reading fail.
    """
    features = list(dict.fromkeys(column.source for column in schema.features))
    wanted = list(dict.fromkeys([*features, *passthrough]))
    for file in find_files(path, schema, passthrough, as_bytes=as_text, skip_rows=False):
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
            passed = batch.arrow.select(list(passthrough)).to_pandas()
            if as_text:
                passed = passed.map(lambda cell: cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell)
            yield Table.from_data(batch.arrow.select(features)), passed
            empty = False
        if empty:
            raise no_rows_error(file.display_name)


def _read_frame(path: str | PathLike[str], schema: Schema, *, target: bool) -> pd.DataFrame:
    read = (*schema.features, *((schema.target,) if target else ()))
    # If several columns are read from one table column, reading it as text loses least.
    columns = {each.source: each for each in sorted(read, key=lambda column: column.kind == "categorical")}
    columns = {source: columns[source] for source in dict.fromkeys(each.source for each in read)}
    unit = schema.privacy_unit
    cap = unit if isinstance(unit, RowsOf) and unit.id not in columns else None
    files = find_files(path, schema, id_names(cap))
    for file in files:
        file.check_columns(schema, target=target)
    if cap is not None and any(cap.id not in file.names for file in files):
        if target:
            raise missing_id_column_error(cap)
        cap = None  # rows to predict need no id
    tables = [file.load([*columns, *id_names(cap)]) for file in files]
    series: dict[str, pd.Series[Any]] = {}
    for name, column in columns.items():
        values = np.concatenate([_read_column(table, column, schema) for table in tables])
        if column is schema.target and column.values:
            labels = class_labels(schema)
            known = dict(zip(column.values, labels, strict=True))
            known |= {spelling: known[category] for spelling, category in column.aliases.items()}
            if known.keys() >= set(values.tolist()):  # otherwise the estimator rejects the unknown labels
                values = np.array([known[text] for text in values], dtype=labels.dtype)
        series[name] = pd.Series(values, dtype=values.dtype)  # pandas 3 would give texts a type of its own
    for name in id_names(cap):
        series[name] = pd.Series(np.concatenate([_read_texts(table, name)[0] for table in tables]), dtype=object)
    return pd.DataFrame(series)


def _read_column(table: Table, column: Column, schema: Schema) -> AnyArray:
    """Return a column: numbers as floats, other values as their canonical texts, None if missing."""
    cells = table.column_by_name(column.source)
    assert cells is not None  # the file was checked
    if column.kind == "numeric" and column.part is None:
        values, kinds = read_column(cells, column, schema.dialect)
    else:
        values, codes = _read_texts(table, column.source)
        kinds = unusable_kinds(codes)
    problems = Problems(schema.features, schema.target)
    problems.add(column.name, kinds)
    problems.raise_if_any(lambda name: cells)
    return values


def _read_texts(table: Table, name: str) -> tuple[AnyArray, Indices]:
    """Return the texts of a column, None if missing, and their codes."""
    values = table.column_by_name(name)
    assert values is not None  # the file was checked
    codes, texts = factorize_texts(values)
    return np.array([*texts, None], dtype=object)[np.maximum(codes, -1)], codes
