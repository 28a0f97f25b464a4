# SPDX-License-Identifier: Apache-2.0
"""Runs the steps on the connection that it is given; Alembic reads this file by its name."""

from alembic import context

from veilwood_service.store import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
