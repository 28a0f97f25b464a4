# SPDX-License-Identifier: Apache-2.0
"""DuckDB, PostgreSQL and SQLite."""
