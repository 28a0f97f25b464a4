# SPDX-License-Identifier: Apache-2.0
"""Backup and restore of a service.

A backup lacks everything that was charged after it was made. Every restored ledger is therefore frozen until a
custodian reconciles it with the certificates issued since. All tokens end, because some may have been revoked since.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path

from veilwood.errors import FileError, UseError
from veilwood.safe_io import write_file
from veilwood_service import store
from veilwood_service.budgets import RESTORED
from veilwood_service.settings import Settings
from veilwood_service.store import Store, current_timestamp


def back_up(settings: Settings, archive: Path) -> None:
    """Write database, models, tables and ledgers to one file. The service may run meanwhile.

    Ledgers are copied last, so that every release in the backup is charged in it. With PostgreSQL, use its own tools
    for the database and the ledgers, after the folder.
    """
    if not settings.folder.is_dir():
        raise FileError(f"there is no service in {settings.folder}. Hint: pass the folder of a service.")
    if archive.exists():
        raise FileError(f"{archive.name} exists. Hint: choose the name of a new file.")
    unfinished = archive.with_name(f".{archive.name}.{os.getpid()}")
    try:
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # contains private rows
        with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
            for name in ("service.db", "models", "tables", "ledgers"):
                _add_to_archive(tar, settings.folder / name)
            tar.close()
            file.flush()
            os.fsync(file.fileno())
        os.link(unfinished, archive)  # fails if the file exists, so no other file is overwritten
    finally:
        unfinished.unlink(missing_ok=True)


def _add_to_archive(tar: tarfile.TarFile, path: Path) -> None:
    if path.is_dir():
        for inner in sorted(path.iterdir()):
            _add_to_archive(tar, inner)
    elif path.suffix == ".db":
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            copy = Path(folder) / path.name
            with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)  # a consistent snapshot, also during writes
            tar.add(copy, _archive_name(path))
    elif path.is_file() and not path.name.startswith(".") and not path.name.endswith(("-wal", "-shm")):
        tar.add(path, _archive_name(path))


def _archive_name(path: Path) -> str:
    return path.name if path.name == "service.db" else f"{path.parent.name}/{path.name}"


def restore_backup(archive: Path, folder: Path) -> list[str]:
    """Restore a backup into a new folder, freeze its ledgers and return their names."""
    settings = Settings(folder)
    if settings.folder.exists() and any(settings.folder.iterdir()):
        raise UseError(f"{settings.folder.name} is not empty. Hint: restore into a new folder.")
    settings.make_folders()
    old_umask = os.umask(0o077)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(settings.folder, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise FileError(
            f"{archive.name} cannot be read as a backup of a service ({type(error).__name__}). "
            "Hint: pass a file that veilwood service backup wrote."
        ) from None
    finally:
        os.umask(old_umask)
    return freeze_ledgers(settings)


def freeze_ledgers(settings: Settings) -> list[str]:
    """Freeze every ledger of a service whose folder or database was restored, and return their names.

    Ends all tokens and sessions, because some may have been revoked since the backup. Ends unfinished runs too: the
    original service may have published their outcome, and they must not publish another.
    """
    database = Store(settings)
    try:
        database.create_tables()
        database.remove(store.tokens)
        end_unfinished_runs(database)
    finally:
        database.close()
    checkpoints = sorted(settings.ledgers_folder.glob("*.head.json"))
    for checkpoint in checkpoints:
        content = json.loads(checkpoint.read_text())
        write_file(checkpoint, json.dumps({**content, "hash": RESTORED}).encode())
    return [checkpoint.name.removesuffix(".head.json") for checkpoint in checkpoints]


def end_unfinished_runs(database: Store, dataset: str | None = None) -> None:
    """End every job and batch without an outcome, of one data set or of all: none may continue under its charge."""
    outcome = {
        "state": "failed",
        "message": "ended when a backup was restored",
        "detail": None,
        "ended": current_timestamp(),
    }
    for state in ("queued", "running"):
        for job in database.find_all(store.jobs, state=state):
            plan = database.find(store.plans, id=job["plan"])
            if dataset is None or plan is None or plan["dataset"] == dataset:
                database.update(store.jobs, {"id": job["id"], "state": state}, **outcome)
    for model in database.find_all(store.models, kind="answering"):
        if dataset in (None, model["dataset"]):
            database.remove(store.answers, model=model["id"], labels=None)
