# SPDX-License-Identifier: Apache-2.0
"""Expected skill of a forest, from public facts only: theory and results on public benchmark tables.

``veilwood.tune`` ranks settings by it and ``auto_size`` chooses sizes by it;
benchmarks/results/expected_skill.md derives it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
from scipy.special import comb

from veilwood.data.schema import TaskKind

if TYPE_CHECKING:
    from veilwood.data.encoding import Encoding
    from veilwood.forests.noisy_leaves import LeafMethod

MAX_RATIO: Final = 3.0  # benchmark tables within this factor of n_rows * row_epsilon / n_columns are used
MIN_TABLES: Final = 5  # the factor grows until it includes at least this many tables
PERCENTILES: Final = (25, 75)  # quantiles of the skills that are reported as a range


class ExpectedSkill(NamedTuple):
    """Range of the skill of private forests on similar public tables.

    Attributes
    ----------
    n_tables : int
        Number of tables.
    low, high : float
        Quartiles of their skills.
    side : int
        -1 if all tables had more rows times epsilon per column, 1 if all had fewer, else 0.
    spread : float or None
        Standard deviation of the score (accuracy or R2) between fits to the same rows; median over the tables.
    """

    n_tables: int
    low: float
    high: float
    side: int
    spread: float | None = None

    def __str__(self) -> str:
        low, high = (f"{10 * round(10 * skill):d}" for skill in (self.low, self.high))
        tables = {
            -1: "half of the nearest {} public tables; all had more rows times epsilon per column",
            0: "half of {} similar public tables",
            1: "half of the nearest {} public tables; all had fewer rows times epsilon per column",
        }[self.side].format(self.n_tables)
        text = f"{low} to {high} % ({tables})"
        if self.spread is not None:
            text += f"; two fits differ by {max(self.spread * math.sqrt(2) * 100, 0.1):.1f} points"
        return text


def describe_skill_scale(classes: Sequence[str]) -> str:
    """Describe what 0 % and 100 % of expected skill mean, and what a point is."""
    usual = "always guessing the most frequent class" if classes else "always guessing the mean"
    score = "accuracy" if classes else "R2"
    return f"of what a forest without privacy has over {usual}; a point is 0.01 of {score}:"


def estimate_skill(task: TaskKind, n_rows: float, n_columns: int, row_epsilon: float) -> ExpectedSkill:
    """Return the skill on benchmark tables with a similar number of rows times epsilon per column.

    ``row_epsilon`` is the epsilon of one row.

    Examples
    --------
    >>> few, multiply_many = (estimate_skill("classification", n, 10, 1.0) for n in (1_000, 1_000_000))
    >>> few.low < multiply_many.low
    True
    """
    here, known = np.log(max(n_rows * row_epsilon / n_columns, 1e-9)), _load_benchmarks(task)
    names, near = _near_tables(known, here)
    skills = [known.skill[near & (known.table == name)].mean() for name in names]
    low, high = np.percentile(skills, PERCENTILES)
    side = 0 if known.log_ratio.min() <= here <= known.log_ratio.max() else (-1 if here < known.log_ratio.min() else 1)
    spreads = known.spread[near & np.isfinite(known.spread)]
    spread = float(np.median(spreads)) if len(spreads) else None
    return ExpectedSkill(len(skills), float(low), float(high), side, spread)


def _near_tables(known: _BenchmarkSkills, here: float) -> tuple[Any, Any]:
    """Return the names of the tables with results near a log ratio, and a mask of these results."""
    away = np.abs(known.log_ratio - here)
    nearest = np.sort([away[known.table == name].min() for name in np.unique(known.table)])
    reach = max(np.log(MAX_RATIO), float(nearest[min(MIN_TABLES, len(nearest)) - 1]))
    return np.unique(known.table[away <= reach]), away <= reach


def holdout_cost(task: TaskKind, n_rows: float, n_columns: int, row_epsilon: float, fraction: float) -> float:
    """Return the mean skill that is lost on similar benchmark tables by training on fewer rows.

    >>> 0 <= holdout_cost("classification", 10_000, 10, 1.0, 0.3) < 0.2
    True
    """
    here, known = np.log(max(n_rows * row_epsilon / n_columns, 1e-9)), _load_benchmarks(task)
    lost = []
    for name in _near_tables(known, here)[0]:
        own = known.table == name
        order = np.argsort(known.log_ratio[own])
        ratios, skills = known.log_ratio[own][order], known.skill[own][order]
        whole, part = np.interp([here, here + math.log(1 - fraction)], ratios, skills)
        lost.append(whole - part)
    return max(float(np.mean(lost)), 0.0)


class _BenchmarkSkills(NamedTuple):
    """Benchmark results of a task, as parallel arrays: log of rows times epsilon per column, table, skill, spread."""

    log_ratio: Any
    table: Any
    skill: Any
    spread: Any


@cache
def _load_benchmarks(task: TaskKind) -> _BenchmarkSkills:
    data = json.loads(files("veilwood.forests").joinpath("expected_private_forest.json").read_text(encoding="utf-8"))
    results = [
        (
            np.log(table["rows"] * float(epsilon) / table["columns"]), name, skill,
            table.get("spread", {}).get(epsilon, np.nan),
        )
        for name, table in data["tables"].items() if table["task"] == task and table["skill"]
        for epsilon, skill in table["skill"].items()
    ]  # fmt: skip
    return _BenchmarkSkills(*(np.array(part) for part in zip(*results, strict=True)))


DECAY = 0.5
"""Prior: factor by which the explained variance falls with each further feature of an interaction."""


MAX_EPSILON, MAX_ROWS = 10.0, 2000  # largest row epsilon and number of rows in the benchmark
# Ratio of a leaf's noise to its rows, averaged over trees. Above it, the size with less noise is chosen, whatever its
# score.
MAX_NOISE_RATIO: Final = 0.3
# The same rule for regression: noise of the mean of all rows, as a fraction of the target's range.
MAX_MEAN_ERROR: Final = 0.035
# Families with coefficients of their own in ``expected_families.json``.
FAMILIES = ("RandomTrees", "MatrixForest", "MedianForest", "GreedyForest")


@dataclass(frozen=True)
class ForestSize:
    """Sizes of a forest and its table, all public, that determine the expected skill."""

    family: str
    trees: int
    depth: int
    rows: int
    rows_per_leaf: float
    noise: float  # standard deviation of the noise on one count of a leaf
    prior: float  # expected skill by theory (``expected_skill``)

    @classmethod
    def from_method(
        cls, method: LeafMethod[Any], encoding: Encoding, rows: int, leaves: int, noise: float, epsilon: float
    ) -> Self:
        """Return the sizes of a method. ``noise`` is the squared error of a leaf count, ``epsilon`` is per row.

        Nothing is extrapolated beyond the benchmark. More than ``MAX_ROWS`` rows are scored as ``MAX_ROWS`` rows at a
        proportionally larger epsilon, which has the same noise relative to the rows of a leaf. An epsilon above
        ``MAX_EPSILON`` is scored as ``MAX_EPSILON``.
        """
        seen = min(rows, MAX_ROWS)
        loud = max(1.0, epsilon * rows / seen / MAX_EPSILON) if math.isfinite(epsilon) else 1.0
        rows, noise = seen, noise * (loud * seen / rows) ** 2
        parameters, schema = method.parameters, encoding.schema
        n_features, trees = len(encoding.columns), int(np.sum(parameters.n_estimators))
        depth = max(1, int(np.max(parameters.max_depth)))
        leaves_per_tree = leaves / trees
        rows_per_leaf = rows / (leaves_per_tree if parameters.trees == "shared" else leaves)
        # Inverse variance of the signal: of frequencies of k equal classes, or of a target uniform between its bounds.
        scale = len(schema.classes) if schema.task == "classification" else 3
        multiway = getattr(parameters, "branching", "binary") != "binary"
        prior = expected_skill(
            n_features=n_features,
            max_features=getattr(parameters, "max_features", None) or n_features,
            n_ensembles=getattr(parameters, "n_ensembles", None) or 1,
            n_estimators=trees,
            max_depth=depth,
            branches=max(leaves_per_tree ** (1 / depth), 1.0 + 1e-9),
            rows_per_leaf=rows_per_leaf,
            noise_to_signal=scale * noise / rows_per_leaf**2,
            split_keeps=None
            if multiway
            else float(np.mean([1.0 if len(c.values) == 2 else 0.5 for c in schema.features])),
            shared_noise=getattr(parameters, "mechanism", "laplace") == "optimized",
            shared_rows=parameters.trees == "shared",
        )
        return cls(type(method).__name__, trees, depth, rows, rows_per_leaf, math.sqrt(noise), prior)


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
    """Return the expected squared correlation of predictions and truth, from public facts only.

    The prior: class frequencies are a sum of uncorrelated components, one per set of features. All sets of j features
    together explain a fraction of the variance that halves with each further feature. A tree recovers the components
    of the features on its path. The average over trees recovers a component in proportion to the fraction of trees that
    recover it. The more noise the trees share, the less the average reduces it.

    Parameters
    ----------
    n_features, max_features, n_ensembles, n_estimators, max_depth : int
        Numbers of the schema and of the forest, over all its ensembles.
    branches : float
        Number of leaves of a tree to the power 1 / max_depth.
    rows_per_leaf : float
        Expected number of rows in a leaf.
    noise_to_signal : float
        Noise variance of a leaf's class frequency, relative to the variance of class frequencies.
    split_keeps : float, optional
        For binary trees, the fraction of a feature's variance that one split recovers; None for multiway trees, which
        recover all of it.
    shared_noise : bool
        Whether the trees of an ensemble are computed from one noisy table instead of having independent noise.
    shared_rows : bool
        Whether every tree counts every row instead of each row being counted in one tree.

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
    # Probabilities that a subset of features contains the set of a component, and that a path does.
    inside = comb(max_features, order) / comb(n_features, order)
    if split_keeps is None:
        recovered = np.asarray(comb(max_depth, order) / comb(max_features, order), np.float64)
    else:
        recovered = np.asarray((1 - (1 - split_keeps / max_features) ** max_depth) ** order, np.float64)
    # Overlap of two random trees: complete for a tree with itself; within an ensemble if both recover the component;
    # across ensembles if, in addition, both subsets contain it.
    within = (recovered + (1 - recovered) * n_ensembles / n_estimators) / n_ensembles
    across = (1 - 1 / n_ensembles) * inside * recovered
    # Fraction of white noise that falls into the components of each order.
    leaf_part = comb(max_depth, order) * (branches - 1) ** order / branches**max_depth
    own = np.full(len(order), 1 / n_estimators)
    noise = noise_to_signal * leaf_part * (within if shared_noise else own)
    sampling = leaf_part / rows_per_leaf * (within + across if shared_rows else own)
    agreement = float(np.sum(prior * inside * recovered)) ** 2
    return agreement / float(np.sum(prior * inside * recovered * (within + across) + noise + sampling))


