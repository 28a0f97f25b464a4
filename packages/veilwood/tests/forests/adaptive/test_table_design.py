# SPDX-License-Identifier: Apache-2.0
"""Tables to count: group bounds from histograms, resolution from public facts, the common weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.arrays import Floats
from veilwood.data.encoding import Encoding
from veilwood.forests.adaptive import loop, table_design
from veilwood.forests.adaptive import table_design as weighing
from veilwood.forests.adaptive.contingency import BinnedColumn, bin_columns
from veilwood.forests.adaptive.row_backend import SCORE_UNITS, scores_to_probabilities
from veilwood.forests.adaptive.steps import MAX_GAIN, AdaptiveStep
from veilwood.forests.adaptive.table_design import (
    MAX_WEIGHT,
    SCORE_GROUPS,
    ColumnStrengths,
    GroupBounds,
    ShrunkenTable,
    TableDesign,
    TableDesigns,
    design_tables,
    estimate_weight,
    groups_per_column,
    small_sets,
    weight_fraction,
)
from veilwood.forests.adaptive.table_design import WEIGHT_FRACTIONS as SHARES
from veilwood.privacy.adaptive_budget import AdaptiveBudget, TableNoise
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Adjacency, Neighbours, Rows
from veilwood.privacy.steps import Step, StepName, counting_step, joint_step
from veilwood_audit.model_files import check_model

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]


def wide_table(n_rows: int, n_columns: int) -> tuple[vw.Schema, pd.DataFrame, pd.Series]:
    """Lognormal columns in bounds far too wide, the first with nulls; the class is whether all together are large."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.lognormal(size=(n_rows, n_columns)), columns=[f"x{i}" for i in range(n_columns)])
    y = pd.Series(np.where(np.log(X).sum(axis=1) > 0, "large", "small"), name="y")
    X.loc[::11, "x0"] = np.nan
    numbers = [{"name": name, "kind": "numeric", "lower": 0, "upper": 1000, "nullable": True} for name in X.columns]
    target = {"name": "y", "kind": "categorical", "values": ["large", "small"]}
    facts = {"name": "wide", "task": "classification", "target": "y", "columns": [*numbers, target]}
    return vw.Schema.from_dict(facts), X, y


def fitted(n_rows: int, n_columns: int, **params: Any) -> vw.PrivateForestClassifier:
    schema, X, y = wide_table(n_rows, n_columns)
    with seeded_for_tests(3):
        return vw.PrivateForestClassifier(schema, n_rows=n_rows, random_state=0, **params).fit(X, y)


def together(forest: Any) -> list[str]:
    return [step.name for step in forest.plan_.steps if step.name.endswith("rows by group")]


def test_they_are_taken_where_they_pay_and_the_plan_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = fitted(2000, 6, epsilon=0.5)
    assert together(forest) == ["histograms 1 to 6: rows by group"]
    holds = {check.question: check.holds for check in check_model(forest)}
    assert [question for question, held in holds.items() if not held] == ["Is it private?"]  # seeded for this test
    assert not together(fitted(2000, 6, epsilon=0.05))  # too poor
    by_rho = fitted(20_000, 20, epsilon=0.5, delta=1e-6)  # where each has its own noise, and all cells
    assert together(by_rho) == [f"histogram {number}: rows by group" for number in range(1, 21)]
    assert all(check.holds for check in check_model(by_rho) if check.question != "Is it private?")
    monkeypatch.setattr(loop, "release_strengths", lambda fit, state: None)  # so that tables come first
    assert together(fitted(2000, 2, epsilon=0.5))
    assert not together(fitted(2000, 1, epsilon=0.5))  # nothing to be together with


def test_groups_follow_the_rows_and_bounds_far_too_wide_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    _, X, y = wide_table(3000, 10)
    right = [(fitted(3000, 10, epsilon=0.5).predict(X) == y).mean()]
    monkeypatch.setattr(table_design, "HISTOGRAM_NEED", np.inf)
    right.append((fitted(3000, 10, epsilon=0.5).predict(X) == y).mean())
    assert right[0] > 0.75 > right[1] + 0.1


