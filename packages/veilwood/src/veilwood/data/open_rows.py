# SPDX-License-Identifier: Apache-2.0
"""Batches of encoded rows out of whatever the user has: tables, files, folders, datasets, iterators, clusters.

A pass over them is in ``batches``, counting in ``trees.counting``. A source is private data: no fitted object, file or
message may hold one.
"""

from __future__ import annotations

from os import PathLike
from typing import Any, get_args

from veilwood.data.batches import Source, open_memory, open_stream
from veilwood.data.contributions import IdFilter, Weights
from veilwood.data.encoding import Encoding
from veilwood.data.file_source import Spool, open_files, open_spool
from veilwood.data.files import are_files
from veilwood.data.frames import is_frame
from veilwood.data.problems import Invalid
from veilwood.data.relations import as_batch_stream
from veilwood.engines.cluster.engines import find_engine
from veilwood.engines.cluster.source import open_frame
from veilwood.engines.sql.session import is_database, is_ibis
from veilwood.engines.sql.source import open_sql
from veilwood.errors import OutOfSchemaError, ParameterError, UseError
from veilwood.privacy.neighbours import RowsOf, Unit

__all__ = ["open_rows"]


def open_rows(
    X: Any,
    y: Any,
    encoding: Encoding,
    *,
    unit: Unit | None = None,
    invalid: Invalid = "refuse",
    batch_rows: int = 65536,
    estimator: str = "the schema",
    id_filter: IdFilter | None = None,
    weights: Weights | None = None,
) -> Source:
    """Make a source of a table and its target.

    Parameters
    ----------
    X : dataframe, array, path, folder, glob, address, list of them, dataset, scanner, relation, query, lazy frame, \
            Arrow stream, iterator of tables or of (X, y), ``spool``, or frame of a cluster
        The rows. What is in memory is encoded at once; files and what else can be asked for again are read in each
        pass, in bounded memory; an iterator or Arrow stream can be read once, unless a ``spool`` keeps it. A frame of
        Dask, Spark or Ray is read where it is, again in each pass; its rows must
        come in the same partitions and order each time; where they do not, the fit fails before anything more is
        released.
    y : array-like or None
        The target; None where ``X`` has the target column of the schema. Files and frames of clusters always have it.
    encoding : Encoding
        How cells become codes.
    unit : Rows or RowsOf, optional
        With ``RowsOf(id, at_most=k)``, k rows of each id are chosen at random and the others dropped; the
        column ``id`` need not be in the schema. The choice is made once and holds for every pass. Ids are
        compared by the rule of ``veilwood.data.canonical``: 7, 7.0, "7" and "7.0" are one id, and "007" is another.
    invalid : {"refuse", "drop"}
        What becomes of rows that do not fit the schema. "refuse": the whole table is refused, which can be seen and
        tells something about the rows. "drop": each row is encoded or dropped by a function of that row alone, and
        nothing tells whether or how many were dropped. Dropped are rows with an unknown category, a missing value
        where none may be, a cell that is no number or has no use, a target that cannot be used, an id that is
        missing; texts that are numbers are read as such. A table without rows is fine. Refused is only what
        is not about cells: a missing or unknown column, a target of another length, a file or format that cannot be
        read at all, more rows than memory, a disk or a ``spool`` may hold. Keeping files whole is the business of
        whoever holds them.
    batch_rows : int
        The most rows in a batch.
    estimator : str
        Who is asking, for the error message.
    id_filter : callable, optional
        Which ids are there at all, where a part of the units was set aside; for tables and files.
    weights : Weights, optional
        How much each row counts; for tables in memory.

    Examples
    --------
    >>> from veilwood.data.schema import Schema
    >>> schema = Schema.numeric((0, 10), classes=["a", "b"], n_features=1)
    >>> source = open_rows([[1.0], [9.0]], ["a", "b"], Encoding(schema, "bins"))
    >>> next(source.batches())
    Batch(codes=array([[0],
           [4]], dtype=uint16), target=array([0, 1], dtype=int32), partition=0, first_row=0)
    >>> source = open_rows([[1.0], ["x"], [9.0, 9.0]], ["a", "b", "b"], Encoding(schema, "bins"), invalid="drop")
    >>> next(source.batches()).codes
    array([[0]], dtype=uint16)
    """
    if not isinstance(invalid, str) or invalid not in get_args(Invalid):
        raise ParameterError("invalid", invalid, "is not known", "'refuse' or 'drop'")
    cap = unit if isinstance(unit, RowsOf) else None
    is_path = isinstance(X, PathLike) or (isinstance(X, str) and "://" not in X)
    in_database = not is_path and (is_database(X) or is_ibis(X))
    in_files = is_path or (not in_database and are_files(X))
    engine = None if in_database or in_files else find_engine(X)
    elsewhere = in_database or in_files or engine is not None or isinstance(X, Spool)
    if weights is not None and (elsewhere or not (is_frame(X) or as_batch_stream(X) is None)):
        raise UseError("sample_weight goes with a table in memory. Hint: read the file into a dataframe first.")
    if in_database:
        if y is not None:
            raise OutOfSchemaError("y was given beside a table of a database. Hint: it holds the target column itself.")
        if id_filter is not None:
            raise UseError("units are set aside by id in tables and files only. Hint: write the rows to Parquet files.")
        return open_sql(X, encoding, cap=cap, invalid=invalid)
    if in_files and not (isinstance(X, list | tuple) and y is not None):
        if y is not None:
            raise OutOfSchemaError("y was given beside a file. Hint: files hold the target column themselves.")
        return open_files(X, encoding, cap=cap, invalid=invalid, batch_rows=batch_rows, id_filter=id_filter)
    if id_filter is not None and (engine is not None or (not is_frame(X) and as_batch_stream(X) is not None)):
        raise UseError("units are set aside by id in tables and files only. Hint: write the rows to Parquet files.")
    if engine is not None:
        if y is not None:
            raise OutOfSchemaError(
                f"y was given beside a {engine.name} frame. Hint: the frame holds the target column."
            )
        return open_frame(engine, X, encoding, cap=cap, invalid=invalid)
    pieces = X.iter_pieces() if isinstance(X, Spool) else None if is_frame(X) else as_batch_stream(X)
    if pieces is not None and y is not None:
        raise OutOfSchemaError("y was given beside an iterator. Hint: let it give tables with the target, or (X, y).")
    if isinstance(X, Spool) and pieces is not None:
        return open_spool(X, pieces, encoding, cap=cap, invalid=invalid, batch_rows=batch_rows, id_filter=id_filter)
    if pieces is not None:
        return open_stream(pieces, encoding, cap=cap, invalid=invalid)
    return open_memory(
        X, y, encoding, cap=cap, invalid=invalid, batch_rows=batch_rows, estimator=estimator, id_filter=id_filter,
        weights=weights,
    )  # fmt: skip
