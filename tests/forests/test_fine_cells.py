# SPDX-License-Identifier: Apache-2.0
"""Fine cells: whole fits of neighbours step by step, plans, the choice of groups, converted forests, what is learned.

The noise on sparse counts is in test_sparse_counts.py, the other methods of PrivateForest in test_private_forest.py.
"""

from __future__ import annotations

import pickle
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

import veilwood as vw
from veilwood import audit
from veilwood.audit.attacks import attack, prepared
from veilwood.audit.model_file import check_model
from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import GRID_CELLS, EncodedColumn, Encoding
from veilwood.forests.adaptive import cell_forests, fine_cells, recipes
from veilwood.forests.adaptive.boosting import probabilities
from veilwood.forests.adaptive.cell_effects import effects_of_cells
from veilwood.forests.adaptive.fine_cells import FineCells, choose_axes, plan_cells
from veilwood.forests.adaptive.recipes import LEAST_RICH, RICH, RICH_WITH_DELTA, cell_bits, choose, uses_cells
from veilwood.forests.adaptive.table_trees import COARSE_CELLS, Axis, coarse_codes
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.ledger import MemoryLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours, Rows
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.sparse_noise import MOST_SPARSE_CELLS, SparseLaplace
from veilwood.privacy.steps import Step
from veilwood.trees.counting import sum_over_trees
from veilwood.trees.forest import LEAF, Forest

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]

Ints = NDArray[np.int64]

NUMBER = EncodedColumn("number", ordered=True, n_codes=GRID_CELLS, missing_code=None)
GAPPY = EncodedColumn("gappy", ordered=True, n_codes=GRID_CELLS + 1, missing_code=GRID_CELLS)
WARD = EncodedColumn("ward", ordered=False, n_codes=6, missing_code=5)

CLINIC: list[dict[str, Any]] = [
    {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "nullable": True},
    {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"], "nullable": True},
    {"name": "income", "kind": "numeric", "lower": 0, "upper": 1e6, "transform": "log1p"},
]
TARGETS: dict[str, dict[str, Any]] = {
    "two": {"name": "target", "kind": "categorical", "values": ["no", "yes"]},
    "three": {"name": "target", "kind": "categorical", "values": ["a", "b", "c"]},
}
TASKS = list(TARGETS)
KINDS = {"forest": cell_forests.CANDIDATES[:-1], "additive": cell_forests.CANDIDATES[-1:]}


def schema_of(task: str) -> vw.Schema:
    columns = [*CLINIC, TARGETS[task]]
    return vw.Schema.from_dict({"name": "clinic", "task": "classification", "target": "target", "columns": columns})


def table_of(task: str, n: int, seed: int = 0) -> tuple[pd.DataFrame, NDArray[Any]]:
    """Rows with missing numbers and categories; the first has nothing but an income."""
    rng = np.random.default_rng(seed)
    age, ward = rng.uniform(0, 100, n), rng.integers(0, 3, n)
    no_age, no_ward = rng.random(n) < 0.1, rng.random(n) < 0.1
    no_age[0] = no_ward[0] = True
    X = pd.DataFrame({
        "age": np.where(no_age, np.nan, age),
        "ward": np.array(["A", "B", "C", None], dtype=object)[np.where(no_ward, 3, ward)],
        "income": rng.lognormal(8, 2, n),
    })  # fmt: skip
    level = age / 50 + ward + rng.normal(0, 0.2, n)
    cuts = [2.0] if task == "two" else [1.3, 2.7]
    return X, np.array(TARGETS[task]["values"])[np.searchsorted(cuts, level)]


def forest_of(task: str, **params: Any) -> Any:
    return vw.PrivateForestClassifier(schema_of(task), **{"epsilon": 20.0, "random_state": 0, "n_jobs": 1, **params})


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_forests, "TREES", 12)
    monkeypatch.setattr(cell_forests, "JUDGED_TREES", 2)
    monkeypatch.setattr(cell_forests, "STUMPS", 40)


# -- 1. sensitivity -------------------------------------------------------------------------------------------

Exact = NDArray[np.int64] | dict[int, int]


def distance(one: Exact, other: Exact) -> int:
    """How far apart two exact inputs of a step are, in L1 norm."""
    if isinstance(one, dict) and isinstance(other, dict):
        return sum(abs(one.get(cell, 0) - other.get(cell, 0)) for cell in one.keys() | other.keys())
    assert isinstance(one, np.ndarray)
    assert isinstance(other, np.ndarray)
    return int(np.abs(one - other).sum())


class Tape:
    """Stands at the door: records one fit, and shows every later one what came out for the first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[Step, Exact, int, Any]] = []  # step, exact input, number of cells, what came out
        self.furthest: dict[str, Fraction] = {}  # of each step, in units of its planned sensitivity
        self.position: int | None = None  # None while recording
        noisy, sparse = Door.noisy, Door.sparse

        def at_noisy(door: Door, step: Step, exact: Ints) -> Ints:
            if self.position is None:
                self.steps.append((step, exact.copy(), exact.size, noisy(door, step, exact)))
                return self.steps[-1][3]  # type: ignore[no-any-return]
            door._pass(step, exact.shape)
            return self.play(step, exact, exact.size)  # type: ignore[no-any-return]

        def at_sparse(door: Door, step: Step, cells: Ints, counts: Ints, n_cells: int) -> tuple[Ints, Ints]:
            assert len(np.unique(cells)) == len(cells)
            assert 0 <= cells.min() <= cells.max() < n_cells
            exact = dict(zip(cells.tolist(), counts.tolist(), strict=True))
            if self.position is None:
                self.steps.append((step, exact, n_cells, sparse(door, step, cells, counts, n_cells)))
                return self.steps[-1][3]  # type: ignore[no-any-return]
            door._pass(step, step.shape)
            return self.play(step, exact, n_cells)  # type: ignore[no-any-return]

        monkeypatch.setattr(Door, "noisy", at_noisy)
        monkeypatch.setattr(Door, "sparse", at_sparse)

    def play(self, step: Step, exact: Exact, n_cells: int) -> Any:
        assert self.position is not None
        planned, before, planned_cells, out = self.steps[self.position]
        assert step == planned
        assert n_cells == planned_cells, "the number of cells depends on the rows"
        self.position += 1
        moved = Fraction(distance(before, exact), step.sensitivity)
        self.furthest[step.name] = max(self.furthest.get(step.name, Fraction(0)), moved)
        return out


def furthest_steps(
    task: str, adjacency: str, unit: int, monkeypatch: pytest.MonkeyPatch, n_rows: int | None = None
) -> dict[str, Fraction]:
    """Fit a table and its neighbours, all of them that lack a unit, or some in which it is another."""
    monkeypatch.setattr(cell_forests, "TREES", 1)
    monkeypatch.setattr(cell_forests, "CANDIDATES", cell_forests.CANDIDATES[:1])
    monkeypatch.setattr(cell_forests, "ONE_FOLD_FROM", 0)
    n = 36
    X, y = table_of(task, n)
    others, other_y = table_of(task, n, seed=1)
    forest = forest_of(task, method="cells", adjacency=adjacency, privacy_unit=unit, n_rows=n_rows, epsilon=30.0)
    tape = Tape(monkeypatch)
    with seeded_for_tests(5):
        forest.fit(X, y)
    for first in range(n - unit + 1):
        kept = np.delete(np.arange(n)[::-1], np.arange(n - unit - first, n - first))  # in another order, too
        near, near_y = X.iloc[kept], y[kept]
        if adjacency == "replace-one":
            near = pd.concat([near, others[first : first + unit]])
            near_y = np.concatenate([near_y, other_y[first : first + unit]])
        tape.position = 0
        forest.fit(near, near_y)
        assert tape.position == len(tape.steps)
    return tape.furthest


def names_of(task: str, bought: bool) -> list[str]:
    return ["number of rows"] * bought + ["classes by column", "fine cells"]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("adjacency", "unit"), [("add-remove", 1), ("replace-one", 1), ("add-remove", 2)])
def test_no_step_moves_further_than_planned(
    task: str, adjacency: str, unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given the same earlier outputs. Each bound is attained, so that half the sensitivity would be caught."""
    found = furthest_steps(task, adjacency, unit, monkeypatch)
    assert list(found) == names_of(task, bought=True)
    attained = {name: Fraction(1) for name in found}
    if adjacency == "replace-one":
        attained["number of rows"] = Fraction(0)
    assert found == attained