def test_rows_are_spread_by_counts_of_groups_and_inside_of_them_as_before() -> None:
    schema, _, _ = wide_table(10, 1)
    (column,) = bin_columns(Encoding(schema, "grid"))
    axis = column.default_groups(4)
    inside = axis.groups[: column.n_value_bins]
    counts = np.zeros(axis.size)
    counts[0], counts[1] = 900.0, 100.0
    assert not GroupBounds().has_histogram(column)
    bounds = GroupBounds().with_histogram(column, axis, counts, 1e-9, 1000.0)
    mass = bounds.bin_mass[0]
    held = np.bincount(inside, mass)
    assert held[:2].round() == pytest.approx([900, 100])
    assert held[2:].sum() < 1
    first = inside == 0
    assert mass[first] / held[0] == pytest.approx(column.prior[first] / column.prior[first].sum())
    assert bounds.has_histogram(column)


def test_each_row_is_once_in_each_histogram_and_missing_values_have_a_group() -> None:
    """At the door, where noise is added: what the step promises."""
    schema, X, y = wide_table(500, 3)
    seen: list[tuple[Step, Any]] = []
    real = Door.release_counts

    def kept(door: Door, step: Step, exact: Any) -> Any:
        seen.append((step, exact.copy()))
        return real(door, step, exact)

    with pytest.MonkeyPatch.context() as patch, seeded_for_tests(1):
        patch.setattr(Door, "release_counts", kept)
        vw.PrivateForestClassifier(schema, epsilon=2, n_rows=500).fit(X, y)
    ((step, exact),) = ((step, exact) for step, exact in seen if step.name == "histograms 1 to 3: rows by group")
    parts = np.split(exact.ravel(), np.cumsum(step.table_cells[:-1]))
    assert [part.sum() for part in parts] == [500] * 3
    assert sorted(part[-1] for part in parts) == [0, 0, X.x0.isna().sum()]


@pytest.mark.parametrize(
    "forged",
    [
        lambda step, near: counting_step(name_of(step), (54, 1), step.loss, near, l1=1, squared_l2=1),
        lambda step, near: joint_step(name_of(step), (*step.table_cells, *step.table_cells), 1, step.loss, near),
        lambda step, near: joint_step(name_of(step), (10,) * 6, 1, step.loss, near),
        lambda step, near: joint_step(AdaptiveStep.JOINT_HISTOGRAMS.at(7, 12), step.table_cells, 1, step.loss, near),
        lambda step, near: joint_step(
            StepName("round 7: rows by group", "joint_histograms", (7,)), step.table_cells, 1, step.loss, near
        ),
        lambda step, near: counting_step(
            AdaptiveStep.ROUND_HISTOGRAM.at(1, 99), (98,), step.loss, near, l1=1, squared_l2=1
        ),
        lambda step, near: counting_step(
            AdaptiveStep.ROUND_HISTOGRAM.at(1, -1), (98,), step.loss, near, l1=1, squared_l2=1
        ),
        lambda step, near: counting_step(
            AdaptiveStep.ROUND_HISTOGRAM.at(1, 0), (9**9,), step.loss, near, l1=1, squared_l2=1
        ),
    ],
)
def test_histograms_that_these_columns_cannot_have_are_noticed(forged: Any) -> None:
    """Six tables taken for one, more columns than there are, other groups, other numbers, other names."""
    refused_as_forged(fitted(2000, 6, epsilon=0.5), forged)


@pytest.mark.parametrize(
    "forged",
    [
        lambda step, near: counting_step(
            name_of(step), (9, 1), step.loss, near, l1=1, squared_l2=1
        ),  # the coarse groups
        lambda step, near: counting_step(name_of(step), (2 * step.shape[0], 1), step.loss, near, l1=1, squared_l2=1),
        lambda step, near: replace(step, name=AdaptiveStep.HISTOGRAM.at(30 + step.at[0])),
        lambda step, near: replace(
            step, name=step.name.replace("histogram ", "histogram 1")
        ),  # another number in words
    ],
)
def test_histograms_by_rho_that_these_columns_cannot_have_are_noticed(forged: Any) -> None:
    refused_as_forged(fitted(20_000, 20, epsilon=0.5, delta=1e-6), forged)


