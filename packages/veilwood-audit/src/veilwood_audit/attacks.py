# SPDX-License-Identifier: Apache-2.0
"""Attacks on whole estimators: one fit on canaries, guessed back from what was released, beside a broken twin.

The statistics are in ``audit``; what is printed of them is in ``reports``; other libraries are in ``peers``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final
from unittest import mock

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.base import clone

from veilwood import estimators
from veilwood.data.columns import did_you_mean
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.data.open_rows import open_rows
from veilwood.data.schema import Schema, TaskKind
from veilwood.errors import PrivacyWarning, UseError, UtilityWarning
from veilwood.estimators import MatrixForestPredictor, PrivateForestClassifier, PrivateForestRegressor
from veilwood.estimators.base import BaseForest
from veilwood.estimators.method import ForestDesign
from veilwood.forests.adaptive.row_backend import row_gradients
from veilwood.forests.noisy_leaves import LeafMethod
from veilwood.privacy.door import Door
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.ledger_stores import Ledger, open_ledger
from veilwood.privacy.loss import requested_loss
from veilwood.privacy.neighbours import Adjacency
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, SparseLaplace, ThresholdedGaussian
from veilwood.privacy.plan import EACH_TO_ONE_TREE, Plan
from veilwood.privacy.selection import RandomStopping
from veilwood.privacy.steps import Step
from veilwood.trees.counting import route_rows
from veilwood_audit.noninterference import DoorEvent, force_outcomes
from veilwood_audit.statistics import ALPHA, one_run_lower_bound

__all__ = [
    "N_CANARIES",
    "Attack",
    "CanaryResult",
    "ReplayResult",
    "attack_estimator",
    "audit_one_run",
    "canary_estimator",
    "canary_schema",
    "estimators_of",
    "guess_rows",
    "record_releases",
]


N_CANARIES = 16384
"""Canaries of one audited fit: enough to show 0.8 or more of an epsilon of 1."""

_CROWD_ROWS = 32  # rows beside each canary that make its gradient large, where gradients are released
_ONE_TABLE = 100  # rows times epsilon that tables of PrivateForest are counted with, and nothing else
_ONE_ROUND = 600.0  # rows times epsilon for which a PrivateForest has one round
_COUNT_STEP = "table 1: classes by cell"  # the step of a single table
_ALL_STEPS = "everything"  # under which the result of all steps is heard
_FRACTION_GUESSED = 0.1  # of the canaries, on either side, where guesses are not all worth the same


@dataclass(frozen=True)
class CanaryResult:
    """What one audited fit showed: guesses made, how many were right, and the epsilon they refute."""

    canaries: int
    guesses: int
    correct: int
    epsilon_lower_bound: float


@dataclass(frozen=True)
class Attack:
    """A claim, what was found against it, and what the same attack finds against a twin with half the noise."""

    estimator: str
    setting: str
    epsilon: float
    delta: float
    confidence: float
    sound: CanaryResult
    twin: CanaryResult

    @property
    def refuted(self) -> bool:
        """Whether the claim is shown to be false."""
        return self.sound.epsilon_lower_bound > self.epsilon

    @property
    def has_power(self) -> bool:
        """Whether the attack refutes the twin: one that sees nothing proves nothing."""
        return self.twin.epsilon_lower_bound > self.epsilon

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "refuted": self.refuted, "sees": self.has_power}


# -- who is attacked, and on what ---------------------------------------------------------------------------


def estimators_of(name: str) -> list[type[BaseForest]]:
    """Return the estimators of a family, as typed on the command line, or the one of that class name.

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
            f"there is no estimator {name!r}.{did_you_mean(name, families)} Hint: one of {', '.join(typed)}."
        )
    return families[name]


