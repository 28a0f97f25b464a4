# SPDX-License-Identifier: Apache-2.0
"""Values are shown to those who hold the data, when they ask."""

from __future__ import annotations

from pathlib import Path

from data.test_check import BAD
from data.test_refusals import refusal_of, told_by
from veilwood.data.private_text import showing_values


def test_the_data_holder_may_ask_for_values(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(BAD)
    with showing_values():
        refusal = refusal_of(tmp_path / "rows.csv")
    assert "row 3: 'Anna'" in str(refusal)
    assert "row 2: 'old'" in str(refusal)
    assert "Anna" not in told_by(refusal_of(tmp_path / "rows.csv"))
