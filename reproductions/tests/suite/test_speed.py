# SPDX-License-Identifier: Apache-2.0
"""Speed beside other libraries: cases, workers, the report, and what became slower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from veilwood.errors import FileError
from veilwood_papers.commands import bench
from veilwood_papers.suite import speed, speed_worker
from veilwood_testing.errors import rejects


def made(fit: float = 1.0, reference: float = 2.0) -> dict[str, Any]:
    """Results as a run would have them: every case takes as long."""
    results = [
        {**case, "fit": reference if case["estimator"] == speed.REFERENCE else fit, "predict": 0.2, "score": 0.8,
         "memory_bytes": 10**6, "input_bytes": 10**6}
        for case in speed.list_cases()
    ]  # fmt: skip
    return {
        "veilwood": "0", "python": "3", "machine": "m", "cores": 1, "import": {"sklearn": 1.0, "veilwood_on_top": 0.1},
        "core_bytes": {"numpy": 10**6}, "results": results,
    }  # fmt: skip


def test_all_that_grows_is_measured_and_told() -> None:
    found = speed.list_cases()
    assert {case.get("grows") for case in found} == {None, *speed.GROWTH}
    assert {case["estimator"] for case in found} == set(speed.ESTIMATORS)
    text = speed.to_markdown(made())
    assert "| PrivateForest | 1,000,000 | 1.00 (0.50) | 0.20 (1.00) | 1 |" in text
    for axis in speed.GROWTH:
        assert f"## How it grows with {axis}" in text
    assert speed.to_markdown({**made(), "notes": ["Measured twice."]}) == f"{text}\nMeasured twice.\n"


def test_what_got_slower_is_said_in_times_the_reference(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("old.json", "same.json", "slow.json")]
    # A machine of half the speed has slowed nothing; a fit of twice the time has.
    for file, found in zip(files, (made(), made(2.0, 4.0), made(2.0, 2.0)), strict=True):
        file.write_text(json.dumps(found))
    assert speed.find_slowdowns(files[0], files[1]) == []
    lines = speed.find_slowdowns(files[0], files[2])
    assert any(line.startswith("PrivateForest fit 1000000 20 2 1.0") and "2.00 times" in line for line in lines)
    assert CliRunner().invoke(bench, ["compare", str(files[0]), str(files[2])]).exit_code == 1
    assert "Nothing got slower" in CliRunner().invoke(bench, ["compare", *map(str, files[:2])]).stdout


@pytest.mark.parametrize("text", ["{}", "[]", '{"results": []}'])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with rejects(FileError, raised_in="_read_ratios"):
        speed.find_slowdowns(file, file)
    with rejects(FileError, raised_in="_read_ratios"):
        speed.find_slowdowns(tmp_path / "none.json", file)


def test_the_size_is_that_of_what_is_needed() -> None:
    sizes = speed.installed_bytes()
    assert {"numpy", "scipy", "scikit-learn", "pandas", "pyarrow"} <= set(sizes)
    assert "matplotlib" not in sizes
    assert sum(sizes.values()) > 10**8


@pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning")
@pytest.mark.parametrize(("name", "n_classes"), [("PrivateForest", 3), ("HistGradientBoosting", 0)])
def test_a_worker_measures(name: str, n_classes: int) -> None:
    case = {"estimator": name, "rows": 3000, "columns": 4, "classes": n_classes, "epsilon": 1.0}
    figures = speed_worker.measure_case(case)
    assert figures["fit"] > 0
    assert figures["predict"] > 0
    assert figures["score"] > (0.4 if n_classes else 0.3)
