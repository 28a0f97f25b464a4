# SPDX-License-Identifier: Apache-2.0
"""PrivateForest: norms by enumeration, plans, distinguishers with mutants, twins in plain numpy, and explanations.

The attack by canaries, which is made on every estimator, is in test_attacks.py; refined plans are in test_release.py.
"""

from __future__ import annotations

import itertools
import json
import pickle
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.base import clone

import veilwood as vw
from veilwood import audit
from veilwood.audit.model_file import check_model
from veilwood.data.batches import Batch
from veilwood.data.encoding import GRID_CELLS, TARGET_LEVELS, EncodedColumn, Encoding
from veilwood.forests.adaptive import boosting, recipes, rounds
from veilwood.forests.adaptive import tables as counted_tables
from veilwood.forests.adaptive.boosting import GRADIENT_UNITS, gradients, row_norms
from veilwood.forests.adaptive.effects import effects_of
from veilwood.forests.adaptive.recipes import Recipe, choose
from veilwood.forests.adaptive.table_trees import Axis, CellTable, coarse_codes, equal_cuts, grow_tables
from veilwood.forests.adaptive.tables import draw_axes, evidence, histograms, plan_tables, tables_of
from veilwood.forests.leaves import density, shrunken_steps, shrunken_table
from veilwood.plots import plot_calibration, plot_effects
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.ledger import MemoryLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours, Rows
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace
from veilwood.privacy.selection import PermuteAndFlip
from veilwood.privacy.steps import Step
from veilwood.trees.counting import leaf_totals, route

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]

NUMBER = EncodedColumn("number", ordered=True, n_codes=GRID_CELLS, missing_code=None)
GAPPY = EncodedColumn("gappy", ordered=True, n_codes=GRID_CELLS + 1, missing_code=GRID_CELLS)
COIN = EncodedColumn("coin", ordered=False, n_codes=3, missing_code=None)
COLUMNS = (NUMBER, GAPPY, COIN)