def name_of(step: Step) -> StepName:
    return StepName(step.name, step.kind, step.at)


def refused_as_forged(forest: Any, forged: Any) -> None:
    plan = forest.plan_
    steps = [forged(step, plan.neighbours) if step.name.endswith(": rows by group") else step for step in plan.steps]
    assert steps != list(plan.steps)
    forest.plan_ = replace(plan, steps=tuple(steps))
    assert "Do the parameters lead to this plan?" in {one.question for one in check_model(forest) if not one.holds}


def test_without_noise_numbers_have_histograms_of_all_cells() -> None:
    steps = [step for step in fitted(500, 3, epsilon=float("inf")).plan_.steps if step.name.endswith("rows by group")]
    assert [step.shape for step in steps] == [(81, 1)] * 3


def test_an_epsilon_that_leaves_no_noise_is_fitted() -> None:
    assert together(fitted(40, 2, epsilon=1e6))


NUMBERS = bin_columns(Encoding(vw.Schema.numeric((0, 1), classes=["a", "b"], n_features=20), "grid"))


CAR = bin_columns(Encoding(vw.datasets.car().schema, "grid"))


NOISES = [TableNoise(gaussian, jointly) for gaussian, jointly in ((False, True), (False, False), (True, False))]


@pytest.mark.parametrize("columns", [NUMBERS, CAR], ids=["numbers", "car"])
@pytest.mark.parametrize("noise", NOISES, ids=["together", "alone", "gaussian"])
def test_more_rows_and_more_budget_are_worth_more(columns: tuple[object, ...], noise: TableNoise) -> None:
    by_rows = [TableDesigns(columns, 2, n, noise).best_design(1.0, 0.8) for n in (10, 100, 1000, 10_000, 100_000)]  # type: ignore[arg-type]
    by_price = [TableDesigns(columns, 2, 2000, noise).best_design(e, 0.8 * e) for e in (0.01, 0.1, 1.0, 10.0)]  # type: ignore[arg-type]
    for shapes in (by_rows, by_price):
        assert all(one.gain <= other.gain + 1e-9 for one, other in pairwise(shapes))
        assert all(one.n_columns <= other.n_columns for one, other in pairwise(shapes))


def test_no_more_columns_are_counted_than_there_are() -> None:
    for noise in NOISES:
        for n_classes in (2, 10, 100):
            assert 1 <= TableDesigns(CAR, n_classes, 10**6, noise).best_design(10.0, 8.0).n_columns <= len(CAR)


def test_few_strong_columns_get_few_tables_and_many_equal_ones_all() -> None:
    """Of 20 columns: one that explains half and nothing else, two, or all alike; the mean tells them apart."""
    shapes = [
        design_tables(
            NUMBERS, 2, 5_000.0, AdaptiveBudget(Loss.pure(Fraction(1)), Neighbours()), 1.0, ColumnStrengths(0.5, mean)
        )
        for mean in (0.5 / 20, 1.0 / 20, 0.5)
    ]
    measured, parts = [shape.n_columns for shape, _ in shapes], [part for _, part in shapes]
    assert measured[0] <= measured[1] < measured[2] == 20
    assert parts[0] <= parts[1] < parts[2]


@pytest.mark.parametrize("mean", [-1.0, 0.0, 0.1, 0.4, 9.0])
@pytest.mark.parametrize("best", [-1.0, 0.0, 0.4, 9.0])
def test_whatever_noise_says_effects_are_finite_and_fall(best: float, mean: float) -> None:
    effects = ColumnStrengths(best, mean).expected_effects(20)
    assert effects.shape == (20,)
    assert np.isfinite(effects).all()
    assert effects.min() >= 0
    assert (np.diff(effects) <= 0).all()


