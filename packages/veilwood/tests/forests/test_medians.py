# SPDX-License-Identifier: Apache-2.0
"""Median forests: score ranges by enumeration, plans, distinguishers with mutants, accuracy, tables of any kind."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import veilwood as vw
import veilwood_audit as audit
from veilwood.data.batches import Batch
from veilwood.data.encoding import TARGET_LEVELS, EncodedColumn
from veilwood.forests import medians
from veilwood.forests.levelwise import LevelNodes, Splitter
from veilwood.forests.medians import VARIANTS, MedianLevel, grow_level, plan_level
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours, Rows
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.plan import Layout, Plan
from veilwood.trees.histograms import edge_scores, impurity_range, level_scores
from veilwood.trees.level_growth import GrowingForest
from veilwood_audit.statistics import epsilon_lower_bound
from veilwood_papers.not_private.as_published import PARTS_PER_ROW, means_as_published
from veilwood_testing.noise_checks import prefer_zcdp

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


SCHEMAS = {
    "classification": vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=3),
    "regression": vw.Schema.numeric((0, 1), target_bounds=(0, 1), n_features=3),
}


def table(task: str, n: int = 400, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.random((n, 3))
    return X, X[:, 0] if task == "regression" else np.where(X[:, 0] > 0.5, "yes", "no")


TOP = TARGET_LEVELS


# -- 1. score ranges, by enumerating neighbours --------------------------------------------------------------

# Six cells: two columns, targets at both ends and (regression) in the middle.
CODES = [(0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (0, 0)]


GRID = [EncodedColumn(name, ordered=True, n_codes=3, missing_code=None) for name in ("a", "b")]


def of(batch: Batch) -> Any:
    """A source of one batch."""
    return lambda count, n_jobs: count([batch], n_jobs=n_jobs)


def scores_of(cells: tuple[int, ...], targets: list[int], n_classes: int | None) -> dict[str, Any]:
    """The scores of the root of one tree, by the code that a fit runs: for the median, and for attributes."""
    batch = Batch(
        np.array([CODES[cell] for cell in cells], np.uint16).reshape(-1, 2),
        np.array([targets[cell] for cell in cells], np.int32), 0, 0,
    )  # fmt: skip
    growing = GrowingForest(GRID, 1)
    slots = growing.bin_candidates(np.array([[0, 1]]), 3, np.random.default_rng(0))
    imbalance, spreads = level_scores(
        growing, slots, of(batch), lambda h: edge_scores(h, n_classes is None),
        n_classes=n_classes, max_bins=3, fast=False,
    )  # fmt: skip
    return {"median": -imbalance, "select-then-median": -spreads.min(axis=1), "k-medians": -spreads[:, :1]}


@pytest.mark.parametrize("n_classes", [2, None])
@pytest.mark.parametrize(("adjacency", "k"), [("add-remove", 1), ("replace-one", 1), ("add-remove", 2)])
def test_planned_ranges_are_right_by_enumeration(n_classes: int | None, adjacency: Any, k: int) -> None:
    """The range that a plan calibrates to bounds that of all small tables; half of it does not."""
    targets = [0, 1, 0, 1, 1, 0] if n_classes else [0, TOP, TOP // 2, TOP, 1, 0]
    neighbours = Neighbours(adjacency, Rows(k))
    planned = {"median": 2, **dict.fromkeys(("select-then-median", "k-medians"), impurity_range(n_classes is None))}
    cache: dict[Any, Any] = {}

    def scores(cells: tuple[int, ...]) -> Any:
        if cells not in cache:
            cache[cells] = scores_of(cells, targets, n_classes)
        return cache[cells]

    worst = dict.fromkeys(planned, 0)
    for one, other in audit.neighbouring_tables(6, 3, adjacency, k):
        for name, of_one in scores(tuple(one)).items():
            change = scores(tuple(other))[name] - of_one
            spans = np.ptp(change, axis=-1) if name == "median" else np.ptp(change)
            worst[name] = max(worst[name], int(np.max(spans)))
    for name, range_ in planned.items():
        assert worst[name] <= neighbours.score_range(range_)
    if k == 1:  # with few rows two of them cannot do twice the harm
        assert worst["median"] == neighbours.score_range(2)
        assert worst["select-then-median"] > neighbours.score_range(planned["select-then-median"]) / 5


# -- 2. what a plan adds up to -------------------------------------------------------------------------------


# -- 3. distinguishers, each with the mutant it must catch ---------------------------------------------------

RUNS = 40_000


K = 5


def published_splits(rows: Any, variant: Any, mutant: bool) -> Any:
    """The cut at the root of ``RUNS`` trees that all see the same rows: so many runs of one level of epsilon 1.25."""
    columns = [EncodedColumn(f"x{i}", ordered=True, n_codes=3, missing_code=None) for i in range(K)]
    loss = Loss.pure(Fraction(5, 4))
    nodes = LevelNodes(0, RUNS, loss, Neighbours(), trees_per_row=1, candidates=K, mechanism="flip")
    level = plan_level(nodes, variant, moments=True)
    if mutant:  # the paper's accounting: the K medians of one node are charged as one
        once = plan_level(replace(nodes, max_nodes=RUNS * K), "select-then-median", moments=True)
        level = MedianLevel(level.attributes, once.medians)
    plan = Plan("Audit", loss, Neighbours(), level.steps, "splits", "audit", "0", Layout(leaves=1), 0.0)
    codes, targets = np.repeat(np.array(rows)[:, :1], K, axis=1), np.array(rows)[:, 1]
    batch = Batch(codes.astype(np.uint16), targets.astype(np.int32), 0, 0)
    growing = GrowingForest(columns, RUNS)
    with Door(plan, MemoryLedger()) as door:
        by = Splitter(door, of(batch), np.random.default_rng(0), candidates=K, n_classes=None, n_jobs=1)
        grow_level(growing, level, variant, by)
    return growing.finish_forest().cut[::3]  # the roots: every tree has three nodes


# Section 4.4 (a) of the analysis: K equal columns with three values. Splitting off the last value is nearly as balanced
# as splitting off the first, separates the target badly, and one more row at the end makes it more balanced.
WITHOUT = [(0, TOP)] * 20 + [(1, 0)] * 20 + [(2, 0)] * 19


WITH = [*WITHOUT, (2, 0)]


def split_attack(variant: str, monkeypatch: pytest.MonkeyPatch, mutant: bool = False) -> float:
    monkeypatch.setattr(medians, "BINS", 3)
    hits = [int((published_splits(rows, variant, mutant) == 2).sum()) for rows in (WITH, WITHOUT)]
    return epsilon_lower_bound(hits[0], RUNS, hits[1], RUNS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_splits_keep_their_epsilon(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_attack(variant, monkeypatch) <= 1.25


def test_medians_charged_once_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_attack("k-medians", monkeypatch, mutant=True) > 1.5  # claimed 1.25


def median_by_intervals(values: Any, epsilon: float, rng: np.random.Generator, runs: int, *, flip: bool) -> Any:
    """Mutants of the public code: choices among the intervals between data points, which depend on the data.

    The exponential mechanism with 1e-12 added to every weight, or permute-and-flip, which forgets their lengths.
    """
    ends = np.concatenate([[0.0], np.sort(values), [1.0]])
    n = len(values)
    score = -np.abs(2 * np.arange(n + 1) - n)
    if flip:
        accepted = rng.random((runs, n + 1)) < np.exp(epsilon / 2 * (score - score.max()))
        chosen = np.where(accepted, rng.random((runs, n + 1)), -1.0).argmax(axis=1)
    else:
        weight = np.diff(ends) * np.exp(epsilon / 2 * score) + 1e-12
        chosen = rng.choice(n + 1, size=runs, p=weight / weight.sum())
    return ends[chosen] + rng.random(runs) * np.diff(ends)[chosen]


def test_a_floor_under_intervals_is_caught() -> None:
    """Ties push proper weights below the floor; then the empty interval between two equal values is chosen too."""
    rng = np.random.default_rng(0)
    once, twice = np.append(np.full(120, 0.9), 0.3217), np.append(np.full(120, 0.9), [0.3217, 0.3217])
    raw = [int((median_by_intervals(rows, 0.625, rng, 100_000, flip=False) == 0.3217).sum()) for rows in (twice, once)]
    assert epsilon_lower_bound(raw[0], 100_000, raw[1], 100_000) > 3  # claimed 0.625: a raw value is published


def test_permute_and_flip_over_intervals_is_caught() -> None:
    """No data against one record near the edge: a gap of 1e-4 is chosen half of the time once it exists."""
    rng = np.random.default_rng(0)
    low = [
        int((median_by_intervals(rows, 0.1, rng, 100_000, flip=True) < 1e-4).sum())
        for rows in (np.array([1e-4]), np.empty(0))
    ]
    assert epsilon_lower_bound(low[0], 100_000, low[1], 100_000) > 5  # claimed 0.1


def test_medians_lie_on_public_edges_whatever_the_data() -> None:
    """Ours cannot publish a raw value: cuts are edges of a grid that the schema gives."""
    cuts = []
    for shift in (0.0, 0.0001):
        X = np.full((300, 3), 0.7123 + shift)
        X[:, 1:] = 0.5
        forest = vw.MedianForestRegressor(SCHEMAS["regression"], epsilon=5, max_depth=1, n_estimators=200)
        forest.fit(X, X[:, 0])
        cuts.append(set(forest.forest_.cut[forest.forest_.feature >= 0]))
    public = {-(-(edge * 65535) // 64) for edge in range(1, 64)}
    assert all(min(abs(cut - edge) for edge in public) <= 1 for cut in cuts[0] | cuts[1])


def leaf_means(pair: tuple[int, int], runs: int, rng_seed: int) -> Any:
    """Sound leaf means of one leaf, by the step that the estimator plans at epsilon 1 for leaves."""
    forest = vw.MedianForestRegressor(SCHEMAS["regression"], epsilon=2, n_estimators=10, max_depth=1)
    step = forest.plan().steps[-1]
    with seeded_for_tests(rng_seed):
        assert isinstance(step.mechanism, DiscreteLaplace)
        noisy = step.mechanism.perturb(np.broadcast_to(np.array(pair), (runs, 2)).astype(np.int64))
    return 0.5 + 0.5 * (noisy[:, 0] - noisy[:, 1]) / np.maximum(noisy.sum(axis=1), TOP)


def test_leaf_means_keep_their_epsilon_and_published_ones_do_not() -> None:
    runs = 100_000
    pairs = {0: (0, 0), 1: (0, TOP), 2: (0, 2 * TOP)}  # leaves of 0, 1, 2 rows with target 0
    ours = {n: leaf_means(pair, runs, 3 + n) for n, pair in pairs.items()}
    with seeded_for_tests(9):
        noise = DiscreteLaplace(2 * PARTS_PER_ROW).sample(runs) / PARTS_PER_ROW
        expected = {n: means_as_published(np.tile(pair, (runs, 1)), noise)[:, 0] for n, pair in pairs.items()}
        unclipped = {n: noise / n for n in (1, 2)}  # the paper's formula, before the public code's clipping

    def bound(event: Any, likely: Any, unlikely: Any) -> float:
        return epsilon_lower_bound(int(event(likely).sum()), runs, int(event(unlikely).sum()), runs)

    def far(v: Any) -> Any:
        return np.abs(v) > 3 * 2  # three times the range

    def clipped(v: Any) -> Any:
        return (v <= 0) | (v >= 1)

    assert bound(far, unclipped[1], unclipped[2]) > 1.5  # private count: caught
    assert bound(clipped, expected[1], expected[0]) > 5  # default for empty leaves: caught
    for one, other in ((1, 2), (2, 1), (1, 0), (0, 1)):
        assert bound(far, ours[one], ours[other]) <= 1
        assert bound(clipped, ours[one], ours[other]) <= 1


@pytest.mark.parametrize("trees", ["disjoint", "shared"])
def test_public_randomness_does_not_depend_on_the_data(trees: str) -> None:
    """Same public seed, other data: candidates, bins and random orders of the root are the same."""
    drawn = []
    for seed in (0, 1):
        X, y = table("classification", 100 + seed, seed)
        forest = vw.MedianForestClassifier(
            SCHEMAS["classification"],
            epsilon=1.0,
            n_estimators=10,
            max_depth=1,
            candidates=1,
            trees=trees,
            random_state=5,
        ).fit(X, y)
        drawn.append(forest.forest_.feature[forest.forest_.roots].tolist())
        assert forest.plan_.to_dict() == forest.plan().to_dict()
    assert drawn[0] == drawn[1]


# -- 4. splits, balance, accuracy ----------------------------------------------------------------------------


def test_without_noise_splits_are_medians() -> None:
    rng = np.random.default_rng(0)
    X = rng.random((4096, 3))
    forest = vw.MedianForestRegressor(
        SCHEMAS["regression"], epsilon=math.inf, max_depth=4, n_estimators=2, trees="shared", random_state=0
    ).fit(X, X[:, 0])
    rows = forest.leaf_counts_.sum(axis=1) / TOP
    assert len(rows) == 32
    assert rows.min() > 0.7 * 256
    assert rows.max() < 1.3 * 256


def test_accuracy_beats_random_trees_on_banknote_like_data() -> None:
    rng = np.random.default_rng(2)
    X = rng.random((3000, 3)) ** 3  # skewed: random cuts leave most rows together
    y = np.where(X[:, 0] > np.median(X[:, 0]), "yes", "no")
    with seeded_for_tests(0):
        common: dict[str, Any] = {"epsilon": 2.0, "n_estimators": 10, "max_depth": 4, "random_state": 0}
        median = vw.MedianForestClassifier(SCHEMAS["classification"], **common).fit(X, y).score(X, y)
        random = vw.RandomTreesClassifier(SCHEMAS["classification"], trees="disjoint", **common).fit(X, y).score(X, y)
    assert median > 0.93
    assert median > random


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("variant", "mode"), ("selection", "loud"), ("split_budget", 1), ("split_budget", 0), ("candidates", 0),
     ("candidates", 2.5), ("max_depth", 0), ("max_depth", 40), ("max_depth", 4000), ("n_estimators", 0),
     ("trees", "oak"), ("leaves", "gold"), ("voting", "loud")],
)  # fmt: skip
def test_bad_parameters_name_themselves(parameter: str, value: Any) -> None:
    ledger = MemoryLedger(epsilon=1)
    forest = vw.MedianForestClassifier(SCHEMAS["classification"], ledger=ledger).set_params(**{parameter: value})
    with pytest.raises(vw.VeilwoodError, match=parameter):
        forest.fit(*table("classification"))
    assert ledger.spent.epsilon == 0


def test_categories_are_split_into_balanced_subsets() -> None:
    car = vw.datasets.car()
    forest = vw.MedianForestClassifier(
        car.schema, epsilon=math.inf, max_depth=6, n_estimators=4, trees="shared", random_state=0
    ).fit(car.X, car.y)
    rows = forest.leaf_counts_.sum(axis=1)
    assert rows.min() >= 1728 / 4**6 * 0  # every cell of the design is equally full; none is lost
    assert rows.reshape(-1).sum() == 4 * 1728
    assert forest.score(car.X, car.y) > 0.8


def test_missing_values_and_skewed_numbers() -> None:
    rng = np.random.default_rng(1)
    schema = vw.Schema.from_dict({
        "name": "skewed", "task": "classification", "target": "y",
        "columns": [
            {"name": "x", "kind": "numeric", "lower": 0, "upper": 1e6, "nullable": True},
            {"name": "y", "kind": "categorical", "values": ["a", "b"]},
        ],
    })  # fmt: skip
    x = rng.exponential(1.0, 4000)
    y = np.where(x > 0.7, "b", "a")
    x[:1500] = np.nan
    y[:1500] = "b"
    forest = vw.MedianForestClassifier(schema, epsilon=math.inf, max_depth=6, n_estimators=3, random_state=0)
    forest.fit(x[:, None], y)
    assert (forest.predict([[np.nan]]) == "b").all()


def test_source_files_and_frames_give_the_same_forest(tmp_path: Any) -> None:
    car = vw.datasets.car()
    path = tmp_path / "car.csv"
    car.X.assign(**{car.schema.target.name: car.y}).to_csv(path, index=False)
    parameters: dict[str, Any] = {"epsilon": math.inf, "max_depth": 3, "trees": "shared", "random_state": 1}
    one = vw.MedianForestClassifier(car.schema, **parameters).fit(car.X, car.y)
    other = vw.MedianForestClassifier(car.schema, **parameters).fit(str(path))
    assert (one.leaf_counts_ == other.leaf_counts_).all()
    assert (one.forest_.cut == other.forest_.cut).all()


FORESTS: dict[str, Any] = {
    "classification": vw.MedianForestClassifier,
    "regression": vw.MedianForestRegressor,
}


@pytest.mark.parametrize("task", FORESTS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("trees", ["disjoint", "shared"])
def test_a_plan_spends_exactly_epsilon(task: str, variant: str, trees: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer_zcdp(monkeypatch)
    forest = FORESTS[task](
        SCHEMAS[task], epsilon=0.7, n_estimators=4, max_depth=3, candidates=2, variant=variant, trees=trees,
        split_budget=0.4,
    )  # fmt: skip
    plan = forest.plan()
    assert sum(step.loss.epsilon for step in plan.steps) == Fraction(7, 10)
    assert plan.steps[-1].loss.epsilon == Fraction(7, 10) * Fraction(6, 10)
    per_row = 4 if trees == "shared" else 1
    for step in plan.steps[:-1]:
        choices = per_row * (2 if variant == "k-medians" and "median" in step.name else 1)
        assert step.mechanism.epsilon * choices == step.loss.epsilon
    assert plan.n_leaves == 4 * 8
    approximate = clone(forest).set_params(delta=1e-6).plan()
    assert sum(step.loss.rho for step in approximate.steps) <= approximate.loss.rho
    assert approximate.steps[-1].loss.rho == approximate.loss.rho * Fraction(6, 10)


def test_the_paper_splits_its_budget_as_we_do() -> None:
    """Section 4: epsilon_l = (1 - rho) epsilon, epsilon_s = epsilon_a = rho epsilon / (2 d)."""
    plan = vw.MedianForestRegressor(SCHEMAS["regression"], epsilon=10, n_estimators=10, max_depth=5).plan()
    assert plan.steps[-1].loss.epsilon == 5
    assert {step.loss.epsilon for step in plan.steps[:-1]} == {Fraction(1, 2)}
    assert len(plan.steps) == 11


@pytest.mark.parametrize("task", FORESTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_door_sees_every_planned_step_and_the_ledger_one_charge(
    task: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    passing = Door._admit_step

    def spy(door: Door, step: Any, shape: Any) -> None:
        seen.append(step.name)
        passing(door, step, shape)

    monkeypatch.setattr(Door, "_admit_step", spy)
    ledger = MemoryLedger(epsilon=1)
    forest = FORESTS[task](SCHEMAS[task], max_depth=3, n_estimators=3, candidates=2, variant=variant, ledger=ledger)
    forest.fit(*table(task))
    assert sorted(seen) == sorted(step.name for step in forest.plan_.steps)
    assert ledger.spent.epsilon == 1
    assert forest.privacy_.epsilon == 1.0
    assert forest.forest_.n_leaves <= forest.plan_.n_leaves
    assert forest.leaf_counts_.shape[0] == forest.forest_.n_leaves


@pytest.mark.parametrize("task", FORESTS)
def test_a_fitted_forest_holds_nothing_private(task: str) -> None:
    X, y = table(task, n=1613)
    secrets: dict[str, object] = {"n": 1613, "rows": X[:20].ravel(), "column": X[:20, 0]}
    forest = FORESTS[task](SCHEMAS[task], max_depth=3, n_estimators=3, trees="shared", random_state=0)
    with seeded_for_tests(0):  # by chance, a cut or a noisy count could be n
        forest.fit(X, y)
    assert audit.find_leaks(vars(forest), secrets) == []
    forest.kept_ = X
    assert audit.find_leaks(vars(forest), secrets)


@pytest.mark.parametrize("task", FORESTS)
def test_delta_and_no_noise_work(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer_zcdp(monkeypatch)
    X, y = table(task, 2000)
    promise: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "selection": "exponential"}
    approximate = FORESTS[task](SCHEMAS[task], n_estimators=10, max_depth=2, **promise).fit(X, y)
    assert (approximate.privacy_.epsilon, approximate.privacy_.delta) == (2.0, 1e-6)
    exact = FORESTS[task](SCHEMAS[task], epsilon=math.inf, n_estimators=10, max_depth=5, trees="shared", random_state=0)
    assert exact.fit(X, y).score(X, y) > 0.9
    assert not exact.privacy_.is_private
    assert (clone(exact).fit(X, y).predict(X) == exact.predict(X)).all()
