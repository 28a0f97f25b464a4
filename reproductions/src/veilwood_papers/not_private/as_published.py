# SPDX-License-Identifier: Apache-2.0
"""DiPriMe and random decision trees exactly as their papers print them. NOT PRIVATE.

DiPriMe has the accounting and the leaves of Consul and Williamson (2020); random trees have the noise scale of
Bojarski et al. (2014). The sound median forests are in ``forests.grown.median_forest``; the same code grows the trees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from veilwood.arrays import Floats, Ints
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.data.schema import Schema
from veilwood.errors import ParameterError
from veilwood.estimators.base import BaseForest, Classifier, Regressor
from veilwood.estimators.method import FitRequest, ForestDesign, Parameters
from veilwood.estimators.one_pass import OnePassForest
from veilwood.estimators.parameters import Role, RunParameters, parameter
from veilwood.forests.levelwise import LevelNodes
from veilwood.forests.medians import MedianForest, MedianForestParameters, MedianLevel, Variant
from veilwood.forests.random_trees import RandomTrees, RandomTreesClassifierParameters
from veilwood.privacy import entropy
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss, exact_fraction
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.plan import Plan
from veilwood.privacy.selection import ExponentialMechanism, PermuteAndFlip
from veilwood.privacy.steps import Step
from veilwood.trees.forest import Forest
from veilwood.trees.histograms import impurity_range

__all__ = [
    "DiPriMeClassifierAsPublishedNotPrivate",
    "DiPriMeRegressorAsPublishedNotPrivate",
    "RandomTreesAsPrintedNotPrivate",
]

PARTS_PER_ROW = 2**20
"""Resolution of the discrete noise, in parts of a row or of a mean: the papers' noise is continuous."""


@dataclass(eq=False, repr=False, kw_only=True)
class PaperParameters(Parameters):
    """Parameters shared by all variants: the paper's epsilon, which is not a privacy loss.

    The papers have neither a declared number of rows nor post-processed leaves.
    """

    epsilon_in_paper: float = parameter(1.0, role=Role.PROMISE)
    n_rows: int | None = field(default=None, init=False)
    leaves: str = field(default="plain", init=False)

    def exact_epsilon(self) -> Fraction:
        """Return the paper's epsilon as an exact number above 0, or raise ParameterError."""
        value = exact_fraction(self.epsilon_in_paper, "epsilon_in_paper")
        if value <= 0:
            raise ParameterError("epsilon_in_paper", self.epsilon_in_paper, "must be above 0")
        return value


class AsPublished(BaseForest):
    """Mixin for estimators that follow a paper to the letter: no loss is guaranteed, and the certificate says why."""

    epsilon = math.inf
    delta = 0.0
    privacy_unit = "row"
    adjacency = "add-remove"

    def _resolve_schema(self, X: Any = None, y: Any = None) -> tuple[Schema, str | None]:
        """Return the schema and the reason why no guarantee is stated."""
        schema, inferred = super()._resolve_schema(X, y)
        return schema, "; ".join(filter(None, (self._not_private_reason(), inferred)))

    def _not_private_reason(self) -> str:
        """Return the reason why no guarantee is stated."""
        raise NotImplementedError


def draw_uniform(n: int) -> Floats:
    """Return ``n`` numbers drawn uniformly from (0, 1]."""
    return np.asarray(((entropy.random_integers(n) >> np.uint64(11)) + 1) / 2.0**53)


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


@dataclass(eq=False, repr=False, kw_only=True)
class DiPriMeParameters(PaperParameters, MedianForestParameters):
    """Parameters of the paper for regression. Values that the paper fixes are not parameters."""

    n_estimators: int = 10
    max_depth: int = 6
    variant: str = "DiPriMeFlip"
    selection: str = field(default="flip", init=False)


@dataclass(eq=False, repr=False, kw_only=True)
class DiPriMeClassifierParameters(DiPriMeParameters):
    """Parameters of the paper for classification."""

    voting: str = field(default="majority", init=False)


