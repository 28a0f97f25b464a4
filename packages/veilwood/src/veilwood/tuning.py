# SPDX-License-Identifier: Apache-2.0
"""Choice of settings from public facts alone: every setting is planned and scored, none is fitted.

The score is in ``forests.expected_skill``; benchmarks/results/expected_skill.md derives it. A search
on private rows is ``veilwood.search``.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from veilwood import estimators as families
from veilwood.charts import html_card
from veilwood.data.columns import did_you_mean
from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema
from veilwood.errors import DomainTooLargeError, ParameterError, PlanError, SchemaError, UseError
from veilwood.estimators.parameters import tuned_parameters
from veilwood.forests import expected_skill as skill
from veilwood.forests.expected_skill import load_weights
from veilwood.privacy.neighbours import Neighbours
from veilwood.progress import track_progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Candidate:
    """Planned setting with its score. Contains public numbers only.

    Attributes
    ----------
    estimator : str
        Name of the class.
    parameters : dict
        The values that were varied.
    n_leaves : int
        Number of leaves of all trees together.
    rows_per_leaf : float
        Expected number of rows in a leaf: n divided by the leaves of a tree.
    noise_std : float
        Standard deviation of the noise on one count in a leaf, in rows.
    skill : float
        Skill expected by theory, between 0 and 1: see ``expected_skill``.
    score : float
        Ranking criterion, in units of skill: theory combined with results on public tables, or theory alone if no
        public table had as large a product of rows and epsilon. Only differences between scores are meaningful.
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
    """Result of ``tune``: settings from best to worst.

    Attributes
    ----------
    settings : tuple of Candidate
        All planned settings, best first.
    skipped : int
        Number of settings left out because they would need too large a table.
    schema_name, n, epsilon, delta, neighbours
        The public facts that determine the scores.
    """

    settings: tuple[Candidate, ...]
    skipped: int
    schema_name: str
    n: int
    epsilon: float
    delta: float
    neighbours: Neighbours
    """Unit and adjacency that the best setting protects."""
    _best: Any = field(repr=False)

    @property
    def best(self) -> Any:
        """The best setting, as a new unfitted estimator on each access."""
        return deepcopy(self._best)

    @property
    def table(self) -> pd.DataFrame:
        """The settings, best first, one per row."""
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
        """Return the result as a dict that can be written as JSON."""
        facts = {"schema": self.schema_name, "n": self.n, "epsilon": self.epsilon, "delta": self.delta}
        facts |= {"privacy_unit": str(self.neighbours.unit), "adjacency": self.neighbours.adjacency}
        return {**facts, "skipped": self.skipped, "settings": [asdict(setting) for setting in self.settings]}

    def plot(self) -> Figure:
        """Draw the expected skill of each setting against its noise relative to the rows per leaf."""
        from veilwood.plots import skill_vs_noise  # matplotlib would double the time of importing veilwood

        return skill_vs_noise(
            [
                (s.estimator, s.parameters.get("max_depth", 0), s.noise_std / s.rows_per_leaf, s.skill)
                for s in self.settings
            ],
            title=f"{self.schema_name}, n={self.n:,}, epsilon={self.epsilon:g}",
        )

    @property
    def summary(self) -> str:
        """Text on the best setting, whom it protects, and how accurate the ranking is."""
        best = self.settings[0]
        chosen = ", ".join(f"{key}={value}" for key, value in best.parameters.items())
        skipped = f"; {self.skipped} skipped because their tables would be too large" if self.skipped else ""
        return (
            f"Best of {len(self.settings)} settings on schema {self.schema_name!r} for n={self.n:,}, "
            f"epsilon={self.epsilon:g}, delta={self.delta:g}{skipped}:\n"
            f"{best.estimator}({chosen}), skill {best.skill:.2f}, score {best.score:.2f}. Protects {self.neighbours}. "
            f"Nothing was spent, and no ledger is charged.\n{self._ranking_caveat()}"
        )

    def __str__(self) -> str:
        shown = self.table.head(10).round({"rows_per_leaf": 1, "noise_std": 1, "skill": 3, "score": 3}).astype(object)
        return f"{self.summary}\n{shown.where(shown.notna(), '').to_string(index=False)}"

    def __repr__(self) -> str:
        return f"Tuning(best of {len(self.settings)} settings on {self.schema_name!r}: {self.settings[0].estimator})"

    def _ranking_caveat(self) -> str:
        """Return a sentence on the accuracy of the ranking."""
        facts = load_weights()
        if self.n * self.epsilon > facts["most_rows_times_epsilon"]:
            return "Ranks are rough: no public table in the benchmark had as large a product of rows and epsilon."
        return (
            "Ranks are rough: on held-out public tables their correlation with the true ranks was "
            f"{facts['rank_correlation']:.2f}, and the error of a score was {facts['error']:.2f}."
        )

    def _repr_html_(self) -> str:
        """Show the ten best settings in a notebook."""
        best = self.table.head(10).round(3).astype(str)
        title = f"Best of {len(self.settings)} settings on {self.schema_name}: n={self.n:,}, epsilon={self.epsilon:g}"
        return html_card(
            title, f"Protects {self.neighbours}. Nothing was spent.", [list(best.columns), *best.to_numpy().tolist()]
        )


