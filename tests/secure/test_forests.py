# SPDX-License-Identifier: Apache-2.0
"""Forests on shares: disjoint records, extra trees, and ordinary estimators taught by owners and servers.

Single trees are in test_secure_trees.py.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import veilwood as vw
from veilwood.audit import epsilon_lower_bound, leaks
from veilwood.errors import BudgetExceededError, VeilwoodError
from veilwood.models.file import load, save
from veilwood.not_private import RandomTreesAsPrintedNotPrivate
from veilwood.papers import plain_id3 as plaintext
from veilwood.papers.extra_trees import grow_extra_trees, poisson_epsilon
from veilwood.privacy import entropy
from veilwood.privacy.ledger import MemoryLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.plan import Plan
from veilwood.secure.mpc.links import Links, run_threads
from veilwood.secure.mpc.plain import PlainEngine
from veilwood.secure.mpc.replicated import ReplicatedEngine
from veilwood.secure.mpc.shares import share
from veilwood.secure.protocols import hidden_forest as forests
from veilwood.secure.protocols import noise
from veilwood.secure.protocols.hidden_forest import grow_hidden_forest, trees_of_rows
from veilwood.secure.protocols.hidden_tree import Recipe, predict
from veilwood.secure.protocols.joint_forest import RING, Parties, count_rows, joint_design, joint_plan, release_sums
from veilwood.secure.protocols.plans import DEALT_JOINTLY, NO_COLLUSION, SAMPLED_JOINTLY, HiddenPlan, plan_hidden_forest
from veilwood.secure.protocols.records import Domain, Records, one_hot, one_hot_classes

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

Ints = NDArray[np.int64]
CAR = vw.datasets.car()


def table(n: int, domain: Domain, seed: int = 0) -> tuple[Ints, Ints]:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, n) for size in domain.sizes], axis=1)
    return codes, rng.integers(0, domain.n_classes, n)


def loaded(engine: Any, codes: Ints, target: Ints, domain: Domain) -> Records:
    return Records(engine.constant(one_hot(codes, domain)), engine.constant(one_hot_classes(target, domain)))


# -- forests from shared rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_hidden_forest_is_its_trees_on_disjoint_rows(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    domain = Domain((3, 2, 3), n_classes)
    codes, target = table(90, domain)
    own = np.random.default_rng(1).integers(0, 4, 90)  # one of the four trees may be empty
    monkeypatch.setattr(forests, "trees_of_rows", lambda engine, n_rows, n_trees: np.where(own == 2, 1, own))
    planned = plan_hidden_forest(CAR.schema, epsilon=1, max_depth=1, n_trees=4)
    planned = HiddenPlan(planned.plan, Recipe(domain, (None, None), None), 4)
    engine = PlainEngine()
    trees = grow_hidden_forest(engine, loaded(engine, codes, target, domain), planned)
    twins = [
        plaintext.grow(
            codes[rows], target[rows], sizes=(3, 3, 3), n_classes=n_classes, depth=2,
            split=plaintext.first_largest, label=plaintext.first_largest,
        )
        for rows in (np.where(own == 2, 1, own) == tree for tree in range(4))
    ]  # fmt: skip
    queries, _ = table(40, domain, seed=2)
    answers = engine.open(predict(engine, trees, engine.constant(one_hot(queries, domain))))
    assert (answers == plaintext.vote(twins, queries, n_classes)).all()


def test_a_hidden_forest_on_three_servers_draws_its_own_noise() -> None:
    planned = plan_hidden_forest(CAR.schema, epsilon=2.0, max_depth=2, n_trees=3)
    domain = Domain.of(CAR.schema)
    codes, target = table(200, domain)
    inputs = [share(one_hot(codes, domain)), share(one_hot_classes(target, domain))]

    def program(links: Links) -> Ints:
        engine = ReplicatedEngine(links)
        features, classes = (engine.load(pairs[links.party]) for pairs in inputs)
        return engine.open(predict(engine, grow_hidden_forest(engine, Records(features, classes), planned), features))

    found = run_threads(program)
    assert all((answer == found[0]).all() for answer in found)
    assert set(found[0].tolist()) <= set(range(domain.n_classes))


def test_rows_get_their_tree_by_place_alone() -> None:
    engine = PlainEngine()
    tree = trees_of_rows(engine, 6000, 6)
    assert (abs(np.bincount(tree, minlength=6) - 1000) < 200).all()
    assert (tree != trees_of_rows(engine, 6000, 6)).any()  # a fresh key every time
    with entropy.seeded_for_tests(1):
        longer = trees_of_rows(engine, 6001, 6)
    with entropy.seeded_for_tests(1):
        assert (trees_of_rows(engine, 6000, 6) == longer[:6000]).all()  # a row more moves no other


def test_extra_trees_equal_their_twins_and_ignore_rows_in_their_structure() -> None:
    domain = Domain((2, 3, 2), 2)
    codes, target = table(60, domain)
    engine = PlainEngine()
    grown = []
    for rows in (slice(None), slice(0, 7)):
        with entropy.seeded_for_tests(5):
            grown.append(
                grow_extra_trees(
                    engine, loaded(engine, codes[rows], target[rows], domain), domain,
                    depth=2, n_trees=2, leaf_scale=Fraction(1, 50), random_state=3,
                )
            )  # fmt: skip
    for one, other in zip(*grown, strict=True):
        assert all((a == b).all() for a, b in zip(one.splits, other.splits, strict=True))
    with entropy.seeded_for_tests(5):
        own = trees_of_rows(engine, 60, 2)
    for place, tree in enumerate(grown[0]):
        rows_of_leaf = tree.leaf_of(codes[own == place])
        counts = np.zeros((len(tree.leaves), 2), np.int64)
        np.add.at(counts, (rows_of_leaf, target[own == place]), 1)
        assert (tree.leaves == counts.argmax(axis=1)).all()


def test_poisson_sampling_costs_more_than_the_paper_claims() -> None:
    """One record, all of k noisy counts above 1: the exact ratio is above the claimed k gamma epsilon."""
    epsilon, rate, k = 2.0, 0.25, 4
    claimed = k * rate * epsilon
    above = {count: float((1 - np.cumsum(law(epsilon, count)))[1]) for count in (0, 1)}  # P(count + noise > 1)
    mixed = rate * above[1] + (1 - rate) * above[0]
    exact = k * np.log(mixed / above[0])
    assert claimed < exact <= poisson_epsilon(epsilon, rate, k) + 1e-9


def law(epsilon: float, count: int, reach: int = 60) -> NDArray[np.float64]:
    """The law of a count plus discrete Laplace noise on 0, 1, ..., with all below 0 put on 0."""
    places = np.arange(-reach, reach + 1)
    pmf = np.tanh(epsilon / 2) * np.exp(-epsilon * abs(places - count))
    return np.concatenate([[pmf[: reach + 1].sum()], pmf[reach + 1 :]])


# -- ordinary estimators, taught by owners and servers -----------------------------------------------------------------


class Threads(Parties):
    """Owners in this process, and three servers that are threads of it."""

    def __init__(self, tables: list[tuple[Any, Any]], law: Any = "dealt") -> None:
        super().__init__(law)
        self.tables = tables
        self.asked = 0

    def release(self, estimator: Any, plan: Plan) -> Ints:
        self.asked += 1
        counts = [share(count_rows(estimator, X, y), ring=RING) for X, y in self.tables]

        def program(links: Links) -> Ints:
            engine = ReplicatedEngine(links, ring=RING)
            return release_sums(engine, [engine.load(pairs[links.party]) for pairs in counts], plan, self.law)

        return run_threads(program)[0]


OWNERS = [(CAR.X[:600], CAR.y[:600]), (CAR.X[600:1000], CAR.y[600:1000]), (CAR.X[1000:], CAR.y[1000:])]
PUBLIC: dict[str, Any] = {"schema": CAR.schema, "n_estimators": 5, "max_depth": 2, "random_state": 0}
FORESTS = [
    vw.RandomTreesClassifier(**PUBLIC),
    vw.MatrixForestClassifier(**PUBLIC),
    vw.MatrixForestClassifier(**PUBLIC, mechanism="laplace"),
]


@pytest.mark.parametrize("forest", FORESTS, ids=["random", "matrix", "matrix-laplace"])
def test_owners_together_teach_what_one_table_teaches(forest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiscreteLaplace, "sample", lambda self, shape: np.zeros(shape, np.int64))
    monkeypatch.setattr(noise, "dealt_laplace", lambda engine, scale, shape: engine.constant(np.zeros(shape, np.int64)))
    alone, answers = forest.fit(CAR.X, CAR.y).leaf_counts_, forest.predict(CAR.X[:50])
    together = forest.fit(Threads(OWNERS))
    assert (together.leaf_counts_ == alone).all()
    assert (together.predict(CAR.X[:50]) == answers).all()


@pytest.mark.parametrize("law_", ["dealt", "sampled"])
def test_the_model_is_an_ordinary_one_with_a_certificate_that_names_the_servers(law_: Any, tmp_path: Path) -> None:
    forest = vw.RandomTreesClassifier(CAR.schema, epsilon=1.0, n_estimators=4, max_depth=3, random_state=0)
    ledger = MemoryLedger()
    forest.set_params(ledger=ledger).fit(Threads(OWNERS, law_))
    said = forest.privacy_
    assert said.is_private
    assert said.epsilon == 1.0
    assert said.delta is not None
    assert (said.delta == 0) == (law_ == "dealt")
    assert said.delta < 1e-15
    assert NO_COLLUSION in said.assumptions
    assert (DEALT_JOINTLY if law_ == "dealt" else SAMPLED_JOINTLY) in said.assumptions
    assert [entry.loss.epsilon for entry in ledger.entries()] == [1]
    assert forest.classes_.tolist() == list(CAR.schema.classes)
    exact = vw.RandomTreesClassifier(CAR.schema, epsilon=float("inf"), n_estimators=4, max_depth=3, random_state=0)
    assert leaks(forest, {"counts": exact.fit(CAR.X, CAR.y).leaf_counts_}) == []
    save(forest.set_params(ledger=None), tmp_path / "forest")
    assert (load(tmp_path / "forest").leaf_counts_ == forest.leaf_counts_).all()  # type: ignore[attr-defined]


def test_the_ledger_is_charged_before_the_servers_are_asked() -> None:
    class Down(Threads):
        def release(self, estimator: Any, plan: Plan) -> Ints:
            assert [entry.loss.epsilon for entry in ledger.entries()] == [1]
            raise VeilwoodError("server 2 is down")

    ledger = MemoryLedger(1.5)
    forest = vw.RandomTreesClassifier(CAR.schema, n_estimators=2, max_depth=2, random_state=0, ledger=ledger)
    with pytest.raises(VeilwoodError, match="server 2 is down"):
        forest.fit(Down(OWNERS))
    assert not hasattr(forest, "leaf_counts_")
    parties = Threads(OWNERS)
    with pytest.raises(BudgetExceededError):
        forest.fit(parties)  # what was reserved stays spent
    assert parties.asked == 0


def counted(epsilon: Fraction, law_: Any) -> tuple[Ints, Ints]:
    """Noisy counts of many cells that hold one row, and of as many that hold none."""
    design = joint_design(
        vw.RandomTreesClassifier(CAR.schema, epsilon=1.0, n_estimators=1, max_depth=2, random_state=0)
    )
    (step,) = design.plan.steps
    step = replace(step, loss=Loss.pure(epsilon), mechanism=DiscreteLaplace(1 / epsilon), shape=(40_000,))
    plan = replace(design.plan, loss=Loss.pure(epsilon), steps=(step,))
    cells = np.repeat([1, 0], 20_000)
    noisy = release_sums(engine := PlainEngine(RING), [engine.constant(cells), engine.constant(0 * cells)], plan, law_)
    return noisy[:20_000], noisy[20_000:]


@pytest.mark.parametrize("law_", ["dealt", "sampled"])
def test_joint_noise_keeps_its_epsilon_and_halved_noise_is_caught(law_: Any) -> None:
    with entropy.seeded_for_tests(41):
        one, none = counted(Fraction(1), law_)
        lower = epsilon_lower_bound(int((one >= 1).sum()), len(one), int((none >= 1).sum()), len(none))
        assert 0.4 < lower <= 1
        expected = 2 * exp(-1) / (1 - exp(-1)) ** 2 * (1.5 if law_ == "dealt" else 1)
        assert abs(none.var() / expected - 1) < 0.08
        one, none = counted(Fraction(2), law_)
        assert epsilon_lower_bound(int((one >= 1).sum()), len(one), int((none >= 1).sum()), len(none)) > 1.05


def test_joint_fits_refuse_what_servers_cannot_do() -> None:
    parties = Threads(OWNERS)
    good = {"schema": CAR.schema, "n_estimators": 2, "max_depth": 2, "random_state": 0}
    refused: list[tuple[Any, str]] = [
        (vw.GreedyForestClassifier(CAR.schema, random_state=0), "chooses its splits"),
        (vw.RandomTreesClassifier(**{**good, "random_state": None}), "same trees"),
        (vw.RandomTreesClassifier(**{**good, "schema": "infer"}), "declare a schema"),
        (vw.RandomTreesClassifier(**good, delta=1e-6), "discrete Laplace"),
        (vw.RandomTreesClassifier(**good, epsilon=float("inf")), "no noise"),
        (vw.RandomTreesClassifier(**good, privacy_unit={"id": "p", "at_most": 2}), "which rows of one person"),
        (RandomTreesAsPrintedNotPrivate(CAR.schema, n_estimators=2, max_depth=2, random_state=0), "not private"),
    ]
    for forest, why in refused:
        with pytest.raises(VeilwoodError, match=why):
            forest.fit(parties)
    assert parties.asked == 0
    with pytest.raises(VeilwoodError, match="law='loud'"):
        Threads(OWNERS, "loud")


def test_sums_of_the_wrong_shape_are_refused() -> None:
    plan = joint_design(vw.RandomTreesClassifier(CAR.schema, n_estimators=2, max_depth=2, random_state=0)).plan
    engine = PlainEngine(RING)
    for owners in ([], [engine.constant(np.zeros(3, np.int64))]):
        with pytest.raises(VeilwoodError, match="owners shared sums"):
            release_sums(engine, owners, plan)


def test_plans_say_what_joint_noise_costs() -> None:
    plan = joint_design(vw.RandomTreesClassifier(CAR.schema, n_estimators=2, max_depth=2, random_state=0)).plan
    dealt, sampled = joint_plan(plan, "dealt"), joint_plan(plan, "sampled")
    assert dealt.loss == plan.loss
    assert dealt.expected_leaf_mse == 1.5 * plan.expected_leaf_mse
    assert 0 < sampled.loss.delta < Fraction(1, 10**15)
    assert sampled.loss.epsilon == plan.loss.epsilon
