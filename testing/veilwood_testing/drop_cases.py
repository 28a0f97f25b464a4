# SPDX-License-Identifier: Apache-2.0
"""Shared by data/test_drop.py and other tests."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

NAN, INF = float("nan"), float("inf")


ODD: list[Any] = [
    None, NAN, INF, -INF, "", "x", "31", " 31 ", "1e999", "37,5", "1_0", "\x00", "\ud800", "x" * 9000, 10**400,
    -(10**400), Decimal("sNaN"), Decimal("1e999999"), Decimal("2.5"), True, b"\xff\xfe", b"31", [1], [], {"a": 1},
    (1, 2), {1}, object(), np.array([1, 2]), np.array(3), np.datetime64("NaT"), np.timedelta64(3, "M"), 1j, pd.NA,
    np.longdouble("1e4000"), pd.NaT, pd.Timestamp("2020"), pd.Interval(0, 1), float, np.float16(3), 2**64, "nan",
    "inf", "\u0661",
]  # fmt: skip
