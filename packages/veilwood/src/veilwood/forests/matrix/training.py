# SPDX-License-Identifier: Apache-2.0
"""Matrix random forests, batch training (Tajima, Wu, Houmansadr, AAAI 2025): noise shared by all trees.

The forest's leaves are linear queries over one table. What is measured is not the leaves but a strategy that
answers them all with the least noise (``strategies``); the leaves are reconstructed from the noisy measurements.
Batch prediction and subsample-and-aggregate are in ``private_queries``.
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
from numpy.typing import NDArray

from veilwood.data.batches import Batch, Count
from veilwood.data.counts import RunCellQueries
from veilwood.data.encoding import EncodedColumn, Encoding
from veilwood.errors import DomainTooLargeError, ParameterError, PlanError, UseError
from veilwood.estimators.base import Classifier, ClassWeights, SharedParameters
from veilwood.estimators.method import Codes, FitRequest, Floats, ForestDesign, Parameters
from veilwood.estimators.one_pass import OnePassForest
from veilwood.forests import leaves as cleaning
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
from veilwood.forests.noisy_leaves import (
    AUTO,
    MAX_LEAVES,
    LeafMethod,
    LeafModel,
    LeafParameters,
    OnePassMethod,
    Pooled,
    majority_votes,
    normalize_counts,
)
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.plan import Plan
from veilwood.safe_io import is_int_in, parse_fraction
from veilwood.trees.forest import Forest, join_forests
from veilwood.trees.random import check_counts, grow_binary, grow_multiway, public_generators

BRANCHINGS = ("multiway", "binary")
FEATURE_SUBSETS = ("independent", "disjoint")
MAX_BYTES = 1 << 30  # for the paths of all leaves that could be grown


@dataclass(frozen=True)
class Ensemble:
    """The trees over one random subset of the features."""

    features: tuple[int, ...]
    forest: Forest
    paths: PathWorkload


@dataclass(eq=False, repr=False, kw_only=True)
class EnsembleParameters(Parameters):
    """Parameters of the trees of a matrix forest; a list has one entry for each ensemble."""

    n_estimators: int | list[int] = 128
    max_depth: int | list[int] = 3
    n_ensembles: int | None = None
    max_features: int | None = None
    feature_subsets: str = "independent"
    branching: str = "multiway"


@dataclass(frozen=True)
class FeaturePartition:
    """How the features are divided among ensembles: so many, of so many features each, or parts of all of them."""

    n_ensembles: int
    max_features: int | None
    disjoint: bool


def requested_partition(encoding: Encoding, parameters: EnsembleParameters) -> FeaturePartition:
    """Return the division that parameters ask for; where they leave it open, one ensemble over all features."""
    n_ensembles, n_features = parameters.n_ensembles, len(encoding.columns)
    if n_ensembles is None:
        lists = [value for value in (parameters.n_estimators, parameters.max_depth) if isinstance(value, list | tuple)]
        n_ensembles = len(lists[0]) if lists else 1
    check_counts(n_ensembles=n_ensembles)
    disjoint = parameters.feature_subsets == "disjoint"
    if parameters.max_features is not None and (disjoint or not is_int_in(parameters.max_features, 1, n_features)):
        said = (
            "does not go with parts of all features" if disjoint else f"must be between 1 and the {n_features} features"
        )
        raise ParameterError("max_features", parameters.max_features, said)
    if disjoint and n_ensembles > n_features:
        raise ParameterError("n_ensembles", n_ensembles, f"is more than the {n_features} features to divide")
    return FeaturePartition(int(n_ensembles), parameters.max_features, disjoint)


def alternative_partitions(encoding: Encoding, parameters: EnsembleParameters) -> list[FeaturePartition]:
    """Return divisions into disjoint parts that may replace one ensemble, where the parameters leave that open.

    A part has more features than its trees have levels, so that trees differ.
    """
    open_ = (parameters.n_ensembles, parameters.max_features) == (
        None,
        None,
    ) and parameters.feature_subsets == "independent"
    if not open_ or isinstance(parameters.n_estimators, list | tuple) or isinstance(parameters.max_depth, list | tuple):
        return []
    (n_trees,), (depth,) = (_per_ensemble(name, getattr(parameters, name), 1) for name in ("n_estimators", "max_depth"))
    most = min(len(encoding.columns) // (depth + 1), n_trees)
    return [FeaturePartition(parts, None, disjoint=True) for parts in range(2, most + 1)]


def grow_ensembles(
    encoding: Encoding, parameters: EnsembleParameters, seed: int, partition: FeaturePartition | None = None
) -> tuple[tuple[Ensemble, ...], Forest]:
    """Grow q ensembles (Algorithm 3, lines 1 to 4), and the forest of them all.

    Each has its own random features, drawn independently, or all features are cut into q disjoint parts at random.
    """
    partition = partition or requested_partition(encoding, parameters)
    sizes = (
        _per_ensemble(name, getattr(parameters, name), partition.n_ensembles) for name in ("n_estimators", "max_depth")
    )
    ensembles = _grow_cached(encoding.columns, *map(tuple, sizes), parameters.branching, seed, partition)
    # The forest becomes an attribute that people can write to: each caller has its own.
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
    # Planning, choosing a size and fitting ask for the same trees, whose strategies are so searched once.
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
        mine = [columns[i] for i in features]
        sizes = [column.n_codes for column in mine]
        _check_domain(sizes, trees, depth, branching)
        forest = (grow_multiway if multiway else grow_binary)(mine, trees, depth, rng)
        ensembles.append(Ensemble(features, forest, PathWorkload.from_forest(sizes, forest, multiway=multiway)))
    return tuple(ensembles)


def _check_domain(sizes: Sequence[int], n_trees: int, depth: int, branching: str) -> None:
    """Refuse trees whose leaves could not be written down, before they are grown."""
    widest = sorted(sizes, reverse=True)[:depth]
    multiway = branching != "binary"
    leaves = n_trees * (math.prod(widest) if multiway else 2**depth)
    entries = len(sizes) * 4 if multiway else sum(sizes)  # one value of each feature, or the set of those kept
    if leaves * entries > MAX_BYTES:
        many = f"{leaves:,}" if leaves < 10**18 else "more than 10^18"
        raise DomainTooLargeError(
            f"{n_trees} trees of max_depth={depth} can have {many} leaves over {len(sizes):,} features with "
            f"{sum(sizes):,} values (widest: {', '.join(map(str, widest[:8]))}), which take more than {MAX_BYTES:,} "
            "bytes. Hint: lower max_depth or n_estimators, give numeric columns fewer bins, or use several ensembles "
            "over fewer features (n_ensembles, max_features)."
        )


def _per_ensemble(name: str, value: Any, n_ensembles: int) -> list[int]:
    """Return one number per ensemble: a list as it is, a total number of trees shared out, a depth repeated."""
    if isinstance(value, list | tuple):
        if len(value) != n_ensembles:
            raise ParameterError(name, value, f"must have one entry for each of the {n_ensembles} ensembles")
        for entry in value:
            check_counts(**{name: entry})
        return [int(entry) for entry in value]
    check_counts(**{name: value})
    if name == "max_depth":
        return [int(value)] * n_ensembles
    if value < n_ensembles:
        raise ParameterError(name, value, f"is less than one tree for each of the {n_ensembles} ensembles")
    return [len(part) for part in np.array_split(np.arange(value), n_ensembles)]


VOTINGS = ("hard", "weight")
GrownEnsembles: TypeAlias = tuple[tuple[Ensemble, ...], Forest]
_ALTERNATIVES = {
    "alternatives": "expected squared error of a leaf, by what is measured,",
    "divisions": "about the same, as a multiple of what was chosen, by the number of ensembles,",
}


@dataclass(eq=False, repr=False, kw_only=True)
class MatrixForestParameters(EnsembleParameters, LeafParameters):
    """Parameters of a matrix forest, which is for classes."""

    n_estimators: Any = AUTO
    max_depth: Any = AUTO
    mechanism: str = "optimized"
    branching: str = AUTO
    trees: str = "shared"
    voting: str = "hard"


@dataclass(frozen=True)
class MatrixDesign(ForestDesign):
    """The public design of a matrix forest; no measurements where leaves are released directly."""

    ensembles: tuple[Ensemble, ...]
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, eq=False, repr=False)
class TableCount:
    """Counts the tables of all measurements (``batches.Count``), and can say what it counts (``cells.DeclarativeCount``)."""

    design: MatrixDesign

    def __call__(self, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> NDArray[np.int64]:
        """Return the exact tables, one after the other in one array; always on one thread."""
        design, n_classes = self.design, len(self.design.encoding.schema.classes)
        totals = [[np.zeros(step.shape, np.int64) for step in m.steps] for m in design.measurements]
        for batch in batches:
            for ensemble, measurement, sums in zip(design.ensembles, design.measurements, totals, strict=True):
                columns = batch.codes[:, ensemble.features]
                parts = measurement.strategy.measure_exact(columns, batch.target, n_classes)
                for total, part in zip(sums, parts, strict=True):
                    total += part
        return np.concatenate([total.ravel() for sums in totals for total in sums])

    def via_cell_queries(self, run_queries: RunCellQueries, n_codes: Sequence[int]) -> NDArray[np.int64]:
        """Return the same out of answers about cells."""
        found = [
            measurement.strategy.measure_queried(run_queries, n_codes, ensemble.features)
            for ensemble, measurement in zip(self.design.ensembles, self.design.measurements, strict=True)
        ]
        return np.concatenate([table.ravel() for tables in found for table in tables])


def _read_decisions(decisions: Mapping[str, Any], n_ensembles: int) -> tuple[list[Fraction], list[Any]]:
    """Read the shares and strategies of an earlier plan."""
    shares, strategies = decisions.get("shares"), decisions["strategies"]
    if not isinstance(shares, list) or not isinstance(strategies, list):
        raise PlanError("the plan does not have a share and a strategy for each ensemble.")
    if not len(shares) == len(strategies) == n_ensembles:
        raise PlanError("the plan does not have a share and a strategy for each ensemble.")
    exact = [parse_fraction(share, "share") for share in shares]
    if min(exact) <= 0 or sum(exact) != 1:
        raise PlanError("the shares of the plan are not positive, or do not add up to 1.")
    return exact, strategies


def _with_comparison_notes(plan: Plan, decisions: dict[str, Any]) -> Plan:
    """Say in the plan's notes what else was considered, and what it would have cost."""
    notes = dict(plan.notes)
    for key, words in _ALTERNATIVES.items():
        costs = decisions.get(key)
        if isinstance(costs, dict) and all(isinstance(cost, int | float) for cost in costs.values()):
            ranked = sorted(costs.items(), key=lambda item: (item[1], item[0]))  # in whatever order a file has them
            notes[key] = f"{words} {'; '.join(f'{name}: {cost:,}' for name, cost in ranked)}"
    return replace(plan, choices=decisions, notes=notes)


