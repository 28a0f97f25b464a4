# SPDX-License-Identifier: Apache-2.0
"""Tables that a custodian names instead of uploading: a path, or a table of a database, on the operator's list."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import urldefrag

import psycopg
from psycopg import sql

from veilwood.errors import ParameterError
from veilwood.service.settings import Settings
from veilwood.service.store import new_id

__all__ = ["copy_table", "open_for_writing", "source_of"]

_ADDRESS: Final = ("postgresql://", "postgres://")
_TABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
_WAIT_SECONDS: Final = 10


def source_of(settings: Settings, name: str, source: str) -> str:
    """Return the path of a table that a custodian names: as it is, links followed, or copied from a database."""
    if source.startswith(_ADDRESS):
        return str(copy_table(settings, name, source))
    path = Path(os.path.realpath(source))
    for folder in settings.allowed:
        inside = not folder.startswith(_ADDRESS) and path.is_relative_to(os.path.realpath(folder))
        if inside and path.exists():
            return str(path)
    raise ParameterError("source", "...", "is not in a folder that the operator allows", "upload the table instead")


def copy_table(settings: Settings, name: str, source: str) -> Path:
    """Copy ``postgresql://host/database#table`` into a file; everything before # must be on the operator's list."""
    address, table = urldefrag(source)
    if address not in settings.allowed:
        raise ParameterError("source", "...", "is not a database that the operator allows", "upload the table instead")
    if not _TABLE.fullmatch(table):
        raise ParameterError("source", "...", "names no table", "postgresql://host/database#schema.table")
    query = sql.SQL("COPY (SELECT * FROM {}) TO STDOUT (FORMAT csv, HEADER)").format(sql.Identifier(*table.split(".")))
    path = settings.tables / f"{name}.csv"
    unfinished = path.with_name(f".{path.name}.{new_id()}")
    try:
        with psycopg.connect(address, connect_timeout=_WAIT_SECONDS) as connection, connection.cursor() as cursor:
            connection.read_only = True
            with cursor.copy(query) as rows, os.fdopen(open_for_writing(unfinished), "wb") as file:
                size = 0
                for piece in rows:
                    size += len(piece)
                    if size > settings.limits.upload_bytes:
                        most = f"at most {settings.limits.upload_bytes} bytes"
                        raise ParameterError("table", "...", "is longer than the limit", most)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        os.replace(unfinished, path)
    except psycopg.Error as error:  # its text may hold the address, and a password in it
        kind = type(error).__name__
        raise ParameterError("source", "...", f"cannot be read ({kind})", "ask the operator") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def open_for_writing(path: Path) -> int:
    """Make a file that its owner alone can read."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
