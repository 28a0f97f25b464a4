# SPDX-License-Identifier: Apache-2.0
"""Attacks on PrivateForest: whole fits of neighbours step by step, likelihood ratios, and mutants that must be caught.

Canaries in one run are in packages/veilwood-audit/tests/test_attacks.py, norms by enumeration in test_adaptive.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import veilwood as vw
import veilwood_audit as audit
from veilwood.data import counts
from veilwood.data.counts import ContingencyTable
from veilwood.errors import PlanError, UseError
from veilwood.forests.adaptive import loop, row_backend, shrinkage, steps
from veilwood.forests.adaptive import table_design as borders
from veilwood.forests.adaptive.row_backend import (
    DRAW_UNITS,
    GRADIENT_UNITS,
    MemoryBackend,
    ScoredRows,
    answer_query,
    gradient_norms,
    n_outputs,
)
from veilwood.forests.adaptive.steps import MAX_GAIN
from veilwood.privacy.adaptive_budget import AdaptiveBudget
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss, zcdp_rho
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, SparseLaplace
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.selection import ExponentialMechanism, PermuteAndFlip
from veilwood.privacy.steps import Step, counting_step
from veilwood_audit.noninterference import find_interference, force_outcomes
from veilwood_testing.errors import rejects

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]

UNIT = 3
COLUMNS: list[dict[str, Any]] = [
    {"name": "x", "kind": "numeric", "lower": -1, "upper": 1, "nullable": True},
    {"name": "c", "kind": "categorical", "values": ["p", "q"]},
    {"name": "d", "kind": "numeric", "lower": 0, "upper": 1},
]
TARGETS: dict[str, dict[str, Any]] = {
    "two": {"name": "y", "kind": "categorical", "values": ["0", "1"]},
    "three": {"name": "y", "kind": "categorical", "values": ["0", "1", "2"]},
    "regression": {"name": "y", "kind": "numeric", "lower": 0, "upper": 1},
}


def neighbours_of(task: str, adjacency: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A table with a unit of three rows, and its neighbour, in another order."""
    frame = pd.DataFrame({"x": np.linspace(-1, 1, 240), "c": ["p", "q", "q"] * 80, "d": 0.5, "y": [0, 0, 1] * 80})
    frame.loc[::7, "x"] = np.nan
    extra = pd.DataFrame({"x": [0.3, 0.3, -0.9], "c": ["p"] * 3, "d": [0.99] * 3, "y": [1] * 3})
    first, second = pd.concat([frame, extra]), frame[::-1]
    if adjacency == "replace-one":
        second = pd.concat([second, extra.assign(y=0, d=0.01)])
    kinds = float if task == "regression" else str
    return first.assign(y=first["y"].astype(kinds)), second.assign(y=second["y"].astype(kinds))