def test_columns_of_numbers_are_counted_in_pairs_where_cells_have_enough_rows(tmp_path: Path) -> None:
    """From three classes on; the plan names both columns, and a file of such a model is checked and rebuilt."""
    rng = np.random.default_rng(0)
    hidden, label = rng.standard_normal((40_000, 2)), rng.integers(3, size=40_000)
    hidden[:, 0] += label - 1
    X = hidden @ rng.standard_normal((2, 7)) + 0.3 * rng.standard_normal((40_000, 7))
    schema = vw.Schema.numeric((-8, 8), classes=[0, 1, 2], n_features=7)
    with seeded_for_tests(1):
        forests = [
            vw.PrivateForestClassifier(schema, epsilon=epsilon, random_state=0).fit(X, label) for epsilon in (4.0, 0.05)
        ]
    tables, few = (forest.plan_.choices["tables"] for forest in forests)
    assert sorted(map(len, tables)) == [1, 2, 2, 2]
    assert sorted(column for table in tables for column in table) == list(range(7))
    assert set(map(len, few)) == {1}
    vw.save(forests[0], tmp_path / "forest.veilwood")
    loaded = vw.load(tmp_path / "forest.veilwood")
    assert {check.question for check in check_model(loaded) if not check.holds} <= {"Is it private?"}  # seeded
    assert np.array_equal(loaded.predict(X[:99]), forests[0].predict(X[:99]))


def test_groups_in_a_set_have_the_median_as_a_border() -> None:
    for bins in range(3, 17):
        assert groups_per_column(bins, 1) == bins
        assert groups_per_column(bins, 2) % 2 == groups_per_column(bins, 3) % 2 == 0
        assert groups_per_column(bins, 2) ** 2 <= 64
        assert groups_per_column(bins, 3) ** 3 <= 64


@pytest.mark.parametrize("max_cells", [8, 20, 64])
def test_small_sets_keep_their_cells_and_six_binary_columns_are_one_set(max_cells: int) -> None:
    kinds = ["ab", "ab", "ab", "ab", "ab", "ab", "abcdefghijk"]
    columns: list[dict[str, Any]] = [
        {"name": f"c{j}", "kind": "categorical", "values": list(values)} for j, values in enumerate(kinds)
    ]
    columns += [{"name": "x", "kind": "numeric", "lower": 0, "upper": 1, "nullable": True}]
    target = {"name": "y", "kind": "categorical", "values": ["a", "b"]}
    facts = {"name": "s", "task": "classification", "target": "y", "columns": [*columns, target]}
    binned = bin_columns(Encoding(vw.Schema.from_dict(facts), "grid"))
    found = small_sets(binned, max_cells, 60, np.random.default_rng(0))
    for chosen in found:
        n_groups = groups_per_column(0, len(chosen))
        axes = [binned[j].equal_mass_groups(binned[j].prior, n_groups) for j in chosen]
        assert np.prod([axis.size for axis in axes]) <= max_cells
        assert len(chosen) >= 3
    assert len(set(found)) == len(found) > 5
    assert max(map(len, found)) == {8: 3, 20: 4, 64: 6}[max_cells]
    assert small_sets(binned[:2], 64, 60, np.random.default_rng(0)) == []


def test_one_column_that_tells_all_or_none_that_tells_anything_need_no_tables() -> None:
    assert ColumnStrengths(0.9, 0.2).rounds_threshold(2) < ColumnStrengths(0.9, 0.2).rounds_threshold(3) < np.inf
    assert ColumnStrengths(0.9, 0.2).rounds_threshold(2) < ColumnStrengths(0.0, 0.0).rounds_threshold(2) < np.inf
    assert ColumnStrengths(0.4, 0.2).rounds_threshold(2) == np.inf
    assert ColumnStrengths(0.0, best_error=0.1).rounds_threshold(2) == np.inf  # it may be more than nothing
    assert ColumnStrengths(-0.2, best_error=0.1).rounds_threshold(2) < np.inf


def test_where_one_of_many_columns_stands_out_fewer_are_counted_in_finer_groups() -> None:
    purse = AdaptiveBudget(Loss.pure(Fraction(1)), Neighbours())

    def shape(n_rows: float, best: float, columns: Sequence[BinnedColumn] = NUMBERS) -> TableDesign:
        return design_tables(columns, 2, n_rows, purse, purse.remaining, ColumnStrengths(best))[0]

    assert shape(1000.0, 0.5).n_columns < 20 == shape(1000.0, 0.3).n_columns
    assert shape(1000.0, 0.5).bins >= SCORE_GROUPS > shape(1000.0, 0.3).bins
    assert shape(300.0, 0.5) == shape(300.0, 0.3)  # too poor
    assert shape(500.0, 0.5, NUMBERS[:8]) == shape(500.0, 0.3, NUMBERS[:8])  # too few to choose from
    assert shape(500.0, 0.5, NUMBERS[:9]) != shape(500.0, 0.3, NUMBERS[:9])