class DiPriMe(MedianForest):
    """Median forest with the paper's budget for splits and noise on leaves."""

    parameters: DiPriMeParameters
    variants: ClassVar[tuple[str, ...]] = PAPER_VARIANTS

    @property
    def selection_variant(self) -> Variant:
        """Selection of attributes and medians, under its name in the sound forest."""
        return "random-attribute" if self.parameters.variant == "DiPriMe" else "k-medians"

    def plan_level(self, nodes: LevelNodes) -> MedianLevel:
        """Plan a level as in section 4 of the paper: half of its budget per selection, for any number of medians."""
        level = super().plan_level(nodes)
        budget = self._paper_budget(exact_fraction(self.parameters.split_budget) / self.parameters.max_depth)
        choose = PermuteAndFlip if self.parameters.variant == "DiPriMeFlip" else ExponentialMechanism
        if level.attributes is None:
            return replace(level, medians=replace(level.medians, mechanism=choose(budget, 2)))
        # Exponents of epsilon * MSE / (2 * 4 B^2 / N), with B the largest target: 8 times flatter than necessary for
        # targets from 0 to 1, and twice for classes.
        flatness = 8 if self.task == "regression" else 2
        score_range = flatness * impurity_range(self.task == "regression")
        return MedianLevel(
            attributes=replace(level.attributes, mechanism=choose(budget / 2, score_range)),
            medians=replace(level.medians, mechanism=choose(budget / 2, 2)),
        )

    def leaf_step(self, schema: Schema, loss: Loss, neighbours: Neighbours, n_leaves: int) -> Step:
        """Plan the leaf step with the paper's noise scale, on class counts or in parts of a mean."""
        step = super().leaf_step(schema, loss, neighbours, n_leaves)
        scale = (1 if schema.classes else 2 * PARTS_PER_ROW) / self._paper_budget(
            1 - exact_fraction(self.parameters.split_budget)
        )
        return replace(step, mechanism=DiscreteLaplace(scale))

    def _paper_budget(self, fraction: Fraction) -> Fraction:
        """Return a tree's fraction of the paper's epsilon; trees on disjoint rows each use all of it."""
        return self.parameters.exact_epsilon() * fraction / self.trees_per_row

    def release_leaves(self, door: Door, step: Step, exact_leaves: Ints) -> NDArray[Any]:
        """Release noisy counts, or the paper's means, whose exact values bypass the noise of the release door."""
        if self.task == "classification":
            return super().release_leaves(door, step, exact_leaves)
        return means_as_published(
            exact_leaves, door.release_counts(step, np.zeros_like(exact_leaves))[:, 0] / PARTS_PER_ROW
        )

    def clean_leaves(self, forest: Forest, counts: NDArray[Any], plan: Plan, pooled: Any = None) -> Floats:
        """Return class frequencies, or the means unchanged."""
        return super().clean_leaves(forest, counts, plan) if self.task == "classification" else counts

    def utility_warning(self, plan: Plan, model: Any) -> str | None:
        """Return the warning for classification only: the noise on means has a different scale."""
        return super().utility_warning(plan, model) if self.task == "classification" else None


@dataclass(eq=False, repr=False)
class DiPriMeClassifierAsPublishedNotPrivate(AsPublished, Classifier, DiPriMeClassifierParameters, RunParameters):
    """DiPriMe, DiPriMeExp or DiPriMeFlip for classification, with the paper's accounting. NOT PRIVATE.

    A secret key assigns rows to trees, as in ``MedianForestClassifier``, instead of a partition into equal parts. That
    makes the variant "DiPriMe" sound for classification. This class states no guarantee for it;
    ``MedianForestClassifier`` does.

    Parameters
    ----------
    epsilon_in_paper : float
        The paper's epsilon. It is not a privacy loss here.
    variant : {"DiPriMeFlip", "DiPriMeExp", "DiPriMe"}
        The paper's three algorithms.
    trees : {"disjoint", "shared"}
        Whether each row counts in one tree or in all trees. The latter, as in the paper's figures without partition,
        divides the budget equally among the trees.
    schema, n_estimators, max_depth, split_budget, candidates, random_state, ledger, n_jobs, invalid
        As in ``MedianForestClassifier``; ``split_budget`` is the paper's rho, ``candidates`` its K.

    Notes
    -----
    Guarantee

    None, because the medians of K candidates are charged once: ``privacy_.is_private`` is False.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = DiPriMeClassifierAsPublishedNotPrivate(car.schema, epsilon_in_paper=2.0)
    >>> forest.plan().loss.is_bounded
    False
    """

    _method_class = DiPriMe

    def _not_private_reason(self) -> str:
        return NOT_ACCOUNTED if self.variant == "DiPriMe" else K_MEDIANS_CHARGED_ONCE


@dataclass(eq=False, repr=False)
class DiPriMeRegressorAsPublishedNotPrivate(AsPublished, Regressor, DiPriMeParameters, RunParameters):
    """DiPriMe, DiPriMeExp or DiPriMeFlip for regression, with the paper's accounting and leaf means. NOT PRIVATE.

    A secret key assigns rows to trees, as in ``MedianForestRegressor``, instead of a partition into equal parts.

    Parameters
    ----------
    schema, epsilon_in_paper, variant, n_estimators, max_depth, split_budget, candidates, trees
        As in ``DiPriMeClassifierAsPublishedNotPrivate``.
    random_state, ledger, n_jobs, invalid
        As in ``DiPriMeClassifierAsPublishedNotPrivate``.

    Notes
    -----
    Guarantee

    None, as for classification, and because the scale of the noise on means is private: ``privacy_.is_private`` is
    False.
    """

    _method_class = DiPriMe

    def _not_private_reason(self) -> str:
        return PRIVATE_SCALE if self.variant == "DiPriMe" else f"{K_MEDIANS_CHARGED_ONCE}; {PRIVATE_SCALE}"


