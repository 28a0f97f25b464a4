# SPDX-License-Identifier: Apache-2.0
"""The search for good settings from public facts alone: every setting is planned and scored, none is fitted.

What a plan costs is in ``plan``, how noise is optimised in ``strategy_search``; docs/tuning.md derives the score.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import comb
from sklearn.base import clone

from veilwood.data.columns import closest
from veilwood.data.schema import Schema
from veilwood.errors import DomainTooLargeError, ParameterError, SchemaError, UseError
from veilwood.estimators import (
    GreedyForestClassifier,
    GreedyForestRegressor,
    MatrixForestClassifier,
    MedianForestClassifier,
    MedianForestRegressor,
    RandomTreesClassifier,
    RandomTreesRegressor,
)
from veilwood.pictures import card
from veilwood.progress import track

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SEARCHED", "Candidate", "Tuning", "expected_skill", "tune"]

DECAY = 0.5
"""How much less of the classes' variance interactions explain with each further feature in them: the prior."""

SEARCHED = ("n_ensembles", "max_features", "n_estimators", "max_depth")
"""The parameters searched over, where a family has them."""

FAMILIES: tuple[type[Any], ...] = (
    MatrixForestClassifier, RandomTreesClassifier, RandomTreesRegressor, MedianForestClassifier, MedianForestRegressor,
    GreedyForestClassifier, GreedyForestRegressor,
)  # fmt: skip
"""What can be tuned: forests whose plan knows how many leaves they have, at most."""

BASICS = ("prior", "noise", "rows of a leaf", "depth", "trees")
"""The public numbers that a score is made of: see ``basics``."""

_HINGES = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0)  # where more noise may begin to count for more, in powers of ten


@dataclass(frozen=True)
class Candidate:
    """One setting that was planned: public numbers only.

    Attributes
    ----------
    estimator : str
        Name of the class.
    parameters : dict
        The values searched over.
    n_leaves : int
        Leaves of all trees together.
    rows_per_leaf : float
        Expected rows in a leaf: n over the leaves of a tree.
    noise_std : float
        Standard deviation of the noise on one count of a leaf, in rows.
    skill : float
        What theory expects, between 0 and 1: see ``expected_skill``.
    score : float
        What settings are ranked by: theory and what public tables have shown (``facts``), in units of skill, where
        only differences mean something; theory alone where no public table had so many rows times epsilon.
    """

    estimator: str
    parameters: dict[str, int]
    n_leaves: int
    rows_per_leaf: float
    noise_std: float
    skill: float
    score: float = math.nan


