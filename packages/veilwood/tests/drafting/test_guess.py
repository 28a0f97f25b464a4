# SPDX-License-Identifier: Apache-2.0
"""What is guessed from a table, and what never is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from veilwood.drafting.draft import MIN_UNITS, draft_from_table
from veilwood.drafting.review import format_schema
from veilwood_testing.draft_cases import column


def test_no_category_of_few_people_is_in_a_draft(messy: Path, found: dict[str, Any]) -> None:
    """Counted by hand: every category that is not from the catalogue has twenty patients or more."""
    table = pd.read_csv(messy, sep=";", encoding="cp1252", dtype=str, na_values=["k.A."], keep_default_na=False)
    checked = 0
    for each in found["columns"]:
        if each["kind"] == "categorical" and "usual" not in each["bounds"]:
            patients = table.groupby(each["name"])["patient_id"].nunique()
            kept = [str(value) for value in each["values"] if value != each.get("other")]
            assert all(patients[value] >= MIN_UNITS for value in kept)
            checked += 1
    assert checked >= 2
    rare = table.groupby("station")["patient_id"].nunique()
    assert rare.min() < MIN_UNITS  # else the test would say nothing
    assert str(rare.idxmin()) not in format_schema(found)


def test_numbers_that_only_count_rows_are_left_out_and_measurements_are_not() -> None:
    rng = np.random.default_rng(0)
    found = draft_from_table(pd.DataFrame({
        "line": range(1000, 1200), "card": rng.permutation(200) + 4_000_000_000,
        "income": rng.integers(9_000, 90_000, 200), "level": rng.normal(size=200), "y": ["n", "j"] * 100,
    }))  # fmt: skip
    assert set(found["left_out"]) == {"line", "card"}


def test_codes_with_leading_zeros_stay_texts(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("code,y\n" + "".join(f"0{n % 3}1,{'jn'[n % 2]}\n" for n in range(120)))
    assert column(draft_from_table(path), "code")["values"] == ["001", "011", "021"]
