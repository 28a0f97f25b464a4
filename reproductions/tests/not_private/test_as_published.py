# SPDX-License-Identifier: Apache-2.0
"""Variants as published do what the papers print, differ where stated, and never claim to be private."""

from __future__ import annotations

import inspect
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone

import veilwood as vw
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.datasets import balance_scale, car
from veilwood.errors import ParameterError
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.selection import ExponentialMechanism, PermuteAndFlip
from veilwood_papers.not_private import as_published
from veilwood_papers.not_private.as_published import (
    PAPER_VARIANTS,
    PARTS_PER_ROW,
    DiPriMeClassifierAsPublishedNotPrivate,
    DiPriMeRegressorAsPublishedNotPrivate,
    RandomTreesAsPrintedNotPrivate,
    frequencies_as_printed,
    means_as_published,
)
from veilwood_testing.errors import rejects
from veilwood_testing.exhibits import forest_as_printed

pytestmark = [pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning")]


FORESTS: dict[str, Any] = {
    "classification": DiPriMeClassifierAsPublishedNotPrivate,
    "regression": DiPriMeRegressorAsPublishedNotPrivate,
}


SCHEMAS = {
    "classification": vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=6),
    "regression": vw.Schema.numeric((0, 1), target_bounds=(0, 1), n_features=6),
}


def table(task: str) -> tuple[Any, Any]:
    X = np.random.default_rng(0).random((3000, 6))
    return X, X[:, 0] if task == "regression" else np.where(X[:, 0] > 0.5, "yes", "no")


@pytest.mark.parametrize("task", FORESTS)
@pytest.mark.parametrize("variant", PAPER_VARIANTS)
def test_it_says_not_private_and_predicts(task: str, variant: str) -> None:
    ledger = vw.MemoryLedger()
    forest = FORESTS[task](
        SCHEMAS[task], epsilon_in_paper=10.0, variant=variant, max_depth=4, ledger=ledger, random_state=0
    )
    with pytest.warns(vw.PrivacyWarning, match="NOT PRIVATE") as warned:
        clone(forest).fit(*table(task))
    assert [warning.category for warning in warned].count(vw.PrivacyWarning) == 1
    (entry,) = ledger.entries()
    assert not entry.loss.is_bounded
    with pytest.warns(vw.PrivacyWarning), seeded_for_tests(0):  # as its scores vary a lot
        forest.fit(*table(task))
    assert not forest.privacy_.is_private
    assert forest.privacy_.epsilon is None
    assert "NOT PRIVATE" in repr(forest)
    assert forest.score(*table(task)) > (0.2 if variant == "DiPriMe" else 0.5)


@pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning")
@pytest.mark.parametrize("task", FORESTS)
def test_without_partition_every_tree_sees_every_row(task: str) -> None:
    forest = FORESTS[task](SCHEMAS[task], epsilon_in_paper=2.0, max_depth=2, n_estimators=4, random_state=0)
    parted, whole = (clone(forest).set_params(trees=trees) for trees in ("disjoint", "shared"))
    for one, other in zip(parted.plan().steps, whole.plan().steps, strict=True):
        mechanisms: list[Any] = [one.mechanism, other.mechanism]
        leaves = isinstance(one.mechanism, DiscreteLaplace)
        spent = [1 / noise.scale if leaves else noise.epsilon for noise in mechanisms]
        assert spent[0] == 4 * spent[1]
    if task == "classification":
        rows = [fit.fit(*table(task)).leaf_counts_.sum() for fit in (parted, whole)]
        assert rows[1] > 3.5 * rows[0]


@pytest.mark.parametrize("variant", ["DiPriMeExp", "DiPriMeFlip"])
def test_all_medians_of_a_node_are_charged_as_one(variant: str) -> None:
    """What test_medians.py shows to lose more than it claims is what the paper's accounting plans."""
    published = DiPriMeRegressorAsPublishedNotPrivate(
        SCHEMAS["regression"], epsilon_in_paper=10, variant=variant, max_depth=4, candidates=5
    ).plan()
    sound = vw.MedianForestRegressor(
        SCHEMAS["regression"], epsilon=10, variant="k-medians", n_estimators=10, max_depth=4, candidates=5
    ).plan()
    kind = PermuteAndFlip if variant == "DiPriMeFlip" else ExponentialMechanism
    for step, ours in zip(published.steps[:-1], sound.steps[:-1], strict=True):
        assert step.name == ours.name
        assert isinstance(step.mechanism, kind)
        assert isinstance(ours.mechanism, PermuteAndFlip | ExponentialMechanism)
        assert step.mechanism.epsilon == Fraction(5, 8)  # rho epsilon / (2 d)
        assert ours.mechanism.epsilon == Fraction(5, 8) / (5 if "median" in ours.name else 1)
        if "attribute" in step.name:
            assert step.mechanism.score_range == 8 * ours.mechanism.score_range