def size_features(setting: ForestSize) -> dict[str, float]:
    """Return the features of the regression, by name: noise per row, sizes, their products, and terms per family.

    Noise is log10 of the noise of one leaf divided by its rows, minus half the log10 of the number of averaged trees.
    """
    leaf = math.log10(setting.noise / setting.rows_per_leaf + 1e-3)
    trees, depth = math.log2(setting.trees), float(min(setting.depth, 10))
    noise = leaf - 0.5 * math.log10(setting.trees)
    rows = min(max(math.log2(setting.rows_per_leaf), -2.0), 12.0)
    features = {
        "prior": setting.prior, "noise": noise, "depth": depth, "depth squared": depth**2, "trees": trees,
        "trees squared": trees**2, "rows of a leaf": rows, "rows squared": rows**2, "noise x trees": noise * trees,
        "trees x depth": trees * depth, "noise above -1 x depth": max(noise + 1, 0.0) * depth,
    }  # fmt: skip
    features |= {f"noise above {hinge:g}": max(noise - hinge, 0.0) for hinge in (-2, -1.5, -1, -0.5, 0, 0.5, 1)}
    features |= {f"noise of a leaf above {hinge:g}": max(leaf - hinge, 0.0) for hinge in (-1, -0.5, 0, 0.5)}
    features |= {f"noise below {hinge:g} x depth": min(noise - hinge, 0.0) * depth for hinge in (-1.5, -0.5)}
    own = {
        "": 1.0, ", noise": noise, ", noise above -1": max(noise + 1, 0.0), ", noise above -0.5": max(noise + 0.5, 0.0),
        ", depth": depth, ", depth squared": depth**2, ", noise x depth": noise * depth, ", trees": trees,
        ", rows of a leaf": rows,
    }  # fmt: skip
    for name in FAMILIES:
        features |= {f"{name}{what}": value * (setting.family == name) for what, value in own.items()}
    return features