def tune(
    schema: Any,
    estimators: Any = None,
    *,
    n_rows: int,
    epsilon: float,
    delta: float = 0.0,
    grid: Mapping[str, Sequence[int]] | None = None,
) -> Tuning:
    """Rank settings from public facts alone. Reads no data and spends no budget.

    Every setting of a grid is planned. Its score weighs the noise relative to the expected rows per leaf against the
    skill that trees of that depth can reach with that many features (``expected_skill``).

    Parameters
    ----------
    schema : Schema, path or dict
        Public schema of the data.
    estimators : estimator, class, or list of them, optional
        Forests to search over, from ``tunable_estimators()``. An instance keeps its other parameters (adjacency,
        voting, ledger, ...). Default: all estimators for the task of the schema, with averaged votes.
    n_rows : int
        Public number of rows. Never pass the length of a private table; a noisy count is fine.
    epsilon, delta : float
        The privacy loss of the planned fit.
    grid : dict of lists, optional
        Values to try instead of the defaults, such as ``{"max_depth": [2, 3]}``.

    Returns
    -------
    Tuning
        ``.table`` lists all settings, best first; ``.best`` is an unfitted estimator; ``.plot()`` draws the scores.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> found = vw.tune(car.schema, vw.RandomTreesClassifier, n_rows=1700, epsilon=1.0, grid={"max_depth": [2, 4]})
    >>> found.best.plan().loss.epsilon
    Fraction(1, 1)
    >>> bool(found.table["score"].is_monotonic_decreasing)
    True
    """
    schema = Schema.resolve(schema)
    if not _is_positive_int(n_rows):
        raise ParameterError(
            "n_rows", n_rows, "must be an integer of at least 1", "pass a public or noisy number of rows"
        )
    candidates = _list_candidates(schema, estimators, grid or {})
    planned: list[tuple[Candidate, Any]] = []
    for prototype, values in track_progress(candidates, "planning settings"):
        forest: Any = deepcopy(prototype).set_params(schema=schema, epsilon=epsilon, delta=delta, **values)
        if forest.random_state is None:
            forest.random_state = 0  # public; fixed, so that the scored plan is the executed plan
        try:
            planned.append((_score_setting(forest, schema, int(n_rows), values), forest))
        except DomainTooLargeError:
            continue
    if not planned:
        raise DomainTooLargeError(
            f"all {len(candidates)} settings need tables that are too large. Hint: lower max_features in the grid."
        )
    promises = {str(forest.plan().neighbours) for _, forest in planned}
    if len(promises) > 1:
        raise PlanError(
            f"the estimators protect different units or neighbours: {' and '.join(sorted(promises))}. "
            "Hint: pass estimators with the same privacy_unit, adjacency and max_weight."
        )
    planned.sort(key=lambda pair: -pair[0].score)
    return Tuning(
        settings=tuple(setting for setting, _ in planned),
        skipped=len(candidates) - len(planned),
        schema_name=schema.name,
        n=int(n_rows),
        epsilon=float(epsilon),
        delta=float(delta),
        neighbours=planned[0][1].plan().neighbours,
        _best=planned[0][1],
    )


def tunable_estimators() -> tuple[type[Any], ...]:
    """Return the estimator classes that can be tuned: their plans bound the number of leaves."""
    kinds = (getattr(families, name) for name in families.__all__ if not name.endswith("Predictor"))
    return tuple(kind for kind in kinds if tuned_parameters(kind))


def default_grid(kind: type[Any], n_features: int) -> dict[str, Sequence[int]]:
    """Return the values tried for a family of forests."""
    if issubclass(kind, families.MatrixForestClassifier):
        return {
            "n_ensembles": (1, 2, 4),
            "max_features": sorted({min(width, n_features) for width in (2, 4, 6)}),
            "n_estimators": (128,),  # the trees of an ensemble share their noise, so more trees only cost time
            "max_depth": (1, 2, 3, 4),
        }
    return {"n_estimators": (1, 2, 4, 8, 16, 32, 64), "max_depth": (1, 2, 3, 4, 5, 6, 8, 10)}


