# SPDX-License-Identifier: Apache-2.0
"""Workloads, strategies and small tables for matrix forests; losses by enumeration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

import veilwood as vw
import veilwood_audit as audit
from veilwood.arrays import Ints
from veilwood.data.encoding import EncodedColumn
from veilwood.forests.matrix.marginals import Mixture
from veilwood.forests.matrix.strategies import Factors, NoiseName, Strategy, expected_error
from veilwood.forests.matrix.workloads import LeafVoteWorkload, PathWorkload, VoteWorkload, Workload
from veilwood.privacy.door import Door
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.plan import Plan
from veilwood.privacy.steps import Step
from veilwood.trees.random import grow_binary, grow_multiway
from veilwood_audit.statistics import ALPHA, epsilon_lower_bound

WORKLOAD_KINDS = ["paths", "binary", "votes", "leaf votes"]


def random_paths(sizes: Sequence[int], depth: int, trees: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Leaves of random multiway trees: each node splits on a feature its path has not used."""
    features: Ints = np.zeros((trees, 0), np.int64)
    values = features
    tree = np.arange(trees)
    for level in range(depth):
        rank = rng.random((len(tree), len(sizes)))
        for j in range(level):
            rank[np.arange(len(tree)), features[:, j]] = -1
        chosen = rank.argmax(axis=1)
        width = np.asarray(sizes)[chosen]
        parent = np.repeat(np.arange(len(tree)), width)
        value = np.arange(width.sum()) - np.repeat(np.cumsum(width) - width, width)
        features = np.column_stack([features[parent], chosen[parent]])
        values = np.column_stack([values[parent], value])
        tree = tree[parent]
    return features, values


