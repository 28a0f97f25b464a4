# SPDX-License-Identifier: Apache-2.0
"""DiPriMe with the accounting and the leaves that its paper prints (Consul and Williamson 2020). NOT PRIVATE.

The sound ones are in ``estimators.median_forest``; trees are grown by the same code as theirs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import AddUp
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Schema
from veilwood.forests.grown.base import GrownForest
from veilwood.forests.grown.median_forest import MedianForestClassifier, MedianForestRegressor
from veilwood.forests.grown.medians import Level, Variant, grow_level, plan_level
from veilwood.not_private.shared import PARTS, AsPublished, uniform
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss, exact
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.selection import ExponentialMechanism, PermuteAndFlip
from veilwood.privacy.steps import Step
from veilwood.trees.counting import Assignment
from veilwood.trees.histograms import spread_range
from veilwood.trees.levelwise import Growing

PAPER_VARIANTS = ("DiPriMe", "DiPriMeExp", "DiPriMeFlip")
K_MEDIANS_CHARGED_ONCE = (
    "the medians of all candidate attributes are charged as if they were one, so the true loss of splits is larger"
)
PRIVATE_SCALE = (
    "the noise on a leaf's mean is scaled by the true number of its rows, and empty leaves get none, so no bound holds"
)
NOT_ACCOUNTED = (
    "this class plans no loss, although for classes nothing in the variant DiPriMe fails once a secret key gives rows "
    "to trees: MedianForestClassifier(variant='random-attribute', selection='exponential', voting='majority') draws "
    "the same noise and states its guarantee"
)


class _DiPriMe(AsPublished, GrownForest):
    """What both tasks share: the paper's budget on splits."""

    _variants: ClassVar[tuple[str, ...]] = PAPER_VARIANTS
    _fixed: ClassVar[dict[str, Any]] = {}  # what the paper leaves no choice in

    variant: Any

    def __init__(
        self,
        schema: Any = None,
        *,
        epsilon_in_paper: float = 1.0,
        variant: str = "DiPriMeFlip",
        n_estimators: int = 10,
        max_depth: int = 6,
        split_share: float = 0.5,
        candidates: int = 5,
        random_state: Any = None,
        ledger: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(
            schema, epsilon=math.inf, variant=variant, n_estimators=n_estimators, max_depth=max_depth,
            split_share=split_share, candidates=candidates, random_state=random_state, ledger=ledger, n_jobs=n_jobs,
            **self._fixed,
        )  # fmt: skip
        self.epsilon_in_paper = epsilon_in_paper

    def _budget(self, share: Fraction) -> Fraction:
        return self._exact_epsilon_in_paper() * share

    @property
    def _sound_variant(self) -> Variant:
        return "random-attribute" if self.variant == "DiPriMe" else "k-medians"

    def _plan_level(self, encoding: Encoding, depth: int, n_nodes: int, loss: Loss, neighbours: Neighbours) -> Level:
        """Section 4 of the paper: half of a level's budget for each choice, whatever the number of medians."""
        level = plan_level(
            depth, self._sound_variant, loss, neighbours, n_nodes=n_nodes, trees_per_row=1,
            candidates=self._n_candidates(encoding), by="flip", moments=self._task == "regression",
        )  # fmt: skip
        budget = self._budget(exact(self.split_share) / self.max_depth)
        choose = PermuteAndFlip if self.variant == "DiPriMeFlip" else ExponentialMechanism
        if level.attributes is None:
            return replace(level, medians=replace(level.medians, mechanism=choose(budget, 2)))
        # Exponents of epsilon * MSE / (2 * 4 B^2 / N), with B the largest target: 8 times flatter than need be for
        # targets from 0 to 1; twice for classes.
        flatness = 8 if self._task == "regression" else 2
        score_range = flatness * spread_range(self._task == "regression")
        return Level(
            attributes=replace(level.attributes, mechanism=choose(budget / 2, score_range)),
            medians=replace(level.medians, mechanism=choose(budget / 2, 2)),
        )

    def _grow_level(
        self, encoding: Encoding, growing: Growing, level: Level, door: Door, add_up: AddUp,
        rng: np.random.Generator, assignment: Assignment | None,
    ) -> None:  # fmt: skip
        grow_level(
            growing, level, self._sound_variant, door, add_up, rng,
            candidates=self._n_candidates(encoding),
            n_classes=len(encoding.schema.classes) or None, assignment=assignment, n_jobs=self.n_jobs,
        )  # fmt: skip

    def _leaf_budget(self) -> Fraction:
        return self._budget(1 - exact(self.split_share))


class DiPriMeClassifierAsPublishedNotPrivate(_DiPriMe, MedianForestClassifier):
    """DiPriMe, DiPriMeExp or DiPriMeFlip for classes, with the paper's accounting. NOT PRIVATE.

    Rows are given to trees by a secret key, as in ``MedianForestClassifier``, not cut into equal parts. That makes the
    variant "DiPriMe" sound for classes; this class states no guarantee for it all the same, its counterpart does.

    Parameters
    ----------
    schema : Schema, path or dict
        What is public about the data.
    epsilon_in_paper : float
        What the paper calls epsilon. It is not a privacy loss here.
    variant : {"DiPriMeFlip", "DiPriMeExp", "DiPriMe"}
        The paper's three algorithms.
    n_estimators, max_depth, split_share, candidates, random_state, ledger, n_jobs
        As in ``MedianForestClassifier``; ``split_share`` is the paper's rho, ``candidates`` its K.

    Notes
    -----
    Guarantee

    None. ``privacy_.is_private`` is False and ``privacy_.epsilon`` is None.

    Examples
    --------
    >>> import warnings, veilwood as vw
    >>> from veilwood.not_private import DiPriMeClassifierAsPublishedNotPrivate
    >>> car = vw.datasets.car()
    >>> forest = DiPriMeClassifierAsPublishedNotPrivate(car.schema, epsilon_in_paper=2.0, random_state=0)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     _ = forest.fit(car.X, car.y)
    >>> forest.privacy_.is_private, forest.privacy_.epsilon
    (False, None)
    """

    _fixed: ClassVar[dict[str, Any]] = {"voting": "majority"}

    def _reason(self) -> str:
        return NOT_ACCOUNTED if self.variant == "DiPriMe" else K_MEDIANS_CHARGED_ONCE

    def _leaf_step(self, schema: Schema, loss: Loss, neighbours: Neighbours, n_leaves: int) -> Step:
        step = super()._leaf_step(schema, loss, neighbours, n_leaves)
        return replace(step, mechanism=DiscreteLaplace(1 / self._leaf_budget()))


class DiPriMeRegressorAsPublishedNotPrivate(_DiPriMe, MedianForestRegressor):
    """DiPriMe, DiPriMeExp or DiPriMeFlip for numbers, with the paper's accounting and leaf means. NOT PRIVATE.

    Rows are given to trees by a secret key, as in ``MedianForestRegressor``, not cut into equal parts.

    Parameters
    ----------
    schema, epsilon_in_paper, variant, n_estimators, max_depth, split_share, candidates, random_state, ledger, n_jobs
        As in ``DiPriMeClassifierAsPublishedNotPrivate``.

    Notes
    -----
    Guarantee

    None. ``privacy_.is_private`` is False and ``privacy_.epsilon`` is None.
    """

    leaf_means_: NDArray[np.float64]

    def _reason(self) -> str:
        return PRIVATE_SCALE if self.variant == "DiPriMe" else f"{K_MEDIANS_CHARGED_ONCE}; {PRIVATE_SCALE}"

    def _leaf_step(self, schema: Schema, loss: Loss, neighbours: Neighbours, n_leaves: int) -> Step:
        step = super()._leaf_step(schema, loss, neighbours, n_leaves)
        return replace(step, mechanism=DiscreteLaplace(2 * PARTS / self._leaf_budget()))

    def _release_leaves(self, door: Door, step: Step, exact_leaves: NDArray[np.int64]) -> NDArray[Any]:
        return means_as_published(exact_leaves, door.noisy(step, np.zeros_like(exact_leaves))[:, 0] / PARTS)

    def _set_leaves(self, forest: Any, released: NDArray[Any]) -> None:
        self.forest_ = forest
        self.leaf_means_ = released

    def _leaf_shares(self) -> NDArray[np.float64]:
        return self.leaf_means_


def means_as_published(pairs: NDArray[np.int64], noise: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return mean and complement of each leaf: noise of scale 2B / (rows epsilon), none at empty leaves, clipped.

    Targets are scaled to 0..1, so B is 1; ``noise`` has scale 2B / epsilon, and pairs are rotated ones. An empty leaf
    gets a uniform value, as in the public code.
    """
    total = pairs.sum(axis=1)
    rows = np.maximum(total / TARGET_LEVELS, 1)
    mean = np.clip(pairs[:, 0] / np.maximum(total, 1) + noise / rows, 0, 1)
    first = np.where(total > 0, mean, uniform(len(pairs)))
    return np.column_stack([first, 1 - first])