@dataclass(frozen=True)
class Tuning:
    """What ``tune`` found: settings from best to worst.

    Attributes
    ----------
    settings : tuple of Candidate
        All settings planned, the best first.
    skipped : int
        Settings left out because they would need too large a table.
    schema_name, n, epsilon, delta
        The public facts they were judged by.
    """

    settings: tuple[Candidate, ...]
    skipped: int
    schema_name: str
    n: int
    epsilon: float
    delta: float
    _best: Any = field(repr=False)

    @property
    def best(self) -> Any:
        """The best setting as an unfitted estimator, a new one each time."""
        return clone(self._best)

    @property
    def table(self) -> pd.DataFrame:
        """The settings, best first, one a row."""
        return pd.DataFrame(
            [
                {
                    "estimator": s.estimator,
                    **s.parameters,
                    "leaves": s.n_leaves,
                    "rows_per_leaf": s.rows_per_leaf,
                    "noise_std": s.noise_std,
                    "skill": s.skill,
                    "score": s.score,
                }
                for s in self.settings
            ]
        ).astype({name: "Int64" for s in self.settings for name in s.parameters})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        facts = {"schema": self.schema_name, "n": self.n, "epsilon": self.epsilon, "delta": self.delta}
        return {**facts, "skipped": self.skipped, "settings": [asdict(setting) for setting in self.settings]}

    def plot(self) -> Figure:
        """Draw the score of each setting against its noise relative to the size of a leaf."""
        from veilwood.plots import skill_vs_noise  # matplotlib would double the time of importing veilwood

        return skill_vs_noise(
            [
                (s.estimator, s.parameters.get("max_depth", 0), s.noise_std / s.rows_per_leaf, s.skill)
                for s in self.settings
            ],
            title=f"{self.schema_name}, n={self.n:,}, epsilon={self.epsilon:g}",
        )

    def __str__(self) -> str:
        best = self.settings[0]
        chosen = ", ".join(f"{key}={value}" for key, value in best.parameters.items())
        skipped = f"; {self.skipped} skipped, their tables would be too large" if self.skipped else ""
        shown = self.table.head(10).round({"rows_per_leaf": 1, "noise_std": 1, "skill": 3, "score": 3}).astype(object)
        return (
            f"Best of {len(self.settings)} settings on schema {self.schema_name!r} for n={self.n:,}, "
            f"epsilon={self.epsilon:g}, delta={self.delta:g}{skipped}:\n"
            f"{best.estimator}({chosen}), score {best.score:.3f}. Nothing was spent.\n"
            f"{self._trust()}\n"
            f"{shown.where(shown.notna(), '').to_string(index=False)}"
        )

    __repr__ = __str__

    def _trust(self) -> str:
        """Say how far to trust the ranking."""
        told = learned()
        if self.n * self.epsilon > told["most_rows_times_epsilon"]:
            return "Ranked by theory alone: no public table that was tried had so many rows times epsilon."
        return (
            "Ranks are rough: on public tables that were left out their correlation was "
            f"{told['rank_correlation']:.2f}, and the error of a score {told['error']:.2f}."
        )

    def _repr_html_(self) -> str:
        """Show the ten best settings in a notebook."""
        best = self.table.head(10).round(3).astype(str)
        title = f"Best of {len(self.settings)} settings on {self.schema_name}: n={self.n:,}, epsilon={self.epsilon:g}"
        return card(title, "Nothing was spent.", [list(best.columns), *best.to_numpy().tolist()])


def expected_skill(
    *,
    n_features: int,
    max_features: int,
    n_ensembles: int,
    n_estimators: int,
    max_depth: int,
    branches: float,
    rows_per_leaf: float,
    noise_to_signal: float,
    split_keeps: float | None = None,
    shared_noise: bool = False,
    shared_rows: bool = True,
) -> float:
    """Squared correlation to expect between what a forest says and the truth, before any data is seen.

    The prior: class shares are a sum of uncorrelated parts, one for each set of features; sets of j features
    explain a part of the variance that halves with each further j. A tree keeps the parts of the features on its
    path; averaging over trees keeps a part as often as trees do, and averages noise the less the more trees share.

    Parameters
    ----------
    n_features, max_features, n_ensembles, n_estimators, max_depth : int
        Of the schema, and of the forest (all its ensembles together).
    branches : float
        Leaves of a tree to the power 1 / max_depth.
    rows_per_leaf : float
        Rows expected in a leaf.
    noise_to_signal : float
        Variance of a leaf's noisy class share, due to privacy, over the variance of class shares.
    split_keeps : float, optional
        For binary trees, the part of a feature's variance that one split keeps; None for multiway trees, where a
        feature on the path is known entirely.
    shared_noise : bool
        Whether the trees of an ensemble are read off one noisy table, or each has noise of its own.
    shared_rows : bool
        Whether every tree sees every row, or each row goes to one tree.

    Examples
    --------
    >>> forest = dict(n_features=6, max_features=6, n_ensembles=1, n_estimators=100, branches=3.5)
    >>> quiet = dict(rows_per_leaf=100.0, noise_to_signal=0.01)
    >>> loud = dict(rows_per_leaf=10.0, noise_to_signal=100.0)
    >>> expected_skill(max_depth=1, **forest, **quiet) > expected_skill(max_depth=1, **forest, **loud)
    True
    """
    order = np.arange(1, min(max_depth, max_features) + 1)
    prior = DECAY**order * (1 - DECAY) / (DECAY * (1 - DECAY**n_features))
    inside = comb(max_features, order) / comb(n_features, order)  # chance that a subset of features holds the set
    if split_keeps is None:
        kept = np.asarray(comb(max_depth, order) / comb(max_features, order), np.float64)  # a path holds it
    else:
        kept = np.asarray((1 - (1 - split_keeps / max_features) ** max_depth) ** order, np.float64)
    # Where two trees meet: always in themselves, within an ensemble if both keep a part, across ensembles if both
    # subsets hold it as well.
    within = (kept + (1 - kept) * n_ensembles / n_estimators) / n_ensembles
    across = (1 - 1 / n_ensembles) * inside * kept
    leaf_part = comb(max_depth, order) * (branches - 1) ** order / branches**max_depth  # of white noise, by order
    own = np.full(len(order), 1 / n_estimators)
    noise = noise_to_signal * leaf_part * (within if shared_noise else own)
    sampling = leaf_part / rows_per_leaf * (within + across if shared_rows else own)
    agreement = float(np.sum(prior * inside * kept)) ** 2
    return agreement / float(np.sum(prior * inside * kept * (within + across) + noise + sampling))


