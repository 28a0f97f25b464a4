# SPDX-License-Identifier: Apache-2.0
"""Files of private rows: one per data set, readable by their owner alone, removed when they are replaced or deleted."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
import pyarrow.parquet as pq

from veilwood.errors import ParameterError
from veilwood_service import store
from veilwood_service.settings import Settings
from veilwood_service.store import Store, new_id

TABLE_MEDIA_TYPES: Final = {"text/csv": "csv", "application/vnd.apache.parquet": "parquet"}
_MAX_UNPACK_RATIO: Final = 16  # maximum size of an unpacked Parquet file, as a multiple of the upload limit
_STALE_SECONDS: Final = 600.0  # uploads time out after a tenth of this, so an older file is a leftover


def resolve_source(settings: Settings, source: str) -> str:
    """Return the path of a table that a custodian names, with links resolved."""
    path = Path(os.path.realpath(source))
    if any(path.is_relative_to(os.path.realpath(folder)) for folder in settings.allowed) and path.exists():
        return str(path)
    raise ParameterError("source", "...", "must be in a folder that the operator allows", "upload the table instead")


async def save_upload(stream: AsyncIterator[bytes], settings: Settings, database: Store, name: str, kind: str) -> Path:
    """Store an upload as the table of a data set, in place of an earlier table. Counts the bytes received.

    Raises
    ------
    ParameterError
        If the file is too large, empty, not Parquet, or unpacks to too much. The message contains no value.
    """
    path, max_bytes = settings.tables_folder / f"{name}.{kind}", settings.limits.upload_bytes
    unfinished = path.with_name(f".{path.name}.{new_id()}")
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            size = 0
            async for piece in stream:
                size += len(piece)
                if size > max_bytes:
                    hint = f"reduce it to {max_bytes} bytes"
                    raise ParameterError("table", "...", "exceeds the size limit", hint)
                await anyio.to_thread.run_sync(file.write, piece)
            file.flush()
            os.fsync(file.fileno())
        await anyio.to_thread.run_sync(_validate_table, unfinished, kind, max_bytes)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _validate_table(path: Path, kind: str, max_bytes: int) -> None:
    if kind == "csv":
        if path.stat().st_size == 0:
            raise ParameterError("table", "...", "is empty", "upload a table with rows")
        return
    try:
        groups = pq.ParquetFile(path).metadata
        unpacked = sum(groups.row_group(i).total_byte_size for i in range(groups.num_row_groups))
    except Exception as error:
        problem = f"is not a Parquet file ({type(error).__name__})"
        raise ParameterError("table", "...", problem, "upload another file") from None
    if unpacked > _MAX_UNPACK_RATIO * max_bytes:
        raise ParameterError("table", "...", "exceeds the size limit when unpacked", "upload it in a plain encoding")


def clean_tables(settings: Settings, database: Store) -> None:
    """Remove the files that no data set uses: interrupted uploads, replaced and deleted tables."""
    # Compared by name, because the folder of a service may have been moved.
    used = {Path(row["source"] or "").name for row in database.find_all(store.datasets)}
    for path in settings.tables_folder.iterdir():
        with suppress(FileNotFoundError):  # another process deleted it first
            if path.name not in used and time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()


def delete_table(settings: Settings, source: str | None, keep: Path | None = None) -> None:
    """Delete the file of a table that was uploaded. A file outside the folder of the service is left alone."""
    path = Path(source or "")
    if path.parent == settings.tables_folder and path != keep:
        path.unlink(missing_ok=True)
