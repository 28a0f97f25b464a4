# SPDX-License-Identifier: Apache-2.0
"""Hidden forests: plans, and training on shared rows with each row in one tree (appendix D of the paper).

Single trees are in ``hidden_trees``; forests fitted to sums over owners' rows are in ``joint_forest``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np

from veilwood.arrays import Ints
from veilwood.data.schema import Schema
from veilwood.errors import MechanismError, ParameterError
from veilwood.privacy import entropy
from veilwood.privacy.loss import SAMPLING_DELTA, Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import ALL_TO_EVERY_TREE, EACH_TO_ONE_TREE, Layout, Plan
from veilwood.privacy.selection import NoisyMax
from veilwood.privacy.steps import Step
from veilwood.trees.counting import Assignment
from veilwood_secure.mpc.engine import Engine
from veilwood_secure.mpc.round_batching import run_in_lockstep
from veilwood_secure.protocols import noise
from veilwood_secure.protocols.hidden_trees import HiddenTree, Recipe, draw_tree_noise, grow_hidden_tree
from veilwood_secure.protocols.records import Domain, SharedRows

SPLIT_FRACTION = Fraction(3, 10)
"""Fraction of epsilon for the splits; the rest is for the leaves."""

LEVEL_GROWTH = Fraction(3, 2)
"""Ratio of the budgets of successive levels: deeper nodes hold fewer rows."""

MAX_NOISE = 1 << 26
"""Bound on the noise, in rows: scores of up to 2^26 rows then stay within 32-bit words."""


@dataclass(frozen=True)
class HiddenPlan:
    """Public plan of a hidden forest and the recipe of its trees."""

    plan: Plan
    recipe: Recipe
    n_trees: int


def level_epsilons(epsilon: Fraction, depth: int, *, even: bool = False) -> tuple[Fraction, ...]:
    """Return the budget of each level of splits and, last, of the leaves. The budgets sum to ``epsilon``.

    With ``even``, all levels have the same budget, as in CDP+PMPC-ID3 of the paper.

    >>> [str(part) for part in level_epsilons(Fraction(1), 2)]
    ['3/25', '9/50', '7/10']
    >>> [str(part) for part in level_epsilons(Fraction(1), 2, even=True)]
    ['1/3', '1/3', '1/3']
    """
    if even:
        return (epsilon / (depth + 1),) * (depth + 1)
    weights = [LEVEL_GROWTH**level for level in range(depth)]
    splits = [SPLIT_FRACTION * epsilon * weight / sum(weights) for weight in weights]
    return (*splits, (1 - SPLIT_FRACTION) * epsilon)


def plan_hidden_forest(
    schema: Schema,
    *,
    epsilon: object,
    max_depth: int,
    n_trees: int = 1,
    adjacency: str = "add-remove",
    n_cuts: int | None = None,
) -> HiddenPlan:
    """Plan a hidden tree, or a forest of hidden trees on disjoint rows. ``n_cuts`` is as in ``Recipe``.

    Notes
    -----
    Guarantee

    All predictions together are a function of the hidden forest, whose privacy loss is ``plan.loss``: the losses of the
    levels of one tree add up, and a row is in one tree only (proofs/secure.md, attacked by
    packages/veilwood-secure/tests/protocols/test_hidden_privacy.py::test_hidden_splits_cost_their_loss).

    Examples
    --------
    >>> import veilwood as vw
    >>> planned = plan_hidden_forest(vw.datasets.car().schema, epsilon=1.0, max_depth=2)
    >>> planned.plan.loss.epsilon, planned.plan.loss.delta < 1e-12
    (Fraction(1, 1), True)
    """
    neighbours = Neighbours(adjacency)  # type: ignore[arg-type]  # refused there if unknown
    if n_trees < 1:
        raise ParameterError("n_trees", n_trees, "must be at least 1")
    loss = requested_loss(epsilon, 0)
    if loss.epsilon is None:
        raise MechanismError(
            "epsilon=inf would train without noise, which vw.secure does not offer. Hint: choose a finite epsilon."
        )
    domain = Domain.from_schema(schema)
    budgets = level_epsilons(loss.epsilon, max_depth)
    score_range = neighbours.score_range(1)
    scales = [score_range / budget for budget in budgets]
    recipe = Recipe(domain, tuple(scales[:-1]), scales[-1], n_cuts=n_cuts)
    reach = max(noise.max_draw(scale) for scale in scales)
    if reach > MAX_NOISE:
        raise MechanismError(
            f"epsilon={epsilon} over {max_depth} levels needs noise of up to {reach:.3g} rows, more than words hold. "
            "Hint: increase epsilon or reduce the depth."
        )
    names = [f"splits at depth {level}" for level in range(max_depth)] + ["classes of leaves"]
    steps = tuple(
        Step(
            name, Loss.pure(budget), NoisyMax(budget, score_range), score_range,
            (n_trees * recipe.n_nodes(level), recipe.n_candidates if level < max_depth else domain.n_classes),
        )
        for level, (name, budget) in enumerate(zip(names, budgets, strict=True))
    )  # fmt: skip
    draws = [(scale, math.prod(step.shape)) for scale, step in zip(scales, steps, strict=True)]
    plan = Plan(
        estimator="HiddenForest",
        loss=Loss(loss.epsilon, sampling_delta(loss.epsilon, draws)),
        neighbours=neighbours,
        steps=steps,
        released="nothing but predictions of a forest that stays in shares, by choices made with noise",
        schema_name=schema.name,
        schema_hash=schema.fingerprint(),
        layout=forest_layout(recipe, n_trees),
        expected_leaf_mse=0.0,
    )
    return HiddenPlan(plan, recipe, n_trees)


def forest_layout(recipe: Recipe, n_trees: int) -> Layout:
    """Return the layout of a hidden forest, whose trees have disjoint rows."""
    records = EACH_TO_ONE_TREE if n_trees > 1 else ALL_TO_EVERY_TREE
    return Layout(n_trees, n_trees * recipe.n_nodes(recipe.depth), recipe.depth, records)


def sampling_delta(epsilon: Fraction, draws: Sequence[tuple[Fraction, int]]) -> Fraction:
    """Return the delta of noise sampled on shares, from the scales and numbers of all geometric draws.

    Their joint distribution is within total variation t of the exact one, for both of two neighbours, so delta is
    (1 + e^epsilon) t.
    """
    if epsilon > 20:
        raise MechanismError(f"epsilon={float(epsilon):g} protects nothing. Hint: choose 0.1 to 2.")
    distance = sum((noise.total_variation(scale, count) for scale, count in draws), Fraction(0))
    delta = (1 + Fraction(math.nextafter(math.exp(epsilon), math.inf))) * distance
    if delta >= SAMPLING_DELTA:
        raise MechanismError(
            f"sampling errors at epsilon={float(epsilon):g} add {float(delta):.2g} to delta, which is too much. "
            "Hint: reduce the number of trees or their depth."
        )
    return delta


def assign_rows_to_trees(engine: Engine, n_rows: int, n_trees: int) -> Ints:
    """Assign each row to one tree, by a key that the servers draw jointly.

    Servers know the key; owners and users do not.

    Notes
    -----
    Guarantee

    The tree of a row depends on its index and the key alone, not on any row's values, so a forest has the privacy loss
    of one tree (proofs/disjoint-trees.md, attacked by packages/veilwood-secure/tests/protocols/test_hidden_forest.py).
    """
    words = engine.open(engine.deal_sum(lambda server: entropy.random_integers(8, 32).astype(np.int64), (8,)))
    return Assignment(words.tobytes(), n_trees).trees_of_rows(0, 0, n_rows).astype(np.int64)


def select_tree_rows(records: SharedRows, tree_of_row: Ints, tree: int) -> SharedRows:
    """Return the rows assigned to one tree."""
    rows = np.flatnonzero(tree_of_row == tree)
    return SharedRows(records.features[..., rows], records.classes[:, rows])


def grow_hidden_forest(engine: Engine, records: SharedRows, planned: HiddenPlan) -> list[HiddenTree]:
    """Train a hidden tree, or several on disjoint rows (ID3-based forest) in the communication rounds of one tree.

    Everything stays in shares.
    """
    if planned.n_trees == 1:
        return [grow_hidden_tree(engine, records, planned.recipe, draw_tree_noise(engine, planned.recipe))]
    tree_of_row = assign_rows_to_trees(engine, records.n_rows, planned.n_trees)

    def grow_tree(tree: int, lane: Engine) -> HiddenTree:
        return grow_hidden_tree(
            lane, select_tree_rows(records, tree_of_row, tree), planned.recipe, draw_tree_noise(lane, planned.recipe)
        )

    return run_in_lockstep(engine, [partial(grow_tree, tree) for tree in range(planned.n_trees)])
