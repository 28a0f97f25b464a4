# SPDX-License-Identifier: Apache-2.0
"""Fits, predictions, loading and evaluations pass few modules: benchmarks/walk.py counts them, here are the limits."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import veilwood as vw
from veilwood import progress
from veilwood.charts import html_card

LIMITS = {
    "fit of one row, random trees": (39, 342),
    "fit of one row, PrivateForest by rounds": (48, 1166),
    "fit with a ledger, PrivateForest": (50, 2560),
    "fit with a ledger, random trees of automatic size": (42, 1500),
    "prediction of one row": (11, 34),
    "loading a model": (33, 2083),
    "evaluation": (39, 504),
}
"""The number of modules, and of changes of module, that a walk may take: as measured, and 5 % more."""


@pytest.fixture(scope="module")
def walk() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "walk.py"
    spec = importlib.util.spec_from_file_location("walk", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["walk"] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def works(walk: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return walk.prepare_walks(tmp_path_factory.mktemp("walk"))


def test_every_walk_has_a_limit(works: Any) -> None:
    assert set(works) == set(LIMITS)


@pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning", "ignore::veilwood.errors.UtilityWarning")
@pytest.mark.parametrize("name", LIMITS)
def test_a_walk_passes_few_modules(name: str, walk: ModuleType, works: Any) -> None:
    with progress.no_progress():  # a bar at a terminal is not part of the walk
        median = walk.median_walk(works[name], 3)
    max_modules, max_changes = LIMITS[name]
    assert len(median.modules) <= max_modules, sorted(median.modules)
    assert median.changes <= max_changes, median.calls.most_common()
    if name.startswith(("fit", "eval")):
        assert {"data.files", "privacy.door"} <= median.modules  # it read a file and released something


def test_a_detour_is_counted(walk: ModuleType) -> None:
    def straight() -> object:
        return vw.Schema.numeric((0, 1), n_features=1, target_bounds=(0, 1))

    def detour() -> object:
        return html_card("a", "b"), straight()

    assert "charts" in walk.follow(detour).modules - walk.follow(straight).modules
    assert walk.follow(straight).changes > 0
