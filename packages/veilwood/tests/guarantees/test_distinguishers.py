# SPDX-License-Identifier: Apache-2.0
"""Distinguishers on two neighbouring tables for selections, structure, sampling, repetition and Gaussian noise.

Each event was fixed before the runs, and each attack is also made on a mutant that it must catch. Counts,
partitions and bits are in test_audit.py; medians, greedy scores and the matrix mechanism beside their estimators;
whole fits in test_replayed_fits.py.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import veilwood as vw
from veilwood.arrays import Ints
from veilwood.privacy import entropy
from veilwood.privacy.door import Door
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.selection import ExponentialMechanism
from veilwood.privacy.steps import Step, counting_step, selection_step
from veilwood.trees.counting import Assignment
from veilwood_audit.statistics import ALPHA, epsilon_lower_bound
from veilwood_testing import ROOT

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

ONE = Loss.pure(Fraction(1))


def lower_bound(likely: NDArray[Any], unlikely: NDArray[Any], delta: float = 0.0) -> float:
    return epsilon_lower_bound(int(likely.sum()), len(likely), int(unlikely.sum()), len(unlikely), delta=delta)


def opened(step: Step, loss: Loss, ledger: MemoryLedger | None = None) -> Door:
    plan = Plan("Audit", loss, Neighbours(), (step,), "the same again", "audit", "0", Layout(leaves=1), 1.0)
    return Door(plan, MemoryLedger() if ledger is None else ledger)


# -- a leaf's label -----------------------------------------------------------------------------------------


def label_attack(one: tuple[int, int], other: tuple[int, int], sold_as: Neighbours, runs: int = 60_000) -> float:
    """Labels of a leaf with given class counts: how much more often is the first class chosen?"""

    def chosen(counts: tuple[int, int]) -> NDArray[Any]:
        step = selection_step("labels", (runs, 2), ONE, sold_as, score_range=1)
        with opened(step, ONE) as door:
            return door.select(step, np.broadcast_to(np.array(counts), (runs, 2)).astype(np.int64)) == 0

    return lower_bound(chosen(one), chosen(other))


def test_labels_keep_their_epsilon_under_either_adjacency() -> None:
    with entropy.seeded_for_tests(21):
        assert 0.6 < label_attack((1, 4), (0, 4), Neighbours()) <= 1
        assert 0.5 < label_attack((2, 4), (1, 5), Neighbours("replace-one")) <= 1


def test_monotone_scores_sold_as_replace_one_are_caught() -> None:
    with entropy.seeded_for_tests(22):
        assert label_attack((2, 4), (1, 5), Neighbours()) > 1.4


# -- the structure ------------------------------------------------------------------------------------------

BITS = vw.Schema.from_dict({
    "name": "bits", "task": "classification", "target": "c",
    "columns": [{"name": name, "kind": "categorical", "values": ["0", "1"]} for name in ("a1", "a2", "c")],
})  # fmt: skip


def structure_attack(fits: int = 100, m: int = 300) -> float:
    """One record turns the better attribute around, and with it the prediction for (1, 0): of ties the last wins."""
    common = pd.DataFrame([("0", "0", "0")] * m + [("1", "1", "1")] * m, columns=["a1", "a2", "c"])
    added = pd.DataFrame([*common.itertuples(index=False), ("1", "0", "1")], columns=common.columns)
    query = common[["a1", "a2"]].iloc[:1].assign(a1="1")

    def ones(table: pd.DataFrame) -> NDArray[Any]:
        tree = vw.GreedyForestClassifier(
            BITS, epsilon=1.0, n_estimators=1, max_depth=1, random_state=0, n_jobs=1, selection="exponential"
        )
        return np.array([tree.fit(table[["a1", "a2"]], table["c"]).predict(query)[0] == "1" for _ in range(fits)])

    return lower_bound(ones(added), ones(common))


def test_private_splits_keep_their_epsilon() -> None:
    with entropy.seeded_for_tests(23):
        assert structure_attack() <= 1


def test_exact_hidden_splits_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the best split is taken as it is and kept hidden, all of the budget being for leaves."""
    monkeypatch.setattr(ExponentialMechanism, "select", lambda self, scores, admissible=None: scores.argmax(axis=1))
    with entropy.seeded_for_tests(24):
        assert structure_attack() > 1.2


