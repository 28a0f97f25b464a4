# SPDX-License-Identifier: Apache-2.0
"""A check of a table against its schema."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.cli.main import main
from veilwood.data.file_source import check_files
from veilwood.errors import OutOfSchemaError
from veilwood_testing.check_cases import BAD
from veilwood_testing.dialect_cases import SCHEMA as KRANK
from veilwood_testing.refusals_cases import SCHEMA


def test_a_check_counts_and_shows_values_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text(BAD)
    SCHEMA.save(tmp_path / "schema.json")
    command = ["schema", "check", str(tmp_path / "rows.csv"), "--schema", str(tmp_path / "schema.json")]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "'ward': unknown category in 2 rows" in said
    assert "'age': missing value in 1 row; 'age': not a number in 1 row" in said
    assert "Anna" not in said
    assert main([*command, "--show-values"]) == 2
    assert "'ward': unknown category in 2 rows (row 2: 'C', row 3: 'Anna')" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_fit_names_every_column_and_kind_of_a_long_file(ending: str, tmp_path: Path) -> None:
    """The problems lie in different batches; their order is the schema's, whatever that of the rows."""
    n = 140_000
    frame = pd.DataFrame({"größe": np.ones(n), "kosten": 1.0, "ort": "Bonn", "krank": ["ja", "nein"] * (n // 2)})
    frame.loc[n - 1, "kosten"] = np.nan
    frame.loc[0, "ort"] = "Secretville"
    frame.loc[n // 2, "krank"] = "vielleicht"
    path = tmp_path / f"t.{ending}"
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    with pytest.raises(OutOfSchemaError) as caught:
        vw.RandomTreesClassifier(KRANK, n_estimators=1, max_depth=1).fit(path)
    assert caught.value.problems == (
        ("kosten", "missing value"), ("ort", "unknown category"), ("krank", "unknown category"),
    )  # fmt: skip
    assert not any(word in str(caught.value) for word in ("Secretville", "vielleicht", "row 1", str(n)))
    assert {(m.column, m.rows) for m in check_files(path, KRANK).violations} == {
        ("kosten", 1),
        ("ort", 1),
        ("krank", 1),
    }
