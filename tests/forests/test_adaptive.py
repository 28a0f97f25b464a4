# SPDX-License-Identifier: Apache-2.0
"""PrivateForest: what one row adds by enumeration, naive twins of its sums, prices, plans, and odd tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import veilwood as vw
from veilwood import audit
from veilwood.audit.model_file import check_model
from veilwood.data.batches import Batch
from veilwood.data.encoding import GRID_CELLS, TARGET_LEVELS, Encoding
from veilwood.forests.adaptive import rows as asked
from veilwood.forests.adaptive.cell_tables import CellTable, grow_tables
from veilwood.forests.adaptive.columns import columns_of, divided
from veilwood.forests.adaptive.loop import first_step
from veilwood.forests.adaptive.private_forest import chosen_loss, in_words
from veilwood.forests.adaptive.purse import Purse
from veilwood.forests.adaptive.rows import GRADIENT_UNITS, LEVEL_UNITS, SCORE_UNITS, Rows, Walk, gradients, reach
from veilwood.forests.adaptive.shrinking import components, newton_step, totals_of
from veilwood.forests.method import Asked
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.ledger import MemoryLedger
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours, unit_of
from veilwood.privacy.neighbours import Rows as RowsUnit
from veilwood.trees.counting import route

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]

CLINIC: list[dict[str, Any]] = [
    {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "nullable": True},
    {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"], "nullable": True},
    {"name": "debt", "kind": "numeric", "lower": -1e6, "upper": 1e6},
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
        "debt": rng.normal(0, 1000, n),
        "income": rng.lognormal(8, 2, n),
    })  # fmt: skip
    level = age / 50 + ward + rng.normal(0, 0.2, n)  # from 0 to 4
    if task == "regression":
        return X, 4 * level - 3
    cuts = [2.0] if task == "two" else [1.3, 2.7]
    return X, np.array(TARGETS[task]["values"])[np.searchsorted(cuts, level)]


def forest_of(task: str, **params: Any) -> Any:
    kind = vw.PrivateForestRegressor if task == "regression" else vw.PrivateForestClassifier
    return kind(schema_of(task), **{"random_state": 0, "n_jobs": 1, **params})


COLUMNS = columns_of(Encoding(schema_of("two")))
N_CLASSES = {"two": 2, "three": 3, "regression": 0, "five": 5}


def random_rows(n_classes: int, n: int, rng: np.random.Generator) -> Rows:
    """Rows with scores as extreme as rounds can make them, mild ones among them."""
    outputs = n_classes if n_classes > 2 else 1
    scale = rng.choice([10.0, 3000.0, 1e6], (n, 1))
    return Rows(
        np.stack([rng.integers(0, column.n_cells, n) for column in COLUMNS]).astype(np.uint8),
        rng.integers(0, n_classes or TARGET_LEVELS + 1, n).astype(np.int32),
        np.rint(rng.normal(size=(n, outputs)) * scale).astype(np.int32),
    )


def small_table() -> CellTable:
    return CellTable((COLUMNS[0].of_mass(COLUMNS[0].prior, 3), COLUMNS[1].values()))


def only(rows: Rows, kept: Any) -> Rows:
    mask = np.zeros(len(rows.target), bool)
    mask[list(kept)] = True
    return rows.some(mask)


# -- what one row adds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 700, GRADIENT_UNITS])
@pytest.mark.parametrize("n_classes", N_CLASSES.values())
def test_a_gradient_stays_within_its_norms_and_comes_near_them(n_classes: int, limit: int) -> None:
    rows = random_rows(n_classes, 5000, np.random.default_rng(n_classes))
    units = gradients(rows.scores, rows.target, n_classes, limit).astype(np.int64)
    l1, squared = reach(n_classes, limit)
    assert np.abs(units).sum(axis=1).max() <= l1
    assert (units**2).sum(axis=1).max() <= squared
    assert np.abs(units).sum(axis=1).max() > 0.95 * l1
    assert (units**2).sum(axis=1).max() > 0.9 * squared


@given(
    st.lists(st.integers(-(1 << 24), 1 << 24), min_size=3, max_size=6), st.integers(0, 2), st.integers(1, 1 << 20)
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_no_score_makes_a_gradient_exceed_its_norms(scores: list[int], label: int, limit: int) -> None:
    target = np.array([label], np.int32)
    for n_classes, given_scores in ((len(scores), scores), (2, scores[:1]), (0, scores[:1])):
        cut = min(limit, GRADIENT_UNITS) if n_classes == 2 else limit
        wanted = np.array([min(label, 1)], np.int32) if n_classes == 2 else target
        units = gradients(np.array([given_scores], np.int32), wanted, n_classes, cut).astype(np.int64)
        l1, squared = reach(n_classes, cut)
        assert np.abs(units).sum() <= l1
        assert (units**2).sum() <= squared


def naive_gradient(scores: NDArray[np.int32], target: int, n_classes: int, limit: int) -> list[int]:
    if n_classes == 0:
        residual = target * LEVEL_UNITS - int(scores[0])
        size = min(abs(residual) * GRADIENT_UNITS // limit, GRADIENT_UNITS)
        return [size if residual > 0 else -size]
    if n_classes == 2:
        odds = min(max(int(scores[0]), -12 * SCORE_UNITS), 12 * SCORE_UNITS) / SCORE_UNITS
        away = target * GRADIENT_UNITS - round(GRADIENT_UNITS / (1 + np.exp(-odds)))
        return [min(max(away, -limit), limit)]
    powers = [round((1 << 20) * np.exp(-(int(max(scores)) - int(one)) / SCORE_UNITS)) for one in scores]
    powers = [
        0 if int(max(scores)) - int(one) >= 15 * SCORE_UNITS else p for p, one in zip(powers, scores, strict=True)
    ]
    return [(j == target) * GRADIENT_UNITS - p * GRADIENT_UNITS // sum(powers) for j, p in enumerate(powers)]


@pytest.mark.parametrize("n_classes", N_CLASSES.values())
def test_sums_equal_those_of_a_loop_over_rows(n_classes: int) -> None:
    rng = np.random.default_rng(n_classes)
    rows, tables = random_rows(n_classes, 300, rng), [small_table(), CellTable(()), CellTable((COLUMNS[2].values(),))]
    limit = 2000
    expected = [np.zeros((table.n_cells, rows.scores.shape[1]), np.int64) for table in tables]
    counted = [np.zeros((table.n_cells, max(n_classes, 1)), np.int64) for table in tables]
    for i in range(300):
        for table, sums, counts in zip(tables, expected, counted, strict=True):
            cell = 0
            for axis in table.axes:
                cell = cell * axis.size + int(axis.groups[rows.cells[axis.feature, i]])
            counts[cell, rows.target[i] if n_classes else 0] += 1
            sums[cell] += naive_gradient(rows.scores[i], int(rows.target[i]), n_classes, limit)
    assert (asked.gradient_sums(tables, n_classes, limit, rows) == np.concatenate(expected)).all()
    assert (asked.rows_by_cell(tables[0], rows) == counted[0].sum(axis=1)).all()
    if n_classes:
        assert (asked.classes_by_cell(tables, n_classes, rows) == np.concatenate(counted)).all()


Query = Callable[[Rows], NDArray[np.int64]]


def of_kept(query: Query, rows: Rows, kept: Any) -> Any:
    return query(only(rows, kept))


def queries_of(n_classes: int, purse: Purse) -> list[tuple[Any, Query]]:
    """Every kind of sum that is let out, with the step that it is planned as."""
    table, limit = small_table(), 2500
    l1, squared = reach(n_classes, limit)
    outputs = n_classes if n_classes > 2 else 1
    found: list[tuple[Any, Query]] = [
        (purse.counting("histogram", (COLUMNS[0].n_inside,), 0.05),
         partial(asked.histogram, 0, COLUMNS[0].n_inside)),
        (purse.counting("rows", (table.n_cells,), 0.05), partial(asked.rows_by_cell, table)),
        (purse.counting("gradients", (table.n_cells, outputs), 0.05, l1=l1, squared_l2=squared, signed=True),
         partial(asked.gradient_sums, [table], n_classes, limit)),
    ]  # fmt: skip
    if n_classes:
        tables = [table, CellTable((COLUMNS[2].of_scales(4),))]
        shape = (sum(one.n_cells for one in tables), n_classes)
        found += [
            (purse.counting("classes", (n_classes,), 0.05), partial(asked.class_counts, n_classes)),
            (purse.counting("tables", shape, 0.05, l1=2, squared_l2=2),
             partial(asked.classes_by_cell, tables, n_classes)),
        ]  # fmt: skip
    else:
        marks = np.array([10, 1000, 10**6])
        found += [
            (purse.counting("target", (64,), 0.05), asked.target_histogram),
            (purse.counting("sums", (2,), 0.05, l1=TARGET_LEVELS, squared_l2=TARGET_LEVELS**2), asked.target_sums),
            (purse.counting("residuals", (3,), 0.05), partial(asked.residual_histogram, marks)),
        ]
    return found


@pytest.mark.parametrize("n_classes", N_CLASSES.values())
@pytest.mark.parametrize(
    "neighbours", [Neighbours(), Neighbours("replace-one"), Neighbours("add-remove", RowsUnit(2))], ids=str
)
def test_every_sum_moves_by_what_its_step_is_planned_for(n_classes: int, neighbours: Neighbours) -> None:
    rng = np.random.default_rng(1)
    rows = random_rows(n_classes, 6, rng)
    rows.target[:2] = [0, (n_classes or TARGET_LEVELS + 1) - 1]
    rows.scores[:2] = 0 if n_classes else TARGET_LEVELS * LEVEL_UNITS // 2
    rows.scores[0, 0], rows.scores[1, -1] = (10**6, -(10**6)) if n_classes else (10**6, 0)
    rows.cells[:, 1] = rows.cells[:, 0]  # two rows that pull apart in one cell
    for loss in (Loss.pure(Fraction(1)), requested_loss(1, 1e-6)):
        for step, query in queries_of(n_classes, Purse(loss, neighbours)):
            found = audit.worst_distances(partial(of_kept, query, rows), 6, 2, neighbours)
            far = found.l1 if loss.delta == 0 else found.squared_l2
            assert far <= step.sensitivity, step.name
            assert far > 0.2 * step.sensitivity or step.name == "residuals", step.name


def test_norms_of_unsigned_vectors_are_caught_for_replacements() -> None:
    """Mutant: gradients planned as if they had no signs."""
    neighbours, loss, table = Neighbours("replace-one"), requested_loss(1, 1e-6), CellTable(())
    one, other = (
        asked.gradient_sums([table], 2, GRADIENT_UNITS, Rows(
            np.zeros((len(COLUMNS), 1), np.uint8), np.array([label], np.int32),
            np.array([[10**6 * (1 - 2 * label)]], np.int32),
        ))
        for label in (0, 1)
    )  # fmt: skip
    moved = int(((one - other) ** 2).sum())
    l1, squared = reach(2, GRADIENT_UNITS)
    wrong = Purse(loss, neighbours).counting("gradients", (1, 1), 0.5, l1=l1, squared_l2=squared)
    right = Purse(loss, neighbours).counting("gradients", (1, 1), 0.5, l1=l1, squared_l2=squared, signed=True)
    assert moved > wrong.sensitivity
    assert moved <= right.sensitivity


@pytest.mark.parametrize("n_classes", N_CLASSES.values())
def test_scores_of_candidates_move_within_the_range_of_a_choice(n_classes: int) -> None:
    """By enumeration: any row of any table is removed; the change of one score exceeds that of another by no more."""
    rng = np.random.default_rng(n_classes)
    tables = [small_table(), *(CellTable((column.of_scales(4),)) for column in COLUMNS), CellTable(())]
    sizes = np.append(0, np.cumsum([table.n_cells for table in tables])[:-1])
    limit, worst = GRADIENT_UNITS, 0

    def scores(rows: Rows) -> NDArray[np.int64]:
        sums = np.abs(asked.gradient_sums(tables, n_classes, limit, rows)).sum(axis=1)
        return np.asarray(np.add.reduceat(sums, sizes))

    for _ in range(20):
        rows = random_rows(n_classes, 12, rng)
        whole = scores(rows)
        for i in range(12):
            worst = max(worst, int(np.ptp(whole - scores(only(rows, set(range(12)) - {i})))))
    assert 0.5 * reach(n_classes, limit)[0] < worst <= 2 * reach(n_classes, limit)[0]


# -- columns and shrinking -------------------------------------------------------------------------------------------


def test_cells_partition_the_codes_and_groups_the_cells() -> None:
    for column in COLUMNS:
        codes = np.arange(GRID_CELLS + (column.n_cells > column.n_inside) if column.ordered else column.n_cells)
        cells = column.cells(codes.astype(np.uint16)).astype(int)
        assert (np.diff(cells) >= 0).all()
        assert set(cells) == set(range(column.n_cells))
        assert (column.cells(column.starts.astype(np.uint16)) == np.arange(column.n_cells)).all()
        assert column.prior.sum() == pytest.approx(1)
        for axis in (column.of_scales(5), column.of_mass(column.prior, 5), column.values()):
            assert set(axis.groups) == set(range(axis.size))
            assert not axis.ordered or (np.diff(axis.groups.astype(int)) >= 0).all()
    missing = COLUMNS[0].of_mass(COLUMNS[0].prior, 5)
    assert (missing.groups == missing.size - 1).sum() == 1  # a missing number is in a group of its own


def test_a_table_as_a_tree_sends_rows_to_their_cells() -> None:
    rng = np.random.default_rng(0)
    table = CellTable((COLUMNS[0].of_mass(COLUMNS[0].prior, 5), COLUMNS[1].values(), COLUMNS[2].of_scales(4)))
    forest, cells = grow_tables([table])
    sizes = [GRID_CELLS + 1, 4, GRID_CELLS, GRID_CELLS]
    codes = np.column_stack([rng.integers(0, size, 2000) for size in sizes]).astype(np.uint16)
    mine = np.stack([column.cells(codes[:, column.feature]) for column in COLUMNS])
    assert (cells[route(forest, codes)[:, 0]] == table.cells(mine)).all()


def test_a_poor_histogram_falls_back_to_the_prior_and_a_good_one_is_believed() -> None:
    rng = np.random.default_rng(0)
    prior = COLUMNS[0].prior
    truth = rng.multinomial(10_000, rng.dirichlet(np.ones(len(prior)) * 0.5)).astype(float)
    assert np.abs(divided(truth, prior, 1e-6, 10_000) - truth).max() < 1
    poor = divided(rng.laplace(0, 1e7, len(prior)), prior, 2e14, 100)
    assert np.abs(poor / 100 - prior).max() < 0.02


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (2, 0)])
def test_components_are_orthogonal_and_add_up(axes: tuple[int, ...]) -> None:
    table = CellTable(tuple(COLUMNS[j].of_mass(COLUMNS[j].prior, 4) for j in axes))
    sums = np.random.default_rng(0).normal(size=(table.n_cells, 2))
    parts = components(sums, table)
    assert np.allclose(sum(part for part, _ in parts), sums)
    assert sum(size for _, size in parts) == table.n_cells
    assert all(abs(float((a * b).sum())) < 1e-9 for (a, _), (b, _) in itertools.combinations(parts, 2))


def test_a_step_is_none_where_noise_rules_and_newtons_where_there_is_none() -> None:
    table, cells = CellTable((COLUMNS[1].values(),)), np.full(4, 1e6)
    sums = np.array([[1e5], [2e5], [-1e5], [0.0]])
    values, _ = newton_step(sums, 0.0, cells, table, 0, 0.2)
    assert np.allclose(values, sums / 1e6, atol=1e-3)
    nothing, _ = newton_step(sums, 1e14, cells, table, 0, 0.2)
    assert np.abs(nothing).max() < 1e-2
    even = totals_of([np.array([5.0, -3.0])], [1e9], None)
    assert even[0] == even[1] > 0


# -- prices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_prices_follow_the_law_of_units(adjacency: Any, k: int, delta: float) -> None:
    """k rows at epsilon are one row at epsilon / k, a replaced row one at half; with a delta k^2 and 2 of rho."""
    loss = requested_loss(2, delta)
    unit = Purse(loss, Neighbours(adjacency, RowsUnit(k)))
    sides = 2 if adjacency == "replace-one" else 1
    if delta == 0:
        alone = Purse(Loss.pure(Fraction(2, k * sides)), Neighbours())
    else:
        assert loss.rho is not None
        alone = Purse(Loss(loss.epsilon, loss.delta, loss.rho / (k**2 * sides)), Neighbours())
    assert unit.whole == pytest.approx(alone.whole, rel=1e-12)
    for share in (0.01, 0.3):
        assert unit.price(share) == pytest.approx(alone.price(share), rel=1e-12)
        assert unit.share(unit.price(share)) == pytest.approx(share)
    step, other = unit.counting("rows", (1,), 0.1), alone.counting("rows", (1,), 0.1)
    assert step.variance == pytest.approx(other.variance, rel=1e-9)


@pytest.mark.parametrize("task", ["two", "three", "regression"])
@pytest.mark.parametrize("k", [2, 10])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_unit_of_k_rows_plans_like_one_row_at_a_kth(task: str, k: int, adjacency: str) -> None:
    sides = 2 if adjacency == "replace-one" else 1
    many = forest_of(task, epsilon=Fraction(k), privacy_unit=k, adjacency=adjacency, n_rows=3000).plan()
    one = forest_of(task, epsilon=Fraction(1, sides), n_rows=3000).plan()
    assert many.notes == one.notes
    assert [step.name for step in many.steps] == [step.name for step in one.steps]
    assert [step.variance for step in many.steps] == pytest.approx([step.variance for step in one.steps])
    X, y = table_of(task, 3000)
    with seeded_for_tests(3):
        wide = forest_of(task, epsilon=Fraction(k), privacy_unit=k, adjacency=adjacency, n_rows=3000).fit(X, y)
    with seeded_for_tests(3):
        narrow = forest_of(task, epsilon=Fraction(1, sides), n_rows=3000).fit(X, y)
    # The same bits give the same noise: every later step is planned, and comes out, alike.
    assert [step.name for step in wide.plan_.steps] == [step.name for step in narrow.plan_.steps]
    assert np.array_equal(wide.leaf_values_, narrow.leaf_values_)


def test_shares_add_up_to_the_budget_whatever_is_asked() -> None:
    purse = Purse(Loss.pure(Fraction(1)), Neighbours())
    steps = [purse.counting(f"{i}", (1,), share) for i, share in enumerate((0.3, 1e-30, 0.25, 5.0))]
    assert sum(step.loss.epsilon or 0 for step in steps) == 1
    assert purse.left == 0


# -- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["two", "three", "regression"])
@pytest.mark.parametrize("n_rows", [None, 600])
@pytest.mark.parametrize(
    "params", [{}, {"delta": 1e-6}, {"adjacency": "replace-one"}, {"privacy_unit": 2}, {"epsilon": 30.0}], ids=str
)
def test_all_steps_together_cost_what_the_ledger_was_charged(
    task: str, n_rows: int | None, params: dict[str, Any]
) -> None:
    X, y = table_of(task, 600)
    ledger = MemoryLedger(epsilon=40, delta=1e-6)
    forest = forest_of(task, **{"epsilon": 2.0, "n_rows": n_rows, "ledger": ledger, **params})
    planned = forest.plan()
    plan = forest.fit(X, y).plan_
    assert len(planned.steps) == 1
    assert plan.opened_as == planned.fingerprint()
    (entry,) = ledger.entries()
    assert (entry.state, entry.loss) == ("committed", plan.loss)
    assert forest.privacy_.is_private
    assert all(check.holds for check in check_model(forest))
    if plan.loss.delta == 0:
        assert 0.999 * plan.loss.epsilon < sum(step.loss.epsilon for step in plan.steps) <= plan.loss.epsilon
    else:
        assert 0.999 * plan.loss.rho < sum(step.loss.rho for step in plan.steps) <= plan.loss.rho


@given(
    seed=st.integers(0, 2**30), epsilon=st.sampled_from([0.01, 0.3, 2.0, 9.0]), delta=st.sampled_from([0.0, 1e-6]),
    n=st.integers(1, 400), task=st.sampled_from(["two", "three", "regression"]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_whatever_comes_out_the_budget_is_kept(seed: int, epsilon: float, delta: float, n: int, task: str) -> None:
    X, y = table_of(task, n, seed)
    with seeded_for_tests(seed):
        forest = forest_of(task, epsilon=epsilon, delta=delta, random_state=seed % 5).fit(X, y)
    plan, total = forest.plan_, Loss.total(step.loss for step in forest.plan_.steps)
    assert (total.rho if plan.loss.delta else total.epsilon) <= (
        plan.loss.rho if plan.loss.delta else plan.loss.epsilon
    )
    assert np.isfinite(forest.predict(X) if task == "regression" else forest.predict_proba(X)).all()


def test_a_plan_says_in_words_what_would_be_done() -> None:
    car = vw.datasets.car()
    unknown = str(vw.PrivateForestClassifier(car.schema, epsilon=1.0).plan())
    assert "At 1,000 rows: class counts of" in unknown
    assert "rounds, each of which chooses" in unknown
    known = vw.PrivateForestClassifier(car.schema, epsilon=1.0, n_rows=1728).plan()
    assert list(known.notes) == ["at 1,728 rows"]
    assert "1,728 rows declared" in str(known)
    hopeless = forest_of("regression", epsilon=0.01, n_rows=50).plan()
    assert [step.name for step in hopeless.steps] == ["sums of the target"]
    assert "nothing but the mean" in str(hopeless)


def test_a_delta_is_given_up_where_so_few_steps_come_that_epsilon_alone_is_more() -> None:
    schema = schema_of("two")
    for n_rows, delta in ((500, 0.0), (1_000_000, 1e-6)):
        asked_for = Asked("e", {}, schema, requested_loss(1, 1e-6), Neighbours(), 0)
        assert chosen_loss(COLUMNS, 2, n_rows, asked_for).delta == pytest.approx(Fraction(delta))
    rich = Asked("e", {}, schema, requested_loss(30, 1e-6), Neighbours(), 0)
    assert chosen_loss(COLUMNS, 2, None, rich).delta == 0  # fine cells take pure epsilon


def test_the_number_of_rows_is_free_where_neighbours_have_as_many() -> None:
    X, y = table_of("regression", 3000)
    free = forest_of("regression", adjacency="replace-one").fit(X, y)
    assert "number of rows" not in [step.name for step in free.plan_.steps]
    assert free.plan_.layout.rows_planned == 3000
    capped = forest_of("regression", adjacency="replace-one", privacy_unit={"id": "who", "at_most": 1})
    capped.fit(X.assign(who=np.arange(3000)), y)  # of ids the number is public, of rows it is not
    assert "number of rows" in [step.name for step in capped.plan_.steps]


@pytest.mark.parametrize(
    ("params", "says"),
    [({"n_rows": 0}, "n_rows=0"), ({"n_rows": 2.5}, "n_rows=2.5"), ({"n_rows": True}, "n_rows=True"),
     ({"n_rows": 10**16}, "n_rows"), ({"epsilon": 0}, "epsilon=0"), ({"n_jobs": 0}, "n_jobs=0")],
)  # fmt: skip
def test_bad_parameters_are_refused_before_anything_is_spent(params: dict[str, Any], says: str) -> None:
    ledger = MemoryLedger()
    forest = forest_of("two").set_params(**{"ledger": ledger, **params})
    for attempt in (forest.plan, lambda: forest.fit(*table_of("two", 100))):
        with pytest.raises(vw.VeilwoodError, match=says):
            attempt()
    assert ledger.entries() == []


# -- what is learned -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "epsilon", "least"), [("two", 2.0, 0.85), ("three", 2.0, 0.75), ("regression", 1.0, 0.7)]
)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_it_learns(task: str, epsilon: float, least: float, delta: float) -> None:
    X, y = table_of(task, 5000)
    with seeded_for_tests(1):
        forest = forest_of(task, epsilon=epsilon, delta=delta).fit(X, y)
    assert forest.score(*table_of(task, 2000, seed=1)) > least


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


def test_streamed_rows_answer_as_held_ones() -> None:
    rng = np.random.default_rng(0)
    encoding = Encoding(schema_of("three"))
    X, y = table_of("three", 500)
    codes, target = encoding.encode(X), encoding.encode_target(y)
    batches = [Batch(codes[:200], target[:200], 0, 0), Batch(codes[200:], target[200:], 0, 200)]
    table = small_table()
    values = rng.integers(-500, 500, (table.n_cells, 3)).astype(np.int32)
    question = partial(asked.gradient_sums, [table], 3, GRADIENT_UNITS)
    held = Rows.of(COLUMNS, batches, 3)
    held.add(table, values)
    walk = Walk(COLUMNS, 3, ((table, values),), question)
    assert (walk(batches) == question(held)).all()
    assert (walk(batches[:1]) + walk(batches[1:]) == question(held)).all()


@pytest.mark.parametrize("task", ["two", "regression"])
@pytest.mark.parametrize("epsilon", [1.0, 30.0])  # with 30, of classes, fine cells too
def test_a_saved_forest_predicts_and_explains_the_same(task: str, epsilon: float, tmp_path: Path) -> None:
    X, y = table_of(task, 800)
    forest = forest_of(task, epsilon=epsilon).fit(X, y)
    vw.save(forest, tmp_path / "forest.veilwood")
    loaded = vw.load(tmp_path / "forest.veilwood")
    assert (loaded.predict(X) == forest.predict(X)).all()
    assert loaded.explain().to_dict() == forest.explain().to_dict()


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
    assert forest.model_.weight > 0
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


def test_effects_show_what_columns_do_and_pairs_that_act_together() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (20_000, 4))
    y = np.where((X[:, 0] * X[:, 1] > 0) ^ (rng.random(20_000) < 0.05), "yes", "no")
    schema = vw.Schema.numeric((-1, 1), classes=["no", "yes"], n_features=4)
    with seeded_for_tests(1):
        told = vw.PrivateForestClassifier(schema, epsilon=2.0, random_state=0).fit(X, y).explain()
    names = schema.feature_names
    assert set(told.interactions[0].columns) == {names[0], names[1]}
    assert told.interactions[0].strength > 3 * told.interactions[0].noise
    table, numbers = table_of("regression", 20_000)
    with seeded_for_tests(1):
        main = {one.column: one for one in forest_of("regression", epsilon=2.0).fit(table, numbers).explain().main}
    ward = main["ward"]
    slope = ward.effect[ward.groups.index("C"), 0] - ward.effect[ward.groups.index("A"), 0]
    assert slope == pytest.approx(8, abs=1.5)  # two steps of 4
    assert main["ward"].strength > main.get("debt", main["ward"]).strength or "debt" not in main


def test_words_and_first_steps_need_no_data() -> None:
    purse = Purse(requested_loss(1, 0), Neighbours("add-remove", unit_of("row")))
    assert in_words(COLUMNS, 2, 10, purse)
    assert first_step(Purse(requested_loss(1, 0), Neighbours()), 0, 10**6).name == "histogram of the target"
