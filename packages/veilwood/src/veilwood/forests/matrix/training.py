# SPDX-License-Identifier: Apache-2.0
"""Training of matrix random forests (Tajima, Wu, Houmansadr, AAAI 2025) with noise shared by all trees.

The leaves of a forest are linear queries over one table. Instead of the leaves, the strategy that answers all of them
with the least error is measured (``strategies``). The leaves are then reconstructed from the noisy measurements. Batch
prediction and subsample-and-aggregate are in ``answering``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from veilwood.arrays import AnyArray, Codes, Floats, Ints
from veilwood.data.batches import Batch, Count
from veilwood.data.counts import RunCellQueries
from veilwood.data.encoding import EncodedColumn, Encoding
from veilwood.errors import DomainTooLargeError, ParameterError, PlanError, UseError
from veilwood.estimators.base import Classifier
from veilwood.estimators.method import FitRequest, ForestDesign, OnePassMethod, Parameters
from veilwood.estimators.one_pass import OnePassForest
from veilwood.estimators.parameters import ClassWeights, Role, SharedParameters, parameter
from veilwood.forests import leaves as cleaning
from veilwood.forests import noisy_leaves
from veilwood.forests.matrix.marginals import Mixture
from veilwood.forests.matrix.measurement import (
    MECHANISMS,
    Measurement,
    alternative_errors,
    ensemble_errors,
    max_table_cells,
    noise_and_budget,
    plan_measurement,
    split_budget,
    strategy_to_json,
)
from veilwood.forests.matrix.search import COMPARISON_STARTS, SMALL_BUDGET, cached_comparison, cached_design, optimize
from veilwood.forests.matrix.workloads import PathWorkload
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.plan import Plan
from veilwood.safe_io import is_int_in, parse_fraction
from veilwood.trees.forest import Forest, join_forests
from veilwood.trees.random import check_counts, grow_binary, grow_multiway, public_generators

BRANCHINGS = ("multiway", "binary")
FEATURE_SUBSETS = ("independent", "disjoint")
MAX_BYTES = 1 << 30  # of the paths of all possible leaves


@dataclass(frozen=True)
class Ensemble:
    """Trees over one random subset of the features."""

    features: tuple[int, ...]
    forest: Forest
    paths: PathWorkload


@dataclass(eq=False, repr=False, kw_only=True)
class EnsembleParameters(Parameters):
    """Parameters of the trees of a matrix forest. A list has one entry per ensemble."""

    n_estimators: int | list[int] = parameter(128, role=Role.STRUCTURE, tuned=True)
    max_depth: int | list[int] = parameter(3, role=Role.STRUCTURE, tuned=True)
    n_ensembles: int | None = parameter(None, role=Role.STRUCTURE, tuned=True)
    max_features: int | None = parameter(None, role=Role.STRUCTURE, tuned=True)
    feature_subsets: str = parameter("independent", role=Role.STRUCTURE)
    branching: str = parameter("multiway", role=Role.STRUCTURE)


@dataclass(frozen=True)
class FeaturePartition:
    """Division of the features among ensembles: random subsets of ``max_features`` each, or disjoint parts."""

    n_ensembles: int
    max_features: int | None
    disjoint: bool


def requested_partition(encoding: Encoding, parameters: EnsembleParameters) -> FeaturePartition:
    """Return the requested partition; by default, one ensemble over all features."""
    n_ensembles, n_features = parameters.n_ensembles, len(encoding.columns)
    if n_ensembles is None:
        lists = [value for value in (parameters.n_estimators, parameters.max_depth) if isinstance(value, list | tuple)]
        n_ensembles = len(lists[0]) if lists else 1
    check_counts(n_ensembles=n_ensembles)
    disjoint = parameters.feature_subsets == "disjoint"
    if parameters.max_features is not None and (disjoint or not is_int_in(parameters.max_features, 1, n_features)):
        problem = (
            "cannot be combined with disjoint feature subsets"
            if disjoint
            else f"must be between 1 and the number of features, {n_features}"
        )
        hint = "omit max_features" if disjoint else "choose fewer features, or omit it to use all"
        raise ParameterError("max_features", parameters.max_features, problem, hint)
    if disjoint and n_ensembles > n_features:
        raise ParameterError("n_ensembles", n_ensembles, f"exceeds the number of features, {n_features}", "lower it")
    return FeaturePartition(int(n_ensembles), parameters.max_features, disjoint)


def alternative_partitions(encoding: Encoding, parameters: EnsembleParameters) -> list[FeaturePartition]:
    """Return partitions into disjoint parts that may replace a single ensemble, if the parameters allow this.

    A part has more features than its trees have levels, so that trees differ.
    """
    is_open = parameters.n_ensembles is None and parameters.max_features is None
    is_open = is_open and parameters.feature_subsets == "independent"
    if not is_open or any(isinstance(size, list | tuple) for size in (parameters.n_estimators, parameters.max_depth)):
        return []
    (n_trees,), (depth,) = (_per_ensemble(name, getattr(parameters, name), 1) for name in ("n_estimators", "max_depth"))
    max_parts = min(len(encoding.columns) // (depth + 1), n_trees)
    return [FeaturePartition(parts, None, disjoint=True) for parts in range(2, max_parts + 1)]


def grow_ensembles(
    encoding: Encoding, parameters: EnsembleParameters, seed: int, partition: FeaturePartition | None = None
) -> tuple[tuple[Ensemble, ...], Forest]:
    """Grow q ensembles (Algorithm 3, lines 1 to 4), and join them to one forest.

    Features of each are drawn independently, or all features are divided into q disjoint parts at random.
    """
    partition = partition or requested_partition(encoding, parameters)
    sizes = (
        _per_ensemble(name, getattr(parameters, name), partition.n_ensembles) for name in ("n_estimators", "max_depth")
    )
    ensembles = _grow_cached(encoding.columns, *map(tuple, sizes), parameters.branching, seed, partition)
    # The forest becomes a writable attribute of an estimator, so each caller gets a copy.
    return ensembles, deepcopy(join_forests([e.forest for e in ensembles], [e.features for e in ensembles]))


@lru_cache(maxsize=16)
def _grow_cached(
    columns: tuple[EncodedColumn, ...],
    n_trees: tuple[int, ...],
    depths: tuple[int, ...],
    branching: str,
    seed: int,
    partition: FeaturePartition,
) -> tuple[Ensemble, ...]:
    # Planning, choosing a size and fitting use the same trees, so that their strategies are searched only once.
    n_features, n_ensembles = len(columns), partition.n_ensembles
    width = n_features if partition.max_features is None else partition.max_features
    multiway = branching != "binary"
    generators = public_generators(seed, n_ensembles + partition.disjoint)
    if partition.disjoint:
        parts = np.array_split(generators.pop().permutation(n_features), n_ensembles)
    ensembles = []
    for place, (rng, trees, depth) in enumerate(zip(generators, n_trees, depths, strict=True)):
        chosen = parts[place] if partition.disjoint else rng.choice(n_features, width, replace=False)
        features = tuple(sorted(int(i) for i in chosen))
        own_columns = [columns[i] for i in features]
        sizes = [column.n_codes for column in own_columns]
        _check_domain(sizes, trees, depth, branching)
        forest = (grow_multiway if multiway else grow_binary)(own_columns, trees, depth, rng)
        ensembles.append(Ensemble(features, forest, PathWorkload.from_forest(sizes, forest, multiway=multiway)))
    return tuple(ensembles)


def _check_domain(sizes: Sequence[int], n_trees: int, depth: int, branching: str) -> None:
    """Raise DomainTooLargeError, before trees are grown, if their leaves would need too much memory."""
    widest = sorted(sizes, reverse=True)[:depth]
    multiway = branching != "binary"
    leaves = n_trees * (math.prod(widest) if multiway else 2**depth)
    entries = len(sizes) * 4 if multiway else sum(sizes)  # one value of each feature, or a set of values
    if leaves * entries > MAX_BYTES:
        n_leaves = f"{leaves:,}" if leaves < 10**18 else "more than 10^18"
        raise DomainTooLargeError(
            f"{n_trees} trees of max_depth={depth} can have {n_leaves} leaves over {len(sizes):,} features with "
            f"{sum(sizes):,} values (widest: {', '.join(map(str, widest[:8]))}), which take more than {MAX_BYTES:,} "
            "bytes. Hint: lower max_depth or n_estimators, give numeric columns fewer bins, or use several ensembles "
            "over fewer features (n_ensembles, max_features)."
        )


def _per_ensemble(name: str, value: Any, n_ensembles: int) -> list[int]:
    """Return one number per ensemble: an unchanged list, a divided total number of trees, or a repeated depth."""
    if isinstance(value, list | tuple):
        if len(value) != n_ensembles:
            raise ParameterError(name, value, f"must have {n_ensembles} entries", "pass one per ensemble")
        for entry in value:
            check_counts(**{name: entry})
        return [int(entry) for entry in value]
    check_counts(**{name: value})
    if name == "max_depth":
        return [int(value)] * n_ensembles
    if value < n_ensembles:
        raise ParameterError(name, value, f"is less than n_ensembles={n_ensembles}", "pass at least one tree each")
    return [len(part) for part in np.array_split(np.arange(value), n_ensembles)]


VOTINGS = ("hard", "weight")
GEOMETRIC = "geometric"
LEAST_FREQUENCY = 1e-9  # below all shrunken frequencies; for plain leaves, whose frequencies can be 0
GrownEnsembles: TypeAlias = tuple[tuple[Ensemble, ...], Forest]
_ALTERNATIVES = {
    "alternatives": "expected squared error of a leaf, by strategy",
    "divisions": "expected error relative to the chosen one, by number of ensembles",
}


@dataclass(eq=False, repr=False, kw_only=True)
class MatrixForestParameters(EnsembleParameters, noisy_leaves.LeafParameters):
    """Parameters of a matrix forest, which is a classifier."""

    n_estimators: Any = noisy_leaves.AUTO
    max_depth: Any = noisy_leaves.AUTO
    mechanism: str = parameter("optimized", role=Role.LEARNING)
    branching: str = noisy_leaves.AUTO
    trees: str = "shared"
    voting: str = parameter(noisy_leaves.AUTO, role=Role.LEARNING)


@dataclass(frozen=True)
class MatrixDesign(ForestDesign):
    """Public design of a matrix forest, without measurements if leaves are released directly."""

    ensembles: tuple[Ensemble, ...]
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, eq=False, repr=False)
class TableCount:
    """Query for the tables of all measurements: a ``Count`` that databases can run as well."""

    design: MatrixDesign

    def __call__(self, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> Ints:
        """Return the exact tables, flattened into one array. The count always runs on one thread."""
        design, n_classes = self.design, len(self.design.encoding.schema.classes)
        totals = [[np.zeros(step.shape, np.int64) for step in m.steps] for m in design.measurements]
        for batch in batches:
            for ensemble, measurement, sums in zip(design.ensembles, design.measurements, totals, strict=True):
                columns = batch.codes[:, ensemble.features]
                parts = measurement.strategy.measure_exact(columns, batch.target, n_classes)
                for total, part in zip(sums, parts, strict=True):
                    total += part
        return np.concatenate([total.ravel() for sums in totals for total in sums])

    def via_cell_queries(self, run_queries: RunCellQueries, n_codes: Sequence[int]) -> Ints:
        """Return the same tables from cell queries."""
        measured = [
            measurement.strategy.measure_queried(run_queries, n_codes, ensemble.features)
            for ensemble, measurement in zip(self.design.ensembles, self.design.measurements, strict=True)
        ]
        return np.concatenate([table.ravel() for tables in measured for table in tables])


def _read_decisions(decisions: Mapping[str, Any], n_ensembles: int) -> tuple[list[Fraction], list[Any]]:
    """Return the budget fractions and strategies of an earlier plan."""
    shares, strategies = decisions.get("shares"), decisions["strategies"]
    if (
        not isinstance(shares, list)
        or not isinstance(strategies, list)
        or not (len(shares) == len(strategies) == n_ensembles)
    ):
        raise PlanError("the plan must have one share and one strategy per ensemble.")
    exact = [parse_fraction(share, "share") for share in shares]
    if min(exact) <= 0 or sum(exact) != 1:
        raise PlanError("the shares of the plan must be positive and add up to 1.")
    return exact, strategies


def _with_comparison_notes(plan: Plan, decisions: dict[str, Any]) -> Plan:
    """Return the plan with its decisions, and with the errors of the alternatives in the notes."""
    notes = dict(plan.notes)
    for key, words in _ALTERNATIVES.items():
        costs = decisions.get(key)
        if isinstance(costs, dict) and all(isinstance(cost, int | float) for cost in costs.values()):
            ranked = sorted(costs.items(), key=lambda item: (item[1], item[0]))  # independent of the order in a file
            notes[key] = f"{words}: {'; '.join(f'{name} {cost:,}' for name, cost in ranked)}"
    return replace(plan, choices=decisions, notes=notes)


class MatrixModel(noisy_leaves.LeafModel):
    """Model whose leaves vote, whose leaf counts are summed, or whose class frequencies are multiplied."""

    def predict_outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return class probabilities: smoothed fractions of the votes."""
        return self.predict_both(codes, n_jobs)[0]

    def predict_both(self, codes: Codes, n_jobs: int | None = None) -> tuple[Floats, Ints]:
        """Return class probabilities and the index of the class with the most votes."""
        votes = self.sum_leaves(codes, n_jobs)
        if self.voting == GEOMETRIC:
            scores = votes / self.forest.n_trees
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            return powers / powers.sum(axis=1, keepdims=True), np.asarray(votes.argmax(axis=1))
        frequencies = noisy_leaves.normalize_counts(np.maximum(votes, 0.0))
        return cleaning.smooth_probabilities(frequencies, self.forest.n_trees), np.asarray(votes.argmax(axis=1))


