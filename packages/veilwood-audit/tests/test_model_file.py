# SPDX-License-Identifier: Apache-2.0
"""Model files that were forged are caught by the audit of a file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import veilwood as vw
from veilwood.privacy.entropy import seeded_for_tests
from veilwood_audit import model_files as model_audit
from veilwood_testing.small_forests import fit_car_trees

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def failing(model: Any) -> list[str]:
    return [check.question for check in model_audit.check_model(model) if not check.holds]


def test_forged_models_are_caught() -> None:
    """Mutants: claims and contents that do not go together, as a broken fit or an editor could leave them."""
    assert failing(fit_car_trees()) == []

    halved = fit_car_trees()
    halved.epsilon = 0.5  # the parameters promise more than the plan keeps
    assert "Do the parameters lead to this plan?" in failing(halved)

    kept = fit_car_trees()
    object.__setattr__(kept.plan_.steps[0].mechanism, "scale", kept.plan_.steps[0].mechanism.scale / 2)
    assert any(question.startswith("Does the noise") for question in failing(kept))

    claims = fit_car_trees()
    object.__setattr__(claims.privacy_, "epsilon", 0.1)
    assert any("certified loss" in question for question in failing(claims))

    unit = fit_car_trees()
    object.__setattr__(unit.privacy_, "adjacency", "replace-one")
    assert "Does the certificate say what the plan says?" in failing(unit)

    talks = fit_car_trees()
    talks.plan_.notes["rows"] = 1728
    assert "Does it contain nothing else?" in failing(talks)

    exact = fit_car_trees()
    exact.model_ = fit_car_trees(epsilon=float("inf")).model_
    assert failing(exact) == ["Do the counts look noisy?"]

    assert failing(fit_car_trees(epsilon=float("inf"))) == ["Is it private?"]
    other = fit_car_trees()
    other.schema_ = vw.datasets.iris().schema
    assert "Is the certificate of this schema?" in failing(other)


@pytest.mark.parametrize("name", ["weight of tables", "strengths of columns"])
def test_a_step_that_would_let_more_numbers_out_is_caught(name: str) -> None:
    """Mutants: each number of these steps can move as far as the whole step was planned for, and one has no shape."""
    data = vw.datasets.car()
    with seeded_for_tests(0):
        model = vw.PrivateForestClassifier(data.schema, epsilon=1.0, random_state=0, n_rows=1728).fit(data.X, data.y)
    honest, plan = failing(model), model.plan_
    assert "Do the parameters lead to this plan?" not in honest
    for shape in ((7,), ()):
        steps = tuple(replace(step, shape=shape) if step.name == name else step for step in plan.steps)
        assert steps != plan.steps
        model.plan_ = replace(plan, steps=steps)
        assert set(failing(model)) - set(honest) or shape == ()