class MatrixModel(LeafModel):
    """Leaves vote, or add up their counts."""

    def predict_outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return the probability of each class, by its share among the votes."""
        return self.predict_both(codes, n_jobs)[0]

    def predict_both(self, codes: Codes, n_jobs: int | None = None) -> tuple[Floats, NDArray[np.int64]]:
        """Return the probability of each class, by its share among the votes, and the class with the most."""
        votes = self.sum_leaves(codes, n_jobs)
        shares = normalize_counts(np.maximum(votes, 0.0))
        return cleaning.smooth_probabilities(shares, self.forest.n_trees), np.asarray(votes.argmax(axis=1))


class MatrixForest(OnePassMethod[MatrixForestParameters]):
    """Random trees whose leaves are estimated together."""

    numeric_encoding: Literal["bins"] = "bins"
    accepts_lists: ClassVar[bool] = True
    leaf_dtype: ClassVar[type] = np.float64  # reconstructed, not released as they are
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {**LeafMethod.options, "voting": VOTINGS}
    noiseless_options: ClassVar[Mapping[str, str]] = {"trees": "shared", "branching": "binary"}

    def check_parameters(self) -> None:
        """Refuse words that are not known or do not go together."""
        super().check_parameters()
        self.parameters._check_options(
            mechanism=MECHANISMS, branching=(AUTO, *BRANCHINGS), feature_subsets=FEATURE_SUBSETS
        )
        if self.parameters.trees == "disjoint" and self.parameters.mechanism == "optimized":
            raise UseError(
                "trees='disjoint' has nothing to optimise: each row is in one tree. Hint: mechanism='laplace'."
            )

    @classmethod
    def candidate_sizes(cls, encoding: Encoding, parameters: Any, *, noiseless: bool) -> Iterator[tuple[int, int]]:
        """Trees of one ensemble share their noise: many cost little. A path uses each feature once."""
        width = parameters.max_features or len(encoding.columns)
        if noiseless:
            most = 12 if parameters.branching == "binary" else width
            yield from ((64, depth) for depth in range(1, most + 1))
            return
        yield from ((64, depth) for depth in (1, 2, 3, 4) if depth <= width or parameters.branching == "binary")

    def leaves_and_error(self, request: FitRequest, encoding: Encoding) -> tuple[int, float]:
        """Search a little, which says well enough how much noise is left."""
        leaves = self.n_leaves(encoding)
        if leaves > MAX_LEAVES:
            raise DomainTooLargeError(f"{leaves:,} leaves are more than {MAX_LEAVES:,}. Hint: lower max_depth.")
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
        """Return the number of leaves, and about the squared error of one under the noise that suits them better."""
        assert request.loss.epsilon is not None
        losses = [Loss.pure(request.loss.epsilon), request.loss] if request.loss.delta > 0 else [request.loss]
        n_classes = len(request.schema.classes)
        found = []
        for loss in losses:
            ensembles, forest, _ = self._best_ensembles(replace(request, loss=loss), encoding)
            noise, budget = noise_and_budget(loss, request.neighbours, n_classes)
            paths = [ensemble.paths for ensemble in ensembles]
            shares = split_budget(paths, noise, budget, n_classes, COMPARISON_STARTS)
            errors = ensemble_errors(paths, shares, noise, budget, n_classes, COMPARISON_STARTS)
            found.append((sum(errors) / forest.n_leaves, forest.n_leaves))
        error, leaves = min(found)
        return leaves, error

    def n_leaves(self, encoding: Encoding) -> int:
        """A multiway tree has at most as many as its widest columns have values."""
        depth, trees = int(np.max(self.parameters.max_depth)), int(np.sum(self.parameters.n_estimators))
        if self.parameters.branching == "binary":
            return trees << min(depth, 64)
        return trees * math.prod(sorted(encoding.n_codes, reverse=True)[:depth])

    def design_with_loss(self, request: FitRequest) -> MatrixDesign:
        """Grow the trees and choose what to measure, both without data; what was searched once is kept."""
        encoding = Encoding(request.schema, self.numeric_encoding)
        exactly = self.auto_sized and request.loss.epsilon is None  # then nothing is gained by measuring anything else
        if self.parameters.mechanism != "optimized" or exactly:
            return self._design_direct(request, encoding)
        return cached_design(
            request,
            self._given_size,
            lambda again: self._design_optimized(again, encoding, *self._best_ensembles(again, encoding)),
        )

    def _best_ensembles(
        self, request: FitRequest, encoding: Encoding
    ) -> tuple[tuple[Ensemble, ...], Forest, dict[str, Any]]:
        """Grow the trees of the division of features that leaves the least error; and say what else was compared."""
        options = [requested_partition(encoding, self.parameters), *alternative_partitions(encoding, self.parameters)]
        told: dict[str, Any] = {}
        if "strategies" in request.decisions:
            options = [each for each in options if each.n_ensembles == request.decisions.get("division")]
            if len(options) != 1:
                raise PlanError("the plan does not say how features are divided among ensembles.")
            told = {
                name: request.decisions[name] for name in ("alternatives", "divisions") if name in request.decisions
            }
        grown = {
            each.n_ensembles: grow_ensembles(encoding, self.parameters, request.seed, each) for each in options[:1]
        }
        division = options[0].n_ensembles
        if len(options) > 1:
            division, errors = self._best_partition(request, encoding, options, grown)
            told = {"divisions": errors} if len(errors) > 1 else {}
        return *grown[division], told

    def _best_partition(
        self,
        request: FitRequest,
        encoding: Encoding,
        options: Sequence[FeaturePartition],
        grown_options: dict[int, GrownEnsembles],
    ) -> tuple[int, dict[str, float]]:
        """Say how many ensembles the features are divided among, and what error each number would leave, in ratio.

        One ensemble stays where marginals answer its leaves better than the trees themselves do: there it is not
        drowned in noise. Elsewhere it gives way to parts that at least halve the error. The decision is made for noise
        of any scale, so that with more budget the error never grows. Searches are short, as divisions differ by more.
        They begin with the most parts, and end where fewer are worse.
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
        least = min(errors, key=lambda number: errors[number])
        chosen = least if 2 * errors[least] <= errors[1] else 1
        return chosen, {str(number): float(f"{error / errors[chosen]:.2g}") for number, error in errors.items()}

    def _design_direct(self, request: FitRequest, encoding: Encoding) -> MatrixDesign:
        """Release the leaves of every tree at an equal share."""
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
        """Choose what to measure for each ensemble, and its share of the budget; or take both from an earlier plan."""
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
        """Count the cells of the tables that are measured, or the leaves."""
        if design.measurements:
            return TableCount(design)
        return self.make_leaf_count(design.encoding, design.forest, self.draw_assignment(design.forest.n_trees))

    def release_sums(self, design: MatrixDesign, exact: NDArray[np.int64], door: Door) -> Floats:
        """Release the tables, with noise, and reconstruct the leaves from them."""
        if not design.measurements:
            return door.release_counts(design.plan.steps[0], exact).astype(np.float64)
        ends = np.cumsum([math.prod(step.shape) for step in design.plan.steps])
        tables = iter(np.split(exact, ends[:-1]))
        answers = []
        for measurement in design.measurements:
            noisy = [door.release_counts(step, next(tables).reshape(step.shape)) for step in measurement.steps]
            answers.append(measurement.reconstruct(noisy))
        return np.concatenate(answers)

    def build_model(self, design: MatrixDesign, plan: Plan, released: Floats, n_jobs: int | None = None) -> MatrixModel:
        """Clean the leaves."""
        return self.make_model(design.encoding, design.forest, released, plan)

    def leaf_variance(self, plan: Plan) -> float:
        """Leaves are reconstructed: their noise is what the strategy leaves on average."""
        return plan.expected_leaf_mse

    def make_model(
        self, encoding: Encoding, forest: Forest, counts: NDArray[Any], plan: Plan, pooled: Pooled = None
    ) -> MatrixModel:
        """Make the model of estimated leaves."""
        said, voting = counts, self.parameters.voting
        if self.shrinks_leaves:
            said = self.clean_leaves(forest, counts, plan, pooled)
            if voting == "weight":  # a leaf of many rows says more
                said = said * np.maximum(counts.sum(axis=1, keepdims=True), 0.0)
        if voting == "hard":
            said = majority_votes(said)
        return MatrixModel(encoding, forest, said, counts, voting, plan.public_seed, pooled)