class MatrixForest(OnePassMethod[MatrixForestParameters], noisy_leaves.LeafMethod[MatrixForestParameters]):
    """Random trees whose leaves are estimated jointly."""

    numeric_encoding: Literal["bins"] = "bins"
    accepts_lists: ClassVar[bool] = True
    leaf_dtype: ClassVar[type] = np.float64  # leaves are reconstructed from measurements
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **noisy_leaves.LeafMethod.options,
        "voting": (noisy_leaves.AUTO, *VOTINGS, GEOMETRIC),
    }
    noiseless_options: ClassVar[Mapping[str, str]] = {"trees": "shared", "branching": "binary"}

    def check_parameters(self) -> None:
        """Raise an error if options are unknown or incompatible."""
        super().check_parameters()
        self.parameters._check_options(
            mechanism=MECHANISMS, branching=(noisy_leaves.AUTO, *BRANCHINGS), feature_subsets=FEATURE_SUBSETS
        )
        if self.parameters.trees == "disjoint" and self.parameters.mechanism == "optimized":
            raise UseError(
                "trees='disjoint' has nothing to optimise: each row is in one tree. Hint: set mechanism='laplace'."
            )

    @classmethod
    def candidate_sizes(cls, encoding: Encoding, parameters: Any, *, noiseless: bool) -> Iterator[tuple[int, int]]:
        """Return the candidate sizes. Trees of an ensemble share noise, so 64 trees are hardly noisier than one."""
        width = parameters.max_features or len(encoding.columns)
        if noiseless:
            max_depth = 12 if parameters.branching == "binary" else width  # a multiway path uses a feature once
            yield from ((64, depth) for depth in range(1, max_depth + 1))
            return
        yield from ((64, depth) for depth in (1, 2, 3, 4) if depth <= width or parameters.branching == "binary")

    def leaves_and_error(self, request: FitRequest, encoding: Encoding) -> tuple[int, float]:
        """Return the maximum number of leaves, and the expected squared error of a leaf after a short search."""
        leaves = self.n_leaves(encoding)
        if leaves > noisy_leaves.MAX_LEAVES:
            raise DomainTooLargeError(f"{leaves:,} leaves exceed {noisy_leaves.MAX_LEAVES:,}. Hint: lower max_depth.")
        if request.loss.epsilon is None:
            return leaves, 0.0
        if self.parameters.mechanism != "optimized":
            plan = self.make_design(request).plan
            return plan.n_leaves, plan.expected_leaf_mse
        return cached_comparison(request, self._given_size, lambda: self._rough_error(request, encoding))

    @property
    def _given_size(self) -> tuple[Any, Any]:
        return self.parameters.n_estimators, self.parameters.max_depth

    def _rough_error(self, request: FitRequest, encoding: Encoding) -> tuple[int, float]:
        """Return the number of leaves and the approximate squared error of a leaf, under the better accounting."""
        assert request.loss.epsilon is not None
        losses = [Loss.pure(request.loss.epsilon), request.loss] if request.loss.delta > 0 else [request.loss]
        n_classes = len(request.schema.classes)
        results = []
        for loss in losses:
            ensembles, forest, _ = self._best_ensembles(replace(request, loss=loss), encoding)
            noise, budget = noise_and_budget(loss, request.neighbours, n_classes)
            paths = [ensemble.paths for ensemble in ensembles]
            shares = split_budget(paths, noise, budget, n_classes, COMPARISON_STARTS)
            errors = ensemble_errors(paths, shares, noise, budget, n_classes, COMPARISON_STARTS)
            results.append((sum(errors) / forest.n_leaves, forest.n_leaves))
        error, leaves = min(results)
        return leaves, error

    def n_leaves(self, encoding: Encoding) -> int:
        """Return the maximum number of leaves; for multiway trees, by the sizes of the widest columns."""
        depth, trees = int(np.max(self.parameters.max_depth)), int(np.sum(self.parameters.n_estimators))
        if self.parameters.branching == "binary":
            return trees << min(depth, 64)
        return trees * math.prod(sorted(encoding.n_codes, reverse=True)[:depth])

    def design_with_loss(self, request: FitRequest) -> MatrixDesign:
        """Grow the trees and choose the measurements, both without data. Searches are cached on disk."""
        encoding = Encoding(request.schema, self.numeric_encoding)
        exact = self.auto_sized and request.loss.epsilon is None  # without noise there is nothing to optimise
        if self.parameters.mechanism != "optimized" or exact:
            return self._design_direct(request, encoding)
        return cached_design(
            request,
            self._given_size,
            lambda cached: self._design_optimized(cached, encoding, *self._best_ensembles(cached, encoding)),
        )

    def _best_ensembles(
        self, request: FitRequest, encoding: Encoding
    ) -> tuple[tuple[Ensemble, ...], Forest, dict[str, Any]]:
        """Grow the trees under the partition with the least error, and return them with the compared errors."""
        options = [requested_partition(encoding, self.parameters), *alternative_partitions(encoding, self.parameters)]
        compared: dict[str, Any] = {}
        if "strategies" in request.decisions:
            options = [each for each in options if each.n_ensembles == request.decisions.get("division")]
            if len(options) != 1:
                raise PlanError("the plan must record how features are divided among ensembles.")
            compared = {
                name: request.decisions[name] for name in ("alternatives", "divisions") if name in request.decisions
            }
        grown = {
            each.n_ensembles: grow_ensembles(encoding, self.parameters, request.seed, each) for each in options[:1]
        }
        division = options[0].n_ensembles
        if len(options) > 1:
            division, errors = self._best_partition(request, encoding, options, grown)
            compared = {"divisions": errors} if len(errors) > 1 else {}
        return *grown[division], compared

    def _best_partition(
        self,
        request: FitRequest,
        encoding: Encoding,
        options: Sequence[FeaturePartition],
        grown_options: dict[int, GrownEnsembles],
    ) -> tuple[int, dict[str, float]]:
        """Return the best number of ensembles, and the error of each number relative to the best.

        One ensemble is used if marginals answer its leaves better than the trees themselves do. Otherwise disjoint
        parts replace it if they at least halve the error. The decision holds for noise of any scale, so the error never
        grows with the budget. Short searches suffice, since partitions differ by more than searches. They start with
        the largest number of parts, and stop when fewer parts are worse.
        """
        n_classes = len(request.schema.classes)
        noise, _ = noise_and_budget(request.loss, request.neighbours, n_classes)
        errors: dict[int, float] = {}
        for division in (options[0], *reversed(options[1:])):
            number = division.n_ensembles
            if number not in grown_options:
                grown_options[number] = grow_ensembles(encoding, self.parameters, request.seed, division)
            ensembles, forest = grown_options[number]
            paths = [ensemble.paths for ensemble in ensembles]
            shares = split_budget(paths, noise, SMALL_BUDGET, n_classes, COMPARISON_STARTS)
            errors[number] = (
                sum(ensemble_errors(paths, shares, noise, SMALL_BUDGET, n_classes, COMPARISON_STARTS)) / forest.n_leaves
            )
            best = optimize(
                paths[0], noise, SMALL_BUDGET, starts=COMPARISON_STARTS, max_cells=max_table_cells(n_classes)
            )
            if number == 1 and not isinstance(best, Mixture):
                break
            if errors.get(number + 1, math.inf) < errors[number]:
                break
        best_number = min(errors, key=lambda number: errors[number])
        chosen = best_number if 2 * errors[best_number] <= errors[1] else 1
        return chosen, {str(number): float(f"{error / errors[chosen]:.2g}") for number, error in errors.items()}

    def _design_direct(self, request: FitRequest, encoding: Encoding) -> MatrixDesign:
        """Plan the direct release of all leaves, with equal fractions of the budget per tree."""
        ensembles, forest = grow_ensembles(encoding, self.parameters, request.seed)
        step = self.leaf_step(request.schema, request.loss, request.neighbours, forest.n_leaves)
        plan = request.make_plan(
            (step,),
            f"{step.name}, with noise",
            forest.layout(self.row_sharing),
            step.variance,
            choices={"structure": forest.fingerprint()},
            notes={"ensembles": len(ensembles)},
        )
        return MatrixDesign(encoding, plan, forest, ensembles, ())

    def _design_optimized(
        self,
        request: FitRequest,
        encoding: Encoding,
        ensembles: tuple[Ensemble, ...],
        forest: Forest,
        decisions: dict[str, Any],
    ) -> MatrixDesign:
        """Choose the measurements and the budget of each ensemble, or take both from an earlier plan."""
        n_classes = len(request.schema.classes)
        if "strategies" in request.decisions:
            shares, strategies = _read_decisions(request.decisions, len(ensembles))
        else:
            paths = [ensemble.paths for ensemble in ensembles]
            noise, budget = noise_and_budget(request.loss, request.neighbours, n_classes)
            shares, strategies = split_budget(paths, noise, budget, n_classes), [None] * len(ensembles)
            decisions["alternatives"] = alternative_errors(paths, shares, noise, budget, n_classes)
        measurements = tuple(
            plan_measurement(
                f"ensemble {i}",
                ensemble.paths,
                request.loss.scaled(share),
                request.neighbours,
                n_classes,
                features=[encoding.columns[j].name for j in ensemble.features],
                payload=strategy,
            )
            for i, (ensemble, share, strategy) in enumerate(zip(ensembles, shares, strategies, strict=True), start=1)
        )
        measured = ", ".join(dict.fromkeys(measurement.strategy.name for measurement in measurements))
        plan = request.make_plan(
            tuple(step for measurement in measurements for step in measurement.steps),
            f"noisy tables ({measured}) chosen to answer the {forest.n_leaves:,} leaves",
            forest.layout(self.row_sharing),
            sum(measurement.expected_error for measurement in measurements) / forest.n_leaves,
            notes={"ensembles": len(ensembles)},
        )
        choices = {
            "structure": forest.fingerprint(),
            "division": len(ensembles),
            "shares": [str(share) for share in shares],
            "strategies": [strategy_to_json(measurement.strategy) for measurement in measurements],
            **decisions,
        }
        return MatrixDesign(encoding, _with_comparison_notes(plan, choices), forest, ensembles, measurements)

    def make_count(self, design: MatrixDesign) -> Count:
        """Return the count of the measured tables, or of the leaves."""
        if design.measurements:
            return TableCount(design)
        return self.make_leaf_count(design.encoding, design.forest, self.draw_assignment(design.forest.n_trees))

    def release_sums(self, design: MatrixDesign, exact: Ints, door: Door) -> Floats:
        """Release the noisy tables, and reconstruct the leaves from them."""
        if not design.measurements:
            return door.release_counts(design.plan.steps[-1], exact).astype(np.float64)
        measured = [step for measurement in design.measurements for step in measurement.steps]
        ends = np.cumsum([math.prod(step.shape) for step in measured])
        tables = iter(np.split(exact, ends[:-1]))
        answers = []
        for measurement in design.measurements:
            noisy = [door.release_counts(step, next(tables).reshape(step.shape)) for step in measurement.steps]
            answers.append(measurement.reconstruct(noisy))
        return np.concatenate(answers)

    def released_leaves(self, design: MatrixDesign, released: Floats) -> tuple[Forest, Floats]:
        """Return the designed forest with the reconstructed leaves."""
        return design.forest, released

    @property
    def voting_rule(self) -> str:
        """The rule that combines the leaves of a row: as in the paper, unless the size is "auto"."""
        if self.parameters.voting == noisy_leaves.AUTO:
            return GEOMETRIC if self.auto_sized else "hard"
        return str(self.parameters.voting)

    def leaf_variance(self, plan: Plan) -> float:
        """Return the variance of a reconstructed leaf: the average error under the strategy."""
        return plan.expected_leaf_mse

    def make_model(
        self, encoding: Encoding, forest: Forest, counts: AnyArray, plan: Plan, pooled: noisy_leaves.Pooled = None
    ) -> MatrixModel:
        """Build the model of estimated leaves."""
        values, voting = counts, self.voting_rule
        if self.shrinks_leaves:
            values = self.clean_leaves(forest, counts, plan, pooled)
            if voting == "weight":  # leaves are weighted by their rows
                values = values * np.maximum(counts.sum(axis=1, keepdims=True), 0.0)
        if voting == "hard":
            values = noisy_leaves.majority_votes(values)
        if voting == GEOMETRIC:
            values = np.log(np.maximum(noisy_leaves.normalize_counts(values), LEAST_FREQUENCY))
        return MatrixModel(encoding, forest, values, counts, voting, plan.public_seed, pooled)


