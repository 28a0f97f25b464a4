# SPDX-License-Identifier: Apache-2.0
"""All columns and kinds of problems are told at once."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from veilwood_testing.check_cases import BAD
from veilwood_testing.refusals_cases import refusal_of


def test_all_columns_and_kinds_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(BAD)
    refusal = refusal_of(tmp_path / "rows.csv")
    assert refusal.problems == (
        ("age", "missing value"), ("age", "not a number"), ("ward", "unknown category"), ("ill", "unknown category"),
    )  # fmt: skip
    assert refusal.value is None
    for column, _ in refusal.problems:
        assert f"'{column}'" in str(refusal)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_all_files_and_batches_are_told_at_once(ending: str, tmp_path: Path) -> None:
    """What is wrong in a later file or batch is told too, and always in the order of the schema."""
    rows = [(31.0, "A", "no"), (31.0, "A", "maybe"), (31.0, "C", "no"), (None, "A", "no")]
    for name, file in (("1", rows[:2]), ("2", rows[2:])):
        frame = pd.DataFrame(file * 3, columns=["age", "ward", "ill"])
        path = tmp_path / f"{name}.{ending}"
        frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    assert refusal_of(tmp_path).problems == (
        ("age", "missing value"), ("ward", "unknown category"), ("ill", "unknown category"),
    )  # fmt: skip
