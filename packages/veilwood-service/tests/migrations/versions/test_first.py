# SPDX-License-Identifier: Apache-2.0
"""The steps of the database."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from veilwood_service.accounts import Accounts
from veilwood_service.store import DATABASE_METADATA


def test_the_steps_of_the_database_lead_to_the_tables_of_this_version(accounts: Accounts) -> None:
    with accounts._database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), DATABASE_METADATA) == []
        with_more = sa.MetaData()
        for table in DATABASE_METADATA.tables.values():
            table.to_metadata(with_more)
        sa.Table("more", with_more, sa.Column("id", sa.Integer, primary_key=True))
        assert compare_metadata(MigrationContext.configure(connection), with_more) != []
