# SPDX-License-Identifier: Apache-2.0
"""The accuracy suite: its tables, its cache, its skills, and other libraries in environments of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from veilwood_papers.suite import accuracy as suite
from veilwood_papers.suite.tables import FitJob
from veilwood_testing.exhibits import CHEAP_ESTIMATOR, use_fake_peer


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cheap.py").write_text(CHEAP_ESTIMATOR)
    return tmp_path


def test_what_is_in_the_cache_is_not_computed_again(here: Path) -> None:
    jobs = [
        FitJob("development", "iris", "cheap.py:Cheap", epsilon, 0.0, seed) for epsilon in (1, 2) for seed in (0, 1)
    ]
    suite.compute_results(jobs[:3], None, here / "cache.csv")
    assert (here / "fits").read_text() == "xxx"
    suite.compute_results(jobs, None, here / "cache.csv")
    assert (here / "fits").read_text() == "xxxx"
    assert len(suite.read_results(here / "cache.csv")) == 4


def test_skill_is_none_for_the_floor_and_all_for_the_best_plain_forest() -> None:
    free = {"floor": 0.5, "ExtraTrees": 0.8, "HistGradientBoosting": 0.9}
    scores = {**free, "a": 0.5, "b": 0.9, "c": 0.7}
    rows = [("development", "t", name, np.inf if name in free else 1.0, 0.0, 0, scores[name]) for name in scores]
    found = pd.DataFrame(rows, columns=list(suite.FIELDS[:7]))
    result = suite.add_skills(found).set_index("estimator").skill
    assert result.to_dict() == pytest.approx({"a": 0.0, "b": 1.0, "c": 0.5})
    text = suite.render_report(found, "development", 0.0)
    assert "| c | 0.500 |" in text
    assert "no skill" in suite.render_report(found[found.estimator == "a"], "development", 0.0)


def test_a_peer_is_reported_at_its_delta_beside_ours_on_its_tables_and_splits() -> None:
    free = {"floor": 0.0, "ExtraTrees": 1.0}
    tried = [(t, seed, score, name, np.inf, 0.0) for t in "tu" for seed in (0, 1) for name, score in free.items()]
    tried += [("t", 0, 0.5, "ours", 1.0, 0.0), ("t", 1, 0.7, "ours", 1.0, 0.0), ("u", 0, 0.9, "ours", 1.0, 0.0)]
    tried += [("t", 0, 0.1, "ours", 1.0, 1e-6), ("t", 0, 0.4, "DP-EBM", 1.0, 1e-6)]
    rows = [("development", table, name, epsilon, delta, *rest) for table, *rest, name, epsilon, delta in tried]
    text = suite.render_report(pd.DataFrame(rows, columns=list(suite.FIELDS[:7])), "development", 0.0)
    all_tables, beside, *_ = text.split("Tables that DP-EBM, delta 1e-06 takes: 1, splits of each: 1.")
    assert "| ours | 0.750 |\n| ours, delta 1e-06 (1 tables) | 0.100 |" in all_tables
    assert "| DP-EBM, delta 1e-06 | 0.400 |\n| ours | 0.500 |\n| ours, delta 1e-06 | 0.100 |" in beside
    assert "Scores without privacy: floor 0.000, ExtraTrees 1.000." in beside


def test_caches_are_merged(here: Path) -> None:
    for number, epsilon in enumerate((1.0, 2.0)):
        suite.compute_results(
            [FitJob("development", "iris", "cheap.py:Cheap", epsilon, 0.0, 0)], None, here / f"{number}.csv"
        )
    assert sorted(suite.read_results(here / "0.csv", here / "1.csv").epsilon) == [1.0, 2.0]


# -- other libraries ------------------------------------------------------------------------------------------------


def test_a_peer_that_cannot_do_a_table_is_refused_and_one_that_breaks_is_left_out(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake_peer(monkeypatch, here)
    lines: list[str] = []
    regression = FitJob("development", "few-rows-regression", "diffprivlib", 1.0, 0.0, 0)
    nulls = FitJob("development", "nulls", "diffprivlib", 1.0, 0.0, 0)
    missing = FitJob("development", "iris", "DP-EBM", 1.0, 1e-6, 0)
    (here / "interpret").mkdir()
    (here / "interpret" / "__init__.py").write_text("")  # an installation that lacks what is needed
    suite.compute_results([regression, nulls, missing], None, here / "cache.csv", print_line=lines.append)
    found = suite.read_results(here / "cache.csv").set_index("table").note
    assert found["few-rows-regression"] == "refused: has no regression"
    assert found["nulls"] == "refused: takes no missing values"
    assert "iris" not in found
    assert any("DP-EBM is skipped: its worker stopped" in line for line in lines)


# -- the command ----------------------------------------------------------------------------------------------------
