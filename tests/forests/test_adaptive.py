# SPDX-License-Identifier: Apache-2.0
"""PrivateForest: what one row adds by enumeration, naive twins of its sums, prices, plans, and odd tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import veilwood as vw
from fixtures.clinic import COLUMNS, forest_of, schema_of, small_table, table_of
from veilwood import audit
from veilwood.audit.model_file import check_model
from veilwood.data.encoding import GRID_CELLS, TARGET_LEVELS
from veilwood.forests.adaptive import merging, shrinking
from veilwood.forests.adaptive import questions as asked
from veilwood.forests.adaptive.cell_tables import CellTable, grow_tables
from veilwood.forests.adaptive.columns import divided
from veilwood.forests.adaptive.estimates import Seen
from veilwood.forests.adaptive.estimates import Step as Taken
from veilwood.forests.adaptive.layouts import Laid
from veilwood.forests.adaptive.planning import chosen_loss
from veilwood.forests.adaptive.purse import Purse
from veilwood.forests.adaptive.rows import GRADIENT_UNITS, LEVEL_UNITS, SCORE_UNITS, ScoredRows, gradients, reach
from veilwood.forests.adaptive.shrinking import components, newton_step, shrunken_evidence, totals_of
from veilwood.forests.method import Asked
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.ledger import MemoryLedger
from veilwood.privacy.loss import Loss, requested_loss, zcdp_rho
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.neighbours import Rows as RowsUnit
from veilwood.privacy.plan import Plan
from veilwood.trees.counting import HAVE_NUMBA, route

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]

N_CLASSES = {"two": 2, "three": 3, "regression": 0, "five": 5}


def random_rows(n_classes: int, n: int, rng: np.random.Generator) -> ScoredRows:
    """Rows with scores as extreme as rounds can make them, mild ones among them."""
    outputs = n_classes if n_classes > 2 else 1
    scale = rng.choice([10.0, 3000.0, 1e6], (n, 1))
    return ScoredRows(
        np.stack([rng.integers(0, column.n_cells, n) for column in COLUMNS]).astype(np.uint8),
        rng.integers(0, n_classes or TARGET_LEVELS + 1, n).astype(np.int32),
        np.rint(rng.normal(size=(n, outputs)) * scale).astype(np.int32),
    )


def only(rows: ScoredRows, kept: Any) -> ScoredRows:
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
    for fast in {False, HAVE_NUMBA}:  # numpy and its compiled twin
        assert (asked.GradientSums(tables, n_classes, limit, fast)(rows) == np.concatenate(expected)).all()
    assert (asked.RowsByCell(tables[0])(rows) == counted[0].sum(axis=1)).all()
    if n_classes:
        assert (asked.ClassesByCell(tables, n_classes)(rows) == np.concatenate(counted)).all()


@pytest.mark.skipif(not HAVE_NUMBA, reason="there is one twin only")
@pytest.mark.parametrize("n_classes", N_CLASSES.values())
def test_compiled_loops_and_their_twins_agree(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from veilwood.forests.adaptive import row_kernels

    assert (row_kernels.GRADIENT_UNITS, row_kernels.LEVEL_UNITS) == (GRADIENT_UNITS, LEVEL_UNITS)
    monkeypatch.setattr(row_kernels, "MOST_ROWS", 3000)
    rng = np.random.default_rng(n_classes)
    rows = random_rows(n_classes, 9000, rng)
    axes = [[column.of_mass(column.prior, n) for column in COLUMNS] for n in (3, 6)]
    sets = [columns for size in (1, 2, 3) for columns in itertools.combinations(range(len(COLUMNS)), size)]
    tables = [CellTable(tuple(fineness[j] for j in columns)) for fineness in axes for columns in sets]
    assert Laid.of(tables).joined(9000, rows.scores.shape[1]) is not None
    for limit in (1, 777, GRADIENT_UNITS):
        fast, slow = (asked.GradientSums(tables, n_classes, limit, fast)(rows) for fast in (True, False))
        assert (fast == slow).all()
    steps = rng.integers(-(1 << 24), 1 << 24, (tables[-1].n_cells, rows.scores.shape[1])).astype(np.int32)
    twin = rows.some(np.ones(9000, bool))
    rows.add(tables[-1], steps)
    twin.add(tables[-1], steps, fast=False)
    assert (rows.scores == twin.scores).all()
    for table in tables:
        assert (asked.RowsByCell(table)(rows) == asked.RowsByCell(table, fast=False)(rows)).all()
    if n_classes:
        fast, slow = (asked.ClassesByCell(tables, n_classes, fast)(rows) for fast in (True, False))
        assert (fast == slow).all()


Query = Callable[[ScoredRows], NDArray[np.int64]]


def of_kept(query: Query, rows: ScoredRows, kept: Any) -> Any:
    return query(only(rows, kept))


def queries_of(n_classes: int, purse: Purse) -> list[tuple[Any, Query]]:
    """Every kind of sum that is let out, with the step that it is planned as."""
    table, limit = small_table(), 2500
    l1, squared = reach(n_classes, limit)
    outputs = n_classes if n_classes > 2 else 1
    found: list[tuple[Any, Query]] = [
        (purse.counting("histogram", (COLUMNS[0].n_inside,), 0.05),
         asked.Histogram(0, COLUMNS[0].n_inside)),
        (purse.counting("rows", (table.n_cells,), 0.05), asked.RowsByCell(table)),
        (purse.counting("gradients", (table.n_cells, outputs), 0.05, l1=l1, squared_l2=squared, signed=True),
         asked.GradientSums([table], n_classes, limit)),
    ]  # fmt: skip
    if n_classes:
        tables = [table, CellTable((COLUMNS[2].of_scales(4),))]
        shape = (sum(one.n_cells for one in tables), n_classes)
        found += [
            (purse.counting("classes", (n_classes,), 0.05), asked.ClassCounts(n_classes)),
            (purse.counting("tables", shape, 0.05, l1=2, squared_l2=2),
             asked.ClassesByCell(tables, n_classes)),
        ]  # fmt: skip
    else:
        marks = np.array([10, 1000, 10**6])
        found += [
            (purse.counting("target", (64,), 0.05), asked.TargetHistogram()),
            (purse.counting("sums", (2,), 0.05, l1=TARGET_LEVELS, squared_l2=TARGET_LEVELS**2), asked.TargetSums()),
            (purse.counting("residuals", (3,), 0.05), asked.ResidualHistogram(marks)),
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
        asked.GradientSums([table], 2, GRADIENT_UNITS)(ScoredRows(
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
    """By enumeration: any row of any table is removed; the change of one score exceeds that of another by no more.

    And the best and the mean score, which are let out as the strengths of columns, move by no more than one score.
    """
    rng = np.random.default_rng(n_classes)
    tables = [small_table(), *(CellTable((column.of_scales(4),)) for column in COLUMNS), CellTable(())]
    sizes = np.append(0, np.cumsum([table.n_cells for table in tables])[:-1])
    limit, worst, furthest = GRADIENT_UNITS, 0, 0

    def scores(rows: ScoredRows) -> NDArray[np.int64]:
        sums = np.abs(asked.GradientSums(tables, n_classes, limit)(rows)).sum(axis=1)
        return np.asarray(np.add.reduceat(sums, sizes))

    for _ in range(20):
        rows = random_rows(n_classes, 12, rng)
        whole = scores(rows)
        for i in range(12):
            without = scores(only(rows, set(range(12)) - {i}))
            worst = max(worst, int(np.ptp(whole - without)))
            strengths = [(some.max(), np.maximum(some - 3 * limit, 0).sum() // len(some)) for some in (whole, without)]
            furthest = max(furthest, int(np.abs(np.subtract(strengths[0], strengths[1])).max()))
    assert 0.5 * reach(n_classes, limit)[0] < furthest <= reach(n_classes, limit)[0]
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
    even, moved = (COLUMNS[0].of_mass(COLUMNS[0].prior, 5, shift) for shift in (0.0, -0.3))
    assert even.size == moved.size
    assert all(low < high for low, high in zip(even.thresholds[:-1], moved.thresholds[:-1], strict=True))
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


@pytest.mark.parametrize("most", [1, 1000])
def test_steps_with_other_borders_add_up_to_the_same_scores(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MOST_MERGED", most)
    rng, rows = np.random.default_rng(0), random_rows(3, 2000, np.random.default_rng(1))
    axes = [COLUMNS[0].of_mass(COLUMNS[0].prior, 4, shift) for shift in (0.0, 0.4, 0.0, -0.4)]
    other = COLUMNS[1].values()
    tables = [CellTable((axes[0], other)), *(CellTable((other, axis)) for axis in axes[1:]), CellTable((other,))]
    values = [rng.integers(-9, 9, (table.n_cells, 3)).astype(np.int32) for table in tables]
    seen = Seen(np.zeros((1, 3)), 0.0)
    found = merging.merged([Taken(*step, seen) for step in zip(tables, values, strict=True)])
    assert len(found) == (5 if most == 1 else 2)
    apart, together = (
        sum(values[table.cells(rows.cells)] for table, values in steps)
        for steps in (zip(tables, values, strict=True), found)
    )
    assert np.array_equal(apart, together)


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
    values = newton_step(sums, 0.0, cells, table, 0, 0.2)
    assert np.allclose(values, sums / 1e6, atol=1e-3)
    nothing = newton_step(sums, 1e14, cells, table, 0, 0.2)
    assert np.abs(nothing).max() < 1e-2
    even = totals_of([np.array([5.0, -3.0])], [1e9], None)
    assert even[0] == even[1] > 0


def test_noise_on_few_rows_is_no_strong_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 rows, whose cells hold 6 and get noise of deviation 28: before, an empty cell spoke as loudly as it could."""
    rng, totals, variance = np.random.default_rng(0), np.array([25.0, 25.0]), 800.0
    noisy = [6.25 + rng.laplace(0, (variance / 2) ** 0.5, (4, 2)) for _ in range(200)]

    def loudest() -> float:
        return max(float(np.abs(shrunken_evidence(count, (4,), totals, variance, 1)).max()) for count in noisy)

    now = loudest()
    monkeypatch.setattr(shrinking, "FEIGNED", 0.0)
    assert now < 0.6 * loudest()
    exact = np.array([[10.0, 40.0], [40.0, 10.0]])
    assert np.allclose(
        shrunken_evidence(exact * 1e6, (2,), exact.sum(axis=0) * 1e6, 1.0, 1)[:, 0], [1.386, -1.386], atol=1e-3
    )


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
    # Never more than was charged. Mostly all of it; a loop that finds nothing worth measuring may stop before.
    assert 0 < cost_of(plan) <= 1


