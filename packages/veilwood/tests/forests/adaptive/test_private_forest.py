# SPDX-License-Identifier: Apache-2.0
"""PrivateForest: what it learns, from odd tables too, and how it is saved and explained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import veilwood as vw
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.errors import ParameterError
from veilwood.forests.adaptive import loop
from veilwood.forests.adaptive.loop import describe, plan_first_step
from veilwood.privacy.adaptive_budget import AdaptiveBudget
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.loss import requested_loss
from veilwood.privacy.neighbours import Neighbours, resolve_unit
from veilwood.privacy.steps import Step
from veilwood_testing.clinic import COLUMNS, TARGETS, forest_of, schema_of, table_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


@pytest.mark.parametrize(
    ("task", "epsilon", "least"), [("two", 2.0, 0.85), ("three", 2.0, 0.75), ("regression", 1.0, 0.7)]
)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_it_learns(task: str, epsilon: float, least: float, delta: float) -> None:
    X, y = table_of(task, 5000)
    with seeded_for_tests(1):
        forest = forest_of(task, epsilon=epsilon, delta=delta).fit(X, y)
    assert forest.score(*table_of(task, 2000, seed=1)) > least


@pytest.mark.parametrize("task", ["two", "regression"])
@pytest.mark.parametrize("epsilon", [1.0, 30.0])  # with 30, of classes, fine cells too
def test_a_saved_forest_predicts_and_explains_the_same(task: str, epsilon: float, tmp_path: Path) -> None:
    X, y = table_of(task, 800)
    forest = forest_of(task, epsilon=epsilon).fit(X, y)
    vw.save(forest, tmp_path / "forest.veilwood")
    loaded = vw.load(tmp_path / "forest.veilwood")
    assert (loaded.predict(X) == forest.predict(X)).all()
    assert loaded.explain().to_dict() == forest.explain().to_dict()


def test_bounds_a_thousand_times_too_wide_do_no_harm() -> None:
    rng = np.random.default_rng(0)
    x, noise = rng.lognormal(0, 1, 8000), rng.normal(0, 0.3, 8000)
    y = np.where(np.log(x) + noise > 0, "yes", "no")
    schema = vw.Schema.numeric((0, 1000.0), classes=["no", "yes"], n_features=1)
    with seeded_for_tests(1):
        forest = vw.PrivateForestClassifier(schema, epsilon=1.0, random_state=0).fit(x[:, None], y)
    assert forest.score(x[:, None], y) > 0.85


def test_many_categories_and_missing_ones() -> None:
    rng = np.random.default_rng(0)
    values = [f"v{i}" for i in range(1000)]
    place = rng.integers(0, 1000, 20_000)
    x = np.array(values, dtype=object)[place]
    x[rng.random(20_000) < 0.2] = None
    y = np.where(pd.isna(x), "yes", "no")
    schema = vw.Schema.from_dict({
        "name": "many", "task": "classification", "target": "y", "columns": [
            {"name": "x", "kind": "categorical", "values": values, "nullable": True}, TARGETS["two"] | {"name": "y"},
        ]})  # fmt: skip
    with seeded_for_tests(1):
        forest = vw.PrivateForestClassifier(schema, epsilon=1.0, random_state=0).fit(pd.DataFrame({"x": x}), y)
    missing, there = forest.predict_proba(pd.DataFrame({"x": [None, "v1"]}))
    assert missing[1] > 0.6
    assert there[1] < 0.4


# -- what is learned -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["two", "three", "regression"])
def test_files_in_batches_equal_a_table_in_memory(task: str, tmp_path: Path) -> None:
    X, y = table_of(task, 900)
    whole = X.assign(target=y)
    for part in range(3):
        whole[part * 300 : (part + 1) * 300].to_parquet(tmp_path / f"{part}.parquet", index=False)
    fits = []
    for given_rows in (whole, str(tmp_path)):
        with seeded_for_tests(4):
            fits.append(forest_of(task, epsilon=2.0).fit(given_rows))
    assert np.array_equal(fits[0].leaf_values_, fits[1].leaf_values_)
    assert fits[0].plan_.steps == fits[1].plan_.steps


def test_fine_cells_are_chosen_by_rows_that_were_held_back() -> None:
    """A parity of three columns that no pair shows: only fine cells learn it, and the rows held back see that."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (4000, 6)).astype(str)
    y = np.array(["no", "yes"])[(X[:, :3] == "1").sum(axis=1) % 2]
    columns = [{"name": f"x{i}", "kind": "categorical", "values": ["0", "1"]} for i in range(6)]
    schema = vw.Schema.from_dict({
        "name": "parity", "task": "classification", "target": "y",
        "columns": [*columns, {"name": "y", "kind": "categorical", "values": ["no", "yes"]}],
    })  # fmt: skip
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(6)])
    with seeded_for_tests(1):
        forest = vw.PrivateForestClassifier(schema, epsilon=6.0, random_state=0).fit(frame, y)
    names = [step.name for step in forest.plan_.steps]
    assert names[-3:] == ["classes by column", "fine cells", "weight of fine cells"]
    assert forest.model_.cell_weight > 0
    assert forest.score(frame, y) > 0.95


