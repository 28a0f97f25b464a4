# SPDX-License-Identifier: Apache-2.0
"""Whole tables in memory, as pandas frames with the values of the schema."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from veilwood.data.canonical import Nothing
from veilwood.data.encoding import class_labels
from veilwood.data.files import find_files
from veilwood.data.frames import Cells, Table, category_codes
from veilwood.data.numbers import numbers_of
from veilwood.data.problems import Kinds, Problem, Problems
from veilwood.data.schema import Schema

__all__ = ["read_features", "read_table"]


def read_table(
    path: str | PathLike[str], schema: Schema | str | PathLike[str] | dict[str, Any]
) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """Read a file, folder or glob into memory as features and target.

    Parameters
    ----------
    path : path
        CSV (also gzipped), Parquet or Arrow files.
    schema : Schema, path or dict
        Says which columns to expect. Values are checked when they are used.

    Returns
    -------
    X : pandas.DataFrame
        The features in the order of the schema: texts as plain ``str`` (object dtype), numbers as float64.
    y : pandas.Series
        The target: floats, or classes as the schema declares them, which is how they are predicted.
    """
    schema = Schema.resolve(schema)
    frame = _read_frame(path, schema, target=True)
    return frame[list(schema.feature_names)], frame[schema.target.name]


def read_features(path: str | PathLike[str], schema: Schema | str | PathLike[str] | dict[str, Any]) -> pd.DataFrame:
    """Read the features alone, from a table with or without the target, as ``read_table`` does."""
    return _read_frame(path, Schema.resolve(schema), target=False)


def _read_frame(path: str | PathLike[str], schema: Schema, *, target: bool) -> pd.DataFrame:
    columns = (*schema.features, schema.target) if target else schema.features
    names = [column.name for column in columns]
    series: dict[str, pd.Series[Any]] = {}
    tables = []
    for file in find_files(path, schema):
        file.check(schema, target=target)
        tables.append(Table.of(file.load(names)))
    for column in columns:
        parts = []
        for table in tables:
            cells = table.named(column.name)
            assert cells is not None  # the file was checked
            values, kinds = _texts(cells) if column.kind == "categorical" else numbers_of(cells)
            problems = Problems(schema.features, schema.target)
            problems.add(column.name, kinds)
            problems.refuse(table.named)
            parts.append(values)
        found: npt.NDArray[Any] = np.concatenate(parts)
        labels = class_labels(schema)
        known = dict(zip(column.values, labels, strict=True)) if column is schema.target and column.values else {}
        if known and known.keys() >= set(found.tolist()):  # others are for the estimator to refuse
            found = np.array([known[text] for text in found], dtype=labels.dtype)
        series[column.name] = pd.Series(found, dtype=found.dtype)  # else pandas 3 makes texts its own type
    return pd.DataFrame(series)


def _texts(values: Cells) -> tuple[npt.NDArray[np.object_], Kinds | None]:
    """Return a column as plain texts, by which categories are compared, None where missing."""
    codes, texts = category_codes(values)
    unusable = codes == Nothing.UNUSABLE.value
    out: npt.NDArray[np.object_] = np.array([*texts, None], dtype=object)[np.maximum(codes, -1)]
    return out, unusable.astype(np.uint8) * np.uint8(Problem.UNUSABLE) if unusable.any() else None
