# SPDX-License-Identifier: Apache-2.0
"""Shared by trees/test_random.py and other tests."""

from __future__ import annotations

from veilwood.data.encoding import EncodedColumn

COLUMNS = [
    EncodedColumn("number", ordered=True, n_codes=6, missing_code=None),
    EncodedColumn("nullable", ordered=True, n_codes=4, missing_code=3),
    EncodedColumn("category", ordered=False, n_codes=5, missing_code=None),
    EncodedColumn("nullable category", ordered=False, n_codes=3, missing_code=2),
    EncodedColumn("coin", ordered=False, n_codes=2, missing_code=None),
]