@pytest.mark.parametrize("task", ["two", "three"])
def test_a_row_counted_twice_is_caught(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Source.batches
    monkeypatch.setattr(Source, "batches", lambda source: (batch for batch in sound(source) for _ in range(2)))
    found = furthest_steps(task, "add-remove", 1, monkeypatch, n_rows=36)
    assert found == {name: Fraction(2) for name in names_of(task, bought=False)}


def test_groups_that_depend_on_the_rows_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: as many groups, but in another order where the number of rows is odd."""
    seen: list[int] = []  # rows, in each pass
    sound, choose_soundly = Source.batches, fine_cells.choose_axes

    def remember(source: Source) -> Iterator[Batch]:
        batches = list(sound(source))
        seen.append(sum(len(batch.target) for batch in batches))
        return iter(batches)

    def peeking(*args: Any) -> tuple[Axis, ...]:
        axes = choose_soundly(*args)
        odd = seen[-1] % 2
        return tuple(replace(axis, groups=axis.size - 1 - axis.groups) for axis in axes) if odd else axes

    monkeypatch.setattr(Source, "batches", remember)
    monkeypatch.setattr(fine_cells, "choose_axes", peeking)
    found = furthest_steps("two", "add-remove", 1, monkeypatch, n_rows=36)
    assert found["classes by column"] == 1
    assert found["fine cells"] > 10


# -- 2. plans -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("bought", [False, True])
@pytest.mark.parametrize(
    "params",
    [
        {"method": "cells"},
        {"delta": 1e-6},
        {"epsilon": 40, "adjacency": "replace-one"},
        {"epsilon": 40, "privacy_unit": 2, "delta": 1e-6},
        {"method": "cells", "epsilon": 1, "delta": 1e-6},
    ],
    ids=str,
)
def test_every_planned_step_comes_once_in_order_and_costs_pure_epsilon(
    task: str, bought: bool, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[str] = []
    sound = Door._pass
    monkeypatch.setattr(Door, "_pass", lambda self, step, shape: passed.append(step.name) or sound(self, step, shape))  # type: ignore[func-returns-value]
    X, y = table_of(task, 200)
    epsilon = Fraction(params.get("epsilon", 20))
    ledger = MemoryLedger(epsilon=epsilon, delta=0)  # no delta is needed, whatever was offered
    forest = forest_of(task, n_rows=None if bought else 200, ledger=ledger, **params).fit(X, y)
    plan = forest.plan_
    assert plan.choices["method"] == "cells"
    assert passed == names_of(task, bought) == [step.name for step in plan.steps]
    (entry,) = ledger.entries()
    assert entry.state == "committed"
    assert entry.loss == plan.loss == Loss.pure(epsilon)
    assert sum(step.loss.epsilon for step in plan.steps) == epsilon
    assert all(isinstance(step.mechanism, DiscreteLaplace) for step in plan.steps[:-1])
    assert isinstance(plan.steps[-1].mechanism, SparseLaplace)
    assert all(step.keeps_its_loss for step in plan.steps)
    assert forest.privacy_.is_private
    assert forest.privacy_.delta == 0
    assert [check.question for check in check_model(forest) if not check.holds] == []
    if not bought:
        assert plan.to_dict() == forest.plan().to_dict()
        assert "little of a single row is hidden" in str(forest.plan())


@pytest.mark.parametrize("task", ["three"])
@pytest.mark.parametrize("n_rows", [None, 300])
def test_without_noise_it_learns_and_says_so(task: str, n_rows: int | None) -> None:
    X, y = table_of(task, 300)
    forest = forest_of(task, epsilon=float("inf"), n_rows=n_rows)
    with pytest.warns(vw.PrivacyWarning, match="NOT PRIVATE"):
        forest.fit(X, y)
    assert forest.plan_.choices["method"] == "cells"
    assert not forest.privacy_.is_private
    assert "NOT PRIVATE" in str(forest.plan_)
    assert "NOT PRIVATE" in str(forest.privacy_)
    assert forest.score(X, y) > 0.6


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_number_of_cells_follows_from_the_chance_finds(n_classes: int) -> None:
    def planned(epsilon: Fraction, n_rows: int) -> fine_cells.CellPlan:
        return plan_cells([NUMBER, GAPPY, WARD], n_classes, n_rows, Loss.pure(epsilon), Neighbours())

    plan = planned(Fraction(10), 1000)
    assert isinstance(plan.cells.mechanism, SparseLaplace)
    assert plan.cells.shape == (500 * plan.cells.mechanism.gap,)
    assert sum(step.loss.epsilon or 0 for step in plan.steps) == 10
    assert plan.columns.shape == (2 * COARSE_CELLS + 1 + 6, n_classes)
    assert plan.columns.sensitivity == 3
    assert planned(Fraction(1, 2), 1).cells.shape == (n_classes,)  # one cell each, at least
    assert planned(Fraction(1000), 10**9).cells.shape == (MOST_SPARSE_CELLS,)


# -- 3. which columns, and how fine ---------------------------------------------------------------------------


def counted(column: EncodedColumn, shares: Any, mass: Any) -> Ints:
    """Counts of two classes, given how many rows each cell of a column has and the share of the second among them."""
    n_cells = COARSE_CELLS + (column.missing_code is not None) if column.ordered else column.n_codes
    shares, mass = np.broadcast_to(shares, n_cells), np.broadcast_to(mass, n_cells)
    return np.round(np.stack([mass * (1 - shares), mass * shares], axis=1)).astype(np.int64)


def n_cells(axes: tuple[Axis, ...]) -> int:
    return prod(axis.size for axis in axes)


@pytest.mark.parametrize("seed", range(12))
def test_groups_fit_and_none_is_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 40, 5)
    columns = [NUMBER, GAPPY, *(EncodedColumn(f"c{size}", False, int(size), None) for size in sizes)]
    columns = [columns[i] for i in rng.permutation(7)]
    n_outcomes, variance = int(rng.integers(2, 9)), float(rng.choice([0.0, 2.0, 800.0]))
    tables = [
        np.round(rng.gamma(0.5, 30, (counted(column, 0, 0).shape[0], n_outcomes))
                 + rng.normal(0, variance**0.5, (counted(column, 0, 0).shape[0], n_outcomes))).astype(np.int64)
        for column in columns
    ]  # fmt: skip
    before = [table.copy() for table in tables]
    for most_cells in [1, 2, 3, 7, 64, *(int(10**power) for power in rng.uniform(1, 15, 4))]:
        axes = choose_axes(columns, tables, variance, most_cells)
        assert n_cells(axes) <= most_cells
        assert 2 * n_cells(axes) > most_cells or n_cells(axes) >= 64 or most_cells < 4  # and it is made use of
        features = [axis.feature for axis in axes]
        assert features == sorted(set(features))
        for axis in axes:
            column = columns[axis.feature]
            assert axis.ordered == column.ordered
            assert len(axis.groups) == len(tables[axis.feature])
            assert axis.size >= 2
            assert np.unique(axis.groups).tolist() == list(range(axis.size))
            assert axis.size <= (fine_cells.FINEST + (column.missing_code is not None) if axis.ordered else 40)
        np.random.seed(seed)  # noqa: NPY002
        again = choose_axes(columns, [table.copy() for table in tables], variance, most_cells)
        assert audit.differences(axes, again) == []
    assert all((one == other).all() for one, other in zip(before, tables, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_rounding_of_logarithms_lets_no_cell_too_many_in(seed: int) -> None:
    """All columns at their finest would be just one cell, or one part in 2**50, more than allowed."""
    rng = np.random.default_rng(seed)
    columns: list[EncodedColumn] = []
    while prod(column.n_codes for column in columns) < 1 << 46:
        columns.append(EncodedColumn("c", False, int(rng.choice([3, 5, 7, 11, 13])), None))
    tables = [counted(column, rng.random(column.n_codes), 100) for column in columns]
    whole = prod(column.n_codes for column in columns)
    assert n_cells(choose_axes(columns, tables, 0.0, whole * 2)) == whole
    assert n_cells(choose_axes(columns, tables, 0.0, whole - 1)) <= whole - 1


def test_a_telling_column_gets_finer_groups_and_a_constant_one_none() -> None:
    telling = counted(NUMBER, np.linspace(0, 1, COARSE_CELLS), 20)
    noise = counted(NUMBER, 0.5, 20)
    constant = counted(NUMBER, 0.5, np.eye(COARSE_CELLS)[100] * 20 * COARSE_CELLS)
    single = EncodedColumn("single", False, 1, None)
    for order in ([0, 1, 2], [2, 1, 0]):
        tables = [[telling, noise, constant][i] for i in order]
        axes = choose_axes([NUMBER] * 3, tables, 2.0, 100)
        sizes = {order[axis.feature]: axis.size for axis in axes}
        assert sizes[0] > sizes.get(1, 1)
        assert 2 not in sizes
    plenty = choose_axes([NUMBER, NUMBER, NUMBER, single], [telling, noise, constant, np.array([[9, 9]])], 2.0, 10**9)
    assert [axis.feature for axis in plenty] == [0, 1]  # what one column alone does not tell, two may
    assert choose_axes([NUMBER, WARD], [telling, counted(WARD, 0.5, 9)], 2.0, 1) == ()


def test_categories_with_similar_classes_are_put_together() -> None:
    column = EncodedColumn("c", False, 8, None)
    shares = np.array([0.1, 0.9, 0.1, 0.9, 0.1, 0.9, 0.1, 0.9])
    (halves,) = choose_axes([column], [counted(column, shares, 1000)], 2.0, 3)
    assert halves.size == 2
    assert len(set(halves.groups[::2])) == len(set(halves.groups[1::2])) == 1
    (quarters,) = choose_axes([column], [counted(column, shares + np.arange(8) / 100, 1000)], 2.0, 7)
    assert quarters.size == 4
    assert not set(quarters.groups[::2]) & set(quarters.groups[1::2])
    by_share = np.argsort(shares + np.arange(8) / 100)
    assert len(set(np.sign(np.diff(quarters.groups[by_share].astype(int)))) - {0}) == 1  # along the outcomes
    (all_apart,) = choose_axes([column], [counted(column, shares, 1000)], 2.0, 8)
    assert sorted(all_apart.groups) == list(range(8))


def test_missing_numbers_have_a_group_of_their_own() -> None:
    mass = np.append(np.full(COARSE_CELLS, 10), 600)
    (axis,) = choose_axes([GAPPY], [counted(GAPPY, np.append(np.linspace(0, 1, COARSE_CELLS), 0.5), mass)], 0.0, 20)
    assert axis.groups[-1] not in axis.groups[:-1]


def test_more_categories_than_groups_can_have() -> None:
    column = EncodedColumn("many", False, 1000, None)
    (axis,) = choose_axes([column], [counted(column, np.linspace(0, 1, 1000), 50)], 0.0, 10**6)
    assert axis.size == fine_cells.MOST_VALUES == np.iinfo(np.uint8).max + 1


# -- 4. converted forests -------------------------------------------------------------------------------------

COLUMNS = (NUMBER, GAPPY, NUMBER, WARD, EncodedColumn("coin", False, 2, None))
AXES = (  # in another order than the columns, one of which is left out
    Axis(3, np.array([1, 0, 2, 1, 3, 0], np.uint16), False, 4),
    Axis.of_cuts(1, GAPPY, [30, 31, 128, 200]),
    Axis.of_cuts(0, NUMBER, [5, 250]),
    Axis(4, np.array([1, 0], np.uint16), False, 2),
)


def cells_of(n: int, n_classes: int, seed: int, axes: tuple[Axis, ...] = AXES, classes: Any = None) -> FineCells:
    rng = np.random.default_rng(seed)
    groups = np.empty((n, len(axes)), np.uint8)
    for number, axis in enumerate(axes):
        groups[:, number] = rng.integers(0, axis.size, n)
    label = rng.integers(0, n_classes, n) if classes is None else rng.choice(classes, n)
    if axes and classes is None:
        label = np.where(groups[:, 0] % 2 == 0, label, groups.sum(axis=1) % n_classes).astype(np.int64)
    return FineCells(axes, groups, label, rng.integers(1, 6, n))


def random_codes(n: int, seed: int) -> NDArray[np.uint16]:
    rng = np.random.default_rng(seed)
    codes = np.column_stack([rng.integers(0, column.n_codes, n) for column in COLUMNS]).astype(np.uint16)
    codes[: n // 8, 1] = GRID_CELLS  # missing
    edges = np.array([0, 5 * 256 - 1, 5 * 256, 30 * 256, 31 * 256, 200 * 256 - 1, 250 * 256, GRID_CELLS - 1])
    codes[-64:, :2] = np.stack(np.meshgrid(edges, edges), axis=-1).reshape(-1, 2)
    return codes


def walked(forest: Forest, codes: NDArray[np.uint16], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum over trees in plain Python."""
    sums = np.zeros((len(codes), values.shape[1]))
    for i, row in enumerate(codes.tolist()):
        for root in forest.roots.tolist():
            node = root
            while forest.feature[node] != LEAF:
                code, cut = row[forest.feature[node]], int(forest.cut[node])
                branch = code >= cut if cut >= 0 else forest.lookup[-1 - cut + code]
                node = int(forest.child[node] + branch)
            sums[i] += values[forest.child[node]]
    return sums


def shares_of(grown: cell_forests.Grown, codes: NDArray[np.uint16], fast: bool = True) -> NDArray[np.float64]:
    scores = grown.start + sum_over_trees(grown.forest, codes, grown.values, n_jobs=1, fast=fast)
    return probabilities(scores) if grown.additive else scores


def grown_with_twin(
    cells: FineCells, n_classes: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[cell_forests.Grown, Callable[[NDArray[np.uint16]], NDArray[np.float64]]]:
    """Grow, and return the scikit-learn model that was converted too, as a function of codes."""
    made: list[Any] = []
    with monkeypatch.context() as patch:
        for name in ("_fitted_tree", "_fitted_stumps"):
            sound = getattr(cell_forests, name)
            patch.setattr(cell_forests, name, lambda *args, sound=sound: made.append(sound(*args)) or made[-1])  # type: ignore[func-returns-value]
        grown = cell_forests.grow(cells, n_classes, np.random.default_rng(0), 1)

    def twin(codes: NDArray[np.uint16]) -> NDArray[np.float64]:
        coarse = coarse_codes(COLUMNS, codes)
        X = np.zeros((len(codes), max(1, len(cells.axes))))
        for place, axis in enumerate(cells.axes):
            X[:, place] = axis.groups[coarse[axis.feature]]
        shares = np.zeros((len(codes), n_classes))
        last = made[-1:] if grown.additive else made[-cell_forests.n_trees(n_classes) :]
        for one in last:
            shares[:, one.classes_] += one.predict_proba(X) / len(last)
        return shares

    return grown, twin


@pytest.mark.parametrize("candidate", cell_forests.CANDIDATES, ids=str)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_converted_forest_predicts_what_it_was_converted_from(
    n_classes: int, candidate: cell_forests.Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_forests, "CANDIDATES", (candidate,))
    grown, twin = grown_with_twin(cells_of(1500, n_classes, 1), n_classes, monkeypatch)
    forest = grown.forest
    codes = random_codes(300, 2)
    expected = twin(codes)
    assert np.ptp(expected) > 0.1
    assert grown.additive == (candidate.kind == "additive")
    assert set(forest.feature) == {LEAF, 0, 1, 3, 4}
    for fast in (False, True):
        assert np.allclose(shares_of(grown, codes, fast), expected, rtol=0, atol=1e-12)
    plain = walked(forest, codes[-80:], grown.values)
    assert np.allclose(plain, sum_over_trees(forest, codes[-80:], grown.values, n_jobs=1), rtol=0, atol=1e-12)
    n_codes = [column.n_codes for column in COLUMNS]
    read = Forest.from_arrays(forest.to_arrays(), n_codes)  # which refuses what is no forest
    assert audit.differences(read.to_arrays(), forest.to_arrays()) == []


@pytest.mark.parametrize("n_classes", [3])
@pytest.mark.parametrize(
    ("n", "axes", "classes"),
    [
        (1, AXES, None),
        (2, AXES, None),
        (3, AXES, None),
        (200, (), None),
        (1, (), None),
        (200, AXES, [0, 2]),
        (200, AXES, [1]),
        (1, AXES, [2]),
        (200, AXES[:1], [2]),
        (200, AXES[1:2], [0, 1]),
    ],
)
def test_few_cells_classes_and_axes(
    n: int, axes: tuple[Axis, ...], classes: Any, n_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = cells_of(n, n_classes, 3, axes, classes)
    grown, twin = grown_with_twin(cells, n_classes, monkeypatch)
    codes = random_codes(100, 4)
    predicted = shares_of(grown, codes)
    assert np.allclose(predicted, twin(codes), rtol=0, atol=1e-12)
    assert predicted.shape == (100, n_classes)
    assert np.allclose(predicted.sum(axis=1), 1)
    assert (predicted[:, np.setdiff1d(np.arange(n_classes), cells.label)] == 0).all()
    Forest.from_arrays(grown.forest.to_arrays(), [column.n_codes for column in COLUMNS])


@pytest.mark.parametrize("axes", [AXES, ()])
def test_where_no_cell_came_out_nothing_is_known(axes: tuple[Axis, ...]) -> None:
    for n_classes, expected in ((2, [0.5, 0.5]), (4, [0.25] * 4)):
        grown = cell_forests.grow(cells_of(0, n_classes, 0, axes), n_classes, np.random.default_rng(0), 1)
        assert (shares_of(grown, random_codes(100, 0)) == expected).all()


def test_the_kind_of_forest_is_the_one_that_predicts_best(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    sound = cell_forests._fitted_tree
    monkeypatch.setattr(cell_forests, "_fitted_tree", lambda *args: made.append(args) or sound(*args))  # type: ignore[func-returns-value]
    monkeypatch.setattr(cell_forests, "JUDGED_TREES", 10)
    monkeypatch.setattr(cell_forests, "CANDIDATES", KINDS["forest"])
    for noise, large in ((False, False), (True, True)):  # chance wants large leaves, a rule small ones
        cells = cells_of(600, 2, 5, classes=[0, 1])
        cells = replace(cells, weight=np.ones_like(cells.weight))
        if not noise:
            rule = (cells.groups.sum(axis=1) % 2).astype(np.int64)
            cells = FineCells(AXES, cells.groups, rule, cells.weight)
        cell_forests.grow(cells, 2, np.random.default_rng(0), 1)
        candidate, n_rows = made[-1][0], cells.weight.sum()
        seeds = [args[4] for args in made[-cell_forests.TREES - 10 :] if len(args[2]) == n_rows]
        assert len(set(seeds)) == cell_forests.TREES  # which are grown from all rows
        assert (candidate.min_samples_leaf >= 20) == large
        assert {args[0] for args in made} == set(cell_forests.CANDIDATES)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_a_tree_of_many_cells_sees_some_of_them(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_forests, "MOST_ROWS", 40)
    monkeypatch.setattr(cell_forests, "FEWEST_ROWS", 40)
    monkeypatch.setattr(cell_forests, "ONE_FOLD_FROM", 100)
    grown, twin = grown_with_twin(cells_of(500, n_classes, 6), n_classes, monkeypatch)
    assert np.diff(grown.forest.tree_leaves).max() <= 40
    codes = random_codes(100, 7)
    assert np.allclose(shares_of(grown, codes), twin(codes), rtol=0, atol=1e-12)


@pytest.mark.parametrize("candidate", KINDS["forest"], ids=str)
def test_a_forest_is_judged_by_the_mean_of_its_trees(
    candidate: cell_forests.Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_forests, "JUDGED_TREES", 5)
    cells = cells_of(600, 3, 8, classes=[0, 2])
    X, y = cell_forests._table(cells, np.arange(600))
    assert X.tolist() == cells.groups.tolist()
    trees = [cell_forests._fitted_tree(candidate, X[:400], y[:400], 3, 7 + tree) for tree in range(5)]
    expected = np.mean([tree.predict_proba(X[400:]) for tree in trees], axis=0)
    for n_jobs in (1, 3):
        shares = cell_forests._shares(candidate, X[:400], y[:400], X[400:], 3, 7, n_jobs)
        assert np.allclose(shares[:, [0, 2]], expected, rtol=0, atol=1e-12)
        assert (shares[:, 1] == 0).all()


@pytest.mark.parametrize("n_rows", [300, 700])
def test_a_tree_is_that_of_scikit_learn_on_the_rows_it_drew(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row drawn twice has twice the weight, and is one row of a leaf."""
    monkeypatch.setattr(cell_forests, "MOST_ROWS", 500)
    monkeypatch.setattr(cell_forests, "FEWEST_ROWS", 500)
    X, y = cell_forests._table(cells_of(n_rows, 2, 9), np.arange(n_rows))
    for candidate in KINDS["forest"]:
        all_rows = candidate.kind == "extra" and n_rows == 300
        times = np.bincount(np.random.default_rng(3).integers(0, n_rows, min(n_rows, 500)), minlength=n_rows)
        kept = dict(max_features=candidate.max_features, min_samples_leaf=candidate.min_samples_leaf, random_state=3)
        plain: Any = (ExtraTreeClassifier if candidate.kind == "extra" else DecisionTreeClassifier)(**kept)
        plain.fit(X, y, sample_weight=None if all_rows else times)
        grown = cell_forests._fitted_tree(candidate, X, y, 2, 3).tree_
        assert grown.n_node_samples[0] == (n_rows if all_rows else (times > 0).sum())
        assert grown.weighted_n_node_samples[0] == (n_rows if all_rows else times.sum())
        assert grown.node_count == plain.tree_.node_count
        assert (grown.threshold == plain.tree_.threshold).all()
        assert np.allclose(grown.value, plain.tree_.value)


def test_of_very_many_rows_none_is_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row both in a fold and left out of it would make leaves of single rows look good."""
    monkeypatch.setattr(cell_forests, "MOST_KEPT", 300)
    rng = np.random.default_rng(0)
    for weight in (np.ones(301, np.int64), rng.integers(1, 4, 200), np.array([1, 10**15, 5])):
        row = cell_forests._as_rows(weight, rng)
        assert len(row) == 300
        assert (np.bincount(row, minlength=len(weight)) <= weight).all()
        assert (np.diff(row) >= 0).all()
    few = rng.integers(1, 4, 100)
    assert np.bincount(cell_forests._as_rows(few, rng)).tolist() == few.tolist()


def test_columns_that_act_one_by_one_are_learned_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve columns add to the log-odds, and deep trees run out of rows before they have seen all of them."""
    monkeypatch.setattr(cell_forests, "JUDGED_TREES", 10)
    monkeypatch.setattr(cell_forests, "ONE_FOLD_FROM", 0)
    monkeypatch.setattr(cell_forests, "STUMPS", 200)
    rng = np.random.default_rng(0)
    axes = tuple(Axis.of_cuts(j, NUMBER, range(32, 256, 32)) for j in range(12))
    groups = rng.integers(0, 8, (3000, 12))
    odds = ((groups - 3.5) ** 2 - 5.25).sum(axis=1) / 5
    label = (rng.random(3000) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    cells = FineCells(axes, groups[:2000].astype(np.uint8), label[:2000], np.ones(2000, np.int64))
    codes = (groups[2000:] * 32 * 256).astype(np.uint16)
    right = {}
    for candidates in (cell_forests.CANDIDATES, KINDS["forest"]):
        monkeypatch.setattr(cell_forests, "CANDIDATES", candidates)
        grown = cell_forests.grow(cells, 2, rng, 1)
        right[grown.additive] = (shares_of(grown, codes).argmax(axis=1) == label[2000:]).mean()
    assert right[True] > right[False] + 0.03


# -- 5. what is counted ---------------------------------------------------------------------------------------


def in_batches(codes: NDArray[np.uint16], target: NDArray[np.int32], sizes: list[int]) -> Source:
    """A source that gives so many rows at a time."""
    parts = np.split(np.arange(len(target)), np.cumsum(sizes))
    return Source(lambda: iter([partial(Batch, codes[part], target[part], 0, 0) for part in parts]))


@pytest.mark.parametrize("sizes", [[], [0, 100], [1, 150, 149]])
@pytest.mark.parametrize("n", [0, 1, 300])
def test_counts_are_those_of_plain_python(n: int, sizes: list[int]) -> None:
    codes, target = random_codes(n + 64, 9)[64:], np.random.default_rng(9).integers(0, 3, n).astype(np.int32)
    codes[n // 2 :] = codes[: n - n // 2]  # cells of several rows
    source, by_column, in_cells = in_batches(codes, target, sizes), Counter[tuple[int, int, int]](), Counter[int]()
    for row, label in zip(codes.tolist(), target.tolist(), strict=True):
        coarse = []
        for code, column in zip(row, COLUMNS, strict=True):
            number = COARSE_CELLS if code == column.missing_code else code // 256
            coarse.append(number if column.ordered else code)
        by_column.update((feature, code, label) for feature, code in enumerate(coarse))
        cell = 0
        for axis in AXES:
            cell = cell * axis.size + int(axis.groups[coarse[axis.feature]])
        in_cells[cell * 3 + label] += 1
    sizes_of = [COARSE_CELLS, COARSE_CELLS + 1, COARSE_CELLS, WARD.n_codes, 2]
    counts = np.split(fine_cells._classes_by_column(COLUMNS, 3, source.batches()), np.cumsum(sizes_of)[:-1])
    assert [len(table) for table in counts] == sizes_of
    found = {(j, *map(int, at)): int(table[tuple(at)]) for j, table in enumerate(counts) for at in np.argwhere(table)}
    assert found == by_column
    cells, rows = fine_cells._occupied(COLUMNS, AXES, 3, source)
    assert cells.dtype == rows.dtype == np.int64
    assert list(zip(cells.tolist(), rows.tolist(), strict=True)) == sorted(in_cells.items())


@pytest.mark.parametrize("n_rows", [None, 300])
def test_the_rows_are_gone_before_anything_is_learned(n_rows: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they and the trees are never in memory together."""
    seen: list[weakref.ref[Source]] = []
    measure, grow = fine_cells.measure, cell_forests.grow

    def remember(plan: Any, columns: Any, n_classes: int, source: Source, *rest: Any) -> FineCells:
        seen.append(weakref.ref(source))
        return measure(plan, columns, n_classes, source, *rest)

    def look(*args: Any) -> Any:
        assert seen[-1]() is None
        return grow(*args)

    monkeypatch.setattr(fine_cells, "measure", remember)
    monkeypatch.setattr(cell_forests, "grow", look)
    forest_of("two", method="cells", n_rows=n_rows).fit(*table_of("two", 300))
    assert len(seen) == 1


# -- 6. what it learns ------------------------------------------------------------------------------------------


def checkerboard(n: int, seed: int) -> tuple[vw.Schema, pd.DataFrame, NDArray[Any]]:
    """Three columns, none of which, and no two of which, tell anything."""
    rng = np.random.default_rng(seed)
    names = ["x", "y", "z"]
    X = pd.DataFrame(rng.random((n, 3)), columns=names)
    black = (np.floor(X.to_numpy() * 3).sum(axis=1) % 2).astype(int)
    numeric = [{"name": name, "kind": "numeric", "lower": 0, "upper": 1} for name in names]
    columns = [*numeric, {"name": "target", "kind": "categorical", "values": ["white", "black"]}]
    schema = vw.Schema.from_dict({"name": "board", "task": "classification", "target": "target", "columns": columns})
    return schema, X, np.array(["white", "black"])[black]


def test_it_learns_what_random_structure_cannot() -> None:
    schema, X, y = checkerboard(4000, 0)
    scores = {}
    for method in ("auto", "boosting"):
        forest = vw.PrivateForestClassifier(schema, epsilon=20.0, n_rows=3000, method=method, random_state=0, n_jobs=1)
        with seeded_for_tests(1):
            forest.fit(X[:3000], y[:3000])
        scores[method] = forest.score(X[3000:], y[3000:])
        assert forest.plan_.choices["method"] == {"auto": "cells"}.get(method, method)
        chances = forest.predict_proba(X[3000:])
        assert chances.shape == (1000, 2)
        assert np.allclose(chances.sum(axis=1), 1)
        assert (chances >= 0).all()
        assert (forest.predict(X[3000:]) == forest.classes_[chances.argmax(axis=1)]).all()
    assert scores["auto"] > 0.9
    assert scores["auto"] > scores["boosting"] + 0.2


@pytest.mark.parametrize("task", TASKS)
def test_frames_and_arrays_with_gaps_are_learned_alike(task: str) -> None:
    X, y = table_of(task, 1500)
    tables = {
        "frame": (X[:1000], y[:1000]), "array": (X[:1000].to_numpy(dtype=object), y[:1000].tolist()),
        "one table": (X[:1000].assign(target=y[:1000]), None),
    }  # fmt: skip
    predictions = []
    for table, target in tables.values():
        with seeded_for_tests(2):
            forest = forest_of(task, method="cells", n_rows=1000).fit(table, target)
        assert forest.score(X[1000:], y[1000:]) > {"two": 0.85, "three": 0.75}[task]
        predictions.append(forest.predict(X))
    assert all((one == predictions[0]).all() for one in predictions)
    unknown = forest.predict(X.assign(age=np.nan, ward=None))
    assert len(set(unknown)) < len(set(X["income"]))  # nothing but an income, in groups, is known


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_clones_files_and_pickles_predict_alike(
    kind: str, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_forests, "CANDIDATES", KINDS[kind])
    X, y = table_of(task, 400)
    forest = forest_of(task, method="cells")
    twin = clone(forest)
    assert twin.get_params() == forest.get_params()
    with seeded_for_tests(3):
        forest.fit(X, y)
    with seeded_for_tests(3):
        twin.fit(X, y)
    path = tmp_path / "model"
    vw.save(forest, path)
    assert np.allclose(forest.predict_proba(X).sum(axis=1), 1)
    assert forest.score(X, y) > 0.7
    for other in (twin, vw.load(path), pickle.loads(pickle.dumps(forest))):
        assert (other.predict(X) == forest.predict(X)).all()
        assert (other.predict_proba(X) == forest.predict_proba(X)).all()
        assert other.plan_.to_dict() == forest.plan_.to_dict()
        assert other.explain().to_dict() == forest.explain().to_dict()
    monkeypatch.setattr(cell_forests, "most_leaves", lambda n_classes: forest.forest_.n_leaves)
    vw.load(path)
    monkeypatch.setattr(cell_forests, "most_leaves", lambda n_classes: forest.forest_.n_leaves - 1)
    with pytest.raises(vw.VeilwoodError, match="leaves are more than"):
        vw.load(path)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_whose_values_do_not_fit_its_trees_is_refused(
    kind: str, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_forests, "CANDIDATES", KINDS[kind])
    X, y = table_of(task, 300)
    forest = forest_of(task, method="cells", n_rows=300).fit(X, y)
    arrays = forest._model_arrays()
    values, start = arrays["leaf_values"], arrays["start"]
    of_kind = {
        "forest": [
            {"leaf_values": -values},
            {"leaf_values": values * 1e6},
            {"pair_columns": arrays["pair_columns"] + 10},
        ],
        "additive": [{"start": np.zeros_like(start)}, {"leaf_values": values + np.inf}],
    }
    for wrong in (
        {"leaf_values": values[:-1]},
        {"leaf_values": values.astype(np.float32)},
        {"leaf_values": np.zeros((len(values), 7)), "start": np.zeros(7)},
        {"leaf_values": values[:, :0], "start": start[:0]},
        {"start": np.zeros(4)},
        {"child": arrays["child"][::-1].copy()},
        {"cut": arrays["cut"] - 10**6},
        {"leaf_values": values * np.nan},
        {"start": start + 1},
        {"start": start * np.nan},
        *of_kind[kind],
        {"effects": arrays["effects"][:-1]},
        {"effects": arrays["effects"].astype(str)},
        {"effect_errors": arrays["effect_errors"].astype(np.float32)},
        {"effect_columns": arrays["effect_columns"] - 10},
        {"effect_columns": arrays["effect_columns"].astype(np.int64)},
        {"pair_columns": arrays["pair_columns"].ravel()},
        {"pair_strengths": arrays["pair_strengths"][:, :1]},
    ):
        with pytest.raises(vw.VeilwoodError):
            forest._restore({**arrays, **wrong})
    with pytest.raises(vw.VeilwoodError):  # of two classes, too, both have their share
        forest._restore({**arrays, "leaf_values": values[:, :1], "start": start[:1]})
    forest._restore(arrays)


@pytest.mark.parametrize("sizes", [(2,), (2, 2, 2), (3, 3, 3)])
def test_few_cells_with_many_rows_each_are_learned(sizes: tuple[int, ...]) -> None:
    """A cell counts as often as it has rows: one entry of a fold must not be a whole class of its place."""
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(0, size, 4000) for size in sizes], axis=1)
    y = np.where(rng.random(4000) < 0.1, 1, 0) ^ (X.sum(axis=1) % 2)
    columns: list[dict[str, Any]] = [
        {"name": f"x{i}", "kind": "categorical", "values": [str(value) for value in range(size)]}
        for i, size in enumerate(sizes)
    ]
    columns.append({"name": "y", "kind": "categorical", "values": ["0", "1"]})
    schema = vw.Schema.from_dict({"name": "parity", "task": "classification", "target": "y", "columns": columns})
    forest = vw.PrivateForestClassifier(schema, epsilon=8.0, n_rows=3000, random_state=0)
    forest.fit(X[:3000].astype(str), y[:3000].astype(str))
    assert forest.plan_.choices["method"] == "cells"
    assert forest.score(X[3000:].astype(str), y[3000:].astype(str)) > 0.85


def test_cells_of_groups_that_hold_only_chance_finds_are_left_out() -> None:
    rng = np.random.default_rng(0)
    real = np.stack([rng.integers(0, 2, 2000), rng.integers(0, 4, 2000)], axis=1)
    finds = rng.integers(0, 4, (400, 2))
    axes = tuple(Axis.of_cuts(j, NUMBER, [64, 128, 192]) for j in range(2))
    label = rng.integers(0, 2, 2400)
    cells = FineCells(
        axes, np.concatenate([real, finds]).astype(np.uint8), label, np.ones(2400, np.int64), finds=400.0,
    )  # fmt: skip
    kept = fine_cells.without_empty_groups(cells)
    assert set(kept.groups[:, 0].tolist()) == {0, 1}
    assert set(kept.groups[:, 1].tolist()) == {0, 1, 2, 3}
    assert kept.finds == pytest.approx(400 / 2)
    few = FineCells(axes, cells.groups[:30], label[:30], np.ones(30, np.int64), finds=100.0)
    assert len(fine_cells.without_empty_groups(few).weight) == 30  # too few rows to tell which groups are empty


def test_a_fit_that_fails_while_growing_keeps_the_earlier_model(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = table_of("two", 300)
    ledger = MemoryLedger(epsilon=100, delta=0)
    forest = forest_of("two", method="cells", n_rows=300, ledger=ledger).fit(X, y)
    before = forest.predict_proba(X)

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cell_forests, "grow", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        forest.fit(X[:100], y[:100])
    assert "was spent" in stopped.value.__notes__[-1]
    assert (forest.predict_proba(X) == before).all()
    assert len(ledger.entries()) == 2
    fresh = forest_of("two", method="cells", n_rows=300)
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(X, y)
    with pytest.raises(NotFittedError):
        fresh.predict(X)


def test_forests_of_many_classes_stay_small() -> None:
    assert cell_forests.n_trees(0) == cell_forests.n_trees(8) == cell_forests.TREES
    assert 200 * cell_forests.most_leaves(200) < 1 << 26


def test_errors_of_effects_grow_where_nothing_but_chance_finds_are() -> None:
    """A column whose upper half is empty: what is told of that half has the largest error there is."""
    rng = np.random.default_rng(0)
    X = np.stack([rng.random(3000) / 2, rng.random(3000)], axis=1)
    y = np.where(X[:, 1] > 0.5, "yes", "no")
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
    encoding = Encoding(schema, "grid")
    axes = tuple(Axis.of_cuts(j, column, [64, 128, 192]) for j, column in enumerate(encoding.columns))
    groups = np.minimum((X * 4).astype(np.uint8), 3)
    finds = rng.integers(0, 4, (400, 2)).astype(np.uint8)
    cells = FineCells(
        axes, np.concatenate([groups, finds]), np.concatenate([(y == "yes") * 1, rng.integers(0, 2, 400)]),
        np.ones(3400, np.int64), finds=400.0,
    )  # fmt: skip
    effects = effects_of_cells(cell_forests.grow(cells, 2, rng, 1), cells, encoding, rng)
    by_name = {main.column: main for main in effects.main}
    assert effects.main[0].column == "x1"
    assert by_name["x0"].error[-1, 0] > 5 * by_name["x0"].error[0, 0]
    assert by_name["x1"].effect[-1, 0] - by_name["x1"].effect[0, 0] > 3


@pytest.mark.parametrize("task", TASKS)
def test_where_next_to_nothing_comes_out_it_still_predicts(task: str) -> None:
    """One row, and a budget for which cells are a poor choice."""
    X, y = table_of(task, 3)
    for epsilon in (0.5, 20.0):
        forest = forest_of(task, method="cells", epsilon=epsilon, n_rows=1).fit(X[:1], y[:1])
        assert forest.predict(X).shape == (3,)
        assert np.allclose(forest.predict_proba(X).sum(axis=1), 1)


@pytest.mark.parametrize("n_rows", [None, 100])
def test_a_budget_too_poor_for_cells_is_refused_before_anything_is_spent(n_rows: int | None) -> None:
    ledger = MemoryLedger()
    X, y = table_of("two", 100)
    with pytest.raises(vw.VeilwoodError, match=r"epsilon=0\.1 is too little"):
        forest_of("two", method="cells", epsilon=0.1, n_rows=n_rows, ledger=ledger).fit(X, y)
    assert ledger.spent == Loss.zero()


# -- 7. which budgets are rich ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("n_columns", [1, 3, 8, 40])
def test_cells_are_used_from_some_epsilon_on(n_classes: int, n_columns: int) -> None:
    columns = [NUMBER, GAPPY, WARD, *[NUMBER] * 40][:n_columns]
    epsilons = [Fraction(quarter, 4) for quarter in range(1, 100)]
    firsts = {}
    for reach in (1, 2, 3):
        for n_rows in (None, 10, 1000, 10**6):
            used = [uses_cells(columns, n_classes, n_rows, Loss.pure(epsilon), reach) for epsilon in epsilons]
            assert used == sorted(used)  # once rich, always rich
            firsts[reach, n_rows] = used.index(True) if any(used) else len(used)
            if any(used):
                epsilon = epsilons[firsts[reach, n_rows]]
                assert epsilon >= LEAST_RICH * reach
                assert choose(columns, n_classes, n_rows or 1, Loss.pure(epsilon), "cells", reach).method == "cells"
                if n_rows:
                    assert choose(columns, n_classes, n_rows, Loss.pure(epsilon), None, reach).method == "cells"
                    poorer = Loss.pure(epsilon - Fraction(1, 4))
                    assert choose(columns, n_classes, n_rows, poorer, None, reach).method != "cells"
    for reach in (1, 2, 3):
        unknown, few, more, many = (firsts[reach, n_rows] for n_rows in (None, 10, 1000, 10**6))
        assert many <= more <= few  # more rows afford more cells
        rich = RICH_WITH_DELTA * reach
        assert unknown == (epsilons.index(Fraction(rich)) if rich <= epsilons[-1] else len(epsilons))
        if n_classes:  # finer cells than HARDLY_COVERED wants
            least = epsilons.index(Fraction(RICH * reach)) if RICH * reach <= epsilons[-1] else len(epsilons)
            assert n_columns > 8 or many <= least
    for n_rows in (None, 10, 1000, 10**6):
        assert firsts[1, n_rows] <= firsts[2, n_rows] <= firsts[3, n_rows]


def test_poor_budgets_use_cells_only_when_told_to() -> None:
    loss = Loss.pure(Fraction(LEAST_RICH) - Fraction(1, 100))
    assert not uses_cells([WARD], 2, 10**12, loss, 1)
    assert uses_cells([WARD], 2, 10**12, Loss.pure(Fraction(LEAST_RICH)), 1)
    assert choose([WARD], 2, 1000, loss, "cells") == recipes.Recipe("cells", 1000, 1)
    assert uses_cells([WARD], 2, None, Loss.unbounded(), 1)


def test_a_numeric_target_is_not_learned_from_cells() -> None:
    with pytest.raises(vw.VeilwoodError, match="is for classes"):
        vw.PrivateForestRegressor(vw.Schema.numeric((0, 1), target_bounds=(0, 1), n_features=1), method="cells").plan()
    for loss in (Loss.pure(Fraction(50)), Loss.unbounded(), Loss(Fraction(50), Fraction(1, 10**6), Fraction(1))):
        assert not uses_cells([NUMBER], 0, 10**6, loss, 1)
        assert choose([NUMBER], 0, 10**6, loss).method == "boosting"


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_delta_is_given_up_for_cells_only_from_a_richer_budget_on(n_classes: int) -> None:
    for n_rows in (None, 10, 10**9):
        for epsilon in (5, 12, 17.9, 18, 25):
            loss = Loss(Fraction(epsilon), Fraction(1, 10**6), Fraction(1))
            assert uses_cells([NUMBER, WARD], n_classes, n_rows, loss, 1) == (epsilon >= RICH_WITH_DELTA)
    loss = Loss(Fraction(25), Fraction(1, 10**6), Fraction(1))
    assert not uses_cells([NUMBER] * 100, n_classes, 10, loss, 1)  # cells would hold next to nothing of each column


def test_boosting_is_chosen_by_what_each_column_needs() -> None:
    numbers, pair = [NUMBER] * 10, EncodedColumn("x", False, 2, None)
    for columns, needed in (
        (numbers, 8000),
        ([pair] * 10, 2000),
        ([WARD] * 10, 10 * min(800, 200 * (WARD.n_codes - 1))),
    ):
        assert choose(columns, 2, needed, Loss.pure(Fraction(1))).method == "boosting"
        assert choose(columns, 2, needed - 1, Loss.pure(Fraction(1))).method != "boosting"
        delta = Loss(Fraction(1), Fraction(1, 10**6), Fraction(1, 50))
        assert choose(columns, 2, 4000, delta).method == "boosting"
        assert choose(columns, 2, 3999, delta).method == "tables"
    assert choose([pair] * 123, 2, 2000, delta).method == "boosting"  # of which tables could carry five
    assert choose([pair] * 123, 2, 1999, delta).method == "tables"


def test_bits_are_those_of_the_planned_cells() -> None:
    for n_classes in (2, 5):
        for epsilon in (4, 11, 20):
            plan = plan_cells([NUMBER], n_classes, 5000, Loss.pure(Fraction(epsilon)), Neighbours())
            planned = np.log2(plan.cells.shape[0] / n_classes)
            assert cell_bits(n_classes, 5000, epsilon) == pytest.approx(planned, abs=0.05)
            unit = plan_cells([NUMBER], n_classes, 5000, Loss.pure(Fraction(2 * epsilon)), Neighbours(unit=Rows(2)))
            assert unit.cells.shape == plan.cells.shape  # of a budget only its share for one count matters


def test_the_method_follows_neighbours() -> None:
    methods = {
        (adjacency, unit): forest_of("two", epsilon=13.0, n_rows=60, adjacency=adjacency, privacy_unit=unit)
        .plan()
        .choices["method"]
        for adjacency in ("add-remove", "replace-one")
        for unit in (1, 4)
    }
    assert methods["add-remove", 1] == "cells"
    assert methods["add-remove", 4] != "cells"
    assert methods["replace-one", 4] != "cells"


# -- 8. what it holds -------------------------------------------------------------------------------------------

N_ROWS = 1613  # a number that does not turn up by chance
NOISE_SEED = 90_210_481


@pytest.mark.parametrize("task", TASKS)
def test_a_fitted_forest_holds_nothing_private(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact: list[Ints] = []
    noisy, sparse = Door.noisy, Door.sparse
    monkeypatch.setattr(Door, "noisy", lambda self, step, sums: exact.append(sums) or noisy(self, step, sums))  # type: ignore[func-returns-value]
    monkeypatch.setattr(
        Door,
        "sparse",
        lambda self, step, cells, counts, n: exact.extend([cells, counts]) or sparse(self, step, cells, counts, n),  # type: ignore[func-returns-value]
    )
    monkeypatch.setattr(cell_forests, "CANDIDATES", cell_forests.CANDIDATES[-1:])  # so few nodes that none has number n
    monkeypatch.setattr(cell_forests, "TREES", 3)
    X, y = table_of(task, N_ROWS)
    with seeded_for_tests(NOISE_SEED):
        forest = forest_of(task, method="cells", epsilon=8.0).fit(X, y)
    forest.predict(X[:10])
    assert exact[0].tolist() == [N_ROWS]
    assert exact[-1].sum() == N_ROWS
    secrets: dict[str, Any] = {"n": N_ROWS, "noise seed": NOISE_SEED, "first income": float(X["income"].iloc[0])}
    secrets |= {f"exact sums {i}": sums for i, sums in enumerate(exact) if sums.size > 3}
    for thing in (forest, pickle.dumps(forest), repr(forest), forest.privacy_.to_json(), forest.explain().to_dict()):
        assert audit.leaks(thing, secrets) == []
    forest.kept_ = {"hidden": [lambda: exact[-2]]}  # mutant
    assert audit.leaks(forest, secrets) != []


@pytest.mark.parametrize("task", TASKS)
def test_only_what_came_out_is_learned_from(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other rows, the same outputs: the same model."""
    tape = Tape(monkeypatch)
    models = []
    for seed in (0, 1):
        forest = forest_of(task, method="cells", n_rows=200).fit(*table_of(task, 200, seed))
        models.append(forest._model_arrays())
        tape.position = 0
    assert audit.differences(*models) == []
    assert max(tape.furthest.values()) > 10  # the rows were other ones


# -- 9. attacks -------------------------------------------------------------------------------------------------


def test_canaries_in_cells_of_their_own() -> None:
    with seeded_for_tests(1):
        found = attack(prepared(vw.PrivateForestClassifier, 2.0, {"method": "cells"}))
    assert not found.refuted
    assert found.sees
    assert found.sound.epsilon_lower_bound > 1


def test_growing_hides_no_warning_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filters are of the whole process: what is ignored while a forest grows is ignored in every other thread."""
    X, y = table_of("two", 300)
    before, during = list(warnings.filters), list(warnings.filters)
    sound = cell_forests._loss
    monkeypatch.setattr(cell_forests, "_loss", lambda *args: during.extend(warnings.filters) or sound(*args))  # type: ignore[func-returns-value]
    forest_of("two", epsilon=20.0, n_rows=300, method="cells").fit(X, y)
    added = [one for one in during if one not in before]
    assert added
    assert all(message is not None for _, message, *_ in added)
