# SPDX-License-Identifier: Apache-2.0
"""Random decision trees (Bojarski, Choromanska, Choromanski, LeCun 2014): data-independent structure, noisy leaves.

``trees.random`` grows the structure, ``trees.counting`` counts it, and ``noisy_leaves`` cleans the leaves. Without
noise, and so without privacy, trees can be much deeper if they split only nodes that contain rows:
``NoiselessRandomTrees``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Literal, cast

import numpy as np

from veilwood.arrays import AnyArray, Floats, Ints
from veilwood.data.batches import Source
from veilwood.data.encoding import Encoding
from veilwood.estimators.base import Classifier, Regressor
from veilwood.estimators.method import Design, FitRequest
from veilwood.estimators.one_pass import OnePassForest
from veilwood.estimators.parameters import ClassWeights, Role, SharedParameters, parameter
from veilwood.forests import noisy_leaves
from veilwood.forests.leaves import leave_one_out_frequencies
from veilwood.privacy.door import Door
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import selection_step
from veilwood.trees.forest import Forest
from veilwood.trees.histograms import level_scores, total_impurity
from veilwood.trees.level_growth import GrowingForest
from veilwood.trees.random import THRESHOLDS, Thresholds, grow_binary, public_generators

# Limits of ``NoiselessRandomTrees``: bins of a column's remaining range at a node, and columns tried at a node.
BINS: Final = 16
CANDIDATE_COLUMNS: Final = 4
TO_LEAF, TO_NARROW, TO_PART = 1 << 40, 2 << 40, 3 << 40  # scores of the actions at a node, in ascending order


@dataclass(eq=False, repr=False, kw_only=True)
class RandomTreesParameters(noisy_leaves.LeafParameters):
    """Parameters of random trees for both tasks."""

    n_estimators: Any = noisy_leaves.AUTO
    max_depth: Any = noisy_leaves.AUTO
    trees: str = "shared"
    thresholds: str = parameter("path", role=Role.STRUCTURE)


@dataclass(eq=False, repr=False, kw_only=True)
class RandomTreesClassifierParameters(RandomTreesParameters):
    """Parameters of random trees for classification."""

    voting: str = parameter(noisy_leaves.AUTO, role=Role.LEARNING)


class RandomTrees(noisy_leaves.PregrownForest[RandomTreesParameters]):
    """Random trees, for classification and regression."""

    numeric_encoding: Literal["grid"] = "grid"
    trees_text: ClassVar[str] = "random trees grown without data"
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {**noisy_leaves.LeafMethod.options, "thresholds": THRESHOLDS}

    @classmethod
    def noiseless_method(cls, parameters: Any) -> type[noisy_leaves.LeafMethod[Any]]:
        """Return ``NoiselessRandomTrees``, unless rows can be read only once or the paper's trees are requested."""
        follows_rows = (
            parameters.max_depth == noisy_leaves.AUTO and parameters.n_rows is None and parameters.thresholds == "path"
        )
        return NoiselessRandomTrees if follows_rows else cls

    def grow_trees(self, request: FitRequest) -> tuple[Encoding, Forest]:
        """Grow the trees from the public seed."""
        encoding, parameters = Encoding(request.schema, self.numeric_encoding), self.parameters
        forest = grow_binary(
            encoding.columns, parameters.n_estimators, parameters.max_depth, request.seed,
            thresholds=cast(Thresholds, parameters.thresholds),
        )  # fmt: skip
        return encoding, forest


