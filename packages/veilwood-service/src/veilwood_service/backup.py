# SPDX-License-Identifier: Apache-2.0
"""Backup and restore of a service.

A backup lacks everything that was charged after it was made. Every restored ledger is therefore frozen until a
custodian thaws it. All tokens end, because some may have been revoked since.
"""

from __future__ import annotations

import os
import sqlite3
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path

from veilwood.errors import FileError, UseError
from veilwood_service import store
from veilwood_service.budgets import Ledgers
from veilwood_service.settings import Settings
from veilwood_service.store import Store

_DATABASE_NAME = "service.db"


def back_up(settings: Settings, archive: Path) -> None:
    """Write the database and the tables to one file. The service may keep running.

    Records and ledgers are one snapshot of one database. With PostgreSQL, use its own tools for the database; the file
    then holds the tables only.
    """
    if not settings.tables_folder.is_dir():
        raise FileError(f"there is no service in {settings.folder}. Hint: pass the folder of a service.")
    if archive.exists():
        raise FileError(f"{archive.name} exists. Hint: choose the name of a new file.")
    unfinished = archive.with_name(f".{archive.name}.{os.getpid()}")
    try:
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # contains private rows
        with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
            if not settings.database:
                _add_database(tar, settings.folder / _DATABASE_NAME)
            for path in sorted(settings.tables_folder.iterdir()):
                if not path.name.startswith("."):
                    tar.add(path, f"tables/{path.name}")
            tar.close()
            file.flush()
            os.fsync(file.fileno())
        os.link(unfinished, archive)  # fails if the file exists, so no other file is overwritten
    finally:
        unfinished.unlink(missing_ok=True)


def _add_database(tar: tarfile.TarFile, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        copy = Path(folder) / path.name
        source = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        with closing(source), closing(sqlite3.connect(copy)) as target:
            source.backup(target)  # a consistent snapshot, also during writes
        tar.add(copy, path.name)


def restore_backup(archive: Path, settings: Settings) -> list[str]:
    """Restore a backup into a new folder, freeze its ledgers and return the names of their data sets.

    With PostgreSQL, restore the database first.
    """
    if settings.folder.exists() and any(settings.folder.iterdir()):
        raise UseError(f"{settings.folder.name} is not empty. Hint: restore into a new folder.")
    settings.make_folders()
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(settings.folder, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise FileError(
            f"{archive.name} cannot be read as a backup of a service ({type(error).__name__}). "
            "Hint: pass a file that veilwood service backup wrote."
        ) from None
    for path in settings.folder.rglob("*"):  # regardless of the permissions in the archive and of the folder
        path.chmod(0o700 if path.is_dir() else 0o600)
    return freeze_ledgers(settings)


def freeze_ledgers(settings: Settings) -> list[str]:
    """Freeze every ledger of a service whose database was restored, and return the names of their data sets.

    Ends all tokens and sessions, because some may have been revoked since the backup. Ends unfinished runs too: the
    original service may have published their outcome, and they must not publish another.
    """
    database = Store(settings)
    try:
        database.create_tables()
        database.remove(store.tokens)
        ledgers = Ledgers(settings, database)
        _move_tables(settings, database)
        names = [dataset["name"] for dataset in database.find_all(store.datasets) if not dataset["retired"]]
        for name in names:
            ledgers.freeze(name, "a backup was restored")
    finally:
        database.close()
    return names


def _move_tables(settings: Settings, database: Store) -> None:
    """Point the data sets to the tables in this folder: the backup may have been made in another folder."""
    for dataset in database.find_all(store.datasets):
        path = settings.tables_folder / Path(dataset["source"] or "").name
        if dataset["source"] is not None and path.is_file():
            database.update(store.datasets, {"name": dataset["name"]}, source=str(path))
