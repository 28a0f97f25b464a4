# SPDX-License-Identifier: Apache-2.0
"""A copy of everything that a service keeps, and the way back.

Whatever was spent after the copy was made is not in it. So every ledger that comes back is frozen, until a custodian
has reconciled it with the certificates issued since. Tokens end, since some may have been taken back.
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
from veilwood_service.migrations import upgrade_database
from veilwood_service.settings import Settings
from veilwood_service.store import Store, current_timestamp

__all__ = ["back_up", "end_unfinished_runs", "freeze_ledgers", "restore_backup"]


def back_up(settings: Settings, archive: Path) -> None:
    """Write one file with records, models, tables and ledgers; the service may run meanwhile.

    Ledgers are copied last: a release that is in the copy is charged in it. In PostgreSQL they are copied by its own
    tools, after the folder.
    """
    if not settings.folder.is_dir():
        raise FileError(f"there is no service in {settings.folder}.")
    if archive.exists():
        raise FileError(f"{archive.name} exists. Hint: name a new file.")
    unfinished = archive.with_name(f".{archive.name}.{os.getpid()}")
    try:
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # it holds rows
        with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
            for name in ("service.db", "models", "tables", "ledgers"):
                _add_to_archive(tar, settings.folder / name)
            tar.close()
            file.flush()
            os.fsync(file.fileno())
        os.link(unfinished, archive)  # never over another
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
                source.backup(target)  # whole, whoever writes meanwhile
            tar.add(copy, _archive_name(path))
    elif path.is_file() and not path.name.startswith(".") and not path.name.endswith(("-wal", "-shm")):
        tar.add(path, _archive_name(path))


def _archive_name(path: Path) -> str:
    return path.name if path.name == "service.db" else f"{path.parent.name}/{path.name}"


def restore_backup(archive: Path, folder: Path) -> list[str]:
    """Put a copy into a new folder, and freeze its ledgers; return their names."""
    settings = Settings(folder)
    if settings.folder.exists() and any(settings.folder.iterdir()):
        raise UseError(f"{settings.folder.name} is not empty. Hint: restore into a new folder.")
    settings.make_folders()
    old = os.umask(0o077)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(settings.folder, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise FileError(f"{archive.name} cannot be read as a copy of a service ({type(error).__name__}).") from None
    finally:
        os.umask(old)
    return freeze_ledgers(settings)


def freeze_ledgers(settings: Settings) -> list[str]:
    """Freeze every ledger of the service, after its folder or its database was put back; return their names.

    All tokens and sessions end, too: some may have been taken back since the copy was made. So do runs that were under
    way: the service that the copy was made of may have shown their outcome, and they must not show another.
    """
    records = Store(settings)
    try:
        upgrade_database(records)
        records.remove(store.tokens)
        end_unfinished_runs(records)
    finally:
        records.close()
    found = sorted(settings.ledgers_folder.glob("*.head.json"))
    for witness in found:
        noted = json.loads(witness.read_text())
        write_file(witness, json.dumps({**noted, "hash": RESTORED}).encode())
    return [witness.name.removesuffix(".head.json") for witness in found]


def end_unfinished_runs(database: Store, dataset: str | None = None) -> None:
    """End every job and batch that has no outcome yet, of one data set or of all: none may go on under its charge."""
    told = {
        "state": "failed",
        "message": "ended when a copy was put back",
        "detail": None,
        "ended": current_timestamp(),
    }
    for state in ("queued", "running"):
        for job in database.find_all(store.jobs, state=state):
            plan = database.find(store.plans, id=job["plan"])
            if dataset is None or plan is None or plan["dataset"] == dataset:
                database.update(store.jobs, {"id": job["id"], "state": state}, **told)
    for model in database.find_all(store.models, kind="answering"):
        if dataset in (None, model["dataset"]):
            database.remove(store.answers, model=model["id"], labels=None)
