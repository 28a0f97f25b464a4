# SPDX-License-Identifier: Apache-2.0
"""Shared by secure/protocols/test_rows_on_shares.py and other tests."""

from __future__ import annotations

import numpy as np

RING = np.uint64