def means_as_published(pairs: Ints, noise: Floats) -> Floats:
    """Return the clipped mean of each leaf and its complement, with noise of scale 2B / (rows epsilon).

    Targets are scaled to 0..1, so B is 1. ``noise`` has scale 2B / epsilon, and ``pairs`` are rotated. An empty leaf
    gets a uniform value instead, as in the public code.
    """
    total = pairs.sum(axis=1)
    rows = np.maximum(total / TARGET_LEVELS, 1)
    mean = np.clip(pairs[:, 0] / np.maximum(total, 1) + noise / rows, 0, 1)
    first = np.where(total > 0, mean, draw_uniform(len(pairs)))
    return np.column_stack([first, 1 - first])


@dataclass(eq=False, repr=False, kw_only=True)
class AsPrintedParameters(PaperParameters, RandomTreesClassifierParameters):
    """Parameters of the paper, which fixes trees and leaves."""

    n_estimators: int = 20
    max_depth: int = 5
    trees: str = field(default="shared", init=False)
    thresholds: str = field(default="range", init=False)
    voting: str = "majority"


class RandomTreesAsPrinted(RandomTrees):
    """Algorithm 2 as printed: the noise scale is inverted, and some class frequencies are random."""

    parameters: AsPrintedParameters

    def make_design(self, request: FitRequest) -> ForestDesign:
        """Return the design with noise of scale eta/k."""
        eta = self.parameters.exact_epsilon()
        design: ForestDesign = super().make_design(request)
        # With eta/k far below 1, the noise decides the sign of an empty class count. Integer noise would almost always
        # be 0, so it is drawn in parts of a row.
        noise = DiscreteLaplace(PARTS_PER_ROW * eta / design.forest.n_trees)
        (step,) = design.plan.steps
        step = replace(step, mechanism=noise, sensitivity=step.sensitivity * PARTS_PER_ROW)
        plan = replace(design.plan, steps=(step,), expected_leaf_mse=noise.variance / PARTS_PER_ROW**2)
        return replace(design, plan=plan)

    def release_sums(self, design: ForestDesign, exact: Ints, door: Door) -> Ints:
        """Release counts in parts of a row."""
        return super().release_sums(design, PARTS_PER_ROW * exact, door)

    def clean_leaves(self, forest: Forest, counts: Ints, plan: Plan, pooled: object = None) -> Floats:
        """Return the class frequencies that the paper prints, some of which are random."""
        return frequencies_as_printed(counts)

    def utility_warning(self, plan: Plan, model: object) -> None:
        """Return no warning: the noise gives no guarantee."""


@dataclass(eq=False, repr=False)
class RandomTreesAsPrintedNotPrivate(AsPublished, Classifier, OnePassForest, AsPrintedParameters, RunParameters):
    """Random decision trees exactly as Algorithms 1 and 2 of Bojarski et al. (2014) print them. NOT PRIVATE.

    Thresholds are drawn from the full range of a column, regardless of earlier splits on the path. The noise on leaf
    counts has scale eta/k instead of k/eta. A leaf with a negative noisy count, or with no positive one, gets a random
    frequency. Use ``RandomTreesClassifier`` for anything but the paper's figures.

    Parameters
    ----------
    schema : Schema, path or dict
        Public facts about the data.
    epsilon_in_paper : float
        The paper's eta. It is not a privacy loss here.
    n_estimators, max_depth : int
        Number k and height h of the trees.
    voting : {"majority", "threshold", "probabilistic"}
        How the trees are combined, as in ``RandomTreesClassifier``.
    random_state : int, generator or None
        Public randomness of the structure.
    ledger : Ledger, path or None
        Where the release is recorded, with an unbounded loss: a ledger with a budget rejects it.
    n_jobs, invalid
        As in ``RandomTreesClassifier``.

    Notes
    -----
    Guarantee

    None, because the scale of the noise is inverted: ``privacy_.is_private`` is False.

    Examples
    --------
    >>> import warnings, veilwood as vw
    >>> from veilwood_papers.not_private.as_published import RandomTreesAsPrintedNotPrivate
    >>> car = vw.datasets.car()
    >>> forest = RandomTreesAsPrintedNotPrivate(car.schema, epsilon_in_paper=1.0, n_estimators=5, random_state=0)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", vw.PrivacyWarning)
    ...     _ = forest.fit(car.X, car.y)
    >>> forest.privacy_.is_private, forest.privacy_.epsilon
    (False, None)
    """

    _method_class = RandomTreesAsPrinted

    def _not_private_reason(self) -> str:
        return (
            "Algorithm 2 of Bojarski et al. (2014) prints the noise scale eta/k, the inverse of the k/eta that the "
            "proof in the same paper needs, so its true loss is k^2/eta"
        )


def frequencies_as_printed(counts: Ints) -> Floats:
    """Return the class frequencies of each leaf, drawn uniformly if a count is negative or all are 0 (Algorithm 2)."""
    # Exponentials divided by their sum are uniform on the simplex: uniform on [0, 1] for the paper's two classes.
    drawn = -np.log(draw_uniform(counts.size)).reshape(counts.shape)
    unusable = (counts < 0).any(axis=1) | (counts == 0).all(axis=1)
    weights = np.where(unusable[:, None], drawn, counts)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
