# SPDX-License-Identifier: Apache-2.0
"""Runs the steps on the connection that it is given; Alembic reads this file by its name."""

from alembic import context

from veilwood_service.store import DATABASE_METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=DATABASE_METADATA)
with context.begin_transaction():
    context.run_migrations()
