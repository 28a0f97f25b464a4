# SPDX-License-Identifier: Apache-2.0
"""Attacks on whole estimators: guesses of which canaries were included, from one fit and from a control fit.

The control has half the noise that it needs. Statistics are in ``statistics``, reports in ``model_files``, and attacks
on other libraries in ``peers``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final
from unittest import mock

import numpy as np
import pandas as pd
from scipy.special import logsumexp
from sklearn.base import clone

from veilwood import estimators
from veilwood.arrays import AnyArray, Bools, Floats, Int32s, Ints
from veilwood.data.columns import did_you_mean
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.data.open_rows import open_rows
from veilwood.data.schema import Schema, TaskKind
from veilwood.errors import PrivacyWarning, UseError, UtilityWarning
from veilwood.estimators import MatrixForestPredictor, PrivateForestClassifier, PrivateForestRegressor
from veilwood.estimators.base import BaseForest
from veilwood.estimators.method import ForestDesign
from veilwood.forests.adaptive.row_backend import GRADIENT_UNITS, row_gradients
from veilwood.forests.adaptive.steps import AdaptiveStep
from veilwood.forests.noisy_leaves import LeafMethod
from veilwood.privacy.door import Door
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.loss import requested_loss
from veilwood.privacy.neighbours import Adjacency
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, SparseLaplace, ThresholdedGaussian
from veilwood.privacy.plan import ALL_TO_EVERY_TREE, EACH_TO_ONE_TREE, Plan
from veilwood.privacy.release import Release
from veilwood.privacy.selection import RandomStopping
from veilwood.privacy.steps import Step
from veilwood.trees.counting import route_rows
from veilwood_audit.noninterference import DoorEvent, force_outcomes
from veilwood_audit.statistics import (
    ALPHA,
    TradeOff,
    composed_tradeoff,
    gaussian_tradeoff,
    one_run_lower_bound,
    tradeoff_lower_bound,
)

N_CANARIES = 16384
"""Canaries of one audited fit: enough for a lower bound of about 0.8 for an epsilon of 1."""

_ONE_TABLE = 100  # rows times epsilon at which PrivateForestClassifier releases one table and nothing else
_ONE_ROUND = 600.0  # rows times epsilon at which PrivateForestRegressor has a single round, with fine groups
_COUNT_STEP = AdaptiveStep.TABLE.at(1)  # the step that releases a single table
_ROUND_KINDS = {
    kind.key for kind in (AdaptiveStep.ROUND_ROWS, AdaptiveStep.ROUND_GRADIENTS, AdaptiveStep.ROUND_PAIRS)
}  # steps in which a row changes only its own cell
_ALL_STEPS = "everything"  # key of the result of all steps in a recording
_GUESSED_OF_ALL = (0.3, 0.5)  # fraction of canaries guessed by trade-off: trees from the data, and known trees
_GUESSED_OF_TREES = 0.6
_SAME_SIZE = 1e-9  # relative tolerance
_MAX_PARTS = 12  # maximum number of releases whose trade-offs are composed one by one
_FRACTION_GUESSED = 0.1  # fraction of canaries guessed in each tail, if likelihood ratios have no maximum


@dataclass(frozen=True)
class CanaryResult:
    """Result of one audited fit: numbers of canaries, guesses and right guesses, and the lower bounds on epsilon.

    ``tradeoff_lower_bound`` uses the whole trade-off function that a plan claims, not only its epsilon and delta. It is
    the largest epsilon for which a fit with the noise of that epsilon would be refuted, or 0 for plans whose trade-off
    function is not known.
    """

    canaries: int
    guesses: int
    correct: int
    epsilon_lower_bound: float
    tradeoff_lower_bound: float = 0.0


@dataclass(frozen=True)
class Attack:
    """Result of an attack on an estimator, and of the same attack on a control with half the noise.

    Attributes
    ----------
    estimator, setting : str
        Class of the estimator, and its parameters.
    epsilon, delta : float
        Claimed privacy loss.
    confidence : float
        Probability that a lower bound is not too large.
    audited, control : CanaryResult
        Results of the estimator and of its control.
    """

    estimator: str
    setting: str
    epsilon: float
    delta: float
    confidence: float
    audited: CanaryResult
    control: CanaryResult

    @property
    def refuted(self) -> bool:
        """Whether the attack refutes the claim."""
        return max(self.audited.epsilon_lower_bound, self.audited.tradeoff_lower_bound) > self.epsilon

    @property
    def has_power(self) -> bool:
        """Whether the attack refutes the control. An attack without power says nothing about the estimator."""
        return max(self.control.epsilon_lower_bound, self.control.tradeoff_lower_bound) > self.epsilon

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-compatible values."""
        return {**asdict(self), "refuted": self.refuted, "sees": self.has_power}