@dataclass(eq=False, repr=False)
class MatrixForestClassifier(Classifier, OnePassForest, MatrixForestParameters, ClassWeights, SharedParameters):
    """Random multiway trees whose leaves are estimated jointly, with noise optimised across all trees.

    Every leaf of every tree is a sum over cells of one contingency table. Instead of equal noise on each tree, a
    strategy is chosen that answers all leaves with the least total error: all cells, weighted marginals, products, the
    leaves of the trees themselves, or of some trees with marginals for the others. The choice uses public facts only.
    The strategy is measured with exact discrete noise, and leaves are reconstructed. It is never worse than the
    baselines, and the plan shows the errors of the alternatives.

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, random_state, ledger
        As in ``RandomTreesClassifier``. Numeric columns are divided at the schema's ``cutoffs`` or into its ``bins``.
    n_estimators : "auto", int or list of int
        Number of trees of all ensembles together, or of each ensemble.
    max_depth : "auto", int or list of int
        Depth of the trees. A multiway tree uses a feature once on a path.
    n_rows, class_weight, max_weight
        As in ``RandomTreesClassifier``. By default the size is "auto".
    mechanism : {"optimized", "laplace"}
        Optimise the measurements, or release the leaves of all trees with equal noise (the paper's baseline).
    trees : {"shared", "disjoint"}
        Count every row in every tree, or in one tree (a baseline; with ``mechanism="laplace"``).
    n_ensembles, max_features : int or None
        Number of ensembles (q in the paper), and number of random features of each (d-bar). The budget is divided by
        their errors. By default there is one ensemble over all features. If its error is too large, as in wide tables,
        all features are divided into disjoint parts that at least halve the error.
    feature_subsets : {"independent", "disjoint"}
        Draw the features of each ensemble independently, or divide all features into ``n_ensembles`` disjoint parts.
    voting : {"auto", "hard", "weight", "geometric"}
        Leaves vote for their largest class, their counts are summed, or their class frequencies are multiplied
        (geometric mean). "auto" is "geometric" if the size is "auto", otherwise "hard" as in the paper. Spends no
        budget.
    branching : {"auto", "multiway", "binary"}
        One branch per value, or two branches. "auto" is "multiway"; without noise and with an "auto" size it is
        "binary".
    leaves : {"auto", "plain", "empirical-bayes"}
        Cleaning of noisy leaves. "empirical-bayes" shrinks them towards their ancestors according to the known noise.
        Spends no budget.
    n_jobs, invalid
        As in ``RandomTreesClassifier``.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_, privacy_, plan_
        As in ``RandomTreesClassifier``.
    forest_, leaf_counts_
        The public structure and the estimated leaf counts.

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the requested unit and adjacency: proofs/matrix-forest.md, attacked
    by packages/veilwood/tests/forests/matrix/test_training.py.

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

    _method_class = MatrixForest
