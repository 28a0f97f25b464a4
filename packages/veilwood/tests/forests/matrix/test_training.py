# SPDX-License-Identifier: Apache-2.0
"""Matrix forests, training: measured against charged, noise, ensembles, the estimator."""

from __future__ import annotations

import math
import pickle
import tracemalloc
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
import veilwood_audit as audit
from veilwood.arrays import Ints
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.errors import MechanismError, PlanError
from veilwood.forests import noisy_leaves as counted
from veilwood.forests.matrix import measurement
from veilwood.forests.matrix import training as ensembles
from veilwood.forests.matrix.marginals import Mixture
from veilwood.forests.matrix.strategies import Factors, Marginals
from veilwood.forests.matrix.training import MatrixForest
from veilwood.forests.matrix.workloads import PathWorkload
from veilwood.models import file as model_file
from veilwood.privacy import entropy
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.plan import Plan
from veilwood.trees.counting import leaf_totals, route_rows
from veilwood_audit.noninterference import find_leaks
from veilwood_testing.errors import rejects
from veilwood_testing.matrix_forests import (
    ADJACENCIES,
    DAYS,
    DELTAS,
    PLAYED,
    RUNS,
    SIZES,
    TENNIS,
    RecordingDoor,
    all_records,
    as_table,
    budget,
    categorical_schema,
    lower_bound,
    overlapping,
    worst_cost,
)
from veilwood_testing.noise_checks import prefer_zcdp

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def forest_on(car: Any, **parameters: Any) -> vw.MatrixForestClassifier:
    usual = {"n_estimators": 8, "max_depth": 2, "random_state": 0}
    return vw.MatrixForestClassifier(car.schema, **{**usual, **parameters})


# -- sensitivity, by enumeration ----------------------------------------------------------------------------


def training_cost(monkeypatch: pytest.MonkeyPatch, classes: int = 2, **parameters: Any) -> tuple[Fraction, Plan]:
    """The worst cost of what a classifier measures, and its plan."""
    prefer_zcdp(monkeypatch)
    monkeypatch.setattr(counted, "secret_key", lambda: b"k" * 32)  # fixed, so that common records keep their tree
    estimator = vw.MatrixForestClassifier(categorical_schema(SIZES, classes), random_state=1, **parameters)
    design = estimator._design_for(estimator.schema)
    kinds = all_records(classes)

    def measured(table: tuple[int, ...]) -> list[Ints]:
        source = open_rows(*as_table(kinds, table), design.encoding)
        with RecordingDoor(design.plan, vw.MemoryLedger()) as door:
            estimator._make_method().measure_rows(design, source, door)
        return door.passed

    return worst_cost(measured, design.plan, len(kinds)), design.plan


TRAINING: dict[str, dict[str, Any]] = {
    "optimized, depth 1": {"n_estimators": 3, "max_depth": 1},
    "optimized, depth 2": {"n_estimators": 2, "max_depth": 2},
    "optimized, binary": {"n_estimators": 3, "max_depth": 2, "branching": "binary"},
    "optimized, two ensembles": {"n_estimators": 4, "max_depth": 1, "n_ensembles": 2, "max_features": 1},
    "laplace": {"n_estimators": 3, "max_depth": 1, "mechanism": "laplace"},
    "laplace, two ensembles": {"n_estimators": [1, 2], "max_depth": [1, 2], "n_ensembles": 2, "mechanism": "laplace"},
    "disjoint": {"n_estimators": 3, "max_depth": 2, "mechanism": "laplace", "trees": "disjoint"},
}