def tune(
    schema: Any,
    estimators: Any = None,
    *,
    n: int,
    epsilon: float,
    delta: float = 0.0,
    grid: Mapping[str, Sequence[int]] | None = None,
) -> Tuning:
    """Search for good settings from public facts alone: no data is read, nothing is spent.

    Every setting of a grid is planned, and scored by its noise per leaf relative to the rows expected in a leaf,
    weighed against what trees of that depth over those features can learn (``expected_skill``).

    Parameters
    ----------
    schema : Schema, path or dict
        What is public about the data.
    estimators : estimator, class, or list of them, optional
        Forests to search over, from ``MatrixForestClassifier``, ``RandomTreesClassifier`` and
        ``RandomTreesRegressor``; an instance brings its other parameters (adjacency, voting, ledger, ...) along. By
        default all that do the schema's task, voting by averages, which the score describes.
    n : int
        Number of rows, which must be public: never pass the length of a private table. A noisy count will do.
    epsilon, delta : float
        The privacy loss of the fit to come.
    grid : dict of lists, optional
        Values to try, in place of the default ones: ``{"max_depth": [2, 3]}``.

    Returns
    -------
    Tuning
        All settings, best first, as ``.table``; ``.best``, an unfitted estimator; ``.plot()``.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> found = vw.tune(car.schema, vw.RandomTreesClassifier, n=1700, epsilon=1.0, grid={"max_depth": [2, 4]})
    >>> found.best.plan().loss.epsilon
    Fraction(1, 1)
    >>> bool(found.table["score"].is_monotonic_decreasing)
    True
    """
    schema = Schema.resolve(schema)
    if not _is_count(n):
        raise ParameterError("n", n, "must be a whole number of at least 1", "a public or noisy number of rows")
    candidates = _candidates(schema, estimators, grid or {})
    planned: list[tuple[Candidate, Any]] = []
    for prototype, values in track(candidates, "planning settings"):
        forest: Any = clone(prototype).set_params(schema=schema, epsilon=epsilon, delta=delta, **values)
        if forest.random_state is None:
            forest.random_state = 0  # public; fixed, so that the plan that was scored is the plan carried out
        try:
            planned.append((_judge(forest, schema, int(n), values), forest))
        except DomainTooLargeError:
            continue
    if not planned:
        raise DomainTooLargeError(
            f"each of the {len(candidates)} settings needs too large a table. Hint: lower max_features in the grid."
        )
    planned.sort(key=lambda pair: -pair[0].score)
    return Tuning(
        settings=tuple(setting for setting, _ in planned),
        skipped=len(candidates) - len(planned),
        schema_name=schema.name,
        n=int(n),
        epsilon=float(epsilon),
        delta=float(delta),
        _best=planned[0][1],
    )


