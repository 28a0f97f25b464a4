# SPDX-License-Identifier: Apache-2.0
"""Expected skill of a forest, from public facts only: theory, and results on public benchmark tables.

``veilwood.tune`` ranks settings by it and ``auto_size`` chooses sizes by it; docs/tuning.md derives the theory.
"""

from __future__ import annotations

import json
import math
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

__all__ = [
    "DECAY",
    "ExpectedSkill",
    "ForestSize",
    "estimate_skill",
    "expected_skill",
    "load_weights",
    "score_size",
    "size_features",
]


MAX_RATIO: Final = 3.0  # benchmark tables within this factor of n_rows * row_epsilon / n_columns are used
MIN_TABLES: Final = 5  # the factor is widened until there are this many
PERCENTILES: Final = (25, 75)  # of the skills, reported as a range


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
    """

    n_tables: int
    low: float
    high: float
    side: int

    def __str__(self) -> str:
        had = {
            -1: "fewer rows times epsilon per column than any public table that was tried: of the nearest {}",
            0: "of {} public tables with about as many rows times epsilon per column",
            1: "more rows times epsilon per column than any public table that was tried: of the nearest {}",
        }[self.side].format(self.n_tables)
        low, high = (f"{round(skill, 1) + 0.0:.1f}" for skill in (self.low, self.high))  # + 0.0: no -0.0
        return f"{had}, half had a skill of {low} to {high} (0 is the most frequent class or the mean, 1 no privacy)"


def estimate_skill(task: TaskKind, n_rows: float, n_columns: int, row_epsilon: float) -> ExpectedSkill:
    """Return the skill on benchmark tables with a similar number of rows times epsilon per column.

    ``row_epsilon`` is the epsilon of one row.

    Examples
    --------
    >>> few, multiply_many = (estimate_skill("classification", n, 10, 1.0) for n in (1_000, 1_000_000))
    >>> few.low < multiply_many.low
    True
    """
    place, known = np.log(max(n_rows * row_epsilon / n_columns, 1e-9)), _load_benchmarks(task)
    away = np.abs(known.log_ratio - place)
    nearest = np.sort([away[known.table == name].min() for name in np.unique(known.table)])
    reach = max(np.log(MAX_RATIO), float(nearest[min(MIN_TABLES, len(nearest)) - 1]))
    near = away <= reach
    skills = [known.skill[near & (known.table == name)].mean() for name in np.unique(known.table[near])]
    low, high = np.percentile(skills, PERCENTILES)
    side = (
        0 if known.log_ratio.min() <= place <= known.log_ratio.max() else (-1 if place < known.log_ratio.min() else 1)
    )
    return ExpectedSkill(len(skills), float(low), float(high), side)


class _BenchmarkSkills(NamedTuple):
    """Results of one task: logarithm of rows times epsilon for each column, table, skill."""

    log_ratio: Any
    table: Any
    skill: Any


@cache
def _load_benchmarks(task: TaskKind) -> _BenchmarkSkills:
    data = json.loads(files("veilwood.forests").joinpath("expected_private_forest.json").read_text(encoding="utf-8"))
    found = [
        (np.log(table["rows"] * float(epsilon) / table["columns"]), name, skill)
        for name, table in data["tables"].items() if table["task"] == task and table["skill"]
        for epsilon, skill in table["skill"].items()
    ]  # fmt: skip
    return _BenchmarkSkills(*(np.array(part) for part in zip(*found, strict=True)))


DECAY = 0.5
"""Prior: factor by which the explained variance falls with each further feature of an interaction."""


MAX_EPSILON, MAX_ROWS = 10.0, 2000  # largest row epsilon and number of rows in the benchmark
FAMILIES = ("RandomTrees", "MatrixForest", "MedianForest", "GreedyForest")


@dataclass(frozen=True)
class ForestSize:
    """Size of a forest and of its table, as far as the expected skill depends on it; public numbers only."""

    family: str
    trees: int
    depth: int
    rows: int
    rows_per_leaf: float
    noise: float  # standard deviation, on one count of a leaf
    prior: float  # what theory expects (``expected_skill``)

    @classmethod
    def from_method(
        cls, method: LeafMethod[Any], encoding: Encoding, rows: int, leaves: int, noise: float, epsilon: float
    ) -> Self:
        """Describe a method with a size; ``noise`` is the squared error of a leaf, ``epsilon`` that of one row.

        Nothing is carried on beyond what was measured: many rows are judged like fewer at an epsilon as many times
        larger, at which a leaf has as much noise for its rows; and an epsilon beyond those tried like the largest.
        """
        seen = min(rows, MAX_ROWS)
        loud = max(1.0, epsilon * rows / seen / MAX_EPSILON) if math.isfinite(epsilon) else 1.0
        rows, noise = seen, noise * (loud * seen / rows) ** 2
        mine, schema = method.parameters, encoding.schema
        n_features, trees = len(encoding.columns), int(np.sum(mine.n_estimators))
        depth = max(1, int(np.max(mine.max_depth)))
        leaves_per_tree = leaves / trees
        rows_per_leaf = rows / (leaves_per_tree if mine.trees == "shared" else leaves)
        # Noise on class shares over the variance of k even classes, or of a target even between its bounds.
        scale = len(schema.classes) if schema.task == "classification" else 3
        multiway = getattr(mine, "branching", "binary") != "binary"
        prior = expected_skill(
            n_features=n_features,
            max_features=getattr(mine, "max_features", None) or n_features,
            n_ensembles=getattr(mine, "n_ensembles", None) or 1,
            n_estimators=trees,
            max_depth=depth,
            branches=max(leaves_per_tree ** (1 / depth), 1.0 + 1e-9),
            rows_per_leaf=rows_per_leaf,
            noise_to_signal=scale * noise / rows_per_leaf**2,
            split_keeps=None
            if multiway
            else float(np.mean([1.0 if len(c.values) == 2 else 0.5 for c in schema.features])),
            shared_noise=getattr(mine, "mechanism", "laplace") == "optimized",
            shared_rows=mine.trees == "shared",
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


def size_features(setting: ForestSize) -> dict[str, float]:
    """Return what is weighed, by name: noise against rows, size, how they go together, and how families differ.

    Noise is that of one leaf over its rows, in powers of ten; averaging over trees takes their square root off it.
    """
    leaf = math.log10(setting.noise / setting.rows_per_leaf + 1e-3)
    trees, depth = math.log2(setting.trees), float(min(setting.depth, 10))
    noise = leaf - 0.5 * math.log10(setting.trees)
    rows = min(max(math.log2(setting.rows_per_leaf), -2.0), 12.0)
    told = {
        "prior": setting.prior, "noise": noise, "depth": depth, "depth squared": depth**2, "trees": trees,
        "trees squared": trees**2, "rows of a leaf": rows, "rows squared": rows**2, "noise x trees": noise * trees,
        "trees x depth": trees * depth, "noise above -1 x depth": max(noise + 1, 0.0) * depth,
    }  # fmt: skip
    told |= {f"noise above {hinge:g}": max(noise - hinge, 0.0) for hinge in (-2, -1.5, -1, -0.5, 0, 0.5, 1)}
    told |= {f"noise of a leaf above {hinge:g}": max(leaf - hinge, 0.0) for hinge in (-1, -0.5, 0, 0.5)}
    told |= {f"noise below {hinge:g} x depth": min(noise - hinge, 0.0) * depth for hinge in (-1.5, -0.5)}
    own = {
        "": 1.0, ", noise": noise, ", noise above -1": max(noise + 1, 0.0), ", noise above -0.5": max(noise + 0.5, 0.0),
        ", depth": depth, ", depth squared": depth**2, ", noise x depth": noise * depth, ", trees": trees,
        ", rows of a leaf": rows,
    }  # fmt: skip
    for name in FAMILIES:
        told |= {f"{name}{what}": value * (setting.family == name) for what, value in own.items()}
    return told


def score_size(setting: ForestSize) -> float:
    """Return what settings are ranked by: facts times the weights that public tables have taught, in units of skill.

    Only differences mean something.
    """
    weights = load_weights()["weights"]
    return float(sum(weights.get(name, 0.0) * value for name, value in size_features(setting).items()))


@cache
def load_weights() -> dict[str, Any]:
    """Return the weights of the facts, and how well they rank the settings of a public table that was left out."""
    found: dict[str, Any] = json.loads(
        files("veilwood.forests").joinpath("expected_families.json").read_text(encoding="utf-8")
    )
    return found
