# SPDX-License-Identifier: Apache-2.0
"""Matrix random forests, batch training (Tajima, Wu, Houmansadr, AAAI 2025): noise shared by all trees.

The forest's leaves are linear queries over one table. What is measured is not the leaves but a strategy that
answers them all with the least noise (``strategies``); the leaves are reconstructed from the noisy measurements.
Batch prediction and subsample-and-aggregate are in ``answering``.
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
from veilwood.data.counts import AddsUpCells
from veilwood.data.encoding import EncodedColumn, Encoding
from veilwood.engines.sql.dialects import EngineWords
from veilwood.engines.sql.scoring import doubtful
from veilwood.errors import DomainTooLargeError, ParameterError, PlanError, UseError
from veilwood.estimators.base import Classifier, ClassWeights, SharedParameters
from veilwood.estimators.method import Asked, Codes, Floats, ForestDesign, Parameters
from veilwood.estimators.one_pass import OnePassForest
from veilwood.forests import leaves as cleaning
from veilwood.forests.matrix.marginals import Mixture
from veilwood.forests.matrix.measurement import (
    MECHANISMS,
    Measurement,
    alternatives,
    budget_of,
    divide,
    errors_of,
    most_cells,
    plan_measurement,
    strategy_to_choice,
)
from veilwood.forests.matrix.search import COMPARING, SMALL, compared_once, optimize, searched_once
from veilwood.forests.matrix.workloads import PathWorkload
from veilwood.forests.noisy_leaves import (
    AUTO,
    MOST_LEAVES,
    LeafMethod,
    LeafModel,
    LeafParameters,
    OnePassMethod,
    Pooled,
    plain_shares,
    votes,
)
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.plan import Plan
from veilwood.safe_io import is_whole, rational
from veilwood.trees.forest import Forest, join_forests
from veilwood.trees.random import check_counts, grow_binary, grow_multiway, public_generators

BRANCHINGS = ("multiway", "binary")
FEATURE_SUBSETS = ("independent", "disjoint")
MOST_BYTES = 1 << 30  # for the paths of all leaves that could be grown


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
class Division:
    """How the features are divided among ensembles: so many, of so many features each, or parts of all of them."""

    n_ensembles: int
    max_features: int | None
    disjoint: bool


def asked_division(encoding: Encoding, wanted: EnsembleParameters) -> Division:
    """Return the division that parameters ask for; where they leave it open, one ensemble over all features."""
    n_ensembles, n_features = wanted.n_ensembles, len(encoding.columns)
    if n_ensembles is None:
        lists = [value for value in (wanted.n_estimators, wanted.max_depth) if isinstance(value, list | tuple)]
        n_ensembles = len(lists[0]) if lists else 1
    check_counts(n_ensembles=n_ensembles)
    disjoint = wanted.feature_subsets == "disjoint"
    if wanted.max_features is not None and (disjoint or not is_whole(wanted.max_features, 1, n_features)):
        said = (
            "does not go with parts of all features" if disjoint else f"must be between 1 and the {n_features} features"
        )
        raise ParameterError("max_features", wanted.max_features, said)
    if disjoint and n_ensembles > n_features:
        raise ParameterError("n_ensembles", n_ensembles, f"is more than the {n_features} features to divide")
    return Division(int(n_ensembles), wanted.max_features, disjoint)


def other_divisions(encoding: Encoding, wanted: EnsembleParameters) -> list[Division]:
    """Return divisions into disjoint parts that may replace one ensemble, where the parameters leave that open.

    A part has more features than its trees have levels, so that trees differ.
    """
    open_ = (wanted.n_ensembles, wanted.max_features) == (None, None) and wanted.feature_subsets == "independent"
    if not open_ or isinstance(wanted.n_estimators, list | tuple) or isinstance(wanted.max_depth, list | tuple):
        return []
    (n_trees,), (depth,) = (_per_ensemble(name, getattr(wanted, name), 1) for name in ("n_estimators", "max_depth"))
    most = min(len(encoding.columns) // (depth + 1), n_trees)
    return [Division(parts, None, disjoint=True) for parts in range(2, most + 1)]


def grow_ensembles(
    encoding: Encoding, wanted: EnsembleParameters, seed: int, division: Division | None = None
) -> tuple[tuple[Ensemble, ...], Forest]:
    """Grow q ensembles (Algorithm 3, lines 1 to 4), and the forest of them all.

    Each has its own random features, drawn independently, or all features are cut into q disjoint parts at random.
    """
    division = division or asked_division(encoding, wanted)
    sizes = (_per_ensemble(name, getattr(wanted, name), division.n_ensembles) for name in ("n_estimators", "max_depth"))
    ensembles = _grown(encoding.columns, *map(tuple, sizes), wanted.branching, seed, division)
    # The forest becomes an attribute that people can write to: each caller has its own.
    return ensembles, deepcopy(join_forests([e.forest for e in ensembles], [e.features for e in ensembles]))


@lru_cache(maxsize=16)
def _grown(
    columns: tuple[EncodedColumn, ...],
    n_trees: tuple[int, ...],
    depths: tuple[int, ...],
    branching: str,
    seed: int,
    division: Division,
) -> tuple[Ensemble, ...]:
    # Planning, choosing a size and fitting ask for the same trees, whose strategies are so searched once.
    n_features, n_ensembles = len(columns), division.n_ensembles
    width = n_features if division.max_features is None else division.max_features
    multiway = branching != "binary"
    generators = public_generators(seed, n_ensembles + division.disjoint)
    if division.disjoint:
        parts = np.array_split(generators.pop().permutation(n_features), n_ensembles)
    ensembles = []
    for place, (rng, trees, depth) in enumerate(zip(generators, n_trees, depths, strict=True)):
        chosen = parts[place] if division.disjoint else rng.choice(n_features, width, replace=False)
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
    if leaves * entries > MOST_BYTES:
        many = f"{leaves:,}" if leaves < 10**18 else "more than 10^18"
        raise DomainTooLargeError(
            f"{n_trees} trees of max_depth={depth} can have {many} leaves over {len(sizes):,} features with "
            f"{sum(sizes):,} values (widest: {', '.join(map(str, widest[:8]))}), which take more than {MOST_BYTES:,} "
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
    """Counts the tables of all measurements (``batches.Count``), and can say what it counts (``cells.SaidCount``)."""

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

    def by_cells(self, answer: AddsUpCells, n_codes: Sequence[int]) -> NDArray[np.int64]:
        """Return the same out of answers about cells."""
        found = [
            measurement.strategy.measure_asked(answer, n_codes, ensemble.features)
            for ensemble, measurement in zip(self.design.ensembles, self.design.measurements, strict=True)
        ]
        return np.concatenate([table.ravel() for tables in found for table in tables])


def _chosen(found: Mapping[str, Any], n_ensembles: int) -> tuple[list[Fraction], list[Any]]:
    """Read the shares and strategies of an earlier plan."""
    shares, strategies = found.get("shares"), found["strategies"]
    if not isinstance(shares, list) or not isinstance(strategies, list):
        raise PlanError("the plan does not have a share and a strategy for each ensemble.")
    if not len(shares) == len(strategies) == n_ensembles:
        raise PlanError("the plan does not have a share and a strategy for each ensemble.")
    exact = [rational(share, "share") for share in shares]
    if min(exact) <= 0 or sum(exact) != 1:
        raise PlanError("the shares of the plan are not positive, or do not add up to 1.")
    return exact, strategies


def _told(plan: Plan, choices: dict[str, Any]) -> Plan:
    """Say in the plan's notes what else was considered, and what it would have cost."""
    notes = dict(plan.notes)
    for key, words in _ALTERNATIVES.items():
        costs = choices.get(key)
        if isinstance(costs, dict) and all(isinstance(cost, int | float) for cost in costs.values()):
            ranked = sorted(costs.items(), key=lambda item: (item[1], item[0]))  # in whatever order a file has them
            notes[key] = f"{words} {'; '.join(f'{name}: {cost:,}' for name, cost in ranked)}"
    return replace(plan, choices=choices, notes=notes)


