# SPDX-License-Identifier: Apache-2.0
"""Row backends: sensitivities by enumeration, naive twins of sums, one answer for any batches."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import veilwood as vw
import veilwood_audit as audit
from veilwood.arrays import HAVE_NUMBA
from veilwood.data import counts as asked
from veilwood.data.batches import Batch, Source
from veilwood.data.counts import ContingencyTable
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.forests.adaptive.loop import rotate_sums
from veilwood.forests.adaptive.row_backend import (
    GRADIENT_UNITS,
    LEVEL_UNITS,
    SCORE_UNITS,
    MemoryBackend,
    ScoredRows,
    answer_query,
    gradient_norms,
    row_gradients,
)
from veilwood.forests.adaptive.steps import AdaptiveStep, RowFacts, plan_sums
from veilwood.privacy.adaptive_budget import AdaptiveBudget
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.neighbours import Rows as RowsUnit
from veilwood.privacy.steps import Step
from veilwood_testing.clinic import COLUMNS, N_CLASSES, forest_of, random_rows, schema_of, small_table, table_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_rows_in_parts_answer_as_in_one(n_jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = Encoding(schema_of("three"))
    X, y = table_of("three", 500)
    codes, target = encoding.encode(X), encoding.encode_target(y)
    places = [*range(0, 500, 60), 500]
    source = Source(lambda: (partial(Batch, codes[i:j], target[i:j], 0, i) for i, j in pairwise(places)))
    whole = ScoredRows.from_batches(COLUMNS, source.batches(), 3)
    monkeypatch.setattr("veilwood.forests.adaptive.row_backend.PART_ROWS", 100)
    held = MemoryBackend(COLUMNS, source, 3, n_jobs)
    table = small_table()
    values = np.random.default_rng(0).integers(-500, 500, (table.n_cells, 3)).astype(np.int32)
    held.add_scores(table, values)
    whole.add_scores(table, values)
    for question in (
        asked.GradientSums([table], 3, GRADIENT_UNITS), asked.RowsByCell(table), asked.ClassesByCell([table], 3),
        asked.EvidenceGain(np.zeros(3, np.int32), 3, GRADIENT_UNITS, 100),
    ):  # fmt: skip
        assert (held.run(question) == answer_query(question, whole)).all()
    cells, counts = held.nonempty_cells(table.axes, 3)
    one_by_one = np.bincount(table.cell_indices(whole.cells) * 3 + whole.target)
    assert (np.flatnonzero(one_by_one) == cells).all()
    assert (one_by_one[cells] == counts).all()
    held.hold_out(0.3)
    count = asked.RowsByCell(asked.ALL_ROWS)
    assert held.run(count) + held.run_on_holdout(partial(answer_query, count)) == 500
    judged, share = held.run_on_sample(count, 0.5)
    assert 0 < judged < held.run(count)
    assert share == 0.5


def test_no_rows_are_one_part() -> None:
    held = MemoryBackend(COLUMNS, Source(lambda: iter(())), 1)
    assert held.run(asked.RowsByCell(small_table())).tolist() == [0] * small_table().n_cells


def only(rows: ScoredRows, kept: Any) -> ScoredRows:
    mask = np.zeros(len(rows.target), bool)
    mask[list(kept)] = True
    return rows.select(mask)


# -- what one row adds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 700, GRADIENT_UNITS])
@pytest.mark.parametrize("n_classes", N_CLASSES.values())
def test_a_gradient_stays_within_its_norms_and_comes_near_them(n_classes: int, limit: int) -> None:
    rows = random_rows(n_classes, 5000, np.random.default_rng(n_classes))
    units = row_gradients(rows.scores, rows.target, n_classes, limit).astype(np.int64)
    l1, squared = gradient_norms(n_classes, limit)
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
        units = row_gradients(np.array([given_scores], np.int32), wanted, n_classes, cut).astype(np.int64)
        l1, squared = gradient_norms(n_classes, cut)
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
    rows, tables = (
        random_rows(n_classes, 300, rng),
        [small_table(), ContingencyTable(()), ContingencyTable((COLUMNS[2].ungrouped_axis(),))],
    )
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
        sums = answer_query(asked.GradientSums(tables, n_classes, limit), rows, fast=fast)
        assert (sums == np.concatenate(expected)).all()
    assert (answer_query(asked.RowsByCell(tables[0]), rows) == counted[0].sum(axis=1)).all()
    if n_classes:
        assert (answer_query(asked.ClassesByCell(tables, n_classes), rows) == np.concatenate(counted)).all()


@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_gains_equal_those_of_a_loop_over_rows(n_classes: int) -> None:
    rows = random_rows(n_classes, 200, np.random.default_rng(n_classes))
    start = np.arange(rows.scores.shape[1], dtype=np.int32) * 100 - 50
    for most in (1, 300, 10**6):
        total = 0
        for scores, target in zip(rows.scores, rows.target, strict=True):
            units = naive_gradient(scores, int(target), n_classes, 2000)
            gain = sum(
                unit * (int(score) - int(first)) for unit, score, first in zip(units, scores, start, strict=True)
            )
            total += (1 if gain > 0 else -1) * min(abs(gain) // GRADIENT_UNITS, most)
        assert answer_query(asked.EvidenceGain(start, n_classes, 2000, most), rows).tolist() == [total]


Sums = Callable[[ScoredRows], NDArray[np.int64]]


def of_kept(sums: Sums, rows: ScoredRows, kept: Any) -> Any:
    return sums(only(rows, kept))


def sums_of(n_classes: int, budget: AdaptiveBudget) -> list[tuple[Step, Sums]]:
    """Every kind of sum that is let out, with the step that it is planned as."""
    table, limit = small_table(), 2500
    l1, squared = gradient_norms(n_classes, limit)
    outputs = n_classes if n_classes > 2 else 1
    found: list[tuple[Step, asked.RowQuery]] = [
        (budget.plan_counts("histogram", (COLUMNS[0].n_bins,), 0.05),
         asked.RowsByCell(ContingencyTable((COLUMNS[0].ungrouped_axis(),)))),
        (budget.plan_counts("rows", (table.n_cells,), 0.05), asked.RowsByCell(table)),
        (budget.plan_counts("gradients", (table.n_cells, outputs), 0.05, l1=l1, squared_l2=squared, signed=True),
         asked.GradientSums([table], n_classes, limit)),
    ]  # fmt: skip
    if n_classes:
        tables = [table, ContingencyTable((COLUMNS[2].default_groups(4),))]
        shape = (sum(one.n_cells for one in tables), n_classes)
        found += [
            (budget.plan_counts("classes", (n_classes,), 0.05), asked.ClassesByCell([asked.ALL_ROWS], n_classes)),
            (budget.plan_counts("gain", (1,), 0.05, l1=SCORE_UNITS, squared_l2=SCORE_UNITS**2, signed=True),
             asked.EvidenceGain(np.zeros(outputs, np.int32), n_classes, limit, SCORE_UNITS)),
            (budget.plan_counts("tables", shape, 0.05, l1=2, squared_l2=2),
             asked.ClassesByCell(tables, n_classes)),
        ]  # fmt: skip
    else:
        marks = np.array([10, 1000, 10**6])
        found += [
            (budget.plan_counts("sums", (2,), 0.05, l1=TARGET_LEVELS, squared_l2=TARGET_LEVELS**2), asked.TargetSums()),
            (budget.plan_counts("residuals", (3,), 0.05), asked.ResidualHistogram(marks)),
        ]
    answered: list[tuple[Step, Sums]] = [(step, partial(answer_query, query)) for step, query in found]
    if not n_classes:
        facts = RowFacts(len(COLUMNS), 0, limit)
        (_, counted), (_, summed) = answered[1:3]
        step = plan_sums(budget, AdaptiveStep.ROUND_PAIRS, (table.n_cells, 2), 0.05, facts, 1)
        answered.append((step, lambda rows: rotate_sums(counted(rows), summed(rows))))
    return answered


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
        for step, sums in sums_of(n_classes, AdaptiveBudget(loss, neighbours)):
            found = audit.worst_distances(partial(of_kept, sums, rows), 6, 2, neighbours)
            far = found.l1 if loss.delta == 0 else found.squared_l2
            assert far <= step.sensitivity, step.name
            assert far > 0.2 * step.sensitivity or step.name == "residuals", step.name


def test_norms_of_unsigned_vectors_are_caught_for_replacements() -> None:
    """Mutant: gradients planned as if they had no signs."""
    neighbours, loss, table = Neighbours("replace-one"), requested_loss(1, 1e-6), ContingencyTable(())
    one, other = (
        answer_query(asked.GradientSums([table], 2, GRADIENT_UNITS), ScoredRows(
            np.zeros((len(COLUMNS), 1), np.uint8), np.array([label], np.int32),
            np.array([[10**6 * (1 - 2 * label)]], np.int32),
        ))
        for label in (0, 1)
    )  # fmt: skip
    moved = int(((one - other) ** 2).sum())
    l1, squared = gradient_norms(2, GRADIENT_UNITS)
    wrong = AdaptiveBudget(loss, neighbours).plan_counts("gradients", (1, 1), 0.5, l1=l1, squared_l2=squared)
    right = AdaptiveBudget(loss, neighbours).plan_counts(
        "gradients", (1, 1), 0.5, l1=l1, squared_l2=squared, signed=True
    )
    assert moved > wrong.sensitivity
    assert moved <= right.sensitivity


@pytest.mark.parametrize("n_classes", N_CLASSES.values())
def test_scores_of_candidates_move_within_the_range_of_a_choice(n_classes: int) -> None:
    """By enumeration: any row of any table is removed; the change of one score exceeds that of another by no more.

    And the best and the mean score, which are let out as the strengths of columns, move by no more than one score.
    """
    rng = np.random.default_rng(n_classes)
    tables = [
        small_table(),
        *(ContingencyTable((column.default_groups(4),)) for column in COLUMNS),
        ContingencyTable(()),
    ]
    sizes = np.append(0, np.cumsum([table.n_cells for table in tables])[:-1])
    limit, worst, furthest = GRADIENT_UNITS, 0, 0

    def scores(rows: ScoredRows) -> NDArray[np.int64]:
        sums = np.abs(answer_query(asked.GradientSums(tables, n_classes, limit), rows)).sum(axis=1)
        return np.asarray(np.add.reduceat(sums, sizes))

    for _ in range(20):
        rows = random_rows(n_classes, 12, rng)
        whole = scores(rows)
        for i in range(12):
            without = scores(only(rows, set(range(12)) - {i}))
            worst = max(worst, int(np.ptp(whole - without)))
            strengths = [(some.max(), np.maximum(some - 3 * limit, 0).sum() // len(some)) for some in (whole, without)]
            furthest = max(furthest, int(np.abs(np.subtract(strengths[0], strengths[1])).max()))
    assert 0.5 * gradient_norms(n_classes, limit)[0] < furthest <= gradient_norms(n_classes, limit)[0]
    assert 0.5 * gradient_norms(n_classes, limit)[0] < worst <= 2 * gradient_norms(n_classes, limit)[0]


# -- columns and shrinking -------------------------------------------------------------------------------------------


# -- prices ----------------------------------------------------------------------------------------------------------


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


# -- plans -----------------------------------------------------------------------------------------------------------


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
