# SPDX-License-Identifier: Apache-2.0
"""The tables of the two suites."""

from __future__ import annotations

import pytest

from veilwood_papers.suite import tables
from veilwood_papers.suite.synthetic_tables import SYNTHETIC


def test_no_table_is_in_both_suites_and_each_has_25() -> None:
    both = [{*tables.REAL_TABLES[name], *SYNTHETIC[name]} for name in ("development", "validation")]
    assert both[0] & both[1] == set()
    assert min(map(len, both)) >= 25


def test_a_table_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no table 'nosuch': adult"):
        tables.load_table("development", "nosuch", None)
    with pytest.raises(ValueError, match="--data"):
        tables.load_table("development", "adult", None)
