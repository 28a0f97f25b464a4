# SPDX-License-Identifier: Apache-2.0
"""Kinds of steps: no text decides anything, and a plan cannot lie about what a step measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.forests.adaptive import loop, private_forest
from veilwood.forests.adaptive.steps import AdaptiveStep, RowFacts, replan_step
from veilwood.forests.matrix.measurement import MatrixStep
from veilwood.forests.noisy_leaves import TreeStep
from veilwood.privacy.certificate import describe_steps, merge_steps
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.steps import Step
from veilwood_audit.model_files import check_model
from veilwood_testing.clinic import forest_of, table_of

FAMILIES = (AdaptiveStep, TreeStep, MatrixStep)
pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


def fitted(epsilon: float = 6.0, n_rows: int = 1728, seed: int = 1) -> Any:
    car = vw.datasets.car()
    with seeded_for_tests(seed):
        forest = vw.PrivateForestClassifier(car.schema, epsilon=epsilon, random_state=0, n_rows=n_rows)
        return forest.fit(car.X[:n_rows], car.y[:n_rows])


def failing(forest: Any) -> set[str]:
    """The questions that a model fails, except that seeded noise is not private."""
    return {check.question for check in check_model(forest) if not check.holds} - {"Is it private?"}


def reword(patch: pytest.MonkeyPatch) -> None:
    """Give every kind of step, and what plans say to people, another text."""
    for family in FAMILIES:
        for kind in family:
            patch.setattr(kind, "_value_", f"text {kind.key[::-1]}" + " {}" * kind.value.count("{}"))
    patch.setattr(private_forest, "NO_MEASUREMENTS", "another text")
    patch.setattr(loop, "describe", lambda *args: "another text")


def structure(steps: Any) -> list[Any]:
    return [(one.kind, one.at, one.loss, one.mechanism, one.sensitivity, one.shape) for one in steps]


FITS: dict[str, Callable[[], Any]] = {
    "classes": fitted,
    "sparse histogram": lambda: fitted(20.0),
    "one column": lambda: fitted(0.01),
    "numbers": lambda: forest_of("regression", epsilon=9.0).fit(*table_of("regression", 400)),
    "trees": lambda: vw.GreedyForestClassifier(
        vw.datasets.car().schema, n_estimators=2, max_depth=2, random_state=0
    ).fit(vw.datasets.car().X, vw.datasets.car().y),
    "sized trees": lambda: vw.RandomTreesClassifier(vw.datasets.car().schema, random_state=0).fit(
        vw.datasets.car().X, vw.datasets.car().y
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_texts_decide_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits, plans, merging of steps, files and checks are the same under other texts."""
    with seeded_for_tests(2):
        usual = FITS[name]()
    with monkeypatch.context() as patch, seeded_for_tests(2):
        reword(patch)
        other = FITS[name]()
        vw.save(other, tmp_path / "other")
        assert failing(vw.load(tmp_path / "other")) == set()
        assert "text" in other.plan_.steps[-1].name
        merged = merge_steps(other.privacy_.composition)
        assert len(describe_steps(other.privacy_.composition)) == len(merged)
    assert structure(other.plan_.steps) == structure(usual.plan_.steps)
    assert len(merged) == len(merge_steps(usual.privacy_.composition))
    for key, array in usual.model_.to_arrays().items():
        assert np.array_equal(array, other.model_.to_arrays()[key])


def test_that_only_class_frequencies_are_predicted_is_said_under_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    reword(monkeypatch)
    with pytest.warns(vw.UtilityWarning):
        forest_of("regression", epsilon=0.01, n_rows=50).fit(*table_of("regression", 50))


def test_kinds_of_all_families_differ() -> None:
    keys = [kind.key for family in FAMILIES for kind in family]
    assert len(keys) == len(set(keys))
    with pytest.raises(ValueError, match="numbers"):
        AdaptiveStep.ROUND_ROWS.at()


FORGED: dict[str, Callable[[Step], Step]] = {
    "another kind": lambda step: replace(step, kind="round_rows"),
    "no kind": lambda step: replace(step, kind="", at=()),
    "a kind of another family": lambda step: replace(step, kind="splits"),
    "another round": lambda step: replace(step, at=(99,)),
    "another text": lambda step: replace(step, name=f"{step.name} again"),
    "a number too many": lambda step: replace(step, at=(*step.at, 1)),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_step_that_calls_itself_another_is_noticed(name: str) -> None:
    """Half the noise for gradients, sold as counts; and texts or numbers that are not those of the kind."""
    forest = fitted(3.0)
    assert failing(forest) == set()
    steps = [FORGED[name](step) if step.kind == "round_gradients" else step for step in forest.plan_.steps]
    assert steps != list(forest.plan_.steps)
    forest.plan_ = replace(forest.plan_, steps=tuple(steps))
    assert "Do the parameters lead to this plan?" in failing(forest)


def test_a_step_is_planned_again_as_it_was() -> None:
    forest = fitted(3.0)
    for step in forest.plan_.steps:
        early = step.kind in ("column_selection", "column_strengths")
        facts = RowFacts(6, 4, forest.plan_.choices["limits"][0 if early else 1])
        assert replan_step(step, facts, Neighbours()) == step