class MatrixModel(LeafModel):
    """Leaves vote, or add up their counts."""

    def outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return the probability of each class, by its share among the votes."""
        return self.answers(codes, n_jobs)[0]

    def answers(self, codes: Codes, n_jobs: int | None = None) -> tuple[Floats, NDArray[np.int64]]:
        """Return the probability of each class, by its share among the votes, and the class with the most."""
        votes = self.sums(codes, n_jobs)
        shares = plain_shares(np.maximum(votes, 0.0))
        return cleaning.with_doubt(shares, self.forest.n_trees), np.asarray(votes.argmax(axis=1))

    def said_in_sql(self, words: EngineWords, sums: Sequence[str]) -> tuple[list[str], list[str]]:
        """Write ``answers`` for a database: shares of votes, and the votes."""
        zero, even = words.number(0.0), words.number(1 / len(sums))
        kept = [words.greatest(one, zero) for one in sums]
        total = f"({' + '.join(kept)})"
        shares = [f"(CASE WHEN {total} > {zero} THEN {one} / {total} ELSE {even} END)" for one in kept]
        return doubtful(words, shares, self.forest.n_trees), list(sums)


class MatrixForest(OnePassMethod[MatrixForestParameters]):
    """Random trees whose leaves are estimated together."""

    numeric: Literal["bins"] = "bins"
    takes_lists: ClassVar[bool] = True
    leaf_dtype: ClassVar[type] = np.float64  # reconstructed, not released as they are
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {**LeafMethod.words, "voting": VOTINGS}
    without_noise: ClassVar[Mapping[str, str]] = {"trees": "shared", "branching": "binary"}

    def check(self) -> None:
        """Refuse words that are not known or do not go together."""
        super().check()
        self.parameters.check_words(
            mechanism=MECHANISMS, branching=(AUTO, *BRANCHINGS), feature_subsets=FEATURE_SUBSETS
        )
        if self.parameters.trees == "disjoint" and self.parameters.mechanism == "optimized":
            raise UseError(
                "trees='disjoint' has nothing to optimise: each row is in one tree. Hint: mechanism='laplace'."
            )

    @classmethod
    def sizes(cls, encoding: Encoding, parameters: Any, *, noiseless: bool) -> Iterator[tuple[int, int]]:
        """Trees of one ensemble share their noise: many cost little. A path uses each feature once."""
        width = parameters.max_features or len(encoding.columns)
        if noiseless:
            most = 12 if parameters.branching == "binary" else width
            yield from ((64, depth) for depth in range(1, most + 1))
            return
        yield from ((64, depth) for depth in (1, 2, 3, 4) if depth <= width or parameters.branching == "binary")

    def expected(self, asked: Asked, encoding: Encoding) -> tuple[int, float]:
        """Search a little, which says well enough how much noise is left."""
        leaves = self.n_leaves(encoding)
        if leaves > MOST_LEAVES:
            raise DomainTooLargeError(f"{leaves:,} leaves are more than {MOST_LEAVES:,}. Hint: lower max_depth.")
        if asked.loss.epsilon is None:
            return leaves, 0.0
        if self.parameters.mechanism != "optimized":
            plan = self.design(asked).plan
            return plan.n_leaves, plan.expected_leaf_mse
        return compared_once(asked, self._size, lambda: self._roughly(asked, encoding))

    @property
    def _size(self) -> tuple[Any, Any]:
        return self.parameters.n_estimators, self.parameters.max_depth

    def _roughly(self, asked: Asked, encoding: Encoding) -> tuple[int, float]:
        """Return the number of leaves, and about the squared error of one under the noise that suits them better."""
        assert asked.loss.epsilon is not None
        losses = [Loss.pure(asked.loss.epsilon), asked.loss] if asked.loss.delta > 0 else [asked.loss]
        n_classes = len(asked.schema.classes)
        found = []
        for loss in losses:
            ensembles, forest, _ = self._divided(replace(asked, loss=loss), encoding)
            noise, budget = budget_of(loss, asked.neighbours, n_classes)
            paths = [ensemble.paths for ensemble in ensembles]
            shares = divide(paths, noise, budget, n_classes, COMPARING)
            errors = errors_of(paths, shares, noise, budget, n_classes, COMPARING)
            found.append((sum(errors) / forest.n_leaves, forest.n_leaves))
        error, leaves = min(found)
        return leaves, error

    def n_leaves(self, encoding: Encoding) -> int:
        """A multiway tree has at most as many as its widest columns have values."""
        depth, trees = int(np.max(self.parameters.max_depth)), int(np.sum(self.parameters.n_estimators))
        if self.parameters.branching == "binary":
            return trees << min(depth, 64)
        return trees * math.prod(sorted(encoding.n_codes, reverse=True)[:depth])

    def design_under(self, asked: Asked) -> MatrixDesign:
        """Grow the trees and choose what to measure, both without data; what was searched once is kept."""
        encoding = Encoding(asked.schema, self.numeric)
        exactly = self.sized and asked.loss.epsilon is None  # then nothing is gained by measuring anything else
        if self.parameters.mechanism != "optimized" or exactly:
            return self._design_leaves(asked, encoding)
        return searched_once(
            asked, self._size, lambda again: self._design_optimized(again, encoding, *self._divided(again, encoding))
        )

    def _divided(self, asked: Asked, encoding: Encoding) -> tuple[tuple[Ensemble, ...], Forest, dict[str, Any]]:
        """Grow the trees of the division of features that leaves the least error; and say what else was compared."""
        options = [asked_division(encoding, self.parameters), *other_divisions(encoding, self.parameters)]
        told: dict[str, Any] = {}
        if "strategies" in asked.choices:
            options = [each for each in options if each.n_ensembles == asked.choices.get("division")]
            if len(options) != 1:
                raise PlanError("the plan does not say how features are divided among ensembles.")
            told = {name: asked.choices[name] for name in ("alternatives", "divisions") if name in asked.choices}
        grown = {each.n_ensembles: grow_ensembles(encoding, self.parameters, asked.seed, each) for each in options[:1]}
        division = options[0].n_ensembles
        if len(options) > 1:
            division, errors = self._best_division(asked, encoding, options, grown)
            told = {"divisions": errors} if len(errors) > 1 else {}
        return *grown[division], told

    def _best_division(
        self, asked: Asked, encoding: Encoding, options: Sequence[Division], grown: dict[int, GrownEnsembles]
    ) -> tuple[int, dict[str, float]]:
        """Say how many ensembles the features are divided among, and what error each number would leave, in ratio.

        One ensemble stays where marginals answer its leaves better than the trees themselves do: there it is not
        drowned in noise. Elsewhere it gives way to parts that at least halve the error. The decision is made for noise
        of any scale, so that with more budget the error never grows. Searches are short, as divisions differ by more.
        They begin with the most parts, and end where fewer are worse.
        """
        n_classes = len(asked.schema.classes)
        noise, _ = budget_of(asked.loss, asked.neighbours, n_classes)
        errors: dict[int, float] = {}
        for division in (options[0], *reversed(options[1:])):
            number = division.n_ensembles
            if number not in grown:
                grown[number] = grow_ensembles(encoding, self.parameters, asked.seed, division)
            ensembles, forest = grown[number]
            paths = [ensemble.paths for ensemble in ensembles]
            shares = divide(paths, noise, SMALL, n_classes, COMPARING)
            errors[number] = sum(errors_of(paths, shares, noise, SMALL, n_classes, COMPARING)) / forest.n_leaves
            best = optimize(paths[0], noise, SMALL, starts=COMPARING, max_cells=most_cells(n_classes))
            if number == 1 and not isinstance(best, Mixture):
                break
            if errors.get(number + 1, math.inf) < errors[number]:
                break
        least = min(errors, key=lambda number: errors[number])
        chosen = least if 2 * errors[least] <= errors[1] else 1
        return chosen, {str(number): float(f"{error / errors[chosen]:.2g}") for number, error in errors.items()}

    def _design_leaves(self, asked: Asked, encoding: Encoding) -> MatrixDesign:
        """Release the leaves of every tree at an equal share."""
        ensembles, forest = grow_ensembles(encoding, self.parameters, asked.seed)
        step = self.leaf_step(asked.schema, asked.loss, asked.neighbours, forest.n_leaves)
        plan = asked.plan(
            (step,),
            f"{step.name}, with noise",
            forest.layout(self.records),
            step.variance,
            choices={"structure": forest.fingerprint()},
            notes={"ensembles": len(ensembles)},
        )
        return MatrixDesign(encoding, plan, forest, ensembles, ())

    def _design_optimized(
        self, asked: Asked, encoding: Encoding, ensembles: tuple[Ensemble, ...], forest: Forest, told: dict[str, Any]
    ) -> MatrixDesign:
        """Choose what to measure for each ensemble, and its share of the budget; or take both from an earlier plan."""
        n_classes = len(asked.schema.classes)
        if "strategies" in asked.choices:
            shares, strategies = _chosen(asked.choices, len(ensembles))
        else:
            paths = [ensemble.paths for ensemble in ensembles]
            noise, budget = budget_of(asked.loss, asked.neighbours, n_classes)
            shares, strategies = divide(paths, noise, budget, n_classes), [None] * len(ensembles)
            told["alternatives"] = alternatives(paths, shares, noise, budget, n_classes)
        measurements = tuple(
            plan_measurement(
                f"ensemble {i}",
                ensemble.paths,
                asked.loss.part(share),
                asked.neighbours,
                n_classes,
                features=[encoding.columns[j].name for j in ensemble.features],
                choice=strategy,
            )
            for i, (ensemble, share, strategy) in enumerate(zip(ensembles, shares, strategies, strict=True), start=1)
        )
        measured = ", ".join(dict.fromkeys(measurement.strategy.name for measurement in measurements))
        plan = asked.plan(
            tuple(step for measurement in measurements for step in measurement.steps),
            f"noisy tables ({measured}) chosen to answer the {forest.n_leaves:,} leaves",
            forest.layout(self.records),
            sum(measurement.expected_error for measurement in measurements) / forest.n_leaves,
            notes={"ensembles": len(ensembles)},
        )
        choices = {
            "structure": forest.fingerprint(),
            "division": len(ensembles),
            "shares": [str(share) for share in shares],
            "strategies": [strategy_to_choice(measurement.strategy) for measurement in measurements],
            **told,
        }
        return MatrixDesign(encoding, _told(plan, choices), forest, ensembles, measurements)

    def count(self, design: MatrixDesign) -> Count:
        """Count the cells of the tables that are measured, or the leaves."""
        if design.measurements:
            return TableCount(design)
        return self.leaf_count(design.encoding, design.forest, self.assignment(design.forest.n_trees))

    def release(self, design: MatrixDesign, exact: NDArray[np.int64], door: Door) -> Floats:
        """Release the tables, with noise, and reconstruct the leaves from them."""
        if not design.measurements:
            return door.noisy(design.plan.steps[0], exact).astype(np.float64)
        ends = np.cumsum([math.prod(step.shape) for step in design.plan.steps])
        tables = iter(np.split(exact, ends[:-1]))
        answers = []
        for measurement in design.measurements:
            noisy = [door.noisy(step, next(tables).reshape(step.shape)) for step in measurement.steps]
            answers.append(measurement.reconstruct(noisy))
        return np.concatenate(answers)

    def learn(self, design: MatrixDesign, plan: Plan, released: Floats, n_jobs: int | None = None) -> MatrixModel:
        """Clean the leaves."""
        return self.model(design.encoding, design.forest, released, plan)

    def leaf_variance(self, plan: Plan) -> float:
        """Leaves are reconstructed: their noise is what the strategy leaves on average."""
        return plan.expected_leaf_mse

    def model(
        self, encoding: Encoding, forest: Forest, counts: NDArray[Any], plan: Plan, pooled: Pooled = None
    ) -> MatrixModel:
        """Make the model of estimated leaves."""
        said, voting = counts, self.parameters.voting
        if self.shrinks:
            said = self.leaf_values(forest, counts, plan, pooled)
            if voting == "weight":  # a leaf of many rows says more
                said = said * np.maximum(counts.sum(axis=1, keepdims=True), 0.0)
        if voting == "hard":
            said = votes(said)
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

    _method = MatrixForest