@pytest.mark.parametrize("law", DELTAS)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("case", TRAINING)
def test_training_costs_what_it_promises(case: str, adjacency: str, law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cost, plan = training_cost(monkeypatch, adjacency=adjacency, delta=DELTAS[law], **TRAINING[case])
    assert cost == budget(plan)


@pytest.mark.parametrize("law", DELTAS)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_leaves_of_trees_cost_what_they_promise(adjacency: str, law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workload as its own strategy, one row in one leaf of each tree; charged as if for one tree, it is caught."""

    def directly(workload: PathWorkload, *_: Any, **__: Any) -> Mixture:
        return Mixture(workload, {2: (0, 2), 3: (1,)}, {})

    monkeypatch.setattr(measurement, "optimize", directly)
    parameters: dict[str, Any] = {"n_estimators": 3, "max_depth": 1, "adjacency": adjacency, "delta": DELTAS[law]}
    cost, plan = training_cost(monkeypatch, **parameters)
    assert cost == budget(plan)
    assert [step.name for step in plan.steps] == ["ensemble 1: leaves of trees 1, 3", "ensemble 1: leaves of tree 2"]
    sound = Mixture.table_sensitivities
    monkeypatch.setattr(
        Mixture, "table_sensitivities", lambda self, noise: [(share, 1, 1) for share, _, _ in sound(self, noise)]
    )
    cost, plan = training_cost(monkeypatch, **parameters)
    assert cost > Fraction(14, 10) * budget(plan)


def test_steps_of_ensembles_share_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = training_cost(monkeypatch, **TRAINING["optimized, two ensembles"])
    assert sum(step.loss.epsilon for step in plan.steps) == 1  # type: ignore[misc]
    # Mutant: every ensemble gets all of it. The plan itself refuses.
    monkeypatch.setattr(Loss, "scaled", lambda self, share: self)
    with rejects(PlanError, raised_in="Plan._check_steps"):
        training_cost(monkeypatch, **TRAINING["optimized, two ensembles"])


def test_forgotten_trees_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MatrixForest, "trees_per_row", 1)
    cost, plan = training_cost(monkeypatch, **TRAINING["laplace"])
    assert cost == 3 * budget(plan)


def test_add_remove_noise_sold_as_replace_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("l1_sensitivity", "squared_l2_sensitivity"):
        monkeypatch.setattr(Neighbours, name, lambda self, one_row: one_row)
    for law in DELTAS.values():
        cost, plan = training_cost(monkeypatch, adjacency="replace-one", delta=law, **TRAINING["optimized, depth 2"])
        assert cost == 2 * budget(plan)


@pytest.mark.parametrize("law", DELTAS)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_an_explicit_strategy_is_charged_by_its_columns(
    adjacency: str, law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "optimize", lambda workload, *_, **__: overlapping(workload))
    parameters: dict[str, Any] = {"adjacency": adjacency, "delta": DELTAS[law], **TRAINING["optimized, depth 2"]}
    cost, plan = training_cost(monkeypatch, **parameters)
    assert plan.steps[0].sensitivity == 6 * (1 if adjacency == "add-remove" else 2)
    if adjacency == "add-remove" or law == "pure":
        assert cost == budget(plan)
    assert cost <= budget(plan)  # two columns of A overlap: in L2 a replacement stays below the bound

    def by_rows(workload: PathWorkload, *_: Any, **__: Any) -> Factors:
        strategy = overlapping(workload)
        strategy.l1 = int(strategy.factors[0].sum(axis=1).max())  # mutant: the norm over rows
        strategy.l2_squared = int((strategy.factors[0] ** 2).sum(axis=1).max())
        return strategy

    monkeypatch.setattr(measurement, "optimize", by_rows)
    cost, plan = training_cost(monkeypatch, **parameters)
    assert cost > 2 * budget(plan)


# -- distinguishers -----------------------------------------------------------------------------------------


def matrix_attack(factor: Fraction = Fraction(1)) -> float:
    """One record of one cell: every measurement it is part of comes out at least as large as it truly is."""
    paths = PathWorkload.from_leaves((2, 1), [[0], [0]], [[0], [1]])
    strategy = Factors(paths, [np.array([[2, 0], [0, 2], [1, 1]])])
    sensitivity = strategy.l1
    noise = DiscreteLaplace(sensitivity * factor)
    with_record = strategy.measure_exact(np.array([[0, 0], [1, 0]]), np.zeros(2, int), 1)[0]
    without = strategy.measure_exact(np.array([[1, 0]]), np.zeros(1, int), 1)[0]
    likely, unlikely = (noise.sample((RUNS, *exact.shape)) + exact for exact in (with_record, without))
    grown = with_record != without
    return lower_bound(lambda noisy: (noisy[:, grown] >= with_record[grown]).all(axis=1), likely, unlikely)


def test_the_matrix_mechanism_keeps_its_epsilon() -> None:
    with entropy.seeded_for_tests(1):
        assert 0.8 < matrix_attack() <= 1


def test_the_norm_of_the_diagonal_alone_is_caught() -> None:
    with entropy.seeded_for_tests(2):
        assert matrix_attack(Fraction(2, 3)) > 1.3  # mutant: the row both cells share is forgotten


def test_a_strategy_that_cannot_answer_is_refused_and_its_formula_caught() -> None:
    """W = I and A = [1 1]: in W D + W A^+ noise the difference of the two answers has no noise at all."""
    paths = PathWorkload.from_leaves((2, 1), [[0], [0]], [[0], [1]])
    total = Marginals(paths, {(): 1})
    with rejects(MechanismError, raised_in="Strategy._check_answerable"):
        total.reconstruct([np.zeros((1,))], paths)

    def differs(answers: Any) -> Any:
        return answers[:, 0] - answers[:, 1] >= 1

    with entropy.seeded_for_tests(3):
        noise = DiscreteLaplace(Fraction(1)).sample((2, 20_000)) / 2
        printed = [np.array([count, 0]) + noise[i][:, None] for i, count in enumerate((1, 0))]
        assert lower_bound(differs, *printed) > 6  # mutant: the formula as printed
        measured = [count + DiscreteLaplace(Fraction(1)).sample((20_000,)) for count in (1, 0)]
        ours = [np.stack([sums / 2, sums / 2], axis=1) for sums in measured]
        assert lower_bound(differs, *ours) <= 1


# -- noise --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"delta": 1e-6},
        {"adjacency": "replace-one"},
        pytest.param({"adjacency": "replace-one", "delta": 1e-6}, marks=pytest.mark.slow),
        pytest.param({"n_ensembles": 2, "max_features": 2}, marks=pytest.mark.slow),
        pytest.param({"epsilon": 4.0}, marks=pytest.mark.slow),
        pytest.param({"mechanism": "laplace"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_noise_on_leaves_is_what_the_plan_says(parameters: dict[str, Any]) -> None:
    """Mean squared error of all leaves over 2,000 releases through the door, within three standard errors."""
    estimator = vw.MatrixForestClassifier(
        categorical_schema((3, 2, 2), 2),
        **{"epsilon": 1.0, "n_estimators": 3, "max_depth": 1, "random_state": 2, **parameters},
    )
    design: Any = estimator._design_for(estimator.schema)
    assert design.plan.expected_leaf_mse == estimator.plan().expected_leaf_mse
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 2, (50, 3)), np.array(["c0", "c1"], object)[rng.integers(0, 2, 50)]
    source = open_rows(X, y, design.encoding)
    exact = leaf_totals(design.forest, source.batches(), n_classes=2)
    errors = []
    with entropy.seeded_for_tests(4):
        for _ in range(2000):
            with Door(design.plan, vw.MemoryLedger()) as door:
                errors.append(((estimator._make_method().measure_rows(design, source, door) - exact) ** 2).mean())
    spread = np.std(errors, ddof=1) / len(errors) ** 0.5
    assert abs(np.mean(errors) - design.plan.expected_leaf_mse) < 3 * spread


# -- the estimator ------------------------------------------------------------------------------------------


def test_a_wide_table_gets_ensembles_over_parts_of_its_features() -> None:
    """One ensemble stays where it answers its leaves well, gives way where it is drowned, and the plan says both."""
    wide = categorical_schema([4] * 12, 2, "wide")
    common: dict[str, Any] = {"n_estimators": 24, "max_depth": 3, "random_state": 0}
    chosen, single, baseline = (
        vw.MatrixForestClassifier(wide, **common, **more).plan()
        for more in ({}, {"n_ensembles": 1}, {"mechanism": "laplace"})
    )
    assert (chosen.notes["ensembles"], single.notes["ensembles"]) == (3, 1)
    assert 2 * chosen.expected_leaf_mse < single.expected_leaf_mse <= baseline.expected_leaf_mse
    assert chosen.choices["divisions"]["3"] == 1
    assert chosen.choices["divisions"]["1"] == pytest.approx(
        single.expected_leaf_mse / chosen.expected_leaf_mse, rel=0.02
    )
    assert single.choices["alternatives"]["equal shares"] == pytest.approx(baseline.expected_leaf_mse, rel=1e-3)
    assert min(single.choices["alternatives"].values()) == pytest.approx(single.expected_leaf_mse, rel=1e-3)
    assert "Alternatives: expected squared error of a leaf" in str(chosen)
    assert "Divisions: expected error relative to the chosen one" in str(chosen)
    narrow = vw.MatrixForestClassifier(vw.datasets.car().schema, n_estimators=64, max_depth=2, random_state=0).plan()
    assert narrow.notes["ensembles"] == 1
    assert "divisions" not in narrow.notes


def test_a_plan_that_says_nothing_of_its_division_is_refused(car: Any) -> None:
    forest = forest_on(car, n_estimators=3, max_depth=2)
    plan = forest.plan()
    for division in (None, 2, "1"):
        forged = Plan.from_dict({**plan.to_dict(), "choices": {**plan.choices, "division": division}})
        with pytest.raises(vw.VeilwoodError, match=r"ensemble"):
            forest._design_for(car.schema, forged)


@pytest.mark.parametrize(
    "parameters",
    [
        {"branching": "binary", "max_depth": 4},
        {"delta": 1e-6, "epsilon": 8.0},
        {"leaves": "empirical-bayes"},
        {"voting": "weight"},
        {"voting": "geometric", "leaves": "empirical-bayes"},
        {"n_ensembles": 2, "max_features": 4, "max_depth": 4},
        {"adjacency": "replace-one", "epsilon": 16.0},
        {"privacy_unit": 2, "epsilon": 16.0},
    ],
    ids=str,
)
def test_forests_learn(car: Any, parameters: dict[str, Any]) -> None:
    with entropy.seeded_for_tests(5):
        forest = forest_on(car, **{"epsilon": 8.0, "n_estimators": 32, "max_depth": 4, **parameters})
        forest.fit(car.X, car.y)
    assert forest.score(car.X, car.y) > 0.7  # the majority class has 0.70
    shares = forest.predict_proba(car.X)
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_a_forest_of_default_size_finds_the_only_column_that_matters() -> None:
    """Most trees of depth 1 ask a column without information: they must not outvote those that know."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, (4000, 10))
    label = codes[:, 0] ^ (rng.random(len(codes)) < 0.05)
    schema = categorical_schema((2,) * 10, 2)
    X, y = pd.DataFrame(codes, columns=schema.feature_names), np.array(["c0", "c1"])[label]
    forest = vw.MatrixForestClassifier(schema, epsilon=4.0, n_rows=4000, random_state=0)
    with entropy.seeded_for_tests(0):
        forest.fit(X, y)
    assert forest.score(X, y) > 0.94
    hard = forest.set_params(voting="hard")._make_method()
    votes = hard.restore_model(schema, forest.plan_, forest.model_.to_arrays()).predict_both(forest._encode_rows(X))[1]
    assert np.mean(votes == label) < 0.9, "hard votes lose here, which is why they are not the default"


def test_frequencies_are_multiplied() -> None:
    encoding = Encoding(TENNIS, "bins")
    forest = vw.MatrixForestClassifier(TENNIS, epsilon=4.0, n_estimators=2, max_depth=1, random_state=0).fit(
        DAYS, PLAYED
    )
    counts = np.tile([[9.0, 1.0], [3.0, 1.0]], (forest.forest_.n_leaves, 1))[: forest.forest_.n_leaves]
    method = forest.set_params(voting="geometric")._make_method()
    model = method.make_model(encoding, forest.forest_, counts, forest.plan_)
    codes = forest._encode_rows(DAYS)
    shares = counted.normalize_counts(counts)[route_rows(forest.forest_, codes)]
    expected = np.sqrt(shares.prod(axis=1))
    probabilities, labels = model.predict_both(codes)
    np.testing.assert_allclose(probabilities, expected / expected.sum(axis=1, keepdims=True))
    assert (labels == expected.argmax(axis=1)).all()


def test_the_budget_is_charged_once_and_refused_when_spent(car: Any) -> None:
    ledger = vw.MemoryLedger(epsilon=1.5)
    forest = forest_on(car, n_ensembles=2, max_features=3, ledger=ledger).fit(car.X, car.y)
    assert ledger.spent.epsilon == 1
    assert forest.privacy_.epsilon == 1
    assert sum(step["exact"]["epsilon"] != "0" for step in forest.privacy_.composition) == len(forest.plan_.steps)
    with pytest.raises(vw.BudgetExceededError):
        forest_on(car, ledger=ledger).fit(car.X, car.y)
    assert ledger.spent.epsilon == 1
    with rejects(vw.OutOfSchemaError, column="safety", problems=(("safety", "unknown category"),)):
        forest_on(car, epsilon=0.5, ledger=ledger).fit(car.X.assign(safety="superb"), car.y)
    assert ledger.spent.epsilon == 1


def test_everything_but_the_released_numbers_is_independent_of_the_data(car: Any) -> None:
    fits = []
    for rows in (1728, 1727, 1):
        with entropy.seeded_for_tests(6):
            fitted = forest_on(car).fit(car.X[:rows], car.y[:rows])
        fits.append(
            {
                name: value
                for name, value in vars(fitted).items()
                if name not in ("leaf_counts_", "measurements_", "model_")
            }
        )
    assert audit.diff_values(fits[0], fits[1]) == []
    assert audit.diff_values(fits[0], fits[2]) == []


@pytest.mark.parametrize(
    "parameters", [{"max_depth": 1}, {"max_depth": 3}, {"mechanism": "laplace", "trees": "disjoint"}], ids=str
)
def test_a_fitted_forest_holds_nothing_private(car: Any, parameters: dict[str, Any], tmp_path: Any) -> None:
    n, seed = 1613, 90_210_481
    X, y = car.X[:n], car.y[:n]
    with entropy.seeded_for_tests(seed):
        forest = forest_on(car, **parameters).fit(X, y)
    counts = leaf_totals(forest.forest_, open_rows(X, y, Encoding(car.schema, "bins")).batches(), n_classes=4)
    secrets = {
        "n": n,
        "noise seed": seed,
        "exact counts": counts,
        "exact counts of a class": counts[:, 0].copy(),
        "exact counts of four leaves": counts[:4].copy(),
        "noise": forest.leaf_counts_ - counts,
        "codes": Encoding(car.schema, "bins").encode(X[:50]),
    }
    forest.predict(car.X[:10])
    model_file.save(forest, tmp_path / "model")
    visible = [forest, repr(forest), forest.plan_.to_json(), forest.privacy_.to_json(), pickle.dumps(forest)]
    for thing in (*visible, (tmp_path / "model").read_bytes()):
        assert find_leaks(thing, secrets) == []
    # Mutant: the exact counts stay in the object.
    forest.report_ = lambda: counts
    assert any(found.startswith("exact counts at") for found in find_leaks(forest, secrets))


def test_a_saved_forest_predicts_the_same(car: Any, tmp_path: Any) -> None:
    for parameters in ({}, {"n_ensembles": 2, "max_features": 4, "voting": "weight"}, {"branching": "binary"}):
        forest = forest_on(car, **parameters).fit(car.X, car.y)
        model_file.save(forest, tmp_path / "model")
        again = model_file.load(tmp_path / "model")
        assert isinstance(again, vw.MatrixForestClassifier)
        np.testing.assert_array_equal(again.predict_proba(car.X), forest.predict_proba(car.X))
        np.testing.assert_array_equal(again.leaf_counts_, forest.leaf_counts_)
        assert again.privacy_ == forest.privacy_
        assert again.plan_ == forest.plan_


def test_optimised_noise_is_never_above_the_identity_and_far_below_equal_shares() -> None:
    sizes = (4, 4, 4, 3, 3, 3)
    for depth, most in ((1, 0.1), (2, 0.7), (4, 1.0)):
        paths = vw.MatrixForestClassifier(
            categorical_schema(sizes, 4), n_estimators=32, max_depth=depth, random_state=0
        )
        plan, whole = paths.plan(), math.prod(sizes)
        # On all cells a leaf is a sum of cells: 32 trees sum up every cell once each.
        identity = 32 * whole * DiscreteLaplace(Fraction(1)).variance / plan.n_leaves
        assert plan.expected_leaf_mse <= most * identity * (1 + 1e-9)
        baseline = paths.set_params(mechanism="laplace").plan()
        assert plan.expected_leaf_mse < baseline.expected_leaf_mse / 3


def test_ensembles_have_their_own_features_trees_and_depths(car: Any) -> None:
    forest = forest_on(car, n_ensembles=3, max_features=4, n_estimators=[2, 3, 4], max_depth=[1, 2, 3])
    forest.fit(car.X, car.y)
    assert forest.forest_.n_trees == 9
    assert forest.plan_.notes["ensembles"] == 3
    depth_of_tree = [forest.forest_.level[start:end].max() for start, end in tree_spans(forest)]
    assert depth_of_tree == [1] * 2 + [2] * 3 + [3] * 4
    for group in (slice(0, 2), slice(2, 5), slice(5, 9)):
        used = {f for start, end in tree_spans(forest)[group] for f in forest.forest_.feature[start:end] if f >= 0}
        assert len(used) <= 4


def tree_spans(forest: Any) -> list[tuple[int, int]]:
    starts = [*forest.forest_.roots.tolist(), forest.forest_.n_nodes]
    return list(pairwise(starts))


def test_features_are_cut_into_disjoint_parts(car: Any) -> None:
    encoding = Encoding(car.schema, "bins")
    wanted = ensembles.EnsembleParameters(n_ensembles=4, n_estimators=8, max_depth=1, feature_subsets="disjoint")
    seen = set()
    for seed in range(20):
        grown, whole = ensembles.grow_ensembles(encoding, wanted, seed)
        parts = [each.features for each in grown]
        assert sorted(f for part in parts for f in part) == list(range(6))  # each feature once
        assert sorted(map(len, parts)) == [1, 1, 2, 2]
        assert whole.n_trees == 8
        seen.add(tuple(parts))
    assert len(seen) > 15  # at random
    forest = forest_on(car, n_ensembles=3, n_estimators=6, max_depth=2, feature_subsets="disjoint").fit(car.X, car.y)
    assert forest.plan_.choices["division"] == 3
    assert len(forest.plan_.steps) == 3  # trees of depth 2 over two features: one table each


def test_a_total_of_trees_is_shared_out(car: Any) -> None:
    forest = forest_on(car, n_ensembles=3, max_features=4, n_estimators=8)
    wanted = ensembles.EnsembleParameters(n_ensembles=3, max_features=4, n_estimators=8, max_depth=2)
    _, whole = ensembles.grow_ensembles(Encoding(car.schema, "bins"), wanted, 0)
    assert whole.n_trees == forest.plan().layout.trees == 8


def test_the_search_measures_no_table_twice_and_covers_the_leaves() -> None:
    """Whatever is chosen, noise-free reconstruction gives the exact leaves: W A^+ A = W."""
    car = vw.datasets.car()
    for parameters in ({"max_depth": 1}, {"max_depth": 3}, {"max_depth": 2, "branching": "binary"}):
        forest = vw.MatrixForestClassifier(
            car.schema, epsilon=math.inf, n_estimators=6, random_state=0, **parameters
        ).fit(car.X, car.y)
        source = open_rows(car.X, car.y, Encoding(car.schema, "bins"))
        exact = leaf_totals(forest.forest_, source.batches(), n_classes=4)
        np.testing.assert_allclose(forest.leaf_counts_, exact, atol=1e-6)
        assert not forest.privacy_.is_private


def test_a_large_domain_needs_no_table_of_all_cells() -> None:
    wide = categorical_schema([8] * 10, 2, "wide")  # 1.1e9 cells
    X = np.random.default_rng(0).integers(0, 8, (400, 10))
    y = np.where(X[:, 0] > 3, "c1", "c0")
    forest = vw.MatrixForestClassifier(wide, epsilon=math.inf, n_estimators=4, max_depth=2, random_state=0)
    tracemalloc.start()
    forest.fit(X, y)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200e6
    leaves = route_rows(forest.forest_, X.astype(np.uint16))
    exact = np.zeros((forest.forest_.n_leaves, 2))
    for tree in leaves.T:
        np.add.at(exact, (tree, (y == "c1").astype(int)), 1)
    np.testing.assert_allclose(forest.leaf_counts_, exact, atol=1e-6)


def test_tennis_example_end_to_end() -> None:
    """Figure 1 of the paper: one tree on the outlook, one on the wind; leaves are T D."""
    leaves = {
        0: [[2, 0], [0, 2], [1, 1]],  # sunny, overcast, rainy: no, yes
        1: [[1, 2], [2, 1]],  # not windy, windy
    }
    split = set()
    for state in range(10):
        forest = vw.MatrixForestClassifier(
            TENNIS, epsilon=math.inf, n_estimators=2, max_depth=1, random_state=state
        ).fit(DAYS, PLAYED)
        chosen = tuple(forest.forest_.feature[forest.forest_.roots])
        np.testing.assert_allclose(forest.leaf_counts_, np.concatenate([leaves[f] for f in chosen]), atol=1e-9)
        split.add(chosen)
    assert {(0, 1), (1, 0)} & split
    weighing = vw.MatrixForestClassifier(
        TENNIS, epsilon=math.inf, n_estimators=40, max_depth=2, voting="weight", random_state=0
    )
    assert weighing.fit(DAYS, PLAYED).score(DAYS, PLAYED) == 1


def test_numeric_columns_are_cut_in_public_and_missing_values_are_a_value() -> None:
    columns = [
        {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "cutoffs": [18, 65], "nullable": True},
        {"name": "income", "kind": "numeric", "lower": 0, "upper": 1e6, "bins": 4, "transform": "log1p"},
        {"name": "y", "kind": "categorical", "values": ["no", "yes"]},
    ]
    facts = vw.Schema.from_dict({"name": "people", "task": "classification", "target": "y", "columns": columns})
    rng = np.random.default_rng(0)
    age = np.where(rng.random(600) < 0.3, np.nan, rng.uniform(0, 100, 600))
    X = pd.DataFrame({"age": age, "income": rng.uniform(0, 1e6, 600)})
    y = np.where(np.isnan(age) | (age < 18), "yes", "no")
    forest = vw.MatrixForestClassifier(facts, epsilon=20.0, n_estimators=16, max_depth=2, random_state=0).fit(X, y)
    assert forest.score(X, y) == 1
    assert forest.forest_.n_leaves == 16 * 4 * 4


@pytest.mark.parametrize(
    ("facts", "parameters", "message"),
    [
        (categorical_schema((500,) * 5, 2), {"n_estimators": 128, "max_depth": 3}, r"widest: 500, 500, 500.*max_depth"),
        (categorical_schema((3000, 3000), 2), {"max_depth": 2, "n_estimators": 20}, r"180,000,000 leaves"),
        (categorical_schema((3, 2), 2), {"max_depth": 3}, r"^max_depth=3 "),
        (categorical_schema((3, 2), 2), {"max_features": 1, "max_depth": 2}, r"^max_depth=2 "),
        (categorical_schema((3, 2), 2), {"max_features": 3}, r"max_features=3"),
        (categorical_schema((3, 2), 2), {"n_ensembles": 0}, r"n_ensembles=0"),
        (categorical_schema((3, 2), 2), {"n_ensembles": 3, "n_estimators": 2}, r"^n_estimators=2 "),
        (categorical_schema((3, 2), 2), {"n_ensembles": 3, "n_estimators": [2, 2]}, r"^n_estimators="),
        (categorical_schema((3, 2), 2), {"n_estimators": [0], "max_depth": 1}, r"n_estimators"),
        (categorical_schema((3, 2), 2), {"max_depth": 1, "trees": "disjoint"}, r"mechanism='laplace'"),
        (categorical_schema((3, 2), 2), {"mechanism": "magic"}, r"mechanism='magic'"),
        (categorical_schema((3, 2), 2), {"feature_subsets": "odd"}, r"feature_subsets='odd'"),
        (
            categorical_schema((3, 2), 2),
            {"feature_subsets": "disjoint", "max_features": 1},
            r"^max_features=1 ",
        ),
        (
            categorical_schema((3, 2), 2),
            {"feature_subsets": "disjoint", "n_ensembles": 3},
            r"^n_ensembles=3 ",
        ),
        (categorical_schema((3, 2), 2), {"branching": "fractal"}, r"branching='fractal'"),
        (categorical_schema((3, 2), 2), {"voting": "loud"}, r"voting='loud'"),
    ],
)
def test_what_cannot_be_built_says_why_and_costs_nothing(
    facts: vw.Schema, parameters: dict[str, Any], message: str
) -> None:
    ledger = vw.MemoryLedger(epsilon=1)
    X = np.zeros((4, len(facts.features)), int)
    with pytest.raises(vw.VeilwoodError, match=message):
        vw.MatrixForestClassifier(facts, ledger=ledger, **parameters).fit(X, ["c0", "c1"] * 2)
    assert ledger.spent.epsilon == 0
    assert ledger.entries() == []
