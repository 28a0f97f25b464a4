# SPDX-License-Identifier: Apache-2.0
"""Greedy forests: qualities by hand, ranges by enumeration, plans, distinguishers with mutants, accuracy."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import veilwood as vw
import veilwood_audit as audit
from veilwood.data.batches import Batch
from veilwood.data.encoding import EncodedColumn
from veilwood.errors import ParameterError
from veilwood.forests.greedy import (
    ENTROPY_PARTS,
    ENTROPY_ROWS,
    QUALITIES,
    GreedyLevel,
    grow_level,
    plan_level,
    quality_of_children,
    quality_range,
    split_qualities,
)
from veilwood.forests.levelwise import LevelNodes, Splitter
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.selection import ExponentialMechanism, PermuteAndFlip
from veilwood.privacy.steps import Step
from veilwood.trees.level_growth import GrowingForest
from veilwood_audit.statistics import epsilon_lower_bound
from veilwood_testing.errors import rejects
from veilwood_testing.noise_checks import prefer_zcdp

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=3)


# -- 1. qualities --------------------------------------------------------------------------------------------


def of(batch: Batch) -> Any:
    """A source of one batch."""
    return lambda count, n_jobs: count([batch], n_jobs=n_jobs)


def test_qualities_by_hand() -> None:
    children = np.array([[5, 3, 0], [0, 0, 4], [0, 0, 0]])
    assert quality_of_children(children, "max").tolist() == [5, 4, 0]
    assert quality_of_children(children, "gini").tolist() == [-round(32 * (8 - 34 / 8)), 0, 0]
    bits = 8 * (-(5 / 8) * math.log2(5 / 8) - (3 / 8) * math.log2(3 / 8))
    assert quality_of_children(children, "entropy")[0] == pytest.approx(-ENTROPY_PARTS * bits, abs=4)
    assert quality_of_children(children, "entropy")[1:].tolist() == [0, 0]


@pytest.mark.parametrize("quality", QUALITIES)
def test_quality_range_by_enumeration(quality: Any) -> None:
    """A row changes a quality monotonically, by at most its range, wherever it lands."""
    worst = 0
    sizes = (0, 1, 2, 5, 1000, ENTROPY_ROWS - 1, ENTROPY_ROWS, ENTROPY_ROWS + 5, 10**7)
    for counts in product(sizes, repeat=3):
        for new in np.eye(3, dtype=np.int64):
            change = quality_of_children(np.array(counts) + new, quality) - quality_of_children(
                np.array(counts), quality
            )
            signed = int(change) if quality == "max" else -int(change)
            assert 0 <= signed <= quality_range(quality)
            worst = max(worst, signed)
    assert worst > 0.95 * quality_range(quality) - 1  # no smaller range would do


def test_plain_entropy_has_no_range() -> None:
    """The change that one row can make to n log n grows without bound: what the continuation by a line is for."""

    def plain(n: float) -> float:
        return (n + 1) * math.log2(n + 1) - n * math.log2(n)

    assert plain(1e12) * ENTROPY_PARTS > 2 * quality_range("entropy")
    assert quality_range("entropy") == pytest.approx(ENTROPY_PARTS * plain(ENTROPY_ROWS - 1), abs=1)


def test_splits_by_value_and_by_edge() -> None:
    histogram = np.array([[[3, 1], [0, 2], [2, 0]]])
    (by_value,) = split_qualities(histogram, "max", "multiway")
    assert by_value.tolist() == [[3 + 2 + 2]]
    (by_edge,) = split_qualities(histogram, "max", "binary")
    assert by_edge.tolist() == [[3 + 2, 3 + 2]]


# -- 2. plans ------------------------------------------------------------------------------------------------


# -- 3. distinguishers ---------------------------------------------------------------------------------------

RUNS = 30_000


def chosen_columns(rows: Any, quality: Any, mutate: Any = None) -> Any:
    """The column at the root of ``RUNS`` trees that all see the same rows: so many runs of one level of epsilon 1."""
    columns = [EncodedColumn(name, ordered=False, n_codes=2, missing_code=None) for name in ("a1", "a2")]
    loss = Loss.pure(Fraction(1))
    nodes = LevelNodes(0, RUNS, loss, Neighbours(), trees_per_row=1, candidates=2, mechanism="flip")
    level = plan_level(nodes, quality, "multiway")
    if mutate is not None:
        level = GreedyLevel(replace(level.splits, mechanism=mutate(level.splits.mechanism)))
    plan = Plan("Audit", loss, Neighbours(), level.steps, "splits", "audit", "0", Layout(leaves=1), 0.0)
    table = np.array(rows)
    batch = Batch(table[:, :2].astype(np.uint16), table[:, 2].astype(np.int32), 0, 0)
    growing = GrowingForest(columns, RUNS)
    with Door(plan, MemoryLedger()) as door:
        by = Splitter(door, of(batch), np.random.default_rng(0), candidates=2, n_classes=2, n_jobs=1)
        grow_level(growing, level, quality, "multiway", by)
    return growing.finish_forest().feature[::3]


# Section 4.3 of the analysis: both attributes separate the classes; one more row makes the second one better.
TIED = [(0, 0, 0)] * 10 + [(1, 1, 1)] * 10


BROKEN = [*TIED, (0, 1, 1)]


@pytest.mark.parametrize("quality", QUALITIES)
def test_splits_keep_their_epsilon(quality: Any) -> None:
    hits = [int((chosen_columns(rows, quality) == 1).sum()) for rows in (BROKEN, TIED)]
    assert epsilon_lower_bound(hits[0], RUNS, hits[1], RUNS) <= 1
    misses = [RUNS - hit for hit in reversed(hits)]
    assert epsilon_lower_bound(misses[0], RUNS, misses[1], RUNS) <= 1


def test_an_exact_argmax_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: exact hidden splits, charged nothing (MPC-ID3 as published)."""

    def exact(mechanism: Any) -> Any:
        return PermuteAndFlip(1000, mechanism.score_range)

    monkeypatch.setattr(Step, "has_enough_noise", True)  # a plan would refuse the mutant
    misses = [int((chosen_columns(rows, "max", exact) == 0).sum()) for rows in (TIED, BROKEN)]
    assert epsilon_lower_bound(misses[0], RUNS, misses[1], RUNS) > 5