def test_columns_are_chosen_where_few_stand_out_or_rows_are_few() -> None:
    """Together all columns have little noise, and a choice costs; one by one, or by rho, all of them are dear."""
    purse = AdaptiveBudget(Loss.pure(Fraction(1)), Neighbours())

    def counted(n_rows: float, purse: AdaptiveBudget = purse, strengths: ColumnStrengths | None = None) -> int:
        return design_tables(NUMBERS, 2, n_rows, purse, purse.remaining, strengths)[0].n_columns

    assert counted(200.0) == counted(2000.0) == 20
    assert counted(40.0) < 20
    assert counted(2000.0, strengths=ColumnStrengths(0.5, 0.4)) == 20
    assert counted(2000.0, strengths=ColumnStrengths(0.5, 0.03)) < 5
    assert counted(2000.0, strengths=ColumnStrengths(0.3)) == 20  # of the mean nothing is known
    few = design_tables(NUMBERS[:8], 2, 2000.0, purse, purse.remaining, ColumnStrengths(0.5, 0.07))[0].n_columns
    assert few == 8  # little would be saved
    assert counted(200.0, AdaptiveBudget(requested_loss(1, 1e-6), Neighbours())) < 20


def tables_of(n_classes: int, n_tables: int, weight: float) -> tuple[Floats, list[ShrunkenTable]]:
    """Start and tables that are right if they count fully: independent columns, here counted with a weight."""
    rng = np.random.default_rng(n_classes)
    shares = np.linspace(1, 2, n_classes) / np.linspace(1, 2, n_classes).sum()
    logs = np.log(shares)
    tables = []
    for _ in range(n_tables):
        counts = shares * rng.dirichlet(np.full(4, 3.0), n_classes).T
        values = weight * np.log(counts / counts.sum(axis=1, keepdims=True) / shares)
        tables.append(ShrunkenTable(counts, values[:, 1:] - values[:, :1] if n_classes == 2 else values))
    return (logs[1:] - logs[:1] if n_classes == 2 else logs), tables


def gain_of(start: Floats, tables: list[ShrunkenTable], n_rows: int) -> float:
    """The gain of rows whose columns are independent inside a class, each cut as it is asked for."""
    rng = np.random.default_rng(1)
    shares = scores_to_probabilities(start[None])[0]
    target = rng.choice(len(shares), n_rows, p=shares)
    scores = np.zeros((n_rows, len(start)))
    for table in tables:
        by_class = table.counts / table.counts.sum(axis=0)
        cell = np.array([rng.choice(len(by_class), p=by_class[:, one]) for one in target])
        scores += table.scores[cell]
    values = np.column_stack([np.zeros(n_rows), scores]) if len(start) == 1 else scores
    predicted = scores_to_probabilities(start + scores)
    gains = values[np.arange(n_rows), target] - (predicted * values).sum(axis=1)
    return float(np.clip(gains, -MAX_GAIN / SCORE_UNITS, MAX_GAIN / SCORE_UNITS).sum())


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("weight", [0.6, 1.0, 1.6])
def test_tables_that_count_too_little_or_too_much_are_noticed(n_classes: int, weight: float) -> None:
    start, tables = tables_of(n_classes, 5, weight)
    gain = gain_of(start, tables, 4000)
    found = estimate_weight(gain, 0.0, 4000.0, start, tables, np.random.default_rng(0))
    assert abs(np.log(found * weight)) < 0.6 * abs(np.log(weight)) + 0.1  # one step gets most of the way
    noisy = estimate_weight(gain, 1e12, 4000.0, start, tables, np.random.default_rng(0))
    assert abs(noisy - 1) < 1e-3