class NoiselessRandomTrees(noisy_leaves.LeafMethod[RandomTreesParameters]):
    """Random trees without noise. They split only nodes whose rows have several classes or target values.

    At each node a few columns are tried in random order. The first that separates rows is split at a random threshold
    inside the range of the rows. These are extremely randomised trees (Geurts, Ernst, Wehenkel 2006) with one column
    per node. Complete trees of this depth would have mostly empty leaves.
    """

    numeric_encoding: Literal["grid"] = "grid"

    @classmethod
    def candidate_sizes(cls, encoding: Encoding, parameters: Any, *, noiseless: bool) -> Iterator[tuple[int, int]]:
        """Return the only candidate: trees that grow until rows are separated."""
        yield 64, 40

    def n_leaves(self, encoding: Encoding) -> int:
        """Return the limit on the number of leaves, which does not depend on the depth."""
        return noisy_leaves.MAX_LEAVES

    def design_with_loss(self, request: FitRequest) -> Design:
        """Plan a selection at each node of every level, and the leaves."""
        encoding, parameters = Encoding(request.schema, self.numeric_encoding), self.parameters
        shape = (noisy_leaves.MAX_LEAVES, self._n_candidates(encoding) * (BINS - 1) + 1)
        splits = tuple(
            selection_step(
                noisy_leaves.TreeStep.SPLITS.at(depth), shape, request.loss, request.neighbours,
                score_range=1, selections_per_row=self.trees_per_row, by="flip",
            )
            for depth in range(parameters.max_depth)
        )  # fmt: skip
        step = self.leaf_step(request.schema, request.loss, request.neighbours, noisy_leaves.MAX_LEAVES)
        plan = request.make_plan(
            (*splits, step),
            f"{step.name}, of {parameters.n_estimators} trees split at random where rows are, and these splits",
            Layout(int(parameters.n_estimators), noisy_leaves.MAX_LEAVES, int(parameters.max_depth), self.row_sharing),
            self.leaf_error(step.variance),
        )
        return Design(encoding, plan)

    def _n_candidates(self, encoding: Encoding) -> int:
        return min(CANDIDATE_COLUMNS, len(encoding.columns))

    def measure_rows(
        self, design: Design, source: Source, door: Door, n_jobs: int | None = None
    ) -> tuple[Forest, Ints]:
        """Split level by level until nodes are pure or the limit on leaves is reached, then count the leaves."""
        encoding, drawn = design.encoding, self._n_candidates(design.encoding)
        n_classes = len(encoding.schema.classes) or None
        *splits, step = design.plan.steps
        assignment = self.draw_assignment(self.parameters.n_estimators)
        (rng,) = public_generators(design.plan.public_seed, 1)
        growing, closed = GrowingForest(encoding.columns, self.parameters.n_estimators), 0
        for level in splits:
            if not growing.n_open_nodes or closed + 2 * growing.n_open_nodes > noisy_leaves.MAX_LEAVES:
                break
            slots = growing.bin_candidates(growing.draw_candidates(drawn, rng), BINS, rng)
            if not slots.n_candidates:
                break
            (scores,) = level_scores(
                growing, slots, partial(source.aggregate, progress_label="splitting"),
                partial(_cut_scores, by_class=n_classes is not None), n_classes=n_classes,
                max_bins=BINS, assignment=assignment, n_jobs=n_jobs,
            )  # fmt: skip
            slot, present = slots.candidates_of_nodes(np.arange(growing.n_open_nodes), drawn)
            order = (
                rng.integers(1 << 19, size=slot.shape)[..., None] << 20
            )  # random ranks of columns, and of thresholds within columns
            order = order + rng.integers(1 << 20, size=(*slot.shape, BINS - 1))
            possible = present[..., None] & (np.arange(BINS - 1) < slots.n_bins[slot][..., None] - 1)
            ranked = np.where(possible, scores[slot] + order, 0).reshape(growing.n_open_nodes, -1)
            chosen = door.select(level, np.column_stack([ranked, np.full(growing.n_open_nodes, TO_LEAF)]))
            place, edge = np.divmod(chosen, BINS - 1)
            splits_here = place < drawn
            winner = np.where(splits_here, slot[np.arange(growing.n_open_nodes), np.minimum(place, drawn - 1)], -1)
            closed += int((~splits_here).sum())
            growing.split_nodes(slots, winner, edge)
        forest = growing.finish_forest()
        counted = source.aggregate(self.make_leaf_count(encoding, forest, assignment), n_jobs=n_jobs)
        leaves = np.concatenate([counted, np.zeros((step.shape[0] - forest.n_leaves, step.shape[1]), np.int64)])
        return forest, door.release_counts(step, leaves)[: forest.n_leaves]

    def clean_leaves(self, forest: Forest, counts: AnyArray, plan: Plan, pooled: Ints | None = None) -> Floats:
        """Return class frequencies, shrunk by leave-one-out error instead of noise if leaves are shrunk."""
        if self.shrinks_leaves and self.task == "classification":
            return leave_one_out_frequencies(forest, counts.astype(np.float64))
        return super().clean_leaves(forest, counts, plan, pooled)


def _cut_scores(histograms: Ints, by_class: bool) -> tuple[Ints]:
    """Return the score of each threshold between bins: it separates rows, narrows the range, or does neither."""
    rows = histograms.sum(axis=2) if by_class else histograms[..., 0]
    totals = histograms.sum(axis=1)
    mixed = total_impurity(totals, moments=not by_class) > 0
    left = np.cumsum(rows, axis=1)
    total, none = left[:, -1:], np.zeros_like(left[:, :1])
    before, here, after = np.column_stack([none, left[:, :-2]]), left[:, :-1], left[:, 1:]
    separates = (here > 0) & (here < total)
    narrows = ((here == 0) & (after == total)) | ((here == total) & (before == 0))
    return (np.where(mixed[:, None], np.where(separates, TO_PART, np.where(narrows, TO_NARROW, 0)), 0),)