CLINIC: list[dict[str, Any]] = [
    {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "nullable": True},
    {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"], "nullable": True},
    {"name": "income", "kind": "numeric", "lower": 0, "upper": 1e6, "transform": "log1p"},
]
TARGETS: dict[str, dict[str, Any]] = {
    "two": {"name": "target", "kind": "categorical", "values": ["no", "yes"]},
    "three": {"name": "target", "kind": "categorical", "values": ["a", "b", "c"]},
    "regression": {"name": "target", "kind": "numeric", "lower": -5, "upper": 15},
}


def schema_of(task: str) -> vw.Schema:
    kind = "regression" if task == "regression" else "classification"
    columns = [*CLINIC, TARGETS[task]]
    return vw.Schema.from_dict({"name": "clinic", "task": kind, "target": "target", "columns": columns})


def table_of(task: str, n: int, seed: int = 0) -> tuple[pd.DataFrame, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    age, ward = rng.uniform(0, 100, n), rng.integers(0, 3, n)
    X = pd.DataFrame({
        "age": np.where(rng.random(n) < 0.1, np.nan, age),
        "ward": np.array(["A", "B", "C", None], dtype=object)[np.where(rng.random(n) < 0.1, 3, ward)],
        "income": rng.lognormal(8, 2, n),
    })  # fmt: skip
    level = age / 50 + ward + rng.normal(0, 0.2, n)  # from 0 to 4
    if task == "regression":
        return X, 4 * level - 3
    cuts = [2.0] if task == "two" else [1.3, 2.7]
    return X, np.array(TARGETS[task]["values"])[np.searchsorted(cuts, level)]


def forest_of(task: str, **params: Any) -> Any:
    kind = vw.PrivateForestRegressor if task == "regression" else vw.PrivateForestClassifier
    return kind(schema_of(task), random_state=0, n_jobs=1, **params)


METHODS = [
    ("two", "tables"),
    ("three", "tables"),
    ("two", "boosting"),
    ("three", "boosting"),
    ("regression", "boosting"),
]


# -- 1. sensitivity -------------------------------------------------------------------------------------------

N_CLASSES = [2, 3, 5, 0]  # 0: regression


def rows_of(coarse: Any, target: Any, scores: Any) -> boosting.Rows:
    return boosting.Rows(
        coarse, np.asarray(target, np.int32), np.asarray(scores, float), np.empty(len(target), np.uint32)
    )


def random_rows(n_classes: int, n: int, rng: np.random.Generator) -> boosting.Rows:
    """Rows with scores as extreme as rounds can make them, mild ones among them."""
    codes = np.column_stack([
        rng.integers(0, GRID_CELLS, n), rng.integers(0, GRID_CELLS + 1, n), rng.integers(0, 3, n)
    ]).astype(np.uint16)  # fmt: skip
    target = rng.integers(0, n_classes or TARGET_LEVELS + 1, n).astype(np.int32)
    outputs = 1 if n_classes <= 2 else n_classes
    scale = rng.choice([0.1, 3.0, 100.0], (n, 1))
    return rows_of(coarse_codes(COLUMNS, codes), target, rng.normal(size=(n, outputs)) * scale)


def some_of(rows: boosting.Rows, chosen: Any) -> boosting.Rows:
    return rows_of(rows.coarse[:, chosen], rows.target[chosen], rows.scores[chosen])


def small_table(rng: np.random.Generator) -> CellTable:
    cut = Axis.of_cuts(0, NUMBER, [int(rng.integers(1, 256))])
    return CellTable((cut, Axis.of_values(2, COIN)))


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("n_classes", N_CLASSES)
def test_what_one_row_adds_in_a_round_stays_within_its_norms(n_classes: int, gaussian: bool) -> None:
    rng = np.random.default_rng(n_classes)
    rows, table = random_rows(n_classes, 400, rng), small_table(rng)
    units, l1, squared_l2 = row_norms(n_classes, gaussian, False)
    spread = 0.05
    whole = rows.sums(table, n_classes, units, spread, 1)
    moved = np.array([
        whole - some_of(rows, np.arange(400) != i).sums(table, n_classes, units, spread, 1) for i in range(400)
    ]).reshape(400, -1)  # fmt: skip
    largest = np.abs(moved).sum(axis=1).max(), (moved**2).sum(axis=1).max()
    assert largest[0] <= l1
    assert largest[1] <= squared_l2
    assert largest[0] > 0.95 * l1  # and the bounds are close to what happens
    assert largest[1] > 0.95 * squared_l2
    assert (moved.reshape(400, -1, moved.shape[1] // table.n_cells)[:, :, -1].sum(axis=1) == units).all()


@pytest.mark.parametrize("unit", [1, 2])
@pytest.mark.parametrize("n_classes", N_CLASSES)
def test_replacing_rows_in_a_round_stays_within_the_plan(n_classes: int, unit: int) -> None:
    """Any rows replaced by any others: what a plan for replacements, and one for Gaussian noise, is calibrated to."""
    rng = np.random.default_rng(n_classes)
    neighbours = Neighbours("replace-one", Rows(unit))
    recipe = Recipe("boosting", 1000, 3, 0, 8, 1, 0, 3)
    pure = rounds.plan_rounds(COLUMNS, n_classes, recipe, Loss.pure(Fraction(1)), neighbours)
    zcdp = Loss.zcdp(Fraction(1, 10), Fraction(1, 10**6))
    rho = rounds.plan_rounds(COLUMNS, n_classes, replace(recipe, gaussian=True), zcdp, neighbours)
    found = dict.fromkeys(("l1", "l2"), 0)
    rows, table = random_rows(n_classes, 60, rng), CellTable((Axis.of_cuts(0, NUMBER, [128]),))
    alone = {
        plan.count_units: [some_of(rows, [i]).sums(table, n_classes, plan.count_units, 0.01, 1) for i in range(60)]
        for plan in (pure, rho)
    }
    for one, other in itertools.permutations(range(0, 60 - unit, 1), 2):
        for plan, name in ((pure, "l1"), (rho, "l2")):
            sums = alone[plan.count_units]
            moved = np.sum(sums[one : one + unit], axis=0) - np.sum(sums[other : other + unit], axis=0)
            far = int(np.abs(moved).sum() if name == "l1" else (moved.astype(object) ** 2).sum())
            found[name] = max(found[name], far)
    assert found["l1"] <= pure.rounds[0].sensitivity
    assert found["l2"] <= rho.rounds[0].sensitivity
    if unit == 1 and n_classes <= 2:
        assert found["l2"] > 0.8 * rho.rounds[0].sensitivity


def test_norms_of_unsigned_vectors_are_caught_for_replacements() -> None:
    """Mutant: the squared norm of an addition, doubled for a replacement as if gradients had no sign."""
    rows = rows_of(np.zeros((3, 2), np.uint16), [0, 1], [[40.0], [-40.0]])
    table = CellTable((Axis.of_cuts(0, NUMBER, [128]),))
    units, _, wrong = row_norms(2, True, False)
    one, other = (some_of(rows, [i]).sums(table, 2, units, 1.0, 1) for i in range(2))
    moved = int(((one - other) ** 2).sum())
    assert moved > Neighbours("replace-one").squared_l2(wrong)
    assert moved <= Neighbours("replace-one").squared_l2(row_norms(2, True, True)[2])


@pytest.mark.parametrize("n_classes", N_CLASSES)
@pytest.mark.parametrize(
    "neighbours", [Neighbours(), Neighbours("replace-one"), Neighbours("add-remove", Rows(2))], ids=str
)
def test_histograms_starts_and_tables_keep_their_norms(n_classes: int, neighbours: Neighbours) -> None:
    rng = np.random.default_rng(1)
    rows = random_rows(n_classes, 6, rng)
    rows.target[:2] = [0, (n_classes or TARGET_LEVELS + 1) - 1]
    recipe = Recipe("boosting", 1000, 3, 0, 8, 1, 0, 3)
    counting = Recipe("tables", 1000, 3, 2, 4, quantiles=True)
    axes = draw_axes(COLUMNS, counting, rng)
    forest, _ = grow_tables(tables_of(axes, counting))
    codes = np.column_stack([rng.integers(0, column.n_codes, 6) for column in COLUMNS]).astype(np.uint16)
    for loss in (Loss.pure(Fraction(1)), Loss.zcdp(Fraction(1, 10), Fraction(1, 10**6))):
        plan = rounds.plan_rounds(COLUMNS, n_classes, recipe, loss, neighbours)
        assert plan.cuts is not None
        queries: list[tuple[Step, Any]] = [
            (plan.cuts, lambda kept: kept.histograms([0, 1])),
            (plan.start, lambda kept: rounds._totals(kept, n_classes)),
        ]
        if not n_classes:
            queries += [(plan.spreads[0], lambda kept: kept.residual_histogram())]
        checks: list[tuple[Step, Any]] = [
            (step, lambda cells, q=query: q(some_of(rows, list(cells)))) for step, query in queries
        ]
        if n_classes:
            tables = plan_tables(axes, counting, n_classes, loss, neighbours)
            numeric = [axis.feature for axis in axes if axis.ordered]
            assert tables.histograms is not None
            checks += [(tables.histograms, lambda cells, numeric=numeric: histograms(
                COLUMNS, numeric, [Batch(codes[list(cells)], rows.target[list(cells)], 0, 0)]
            ))]  # fmt: skip
            checks += [(tables.counts, lambda cells: leaf_totals(
                forest, [Batch(codes[list(cells)], rows.target[list(cells)], 0, 0)], n_classes=n_classes, fast=False
            ))]  # fmt: skip
        for step, query in checks:
            found = audit.worst_distances(query, 6, 2, neighbours)
            far = found.l1 if loss.delta == 0 else found.squared_l2
            assert far <= step.sensitivity
            assert step.name == "histogram 1 of residuals" or far > 0.4 * step.sensitivity


# -- 2. plans -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "method"), METHODS)
@pytest.mark.parametrize("bought", [False, True])
@pytest.mark.parametrize("params", [{}, {"delta": 1e-6}, {"adjacency": "replace-one"}, {"privacy_unit": 2}], ids=str)
def test_the_door_sees_every_planned_step_and_the_ledger_one_charge(
    task: str, method: str, bought: bool, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[str] = []
    sound = Door.noisy
    monkeypatch.setattr(Door, "noisy", lambda self, step, exact: passed.append(step.name) or sound(self, step, exact))  # type: ignore[func-returns-value]
    X, y = table_of(task, 600)
    ledger = MemoryLedger(epsilon=2, delta=1e-6)
    forest = forest_of(task, method=method, epsilon=2.0, n_rows=None if bought else 600, ledger=ledger, **params)
    forest.fit(X, y)
    plan = forest.plan_
    assert sorted(passed) == sorted(step.name for step in plan.steps)
    assert len(set(passed)) == len(passed)
    assert (plan.steps[0].name == "number of rows") == bought
    (entry,) = ledger.entries()
    assert entry.state == "committed"
    assert entry.loss == plan.loss
    if plan.loss.delta == 0:
        assert sum(step.loss.epsilon for step in plan.steps) <= 2
        assert all(isinstance(step.mechanism, DiscreteLaplace) for step in plan.steps)
    else:
        assert sum(step.loss.rho for step in plan.steps) <= plan.loss.rho
        assert all(isinstance(step.mechanism, DiscreteGaussian) for step in plan.steps)
    assert forest.privacy_.is_private
    assert all(check.holds for check in check_model(forest))
    if not bought:
        assert plan.to_dict() == forest.plan().to_dict()


def test_a_plan_is_made_before_the_data_and_in_words() -> None:
    car = vw.datasets.car()
    known = str(vw.PrivateForestClassifier(car.schema, epsilon=0.2, n_rows=1728, random_state=0).plan())
    assert "method tables" in known
    assert "1,728 rows assumed" in known
    assert "Expected noise on one count of a leaf" in known
    assert "class counts of tables" in known
    bought = vw.PrivateForestClassifier(car.schema, epsilon=1.0).plan()
    assert [step.name for step in bought.steps] == ["number of rows"]
    assert bought.steps[0].loss.epsilon == Fraction(1, 50)
    assert "At 1,000 rows" in str(bought)
    assert "At 1,000,000 rows: rows enough at this epsilon for gradient boosting" in str(bought)


def test_what_is_not_affordable_is_said_and_hopeless_budgets_abstain() -> None:
    wide = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=60)
    short = vw.PrivateForestClassifier(wide, epsilon=0.3, n_rows=300, method="tables", random_state=0).plan()
    assert "of 60 columns" in short.notes["not affordable"]
    hopeless = vw.PrivateForestClassifier(wide, epsilon=0.01, n_rows=50, random_state=0)
    assert hopeless.plan().choices["method"] == "prior"
    assert "show nothing but how frequent the classes are" in str(hopeless.plan())
    rng = np.random.default_rng(0)
    X, y = rng.random((50, 60)), np.array(["no", "yes"])[rng.integers(0, 2, 50)]
    with pytest.warns(vw.UtilityWarning, match="all this model predicts"):
        chances = hopeless.fit(X, y).predict_proba(X)
    assert (chances == chances[0]).all()
    assert np.allclose(chances.sum(axis=1), 1)
    assert hopeless.explain().main == ()
    assert "every row gets the same prediction" in str(hopeless.explain())


def test_the_choice_depends_on_public_facts_only_and_grows_with_the_budget() -> None:
    columns = [EncodedColumn(f"x{i}", True, GRID_CELLS, None) for i in range(10)]
    methods = [choose(columns, 2, 1000, Loss.pure(Fraction(epsilon))).method for epsilon in ("1/1000", "1", "9", "20")]
    assert methods == ["prior", "tables", "boosting", "cells"]
    assert choose(columns, 0, 1000, Loss.pure(Fraction(1))).method == "boosting"
    assert choose(columns, 2, 0, Loss.pure(Fraction(1))).n_rows == 1
    binary = [EncodedColumn(f"x{i}", False, 2, None) for i in range(123)]
    wide = choose(binary, 2, 1000, Loss.pure(Fraction(1)))
    assert wide.method == "tables"
    assert 0 < wide.n_columns <= 123
    for recipe in (wide, choose(columns, 2, 10**6, Loss.pure(Fraction(1)))):
        assert recipe.in_words(10)
    few = choose(columns, 2, 10**6, Loss.pure(Fraction(1)))
    more = choose(columns, 2, 10**6, Loss.pure(Fraction(3)))
    assert few.rounds(10) <= more.rounds(10)


@pytest.mark.parametrize(
    ("task", "params", "says"),
    [
        ("two", {"n_rows": 0}, "n_rows=0 must be a whole number"),
        ("two", {"n_rows": 2.5}, "n_rows=2.5"),
        ("two", {"n_rows": True}, "n_rows=True"),
        ("two", {"method": "table"}, "method='table' is not known"),
        ("regression", {"method": "tables"}, "method='tables' is for classes"),
        ("two", {"epsilon": 0}, "epsilon=0"),
        ("two", {"privacy_unit": 0}, "privacy_unit"),
        ("two", {"n_jobs": 0}, "n_jobs=0"),
        ("two", {"random_state": -1}, "random_state=-1"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_spent(task: str, params: dict[str, Any], says: str) -> None:
    ledger = MemoryLedger()
    forest = forest_of(task).set_params(**{"n_rows": 100, "ledger": ledger, **params})
    with pytest.raises(vw.VeilwoodError, match=says):
        forest.plan()
    with pytest.raises(vw.VeilwoodError, match=says):
        forest.fit(*table_of(task, 100))
    assert ledger.entries() == []


def test_data_of_another_task_or_outside_the_schema_is_refused() -> None:
    X, y = table_of("two", 50)
    with pytest.raises(vw.VeilwoodError, match="Hint"):
        vw.PrivateForestRegressor(schema_of("two"), n_rows=50).fit(X, y)
    ledger = MemoryLedger()
    with pytest.raises(vw.OutOfSchemaError, match="ward"):
        forest_of("two", n_rows=50, ledger=ledger).fit(X.assign(ward="D"), y)
    assert ledger.spent == Loss.zero()
    with pytest.raises(vw.VeilwoodError, match="sample_weight"):
        forest_of("two", n_rows=50).fit(X, y, sample_weight=np.ones(50))


# -- 3. attacks -----------------------------------------------------------------------------------------------


def gradient_attack(scale: Fraction, runs: int = 60_000) -> float:
    """One row with a gradient of 1 in a cell of its own: gradient and count come out as large as they truly are."""
    rows = rows_of(np.zeros((3, 1), np.uint16), [1], [[-50.0]])
    table = CellTable((Axis.of_cuts(0, NUMBER, [128]),))
    recipe = Recipe("boosting", 1, 1, 0, 2, 1, 0, 3)
    plan = rounds.plan_rounds([NUMBER], 2, recipe, Loss.pure(Fraction(2)), Neighbours())
    step = plan.rounds[0]
    assert isinstance(step.mechanism, DiscreteLaplace)
    assert step.loss.epsilon is not None
    noise = DiscreteLaplace(step.mechanism.scale * scale)
    present = rows.sums(table, 2, plan.count_units, 1.0, 1)[0]
    hits = []
    for exact in (present, np.zeros_like(present)):
        noisy = noise.perturb(np.broadcast_to(exact, (runs, 2)).astype(np.int64))
        hits.append(int((noisy >= present).all(axis=1).sum()))
    return audit.epsilon_lower_bound(hits[0], runs, hits[1], runs) / float(step.loss.epsilon)


def test_gradient_sums_keep_their_epsilon_and_halved_noise_is_caught() -> None:
    with seeded_for_tests(1):
        assert 0.9 < gradient_attack(Fraction(1)) <= 1
    with seeded_for_tests(1):
        assert gradient_attack(Fraction(1, 2)) > 1.7


def histogram_attack(step: Step, exact: NDArray[np.int64], scale: Fraction, runs: int = 60_000) -> float:
    """One row in a table: the entries it is counted in come out as large as they truly are, with it and without."""
    assert isinstance(step.mechanism, DiscreteLaplace)
    assert step.loss.epsilon is not None
    present = exact[exact > 0]
    assert present.sum() == step.sensitivity
    noise, hits = DiscreteLaplace(step.mechanism.scale * scale), []
    for truth in (present, np.zeros_like(present)):
        noisy = noise.perturb(np.broadcast_to(truth, (runs, len(truth))).astype(np.int64))
        hits.append(int((noisy >= present).all(axis=1).sum()))
    return audit.epsilon_lower_bound(hits[0], runs, hits[1], runs) / float(step.loss.epsilon)


def test_histograms_keep_their_epsilon_and_halved_noise_is_caught() -> None:
    recipe = Recipe("tables", 1000, 2, 2, 4, quantiles=True)
    axes = draw_axes((NUMBER, NUMBER), recipe, np.random.default_rng(0))
    columns = plan_tables(axes, recipe, 2, Loss.pure(Fraction(10)), Neighbours()).histograms
    assert columns is not None
    row = rows_of(np.full((2, 1), 7, np.uint16), [1], [[0.0]])
    mean = rounds.plan_rounds([NUMBER], 0, Recipe("prior", 10), Loss.pure(Fraction(2)), Neighbours()).start
    for step, exact in ((columns, row.histograms([0, 1])), (mean, rounds._totals(row, 0))):
        for scale, least, most in ((Fraction(1), 0.9, 1.0), (Fraction(1, 2), 1.7, 2.0)):
            with seeded_for_tests(1):
                assert least < histogram_attack(step, exact, scale) <= most


@pytest.mark.parametrize(("task", "method"), METHODS)
@pytest.mark.parametrize("epsilon", [0.3, 2.0])  # tables: with groups of equal width, and between private quantiles
def test_public_choices_do_not_depend_on_the_data(task: str, method: str, epsilon: float) -> None:
    """Same public seed, other rows: the plan and the order of columns are the same; same rows, other noise."""
    fits = []
    for seed, n in ((0, 400), (1, 399)):
        forest = forest_of(task, method=method, n_rows=500, epsilon=epsilon).fit(*table_of(task, n, seed))
        fits.append(forest)
    one, other = fits
    assert one.plan_.to_dict() == other.plan_.to_dict()
    if "histograms of numeric columns" not in [step.name for step in one.plan_.steps]:
        assert (method, epsilon) == ("tables", 0.3)
        assert audit.differences(one.forest_, other.forest_) == []
    else:
        roots = [forest.forest_.feature[forest.forest_.roots].tolist() for forest in fits]
        assert roots[0] == roots[1]
    assert audit.differences(one._model_arrays(), other._model_arrays()) != []


N_ROWS = 1613  # a number that does not turn up by chance
NOISE_SEED = 90_210_481


@pytest.mark.parametrize(("task", "method"), METHODS)
def test_a_fitted_forest_holds_nothing_private(task: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact: list[NDArray[np.int64]] = []
    sound = Door.noisy
    monkeypatch.setattr(Door, "noisy", lambda self, step, sums: exact.append(sums) or sound(self, step, sums))  # type: ignore[func-returns-value]
    X, y = table_of(task, N_ROWS)
    with seeded_for_tests(NOISE_SEED):
        forest = forest_of(task, method=method, epsilon=5.0).fit(X, y)
    forest.predict(X[:10])
    forest.explain()
    assert exact[0].tolist() == [N_ROWS]
    secrets: dict[str, Any] = {"n": N_ROWS, "noise seed": NOISE_SEED, "first income": float(X["income"].iloc[0])}
    secrets |= {f"exact sums {i}": sums for i, sums in enumerate(exact) if sums.size > 3}
    for thing in (forest, pickle.dumps(forest), repr(forest), forest.privacy_.to_json(), forest.explain().to_dict()):
        assert audit.leaks(thing, secrets) == []
    forest.kept_ = {"hidden": [lambda: exact[-1]]}  # mutant
    assert audit.leaks(forest, secrets) != []


def test_a_row_moves_nothing_but_its_own_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same noisy outputs, the scores of other rows are the same whether a row is there or not."""
    seen: list[boosting.Rows] = []
    sound = boosting.Rows.sums
    monkeypatch.setattr(boosting.Rows, "sums", lambda self, *a: seen.append(self) or sound(self, *a))  # type: ignore[func-returns-value]
    fixed = np.random.default_rng(0)
    noise = [fixed.integers(-50, 50, 10_000) for _ in range(100)]
    X, y = table_of("two", 500)
    scores = []
    for n in (499, 500):
        drawn = iter(noise)
        monkeypatch.setattr(
            Door,
            "noisy",
            lambda self, step, x, d=drawn: next(d).ravel()[: int(np.prod(step.shape))].reshape(step.shape),
        )  # whatever the rows
        forest_of("two", method="boosting", n_rows=500, epsilon=1.0).fit(X[:n], y[:n])
        scores.append(seen[-1].scores[:499])
    assert (scores[0] == scores[1]).all()


# -- 4. twins in plain numpy ------------------------------------------------------------------------------------


def random_tables(rng: np.random.Generator) -> list[CellTable]:
    def axis(feature: int) -> Axis:
        column = COLUMNS[feature]
        if not column.ordered:
            sides = np.array([False, True, bool(rng.integers(2))])
            return Axis.of_values(feature, column) if rng.random() < 0.5 else Axis.of_sides(feature, sides)
        return Axis.of_cuts(feature, column, rng.integers(0, 257, rng.integers(0, 7)))

    return [CellTable(tuple(axis(int(f)) for f in rng.permutation(3)[: rng.integers(0, 4)])) for _ in range(8)]


@pytest.mark.parametrize("seed", range(5))
def test_trees_and_tables_put_rows_in_the_same_cells(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = np.column_stack([rng.integers(0, column.n_codes, 500) for column in COLUMNS]).astype(np.uint16)
    codes[:50, 1] = GRID_CELLS  # missing
    codes[50:60, :2] = GRID_CELLS - 1
    codes[60:70, :2] = 0
    tables = random_tables(rng)
    forest, cells = grow_tables(tables)
    leaves = route(forest, codes)
    for tree, table in enumerate(tables):
        assert (cells[leaves[:, tree]] == table.cells(coarse_codes(COLUMNS, codes))).all()
        first, last = forest.tree_leaves[tree : tree + 2]
        assert sorted(cells[first:last]) == list(range(table.n_cells))


def test_missing_numbers_have_a_group_of_their_own_and_empty_cuts_are_dropped() -> None:
    axis = Axis.of_cuts(1, GAPPY, [0, 10, 10, 256])
    assert axis.size == 3
    assert axis.thresholds == [10 * 256, GRID_CELLS]
    assert len(equal_cuts(4)) == 3


@pytest.mark.parametrize(("task", "method"), METHODS)
def test_predictions_are_sums_of_table_values(task: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    kind = type(forest_of(task))
    sound = kind._learn
    monkeypatch.setattr(kind, "_learn", lambda self, design, got: kept.append(got) or sound(self, design, got))  # type: ignore[func-returns-value]
    X, y = table_of(task, 800)
    forest = forest_of(task, method=method, n_rows=800, epsilon=5.0).fit(X, y)
    (learned,) = kept
    encoding = Encoding(forest.schema_, "grid")
    coarse = coarse_codes(encoding.columns, encoding.encode(X))
    scores = np.tile(learned.start, (800, 1))
    for table, values in zip(learned.tables, learned.values, strict=True):
        scores += values[table.cells(coarse)]
    assert np.allclose(scores, forest._scores(X), rtol=0, atol=1e-9)
    if task == "regression":
        assert np.allclose(forest.predict(X), np.clip(scores[:, 0], 0, 1) * 20 - 5, atol=1e-6)
        assert forest.predict(X).min() >= -5
        return
    chances = forest.predict_proba(X)
    if scores.shape[1] == 1:
        scores = np.column_stack([np.zeros(800), scores])
    powers = np.exp(scores)
    assert np.allclose(chances, powers / powers.sum(axis=1, keepdims=True))
    assert (forest.predict(X) == forest.classes_[chances.argmax(axis=1)]).all()


def naive_component(table: Any, axes: tuple[int, ...]) -> Any:
    """Project on functions of a set of axes, less all smaller sets, by averaging."""
    smaller = itertools.chain.from_iterable(itertools.combinations(axes, r) for r in range(len(axes)))
    others = tuple(axis for axis in range(table.ndim - 1) if axis not in axes)
    mean = np.broadcast_to(table.mean(axis=others, keepdims=True) if others else table, table.shape)
    return mean - sum(naive_component(table, some) for some in smaller)


def naive_shrunken(part: Any, noise_energy: float) -> Any:
    common = np.broadcast_to(part.mean(axis=-1, keepdims=True), part.shape)
    pieces = (common, part - common)  # with two classes, either has one degree of freedom a cell
    return sum(piece * max(0.0, 1 - noise_energy / (piece**2).sum()) for piece in pieces)


def test_shrunken_tables_against_a_naive_projection() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(5, 2, (3, 4, 2))
    variance, totals = 0.5, np.array([40.0, 30.0])
    by_row = naive_shrunken(naive_component(table, (0,)), variance * 2)
    by_column = naive_shrunken(naive_component(table, (1,)), variance * 3)
    product = totals / 12 * (1 + by_row / (totals / 12)) * (1 + by_column / (totals / 12))
    expected = product + naive_shrunken(naive_component(table - product, (0, 1)), variance * 6)
    assert min(np.abs(by_row).max(), np.abs(by_column).max(), np.abs(expected - product).max()) > 0.01
    assert np.allclose(shrunken_table(table, variance, totals), expected)


def test_shrunken_tables_multiply_what_is_independent_and_keep_what_is_not() -> None:
    rng = np.random.default_rng(1)
    row, column = np.array([[0.7, 0.2], [0.3, 0.8]]), np.array([[0.1, 0.6], [0.2, 0.3], [0.7, 0.1]])
    totals = np.array([5_000.0, 3_000.0])
    independent = totals * row[:, None] * column[None]
    noisy = independent + rng.normal(0, 100.0, independent.shape)
    shrunk = shrunken_table(noisy, 100.0**2, totals)
    assert np.abs(shrunk - independent).mean() < 0.75 * np.abs(noisy - independent).mean()
    for table in (independent, rng.integers(0, 9, (2, 3, 2, 2)).astype(float)):
        sums = table.sum(axis=tuple(range(table.ndim - 1)))
        assert np.allclose(shrunken_table(table, 0.0, sums), table)  # without noise nothing is lost
    empty = np.array([[[9.0, 0.0], [8.0, 1.0]], [[0.0, 5.0], [0.0, 4.0]]])  # a class without rows in a group
    assert np.allclose(shrunken_table(empty, 0.0, empty.sum(axis=(0, 1))), empty)


def naive_density(histogram: list[float], variance: float, rows: float) -> list[float]:
    if len(histogram) == 1:
        return [rows]
    left, right = histogram[: len(histogram) // 2], histogram[len(histogram) // 2 :]
    believed = (rows**2 / 3) / (rows**2 / 3 + variance * len(histogram)) if rows else 0.0
    first = min(max(rows / 2 + believed * (sum(left) - sum(right)) / 2, 0.0), rows)
    deviation = (variance * len(left)) ** 0.5
    if rows > 5 * deviation and min(first, rows - first) < 2 * deviation:
        first = 0.0 if first < rows / 2 else rows
    return naive_density(left, variance, first) + naive_density(right, variance, rows - first)


def test_densities_against_a_naive_twin() -> None:
    rng = np.random.default_rng(0)
    for variance in (0.0, 4.0, 1e4):
        histogram = rng.poisson(rng.choice([0, 0, 40], 64)) + rng.normal(0, variance**0.5, 64).round()
        total, error = float(histogram.sum()), (64 * variance) ** 0.5
        for rows in (0.0, total - 1.9 * error, total, total + 5 * error, 1e9):
            believed = max(1.0, min(max(rows, total - 2 * error), total + 2 * error))  # a wrong guess does little harm
            cleaned = density(histogram, variance, rows)
            assert np.allclose(cleaned, naive_density(histogram.tolist(), variance, believed))
            assert cleaned.min() >= 0
            assert np.isclose(cleaned.sum(), believed)
    assert np.allclose(density(histogram, 1e12, 300.0), 300 / 64)  # nothing but noise: spread evenly
    exact = rng.integers(0, 9, 64)
    assert np.allclose(density(exact, 0.0, exact.sum()), exact)


def test_tables_cut_numbers_where_rows_are() -> None:
    """Bounds a hundred times too wide: of eight groups of equal width, one would hold all rows."""
    rng = np.random.default_rng(0)
    X = rng.uniform(3, 4, (2000, 3))
    y = np.where(X[:, 0] + X[:, 1] + rng.normal(0, 0.1, 2000) > 7, "yes", "no")
    schema = vw.Schema.numeric((0, 100), classes=["no", "yes"], n_features=3)
    forest = vw.PrivateForestClassifier(schema, epsilon=2.0, n_rows=2000, method="tables", random_state=0)
    assert "between private quantiles" in str(forest.plan())
    with seeded_for_tests(0):
        assert forest.fit(X, y).score(X, y) > 0.75
    poor = vw.PrivateForestClassifier(schema, epsilon=0.1, n_rows=2000, method="tables", random_state=0).plan()
    assert "of equal width" in str(poor)
    assert "histograms of numeric columns" not in [step.name for step in poor.steps]


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_a_target_far_from_its_bounds_is_found_or_its_mean_is_predicted(epsilon: float) -> None:
    """Bounds a hundred times wider than the target: a mean with noise of that width would miss all of it."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (3000, 3))
    y = 20 + 5 * X[:, 0] + rng.normal(0, 0.5, 3000)
    names = [*schema_of("regression").feature_names]
    columns = [{"name": name, "kind": "numeric", "lower": 0, "upper": 1} for name in names]
    columns += [{"name": "target", "kind": "numeric", "lower": 0, "upper": 1000}]
    schema = vw.Schema.from_dict({"name": "wide", "task": "regression", "target": "target", "columns": columns})
    forest = vw.PrivateForestRegressor(schema, epsilon=epsilon, n_rows=3000, random_state=0)
    with seeded_for_tests(5):
        forest.fit(X, y)
    assert forest.plan_.choices["method"] == ("prior" if epsilon < 0.2 else "boosting")
    assert np.abs(forest.predict(X) - y).mean() < 6
    if epsilon < 0.2:
        assert [step.name for step in forest.plan_.steps] == ["histogram of the target"]
        assert np.ptp(forest.predict(X)) == 0
        assert forest.explain().main == ()
    assert all(check.holds for check in check_model(clone(forest).fit(X, y)))


def test_a_delta_is_spent_only_where_it_helps() -> None:
    X, y = table_of("two", 600)
    bought = forest_of("two", epsilon=1.0, delta=1e-6).fit(X, y)
    assert bought.privacy_.delta == 0  # tables: Laplace noise is far smaller, and it was not known that they would do
    assert forest_of("two", epsilon=1.0, delta=1e-6, method="boosting").fit(X, y).privacy_.delta > 0
    assert forest_of("regression", epsilon=1.0, delta=1e-6).plan().loss.delta > 0


def test_steps_do_not_depend_on_which_columns_are_drawn() -> None:
    """One number among many categories, of which a few are measured: whether it is drawn must not show in the plan."""
    columns: list[dict[str, Any]] = [{"name": "x", "kind": "numeric", "lower": 0, "upper": 1}]
    columns += [{"name": f"c{i}", "kind": "categorical", "values": list("pqrst")} for i in range(13)]
    columns += [TARGETS["two"]]
    schema = vw.Schema.from_dict({"name": "s", "task": "classification", "target": "target", "columns": columns})
    plans = [
        vw.PrivateForestClassifier(schema, epsilon=1.0, n_rows=200, method="tables", random_state=seed).plan()
        for seed in range(8)
    ]
    assert 0 < recipes.choose(Encoding(schema, "grid").columns, 2, 200, Loss.pure(Fraction(1)), "tables").n_columns < 13
    assert {tuple((step.name, step.sensitivity) for step in plan.steps) for plan in plans} == {
        (("histograms of numeric columns", 1), ("class counts of tables", plans[0].steps[-1].sensitivity))
    }


def test_shrinking_keeps_signal_and_drops_noise() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 3.0, (400, 1))
    assert np.abs(shrunken_steps(noise, 9.0)).max() < 1.0
    signal = np.where(np.arange(400) < 200, 50.0, -50.0)[:, None]
    assert np.abs(shrunken_steps(signal + noise, 9.0) - signal).mean() < 3
    for basis, part in (boosting._haar(13), boosting._walsh(3)):
        assert np.allclose(basis @ basis.T, np.eye(len(basis)))
        sums = rng.normal(size=(len(basis), 2))
        assert np.allclose(shrunken_steps(sums, 0.0, basis, part), sums)
    assert np.allclose(shrunken_steps(noise, 0.0), noise)


def test_evidence_without_noise_is_the_log_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    table = CellTable((Axis.of_values(2, COIN),))
    counts = np.array([[30.0, 10.0], [10.0, 20.0], [20.0, 10.0]])
    monkeypatch.setattr(counted_tables, "SAMPLED", 0.0)
    learned = evidence([table], [counts], 0.0)
    assert np.allclose(learned.start, np.log(np.array([0.6, 0.4])))
    assert np.allclose(learned.values[0], np.log(counts / counts.sum(axis=0) * 3))


def test_cells_of_few_rows_are_not_taken_at_their_word_without_noise() -> None:
    """A full table whose cells hold a row or none must not predict from single rows what the others say of it."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, (500, 4)).astype(str)
    y = np.where(X.astype(int)[:, :2].sum(axis=1) > X.astype(int)[:, 2:].sum(axis=1), "left", "right")
    columns: list[dict[str, Any]] = [
        {"name": f"x{i}", "kind": "categorical", "values": list("01234")} for i in range(4)
    ]
    columns.append({"name": "y", "kind": "categorical", "values": ["left", "right"]})
    schema = vw.Schema.from_dict({"name": "scale", "task": "classification", "target": "y", "columns": columns})
    forest = vw.PrivateForestClassifier(schema, epsilon=8.0, n_rows=400, method="tables", random_state=0)
    with seeded_for_tests(0):
        assert forest.fit(X[:400], y[:400]).score(X[400:], y[400:]) > 0.85


# -- 5. what it learns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "method"), METHODS)
@pytest.mark.parametrize("bought", [False, True])
def test_it_learns(task: str, method: str, bought: bool) -> None:
    X, y = table_of(task, 6000)
    with seeded_for_tests(2):
        forest = forest_of(task, method=method, epsilon=3.0, n_rows=None if bought else 6000).fit(X[:5000], y[:5000])
    score = forest.score(X[5000:], y[5000:])
    assert score > {"two": 0.8, "three": 0.65, "regression": 0.6}[task]
    if bought:
        assert abs(forest.plan_.layout.rows_planned - 5000) < 500


@pytest.mark.parametrize("name", ["car", "iris", "balance_scale"])
def test_embedded_data_sets(name: str) -> None:
    data = getattr(vw.datasets, name)()
    with seeded_for_tests(3):
        forest = vw.PrivateForestClassifier(data.schema, epsilon=5.0, random_state=0).fit(data.X, data.y)
    assert forest.score(data.X, data.y) > max(np.unique(data.y, return_counts=True)[1]) / len(data.y)
    chances = forest.predict_proba(data.X)
    assert np.allclose(chances.sum(axis=1), 1)
    assert (chances >= 0).all()


@pytest.mark.parametrize(("task", "method"), METHODS)
def test_clones_files_and_pickles_predict_alike(task: str, method: str, tmp_path: Path) -> None:
    X, y = table_of(task, 500)
    forest = forest_of(task, method=method, epsilon=2.0)
    twin = clone(forest)
    assert twin.get_params() == forest.get_params()
    forest.fit(X, y)
    vw.save(forest, tmp_path / "model")
    for other in (vw.load(tmp_path / "model"), pickle.loads(pickle.dumps(forest))):
        assert (other.predict(X) == forest.predict(X)).all()
        assert json.dumps(other.explain().to_dict()) == json.dumps(forest.explain().to_dict())
        assert other.plan_.to_dict() == forest.plan_.to_dict()


def test_a_file_whose_values_do_not_fit_its_trees_is_refused() -> None:
    X, y = table_of("two", 300)
    forest = forest_of("two", method="tables", n_rows=300).fit(X, y)
    arrays = forest._model_arrays()
    for name, wrong in (
        ("leaf_values", arrays["leaf_values"][:-1]), ("leaf_errors", arrays["leaf_errors"][:, :1]),
        ("start", arrays["start"].astype(np.float32)), ("leaf_values", np.zeros((len(arrays["leaf_values"]), 7))),
        ("start", arrays["start"] * np.nan), ("leaf_values", arrays["leaf_values"] + np.inf),
        ("leaf_values", arrays["leaf_values"] + 1e308), ("leaf_errors", arrays["leaf_errors"] * np.nan),
    ):  # fmt: skip
        with pytest.raises(vw.VeilwoodError):
            clone(forest).fit(X, y)._restore({**arrays, name: wrong})


# -- 6. explanations --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "method"), METHODS)
def test_main_effects_are_partial_dependences(task: str, method: str) -> None:
    """A main effect is the mean score over an even grid of the other columns, less its own mean."""
    X, y = table_of(task, 3000)
    forest = forest_of(task, method=method, epsilon=10.0, n_rows=3000).fit(X, y)
    encoding = Encoding(forest.schema_, "grid")
    effects = forest.explain()
    names = [column.name for column in encoding.columns]
    firsts = []  # the first code of each group of each column, found here from the trees alone
    for feature, column in enumerate(encoding.columns):
        cuts = forest.forest_.cut[forest.forest_.feature == feature]
        firsts.append(np.unique([0, *cuts[cuts >= 0]]) if column.ordered else np.arange(column.n_codes))
    grid = np.stack(np.meshgrid(*firsts, indexing="ij"), axis=-1).reshape(-1, 3).astype(np.uint16)
    leaves = route(forest.forest_, grid)
    scores = forest.leaf_values_[leaves].sum(axis=1)
    variances = (forest.leaf_errors_[leaves] ** 2).sum(axis=1)
    if task == "three":
        scores = scores - scores.mean(axis=1, keepdims=True)
    elif task == "regression":
        scores, variances = scores * 20, variances * 400
    elif scores.shape[1] == 2:
        scores, variances = scores[:, 1:] - scores[:, :1], variances.sum(axis=1, keepdims=True)
    assert effects.main
    for main in effects.main:
        feature = names.index(main.column)
        dependence = np.stack([scores[grid[:, feature] == code].mean(axis=0) for code in firsts[feature]])
        assert np.allclose(main.effect, dependence - dependence.mean(axis=0), atol=1e-8)
        assert main.effect.shape == (len(main.groups), len(effects.outputs)) == main.error.shape
        assert (main.error >= 0).all()
        assert main.error.max() <= 2 * np.sqrt(variances.max()) + 1e-9
        assert main.column in str(effects)
    by_name = {main.column: main for main in effects.main}
    assert by_name["ward"].groups == ("A", "B", "C", "missing")
    if "age" in by_name:
        assert by_name["age"].groups[0].startswith("[0, ")
        assert by_name["age"].groups[-1] == "missing"
        assert by_name["age"].groups[-2].endswith(", 100]")
    assert json.loads(json.dumps(effects.to_dict()))["unit"] == effects.unit


def test_errors_are_those_of_the_noise() -> None:
    """Values that are pure noise of the stated errors give effects of the stated errors."""
    schema = schema_of("two")
    encoding = Encoding(schema, "grid")
    rng = np.random.default_rng(0)
    tables = [
        CellTable((Axis.of_cuts(0, encoding.columns[0], [50, 100]), Axis.of_values(1, encoding.columns[1]))),
        CellTable((Axis.of_cuts(0, encoding.columns[0], [20]),)),
    ]
    forest, _ = grow_tables(tables)
    errors = rng.uniform(0.5, 2, (forest.n_leaves, 1))
    drawn = [effects_of(forest, rng.normal(size=errors.shape) * errors, errors, encoding) for _ in range(250)]
    for name in ("age", "ward"):
        mains = [next(main for main in effects.main if main.column == name) for effects in drawn]
        measured = np.std([main.effect for main in mains], axis=0)
        assert np.allclose(measured, mains[0].error, rtol=0.25)
    strengths = np.array([effects.interactions[0].strength for effects in drawn])
    assert np.sqrt((strengths**2).mean()) == pytest.approx(drawn[0].interactions[0].noise, rel=0.1)


def test_an_interaction_is_found() -> None:
    rng = np.random.default_rng(0)
    X = rng.random((8000, 6))
    y = np.where((X[:, 0] > 0.5) ^ (X[:, 1] > 0.5), "yes", "no")
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=6)
    with seeded_for_tests(4):
        forest = vw.PrivateForestClassifier(schema, epsilon=20.0, n_rows=8000, random_state=0).fit(X, y)
    best = forest.explain().interactions[0]
    assert set(best.columns) == {"x0", "x1"}
    assert best.strength > 3 * best.noise


def test_plots_show_what_is_explained() -> None:
    X, y = table_of("two", 3000)
    forest = forest_of("two", epsilon=5.0, n_rows=3000).fit(X, y)
    effects = forest.explain()
    figure = plot_effects(effects)
    assert [axes.get_title() for axes in figure.axes] == [main.column for main in effects.main]
    drawn = plot_calibration(y == "yes", forest.predict_proba(X)[:, 1]).axes[0]
    assert drawn.get_xlabel() == "predicted probability"
    with pytest.raises(ValueError, match="nothing"):
        plot_effects(
            effects_of(grow_tables([CellTable(())])[0], np.zeros((1, 1)), np.zeros((1, 1)), forest._encoding())
        )


def test_gradients_point_to_the_target() -> None:
    scores = np.zeros((2, 1))
    assert gradients(scores, np.array([0, 1], np.int32), 2, 1.0).ravel().tolist() == [-0.5, 0.5]
    assert gradients(np.full((2, 1), 0.5), np.array([0, TARGET_LEVELS], np.int32), 0, 0.25).ravel().tolist() == [-1, 1]
    three = gradients(np.zeros((1, 3)), np.array([2], np.int32), 3, 1.0)
    assert np.allclose(three, [[-1 / 3, -1 / 3, 2 / 3]])
    assert GRADIENT_UNITS == 4096
    assert recipes.Recipe("boosting", 10, 4, 0, 8, 2, 3, 3).rounds(4) == 11


def wide_rows(n: int, rng: np.random.Generator) -> tuple[vw.Schema, Any, Any]:
    """Twenty columns of chance, and one that is the class."""
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=20)
    X = rng.random((n, 20))
    return schema, X, np.where(X[:, 7] > 0.5, "yes", "no")


def test_a_wide_table_chooses_its_columns_privately() -> None:
    schema, X, y = wide_rows(4000, np.random.default_rng(0))
    forest = vw.PrivateForestClassifier(schema, epsilon=0.05, n_rows=len(X), random_state=0)
    plan = forest.plan()
    assert "chosen privately" in plan.notes["choice"]
    names = [step.name for step in plan.steps]
    assert names == ["column 1", "histograms of numeric columns", "class counts of tables"]
    assert sum(step.loss.epsilon or 0 for step in plan.steps) == Fraction(1, 20)
    with seeded_for_tests(0):  # cuts and counts are that noisy
        forest.fit(X, y)
    assert forest.explain().main[0].column == schema.feature_names[7]
    assert forest.score(X, y) > 0.8
    assert "which columns" in forest.privacy_.released


def test_columns_of_many_values_are_not_put_together_when_chosen() -> None:
    columns = [EncodedColumn(f"x{i}", False, 40_000, None) for i in range(20)]
    recipe = choose(columns, 2, 600_000, Loss.pure(Fraction(1)), "tables")
    assert not recipe.selects or recipe.group == 1
    narrow = [EncodedColumn(f"x{i}", False, 2, None) for i in range(19)]
    mixed = choose([*columns[:2], *narrow], 2, 60_000, Loss.pure(Fraction(1, 100)), "tables")
    assert mixed.selects
    assert mixed.group == 1


@pytest.mark.parametrize("n_classes", [2, 3])
def test_one_row_moves_the_scores_of_columns_by_at_most_the_planned_range(n_classes: int) -> None:
    """The range of what one row adds to the scores, over all columns, by enumeration."""
    rng = np.random.default_rng(2)
    recipe = Recipe("tables", 1000, 2, 2, 4, selects=True)
    axes = draw_axes(COLUMNS, recipe, rng)
    neighbours = Neighbours()
    choices = plan_tables(axes, recipe, n_classes, Loss.pure(Fraction(1)), neighbours).choices
    assert {step.sensitivity for step in choices} == {1}
    assert sum(step.loss.epsilon or 0 for step in choices) == Fraction(1, 4)
    codes = np.column_stack([rng.integers(0, column.n_codes, 40) for column in COLUMNS]).astype(np.uint16)
    target = rng.integers(0, n_classes, 40).astype(np.int32)
    forest, _ = grow_tables([CellTable((axis,)) for axis in axes])

    def scores(kept: list[int]) -> NDArray[np.int64]:
        batch = Batch(codes[kept], target[kept], 0, 0)
        counts = leaf_totals(forest, [batch], n_classes=n_classes, fast=False)
        return np.add.reduceat(counts.max(axis=1), forest.tree_leaves[:-1])

    everyone = list(range(40))
    moved = [scores(everyone) - scores([row for row in everyone if row != left_out]) for left_out in everyone]
    assert {int(change) for change in np.concatenate(moved)} == {0, 1}


class HalfNoiseChoices(vw.PrivateForestClassifier):  # type: ignore[misc]
    """Chooses columns with twice the epsilon that the plan says."""

    def _measure(self, design: Any, source: Any, door: Any) -> Any:
        real = door.select
        door.select = lambda step, scores, free: real(step, 2 * scores, free)
        return super()._measure(design, source, door)


@pytest.mark.parametrize("kind", [vw.PrivateForestClassifier, HalfNoiseChoices])
def test_the_choice_of_a_column_follows_its_law(kind: Any) -> None:
    """Ten rows, one column that tells them apart: how often it is chosen is what permute-and-flip allows, no more."""
    n, runs = 40, 300
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=16)
    y = np.array(["no", "yes"] * (n // 2))
    X = np.full((n, 16), 0.2)
    X[:, 3] = np.where(y == "yes", 0.9, 0.1)  # scores 40, the others 20
    chosen = 0
    for _ in range(runs):
        forest = kind(schema, epsilon=0.4, n_rows=200, method="tables", random_state=0)
        assert [step.name for step in forest.plan().steps] == ["column 1", "class counts of tables"]
        forest.fit(X, y)
        chosen += 3 in forest.forest_.feature
    # epsilon 0.1 and 15 rivals 20 below: permute-and-flip chooses the best with this probability.
    law = PermuteAndFlip(Fraction(1, 10), 1).law(np.array([40, *[20] * 15]))[0]
    far = abs(chosen / runs - law) / np.sqrt(law * (1 - law) / runs)
    assert far < 6 if kind is vw.PrivateForestClassifier else far > 6
