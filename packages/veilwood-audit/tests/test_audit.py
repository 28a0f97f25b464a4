# SPDX-License-Identifier: Apache-2.0
"""Attacks on what the library releases: sensitivities, laws, distinguishers, data independence, and leaks.

Every attack is also made on a mutant, a broken variant that it must catch. The mechanisms alone are attacked in
test_mechanisms.py, the door in test_release.py, the ledger in test_ledger.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import veilwood_audit as audit
from veilwood import RandomTreesClassifier, Schema
from veilwood.arrays import Ints
from veilwood.data.batches import Batch
from veilwood.data.encoding import TARGET_LEVELS, EncodedColumn, Encoding
from veilwood.data.open_rows import open_rows
from veilwood.privacy import entropy
from veilwood.privacy.door import Door
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Adjacency, Neighbours, Rows, RowsOf
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import counting_step, selection_step
from veilwood.trees.counting import Assignment, leaf_totals
from veilwood.trees.forest import Forest
from veilwood.trees.random import grow_binary, grow_multiway
from veilwood_audit.attacks import audit_one_run, canary_estimator
from veilwood_audit.statistics import ALPHA, epsilon_lower_bound, worst_distances, worst_log_ratio
from veilwood_testing.noise_checks import CODE_TARGET_PAIRS, NEIGHBOUR_UNITS, prefer_zcdp
from veilwood_testing.small_forests import RANDOM_TREES, TASKS, TWO_COLUMN_SCHEMAS, patch_estimators

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


ONE = Loss.pure(Fraction(1))

# Six cells: three categories of a coin with an edge, two classes.
COIN = EncodedColumn("coin", ordered=False, n_codes=3, missing_code=None)
SIDE = EncodedColumn("side", ordered=True, n_codes=2, missing_code=None)


def batch_of(cells: tuple[int, ...]) -> Batch:
    records = [CODE_TARGET_PAIRS[cell] for cell in cells]
    codes = np.array([[code, code % 2] for code, _ in records], np.uint16).reshape(-1, 2)
    return Batch(codes, np.array([target for _, target in records], np.int32), 0, 0)


def small_forests() -> dict[str, Forest]:
    return {
        "binary": grow_binary([COIN, SIDE], 3, 2, random_state=1),
        "multiway": grow_multiway([COIN, SIDE], 2, 2, random_state=1),
    }


def leaf_query(forest: Forest, assignment: Assignment | None = None, **task: Any) -> Callable[[tuple[int, ...]], Ints]:
    return lambda cells: leaf_totals(forest, [batch_of(cells)], assignment=assignment, fast=False, **task)


# -- 1. sensitivity, by enumeration -----------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", NEIGHBOUR_UNITS, ids=str)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("trees", ["shared", "disjoint"])
@pytest.mark.parametrize("shape", ["binary", "multiway"])
def test_sensitivity_is_right_and_attained(shape: str, trees: str, task: str, neighbours: Neighbours) -> None:
    forest = small_forests()[shape]
    visits = forest.n_trees if trees == "shared" else 1
    assignment = None if trees == "shared" else Assignment(b"k" * 32, forest.n_trees)
    records = 3 if neighbours == NEIGHBOUR_UNITS[3] else 4
    found = worst_distances(leaf_query(forest, assignment, **TASKS[task]), len(CODE_TARGET_PAIRS), records, neighbours)
    assert found.l1 == neighbours.l1_sensitivity(visits)
    assert found.squared_l2 <= neighbours.squared_l2_sensitivity(visits)
    if trees == "shared" or neighbours.adjacency == "add-remove":
        assert found.squared_l2 == neighbours.squared_l2_sensitivity(visits)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("trees", ["shared", "disjoint"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_plan_of_random_trees_uses_the_enumerated_sensitivity(
    task: str, trees: str, adjacency: Adjacency, delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The constants in plans of whole estimators, in units of one target level."""
    prefer_zcdp(monkeypatch)
    estimator = RANDOM_TREES[task](
        TWO_COLUMN_SCHEMAS[task],
        trees=trees,
        adjacency=adjacency,
        delta=delta,
        n_estimators=3,
        max_depth=2,
        random_state=0,
    )
    plan = estimator.plan()
    unit = 1 if task == "classification" else TARGET_LEVELS
    design = estimator._design_for(TWO_COLUMN_SCHEMAS[task])
    corners = np.array([[0.1, 0.1], [0.9, 0.9], [0.1, 0.9]])
    codes = design.encoding.encode(corners)
    cells = [(row, target) for row in range(3) for target in (0, unit)]
    assignment = None if trees == "shared" else Assignment(b"k" * 32, 3)

    def query(table: tuple[int, ...]) -> Ints:
        batch = Batch(
            codes[[cells[cell][0] for cell in table]].reshape(-1, 2),
            np.array([cells[cell][1] for cell in table], np.int32), 0, 0,
        )  # fmt: skip
        n_classes = 2 if task == "classification" else None
        return leaf_totals(
            design.forest, [batch], n_classes=n_classes, target_levels=unit, assignment=assignment, fast=False
        )

    found = worst_distances(query, len(cells), 2, plan.neighbours)
    assert plan.sensitivity == (found.l1 if delta == 0 else found.squared_l2)
    mechanism = plan.steps[0].mechanism
    if delta == 0:
        assert isinstance(mechanism, DiscreteLaplace)
        assert mechanism.epsilon(found.l1) == plan.loss.epsilon == 1
    else:
        assert isinstance(mechanism, DiscreteGaussian)
        assert mechanism.rho(found.squared_l2) == plan.loss.rho


