# SPDX-License-Identifier: Apache-2.0
"""DiPriMe as published: it does what the paper prints, differs from the sound forest just there, and says so."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import veilwood as vw
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.selection import ExponentialMechanism, PermuteAndFlip
from veilwood_papers.not_private.as_published import (
    PAPER_VARIANTS,
    PARTS_PER_ROW,
    DiPriMeClassifierAsPublishedNotPrivate,
    DiPriMeRegressorAsPublishedNotPrivate,
    means_as_published,
)

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning")

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
        ours, theirs = (forest.set_params(trees=trees).plan().steps for forest in (counterpart, published))
        assert [step.mechanism for step in theirs] == [step.mechanism for step in ours]


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("variant", "median"), ("epsilon_in_paper", 0), ("max_depth", 0), ("n_estimators", 0), ("split_budget", 1)],
)
def test_bad_parameters_name_themselves(parameter: str, value: Any) -> None:
    with pytest.raises(vw.VeilwoodError, match=parameter):
        DiPriMeClassifierAsPublishedNotPrivate(SCHEMAS["classification"], **{parameter: value}).plan()
