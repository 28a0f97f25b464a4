# SPDX-License-Identifier: Apache-2.0
"""Plans of hidden forests: budgets add up, delta counts every draw, and what cannot be is refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

import veilwood as vw
from veilwood.errors import MechanismError, ParameterError, SchemaError, UseError
from veilwood_papers.not_private.hidden_id3 import ExactHiddenSplitTreeNotPrivate
from veilwood_secure.protocols import public_trees as id3
from veilwood_secure.protocols.hidden_forest import level_epsilons, plan_hidden_forest, sampling_delta
from veilwood_secure.protocols.records import Domain
from veilwood_testing.errors import rejects
from veilwood_testing.hidden_trees import PAIR, load_rows
from veilwood_testing.mpc_engines import PlainEngine


def test_budgets_add_up() -> None:
    planned = plan_hidden_forest(PAIR, epsilon=0.5, max_depth=2, n_trees=3)
    budgets = level_epsilons(Fraction(1, 2), 2)
    assert sum(budgets) == Fraction(1, 2)
    assert sum(budgets[:-1]) == Fraction(3, 20)
    assert budgets[1] == budgets[0] * Fraction(3, 2)
    assert [step.mechanism.epsilon for step in planned.plan.steps] == list(budgets)  # type: ignore[union-attr]
    assert planned.recipe.split_scales == (1 / budgets[0], 1 / budgets[1])
    assert planned.recipe.leaf_scale == 1 / budgets[2]
    assert planned.plan.loss.epsilon == Fraction(1, 2)
    assert 0 < planned.plan.loss.delta < 1e-15


def test_delta_counts_every_draw() -> None:
    one = sampling_delta(Fraction(1), [(Fraction(2), 1)])
    assert sampling_delta(Fraction(1), [(Fraction(2), 3), (Fraction(2), 4)]) == 7 * one
    assert one > 0
    with rejects(MechanismError, raised_in="sampling_delta"):
        sampling_delta(Fraction(101), [(Fraction(2), 1)])


def test_plans_refuse_what_cannot_be() -> None:
    with rejects(UseError, raised_in="Recipe.__post_init__"):
        plan_hidden_forest(PAIR, epsilon=1, max_depth=3)
    with rejects(UseError, raised_in="Recipe.__post_init__"):
        plan_hidden_forest(PAIR, epsilon=1, max_depth=0)
    with rejects(ParameterError, name="n_trees"):
        plan_hidden_forest(PAIR, epsilon=1, max_depth=1, n_trees=0)
    with rejects(MechanismError, raised_in="plan_hidden_forest"):
        plan_hidden_forest(PAIR, epsilon=float("inf"), max_depth=1)
    with rejects(MechanismError, raised_in="plan_hidden_forest"):
        plan_hidden_forest(PAIR, epsilon=1e-6, max_depth=1)
    with rejects(ParameterError, name="epsilon_in_paper"):
        ExactHiddenSplitTreeNotPrivate(PAIR, epsilon_in_paper=0)
    with rejects(SchemaError, raised_in="Domain.from_schema"):
        Domain.from_schema(vw.Schema.numeric((0, 1), target_bounds=(0, 1), n_features=1))
    domain = Domain((2,), 2)
    engine = PlainEngine()
    empty = load_rows(engine, np.zeros((1, 1), np.int64), np.zeros(1, np.int64), domain)
    with rejects(UseError, raised_in="grow_public_tree"):
        id3.grow_public_tree(engine, empty, domain, 2, id3.select_best_features, id3.select_best_labels)