def rank_size(
    method: LeafMethod[Any], encoding: Encoding, n_rows: int | None, leaves: int, noise: float, epsilon: float
) -> tuple[float, ...]:
    """Return the rank of a size; higher is better. Without a number of rows (no noise), larger forests rank higher."""
    if n_rows is None:
        return (float(leaves),)
    setting = ForestSize.from_method(method, encoding, n_rows, leaves, noise, epsilon)
    noise_ratio = setting.noise / setting.rows_per_leaf / math.sqrt(setting.trees)  # after averaging
    score = (-max(noise_ratio, MAX_NOISE_RATIO), score_size(setting))
    if encoding.schema.classes:
        return score
    mean_error = math.sqrt(noise * leaves) / method.trees_per_row / n_rows  # the noise of all leaves adds up
    return (-max(mean_error, MAX_MEAN_ERROR), *score)


def score_size(setting: ForestSize) -> float:
    """Return the score of a setting, in units of skill: features times weights fitted on public tables.

    Only differences between scores are meaningful.
    """
    weights = load_weights()["weights"]
    return float(sum(weights.get(name, 0.0) * value for name, value in size_features(setting).items()))


@cache
def load_weights() -> dict[str, Any]:
    """Return the fitted weights and their ranking quality on left-out public tables."""
    weights: dict[str, Any] = json.loads(
        files("veilwood.forests").joinpath("expected_families.json").read_text(encoding="utf-8")
    )
    return weights
