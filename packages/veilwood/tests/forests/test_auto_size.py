# SPDX-License-Identifier: Apache-2.0
"""Forests that choose their own size: what they plan, spend, release and say, and how they fall back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.forests.leaves import shrunken_frequencies, shrunken_means
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.trees.random import grow_binary
from veilwood_testing.small_forests import CAR, CLASSIFIERS

REGRESSORS = [vw.RandomTreesRegressor, vw.MedianForestRegressor, vw.GreedyForestRegressor]
LINE = vw.Schema.numeric((0, 1), target_bounds=(0, 1), n_features=2)
X = np.random.default_rng(0).random((3000, 2))

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning", "ignore::veilwood.UtilityWarning"),
    pytest.mark.usefixtures("cached_strategies"),
]


@pytest.mark.parametrize("name", ["n_estimators", "max_depth"])
@pytest.mark.parametrize("Forest", [*CLASSIFIERS, *REGRESSORS])
def test_a_size_that_is_none_is_refused_beside_one_that_is_chosen(Forest: Any, name: str) -> None:
    """The other size is chosen, so that this one was computed with before anything had looked at it."""
    schema = LINE if Forest in REGRESSORS else CAR.schema
    wrong: list[Any] = [math.nan, math.inf, None, "many", {}, [], [[]], [math.nan], ["auto"], 0, -1, 10**12, 10**25]
    for size in [*wrong, True]:
        with pytest.raises(vw.VeilwoodError, match=name):
            Forest(schema, **{name: size}).plan()


@pytest.mark.parametrize("Forest", REGRESSORS)
def test_numbers_are_learned_and_never_worse_than_their_mean_by_much(Forest: Any) -> None:
    y = X[:, 0]
    with seeded_for_tests(1):
        assert Forest(LINE, epsilon=5.0, random_state=0).fit(X, y).score(X, y) > 0.5
        scores = [Forest(LINE, epsilon=0.1, random_state=seed).fit(X[:300], y[:300]).score(X, y) for seed in range(5)]
    assert np.mean(scores) > -0.2


def test_without_noise_a_node_that_no_split_makes_purer_is_a_leaf() -> None:
    forest = vw.GreedyForestClassifier(CAR.schema, epsilon=math.inf, random_state=0)
    fitted = forest.fit(CAR.X, ["acc"] * len(CAR.X))
    assert fitted.forest_.n_leaves == fitted.forest_.n_trees
    assert fitted.predict(CAR.X[:3]).tolist() == ["acc"] * 3


PLANE = vw.Schema.numeric((0, 1), classes=["a", "b"], n_features=2)


class TestShrunkenShares:
    forest = grow_binary(Encoding(PLANE, "grid").columns, 4, 3, 0)

    def test_without_noise_they_are_the_shares_with_one_row_more(self) -> None:
        counts = np.tile([30.0, 10.0], (self.forest.n_leaves, 1))
        np.testing.assert_allclose(
            shrunken_frequencies(self.forest, counts, 0.0), [[0.75, 0.25]] * len(counts), atol=0.01
        )

    def test_an_empty_leaf_says_what_is_above_it(self) -> None:
        counts = np.tile([30.0, 10.0], (self.forest.n_leaves, 1))
        counts[0] = 0
        assert shrunken_frequencies(self.forest, counts, 0.0)[0, 0] == pytest.approx(0.75, abs=0.02)

    def test_fitted_nodes_that_differ_by_chance_alone_say_what_is_above_them(self) -> None:
        """Leaves of four rows of which one is of the second class, on average: a sample, and nothing else."""
        first = np.random.default_rng(0).binomial(4, 0.75, self.forest.n_leaves).astype(float)
        counts = np.column_stack([first, 4 - first])
        as_drawn, fitted = (
            shrunken_frequencies(self.forest, counts, 0.0, splits_fitted=result)[:, 0].std() for result in (False, True)
        )
        assert fitted < 0.75 * as_drawn

    def test_fitted_nodes_that_are_pure_stay_so(self) -> None:
        first = np.arange(self.forest.n_leaves) % 2 * 40.0
        shares = shrunken_frequencies(self.forest, np.column_stack([first, 40 - first]), 0.0, splits_fitted=True)
        np.testing.assert_allclose(shares[:, 0], first / 40, atol=0.05)

    def test_uneven_leaves_of_one_mean_keep_no_noise(self) -> None:
        """A leaf of many rows has a large pair, which is no sign of another mean: they were .07 apart."""
        rng = np.random.default_rng(0)
        rows = np.where(np.arange(self.forest.n_leaves) % 2, 500.0, 2000.0)
        pairs = rows[:, None] * [0.1, 0.9] + rng.normal(0, 100, (self.forest.n_leaves, 2))
        assert shrunken_means(self.forest, pairs, 100.0**2)[:, 0].std() < 0.025

    def test_noise_alone_leaves_the_pooled_classes(self) -> None:
        noise = np.random.default_rng(0).normal(0, 1000, (self.forest.n_leaves, 2))
        shares = shrunken_frequencies(self.forest, noise, 1000.0**2, (np.array([900.0, 100.0]), 100.0))
        assert shares[:, 0].mean() > 0.65  # even shares would be 0.5, the pooled ones are 0.9
        assert shares.min() > 0


@pytest.mark.parametrize(
    ("Forest", "least"),
    [(vw.GreedyForestClassifier, 0.94), (vw.MatrixForestClassifier, 0.87)],
    ids=["greedy", "matrix"],
)
@pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning")
def test_without_noise_trees_branch_in_two_and_are_deep(Forest: Any, least: float) -> None:
    """Multiway trees look cells up: .92 and .84 of the rows left out, before. Plain forests have .98 and .92."""
    order = np.random.default_rng(0).permutation(len(CAR.X))
    fitted, rest = order[:1200], order[1200:]
    forest = Forest(CAR.schema, epsilon=math.inf, random_state=0).fit(CAR.X.iloc[fitted], CAR.y.iloc[fitted])
    assert forest.plan_.choices["max_depth"] >= 12
    assert forest.score(CAR.X.iloc[rest], CAR.y.iloc[rest]) > least
    assert Forest(CAR.schema, epsilon=1.0, n_estimators=1, max_depth=1).plan().n_leaves > 2  # one branch a value
