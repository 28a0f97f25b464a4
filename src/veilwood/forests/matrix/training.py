# SPDX-License-Identifier: Apache-2.0
"""Matrix random forests, batch training (Tajima, Wu, Houmansadr, AAAI 2025): noise shared by all trees.

The forest's leaves are linear queries over one table. What is measured is not the leaves but a strategy that
answers them all with the least noise (``strategies``); the leaves are reconstructed from the noisy measurements.
Batch prediction and subsample-and-aggregate are in ``matrix_predictor``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from veilwood.bounded import is_whole
from veilwood.data.batches import Batch, Count
from veilwood.data.cluster.engines import anywhere
from veilwood.data.encoding import Encoding
from veilwood.data.schema import Task
from veilwood.errors import DomainTooLargeError, VeilwoodError
from veilwood.forests import leaves as cleaning
from veilwood.forests.base import Asked, Classifies, Design, layout_of
from veilwood.forests.matrix.search import optimize
from veilwood.forests.matrix.strategies import Marginals, Noise, Strategy, expected_error
from veilwood.forests.matrix.workloads import PathWorkload, Workload
from veilwood.forests.one_pass import OnePassForest
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.steps import Step, counting_step
from veilwood.trees.counting import sum_over_trees
from veilwood.trees.forest import (
    Forest,
    check_counts,
    grow_binary,
    grow_multiway,
    join_forests,
    leaf_masks,
    public_generators,
)
from veilwood.wording import shown

MECHANISMS = ("optimized", "laplace")
VOTINGS = ("hard", "weight")
BRANCHINGS = ("multiway", "binary")
MOST_ENTRIES = 1 << 30  # leaves times values of features, a few bytes each while a plan is made


@dataclass(frozen=True)
class Ensemble:
    """The trees over one random subset of the features."""

    features: tuple[int, ...]
    forest: Forest
    paths: PathWorkload


def grow_ensembles(
    encoding: Encoding,
    *,
    n_ensembles: int,
    max_features: int | None,
    n_estimators: int | Sequence[int],
    max_depth: int | Sequence[int],
    branching: str,
    random_state: Any,
) -> tuple[list[Ensemble], Forest]:
    """Grow q ensembles, each over its own random features (Algorithm 3, lines 1 to 4), and the forest of them all."""
    n_features = len(encoding.columns)
    check_counts(n_ensembles=n_ensembles)
    width = n_features if max_features is None else max_features
    if not is_whole(width, 1, n_features):
        raise VeilwoodError(f"max_features={shown(max_features)} must be between 1 and the {n_features} features.")
    n_trees = _per_ensemble("n_estimators", n_estimators, n_ensembles)
    depths = _per_ensemble("max_depth", max_depth, n_ensembles)
    grow = grow_multiway if branching == "multiway" else grow_binary
    ensembles = []
    for rng, trees, depth in zip(public_generators(random_state, n_ensembles), n_trees, depths, strict=True):
        features = tuple(sorted(int(i) for i in rng.choice(n_features, width, replace=False)))
        columns = [encoding.columns[i] for i in features]
        sizes = [column.n_codes for column in columns]
        _check_domain(sizes, trees, depth, branching)
        forest = grow(columns, trees, depth, rng)
        ensembles.append(Ensemble(features, forest, PathWorkload.from_masks(sizes, leaf_masks(forest, sizes))))
    whole = join_forests([e.forest for e in ensembles], [e.features for e in ensembles])
    return ensembles, whole


def _check_domain(sizes: Sequence[int], n_trees: int, depth: int, branching: str) -> None:
    """Refuse trees whose leaves could not be written down, before they are grown."""
    widest = sorted(sizes, reverse=True)[:depth]
    leaves = n_trees * (math.prod(widest) if branching == "multiway" else 2**depth)
    if leaves * sum(sizes) > MOST_ENTRIES:
        many = f"{leaves:,}" if leaves < 10**18 else "more than 10^18"
        raise DomainTooLargeError(
            f"{n_trees} trees of max_depth={depth} can have {many} leaves over {sum(sizes):,} values of features "
            f"(widest: {', '.join(map(str, widest[:8]))}); the limit is {MOST_ENTRIES:,} leaves times values. "
            "Hint: lower max_depth or n_estimators, give numeric columns fewer bins, or use several ensembles over "
            "fewer features (n_ensembles, max_features)."
        )


def _per_ensemble(name: str, value: Any, n_ensembles: int) -> list[int]:
    """Return one number per ensemble: a list as it is, a total number of trees shared out, a depth repeated."""
    if isinstance(value, list | tuple):
        if len(value) != n_ensembles:
            raise VeilwoodError(f"{name}={shown(value)} must have one entry for each of the {n_ensembles} ensembles.")
        for entry in value:
            check_counts(**{name: entry})
        return [int(entry) for entry in value]
    check_counts(**{name: value})
    if name == "max_depth":
        return [int(value)] * n_ensembles
    if value < n_ensembles:
        raise VeilwoodError(f"n_estimators={value} is less than one tree for each of the {n_ensembles} ensembles.")
    return [len(part) for part in np.array_split(np.arange(value), n_ensembles)]


@dataclass(frozen=True)
class Measurement:
    """A workload, the strategy that answers it, and the planned steps that measure the strategy."""

    workload: Workload
    strategy: Strategy
    noise: Noise
    budget: Fraction  # epsilon or rho of a single added row, which the strategy's noise is scaled to
    steps: tuple[Step, ...]

    @property
    def expected_error(self) -> float:
        """Expected squared error of all answers, one class column; 0 without noise."""
        if self.steps[0].mechanism is None:
            return 0.0
        return expected_error(self.workload, self.strategy, self.noise, self.budget)

    def reconstruct(self, noisy: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
        """Answer the workload from noisy measurements: post-processing."""
        return self.strategy.reconstruct(noisy, self.workload, self.noise, self.budget)


def plan_measurement(
    name: str,
    workload: Workload,
    loss: Loss,
    neighbours: Neighbours,
    n_columns: int,
    *,
    features: Sequence[str] = (),
    votes: bool = False,
) -> Measurement:
    """Choose a strategy for a workload and plan its measurement at the price of ``loss``.

    Parameters
    ----------
    n_columns : int
        Columns of the measured tables: one for each class, or a single one.
    features : sequence of str
        Names of the workload's features, for the plan to be read by people.
    votes : bool
        Whether the table holds labels of leaves, of which one row can turn one around, rather than counts of rows.

    Notes
    -----
    Guarantee

    Weighted marginals are plain counts released one after the other, each at its share of the budget; an explicit
    strategy A is one release of the integers A D. One row adds one column of A in one class; or it takes a leaf's
    vote from one class to another, two columns of A (one where a single class is measured, the other being its
    complement) (proofs/matrix-forest.md, attacked by tests/forests/test_matrix_training.py).
    """
    noise: Noise = "gaussian" if loss.delta > 0 else "laplace"
    l1, squared_l2 = moves(n_columns, votes, neighbours)
    if loss.epsilon is None:
        budget = Fraction(1)
    elif noise == "laplace":
        budget = loss.epsilon / neighbours.l1(l1)
    else:
        assert loss.rho is not None
        budget = loss.rho / neighbours.squared_l2(squared_l2)
    strategy = optimize(workload, noise, budget)
    if isinstance(strategy, Marginals):
        power = 1 if noise == "laplace" else 2
        parts = [Fraction(weight**power) for weight in strategy.weights.values()]
        shares, column_l1, column_squared_l2 = [part / sum(parts) for part in parts], 1, 1
        tables = [" x ".join(features[i] for i in kept) or "total" for kept in strategy.weights] if features else []
    else:
        shares, column_l1, column_squared_l2 = [Fraction(1)], strategy.l1, strategy.l2_squared
        tables = []
    tables = tables or [f"{strategy.name}, table {place}" for place in range(1, len(shares) + 1)]
    steps = tuple(
        counting_step(
            f"{name}: {table}",
            (*shape, n_columns),
            loss.part(share),
            neighbours,
            l1=l1 * column_l1,
            squared_l2=squared_l2 * column_squared_l2,
        )
        for share, table, shape in zip(shares, tables, strategy.tables, strict=True)
    )
    return Measurement(workload, strategy, noise, budget, steps)


def moves(n_columns: int, votes: bool, neighbours: Neighbours) -> tuple[int, int]:
    """Return by how much one row moves a table of counts, or of leaves' votes, in L1 and in squared L2."""
    l1 = squared_l2 = 2 if votes and n_columns > 1 else 1
    if votes and neighbours.adjacency == "replace-one":
        squared_l2 *= 2  # two votes can turn the same way: not the non-negative case of Neighbours.squared_l2
    return l1, squared_l2