def _list_candidates(
    schema: Schema, estimators: Any, grid: Mapping[str, Sequence[int]]
) -> list[tuple[Any, dict[str, int]]]:
    """Return pairs of an unfitted estimator and the values to set, for every possible setting of the grid."""
    if estimators is None:
        estimators = [averaging_estimator(kind) for kind in tunable_estimators() if kind._task == schema.task]
    elif not isinstance(estimators, Sequence) or isinstance(estimators, str):
        estimators = [estimators]
    if not estimators:
        raise UseError("estimators must not be empty. Hint: pass an estimator, or omit the argument to search all.")
    prototypes = [_resolve_prototype(estimator, schema) for estimator in estimators]
    n_features = len(schema.features)
    defaults = [default_grid(type(prototype), n_features) for prototype in prototypes]
    known = {name for default in defaults for name in default}
    for name, values in grid.items():
        if name not in known:
            raise UseError(
                f"grid has the key {name!r}, which cannot be searched.{did_you_mean(name, known)} Hint: choose from "
                f"{', '.join(sorted(known))}; set other parameters on an estimator."
            )
        if isinstance(values, str) or not isinstance(values, Sequence) or not all(map(_is_positive_int, values)):
            raise UseError(
                f"grid[{name!r}]={values!r} must be a list of integers >= 1. Hint: pass a list such as [2, 4]."
            )
    candidates = []
    for prototype, default in zip(prototypes, defaults, strict=True):
        axes = {name: grid.get(name, values) for name, values in default.items()}
        for point in itertools.product(*axes.values()):
            setting = dict(zip(axes, (int(value) for value in point), strict=True))
            if _is_possible_setting(prototype, setting, n_features):
                candidates.append((prototype, setting))
    if not candidates:
        raise UseError(
            f"the grid {dict(grid)} has no possible setting for {n_features} features. Hint: add values for which "
            "max_depth <= max_features <= features and n_ensembles <= n_estimators."
        )
    return candidates


def _is_positive_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 1


def _resolve_prototype(estimator: Any, schema: Schema) -> Any:
    """Return an unfitted estimator for an estimator or a class."""
    kind = estimator if inspect.isclass(estimator) else type(estimator)
    if kind not in (known := tunable_estimators()):
        name = kind.__name__ if kind is not str else repr(estimator)
        why = ""
        if kind is families.MatrixForestPredictor:
            why = ": its noise depends on the queries of each batch (see plan_answer)"
        names = ", ".join(each.__name__ for each in known)
        raise UseError(f"{name} cannot be tuned without data{why}. Hint: choose one of {names}.")
    if kind._task != schema.task:
        raise SchemaError(
            f"{kind.__name__} is for {kind._task}, but the task of schema {schema.name!r} is {schema.task}."
        )
    forest: Any = kind() if inspect.isclass(estimator) else estimator
    return forest


def _is_possible_setting(prototype: Any, values: Mapping[str, int], n_features: int) -> bool:
    """Return True if a setting can be planned and does not merely measure the same features twice."""
    if not isinstance(prototype, families.MatrixForestClassifier):
        return getattr(prototype, "branching", "binary") == "binary" or values["max_depth"] <= n_features
    width, ensembles = values["max_features"], values["n_ensembles"]
    return (
        width <= n_features
        and (prototype.branching == "binary" or values["max_depth"] <= width)
        and ensembles <= values["n_estimators"]
        and (ensembles == 1 or width < n_features)
    )


def _score_setting(forest: Any, schema: Schema, n_rows: int, values: dict[str, int]) -> Candidate:
    """Plan one setting and score it."""
    plan, method = forest.plan(), forest._make_method()
    loss, neighbours = forest._requested_privacy(schema)
    setting = skill.ForestSize.from_method(
        method,
        Encoding(schema, method.numeric_encoding),
        n_rows,
        plan.n_leaves,
        plan.expected_leaf_mse,
        math.inf if loss.epsilon is None else float(loss.epsilon / neighbours.l1_sensitivity(1)),
    )
    return Candidate(
        type(forest).__name__,
        values,
        plan.n_leaves,
        setting.rows_per_leaf * n_rows / setting.rows,
        math.sqrt(plan.expected_leaf_mse),
        setting.prior,
        skill.score_size(setting),
    )


def averaging_estimator(kind: type[Any]) -> Any:
    """Return an estimator with averaged votes, as the score assumes."""
    voting = {"voting": "weight" if kind is families.MatrixForestClassifier else "threshold"}
    return kind(**(voting if "voting" in inspect.signature(kind).parameters else {}))
