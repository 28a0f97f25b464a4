# SPDX-License-Identifier: Apache-2.0
"""What several tests of this room need: a messy table, and one table in two dialects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from veilwood.drafting.draft import draft_from_table
from veilwood_testing.messy import write_table
from veilwood_testing.two_dialects import GERMAN, PLAIN


@pytest.fixture(scope="session")
def messy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("messy") / "visits.csv"
    write_table(path, 1000)
    return path


@pytest.fixture(scope="session")
def found(messy: Path) -> dict[str, Any]:
    return draft_from_table(messy, "wiederaufnahme", dates=["month", "weekday"])


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    plain, german = tmp_path / "plain.csv", tmp_path / "german.csv"
    plain.write_text(PLAIN, encoding="utf-8")
    german.write_text(GERMAN, encoding="cp1252")
    return plain, german
