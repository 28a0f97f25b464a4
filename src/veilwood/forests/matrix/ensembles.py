# SPDX-License-Identifier: Apache-2.0
"""The trees of a matrix forest: ensembles over random subsets of the features, or parts of them, grown without data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from veilwood.bounded import is_whole
from veilwood.data.encoding import EncodedColumn, Encoding
from veilwood.errors import DomainTooLargeError, ParameterError
from veilwood.forests.matrix.workloads import PathWorkload
from veilwood.forests.method import Parameters
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