@dataclass(eq=False, repr=False)
class RandomTreesClassifier(Classifier, OnePassForest, RandomTreesClassifierParameters, ClassWeights, SharedParameters):
    """Random decision trees with private leaves, for two or more classes.

    Binary trees of fixed depth are grown without the data, and the class counts of all leaves are released with exact
    discrete noise. Predictions and probabilities are computed from the released counts, so they spend no budget.

    By default the trees differ from the paper's Algorithm 1, which draws every threshold from the whole range of its
    column. Many of its branches are empty, so it separates fewer rows. Here, thresholds are drawn from the range that
    remains on the path. The noise is the same, and without noise the error on the Banknote table falls from 3 to 0.2
    per cent. ``thresholds="range"`` grows the paper's trees.

    Parameters
    ----------
    schema : Schema, path or dict
        Public description of the data. ``"infer"`` reads it from the data, and the result is NOT PRIVATE.
    epsilon : float
        Privacy loss, from 10^-6 to 10^6. ``inf`` means no noise and no privacy (Algorithm 1 of the paper).
    delta : float
        0 for pure epsilon with Laplace noise. From 10^-30 to 0.01: Gaussian noise accounted by zCDP if it is smaller;
        otherwise pure noise, and the delta is not spent. So a delta never increases the error.
    privacy_unit : "row", int, dict or None
        Unit that the guarantee protects: one row, k rows, or ``{"id": column, "at_most": k}``. Default: the unit that
        the schema declares, or one row. A unit that may protect less than the declared unit issues a warning once.
    adjacency : {"add-remove", "replace-one"}
        Neighbouring relation.
    n_estimators, max_depth : int or "auto"
        Number and depth of the trees. "auto" chooses them without data, as ``vw.tune`` does, from schema, budget, unit
        and the number of rows; the plan shows the choice. A twentieth of the budget then releases the class counts of
        all rows, towards which leaves are shrunk according to the noise. Without noise and without a declared
        ``n_rows``, only nodes that contain rows are split, until the rows are separated.
    n_rows : int, optional
        Public number of rows, or a public estimate of it. Everything is then planned before the data is read. Otherwise
        the first step estimates it, which takes an additional pass over the rows.
    class_weight : dict, "balanced" or None
        Weights by which class probabilities are multiplied. They spend no budget and can be changed after the fit.
    max_weight : int, optional
        Largest ``sample_weight`` of a row that counts. Noise grows with it, since one row can count that much.
    voting : {"auto", "majority", "threshold", "probabilistic"}
        Each tree votes for its leaf's class; or class frequencies are averaged and the largest wins; or a class is
        drawn with these averages as probabilities. "auto" is "threshold" if the size is "auto", else "majority".
    trees : {"shared", "disjoint"}
        Count every row in every tree (noise grows with the number of trees), or in one tree, drawn by a secret key.
    thresholds : {"path", "range"}
        Draw thresholds from the range of a column that remains on the path, or from its whole range, as in the paper.
    leaves : {"auto", "plain", "empirical-bayes"}
        Cleaning of noisy leaves. "empirical-bayes" shrinks them towards their ancestors according to the known noise,
        and spends no budget. "auto" is "empirical-bayes" if the size is "auto", else "plain".
    random_state : int, generator or None
        Public randomness of the structure. It does not seed the noise.
    ledger : Ledger, path or None
        Ledger that the fit is charged to.
    n_jobs : int or None
        Number of threads; -1 for all cores.
    invalid : {"refuse", "drop"}
        Treatment of rows that violate the schema: reject the fit, or drop these rows.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
        As usual in scikit-learn; classes come from the schema.
    privacy_ : PrivacyCertificate
        The certificate.
    plan_ : Plan
        The executed plan.
    forest_, leaf_counts_
        The public structure and the released noisy counts.

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the requested unit and adjacency: proofs/random-trees.md, attacked by
    packages/veilwood-audit/tests/test_audit.py.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.RandomTreesClassifier(car.schema, epsilon=2.0, n_estimators=10, max_depth=4, random_state=0)
    >>> print(forest.plan().mechanism)
    discrete Laplace, scale 5
    >>> forest.fit(car.X, car.y).privacy_.epsilon
    2.0
    >>> forest.predict(car.X[:3]).shape
    (3,)
    """

    _method_class = RandomTrees


@dataclass(eq=False, repr=False)
class RandomTreesRegressor(Regressor, OnePassForest, RandomTreesParameters, SharedParameters):
    """Random decision trees with private leaf means.

    Each leaf releases the rotated pair of its targets, which yields sum and count at the cost of one of them
    (proofs/rotated-pair.md). Targets outside the schema's bounds are clamped.

    Parameters are those of ``RandomTreesClassifier`` except voting. The schema's target must be numeric, with bounds.

    Notes
    -----
    Guarantee

    As for ``RandomTreesClassifier``: proofs/random-trees.md, attacked by packages/veilwood-audit/tests/test_audit.py.

    Examples
    --------
    >>> import numpy as np, veilwood as vw
    >>> schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=1)
    >>> forest = vw.RandomTreesRegressor(schema, epsilon=1.0, max_depth=3, random_state=0)
    >>> x = np.linspace(0, 1, 1000)[:, None]
    >>> bool(np.diff(forest.fit(x, 10 * x[:, 0]).predict([[0.1], [0.9]]))[0] > 0)
    True
    """

    _method_class = RandomTrees
