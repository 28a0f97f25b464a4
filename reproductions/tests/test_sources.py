# SPDX-License-Identifier: Apache-2.0
"""Where public tables come from."""

from __future__ import annotations

from veilwood_papers import convert as sources
from veilwood_papers import tables


def test_every_source_is_of_a_known_table_and_says_where_it_comes_from() -> None:
    for name, source in sources.SOURCES.items():
        assert name in tables.known_tables()
        assert sum(map(bool, (source.package, source.address, source.follows_from))) == 1
        assert source.citation
        assert source.describe_place