def cost_of(plan: Plan) -> float:
    """What the steps of a plan cost, as a part of its promise: by epsilon, or by rho if any step is a part of it."""
    total, promised = Loss.total(step.loss for step in plan.steps), plan.loss
    assert total.rho is not None
    assert promised.rho is not None
    assert promised.epsilon is not None
    assert total.rho <= promised.rho
    if all(step.loss.delta == 0 for step in plan.steps):
        assert total.epsilon is not None
        return float(total.epsilon / promised.epsilon)
    return float(total.rho / zcdp_rho(promised.epsilon, promised.delta))


@given(
    seed=st.integers(0, 2**30), epsilon=st.sampled_from([0.01, 0.3, 2.0, 9.0]), delta=st.sampled_from([0.0, 1e-6]),
    n=st.integers(1, 400), task=st.sampled_from(["two", "three", "regression"]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_whatever_comes_out_the_budget_is_kept(seed: int, epsilon: float, delta: float, n: int, task: str) -> None:
    X, y = table_of(task, n, seed)
    with seeded_for_tests(seed):
        forest = forest_of(task, epsilon=epsilon, delta=delta, random_state=seed % 5).fit(X, y)
    assert cost_of(forest.plan_) <= 1
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
    assert chosen_loss(COLUMNS, 2, 1_000_000, rich).delta == 0  # fine cells take pure epsilon


@pytest.mark.parametrize("task", ["two", "regression"])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_delta_without_a_number_of_rows_is_spent_where_it_pays(task: str, adjacency: str) -> None:
    """It is not known before the data whether it would: few rows fit as with pure epsilon, many by rho."""
    with_delta, pure = (forest_of(task, epsilon=4, delta=delta, adjacency=adjacency) for delta in (1e-6, 0.0))
    assert with_delta.plan().steps == pure.plan().steps
    assert with_delta.plan().loss.undecided
    assert "delta" in with_delta.plan().notes
    for n_rows, by_rho in ((300, False), (30_000, True)):
        X, y = table_of(task, n_rows)
        with seeded_for_tests(1):
            steps = with_delta.fit(X, y).plan_.steps
        with seeded_for_tests(1):
            without = pure.fit(X, y).plan_.steps
        assert any(step.loss.delta > 0 for step in steps) is by_rho
        assert (steps == without) is not by_rho
        assert 0.99 < cost_of(with_delta.plan_) <= 1
        assert {check.question for check in check_model(with_delta) if not check.holds} == {"Is it private?"}  # seeded


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