def canary_schema(task: TaskKind, n_dice: int, sides: int) -> Schema:
    """Return a schema of fair dice: trees that split them have many leaves, one for each canary.

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
    """Return an estimator set up so that canaries can be seen: one deep tree, nearly all of the budget on its leaves.

    Examples
    --------
    >>> import veilwood as vw
    >>> canary_estimator(vw.RandomTreesClassifier, 1.0).plan().n_leaves
    16384
    """
    known = estimator_class._get_param_names()
    # A matrix forest chooses among tables over its columns: with two there are few, and their cells are its leaves.
    n_dice, sides, depth = (2, 64, 2) if "n_ensembles" in known else (20, 2, 14)
    wanted: dict[str, Any] = {"n_estimators": 1, "max_depth": depth, "split_budget": 0.02, "candidates": 1}
    if issubclass(estimator_class, PrivateForestClassifier | PrivateForestRegressor):
        # A guess at the rows that leads to one table, or to one round, over the values of a single die.
        n_dice, sides = 1, N_CANARIES
        enough = _ONE_TABLE if estimator_class is PrivateForestClassifier else _ONE_ROUND
        wanted |= {"n_rows": max(1, round(enough / epsilon))}
    given = {name: value for name, value in wanted.items() if name in known} | {"random_state": 0, "n_jobs": 1}
    unknown = set(params or ()) - set(known)
    if unknown:
        raise UseError(f"{estimator_class.__name__} does not take {sorted(unknown)[0]!r}. Hint: {', '.join(known)}.")
    return estimator_class(
        canary_schema(estimator_class._task, n_dice, sides), epsilon=epsilon, **(given | dict(params or {}))
    )


# -- one run ------------------------------------------------------------------------------------------------


def audit_one_run(
    estimator: BaseForest, *, canaries: int = N_CANARIES, seed: int = 0, alpha: float = ALPHA
) -> CanaryResult:
    """Fit once on canaries, each included by a fair coin, and guess from what was released which were.

    A guess is the likelihood ratio of the leaves that a canary has for itself; where it is far from the best possible
    (for Gaussian noise, which has no best: outside the most extreme tenths) the attack abstains.

    Parameters
    ----------
    estimator : BaseForest
        Unfitted, with an integer ``random_state``; not noiseless.
    canaries : int
        How many to look for; fewer are used if the trees have fewer leaves.
    seed : int
        Of the canaries and their coins.
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
    # The last class, or the upper bound; a crowd of the opposite, where the first candidate was, makes it a surprise.
    low, high = schema.target.bounds if schema.task == "regression" else (schema.classes[0], schema.classes[-1])
    crowd = table.iloc[np.zeros(_CROWD_ROWS * len(table) if _is_boosted(estimator) else 0, int)]
    table = table.iloc[1:] if len(crowd) else table
    included = rng.random(len(table)) < 0.5
    fitted = clone(estimator)
    with warnings.catch_warnings():  # one row in a leaf is meant to drown; dice are no one's data
        warnings.simplefilter("ignore", UtilityWarning)
        warnings.simplefilter("ignore", PrivacyWarning)
        target = np.array([low] * len(crowd) + [high] * int(included.sum()))
        heard = _fit_recorded(fitted, pd.concat([crowd, table[included]]), target)
        seen, leaves, height = _released_leaves(fitted, heard, table)
    alone = _has_own_leaves(leaves)
    ratio = _canary_log_ratio(fitted.plan_, fitted.plan_.steps[-1], seen[alone], height)
    if _is_boosted(fitted):  # before its gradient, a round has counted the canary
        counted = fitted.plan_.steps[-2]
        rows = heard[counted.name][fitted._encode_rows(table)[alone, :1]]
        ratio = ratio + _canary_log_ratio(fitted.plan_, counted, rows, np.array(1))
    correct, guesses = _count_guesses(fitted.plan_, ratio, included[alone])
    delta = float(fitted.plan_.loss.delta)
    bound = one_run_lower_bound(correct, guesses, canaries=len(table), delta=delta, alpha=alpha)
    return CanaryResult(len(table), guesses, correct, bound)