# -- targets and canaries -----------------------------------------------------------------------------------


def estimators_of(name: str) -> list[type[BaseForest]]:
    """Return the estimators of a family, or the one with a class name; both as typed on the command line.

    Examples
    --------
    >>> [kind.__name__ for kind in estimators_of("matrix-forest")]
    ['MatrixForestClassifier', 'MatrixForestPredictor']
    """
    families: dict[str, list[type[BaseForest]]] = {}
    for known in estimators.__all__:
        families.setdefault(estimators.family_of(known), []).append(getattr(estimators, known))
        families[known] = [getattr(estimators, known)]
    if name not in families:
        typed = [family for family in families if family.islower()]
        raise UseError(
            f"there is no estimator {name!r}.{did_you_mean(name, families)} Hint: choose one of {', '.join(typed)}."
        )
    return families[name]


def canary_schema(task: TaskKind, n_dice: int, sides: int) -> Schema:
    """Return a schema of categorical columns, called dice. Trees over them have many leaves, one per canary.

    Examples
    --------
    >>> len(canary_schema("regression", 20, sides=2).features)
    20
    """
    values = [str(side) for side in range(sides)]
    columns = [{"name": f"die{i}", "kind": "categorical", "values": values} for i in range(n_dice)]
    target: dict[str, Any] = {"name": "target", "kind": "numeric", "lower": 0, "upper": 1}
    if task == "classification":
        target = {"name": "target", "kind": "categorical", "values": ["no", "yes"]}
    return Schema.from_dict({"name": "dice", "task": task, "target": "target", "columns": [*columns, target]})


def canary_estimator(
    estimator_class: type[BaseForest], epsilon: float, params: Mapping[str, Any] | None = None
) -> BaseForest:
    """Return an estimator with settings that expose canaries: one deep tree, most of the budget on its leaves.

    Examples
    --------
    >>> import veilwood as vw
    >>> canary_estimator(vw.RandomTreesClassifier, 1.0).plan().n_leaves
    16384
    """
    known = estimator_class._get_param_names()
    # A matrix forest selects tables over its columns. With two columns there are few tables, and cells are leaves.
    n_dice, sides, depth = (2, 64, 2) if "n_ensembles" in known else (20, 2, 14)
    wanted: dict[str, Any] = {"n_estimators": 1, "max_depth": depth, "split_budget": 0.02, "candidates": 1}
    if issubclass(estimator_class, PrivateForestClassifier | PrivateForestRegressor):
        # A number of rows that leads to one table, or to one round, over the values of a single column. A classifier
        # uses the declared number, so one fit holds all canaries; a regressor counts rows, so each fit holds few.
        n_dice, sides = 1, N_CANARIES
        enough = _ONE_TABLE if estimator_class is PrivateForestClassifier else _ONE_ROUND
        wanted |= {"n_rows": max(1, round(enough / epsilon))}
    given = {name: value for name, value in wanted.items() if name in known} | {"random_state": 0, "n_jobs": 1}
    unknown = set(params or ()) - set(known)
    if unknown:
        raise UseError(
            f"{estimator_class.__name__} does not take {sorted(unknown)[0]!r}. Hint: choose from {', '.join(known)}."
        )
    return estimator_class(
        canary_schema(estimator_class._task, n_dice, sides), epsilon=epsilon, **(given | dict(params or {}))
    )


# -- one run ------------------------------------------------------------------------------------------------