def test_enumeration_catches_the_wrong_adjacency_and_forgotten_trees() -> None:
    forest = small_forests()["binary"]
    query = leaf_query(forest, n_classes=2)
    add_remove, replace_one = Neighbours("add-remove"), Neighbours("replace-one")
    replaced = worst_distances(query, len(CODE_TARGET_PAIRS), 2, replace_one)
    assert replaced.l1 > add_remove.l1_sensitivity(
        forest.n_trees
    )  # mutant: the add-remove constant sold as replace-one
    assert replaced.squared_l2 > add_remove.squared_l2_sensitivity(forest.n_trees)
    added = worst_distances(query, len(CODE_TARGET_PAIRS), 2, add_remove)
    assert added.l1 > add_remove.l1_sensitivity(1)  # mutant: trees forgotten
    assert worst_distances(
        query, len(CODE_TARGET_PAIRS), 2, Neighbours("add-remove", Rows(2))
    ).l1 > add_remove.l1_sensitivity(forest.n_trees)


def kept_rows(unit_rows: tuple[int, ...], unit: RowsOf | None) -> Ints:
    """Leaf counts with one person's rows appended to three rows of another, under a cap on rows of an id."""
    schema = Schema.numeric((0, 2), classes=[0, 1], names=["coin"])
    encoding = Encoding(schema, "bins")
    records = [CODE_TARGET_PAIRS[cell] for cell in (0, 2, 5, *unit_rows)]
    table = pd.DataFrame({
        "coin": [float(code) for code, _ in records],
        "person": ["other"] * 3 + ["unit"] * len(unit_rows),
    })  # fmt: skip
    target = [target for _, target in records]
    with entropy.seeded_for_tests(0):
        source = open_rows(table if unit else table[["coin"]], target, encoding, unit=unit, batch_rows=2)
    forest = grow_multiway(encoding.columns, 2, 1, random_state=0)
    return leaf_totals(forest, source.batches(), n_classes=2, fast=False)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_all_rows_of_an_id_move_counts_by_the_cap(adjacency: Adjacency) -> None:
    unit = RowsOf("person", at_most=2)
    neighbours = Neighbours(adjacency, unit)
    persons = [(), (0,), (1, 1), (0, 0, 0), (3, 3, 3, 3), (1, 2, 3, 4), (5, 5, 5)]
    exact = [kept_rows(rows, unit) for rows in persons]
    others = exact if adjacency == "replace-one" else exact[:1]
    l1 = max(int(np.abs(one - other).sum()) for one in exact for other in others)
    squared_l2 = max(int(((one - other) ** 2).sum()) for one in exact for other in others)
    assert l1 == neighbours.l1_sensitivity(2)
    assert squared_l2 == neighbours.squared_l2_sensitivity(2)
    # Mutant: the cap is printed but not applied.
    uncapped = [kept_rows(rows, None) for rows in persons]
    assert max(int(np.abs(one - uncapped[0]).sum()) for one in uncapped) > Neighbours(
        "add-remove", unit
    ).l1_sensitivity(2)


# -- 2. the law of a release ------------------------------------------------------------------------------