def default_grid(kind: type[Any], n_features: int) -> dict[str, Sequence[int]]:
    """Return the values tried for a family of forests."""
    if issubclass(kind, MatrixForestClassifier):
        return {
            "n_ensembles": (1, 2, 4),
            "max_features": sorted({min(width, n_features) for width in (2, 4, 6)}),
            "n_estimators": (128,),  # the trees of an ensemble share their noise: more of them cost time alone
            "max_depth": (1, 2, 3, 4),
        }
    return {"n_estimators": (1, 2, 4, 8, 16, 32, 64), "max_depth": (1, 2, 3, 4, 5, 6, 8, 10)}


def _candidates(schema: Schema, estimators: Any, grid: Mapping[str, Sequence[int]]) -> list[tuple[Any, dict[str, int]]]:
    """List what to plan: a prototype and the values to set, for every possible setting of the grid."""
    if estimators is None:
        estimators = [averaging(kind) for kind in FAMILIES if kind.task == schema.task]
    elif not isinstance(estimators, Sequence) or isinstance(estimators, str):
        estimators = [estimators]
    if not estimators:
        raise UseError("no estimator to tune. Hint: name one, or leave estimators out to search all.")
    prototypes = [_prototype(estimator, schema) for estimator in estimators]
    n_features = len(schema.features)
    defaults = [default_grid(type(prototype), n_features) for prototype in prototypes]
    known = {name for default in defaults for name in default}
    for name, values in grid.items():
        if name not in known:
            raise UseError(
                f"grid has {name!r}, which is not searched over.{closest(name, known)} Hint: one of "
                f"{', '.join(sorted(known))}; set other parameters on an estimator."
            )
        if isinstance(values, str) or not isinstance(values, Sequence) or not all(map(_is_count, values)):
            raise UseError(f"grid[{name!r}]={values!r} must be a list of whole numbers of at least 1.")
    found = []
    for prototype, default in zip(prototypes, defaults, strict=True):
        axes = {name: grid.get(name, values) for name, values in default.items()}
        for point in itertools.product(*axes.values()):
            setting = dict(zip(axes, (int(value) for value in point), strict=True))
            if _possible(prototype, setting, n_features):
                found.append((prototype, setting))
    if not found:
        raise UseError(
            f"the grid {dict(grid)} has no possible setting for {n_features} features. Hint: each list needs a value; "
            "max_depth <= max_features <= features, and n_ensembles <= n_estimators."
        )
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 1


def _prototype(estimator: Any, schema: Schema) -> Any:
    """Return an unfitted estimator for an estimator or a class."""
    kind = estimator if inspect.isclass(estimator) else type(estimator)
    if kind not in FAMILIES:
        name = kind.__name__ if kind is not str else repr(estimator)
        raise UseError(
            f"{name} cannot be tuned without data. Hint: one of {', '.join(known.__name__ for known in FAMILIES)}."
        )
    if kind.task != schema.task:
        raise SchemaError(f"{kind.__name__} does {kind.task}, and schema {schema.name!r} is for {schema.task}.")
    forest: Any = kind() if inspect.isclass(estimator) else estimator
    return forest


def _possible(prototype: Any, values: Mapping[str, int], n_features: int) -> bool:
    """Whether a setting can be planned and is worth it: the same features measured twice only halve the budget."""
    if not isinstance(prototype, MatrixForestClassifier):
        return getattr(prototype, "branching", "binary") == "binary" or values["max_depth"] <= n_features
    width, ensembles = values["max_features"], values["n_ensembles"]
    return (
        width <= n_features
        and (prototype.branching == "binary" or values["max_depth"] <= width)
        and ensembles <= values["n_estimators"]
        and (ensembles == 1 or width < n_features)
    )