@pytest.mark.parametrize("task", ["two", "three", "regression"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("epsilon", [0.1, 20.0, float("inf")])
def test_tables_of_a_few_rows(task: str, n: int, epsilon: float) -> None:
    X, y = table_of(task, n)
    forest = forest_of(task, epsilon=epsilon).fit(X, y)
    predicted = forest.predict(X)
    if task == "regression":
        assert ((predicted >= -5) & (predicted <= 15)).all()
    else:
        assert np.allclose(forest.predict_proba(X).sum(axis=1), 1)
    assert forest.explain() is not None


def test_one_class_in_the_data_is_predicted_and_a_constant_target_too() -> None:
    X, _ = table_of("two", 2000)
    with seeded_for_tests(2):
        forest = forest_of("two", epsilon=1.0).fit(X, np.full(2000, "yes"))
        number = forest_of("regression", epsilon=1.0).fit(X, np.full(2000, 3.0))
    assert (forest.predict(X) == "yes").all()
    assert np.abs(number.predict(X) - 3).max() < 0.5


def test_effects_show_what_columns_do_and_pairs_that_act_together() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (20_000, 4))
    y = np.where((X[:, 0] * X[:, 1] > 0) ^ (rng.random(20_000) < 0.05), "yes", "no")
    schema = vw.Schema.numeric((-1, 1), classes=["no", "yes"], n_features=4)
    with seeded_for_tests(1):
        result = vw.PrivateForestClassifier(schema, epsilon=2.0, random_state=0).fit(X, y).explain()
    names = schema.feature_names
    assert set(result.interactions[0].columns) == {names[0], names[1]}
    assert result.interactions[0].strength > 2 * result.interactions[0].noise
    table, numbers = table_of("regression", 20_000)
    with seeded_for_tests(1):
        main = {one.column: one for one in forest_of("regression", epsilon=2.0).fit(table, numbers).explain().main}
    ward = main["ward"]
    slope = ward.effect[ward.groups.index("C"), 0] - ward.effect[ward.groups.index("A"), 0]
    assert slope == pytest.approx(8, abs=1.5)  # two steps of 4
    assert main["ward"].strength > main.get("debt", main["ward"]).strength or "debt" not in main


@pytest.mark.parametrize(("n_columns", "together", "epsilon"), [(6, 4, 1.0), (6, 5, 4.0), (10, 3, 1.0), (10, 4, 4.0)])
def test_a_parity_of_several_columns_is_found(n_columns: int, together: int, epsilon: float) -> None:
    """No smaller set of these columns shows anything: only sets of as many columns as cells allow do."""
    rng = np.random.default_rng(together)
    bits = rng.integers(2, size=(40_000, n_columns))
    y = (bits[:, -together:].sum(axis=1) % 2) ^ (rng.random(40_000) < 0.05)
    names = [f"b{j}" for j in range(n_columns)]
    schema = vw.Schema.from_dict({
        "name": "parity", "task": "classification", "target": "y", "columns": [
            *({"name": name, "kind": "categorical", "values": [0, 1]} for name in (*names, "y")),
        ]})  # fmt: skip
    X = pd.DataFrame(bits, columns=names)
    with seeded_for_tests(1):
        forest = vw.PrivateForestClassifier(schema, epsilon=epsilon, random_state=0).fit(X[:30_000], y[:30_000])
    assert forest.score(X[30_000:], y[30_000:]) > 0.93  # 0.95 is the best possible


@pytest.mark.slow
def test_three_columns_of_which_no_pair_shows_anything_are_found() -> None:
    """Before, threes were tried only where a pair had been chosen: 0.50 in two fits of four, now 0.89 to 0.93."""
    rng = np.random.default_rng(5)
    X = rng.random((12_000, 8))
    y = (((X[:, 1] > 0.5) ^ (X[:, 4] > 0.5) ^ (X[:, 6] > 0.5)) ^ (rng.random(12_000) < 0.05)).astype(int)
    schema = vw.Schema.numeric((0, 1), classes=[0, 1], n_features=8)
    with seeded_for_tests(1):
        found = vw.PrivateForestClassifier(schema, epsilon=4, random_state=0).fit(X[:9_000], y[:9_000])
    assert found.score(X[9_000:], y[9_000:]) > 0.8


def test_far_more_rows_declared_than_there_are_do_no_harm() -> None:
    """Before, rounds were planned for the declared ones: 0.69 to 0.94 in 12 fits, now 0.93 to 0.99."""
    rng = np.random.default_rng(0)
    X = rng.random((600, 4))
    y = np.array(["a", "b", "c"])[(X[:, 0] * 3).astype(int)]
    schema = vw.Schema.numeric((0, 1), classes=["a", "b", "c"], n_features=4)
    with seeded_for_tests(3):
        scores = [
            vw.PrivateForestClassifier(schema, epsilon=2, n_rows=60_000, random_state=seed).fit(X, y).score(X, y)
            for seed in range(3)
        ]
    assert np.mean(scores) > 0.9


def test_words_and_first_steps_need_no_data() -> None:
    purse = AdaptiveBudget(requested_loss(1, 0), Neighbours("add-remove", resolve_unit("row")))
    assert describe(COLUMNS, 2, 10, purse)
    assert plan_first_step(AdaptiveBudget(requested_loss(1, 0), Neighbours()), 0, 10**6).kind == "target_sums"


@pytest.mark.parametrize(
    ("up", "down", "declared", "least", "most"),
    [
        pytest.param(27.5, -12.5, 15, 0.5, 0.65, id="two standard errors apart, which says little"),
        pytest.param(900.0, 100.0, 1000, 0.85, 0.9, id="far more than noise"),
        pytest.param(180.0, 20.0, 1, 0.8, 1.01, id="far more rows than were declared"),
    ],
)
def test_a_mean_that_is_mostly_noise_stays_near_the_middle(
    up: float, down: float, declared: int, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = table_of("regression", 15)

    def measure(self: AdaptiveBudget, step: Step, exact: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.array([up, down]) * TARGET_LEVELS  # the only step of so few rows

    monkeypatch.setattr(loop, "MIN_FOR_ROUND", np.inf)
    monkeypatch.setattr(AdaptiveBudget, "release_counts", measure)
    target = schema_of("regression").target
    assert target.lower is not None
    assert target.upper is not None
    forest = forest_of("regression", epsilon=0.1, n_rows=declared).fit(X, y)
    share = (forest.predict(X[:1])[0] - target.lower) / (target.upper - target.lower)
    assert least < share < most


def test_the_mean_of_few_rows_is_no_further_off_than_the_middle() -> None:
    """By 50 rows at epsilon 0.1; before the noisy number of rows was pooled: 0.56 and 0.25, seeded alike."""
    schema = vw.Schema.numeric((0, 1), target_bounds=(-1, 1), n_features=2)
    X = np.random.default_rng(0).random((50, 2))

    def off(mean: float) -> float:
        with seeded_for_tests(3):
            forests = [vw.PrivateForestRegressor(schema, epsilon=0.1, random_state=seed) for seed in range(60)]
            lines = [float(forest.fit(X, np.full(50, mean)).predict(X[:1])[0]) for forest in forests]
        return float(np.sqrt(np.mean((np.array(lines) - mean) ** 2)))

    assert off(-0.6) < 0.5
    assert off(0.1) < 0.2


@pytest.mark.parametrize("unit", [100_000, {"id": "patient", "at_most": 100_000}], ids=str)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_a_budget_too_small_for_exact_noise_is_refused_before_anything_is_spent(unit: object, delta: float) -> None:
    X, y = table_of("two", 200)
    ledger = vw.MemoryLedger(1, 0.001)
    forest = forest_of("two", epsilon=1e-6, delta=delta, privacy_unit=unit, ledger=ledger)
    with pytest.raises(ParameterError) as caught:
        forest.fit(X, y)
    assert caught.value.name == "epsilon"
    assert ledger.entries() == []


@pytest.mark.parametrize("task", TARGETS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_smallest_budget_that_is_not_refused_has_exact_noise(task: str, delta: float) -> None:
    X, y = table_of(task, 100)
    forest_of(task, epsilon=1e-6, delta=delta, privacy_unit=100).fit(X, y)