def audit_one_run(
    estimator: BaseForest, *, canaries: int = N_CANARIES, seed: int = 0, alpha: float = ALPHA
) -> CanaryResult:
    """Fit once on canaries, each included with probability 1/2, and guess from the release which were included.

    A guess is the sign of the log-likelihood ratio of the leaves that a canary shares with no other canary. The attack
    abstains if the ratio is far from its maximum. With Gaussian noise there is no maximum, so the attack guesses the
    canaries with the most extreme tenth of ratios on either side.

    Parameters
    ----------
    estimator : BaseForest
        Unfitted estimator with an integer ``random_state`` and finite epsilon.
    canaries : int
        Maximum number of canaries; fewer are used if the trees have fewer leaves.
    seed : int
        Seed of the canaries and of their inclusion.
    alpha : float
        Probability that the bound is too large, whatever the estimator.

    Examples
    --------
    >>> import veilwood as vw
    >>> 0.5 < audit_one_run(canary_estimator(vw.RandomTreesClassifier, 1.0)).epsilon_lower_bound < 1
    True
    """
    rng = np.random.default_rng(seed)
    schema = Schema.resolve(estimator.schema)
    table = _draw_canaries(estimator, schema, canaries, rng)
    size = len(table)
    if isinstance(estimator, PrivateForestRegressor):
        size = min(size, 2 * (estimator.n_rows or size))  # of which half are included
    ratios, included, every = (
        [],
        [],
        np.zeros(len(table)),
    )  # ratios and coins of canaries with a leaf of their own; ratios of all canaries
    coins_of_all = np.zeros(len(table), bool)
    for first in range(0, len(table) - len(table) % size, size):
        coins = coins_of_all[first : first + size] = rng.random(size) < 0.5
        fitted = clone(estimator)
        ratio, alone = _fit_and_compare(fitted, schema, table.iloc[first : first + size], coins)
        every[first : first + size][alone] = ratio
        ratios.append(ratio)
        included.append(coins[alone])
    plan = fitted.plan_
    correct, guesses = _count_guesses(plan, np.concatenate(ratios), np.concatenate(included))
    delta = float(plan.loss.delta)
    bound = one_run_lower_bound(correct, guesses, canaries=len(table), delta=delta, alpha=alpha / 2)
    curve = _tradeoff_bound(plan, every, coins_of_all, alpha / 2)
    return CanaryResult(len(table), guesses, correct, bound, curve)


def _tradeoff_bound(plan: Plan, ratio: Floats, included: Bools, alpha: float) -> float:
    """Return the lower bound from trade-offs. The plan determines the number of guesses, so it is fixed in advance.

    The ratio of a canary without a leaf of its own is 0, so it is guessed last and without information.
    """
    claim = _claimed_tradeoff(plan)
    if claim is None:
        return 0.0
    size = np.abs(ratio)
    part = _GUESSED_OF_ALL["structure" in plan.choices]
    if plan.layout.records == ALL_TO_EVERY_TREE and plan.layout.trees > 1:
        part = _GUESSED_OF_TREES / plan.layout.trees  # of the canaries on which all trees agree
    if isinstance(plan.steps[-1].mechanism, DiscreteGaussian):
        part = 2 * _FRACTION_GUESSED
    elif np.ptp(size) < _SAME_SIZE * size.max(initial=1.0):  # counts: every release reveals equally much
        part = 1.0
    guesses = int(part * len(ratio))
    guessed = np.argsort(-size, kind="stable")[:guesses]
    correct = int((included[guessed] == (ratio[guessed] > 0)).sum())
    return tradeoff_lower_bound(correct, guesses, canaries=len(ratio), claim=claim, alpha=alpha)