# -- selection in fixed point -------------------------------------------------------------------------------


def loser_wins(select: Callable[[ExponentialMechanism, Ints], NDArray[Any]], runs: int = 100_000) -> float:
    """Scores of 100 against 0, and of 101 against 0: how often is the second chosen?"""
    mechanism = ExponentialMechanism(Fraction(1, 10), score_range=2)
    tables = [np.broadcast_to(np.array([best, 0]), (runs, 2)).astype(np.int64) for best in (100, 101)]
    return lower_bound(*(select(mechanism, scores) == 1 for scores in tables))


def cut_exponents(mechanism: ExponentialMechanism, scores: Ints) -> NDArray[Any]:
    """Mutant: exponents below -5 become a weight of 0, as fixed-point arithmetic would have it."""
    exponents = float(mechanism.epsilon / mechanism.score_range) * (scores - scores.max(axis=1, keepdims=True))
    weights = np.where(exponents < -5, 0.0, np.exp(exponents))
    return np.random.default_rng(25).random(len(scores)) < (weights / weights.sum(axis=1, keepdims=True))[:, 1]


def test_selection_keeps_its_epsilon_and_cut_exponents_are_caught() -> None:
    with entropy.seeded_for_tests(25):
        assert loser_wins(lambda mechanism, scores: mechanism.select(scores)) <= 0.1
    assert loser_wins(cut_exponents) > 2


# -- sampling -----------------------------------------------------------------------------------------------


def in_trees_attack(trees_of: Callable[[int], NDArray[Any]], runs: int = 200_000) -> float:
    """One record, four trees, noise for epsilon 2 in each: all four noisy counts come out positive."""
    loss = Loss.pure(Fraction(2))

    def released(present: int) -> Ints:
        step = counting_step("counts", (runs, 4), loss, Neighbours(), l1=1, squared_l2=1)
        with opened(step, loss) as door:
            return door.release_counts(step, (trees_of(runs) * present).astype(np.int64))

    one, none = (np.asarray((released(present) >= 1).all(axis=1)) for present in (1, 0))
    return lower_bound(one, none)


def test_one_tree_for_each_record_costs_one_tree() -> None:
    def assigned(runs: int) -> NDArray[Any]:
        trees = Assignment(entropy.secret_key(), 4).trees_of_rows(0, 0, runs)
        return trees[:, None] == np.arange(4)

    with entropy.seeded_for_tests(26):
        assert in_trees_attack(assigned) <= 2


def test_sampling_charged_in_proportion_is_caught() -> None:
    """Mutant: each tree samples every fourth record and is charged a fourth, so four of them the epsilon of one."""
    with entropy.seeded_for_tests(27):
        assert in_trees_attack(lambda runs: np.random.default_rng(27).random((runs, 4)) < 0.25) > 2.4


# -- repetition ---------------------------------------------------------------------------------------------


def asked_twice(ledger: MemoryLedger, runs: int = 60_000) -> float:
    """Release the same count twice: both come out high."""

    def both(count: int) -> NDArray[Any]:
        seen = []
        for _ in range(2):
            step = counting_step("count", (runs,), ONE, Neighbours(), l1=1, squared_l2=1)
            with opened(step, ONE, ledger) as door:
                seen.append(door.release_counts(step, np.full(runs, count, np.int64)) >= 1)
        return seen[0] & seen[1]

    return lower_bound(both(1), both(0))


def test_what_is_asked_twice_is_charged_twice() -> None:
    ledger = MemoryLedger()
    with entropy.seeded_for_tests(28):
        found = asked_twice(ledger)
    assert not ledger.spent.is_bounded  # seeded noise
    charged = sum(float(entry.loss.epsilon or 0) for entry in ledger.entries())
    assert charged == 4  # for the attack itself: two releases on each of two tables
    assert found <= charged / 2
    assert found > 1.7  # mutant: the second release not charged would be sold as epsilon 1