def test_leaves_follow_the_paper() -> None:
    counts = DiPriMeClassifierAsPublishedNotPrivate(SCHEMAS["classification"], epsilon_in_paper=2.0).plan().steps[-1]
    assert counts.mechanism == DiscreteLaplace(1)
    means = DiPriMeRegressorAsPublishedNotPrivate(SCHEMAS["regression"], epsilon_in_paper=2.0).plan().steps[-1]
    assert means.mechanism == DiscreteLaplace(2 * PARTS_PER_ROW)
    leaves = np.array([[TARGET_LEVELS, TARGET_LEVELS], [4 * TARGET_LEVELS, 0], [0, 0], [0, 0]])
    shares = means_as_published(leaves, np.array([0.5, -1.0, 9.0, 9.0]))
    assert shares[:2, 0].tolist() == [0.75, 0.75]  # noise divided by the true number of rows
    assert 0 <= shares[2, 0] <= 1
    assert shares[2, 0] != shares[3, 0]  # empty: a uniform default, whatever the noise


def test_reasons_are_those_of_the_variant() -> None:
    """With classes "DiPriMe" is sound: its reason says so, and names a forest that draws the same noise."""
    for task, forest in FORESTS.items():
        for variant in PAPER_VARIANTS:
            reason = forest(variant=variant)._not_private_reason()
            assert ("charged as if they were one" in reason) == (variant != "DiPriMe")
            assert ("true number of its rows" in reason) == (task == "regression")
    schema = SCHEMAS["classification"]
    counterpart = vw.MedianForestClassifier(
        schema,
        epsilon=2,
        variant="random-attribute",
        selection="exponential",
        voting="majority",
        n_estimators=10,
        max_depth=6,
    )
    published = DiPriMeClassifierAsPublishedNotPrivate(schema, epsilon_in_paper=2, variant="DiPriMe")
    assert (
        "MedianForestClassifier(variant='random-attribute', selection='exponential'" in published._not_private_reason()
    )
    assert published.voting == counterpart.voting
    for trees in ("disjoint", "shared"):  # without partition each tree has an equal part of the budget
        ours, other = (forest.set_params(trees=trees).plan().steps for forest in (counterpart, published))
        assert [step.mechanism for step in other] == [step.mechanism for step in ours]


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("variant", "median"), ("epsilon_in_paper", 0), ("max_depth", 0), ("n_estimators", 0), ("split_budget", 1)],
)
def test_bad_parameters_name_themselves(parameter: str, value: Any) -> None:
    with pytest.raises(vw.VeilwoodError, match=parameter):
        DiPriMeClassifierAsPublishedNotPrivate(SCHEMAS["classification"], **{parameter: value}).plan()


@pytest.fixture
def fitted() -> RandomTreesAsPrintedNotPrivate:
    with pytest.warns(vw.PrivacyWarning, match="eta/k"):
        return forest_as_printed().fit(car().X, car().y)


def test_every_class_here_says_so_by_name_and_parameter() -> None:
    for name in as_published.__all__:
        assert name.endswith("NotPrivate")
        parameters = inspect.signature(getattr(as_published, name)).parameters
        assert "epsilon_in_paper" in parameters
        assert "epsilon" not in parameters


def test_statement_repr_and_plan_say_not_private(fitted: RandomTreesAsPrintedNotPrivate) -> None:
    statement = fitted.privacy_
    assert not statement.is_private
    assert statement.epsilon is None
    assert statement.reason is not None
    assert "eta/k" in statement.reason
    assert "no noise was added" not in statement.reason
    assert "NOT PRIVATE" in str(statement)
    assert "NOT PRIVATE" in repr(fitted)
    assert "NOT PRIVATE" in str(forest_as_printed().plan())


def test_the_ledger_records_it_without_a_bound() -> None:
    ledger = vw.MemoryLedger()
    with pytest.warns(vw.PrivacyWarning):
        forest_as_printed(ledger=ledger).fit(car().X, car().y)
    (entry,) = ledger.entries()
    assert not entry.loss.is_bounded
    assert entry.not_private is not None