class Tape:
    """Records what passes the door in one fit, and shows it again in the next, measuring how far the rows moved."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.released: list[tuple[Step, Any, Any]] = []
        self.moved: list[tuple[str, float]] = []
        self._patch, self._real = (
            patch,
            {name: getattr(Door, name) for name in ("release_counts", "select", "release_sparse")},
        )

    def record(self) -> None:
        for name, real in self._real.items():

            def passed(door: Door, step: Step, *exact: Any, real: Any = real) -> Any:
                kept = [part.copy() if isinstance(part, np.ndarray) else part for part in exact]
                self.released.append((step, kept, real(door, step, *exact)))
                return self.released[-1][2]

            self._patch.setattr(Door, name, passed)

    def replay(self) -> None:
        for name in self._real:
            self._patch.setattr(Door, name, lambda door, step, *exact: self._again(door, step, *exact))

    def _again(self, door: Door, step: Step, *exact: Any) -> Any:
        planned, before, out = self.released[len(self.moved)]
        assert planned == step  # from the same public values the same step is planned
        door._admit_step(step, step.shape)
        match step.mechanism:
            case SparseLaplace():
                cells = np.union1d(before[0], exact[0])
                change = self._counts(cells, exact) - self._counts(cells, before)
                far = int(np.abs(change).sum())
            case PermuteAndFlip() | ExponentialMechanism():
                far = int(np.ptp(exact[0] - before[0]))
            case JointLaplace() as noise:
                far = noise.norm(exact[0] - before[0])
            case DiscreteGaussian():
                far = int(((exact[0] - before[0]).astype(object) ** 2).sum())
            case _:
                far = int(np.abs(exact[0] - before[0]).sum())
        self.moved.append((step.name, far / step.sensitivity))
        return out

    def _counts(self, cells: NDArray[np.int64], given: Any) -> NDArray[np.int64]:
        counts = np.zeros(len(cells), np.int64)
        counts[np.searchsorted(cells, given[0])] = given[1]
        return counts


def coins_by_content(patch: pytest.MonkeyPatch) -> None:
    """Couple the secret coins of two tables: rows that both have get the same one, wherever they stand."""

    def drawn(self: MemoryBackend, rows: ScoredRows, share: float) -> NDArray[np.bool_]:
        mixed = np.full(len(rows.target), 17, np.uint64)
        for part in (*rows.cells, rows.target):
            mixed = (mixed * np.uint64(6364136223846793005) + part.astype(np.uint64)) ^ (mixed >> np.uint64(29))
        return np.asarray((mixed >> np.uint64(20)) % np.uint64(DRAW_UNITS) < int(share * DRAW_UNITS))

    patch.setattr(MemoryBackend, "_draw_mask", drawn)


def movement(task: str, patch: pytest.MonkeyPatch, adjacency: str = "add-remove", **params: Any) -> dict[str, float]:
    coins_by_content(patch)
    patch.setattr(loop, "DECLARED_FACTOR", 1e9)  # what is declared is believed, so that every part is reached
    first, second = neighbours_of(task, adjacency)
    kind = vw.PrivateForestRegressor if task == "regression" else vw.PrivateForestClassifier
    schema = vw.Schema.from_dict({
        "name": "s", "task": "regression" if task == "regression" else "classification", "target": "y",
        "columns": [*COLUMNS, TARGETS[task]],
    })  # fmt: skip
    tape = Tape(patch)
    tape.record()
    kind(schema, privacy_unit=UNIT, adjacency=adjacency, random_state=0, **params).fit(first)
    tape.replay()
    kind(schema, privacy_unit=UNIT, adjacency=adjacency, random_state=0, **params).fit(second)
    assert len(tape.moved) == len(tape.released)
    return {name: far for name, far in tape.moved}


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("task", ["two", "three", "regression"])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 0.0), (9.0, 0.0), (9.0, 1e-6), (90.0, 0.0)])
def test_no_step_of_a_fit_moves_further_than_planned(
    task: str, epsilon: float, delta: float, adjacency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if delta:  # for so few rows it would be given up
        monkeypatch.setattr(loop, "planned_loss", lambda columns, n_classes, n_rows, asked: asked.loss)
    declared = 243 if epsilon < 90 else 400  # from so many on fine cells are tried
    moved = movement(task, monkeypatch, adjacency, epsilon=epsilon, delta=delta, n_rows=declared)
    assert 0.3 < max(moved.values()) <= 1
    if delta:  # by epsilon first, then by rho
        monkeypatch.undo()
        monkeypatch.setattr(loop, "prefers_zcdp", lambda *args: True)
        moved = movement(task, monkeypatch, adjacency, epsilon=epsilon, delta=delta)
        assert 0.3 < max(moved.values()) <= 1
    if epsilon == 90.0 and task != "regression":
        assert {"fine cells", "weight of fine cells"} <= set(moved)  # in its own budget, every part has been used


MUTANTS: dict[str, tuple[str, type, int]] = {
    "a row counted twice": ("two", counts.RowsByCell, 2),
    "gradients that are not cut": ("two", counts.GradientSums, 3),
    "classes counted twice": ("two", counts.ClassesByCell, 2),
    "rows beside residuals counted twice": ("regression", counts.RowsByCell, 2),
    "residuals that are not cut": ("regression", counts.GradientSums, 5),
    "residuals in two bins": ("regression", counts.ResidualHistogram, 2),
}


def answer_wrongly(monkeypatch: pytest.MonkeyPatch, kind: type, change: Callable[[Any, Any], Any]) -> None:
    """Plant a mutant: queries of one kind are answered by ``change``, which gets the query and the rows.

    Queries that one loop would answer together are answered one by one, each by ``change`` if it has this kind.
    """
    monkeypatch.setattr(row_backend.MemoryBackend, "run_together", counts.RowBackend.run_together)
    monkeypatch.setattr(
        row_backend, "answer_query",
        lambda query, rows, **options: (
            change(query, rows) if isinstance(query, kind) else answer_query(query, rows, **options)
        ),
    )  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_whose_sums_move_further_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, what, times = MUTANTS[name]
    answer_wrongly(monkeypatch, what, lambda query, rows: times * answer_query(query, rows))
    assert max(movement(task, monkeypatch, epsilon=9.0, n_rows=3000).values()) > 1


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("task", "delta"), [("two", 0.0), ("three", 0.0), ("two", 1e-6)])
def test_the_weight_of_tables_moves_no_further_than_planned_and_a_gain_that_is_not_cut_is_caught(
    task: str, delta: float, adjacency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are made to say far more than they know, so that gains reach the cut."""
    monkeypatch.setattr(borders, "HISTOGRAM_NEED", np.inf)  # with coarse histograms uncut gains reach 0.76
    monkeypatch.setattr(loop, "release_strengths", lambda fit, state: None)  # so that weak columns are measured too
    monkeypatch.setattr(loop, "planned_loss", lambda columns, n_classes, n_rows, asked: asked.loss)
    monkeypatch.setattr(loop, "has_few_rounds", lambda *args: True)
    usual = shrinkage.log_ratios
    monkeypatch.setattr(shrinkage, "log_ratios", lambda *args: 50 * usual(*args))

    def furthest() -> float:
        found = []
        for seed in range(4):  # in some fits all tables are taken for noise, and then there is no gain
            with monkeypatch.context() as patch, seeded_for_tests(seed):
                moved = movement(task, patch, adjacency, epsilon=9.0, delta=delta, n_rows=3000)
            found.append(moved["weight of tables"])
        return max(found)

    assert 0.05 < furthest() <= 1
    if adjacency == "replace-one":  # both rows say the same here, and the cut is not reached
        return
    answer_wrongly(
        monkeypatch, counts.EvidenceGain, lambda query, rows: answer_query(replace(query, max_gain=1 << 60), rows)
    )  # fmt: skip
    assert furthest() > 1


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("delta", "name"), [(0.0, "histograms 1 to 2"), (1e-6, "histogram 1")])
def test_histograms_together_move_no_further_than_planned_and_rows_counted_twice_are_caught(
    delta: float, name: str, adjacency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "release_strengths", lambda fit, state: None)  # so that tables come first
    monkeypatch.setattr(loop, "planned_loss", lambda columns, n_classes, n_rows, asked: asked.loss)

    def moved() -> float:
        with monkeypatch.context() as patch:
            found = movement("three", patch, adjacency, epsilon=9.0, delta=delta, n_rows=3000)
            return found[f"{name}: rows by group"]

    assert 0.3 < moved() <= 1
    answer_wrongly(monkeypatch, counts.ClassesByCell, lambda query, rows: 2 * answer_query(query, rows))
    assert moved() > 1


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_tables_of_pairs_move_no_further_than_planned_and_rows_counted_twice_are_caught(
    adjacency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "release_strengths", lambda fit, state: None)  # so that tables come first
    for name, value in {"MIN_PAIRED": 2, "PAIR_GROUPS": 2, "PAIR_DEVIATIONS": 0.0, "PAIR_ROWS": 0.0}.items():
        monkeypatch.setattr(borders, name, value)
    paired: list[list[ContingencyTable]] = []
    real = borders.pair_tables
    monkeypatch.setattr(borders, "pair_tables", lambda *args: paired.append(real(*args)) or paired[-1])

    def moved() -> float:
        with monkeypatch.context() as patch:
            found = movement("three", patch, adjacency, epsilon=9.0, n_rows=3000)
            return max(far for name, far in found.items() if name.endswith("classes by cell"))

    assert 0.3 < moved() <= 1
    assert {len(table.axes) for table in paired[0]} == {1, 2}
    answer_wrongly(monkeypatch, counts.ClassesByCell, lambda query, rows: 2 * answer_query(query, rows))
    assert moved() > 1