def test_a_range_ten_times_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Step, "has_enough_noise", True)  # a plan would refuse the mutant

    def sharper(mechanism: Any) -> Any:
        return PermuteAndFlip(10 * mechanism.epsilon, mechanism.score_range)

    misses = [int((chosen_columns(rows, "max", sharper) == 0).sum()) for rows in (TIED, BROKEN)]
    assert epsilon_lower_bound(misses[0], RUNS, misses[1], RUNS) > 4


def test_leaf_labels_keep_their_epsilon() -> None:
    """Counts (1, 4) against (0, 4): the label of the step that a forest plans, by its exact distribution."""
    forest = vw.GreedyForestClassifier(
        SCHEMA, epsilon=1 / 0.7, leaf_update="exponential", selection="exponential", n_estimators=10, max_depth=3
    )
    mechanism: Any = forest.plan().steps[-1].mechanism
    for counts in product(range(5), repeat=2):
        for new in ((1, 0), (0, 1)):
            ratio = audit.worst_log_ratio(mechanism.probabilities(counts), mechanism.probabilities(np.add(counts, new)))
            assert ratio <= 1 + 1e-9
    doubled = ExponentialMechanism(2 * mechanism.epsilon, mechanism.score_range)
    assert audit.worst_log_ratio(doubled.probabilities([9, 0]), doubled.probabilities([9, 1])) > 1.5


# -- 4. trees ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quality", QUALITIES)
@pytest.mark.parametrize("branching", ["multiway", "binary"])
def test_without_noise_the_right_attribute_is_found(quality: str, branching: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.random((3000, 3))
    y = np.where(X[:, 1] > 0.4, "yes", "no")
    forest = vw.GreedyForestClassifier(
        SCHEMA, epsilon=math.inf, n_estimators=1, max_depth=1, quality=quality, branching=branching
    ).fit(X, y)
    assert forest.forest_.feature[0] == 1
    assert forest.score(X, y) > 0.95


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("quality", "best"), ("selection", "loud"), ("leaf_update", "none"), ("branching", "none"), ("split_budget", 2),
     ("candidates", 0), ("max_depth", 0), ("voting", "loud")],
)  # fmt: skip
def test_bad_parameters_name_themselves(parameter: str, value: Any) -> None:
    with pytest.raises(vw.VeilwoodError, match=parameter):
        vw.GreedyForestClassifier(SCHEMA).set_params(**{parameter: value}).plan()


def test_labels_cannot_be_shrunk() -> None:
    with rejects(ParameterError, name="leaves"):
        vw.GreedyForestClassifier(SCHEMA, leaf_update="exponential", leaves="empirical-bayes").plan()