def _judge(forest: Any, schema: Schema, n: int, values: dict[str, int]) -> Candidate:
    """Plan one setting and score it."""
    plan = forest.plan()
    n_features, trees, depth = len(schema.features), values["n_estimators"], max(1, plan.layout.depth)
    leaves_per_tree = plan.n_leaves / trees
    rows_per_leaf = n / (leaves_per_tree if forest.trees == "shared" else plan.n_leaves)
    # Noise on class shares over the variance of k even classes, or of a target even between its bounds.
    scale = len(schema.classes) if schema.task == "classification" else 3
    multiway = getattr(forest, "branching", "binary") == "multiway"
    skill = expected_skill(
        n_features=n_features,
        max_features=values.get("max_features", n_features),
        n_ensembles=values.get("n_ensembles", 1),
        n_estimators=trees,
        max_depth=depth,
        branches=leaves_per_tree ** (1 / depth),
        rows_per_leaf=rows_per_leaf,
        noise_to_signal=scale * plan.expected_leaf_mse / rows_per_leaf**2,
        split_keeps=None if multiway else float(np.mean([1.0 if len(c.values) == 2 else 0.5 for c in schema.features])),
        shared_noise=getattr(forest, "mechanism", "laplace") == "optimized",
        shared_rows=forest.trees == "shared",
    )
    noise = math.sqrt(plan.expected_leaf_mse)
    found = Candidate(type(forest).__name__, values, plan.n_leaves, rows_per_leaf, noise, skill)
    known = n * forest.epsilon <= learned()["most_rows_times_epsilon"]
    return replace(found, score=scored(found.estimator, basics(found)) if known else skill)


def basics(setting: Candidate) -> tuple[float, ...]:
    """Return the public numbers that the score of a setting is made of, in the order of ``BASICS``."""
    return (
        setting.skill,
        float(np.clip(np.log10(max(setting.noise_std, 1e-9) / setting.rows_per_leaf), -3, 3)),
        float(np.clip(np.log2(setting.rows_per_leaf), 0, 12)),
        float(setting.parameters["max_depth"]),
        float(np.log2(setting.parameters["n_estimators"])),
    )


def facts(estimator: str, numbers: Sequence[float]) -> dict[str, float]:
    """Return what is weighed, by name: the basics, bends in the noise, and how families differ."""
    _, noise, _, depth, trees = numbers
    family = estimator.removesuffix("Classifier").removesuffix("Regressor")
    told = dict(zip(BASICS, numbers, strict=True)) | {"depth squared": depth**2}
    told |= {f"noise above {hinge:g}": max(noise - hinge, 0.0) for hinge in _HINGES}
    for name in ("RandomTrees", "MatrixForest", "MedianForest", "GreedyForest"):
        own = {"": 1.0, ", noise": noise, ", noise above rows": max(noise, 0.0), ", depth": depth, ", trees": trees}
        told |= {f"{name}{what}": value * (family == name) for what, value in own.items()}
    return told


def scored(estimator: str, numbers: Sequence[float]) -> float:
    """Return the score of a setting: facts times the weights that public tables have taught."""
    weights = learned()["weights"]
    return float(sum(weights.get(name, 0.0) * value for name, value in facts(estimator, numbers).items()))


@cache
def learned() -> dict[str, Any]:
    """Return the weights of the facts, and how well they rank the settings of a public table that was left out."""
    found: dict[str, Any] = json.loads(files("veilwood").joinpath("tune.json").read_text(encoding="utf-8"))
    return found


def averaging(kind: type[Any]) -> Any:
    """Return a forest that votes by averages, which the score describes."""
    voting = {"voting": "weight" if kind is MatrixForestClassifier else "threshold"}
    return kind(**(voting if "voting" in inspect.signature(kind).parameters else {}))
