# SPDX-License-Identifier: Apache-2.0
"""A row passes few modules during a fit: benchmarks/walk.py counts them, and here are the limits."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import veilwood as vw
from veilwood import progress
from veilwood.charts import html_card

LIMITS = {"random trees": (34, 224), "PrivateForest, by rounds": (42, 1130)}
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


@pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning", "ignore::veilwood.errors.UtilityWarning")
@pytest.mark.parametrize("name", LIMITS)
def test_one_row_passes_few_modules(name: str, walk: ModuleType, tmp_path: Path) -> None:
    row, schema = walk.one_row(tmp_path)
    with progress.no_progress():  # a bar at a terminal is not part of the walk
        _, median, _ = walk.walks(name, row, schema, 3)
    max_modules, max_changes = LIMITS[name]
    assert len(median.modules) <= max_modules, sorted(median.modules)
    assert median.changes <= max_changes, median.calls.most_common()
    assert {"data.files", "privacy.door"} <= median.modules  # it was a fit on a file


def test_a_detour_is_counted(walk: ModuleType) -> None:
    def straight() -> object:
        return vw.Schema.numeric((0, 1), n_features=1, target_bounds=(0, 1))

    def detour() -> object:
        return html_card("a", "b"), straight()

    assert walk.follow(detour).modules - walk.follow(straight).modules == {"charts"}
    assert walk.follow(straight).changes > 0