def random_binary_masks(sizes: Sequence[int], depth: int, trees: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Leaves of binary trees that cut ordered values, as masks [leaves, sum of sizes]."""
    edges = np.concatenate([[0], np.cumsum(sizes)])
    leaves = []
    for _ in range(trees):
        level = [np.ones(edges[-1], bool)]
        for _ in range(depth):
            deeper = []
            for mask in level:
                i = int(rng.integers(len(sizes)))
                left, right = mask.copy(), mask.copy()
                cut = edges[i] + 1 + int(rng.integers(sizes[i] - 1))
                left[cut : edges[i + 1]] = False
                right[edges[i] : cut] = False
                deeper += [left, right]
            level = deeper
        leaves += level
    return np.array(leaves)


def reached_by(paths: PathWorkload, queries: ArrayLike) -> Ints:
    """Leaf of every tree that each queried cell reaches, out of the explicit matrix."""
    hit = paths.to_dense()[:, np.asarray(queries)].T.astype(bool)
    return np.array([np.flatnonzero(row) for row in hit])


def small_workloads(seed: int) -> dict[str, Workload]:
    """One workload of each kind, on a domain small enough for explicit matrices."""
    rng = np.random.default_rng(seed)
    sizes = tuple(int(size) for size in rng.integers(2, 5, size=3))
    paths = PathWorkload.from_leaves(sizes, *random_paths(sizes, int(rng.integers(1, 4)), 4, rng), merge=bool(seed % 2))
    binary = PathWorkload.from_masks(sizes, random_binary_masks(sizes, 2, 4, rng), merge=bool(seed % 2))
    queries = rng.integers(math.prod(sizes), size=5)
    reached = reached_by(paths, queries)
    return {
        "paths": paths,
        "binary": binary,
        "votes": VoteWorkload(paths, reached),
        "leaf votes": LeafVoteWorkload(paths.n_queries, reached, merge=bool(seed % 2)),
    }


NOISES: list[NoiseName] = ["laplace", "gaussian"]


def ordered_columns(sizes: Sequence[int]) -> list[EncodedColumn]:
    return [EncodedColumn(str(i), ordered=True, n_codes=n, missing_code=None) for i, n in enumerate(sizes)]


def leaves_of(sizes: Sequence[int], trees: int, depth: int, seed: int, *, multiway: bool = True) -> PathWorkload:
    """The leaves of a random forest."""
    forest = (grow_multiway if multiway else grow_binary)(ordered_columns(sizes), trees, depth, seed)
    return PathWorkload.from_forest(sizes, forest, multiway=multiway)


def sample_mixtures(workload: PathWorkload, rng: np.random.Generator) -> list[Mixture]:
    """All trees alike, all with other weights, and two of them beside marginals."""
    everything = tuple(range(len(workload.shape)))
    n_trees = int(workload.tree_of_leaf[-1]) + 1
    return [
        Mixture(workload, {3: tuple(range(n_trees))}, {}),
        Mixture(workload, {int(rng.integers(1, 5)) + 5 * tree: (tree,) for tree in range(n_trees)}, {}),
        Mixture(workload, {2: (0,), 7: (2,)}, {everything: 3, (0,): 4}),
    ]


CAR_SIZES = (4, 4, 4, 3, 3, 3)


SMALL_EPSILON = Fraction(
    1, 1000
)  # epsilon so small that discrete noise has the variance of continuous noise, 2 / epsilon^2


def published_error(workload: Workload, strategy: Strategy) -> float:
    """Error at epsilon = 1 with continuous noise, as the papers give it."""
    return expected_error(workload, strategy, budget=SMALL_EPSILON) * float(SMALL_EPSILON) ** 2


def value_only(objective: Any) -> Callable[[NDArray[np.float64]], float]:
    """The value alone, of what returns it with its gradient."""
    return lambda x: float(objective(x)[0])


def categorical_schema(sizes: Sequence[int], classes: int, name: str = "small") -> vw.Schema:
    """Categories only, as many as each size says."""
    columns = [{"name": f"f{i}", "kind": "categorical", "values": list(range(n))} for i, n in enumerate(sizes)]
    target = {"name": "class", "kind": "categorical", "values": [f"c{i}" for i in range(classes)]}
    return vw.Schema.from_dict(
        {"name": name, "task": "classification", "target": "class", "columns": [*columns, target]}
    )


SIZES = (3, 2)


DELTAS = {"pure": 0.0, "zcdp": 1e-6}


ADJACENCIES = ("add-remove", "replace-one")


class RecordingDoor(Door):
    """A door that lets everything out as it is, and remembers it: what noise would have been added to."""

    passed: list[Ints]

    def release_counts(self, step: Step, exact: Ints) -> Ints:
        self._admit_step(step, exact.shape)
        self.__dict__.setdefault("passed", []).append(exact.copy())
        return exact.copy()


def all_records(classes: int) -> list[tuple[int, int, int]]:
    """Every record of the small schema: two features and a class."""
    return [(a, b, c) for a in range(SIZES[0]) for b in range(SIZES[1]) for c in range(classes)]


def as_table(kinds: list[tuple[int, int, int]], table: tuple[int, ...]) -> tuple[Any, Any]:
    """The table's records after a first one that both neighbours have: empty tables are refused."""
    rows = [kinds[0], *(kinds[cell] for cell in table)]
    return np.array([row[:2] for row in rows], object), np.array([f"c{row[2]}" for row in rows], object)


def worst_cost(measured: Callable[[tuple[int, ...]], list[Ints]], plan: Plan, n_cells: int, most: int = 1) -> Fraction:
    """The largest privacy loss over all small neighbours: what each step measures, by the noise it really gets.

    Discrete Laplace noise of scale b on numbers that move by L1 costs L1 / b; discrete Gaussian noise costs
    L2^2 / (2 sigma^2) of rho. Steps add up. Sums over records move by the same whatever else is in the table, so one
    record beside the common one is enough; labels of leaves need two.
    """
    number: dict[tuple[int, ...], int] = {}
    pairs = [
        (number.setdefault(one, len(number)), number.setdefault(other, len(number)))
        for one, other in audit.neighbouring_tables(n_cells, most, plan.neighbours.adjacency)
    ]
    one, other = np.array(pairs).T
    seen = [measured(table) for table in number]
    moved = []
    for place, step in enumerate(plan.steps):
        values = np.array([tables[place].ravel() for tables in seen])
        change = values[one] - values[other]
        laplace = isinstance(step.mechanism, DiscreteLaplace)
        moved.append(np.abs(change).sum(axis=1) if laplace else (change**2).sum(axis=1))
    prices = [
        1 / Fraction(s.mechanism.scale)
        if isinstance(s.mechanism, DiscreteLaplace)
        else 1 / (2 * Fraction(s.mechanism.sigma_squared))  # type: ignore[union-attr]
        for s in plan.steps
    ]
    return max(
        sum((price * int(move) for price, move in zip(prices, moves, strict=True)), Fraction(0))
        for moves in {tuple(row) for row in np.array(moved).T.tolist()}
    )


def budget(plan: Plan) -> Fraction:
    """What a plan may lose: its rho, or its epsilon."""
    found = plan.loss.rho if plan.loss.delta else plan.loss.epsilon
    assert found is not None
    return found


def overlapping(workload: PathWorkload) -> Factors:
    """A strategy whose columns add up to more than its rows: a diagonal on all pairs of cells."""
    n = workload.n_cells
    pairs = np.array([np.isin(np.arange(n), [i, j]) for i in range(n) for j in range(i)])
    return Factors(workload, [np.vstack([np.eye(n, dtype=np.int64), pairs])])


RUNS = 150_000


def lower_bound(
    event: Callable[[NDArray[Any]], NDArray[np.bool_]], likely: NDArray[Any], unlikely: NDArray[Any]
) -> float:
    """A lower bound on epsilon from how often an event happens on either side."""
    one, other = event(likely), event(unlikely)
    return epsilon_lower_bound(int(one.sum()), len(one), int(other.sum()), len(other), alpha=ALPHA)


TENNIS = vw.Schema.from_dict(
    {
        "name": "tennis",
        "task": "classification",
        "target": "play",
        "columns": [
            {"name": "outlook", "kind": "categorical", "values": ["sunny", "overcast", "rainy"]},
            {"name": "windy", "kind": "categorical", "values": ["false", "true"]},
            {"name": "play", "kind": "categorical", "values": ["no", "yes"]},
        ],
    }
)


DAYS = pd.DataFrame(
    [(outlook, windy) for outlook in ("sunny", "overcast", "rainy") for windy in ("false", "true")],
    columns=["outlook", "windy"],
)


PLAYED = np.array(["no", "no", "yes", "yes", "yes", "no"], object)