def _claimed_tradeoff(plan: Plan) -> Callable[[float], TradeOff] | None:
    """Return a function from epsilon to the trade-off of a canary under such a plan, or None if it is not known."""
    (*_, last), loss, delta = plan.steps, plan.loss, float(plan.loss.delta)
    if delta > 0:  # one number with noise of one scale
        if len(plan.steps) > 1 or not isinstance(last.mechanism, DiscreteGaussian) or plan.layout.trees > 1:
            return None
        shift = math.isqrt(last.sensitivity)

        def of_gaussian(epsilon: float) -> TradeOff:
            rho = requested_loss(epsilon, delta).rho
            assert rho is not None
            return gaussian_tradeoff(float(last.sensitivity / (2 * rho)), shift)

        return of_gaussian if shift**2 == last.sensitivity else None
    if loss.epsilon is None or any(step.loss.epsilon is None for step in plan.steps):
        return None
    if plan.opened_as:  # the loss of a step depended on released values, so only the total was fixed
        return lambda epsilon: composed_tradeoff([epsilon])
    # The steps of a plan are independent releases, and so are the leaf counts of trees that share all rows.
    fractions = [float(step.loss.epsilon / loss.epsilon) for step in plan.steps if step.loss.epsilon]
    trees = plan.layout.trees if len(fractions) == 1 and plan.layout.records == ALL_TO_EVERY_TREE else 1
    fractions = [fraction / trees for fraction in fractions for _ in range(trees)]
    largest = sorted(fractions)[-_MAX_PARTS:]
    rest = max(
        1.0 - sum(largest), 0.0
    )  # the rest as one release, which reveals at least as much as any composition of its parts
    return lambda epsilon: composed_tradeoff([epsilon * each for each in (*largest, rest) if each > 0])


def _fit_and_compare(fitted: BaseForest, schema: Schema, table: pd.DataFrame, included: Bools) -> tuple[Floats, Bools]:
    """Fit on the included canaries. Return the log-likelihood ratios of canaries with leaves of their own, and a mask.

    Canaries have the last class or the upper bound as their target. Canaries of boosted forests alternate between both
    bounds, so that the mean is in the middle and gradients are large.
    """
    low, high = schema.target.bounds if schema.task == "regression" else (schema.classes[0], schema.classes[-1])
    is_low = (np.arange(len(table)) % 2 == 1) & isinstance(fitted, PrivateForestRegressor)
    target = np.array([low if each else high for each in is_low])
    with (
        warnings.catch_warnings()
    ):  # suppressed: one row per leaf is deliberately less than the noise, and canaries are not private
        warnings.simplefilter("ignore", UtilityWarning)
        warnings.simplefilter("ignore", PrivacyWarning)
        X, y = table[included], target[included]
        if isinstance(fitted, PrivateForestClassifier):  # no table is released if nearly all rows have one class
            others = table[::2]  # known rows of the other class
            X, y = pd.concat([X, others]), np.append(y, [low] * len(others))
        recorded = _fit_recorded(fitted, X, y)
        if isinstance(fitted, PrivateForestRegressor):
            return _round_ratios(fitted, recorded, table, is_low), np.ones(len(table), bool)
        values, leaves, contribution = _released_leaves(fitted, recorded, table)
    alone = _has_own_leaves(leaves)
    return _canary_log_ratio(fitted.plan_, fitted.plan_.steps[-1], values[alone], contribution), alone


