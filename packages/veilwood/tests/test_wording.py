# SPDX-License-Identifier: Apache-2.0
"""How values from outside are shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilwood.errors import short_repr

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


def test_any_value_is_shown_in_a_short_line() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    for value in (10**5000, deep, Silent(), "x" * 10**6, "a\nb\r\tc", "\ud800", np.zeros((99, 99)), None):
        text = short_repr(value)
        assert len(text) < 150
        assert text.isprintable()
