# SPDX-License-Identifier: Apache-2.0
"""Opening of rows as encoded batches: tables, files, folders, datasets, iterators, clusters and databases.

Batches and passes are in ``batches``, counting is in ``trees.counting``. A source is private data: no fitted object,
file or message may contain a source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any, Final, get_args

from veilwood.data.batches import Source, open_memory, open_stream
from veilwood.data.contributions import IdFilter, Weights
from veilwood.data.encoding import Encoding
from veilwood.data.file_source import Spool, open_files, open_spool
from veilwood.data.files import are_files
from veilwood.data.frames import is_frame
from veilwood.data.problems import Invalid
from veilwood.data.relations import as_batch_stream
from veilwood.errors import OutOfSchemaError, ParameterError, UseError
from veilwood.privacy.door import Door
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.neighbours import RowsOf, Unit
from veilwood.siblings import CLUSTER_SOURCE, Sibling, find_cluster, find_database


class JointRows(ABC):
    """Rows of several owners, which only three servers together can count (``veilwood_secure``)."""

    @abstractmethod
    def open_source(self) -> Source:
        """Return the source for the analyst, which contains no rows."""

    @abstractmethod
    def make_door(self, estimator: Any, ledger: Ledger) -> Door:
        """Return the door that releases what the servers open. Raise an error if they cannot fit the estimator."""


@dataclass(frozen=True)
class _Rows:
    """Rows to open, and the options under which they are encoded."""

    X: Any
    y: Any
    encoding: Encoding
    cap: RowsOf | None
    invalid: Invalid
    batch_rows: int
    estimator: str
    id_filter: IdFilter | None
    weights: Weights | None


@dataclass(frozen=True)
class Opener:
    """Kind of rows: how it is recognised and opened, and which arguments it can be combined with.

    Attributes
    ----------
    match : callable
        Return what ``open`` reads, or None if ``X`` is of another kind.
    open : callable
        Make a source of what ``match`` returned.
    kind : str
        Name of the kind in messages; ``{0.name}`` stands for the name of a cluster engine.
    target_hint : str, optional
        Hint on where the target must be, for kinds of rows that contain it: ``y`` is rejected.
    can_hold_out : bool
        Whether a fraction of the ids can be held out.
    can_weigh : bool
        Whether rows can have weights.
    """

    match: Callable[[Any, Any], Any]
    open: Callable[[Any, _Rows], Source]
    kind: str
    target_hint: str | None = None
    can_hold_out: bool = False
    can_weigh: bool = False

    def check(self, matched: Any, rows: _Rows) -> None:
        """Raise an error if a target, weights or a filter of ids cannot be combined with this kind of rows."""
        if rows.weights is not None and not self.can_weigh:
            raise UseError("sample_weight requires a table in memory. Hint: read the file into a dataframe first.")
        if rows.id_filter is not None and not self.can_hold_out:
            raise UseError(
                "units can be held out by id only in tables and files. Hint: write the rows to Parquet files."
            )
        if rows.y is not None and self.target_hint is not None:
            raise OutOfSchemaError(f"y cannot be combined with {self.kind.format(matched)}. Hint: {self.target_hint}.")


def _is_path(X: Any) -> bool:
    return isinstance(X, PathLike) or (isinstance(X, str) and "://" not in X)


def _match_database(X: Any, y: Any) -> Any:
    return find_database(X)


def _match_files(X: Any, y: Any) -> Any:
    is_column = isinstance(X, list | tuple) and y is not None  # a list of strings with a target is a table, not paths
    return X if not is_column and (_is_path(X) or are_files(X)) else None


def _match_cluster(X: Any, y: Any) -> Any:
    sibling = None if are_files(X) else find_cluster(X)
    return None if sibling is None else sibling.load().find_engine(X)


def _match_spool(X: Any, y: Any) -> Any:
    return X.iter_pieces() if isinstance(X, Spool) else None


def _match_stream(X: Any, y: Any) -> Any:
    return None if is_frame(X) else as_batch_stream(X)


def _open_database(sibling: Sibling, rows: _Rows) -> Source:
    source: Source = sibling.load().open_sql(rows.X, rows.encoding, cap=rows.cap, invalid=rows.invalid)
    return source


def _open_files(X: Any, rows: _Rows) -> Source:
    return open_files(
        X, rows.encoding, cap=rows.cap, invalid=rows.invalid, batch_rows=rows.batch_rows, id_filter=rows.id_filter
    )


def _open_cluster(engine: Any, rows: _Rows) -> Source:
    source: Source = CLUSTER_SOURCE.load().open_frame(engine, rows.X, rows.encoding, cap=rows.cap, invalid=rows.invalid)
    return source


def _open_spool(pieces: Any, rows: _Rows) -> Source:
    return open_spool(
        rows.X, pieces, rows.encoding, cap=rows.cap, invalid=rows.invalid, batch_rows=rows.batch_rows,
        id_filter=rows.id_filter,
    )  # fmt: skip


def _open_stream(pieces: Any, rows: _Rows) -> Source:
    return open_stream(pieces, rows.encoding, cap=rows.cap, invalid=rows.invalid)


def _open_memory(_: Any, rows: _Rows) -> Source:
    return open_memory(
        rows.X, rows.y, rows.encoding, cap=rows.cap, invalid=rows.invalid, batch_rows=rows.batch_rows,
        estimator=rows.estimator, id_filter=rows.id_filter, weights=rows.weights,
    )  # fmt: skip


def _match_owners(X: Any, y: Any) -> Any:
    return X if isinstance(X, JointRows) else None


_STREAM_HINT: Final = "let it give tables with the target, or (X, y)"

OPENERS: Final = (
    Opener(_match_owners, lambda X, rows: X.open_source(), "rows of several owners", "owners hold the target column"),
    Opener(_match_database, _open_database, "a table of a database", "it holds the target column itself"),
    Opener(_match_files, _open_files, "a file", "files hold the target column themselves", can_hold_out=True),
    Opener(_match_cluster, _open_cluster, "a {0.name} frame", "the frame holds the target column"),
    Opener(_match_spool, _open_spool, "an iterator", _STREAM_HINT, can_hold_out=True),
    Opener(_match_stream, _open_stream, "an iterator", _STREAM_HINT),
    Opener(lambda X, y: True, _open_memory, "a table in memory", can_hold_out=True, can_weigh=True),
)
"""Kinds of rows, in order of precedence: the first kind that matches opens the rows."""


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
    """Open a table and its target as a source of encoded batches.

    Parameters
    ----------
    X : dataframe, array, path, folder, glob, address, list of them, dataset, scanner, relation, query, lazy frame, \
            Arrow stream, iterator of tables or of (X, y), ``spool``, frame of a cluster, or table of a database
        The rows. Tables in memory are encoded at once. Files and other rereadable sources are read again in each pass,
        in bounded memory. An iterator or Arrow stream can be read once, unless a ``spool`` stores it. A frame of
        Dask, Spark or Ray is read on its cluster, again in each pass. Its rows must come in the same partitions and
        order each time; if they do not, the fit fails before anything more is released.
    y : array-like or None
        The target, or None if ``X`` contains the target column of the schema. Must be None unless rows are in memory.
    encoding : Encoding
        The encoding of values as codes.
    unit : Rows or RowsOf, optional
        With ``RowsOf(id, at_most=k)``, every id counts as k rows: its m rows are repeated k / m times, up or down at
        random, so that of more than k rows k are chosen. If the schema has a column of times, the first k rows count
        once each. The column ``id`` need not be in the schema. How often a row counts is decided once and holds for
        every pass. Ids are compared by the rule of ``veilwood.data.canonical``: 7, 7.0, "7" and "7.0" are one id, and
        "007" is another.
    invalid : {"refuse", "drop"}
        Treatment of rows that violate the schema. With "refuse", the whole table is rejected, which is visible and
        reveals something about the rows. With "drop", each row is encoded or dropped by a function of that row alone,
        and nothing reveals whether or how many rows were dropped. A row is dropped if it has an unknown category, a
        missing value in a column without missing values, a value that is not a number or is excluded, an invalid
        target, or a missing id. Numbers written as text are read as numbers. A table without rows is valid. Problems
        other than invalid values still raise errors: a missing or unknown column, a target of a different length, an
        unreadable file or format, more rows than memory, a disk or a ``spool`` can hold. Avoiding these problems is up
        to the custodian.
    batch_rows : int
        Maximum number of rows in a batch.
    estimator : str
        Name of the caller, for error messages.
    id_filter : callable, optional
        Selects the ids to read, if a fraction of the units is held out; for tables and files.
    weights : Weights, optional
        Weight of each row; for tables in memory.

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
        raise ParameterError("invalid", invalid, "must be 'refuse' or 'drop'", "pass one of them")
    cap = unit if isinstance(unit, RowsOf) else None
    rows = _Rows(X, y, encoding, cap, invalid, batch_rows, estimator, id_filter, weights)
    for opener in OPENERS:
        matched = opener.match(X, y)
        if matched is not None:
            opener.check(matched, rows)
            return opener.open(matched, rows)
    raise AssertionError("the last opener takes every table")
