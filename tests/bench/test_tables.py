# SPDX-License-Identifier: Apache-2.0
"""The tables of the two suites."""

from __future__ import annotations

from veilwood.bench import tables


def test_no_table_is_in_both_suites_and_each_has_25() -> None:
    both = [{*tables.REAL[name], *tables.MADE[name]} for name in ("development", "validation")]
    assert both[0] & both[1] == set()
    assert min(map(len, both)) >= 25