@dataclass(eq=False, repr=False)
class MatrixForestClassifier(Classifier, OnePassForest, MatrixForestParameters, ClassWeights, SharedParameters):
    """Random multiway trees whose leaves are estimated together, with noise optimised across all trees.

    Every leaf of every tree is a sum over cells of one contingency table. Instead of noising each tree at an equal
    share of the budget, a strategy is chosen from public facts alone (all cells, weighted marginals, products, the
    leaves of trees themselves, or of some beside marginals for the others) that answers all leaves with the least total
    error; it is measured with exact noise, and leaves are reconstructed. It is never worse than the baselines, and the
    plan says what the alternatives would have cost.

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, random_state, ledger
        As in ``RandomTreesClassifier``. Numeric columns are cut at the schema's ``cutoffs`` or into its ``bins``.
    n_estimators : "auto", int or list of int
        Trees of all ensembles together, or for each ensemble.
    max_depth : "auto", int or list of int
        Depth; a multiway tree uses a feature once on a path.
    n_rows, class_weight, max_weight
        As in ``RandomTreesClassifier``: by default a size is chosen.
    mechanism : {"optimized", "laplace"}
        Optimise what is measured, or release every tree's leaves at an equal share (the paper's baseline).
    trees : {"shared", "disjoint"}
        Every row counts in every tree, or in one only (a baseline; with ``mechanism="laplace"``).
    n_ensembles, max_features : int or None
        Number of ensembles (q in the paper), each over so many random features (d-bar). Each gets the share of the
        budget that its error asks for. By default there is one over all features; but where its trees would drown in
        noise, as in wide tables, all features are cut into disjoint parts that at least halve the error.
    feature_subsets : {"independent", "disjoint"}
        Draw the features of each ensemble independently, or cut all features into ``n_ensembles`` disjoint parts.
    voting : {"hard", "weight"}
        Leaves vote for their largest class, or add up their counts.
    branching : {"auto", "multiway", "binary"}
        One branch per value, or two. "auto" is the first; without noise, where the size is chosen too, the second.
    leaves : {"auto", "plain", "empirical-bayes"}
        How noisy leaves are cleaned; "empirical-bayes" shrinks them along the trees by the known noise, at no cost.
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

    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/matrix-forest.md, attacked
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
