# SPDX-License-Identifier: Apache-2.0
"""Counting in a database: the schema's rules as SQL, aggregate queries out, sums back. No row leaves the engine."""