@dataclass(frozen=True)
class MatrixDesign(Design):
    """The public design of a matrix forest; no measurements where leaves are released directly."""

    ensembles: tuple[Ensemble, ...]
    measurements: tuple[Measurement, ...]


def _measured_tables(design: MatrixDesign, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> NDArray[np.int64]:
    """Add up the exact tables of all measurements, one after the other in one array; always on one thread."""
    n_classes = len(design.encoding.schema.classes)
    totals = [[np.zeros(step.shape, np.int64) for step in m.steps] for m in design.measurements]
    for batch in batches:
        for ensemble, measurement, sums in zip(design.ensembles, design.measurements, totals, strict=True):
            columns = batch.codes[:, ensemble.features]
            parts = measurement.strategy.measure_exact(columns, batch.target, n_classes)
            for total, part in zip(sums, parts, strict=True):
                total += part
    return np.concatenate([total.ravel() for sums in totals for total in sums])


class MatrixForestClassifier(Classifies, OnePassForest):
    """Random multiway trees whose leaves are estimated together, with noise optimised across all trees.

    Every leaf of every tree is a sum over cells of one contingency table. Instead of noising each tree at an equal
    share of the budget, a strategy is chosen from public facts alone (all cells, weighted marginals, products) that
    answers all leaves with the least total error; it is measured with exact noise, and leaves are reconstructed.

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, random_state, ledger
        As in ``RandomTreesClassifier``. Numeric columns are cut at the schema's ``cutoffs`` or into its ``bins``.
    n_estimators : int or list of int
        Trees of all ensembles together, or for each ensemble.
    max_depth : int or list of int
        Depth; a multiway tree uses a feature once on a path.
    mechanism : {"optimized", "laplace"}
        Optimise what is measured, or release every tree's leaves at an equal share (the paper's baseline).
    trees : {"shared", "disjoint"}
        Every row counts in every tree, or in one only (a baseline; with ``mechanism="laplace"``).
    n_ensembles, max_features : int
        Number of ensembles (q in the paper), each over so many random features (d-bar); each gets an equal share.
    voting : {"hard", "weight"}
        Leaves vote for their largest class, or add up their counts.
    branching : {"multiway", "binary"}
        One branch per value, or two.
    leaves : {"plain", "empirical-bayes"}
        How noisy leaves are cleaned; "empirical-bayes" shrinks them along the trees by the known noise, at no cost.
    n_jobs : int or None
        Threads; -1 for all cores.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_, privacy_, plan_
        As in ``RandomTreesClassifier``.
    forest_, leaf_counts_
        The public structure and the estimated leaf counts.

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/matrix-forest.md, attacked
    by tests/forests/test_matrix_training.py.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.MatrixForestClassifier(car.schema, epsilon=2.0, n_estimators=32, max_depth=2, random_state=0)
    >>> plain = vw.MatrixForestClassifier(
    ...     car.schema, epsilon=2.0, n_estimators=32, max_depth=2, random_state=0, mechanism="laplace")
    >>> forest.plan().expected_leaf_mse < plain.plan().expected_leaf_mse / 3
    True
    >>> forest.fit(car.X, car.y).privacy_.epsilon
    2.0
    """

    _task: ClassVar[Task] = "classification"
    _leaf_dtype: ClassVar[type] = np.float64  # reconstructed, not released as they are

    def __init__(
        self,
        schema: Any = None,
        *,
        epsilon: float = 1.0,
        delta: float = 0.0,
        privacy_unit: Any = "row",
        adjacency: str = "add-remove",
        n_estimators: Any = 128,
        max_depth: Any = 3,
        mechanism: str = "optimized",
        trees: str = "shared",
        n_ensembles: int = 1,
        max_features: int | None = None,
        voting: str = "hard",
        branching: str = "multiway",
        leaves: str = "plain",
        random_state: Any = None,
        ledger: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.schema = schema
        self.epsilon = epsilon
        self.delta = delta
        self.privacy_unit = privacy_unit
        self.adjacency = adjacency
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.mechanism = mechanism
        self.trees = trees
        self.n_ensembles = n_ensembles
        self.max_features = max_features
        self.voting = voting
        self.branching = branching
        self.leaves = leaves
        self.random_state = random_state
        self.ledger = ledger
        self.n_jobs = n_jobs

    def _check_choices(self) -> None:
        super()._check_choices()
        self._one_of("mechanism", MECHANISMS)
        self._one_of("voting", VOTINGS)
        self._one_of("branching", BRANCHINGS)
        if self.trees == "disjoint" and self.mechanism == "optimized":
            raise VeilwoodError(
                "trees='disjoint' has nothing to optimise: each row is in one tree. Hint: mechanism='laplace'."
            )

    def _design(self, asked: Asked) -> MatrixDesign:
        self._check_choices()
        schema, loss, neighbours = asked.schema, asked.loss, asked.neighbours
        encoding = Encoding(schema, "bins")
        ensembles, forest = grow_ensembles(
            encoding,
            n_ensembles=self.n_ensembles,
            max_features=self.max_features,
            n_estimators=self.n_estimators,
            max_depth=self.max_depth,
            branching=self.branching,
            random_state=asked.seed,
        )
        n_classes = len(schema.classes)
        measurements: tuple[Measurement, ...] = ()
        if self.mechanism == "optimized":
            share = loss.part(Fraction(1, len(ensembles)))
            measurements = tuple(
                plan_measurement(
                    f"ensemble {i}",
                    ensemble.paths,
                    share,
                    neighbours,
                    n_classes,
                    features=[encoding.columns[j].name for j in ensemble.features],
                )
                for i, ensemble in enumerate(ensembles, start=1)
            )
            steps = tuple(step for measurement in measurements for step in measurement.steps)
            error = sum(measurement.expected_error for measurement in measurements) / forest.n_leaves
            strategy = ", ".join(dict.fromkeys(m.strategy.name for m in measurements))
            released = f"noisy tables ({strategy}) chosen to answer the {forest.n_leaves:,} leaves"
        else:
            steps = (self._leaf_step(schema, loss, neighbours, forest.n_leaves),)
            error, released = steps[0].variance, f"{steps[0].name}, with noise"
        plan = asked.plan(
            steps,
            released,
            layout_of(forest, self._records),
            error,
            choices={"structure": forest.fingerprint()},
            notes={"ensembles": len(ensembles)},
        )
        return MatrixDesign(encoding, forest, plan, tuple(ensembles), measurements)

    def _count(self, design: Design) -> Count:
        assert isinstance(design, MatrixDesign)
        if design.measurements:
            return partial(_measured_tables, design)
        return self._leaf_count(design, design.forest, self._assignment(design.forest.n_trees))

    def _release(self, design: Design, exact: NDArray[np.int64], door: Door) -> NDArray[np.float64]:
        assert isinstance(design, MatrixDesign)
        if not design.measurements:
            return door.noisy(design.plan.steps[0], exact).astype(np.float64)
        ends = np.cumsum([math.prod(step.shape) for step in design.plan.steps])
        tables = iter(np.split(exact, ends[:-1]))
        answers = []
        for measurement in design.measurements:
            noisy = [door.noisy(step, next(tables).reshape(step.shape)) for step in measurement.steps]
            answers.append(measurement.reconstruct(noisy))
        return np.concatenate(answers)

    def _learn(self, design: Design, released: NDArray[Any]) -> None:
        self._set_leaves(design.forest, released)

    @anywhere
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the share of each class among the votes."""
        scores = np.maximum(self._scores(X), 0.0)
        return cleaning.plain_shares(scores)

    @anywhere
    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predicted classes. Free: computed from released tables."""
        chosen = self._scores(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[chosen]
        return labels

    def _scores(self, X: Any) -> NDArray[np.float64]:
        codes = self._encode(X)
        return sum_over_trees(self.forest_, codes, self._leaf_values(), n_jobs=self.n_jobs)

    def _leaf_values(self) -> NDArray[np.float64]:
        counts = self.leaf_counts_
        if self.leaves == "empirical-bayes":
            counts = cleaning.shrunken_counts(self.forest_, counts, self.plan_.expected_leaf_mse)
        return cleaning.votes(counts) if self.voting == "hard" else counts

    def _encoding(self) -> Encoding:
        return Encoding(self.schema_, "bins")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return self._tags(tags, tags.classifier_tags)
