# SPDX-License-Identifier: Apache-2.0
"""The trees of a matrix forest: ensembles over random subsets of the features, grown without data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from veilwood.bounded import is_whole
from veilwood.data.encoding import Encoding
from veilwood.errors import DomainTooLargeError, ParameterError
from veilwood.forests.matrix.workloads import PathWorkload
from veilwood.forests.method import Parameters
from veilwood.trees.builder import join_forests
from veilwood.trees.forest import Forest, check_counts, leaf_masks, public_generators
from veilwood.trees.random import grow_binary, grow_multiway

BRANCHINGS = ("multiway", "binary")
MOST_ENTRIES = 1 << 30  # leaves times values of features, a few bytes each while a plan is made


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
    n_ensembles: int = 1
    max_features: int | None = None
    branching: str = "multiway"


def grow_ensembles(encoding: Encoding, wanted: EnsembleParameters, seed: int) -> tuple[tuple[Ensemble, ...], Forest]:
    """Grow q ensembles, each over its own random features (Algorithm 3, lines 1 to 4), and the forest of them all."""
    n_ensembles, max_features, branching = wanted.n_ensembles, wanted.max_features, wanted.branching
    n_features = len(encoding.columns)
    check_counts(n_ensembles=n_ensembles)
    width = n_features if max_features is None else max_features
    if not is_whole(width, 1, n_features):
        raise ParameterError("max_features", max_features, f"must be between 1 and the {n_features} features")
    n_trees = _per_ensemble("n_estimators", wanted.n_estimators, n_ensembles)
    depths = _per_ensemble("max_depth", wanted.max_depth, n_ensembles)
    grow = grow_multiway if branching == "multiway" else grow_binary
    ensembles = []
    for rng, trees, depth in zip(public_generators(seed, n_ensembles), n_trees, depths, strict=True):
        features = tuple(sorted(int(i) for i in rng.choice(n_features, width, replace=False)))
        columns = [encoding.columns[i] for i in features]
        sizes = [column.n_codes for column in columns]
        _check_domain(sizes, trees, depth, branching)
        forest = grow(columns, trees, depth, rng)
        ensembles.append(Ensemble(features, forest, PathWorkload.from_masks(sizes, leaf_masks(forest, sizes))))
    whole = join_forests([e.forest for e in ensembles], [e.features for e in ensembles])
    return tuple(ensembles), whole


def _check_domain(sizes: Sequence[int], n_trees: int, depth: int, branching: str) -> None:
    """Refuse trees whose leaves could not be written down, before they are grown."""
    widest = sorted(sizes, reverse=True)[:depth]
    leaves = n_trees * (math.prod(widest) if branching == "multiway" else 2**depth)
    if leaves * sum(sizes) > MOST_ENTRIES:
        many = f"{leaves:,}" if leaves < 10**18 else "more than 10^18"
        raise DomainTooLargeError(
            f"{n_trees} trees of max_depth={depth} can have {many} leaves over {sum(sizes):,} values of features "
            f"(widest: {', '.join(map(str, widest[:8]))}); the limit is {MOST_ENTRIES:,} leaves times values. "
            "Hint: lower max_depth or n_estimators, give numeric columns fewer bins, or use several ensembles over "
            "fewer features (n_ensembles, max_features)."
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