def release_log_ratio(shift: Ints, noise: DiscreteLaplace) -> float:
    """The worst log-ratio of a whole release between two tables whose exact values differ by ``shift``."""
    total = 0.0
    for moved in np.abs(shift[shift != 0]).tolist():
        outcomes = np.arange(-moved - 2, moved + 3)
        total += worst_log_ratio(noise.pmf(outcomes), noise.pmf(outcomes - moved))
    return total


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.5])
def test_the_release_loses_exactly_epsilon_on_the_worst_neighbour(adjacency: Adjacency, epsilon: float) -> None:
    forest = grow_binary([COIN, SIDE], 3, 2, random_state=1)
    loss = Loss.pure(Fraction(str(epsilon)))
    step = counting_step("counts", (forest.n_leaves, 2), loss, Neighbours(adjacency), l1=3, squared_l2=3)
    assert isinstance(step.mechanism, DiscreteLaplace)
    query = leaf_query(forest, n_classes=2)
    pairs = list(audit.neighbouring_tables(len(CODE_TARGET_PAIRS), 2, adjacency))

    def worst(noise: DiscreteLaplace) -> float:
        return max(release_log_ratio(query(one) - query(other), noise) for one, other in pairs)

    assert worst(step.mechanism) == pytest.approx(epsilon, rel=1e-9)
    assert worst(DiscreteLaplace(step.mechanism.scale / 2)) > 1.9 * epsilon  # mutant: halved noise


# A level of two nodes with two candidates each: a record is in one node and raises one score by 1.
NODE_SCORES = np.array([(node, candidate) for node in range(2) for candidate in range(2)])


def level_log_ratio(mechanism: Any, neighbours: Neighbours) -> float:
    """The worst log-ratio of the choices of all nodes of a level together, over all small neighbouring tables."""

    @functools.cache
    def law(cells: tuple[int, ...]) -> NDArray[np.float64]:
        scores = np.zeros((2, 2), np.int64)
        np.add.at(scores, tuple(NODE_SCORES[list(cells)].T), 1)
        return np.asarray(np.multiply.outer(mechanism.probabilities(scores[0]), mechanism.probabilities(scores[1])))

    pairs = audit.neighbouring_tables(4, 4, neighbours.adjacency, neighbours.unit.at_most)
    return max(worst_log_ratio(law(one), law(other)) for one, other in pairs)


@pytest.mark.parametrize("neighbours", NEIGHBOUR_UNITS, ids=str)
@pytest.mark.parametrize("by", ["flip", "exponential"])
def test_levels_of_selections_cost_their_loss(by: Literal["flip", "exponential"], neighbours: Neighbours) -> None:
    step = selection_step("splits", (2, 2), ONE, neighbours, score_range=1, by=by)
    worst = level_log_ratio(step.mechanism, neighbours)
    assert worst <= 1 + 1e-9
    if neighbours == NEIGHBOUR_UNITS[0]:
        assert worst > 0.7
    else:
        # Mutant: the range of one added row, whatever the unit and the adjacency ("monotone" sold as replace-one).
        mutant = selection_step("splits", (2, 2), ONE, Neighbours(), score_range=1, by=by)
        assert level_log_ratio(mutant.mechanism, neighbours) > 1.3


def test_selections_of_several_trees_share_the_loss() -> None:
    for by in ("flip", "exponential"):
        for loss in (ONE, Loss.zcdp(Fraction(1, 50), Fraction(1, 10**6))):
            step = selection_step("s", (4, 2), loss, Neighbours(), score_range=3, selections_per_row=5, by=by)
            mechanism: Any = step.mechanism
            if loss == ONE:
                assert 5 * mechanism.epsilon == 1
                continue
            assert loss.rho is not None
            rho = mechanism.rho if by == "exponential" else mechanism.epsilon**2 / 2
            assert loss.rho * Fraction(999, 1000) < 5 * rho <= loss.rho


# -- 3. distinguishers ------------------------------------------------------------------------------------


def through_the_door(values: Ints, runs: int, neighbours: Neighbours, l1: int) -> Ints:
    """Release the same values many times over, each row being one run of a mechanism of epsilon 1."""
    step = counting_step("repeated", (runs, *values.shape), ONE, neighbours, l1=l1, squared_l2=l1)
    plan = Plan("Audit", ONE, neighbours, (step,), "the same numbers", "audit", "0", Layout(leaves=1), step.variance)
    with Door(plan, MemoryLedger()) as door:
        return door.release_counts(step, np.broadcast_to(values, step.shape).astype(np.int64))