def attack_estimator(
    estimator: BaseForest, *, canaries: int = N_CANARIES, seed: int = 0, alpha: float = ALPHA
) -> Attack:
    """Attack an estimator, and its broken twin: the same with the noise of twice the epsilon, half of what it needs.

    Examples
    --------
    >>> import veilwood as vw
    >>> found = attack_estimator(canary_estimator(vw.RandomTreesClassifier, 1.0))
    >>> found.refuted, found.sees
    (False, True)
    """
    loss = requested_loss(estimator.epsilon, estimator.delta)
    if loss.epsilon is None:
        raise UseError("epsilon=inf promises nothing, so there is nothing to attack. Hint: --epsilon 1.")
    broken = clone(estimator).set_params(epsilon=2 * loss.epsilon)
    params = estimator.get_params(deep=False)
    if params.get("n_rows"):  # what it measures follows from rows times epsilon: the twin must measure the same
        broken.set_params(n_rows=max(1, params["n_rows"] // 2))
    shown = {name: params[name] for name in ("n_estimators", "max_depth", "trees", "mode") if name in params}
    return Attack(
        type(estimator).__name__,
        ", ".join(f"{name}={value}" for name, value in shown.items()),
        float(loss.epsilon),
        float(loss.delta),
        1 - alpha,
        audit_one_run(estimator, canaries=canaries, seed=seed, alpha=alpha),
        audit_one_run(broken, canaries=canaries, seed=seed, alpha=alpha),
    )


def _draw_canaries(estimator: BaseForest, schema: Schema, canaries: int, rng: np.random.Generator) -> pd.DataFrame:
    """Draw canaries: rows that share no leaf where the trees are known beforehand, else no two alike."""
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


def _select_disjoint_rows(leaves: NDArray[np.int32], n_leaves: int) -> list[int]:
    """Return rows such that no two of them share a leaf in any tree, by taking each that still can be taken."""
    taken = bytearray(n_leaves)
    chosen = []
    for row, visited in enumerate(leaves.tolist()):
        if not any(taken[leaf] for leaf in visited):
            chosen.append(row)
            for leaf in visited:
                taken[leaf] = 1
    return chosen


def _has_own_leaves(leaves: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which canaries share none of their leaves with another."""
    return np.asarray((np.bincount(leaves.ravel())[leaves] == 1).all(axis=1))


class _RecordingDoor(Door):
    """A door at which someone listens: what is released is public, also what no model keeps."""

    def __init__(self, plan: Plan, ledger: Ledger, released: dict[str, Any]) -> None:
        super().__init__(plan, ledger)
        self._released = released

    def release_counts(self, step: Step, exact: NDArray[np.int64]) -> NDArray[np.int64]:
        noisy = self._released[step.name] = super().release_counts(step, exact)
        return noisy


def _fit_recorded(estimator: BaseForest, X: pd.DataFrame, y: NDArray[Any]) -> dict[str, Any]:
    """Fit an estimator, and return what a PrivateForest released, by step; of others the model holds all of it."""
    heard: dict[str, Any] = {}
    if not isinstance(estimator, PrivateForestClassifier | PrivateForestRegressor):
        estimator.fit(X, y)
        return heard
    method, design = estimator._make_method(), estimator._design_for(estimator._resolve_schema()[0])
    source = open_rows(X, y, design.encoding, unit=design.plan.neighbours.unit)
    door = _RecordingDoor(design.plan, open_ledger(estimator.ledger), heard)

    def measure(door: Door) -> Any:
        heard[_ALL_STEPS] = method.measure_rows(design, source, door, estimator.n_jobs)
        return heard[_ALL_STEPS]

    estimator._run_release(door, design, method, measure)
    return heard


def _is_boosted(estimator: BaseForest) -> bool:
    return isinstance(estimator, PrivateForestRegressor)


def _released_leaves(
    fitted: Any, released: dict[str, Any], table: pd.DataFrame
) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.int64]]:
    """Return the released numbers that each canary adds to, the leaves they are of, and what it adds to each."""
    codes = fitted._encode_rows(table)
    leaves = route_rows(fitted.forest_, codes)
    regression = fitted.schema_.task == "regression"
    column, height = (0, TARGET_LEVELS) if regression else (len(fitted.schema_.classes) - 1, 1)
    if _is_boosted(fitted):
        learned, last = released[_ALL_STEPS], fitted.plan_.steps[-1].name
        moved = row_gradients(learned.start[None], np.array([TARGET_LEVELS], np.int32), 0, learned.residual_limit)
        return released[last][codes[:, 0]], leaves[:, :1], moved.astype(np.int64)
    if released:
        if fitted.plan_.steps[-1].name != _COUNT_STEP:
            raise UseError("canaries are looked for in a single table. Hint: a schema of one column, a small n_rows.")
        return released[_COUNT_STEP][codes[:, 0], column][:, None], leaves, np.array(height)
    if isinstance(fitted, MatrixForestPredictor):
        return fitted._release_votes(codes, fitted._batch_loss(None))[:, [column]], leaves, np.array(height)
    return fitted.leaf_counts_[leaves, column], leaves, np.array(height)


def _canary_log_ratio(
    plan: Plan, step: Step, seen: NDArray[Any], contribution: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the log-likelihood ratio, in against out, of numbers that are 0 but for noise and the canary."""
    match step.mechanism:
        case DiscreteLaplace(scale=scale):
            each = (np.abs(seen) - np.abs(seen - contribution)) / float(scale)
        case DiscreteGaussian(sigma_squared=variance):
            each = (2.0 * seen * contribution - contribution.astype(float) ** 2) / (2 * float(variance))
        case SparseLaplace() as noise:
            most = int(seen.max())
            each = np.log(noise.probabilities(1, most) / noise.probabilities(0, most))[seen]
        case None:
            raise UseError("there is no noise to attack. Hint: give a finite epsilon.")
        case ThresholdedGaussian() | RandomStopping() | JointLaplace():
            raise UseError("no count of a leaf is released last, so canaries have nothing to look at.")
        case selection:  # of a label, by the counts of a leaf: how likely is the canary's with and without it?
            counts = np.zeros(step.shape[1], np.int64)
            without = selection.probabilities(counts)[-1]
            counts[-1] = 1
            present = selection.probabilities(counts)[-1]
            each = np.where(seen == 1, np.log(present / without), np.log((1 - present) / (1 - without)))
    if plan.layout.records == EACH_TO_ONE_TREE:  # it is in one of its leaves, nobody knows which
        return np.asarray(logsumexp(each, axis=1) - np.log(each.shape[1]))
    return np.asarray(each.sum(axis=1))


def _count_guesses(plan: Plan, ratio: NDArray[np.float64], included: NDArray[np.bool_]) -> tuple[int, int]:
    """Return how many guesses were right, and how many were made."""
    order = np.argsort(ratio)
    tenth = int(_FRACTION_GUESSED * len(ratio))
    if isinstance(plan.steps[-1].mechanism, DiscreteGaussian):
        sure = np.concatenate([order[:tenth], order[len(order) - tenth :]])
        said = np.arange(len(sure)) >= tenth
        return int((included[sure] == said).sum()), len(sure)
    # No pair of records can show more than the extremes; near them, guesses are worth most.
    sure = np.flatnonzero(np.abs(ratio) > 0.9 * np.abs(ratio).max(initial=0.0))
    return int((included[sure] == (ratio[sure] > 0)).sum()), len(sure)


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_MIN_RELATIVE_RATIO: Final = 0.5  # of the largest likelihood ratio: below it the attack abstains


@dataclass(frozen=True)
class ReplayResult:
    """Which of two tables each canary came from: guesses made, how many were right, and the epsilon they refute."""

    canaries: int
    guesses: int
    correct: int
    epsilon_lower_bound: float


@contextmanager
def record_releases() -> Iterator[list[tuple[Step, Any, tuple[Any, ...]]]]:
    """Write down every step at the door, what it released, and what went in."""
    heard: list[tuple[Step, Any, tuple[Any, ...]]] = []

    def wrap_method(method: Callable[..., Any]) -> Callable[..., Any]:
        def call_recorded(door: Door, step: Step, *args: Any) -> Any:
            out = method(door, step, *args)
            heard.append((step, out, args))
            return out

        return call_recorded

    with ExitStack() as patches:
        for name in ("release_counts", "release_sparse", "select"):
            patches.enter_context(mock.patch.object(Door, name, wrap_method(getattr(Door, name))))
        yield heard


def guess_rows(
    fit: Callable[[Ints], object],
    canaries: int,
    adjacency: Adjacency = "add-remove",
    *,
    seed: int = 0,
    delta: float = 0.0,
    alpha: float = ALPHA,
) -> ReplayResult:
    """Fit once on rows chosen by fair coins, and guess the coins from all that was released.

    Parameters
    ----------
    fit : callable
        Fits an estimator on the rows of these numbers, which are below ``canaries`` (twice as many for replace-one).
        No row may be in a tree that is not known: trees must be shared.
    canaries : int
        How many coins.
    adjacency : {"add-remove", "replace-one"}
        A coin decides whether a row is there, or which of two rows is.
    seed : int
        Of the coins.
    delta : float
        The delta of the claim.
    alpha : float
        Probability that the bound is too large, whatever the estimator.
    """
    coins = np.random.default_rng(seed).integers(0, 2, canaries)
    pairs = adjacency == "replace-one"
    included = 2 * np.arange(canaries) + coins if pairs else np.flatnonzero(coins)
    with record_releases() as heard:
        fit(included)
    ratios = _row_ratios(fit, 2 * canaries if pairs else canaries, [(step, out) for step, out, _ in heard])
    if pairs:
        ratios = ratios[1::2] - ratios[::2]
    if any(isinstance(step.mechanism, DiscreteGaussian) for step, _, _ in heard):
        tenth = canaries // 10  # their number must be fixed where there is a delta, and no ratio is the largest
        sure = np.argsort(np.abs(ratios))[-2 * tenth :]
    else:
        sure = np.flatnonzero(np.abs(ratios) > _MIN_RELATIVE_RATIO * np.abs(ratios).max(initial=0.0))
    right = int(((ratios[sure] > 0) == coins[sure]).sum())
    bound = one_run_lower_bound(right, len(sure), canaries=canaries, delta=delta, alpha=alpha)
    return ReplayResult(canaries, len(sure), right, bound)


def _row_ratios(fit: Callable[[Ints], object], n_rows: int, released: Sequence[tuple[Step, Any]]) -> Floats:
    """Return for each row the log-likelihood ratio, in against out, of the numbers that it alone has moved."""
    answers = [out for _, out in released]

    def replay_rows(rows: Ints) -> list[DoorEvent]:
        with force_outcomes(answers=answers) as passages:
            fit(rows)
        return passages

    everyone = np.arange(n_rows)
    whole = replay_rows(everyone)
    halves = [replay_rows(everyone[(everyone >> digit) & 1 == 1]) for digit in range(max(1, (n_rows - 1).bit_length()))]
    ratios = np.zeros(n_rows)
    for number, (step, out) in enumerate(released):
        if isinstance(step.mechanism, DiscreteLaplace | DiscreteGaussian | JointLaplace | SparseLaplace):
            places, moved = _exact_vector(whole[number], None)
            digits = np.array([_exact_vector(half[number], places)[1] for half in halves])
            alone = ((digits == 0) | (digits == moved)).all(axis=0)  # two rows in one place differ in a digit
            owner = ((digits == moved) & (moved != 0)).T @ (1 << np.arange(len(halves)))
            mine = alone & (moved != 0)
            if isinstance(step.mechanism, JointLaplace):
                rows = np.where(mine, owner, -1).reshape(out.shape)
                ratios += _joint_ratios(step.mechanism, 2 * out - moved.reshape(out.shape), rows, n_rows)
                continue
            seen = _released_vector(step, out, places)
            np.add.at(ratios, owner[mine], _row_log_ratio(step, seen[mine], moved[mine]))
    return ratios


def _joint_ratios(noise: JointLaplace, twice: Ints, owner: Ints, n_rows: int) -> Floats:
    """Return the log-likelihood ratio of each row that has a cell of its own in every table; 0 for others.

    In a column all tables count together, so other rows of it matter: half of each is taken to be there. ``twice`` is
    twice what was released without them; a row that is alone in its column has its exact ratio.
    """
    cells, columns = np.nonzero(owner >= 0)
    rows = owner[cells, columns]
    whole = np.flatnonzero(np.bincount(rows, minlength=n_rows) == len(noise.sizes))
    kept = np.isin(rows, whole)
    place = np.searchsorted(whole, rows[kept])
    added = np.zeros((len(twice), len(whole)), np.int64)
    added[cells[kept], place] = 1
    column = np.zeros(len(whole), np.int64)
    column[place] = columns[kept]
    ratios = np.zeros(n_rows)
    around = twice[:, column]
    ratios[whole] = (noise.class_norms(around + added) - noise.class_norms(around - added)) / (2 * float(noise.scale))
    return ratios


def _exact_vector(event: DoorEvent, places: Ints | None) -> tuple[Ints, Ints]:
    """Return the exact numbers of a passage at some places; at all of them, or all that are not empty, by default."""
    exact = event.exact
    if isinstance(exact, np.ndarray):
        return np.arange(exact.size), exact.ravel()
    places = np.array(sorted(exact), np.int64) if places is None else places
    return places, np.array([exact.get(place, 0) for place in places.tolist()], np.int64)


def _released_vector(step: Step, out: Any, places: Ints) -> Ints:
    if not isinstance(step.mechanism, SparseLaplace):
        return np.asarray(out).ravel()
    found = dict(zip(out[0].tolist(), out[1].tolist(), strict=True))
    return np.array([found.get(place, 0) for place in places.tolist()], np.int64)


def _row_log_ratio(step: Step, seen: Ints, moved: Ints) -> Floats:
    """Return how much likelier each number is if a row moved it than if it were 0 without noise."""
    match step.mechanism:
        case DiscreteLaplace(scale=scale):
            return np.asarray((np.abs(seen) - np.abs(seen - moved)) / float(scale))
        case DiscreteGaussian(sigma_squared=variance):
            return np.asarray(moved * (2.0 * seen - moved) / (2 * float(variance)))
        case SparseLaplace() as noise:
            most = int(seen.max(initial=1))
            return np.asarray(np.log(noise.probabilities(1, most)) - np.log(noise.probabilities(0, most)))[seen]
    raise AssertionError("only noise that is added has a ratio here")