def test_a_batch_asked_again_gets_the_stored_answer() -> None:
    table = pd.DataFrame({"a1": ["0", "1"] * 50, "a2": ["0", "0", "1", "1"] * 25})
    ledger = MemoryLedger()
    predictor = vw.MatrixForestPredictor(BITS, epsilon=0.1, n_estimators=2, max_depth=2, random_state=0, ledger=ledger)
    predictor.fit(table, table["a1"])
    answers = [predictor.answer(table[:4]) for _ in range(5)]
    assert all((answer == answers[0]).all() for answer in answers)
    assert ledger.spent.epsilon == Fraction(1, 10)
    predictor.answer(table[:3])
    assert ledger.spent.epsilon == Fraction(2, 10)


# -- Gaussian noise -----------------------------------------------------------------------------------------


def gaussian_attack(runs: int = 100_000) -> float:
    """A count with noise for epsilon 1 and delta 0.01 comes out far above what it is."""
    loss = requested_loss(1.0, 0.01)
    step = counting_step("counts", (runs,), loss, Neighbours(), l1=1, squared_l2=1)
    assert isinstance(step.mechanism, DiscreteGaussian)
    high = 1 + 0.8 * float(step.mechanism.sigma_squared) ** 0.5

    def released(count: int) -> NDArray[Any]:
        with opened(step, loss) as door:
            return door.release_counts(step, np.full(runs, count, np.int64)) >= high

    return lower_bound(released(1), released(0), delta=0.01)


def test_gaussian_counts_keep_epsilon_and_delta_and_halved_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with entropy.seeded_for_tests(29):
        assert 0.2 < gaussian_attack() <= 1
    sound = DiscreteGaussian.sample
    monkeypatch.setattr(DiscreteGaussian, "sample", lambda self, n: sound(DiscreteGaussian(self.sigma_squared / 4), n))
    with entropy.seeded_for_tests(29):
        assert gaussian_attack() > 1.1


# -- five percent -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "caught"), [(Fraction(1), False), (Fraction(95, 100), True)])
def test_five_percent_too_little_noise_is_caught(scale: Fraction, caught: bool) -> None:
    runs = 4_000_000
    with entropy.seeded_for_tests(30):
        full, empty = (DiscreteLaplace(scale).perturb(np.full(runs, count)) >= 1 for count in (1, 0))
    assert (lower_bound(full, empty) > 1) is caught


# -- false alarms -------------------------------------------------------------------------------------------

FALSE_ALARMS = 1e-6
STATISTICS = ("epsilon_lower_bound", "one_run_lower_bound")
ATTACKING = ("veilwood_audit.attacks", "veilwood_audit.attacks")  # whose functions use them
QUIET_CLAIMS = 2  # the most that one test makes; catching a mutant is no claim that can be a false alarm


def statistical_tests(module: Any) -> int:
    """Count the tests of a module, by parameters, that use a statistic, themselves or through functions they call."""
    functions = {
        name: inspect.getsource(thing)
        for name, thing in vars(module).items()
        if inspect.isfunction(thing) and thing.__module__ in (module.__name__, *ATTACKING)
    }
    using: set[str] = set(STATISTICS)
    while more := {
        name for name, text in functions.items() if name not in using and using & set(re.findall(r"\w+", text))
    }:
        using |= more
    total = 0
    for name in using:
        if name.startswith("test_"):
            marks = [m for m in getattr(getattr(module, name), "pytestmark", ()) if m.name == "parametrize"]
            total += int(np.prod([len(list(mark.args[1])) for mark in marks]))
    return total


def test_the_whole_suite_raises_a_false_alarm_once_in_a_million_runs() -> None:
    """With fresh entropy in place of the seeded stream, which makes every run of the suite the same."""
    tests = (ROOT / "packages").rglob("test_*.py")
    files = [path for path in tests if re.search(r"_lower_bound\b", path.read_text())]
    folders = sorted({str(path.parent) for path in files})
    sys.path[:0] = folders
    try:
        found = {path.stem: statistical_tests(import_module(path.stem)) for path in files}
    finally:
        del sys.path[: len(folders)]
    assert found["test_distinguishers"] >= 10
    assert found["test_replayed_fits"] >= 15
    assert sum(found.values()) * QUIET_CLAIMS * ALPHA <= FALSE_ALARMS, found
