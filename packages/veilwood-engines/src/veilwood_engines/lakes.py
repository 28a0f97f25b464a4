# SPDX-License-Identifier: Apache-2.0
"""Lake tables, Delta Lake and Iceberg, as relations that can be read again in each pass.

The files of such a table may hold deleted rows, so the library that reads the log decides which rows are valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from veilwood.data.relations import FramePiece, Relation
from veilwood.errors import OutOfSchemaError, SetupError


def open_lake(table: Any) -> Relation:
    """Open a table of ``deltalake`` or ``pyiceberg``."""
    return open_delta(table) if type(table).__name__ == "DeltaTable" else open_iceberg(table)


def open_lake_at(address: str, kind: str) -> Relation:
    """Open the Delta Lake table in a folder ("delta"), or the Iceberg table of a metadata file ("iceberg")."""
    return open_delta(address) if kind == "delta" else open_iceberg(address)


def open_delta(table: Any) -> Relation:
    """Open the current version of a ``deltalake.DeltaTable``, or of the Delta Lake table at an address."""
    if isinstance(table, str):
        try:
            from deltalake import DeltaTable
        except ImportError:
            raise _missing_package_error("Delta Lake", "delta") from None
        table = DeltaTable(table)
    try:
        dataset = table.to_pyarrow_dataset()
    except Exception:  # for example, deletion vectors, which this version of deltalake cannot apply
        raise OutOfSchemaError(
            "the Delta Lake table needs a feature that deltalake cannot read into Arrow. Hint: pass a Spark frame, "
            "or write the table to Parquet."
        ) from None

    def scan_fragments(columns: list[str], batch_rows: int) -> Iterable[FramePiece]:
        pieces: Iterable[FramePiece] = dataset.to_batches(columns=columns, batch_size=batch_rows, fragment_readahead=1)
        return pieces

    return Relation("the Delta Lake table", tuple(dataset.schema.names), scan_fragments)


def open_iceberg(table: Any) -> Relation:
    """Open the current snapshot of a ``pyiceberg`` table, or the snapshot of the metadata file at an address."""
    if isinstance(table, str):
        try:
            from pyiceberg.table import StaticTable
        except ImportError:
            raise _missing_package_error("Iceberg", "iceberg") from None
        table = StaticTable.from_metadata(table)
    snapshot = table.current_snapshot()
    number = None if snapshot is None else snapshot.snapshot_id

    def scan_snapshot(columns: list[str], batch_rows: int) -> Iterator[FramePiece]:
        scan = table.scan(selected_fields=tuple(columns), snapshot_id=number)
        yield from scan.to_arrow_batch_reader()

    return Relation("the Iceberg table", tuple(field.name for field in table.schema().fields), scan_snapshot)


def _missing_package_error(title: str, extra: str) -> SetupError:
    return SetupError(
        f"the {title} table needs a package that is not installed, since its files may hold deleted rows. "
        f"Hint: run pip install 'veilwood[{extra}]'."
    )
