# SPDX-License-Identifier: Apache-2.0
"""Values are shown to those who hold the data, when they ask."""

from __future__ import annotations

from pathlib import Path

from veilwood.data.problems import show_private_values
from veilwood_testing.check_cases import BAD
from veilwood_testing.refusals_cases import refusal_of, told_by


def test_the_data_holder_may_ask_for_values(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(BAD)
    with show_private_values():
        refusal = refusal_of(tmp_path / "rows.csv")
    assert "row 3: 'Anna'" in str(refusal)
    assert "row 2: 'old'" in str(refusal)
    assert "Anna" not in told_by(refusal_of(tmp_path / "rows.csv"))
