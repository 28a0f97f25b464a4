# SPDX-License-Identifier: Apache-2.0
"""The steps that bring the service's database from one version to the next, carried out by Alembic."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from veilwood.errors import SetupError
from veilwood_service.store import Store

__all__ = ["upgrade_database"]

_ADVISORY_LOCK_ID = 0x5645494D  # one process at a time


def upgrade_database(database: Store) -> None:
    """Bring the database to the tables of this version."""
    try:
        _run_migrations(database.engine)
    except sa.exc.OperationalError as error:
        raise SetupError(
            f"the database of the service cannot be opened: {type(error.orig).__name__}. "
            "Hint: see that psql opens the same address."
            if database.engine.dialect.name == "postgresql"
            else "the database in the folder of the service cannot be opened. Hint: see whose folder it is."
        ) from None


def _run_migrations(engine: sa.Engine) -> None:
    """Bring the database to the newest version; nothing happens where it is there."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK_ID})
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