def test_id3_uses_a_feature_once_on_a_path() -> None:
    car = vw.datasets.car()
    forest = vw.GreedyForestClassifier(car.schema, epsilon=math.inf, n_estimators=1, max_depth=6).fit(car.X, car.y)
    assert forest.forest_.n_leaves == 1728
    assert forest.score(car.X, car.y) == 1.0


def test_regression_and_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    prefer_zcdp(monkeypatch)
    schema = vw.Schema.numeric((0, 1), target_bounds=(0, 1), n_features=3)
    rng = np.random.default_rng(0)
    X = rng.random((5000, 3))
    y = X[:, 2] ** 2
    for branching in ("multiway", "binary"):
        forest = vw.GreedyForestRegressor(
            schema, epsilon=5.0, delta=1e-6, n_estimators=3, max_depth=2, branching=branching, random_state=0
        ).fit(X, y)
        assert forest.privacy_.delta == 1e-6
        assert forest.score(X, y) > 0.6


@pytest.mark.parametrize("leaf_update", ["laplace", "exponential"])
@pytest.mark.parametrize("branching", ["multiway", "binary"])
@pytest.mark.parametrize("trees", ["disjoint", "shared"])
def test_a_plan_spends_exactly_epsilon(
    leaf_update: str, branching: str, trees: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer_zcdp(monkeypatch)
    forest = vw.GreedyForestClassifier(
        SCHEMA, epsilon=0.7, n_estimators=4, max_depth=3, leaf_update=leaf_update, branching=branching, trees=trees
    )
    plan = forest.plan()
    losses = [Fraction(step.loss.epsilon or 0) for step in plan.steps]
    assert sum(losses) == Fraction(7, 10)
    assert losses.pop() == Fraction(7, 10) * Fraction(7, 10)
    assert [b / a for a, b in pairwise(losses)] == [Fraction(3, 2)] * 2
    first = plan.steps[0].mechanism
    assert isinstance(first, PermuteAndFlip | ExponentialMechanism)
    assert first.epsilon * (4 if trees == "shared" else 1) == losses[0]
    assert clone(forest).set_params(delta=1e-6).plan().loss.delta == Fraction(1, 10**6)


def test_multiway_sizes_are_planned_and_limited() -> None:
    car = vw.datasets.car()
    plan = vw.GreedyForestClassifier(car.schema, n_estimators=2, max_depth=3).plan()
    assert plan.n_leaves == 2 * 4 * 4 * 4
    with rejects(ParameterError, name="max_depth"):
        vw.GreedyForestClassifier(car.schema, n_estimators=10, max_depth=7).plan()
    wide = vw.Schema.from_dict({
        "name": "wide", "task": "classification", "target": "y",
        "columns": [
            *({"name": f"c{i}", "kind": "categorical", "values": [str(v) for v in range(300)]} for i in range(4)),
            {"name": "y", "kind": "categorical", "values": ["a", "b"]},
        ],
    })  # fmt: skip
    with rejects(vw.DomainTooLargeError, raised_in="LevelwiseMethod.design_with_loss"):
        vw.GreedyForestClassifier(wide, n_estimators=10, max_depth=4).plan()


def test_a_fitted_forest_holds_nothing_private_and_charges_once() -> None:
    rng = np.random.default_rng(0)
    X = rng.random((1613, 3))
    y = np.where(X[:, 0] > 0.5, "yes", "no")
    for leaf_update in ("laplace", "exponential"):
        ledger = MemoryLedger()  # without a budget, which would refuse seeded noise
        forest = vw.GreedyForestClassifier(SCHEMA, max_depth=2, leaf_update=leaf_update, ledger=ledger, random_state=0)
        with seeded_for_tests(0):  # by chance, a cut or a noisy count could be n
            forest.fit(X, y)
        assert audit.find_leaks(vars(forest), {"n": 1613, "rows": X[:20].ravel(), "column": X[:20, 0]}) == []
        assert [entry.loss.epsilon for entry in ledger.entries()] == [1]
    assert (forest.leaf_counts_.sum(axis=1) == 1).all()  # labels only


def test_candidates_are_drawn_at_random() -> None:
    rng = np.random.default_rng(0)
    X = rng.random((500, 3))
    forest = vw.GreedyForestClassifier(
        SCHEMA, epsilon=math.inf, n_estimators=60, max_depth=1, candidates=1, random_state=0
    ).fit(X, np.where(X[:, 0] > 0.5, "yes", "no"))
    assert set(forest.forest_.feature[forest.forest_.roots]) == {0, 1, 2}
