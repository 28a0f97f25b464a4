# SPDX-License-Identifier: Apache-2.0
"""Sources and backends for DuckDB, PostgreSQL and SQLite, and statement previews for other engines."""