def lower_bound(event: Callable[[Any], Any], likely: Any, unlikely: Any) -> float:
    one, other = np.asarray(event(likely)), np.asarray(event(unlikely))
    return epsilon_lower_bound(int(one.sum()), len(one), int(other.sum()), len(other), alpha=ALPHA)


def counts_attack(monkeypatch: pytest.MonkeyPatch | None, factor: Fraction, runs: int = 150_000) -> float:
    """One record, three shared trees: all three of its leaf counts come out at least as large as they truly are."""
    if monkeypatch is not None:
        sound = DiscreteLaplace.sample
        monkeypatch.setattr(DiscreteLaplace, "sample", lambda self, n: sound(DiscreteLaplace(self.scale * factor), n))
    forest = grow_binary([COIN, SIDE], 3, 2, random_state=1)
    query = leaf_query(forest, n_classes=2)
    without, with_record = query((0, 3)), query((0, 3, 4))
    moved = without != with_record
    assert moved.sum() == 3
    add_remove = Neighbours("add-remove")
    likely = through_the_door(with_record[moved], runs, add_remove, l1=3)
    unlikely = through_the_door(without[moved], runs, add_remove, l1=3)
    return lower_bound(lambda noisy: (noisy >= with_record[moved]).all(axis=1), likely, unlikely)


def test_counts_of_three_trees_keep_their_epsilon() -> None:
    with entropy.seeded_for_tests(1):
        assert 0.8 < counts_attack(None, Fraction(1)) <= 1


def test_halved_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with entropy.seeded_for_tests(2):
        assert counts_attack(monkeypatch, Fraction(1, 2)) > 1.8


def test_a_standard_deviation_taken_for_a_scale_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with entropy.seeded_for_tests(3):
        assert counts_attack(monkeypatch, Fraction(70711, 100000)) > 1.2


def test_forgotten_trees_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with entropy.seeded_for_tests(4):
        assert counts_attack(monkeypatch, Fraction(1, 3)) > 2.5


def flip_attack(sold_as: Neighbours, runs: int = 150_000) -> float:
    """A label flips in a leaf of each of two trees: one class goes up and the other down."""
    before, after = np.array([[3, 1], [4, 2]]), np.array([[2, 2], [3, 3]])
    likely = through_the_door(after, runs, sold_as, l1=2)
    unlikely = through_the_door(before, runs, sold_as, l1=2)
    sign = np.array([-1, 1])
    return lower_bound(lambda noisy: ((noisy - after) * sign >= 0).all(axis=(1, 2)), likely, unlikely)


def test_a_flipped_label_keeps_its_epsilon() -> None:
    with entropy.seeded_for_tests(5):
        assert 0.7 < flip_attack(Neighbours("replace-one")) <= 1


def test_add_remove_noise_sold_as_replace_one_is_caught() -> None:
    with entropy.seeded_for_tests(6):
        assert flip_attack(Neighbours("add-remove")) > 1.7


# Records given to two trees: 100 records of a common cell, and one special record that is added. A table is
# an array of cells, a partition says which tree each place belongs to; four counts are released:
# common records of the first and second tree, special ones of the first and second tree.
Partition = Callable[[int, int], NDArray[Any]]  # (runs, records) -> tree of each record in each run


def by_key(runs: int, n: int) -> NDArray[Any]:
    return Assignment(entropy.secret_key(), 2).trees_of_rows(0, 0, runs * n).reshape(runs, n)