@pytest.mark.parametrize("kind", [steps.AdaptiveStep.ROUND_GRADIENTS, steps.AdaptiveStep.ROUND_SELECTION])
def test_a_reach_of_an_eighth_is_caught(kind: steps.AdaptiveStep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: norms of a row that are too small where they are written, for the loop and for the check of plans."""
    real = steps.row_reach

    def reach(of: steps.AdaptiveStep, shape: tuple[int, ...], facts: steps.RowFacts) -> steps.Reach:
        found = real(of, shape, facts)
        if of is not kind:
            return found
        scores = None if found.score_range is None else found.score_range // 8
        return found._replace(l1=max(1, found.l1 // 8), score_range=scores)

    def furthest() -> float:
        with monkeypatch.context() as patch:
            moved = movement("two", patch, "replace-one", epsilon=9.0, n_rows=3000)
        return max(far for name, far in moved.items() if kind.short_name in name)

    assert furthest() <= 1
    monkeypatch.setattr(steps, "row_reach", reach)
    assert furthest() > 1


def test_a_choice_calibrated_to_half_its_range_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the sizes of sums taken to move in one direction only."""
    real = AdaptiveBudget.plan_selection
    monkeypatch.setattr(
        AdaptiveBudget, "plan_selection",
        lambda self, name, n, share, *, score_range: real(self, name, n, share, score_range=max(1, score_range // 8)),
    )  # fmt: skip
    moved = movement("two", monkeypatch, "replace-one", epsilon=9.0, n_rows=3000)
    assert max(far for name, far in moved.items() if "choice" in name) > 1


@pytest.mark.parametrize("numbers", [2, 1])
def test_strengths_calibrated_to_an_eighth_of_their_norm_are_caught(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the best and the mean of scores, or the best alone, taken to move by less than a score does."""
    monkeypatch.setattr(loop, "STRENGTH_NEED", ((numbers, 60.0),))
    params: dict[str, Any] = {"epsilon": 9.0, "n_rows": 3000}
    with monkeypatch.context() as patch:
        assert 0.2 < movement("two", patch, "replace-one", **params)["strengths of columns"] <= 1
    real = AdaptiveBudget.plan_counts

    def counting(self: AdaptiveBudget, name: str, shape: tuple[int, ...], share: float, **norms: Any) -> Step:
        if name == "strengths of columns":
            norms |= {"l1": norms["l1"] // 8}
        return real(self, name, shape, share, **norms)

    monkeypatch.setattr(AdaptiveBudget, "plan_counts", counting)
    assert movement("two", monkeypatch, "replace-one", **params)["strengths of columns"] > 1


# -- likelihood ratios -----------------------------------------------------------------------------------------------


def lower_bound(step: Step, present: NDArray[np.int64], scale: Fraction, runs: int = 60_000) -> float:
    """One row, there or not: what it adds comes out as large as it truly is. The epsilon shown, in that of the step."""
    assert isinstance(step.mechanism, DiscreteLaplace)
    assert step.loss.epsilon is not None
    noise, hits = DiscreteLaplace(step.mechanism.scale * scale), []
    signs = np.sign(present)
    for exact in (present, np.zeros_like(present)):
        noisy = noise.perturb(np.broadcast_to(exact, (runs, len(exact))).astype(np.int64))
        hits.append(int((noisy * signs >= present * signs).all(axis=1).sum()))
    return audit.epsilon_lower_bound(hits[0], runs, hits[1], runs) / float(step.loss.epsilon)


@pytest.mark.parametrize("n_classes", [2, 0])
def test_gradient_sums_keep_their_epsilon_and_halved_noise_is_caught(n_classes: int) -> None:
    row = ScoredRows(
        np.zeros((1, 1), np.uint8), np.array([1 if n_classes else 65535], np.int32),
        np.array([[-(10**6)]], np.int32),
    )  # fmt: skip
    present = answer_query(counts.GradientSums([ContingencyTable(())], n_classes, GRADIENT_UNITS), row)[0]
    l1, squared = gradient_norms(n_classes, GRADIENT_UNITS)
    purse = AdaptiveBudget(Loss.pure(Fraction(2)), Neighbours())
    step = purse.plan_counts("gradients", (1, 1), 0.9, l1=l1, squared_l2=squared, signed=True)
    with seeded_for_tests(1):
        assert 0.9 < lower_bound(step, present, Fraction(1)) <= 1
    with seeded_for_tests(1):
        assert lower_bound(step, present, Fraction(1, 2)) > 1.7


@pytest.mark.parametrize("target", [0, 65535])
def test_rows_beside_residuals_keep_their_epsilon_and_halved_noise_is_caught(target: int) -> None:
    row = ScoredRows(np.zeros((1, 1), np.uint8), np.array([target], np.int32), np.full((1, 1), 1 << 19, np.int32))
    table, facts = ContingencyTable(()), steps.RowFacts(1, 0, 10**5)
    sums = answer_query(counts.GradientSums([table], 0, facts.limit), row)
    present = loop.rotate_sums(answer_query(counts.RowsByCell(table), row), sums)[0]
    assert sorted(present.tolist()) == [0, 2 * GRADIENT_UNITS]  # as far as a row can move it
    purse, kind = AdaptiveBudget(Loss.pure(Fraction(2)), Neighbours()), steps.AdaptiveStep.ROUND_PAIRS
    step = steps.plan_sums(purse, kind, (1, 2), 0.9, facts, 1)
    with seeded_for_tests(1):
        assert 0.9 < lower_bound(step, present, Fraction(1)) <= 1
    with seeded_for_tests(1):
        assert lower_bound(step, present, Fraction(1, 2)) > 1.7


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_weight_of_tables_keeps_its_epsilon_and_halved_noise_is_caught(n_classes: int) -> None:
    """A row that tables are sure about, and wrong: its gain is as large as it can be."""
    scores = np.zeros((1, n_outputs(n_classes)), np.int32)
    scores[0, -1] = 10**5
    row = ScoredRows(np.zeros((1, 1), np.uint8), np.zeros(1, np.int32), scores)
    present = answer_query(counts.EvidenceGain(np.zeros_like(scores[0]), n_classes, GRADIENT_UNITS, MAX_GAIN), row)
    purse = AdaptiveBudget(Loss.pure(Fraction(2)), Neighbours())
    step = purse.plan_counts("weight of tables", (1,), 0.9, l1=MAX_GAIN, squared_l2=MAX_GAIN**2, signed=True)
    assert present.tolist() == [-MAX_GAIN]
    with seeded_for_tests(1):
        assert 0.9 < lower_bound(step, present, Fraction(1)) <= 1
    with seeded_for_tests(1):
        assert lower_bound(step, present, Fraction(1, 2)) > 1.7


def test_tables_keep_their_epsilon_and_halved_noise_is_caught() -> None:
    purse = AdaptiveBudget(Loss.pure(Fraction(2)), Neighbours())
    step = purse.plan_counts("table 1: classes by cell", (8, 2), 0.9)
    present = np.ones(1, np.int64)  # a row is in one cell of a table
    with seeded_for_tests(1):
        assert 0.9 < lower_bound(step, present, Fraction(1)) <= 1
    with seeded_for_tests(1):
        assert lower_bound(step, present, Fraction(1, 2)) > 1.7


# -- the filter ------------------------------------------------------------------------------------------------------


def plan_of(loss: Loss, *steps: Step) -> Plan:
    return Plan("e", loss, Neighbours(), steps, "counts", "s", "0", Layout(), 0.0)


@pytest.mark.parametrize("loss", [Loss.pure(Fraction(1)), Loss.zcdp(Fraction(1, 10), Fraction(1, 10**6))], ids=str)
def test_a_door_takes_further_steps_as_long_as_they_are_paid_for(loss: Loss) -> None:
    def step(number: int, share: Fraction) -> Step:
        return counting_step(f"step {number}", (1,), loss.scaled(share), Neighbours(), l1=1, squared_l2=1)

    first, ledger = step(0, Fraction(1, 2)), MemoryLedger()
    with Door(plan_of(loss, first), ledger) as door:
        door.release_counts(first, np.zeros(1, np.int64))
        for number in (1, 2):
            more = step(number, Fraction(1, 4))
            door.extend(more)
            door.release_counts(more, np.zeros(1, np.int64))
        with rejects(PlanError, raised_in="Plan._check_steps"):
            door.extend(step(3, Fraction(1, 10**12)))
        with rejects(PlanError, raised_in="Plan._check_steps"):
            door.extend(step(2, Fraction(0) + Fraction(1, 10**12)))
        with rejects(PlanError, raised_in="Door._admit_step"):
            door.release_counts(step(4, Fraction(1, 10)), np.zeros(1, np.int64))
    assert ledger.spent.epsilon == loss.epsilon
    assert [one.name for one in door.plan.steps] == ["step 0", "step 1", "step 2"]
    with rejects(UseError, raised_in="Door.extend"):
        door.extend(step(5, Fraction(1, 10**12)))


UNDECIDED = Loss.pure_or_zcdp(Fraction(1), Fraction(1, 10**6))


def test_steps_add_up_by_epsilon_or_by_rho_and_by_no_mixture_of_both() -> None:
    rho = zcdp_rho(Fraction(1), Fraction(1, 10**6))

    def step(name: str, loss: Loss) -> Step:
        return counting_step(name, (1,), loss, Neighbours(), l1=1, squared_l2=1)

    def by_rho(share: Fraction) -> Step:
        return step("by rho", Loss(Fraction(1), Fraction(1, 10**6), rho * share))

    first = step("first", Loss.pure(Fraction(1, 20)))
    left = 1 - Fraction(1, 800) / rho  # epsilon^2 / 2 of the first
    plan_of(UNDECIDED, first, step("rest", Loss.pure(Fraction(19, 20))))
    plan_of(UNDECIDED, first, by_rho(left))
    for too_much in (
        (first, step("rest", Loss.pure(Fraction(19, 20) + Fraction(1, 10**9)))),
        (first, by_rho(left + Fraction(1, 10**6))),
        (first, by_rho(Fraction(1))),  # as if the first step had cost no rho
        (step("half", Loss.pure(Fraction(1, 2))), by_rho(Fraction(1, 2))),
        (step("half", Loss.pure(Fraction(1, 2))), by_rho(Fraction(1, 10**9))),
    ):
        with rejects(PlanError, raised_in="Plan._check_steps"):
            plan_of(UNDECIDED, *too_much)


@pytest.mark.parametrize("present", [0, 1])
@pytest.mark.parametrize(("part", "kept"), [(1.0, True), (0.5, False)], ids=["planned noise", "half the noise"])
def test_a_first_step_that_decides_by_what_the_rest_is_spent_keeps_delta(part: float, kept: bool, present: int) -> None:
    """Exactly: P(S) - exp(epsilon) P'(S), at its largest, of a row more or less just where the decision is taken."""
    purse = AdaptiveBudget(UNDECIDED, Neighbours())
    first = purse.plan_counts("number of rows", (1,), loop.START_FRACTION)
    other = purse.under_zcdp()
    assert other is not None
    ways = [purse.plan_counts("rest", (1,), purse.remaining), other.plan_counts("rest", (1,), other.remaining)]
    numbers, near = np.arange(-1500, 1501), np.arange(-150, 151)

    def chances(step: Step, at: int, places: NDArray[np.int64]) -> NDArray[np.float64]:
        match step.mechanism:
            case DiscreteLaplace(scale=scale):
                weights = np.exp(-np.abs(places - at) / (part * float(scale)))
            case DiscreteGaussian(sigma_squared=variance):
                weights = np.exp(-((places - at) ** 2) / (2 * part**2 * float(variance)))
        return np.asarray(weights / weights.sum())

    delta = 0.0
    for decided, rest in zip((numbers < 0, numbers >= 0), ways, strict=True):
        here, there = (
            np.outer(chances(first, row, numbers)[decided], chances(rest, row, near)) for row in (present, 1 - present)
        )
        delta += float(np.maximum(here - np.exp(float(UNDECIDED.epsilon or 0)) * there, 0).sum())
    assert (delta <= 1e-6) is kept


def test_a_fitted_forest_holds_nothing_private() -> None:
    """Every number that can be reached from a fitted forest is there too if the noise is drawn again on other rows."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (500, 2))
    X[:, 0] = rng.choice([0.123456789, 0.987654321], 500)
    y = np.where(X[:, 0] > 0.5, "yes", "no")
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
    for epsilon in (1.0, 20.0):
        forest = vw.PrivateForestClassifier(schema, epsilon=epsilon, random_state=0).fit(X, y)
        for _, found in audit.walk_values(vars(forest)):
            if isinstance(found, np.ndarray) and found.dtype == np.float64:
                assert not np.isin(found, X).any()
            assert not (isinstance(found, np.ndarray) and len(found) == 500)


@pytest.mark.parametrize(("invalid", "told"), [("drop", False), ("refuse", True)])
def test_rows_that_may_be_dropped_are_not_counted_for_free(invalid: str, told: bool) -> None:
    """Under replace-one the number of rows is public, but not of those that fit: one may be replaced by one that does
    not, and is dropped."""
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)

    def program(last: Any, _: Any) -> Any:
        rows: list[list[Any]] = [[0.1 * (i % 10), 0.5] for i in range(40)] + [[last, 0.5]]
        forest = vw.PrivateForestClassifier(schema, adjacency="replace-one", random_state=0, invalid=invalid)  # type: ignore[arg-type]
        return forest.fit(rows, ["no", "yes"] * 20 + ["no"])

    assert find_interference(program, 0.3, "not a number" if invalid == "drop" else 0.7) == []
    with force_outcomes():
        assert (program(0.3, None).plan_.layout.rows_planned == 41) is told


@pytest.mark.parametrize("by_rho", [False, True])
def test_neighbours_leave_the_same_traces_by_epsilon_and_by_rho(by_rho: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "prefers_zcdp", lambda *args: by_rho)
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)

    def program(n_rows: int, _: Any) -> Any:
        rows = [[0.1 * (i % 10), 0.5] for i in range(n_rows)]
        forest = vw.PrivateForestClassifier(schema, epsilon=4.0, delta=1e-6, random_state=0)
        return forest.fit(rows, (["no", "yes"] * n_rows)[:n_rows])

    assert find_interference(program, 200, 201) == []
    with force_outcomes():
        assert any(step.loss.delta > 0 for step in program(200, None).plan_.steps) is by_rho