def attack_estimator(
    estimator: BaseForest, *, canaries: int = N_CANARIES, seed: int = 0, alpha: float = ALPHA
) -> Attack:
    """Attack an estimator and its control: the same estimator at twice the epsilon, thus with half the noise.

    Examples
    --------
    >>> import veilwood as vw
    >>> attack = attack_estimator(canary_estimator(vw.RandomTreesClassifier, 1.0))
    >>> attack.refuted, attack.has_power
    (False, True)
    """
    loss = requested_loss(estimator.epsilon, estimator.delta)
    if loss.epsilon is None:
        raise UseError("epsilon=inf is no claim, so there is nothing to attack. Hint: pass --epsilon 1.")
    control = clone(estimator).set_params(epsilon=2 * loss.epsilon)
    params = estimator.get_params(deep=False)
    if params.get(
        "n_rows"
    ):  # the measurements depend on rows times epsilon, and the control must make the same measurements
        control.set_params(n_rows=max(1, params["n_rows"] // 2))
    setting = {name: params[name] for name in ("n_estimators", "max_depth", "trees", "mode") if name in params}
    return Attack(
        type(estimator).__name__,
        ", ".join(f"{name}={value}" for name, value in setting.items()),
        float(loss.epsilon),
        float(loss.delta),
        1 - alpha,
        audit_one_run(estimator, canaries=canaries, seed=seed, alpha=alpha),
        audit_one_run(control, canaries=canaries, seed=seed, alpha=alpha),
    )


def _draw_canaries(estimator: BaseForest, schema: Schema, canaries: int, rng: np.random.Generator) -> pd.DataFrame:
    """Draw canaries: rows that share no leaf if the trees are known in advance, otherwise distinct rows."""
    table = _random_rows(schema, 4 * canaries, rng)
    if not isinstance(estimator, MatrixForestPredictor) and isinstance(estimator._make_method(), LeafMethod):
        design = estimator._design_for(schema)
        if isinstance(design, ForestDesign):
            leaves = route_rows(design.forest, design.encoding.encode(table))
            return table.iloc[_select_disjoint_rows(leaves, design.forest.n_leaves)[:canaries]]
        canaries = min(canaries, design.plan.n_leaves)
    return table.drop_duplicates().iloc[:canaries]


def _random_rows(schema: Schema, n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return rows drawn uniformly from the schema's bounds and categories."""
    columns: dict[str, Any] = {}
    for column in schema.features:
        if column.kind == "numeric":
            columns[column.name] = rng.uniform(*column.bounds, size=n)
        else:
            columns[column.name] = np.array(column.values, dtype=object)[rng.integers(len(column.values), size=n)]
    return pd.DataFrame(columns)


def _select_disjoint_rows(leaves: Int32s, n_leaves: int) -> list[int]:
    """Return rows such that no two of them share a leaf in any tree, selected greedily."""
    is_taken = bytearray(n_leaves)
    selected = []
    for row, visited in enumerate(leaves.tolist()):
        if not any(is_taken[leaf] for leaf in visited):
            selected.append(row)
            for leaf in visited:
                is_taken[leaf] = 1
    return selected


def _has_own_leaves(leaves: Int32s) -> Bools:
    """Return a mask of the canaries that share none of their leaves with another canary."""
    return np.asarray((np.bincount(leaves.ravel())[leaves] == 1).all(axis=1))


class _RecordingDoor(Door):
    """A release door that records all noisy counts, including those that no model contains. All of them are public."""

    def __init__(self, plan: Plan, ledger: Ledger, released: dict[str, Any]) -> None:
        super().__init__(plan, ledger)
        self._released = released

    def release_counts(self, step: Step, exact: Ints) -> Ints:
        noisy = self._released[step.name] = super().release_counts(step, exact)
        return noisy


def _fit_recorded(estimator: BaseForest, X: pd.DataFrame, y: AnyArray) -> dict[str, Any]:
    """Fit an estimator, and return the releases of a PrivateForest by step. Other models contain all releases."""
    recorded: dict[str, Any] = {}
    if not isinstance(estimator, PrivateForestClassifier | PrivateForestRegressor):
        estimator.fit(X, y)
        return recorded
    method, design = estimator._make_method(), estimator._design_for(estimator._resolve_schema()[0])
    source = open_rows(X, y, design.encoding, unit=design.plan.neighbours.unit)
    door = _RecordingDoor(design.plan, open_ledger(estimator.ledger), recorded)

    def measure_recorded(door: Door) -> Any:
        recorded[_ALL_STEPS] = method.measure_rows(design, source, door, estimator.n_jobs)
        return recorded[_ALL_STEPS]

    estimator._run_release(Release(door), design, method, measure_recorded)
    return recorded


def _round_ratios(
    fitted: PrivateForestRegressor, released: dict[str, Any], table: pd.DataFrame, is_low: Bools
) -> Floats:
    """Return the log-likelihood ratio of each canary, over the cells of all rounds, each with one canary."""
    learned, ratio = released[_ALL_STEPS], np.zeros(len(table))
    codes = fitted._encode_rows(table)[:, 0].astype(np.int64)
    target = np.where(is_low, 0, TARGET_LEVELS).astype(np.int32)
    rounds = [step for step in fitted.plan_.steps if step.kind in _ROUND_KINDS]
    if len({step.at for step in rounds}) != 1 or any(step.shape[0] <= codes.max() for step in rounds):
        raise UseError("this attack requires one round with a cell for every value. Hint: use n_rows = 600 / epsilon.")
    for step in rounds:
        scores = np.broadcast_to(learned.start, (len(codes), 1)).astype(np.int32)
        gradient = row_gradients(scores, target, 0, learned.residual_limit).astype(np.int64).reshape(-1, 1)
        moved = np.ones_like(gradient)
        if step.kind == AdaptiveStep.ROUND_GRADIENTS.key:
            moved = gradient
        elif step.kind == AdaptiveStep.ROUND_PAIRS.key:
            moved = np.concatenate([GRADIENT_UNITS + gradient, GRADIENT_UNITS - gradient], axis=1)
        seen = released[step.name].reshape(step.shape[0], -1)[codes]
        ratio = ratio + _canary_log_ratio(fitted.plan_, step, seen, moved)
    return ratio


def _released_leaves(fitted: Any, released: dict[str, Any], table: pd.DataFrame) -> tuple[AnyArray, Int32s, Ints]:
    """Return, for each canary, the released numbers that it contributes to, their leaves and its contributions."""
    codes = fitted._encode_rows(table)
    leaves = route_rows(fitted.forest_, codes)
    regression = fitted.schema_.task == "regression"
    column, contribution = (0, TARGET_LEVELS) if regression else (len(fitted.schema_.classes) - 1, 1)
    if released:
        last_step = fitted.plan_.steps[-1]
        if (last_step.kind, last_step.at) != (_COUNT_STEP.kind, _COUNT_STEP.at):
            raise UseError(
                "this attack requires a release of a single table. Hint: use a schema of one column and a small n_rows."
            )
        return released[last_step.name][codes[:, 0], column][:, None], leaves, np.array(contribution)
    if isinstance(fitted, MatrixForestPredictor):
        return fitted._release_votes(codes, fitted._batch_loss(None))[:, [column]], leaves, np.array(contribution)
    return fitted.leaf_counts_[leaves, column], leaves, np.array(contribution)


def _canary_log_ratio(plan: Plan, step: Step, seen: AnyArray, contribution: Ints) -> Floats:
    """Return the log-likelihood ratio, included against excluded, of numbers that hold only the canary and noise."""
    mechanism: Any = step.mechanism
    match mechanism:
        case DiscreteLaplace(scale=scale):
            each = (np.abs(seen) - np.abs(seen - contribution)) / float(scale)
        case DiscreteGaussian(sigma_squared=variance):
            each = (2.0 * seen * contribution - contribution.astype(float) ** 2) / (2 * float(variance))
        case SparseLaplace() as noise:
            max_seen = int(seen.max())
            each = np.log(noise.probabilities(1, max_seen) / noise.probabilities(0, max_seen))[seen]
        case None:
            raise UseError("there is no noise to attack. Hint: pass a finite epsilon.")
        case ThresholdedGaussian() | RandomStopping() | JointLaplace():
            raise UseError("this attack requires that the last step releases leaf counts. Hint: use another estimator.")
        case selection:  # a label chosen by leaf counts: probability of the canary's label, with and without the canary
            counts = np.zeros(step.shape[1], np.int64)
            without = selection.probabilities(counts)[-1]
            counts[-1] = 1
            present = selection.probabilities(counts)[-1]
            each = np.where(seen == 1, np.log(present / without), np.log((1 - present) / (1 - without)))
    if plan.layout.records == EACH_TO_ONE_TREE:  # the canary counts in one of its leaves, drawn uniformly
        return np.asarray(logsumexp(each, axis=1) - np.log(each.shape[1]))
    return np.asarray(each.sum(axis=1))


def _count_guesses(plan: Plan, ratio: Floats, included: Bools) -> tuple[int, int]:
    """Return the number of right guesses and the number of all guesses."""
    order = np.argsort(ratio)
    n_tail = int(_FRACTION_GUESSED * len(ratio))
    if isinstance(plan.steps[-1].mechanism, DiscreteGaussian):
        guessed = np.concatenate([order[:n_tail], order[len(order) - n_tail :]])
        guesses = np.arange(len(guessed)) >= n_tail
        return int((included[guessed] == guesses).sum()), len(guessed)
    # The ratio is bounded, and guesses near the bound are the most reliable.
    guessed = np.flatnonzero(np.abs(ratio) > 0.9 * np.abs(ratio).max(initial=0.0))
    return int((included[guessed] == (ratio[guessed] > 0)).sum()), len(guessed)


_MIN_RELATIVE_RATIO: Final = 0.5  # the attack abstains below this fraction of the largest absolute log-ratio


@dataclass(frozen=True)
class ReplayResult:
    """Result of a replayed fit: numbers of canaries, guesses and right guesses, and the lower bound on epsilon."""

    canaries: int
    guesses: int
    correct: int
    epsilon_lower_bound: float


@contextmanager
def record_releases() -> Iterator[list[tuple[Step, Any, tuple[Any, ...]]]]:
    """Record every step at the release door: the step, its release and its exact inputs."""
    recorded: list[tuple[Step, Any, tuple[Any, ...]]] = []

    def wrap_method(method: Callable[..., Any]) -> Callable[..., Any]:
        def call_recorded(door: Door, step: Step, *args: Any) -> Any:
            out = method(door, step, *args)
            recorded.append((step, out, args))
            return out

        return call_recorded

    with ExitStack() as patches:
        for name in ("release_counts", "release_sparse", "select"):
            patches.enter_context(mock.patch.object(Door, name, wrap_method(getattr(Door, name))))
        yield recorded


def guess_rows(
    fit: Callable[[Ints], object],
    canaries: int,
    adjacency: Adjacency = "add-remove",
    *,
    seed: int = 0,
    delta: float = 0.0,
    alpha: float = ALPHA,
) -> ReplayResult:
    """Fit once on rows included by coin flips, and guess the coins from all releases of the fit.

    Parameters
    ----------
    fit : callable
        Fits an estimator on the rows with the given indices, which are below ``canaries`` (replace-one: below twice
        that). Trees must be shared: the assignment of rows to trees must not be random.
    canaries : int
        Number of coins.
    adjacency : {"add-remove", "replace-one"}
        Whether a coin decides if a row is included, or which of two rows.
    seed : int
        Seed of the coins.
    delta : float
        The delta of the claim.
    alpha : float
        Probability that the bound is too large, whatever the estimator.
    """
    coins = np.random.default_rng(seed).integers(0, 2, canaries)
    pairs = adjacency == "replace-one"
    included = 2 * np.arange(canaries) + coins if pairs else np.flatnonzero(coins)
    with record_releases() as recorded:
        fit(included)
    ratios = _row_ratios(fit, 2 * canaries if pairs else canaries, [(step, out) for step, out, _ in recorded])
    if pairs:
        ratios = ratios[1::2] - ratios[::2]
    if any(isinstance(step.mechanism, DiscreteGaussian) for step, _, _ in recorded):
        n_tail = canaries // 10  # with a delta, the number of guesses must be fixed before the run
        guessed = np.argsort(np.abs(ratios))[-2 * n_tail :]
    else:
        guessed = np.flatnonzero(np.abs(ratios) > _MIN_RELATIVE_RATIO * np.abs(ratios).max(initial=0.0))
    correct = int(((ratios[guessed] > 0) == coins[guessed]).sum())
    bound = one_run_lower_bound(correct, len(guessed), canaries=canaries, delta=delta, alpha=alpha)
    return ReplayResult(canaries, len(guessed), correct, bound)


def _row_ratios(fit: Callable[[Ints], object], n_rows: int, released: Sequence[tuple[Step, Any]]) -> Floats:
    """Return each row's log-likelihood ratio, included against excluded, of the released numbers that it alone changes.

    The fit is replayed on all rows, and once per binary digit on the rows whose index has this digit. A number that
    only one row changes is nonzero in exactly the replays of that row's digits, which identify the row.
    """
    answers = [out for _, out in released]

    def replay_rows(rows: Ints) -> list[DoorEvent]:
        with force_outcomes(answers=answers) as events:
            fit(rows)
        return events

    all_rows = np.arange(n_rows)
    full = replay_rows(all_rows)
    halves = [replay_rows(all_rows[(all_rows >> digit) & 1 == 1]) for digit in range(max(1, (n_rows - 1).bit_length()))]
    ratios = np.zeros(n_rows)
    for number, (step, out) in enumerate(released):
        if isinstance(step.mechanism, DiscreteLaplace | DiscreteGaussian | JointLaplace | SparseLaplace):
            indices, moved = _exact_vector(full[number], None)
            digits = np.array([_exact_vector(half[number], indices)[1] for half in halves])
            alone = ((digits == 0) | (digits == moved)).all(axis=0)  # two rows at one index differ in a digit
            owner = ((digits == moved) & (moved != 0)).T @ (1 << np.arange(len(halves)))
            has_owner = alone & (moved != 0)
            if isinstance(step.mechanism, JointLaplace):
                rows = np.where(has_owner, owner, -1).reshape(out.shape)
                ratios += _joint_ratios(step.mechanism, 2 * out - moved.reshape(out.shape), rows, n_rows)
                continue
            seen = _released_vector(step, out, indices)
            np.add.at(ratios, owner[has_owner], _row_log_ratio(step, seen[has_owner], moved[has_owner]))
    return ratios


def _joint_ratios(noise: JointLaplace, twice: Ints, owner: Ints, n_rows: int) -> Floats:
    """Return the log-likelihood ratio of each row that is alone in its cell of every table; 0 for other rows.

    The norm of a column depends on all tables, so also on the other rows of the column: half of each row is assumed to
    be included. ``twice`` is twice the release minus these rows. The ratio is exact for a row alone in its column.
    """
    cells, columns = np.nonzero(owner >= 0)
    rows = owner[cells, columns]
    complete = np.flatnonzero(np.bincount(rows, minlength=n_rows) == len(noise.sizes))
    mask = np.isin(rows, complete)
    index = np.searchsorted(complete, rows[mask])
    added = np.zeros((len(twice), len(complete)), np.int64)
    added[cells[mask], index] = 1
    column = np.zeros(len(complete), np.int64)
    column[index] = columns[mask]
    ratios = np.zeros(n_rows)
    around = twice[:, column]
    change = noise.class_norms(around + added) - noise.class_norms(around - added)
    ratios[complete] = change / (2 * float(noise.scale))
    return ratios


def _exact_vector(event: DoorEvent, indices: Ints | None) -> tuple[Ints, Ints]:
    """Return the exact numbers of an event at some indices. Default: all indices, or all non-empty sparse cells."""
    exact = event.exact
    if isinstance(exact, np.ndarray):
        return np.arange(exact.size), exact.ravel()
    indices = np.array(sorted(exact), np.int64) if indices is None else indices
    return indices, np.array([exact.get(index, 0) for index in indices.tolist()], np.int64)


def _released_vector(step: Step, out: Any, indices: Ints) -> Ints:
    if not isinstance(step.mechanism, SparseLaplace):
        return np.asarray(out).ravel()
    count_by_cell = dict(zip(out[0].tolist(), out[1].tolist(), strict=True))
    return np.array([count_by_cell.get(index, 0) for index in indices.tolist()], np.int64)


def _row_log_ratio(step: Step, seen: Ints, moved: Ints) -> Floats:
    """Return the log-likelihood ratio of each number, with against without the row's contribution ``moved``."""
    match step.mechanism:
        case DiscreteLaplace(scale=scale):
            return np.asarray((np.abs(seen) - np.abs(seen - moved)) / float(scale))
        case DiscreteGaussian(sigma_squared=variance):
            return np.asarray(moved * (2.0 * seen - moved) / (2 * float(variance)))
        case SparseLaplace() as noise:
            max_seen = int(seen.max(initial=1))
            return np.asarray(np.log(noise.probabilities(1, max_seen)) - np.log(noise.probabilities(0, max_seen)))[seen]
    raise AssertionError("log-ratios are defined for additive noise only")