def cut_in_order(runs: int, n: int) -> NDArray[Any]:
    return np.broadcast_to(np.arange(n) >= (n + 1) // 2, (runs, n)).astype(int)


def shuffle_and_cut(runs: int, n: int) -> NDArray[Any]:
    return np.random.default_rng(7).permuted(cut_in_order(runs, n), axis=1)


def partition_attack(partition: Partition, runs: int = 60_000) -> float:
    """The first tree grows, the second loses a common record and gains the special one."""

    def released(cells: NDArray[Any]) -> Ints:
        trees = partition(runs, len(cells))
        counts = [((trees == tree) & (cells == cell)).sum(axis=1) for cell in (0, 1) for tree in (0, 1)]
        step = counting_step("counts", (runs, 4), ONE, Neighbours(), l1=1, squared_l2=1)
        plan = Plan("Audit", ONE, Neighbours(), (step,), "counts", "audit", "0", Layout(leaves=4), step.variance)
        with Door(plan, MemoryLedger()) as door:
            return door.release_counts(step, np.stack(counts, axis=1).astype(np.int64))

    common = np.zeros(100, int)
    likely, unlikely = released(np.append(common, 1)), released(common)
    return lower_bound(lambda noisy: (noisy[:, 0] >= 51) & (noisy[:, 1] <= 49) & (noisy[:, 3] >= 1), likely, unlikely)


def test_keyed_assignment_keeps_the_epsilon_of_one_tree() -> None:
    with entropy.seeded_for_tests(8):
        assert partition_attack(by_key) <= 1


def test_shuffle_and_cut_is_caught() -> None:
    with entropy.seeded_for_tests(9):
        assert partition_attack(shuffle_and_cut) > 1.7


def test_cutting_in_order_is_caught() -> None:
    # In order it is always the special record that ends up last, in the second tree.
    with entropy.seeded_for_tests(10):
        assert partition_attack(cut_in_order) > 2.3


def low_order_bits(noisy: NDArray[Any]) -> NDArray[Any]:
    """Values near 0 that are no multiple of 2^-53: a sum of 1 and a float cannot reach them (Mironov 2012)."""
    values = np.asarray(noisy, float)
    return np.asarray((np.abs(values) < 0.5) & (values * 2.0**53 != np.rint(values * 2.0**53)))


def test_floating_point_noise_is_caught() -> None:
    rng = np.random.default_rng(11)
    floats = [count + rng.laplace(size=10_000) for count in (0.0, 1.0)]
    assert lower_bound(low_order_bits, *floats) > 4
    with entropy.seeded_for_tests(11):
        ours = [through_the_door(np.array([count]), 10_000, Neighbours(), l1=1)[:, 0] for count in (0, 1)]
    assert all(values.dtype == np.int64 for values in ours)
    assert lower_bound(low_order_bits, *ours) <= 1


def test_noise_on_non_empty_leaves_only_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def attack() -> float:
        full, empty = (through_the_door(np.array([count]), 20_000, Neighbours(), l1=1)[:, 0] for count in (1, 0))
        return lower_bound(lambda noisy: noisy != 0, full, empty)

    with entropy.seeded_for_tests(12):
        assert attack() <= 1
    sound = DiscreteLaplace.perturb
    monkeypatch.setattr(DiscreteLaplace, "perturb", lambda self, x: np.where(x != 0, sound(self, x), 0))
    with entropy.seeded_for_tests(12):
        assert attack() > 4


def test_noise_shared_by_two_trees_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record reaches the first leaf of one tree and the second of the other: their differences tell it apart."""

    def attack() -> float:
        tables = (np.array([[5, 2], [4, 3]]), np.array([[4, 2], [4, 2]]))  # tree by leaf, with and without
        likely, unlikely = (through_the_door(counts, 20_000, Neighbours(), l1=2) for counts in tables)
        return lower_bound(lambda noisy: noisy[:, 0, 0] - noisy[:, 1, 0] == 1, likely, unlikely)

    with entropy.seeded_for_tests(13):
        assert attack() <= 1
    sound = DiscreteLaplace.sample
    monkeypatch.setattr(
        DiscreteLaplace, "sample",
        lambda self, shape: np.broadcast_to(sound(self, (shape[0], 1, shape[2])), shape),
    )  # fmt: skip
    with entropy.seeded_for_tests(13):
        assert attack() > 4


@pytest.mark.parametrize("task", TASKS)
def test_one_run_of_a_whole_fit(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forests of every other family are in test_attacks.py."""
    forest = canary_estimator(RANDOM_TREES[task], 1.0, {"n_estimators": 3})
    with entropy.seeded_for_tests(14):
        found = audit_one_run(forest)
        assert found.guesses > 2000
        assert 0.5 < found.epsilon_lower_bound <= 1
    sound = DiscreteLaplace.sample
    monkeypatch.setattr(DiscreteLaplace, "sample", lambda self, n: sound(DiscreteLaplace(self.scale / 2), n))
    with entropy.seeded_for_tests(14):
        assert audit_one_run(forest).epsilon_lower_bound > 1.4  # mutant: halved noise, wired into fit


def test_one_run_catches_forgotten_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = canary_estimator(RandomTreesClassifier, 1.0, {"n_estimators": 3})
    patch_estimators(
        monkeypatch, "counting_step",
        lambda *args, l1, squared_l2: counting_step(*args, l1=1, squared_l2=squared_l2),
    )  # fmt: skip
    with entropy.seeded_for_tests(15):
        assert audit_one_run(forest).epsilon_lower_bound > 2


# -- the statistics themselves ----------------------------------------------------------------------------