@pytest.mark.filterwarnings("error::veilwood.PrivacyWarning")
def test_a_ledger_with_a_budget_refuses_it() -> None:
    ledger = vw.MemoryLedger(epsilon=1000)
    with pytest.raises(vw.BudgetExceededError):  # nothing was released, so nothing is warned of
        forest_as_printed(ledger=ledger).fit(car().X, car().y)


def test_one_warning_for_one_release() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forest_as_printed().fit(car().X, car().y)
    (warning,) = (warning for warning in caught if warning.category is vw.PrivacyWarning)
    assert "eta/k" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning")
def test_shares_as_printed() -> None:
    kept = frequencies_as_printed(np.array([[3, 1], [0, 5]]))
    assert kept.tolist() == [[0.75, 0.25], [0.0, 1.0]]
    with seeded_for_tests(0):
        for counts in ([-1, 5], [7, -2], [0, 0]):
            drawn = frequencies_as_printed(np.tile(counts, (4000, 1)))
            assert np.allclose(drawn.sum(axis=1), 1)
            # Uniform on [0, 1]: mean 1/2, variance 1/12, a tenth below 1/10.
            assert drawn[:, 0].mean() == pytest.approx(0.5, abs=0.02)
            assert drawn[:, 0].var() == pytest.approx(1 / 12, abs=0.005)
            assert (drawn[:, 0] < 0.1).mean() == pytest.approx(0.1, abs=0.02)


def test_predicts_like_the_sound_estimator_when_noise_is_negligible() -> None:
    data = balance_scale()
    both: dict[str, Any] = {"n_estimators": 40, "max_depth": 2, "random_state": 3, "voting": "threshold"}
    plain = vw.RandomTreesClassifier(data.schema, epsilon=float("inf"), thresholds="range", **both).fit(data.X, data.y)
    with pytest.warns(vw.PrivacyWarning):
        printed = RandomTreesAsPrintedNotPrivate(data.schema, epsilon_in_paper=1e-3, **both).fit(data.X, data.y)
    assert (plain.predict(data.X) == printed.predict(data.X)).mean() > 0.95
    assert (printed.predict(data.X) == printed.predict(data.X)).all()


def test_trees_are_grown_as_printed() -> None:
    sound: dict[str, Any] = {"n_estimators": 4, "max_depth": 3, "random_state": 0}
    for thresholds in ("range", "path"):
        ours = vw.RandomTreesClassifier(car().schema, thresholds=thresholds, **sound).plan()
        same = ours.choices["structure"] == forest_as_printed().plan().choices["structure"]
        assert same == (thresholds == "range")
    with rejects(ParameterError, name="thresholds"):
        vw.RandomTreesClassifier(car().schema, thresholds="bounds").plan()


def test_clone_keeps_parameters() -> None:
    assert clone(forest_as_printed(epsilon_in_paper=0.25)).get_params()["epsilon_in_paper"] == 0.25


@pytest.mark.parametrize("value", [0, -1, float("inf"), "x"])
def test_bad_epsilon_is_refused(value: object) -> None:
    with pytest.raises(vw.VeilwoodError, match="epsilon_in_paper"):
        forest_as_printed(epsilon_in_paper=value).plan()


def test_scale_is_the_inverted_one() -> None:
    (step,) = forest_as_printed(epsilon_in_paper=0.5).plan().steps
    assert step.mechanism == DiscreteLaplace(Fraction(1, 8) * PARTS_PER_ROW)
    sound = vw.RandomTreesClassifier(car().schema, epsilon=0.5, n_estimators=4, max_depth=3, random_state=0)
    assert sound.plan().steps[0].mechanism == DiscreteLaplace(8)


@pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning")
def test_released_counts_carry_noise_of_the_printed_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    noise: list[NDArray[np.int64]] = []
    noisy = Door.release_counts

    def spy(door: Door, step: Any, exact: NDArray[np.int64]) -> NDArray[np.int64]:
        out = noisy(door, step, exact)
        assert not (exact % PARTS_PER_ROW).any()
        assert exact.sum() == len(car().y) * 4 * PARTS_PER_ROW
        noise.append(out - exact)
        return out

    monkeypatch.setattr(Door, "release_counts", spy)
    with seeded_for_tests(1):
        for _ in range(20):
            forest_as_printed().fit(car().X, car().y)
    mean_size = np.abs(np.concatenate(noise)).mean() / PARTS_PER_ROW  # the scale, for Laplace noise
    assert mean_size == pytest.approx(1 / 4, rel=0.08)  # 2560 draws, standard error 2 %