def test_a_weight_stays_within_its_limits_whatever_comes_out() -> None:
    start, tables = tables_of(3, 3, 1.0)
    for gain in (-1e300, -1e6, 1e6, 1e300):
        found = estimate_weight(gain, 1.0, 100.0, start, tables, np.random.default_rng(0))
        assert 1 / MAX_WEIGHT <= found <= MAX_WEIGHT
    nothing = [ShrunkenTable(np.ones((2, 3)), np.zeros((2, 3)))]
    assert estimate_weight(5.0, 0.0, 100.0, start, nothing, np.random.default_rng(0)) == 1.0


def test_few_rows_are_not_asked_and_a_unit_of_k_rows_is_asked_like_one_row_at_a_kth() -> None:
    low, high = SHARES
    shares = [weight_fraction(AdaptiveBudget(Loss.pure(Fraction(1)), Neighbours()), n) for n in (10, 100, 900, 10**6)]
    assert shares[:2] == [0.0, 0.0]
    assert low < shares[2] < high
    assert shares[3] == low
    three = weight_fraction(AdaptiveBudget(Loss.pure(Fraction(3)), Neighbours("add-remove", Rows(3))), 900)
    assert three == pytest.approx(shares[2])


def rows_of(independent: bool, n_rows: int) -> tuple[vw.Schema, pd.DataFrame, pd.Series]:
    """Twelve columns: each tells a little, or all of them tell the same."""
    rng = np.random.default_rng(3)
    target = rng.random(n_rows) < 0.3
    result = target[:, None] ^ (rng.random((n_rows, 12 if independent else 1)) < 0.35)
    cells = np.broadcast_to(result, (n_rows, 12))
    columns = [{"name": f"c{j}", "kind": "categorical", "values": ["no", "yes"]} for j in range(12)]
    schema = vw.Schema.from_dict({
        "name": "told", "task": "classification", "target": "y",
        "columns": [*columns, {"name": "y", "kind": "categorical", "values": ["no", "yes"]}],
    })  # fmt: skip
    X = pd.DataFrame({f"c{j}": np.where(cells[:, j], "yes", "no") for j in range(12)})
    return schema, X, pd.Series(np.where(target, "yes", "no"), name="y")


@pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning")
@pytest.mark.parametrize("independent", [True, False])
def test_a_fit_weighs_its_tables(independent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that say the same count less, others more; what that brings is seen in the likelihood."""
    schema, X, y = rows_of(independent, 4000)
    right = (y == "yes").to_numpy()
    losses, weights = [], []
    for shares in (SHARES, (0.0, -1.0)):  # weighed, and never
        monkeypatch.setattr(weighing, "WEIGHT_FRACTIONS", shares)
        for seed in range(12):
            with seeded_for_tests(seed):
                forest = vw.PrivateForestClassifier(schema, epsilon=0.065, n_rows=4000, random_state=seed).fit(X, y)
            found = forest.predict_proba(X)[:, list(forest.classes_).index("yes")]
            losses.append(-np.log(np.where(right, found, 1 - found)).mean())
            _, _, weight = forest.plan_.learned.partition("weight ")
            weights.append(float(weight) if weight else 1.0)
    assert weights[12:] == [1.0] * 12
    assert np.mean(weights[:12]) > 1.2 if independent else np.mean(weights[:12]) < 0.85
    assert np.mean(losses[:12]) < np.mean(losses[12:])


@pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning")
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_by_rho_two_rows_that_pull_apart_are_hidden(adjacency: Adjacency, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rows that replace each other, one can have the largest gain and the other the smallest."""
    monkeypatch.setattr(loop, "planned_loss", lambda columns, n_classes, n_rows, asked: asked.loss)
    monkeypatch.setattr(loop, "has_few_rounds", lambda *args: True)
    schema, X, y = rows_of(True, 4000)
    with seeded_for_tests(0):
        forest = vw.PrivateForestClassifier(
            schema, epsilon=0.3, delta=1e-6, adjacency=adjacency, n_rows=4000, random_state=0
        ).fit(X, y)
    (step,) = (step for step in forest.plan_.steps if step.name == "weight of tables")
    assert step.sensitivity >= (MAX_GAIN if adjacency == "add-remove" else 2 * MAX_GAIN) ** 2
