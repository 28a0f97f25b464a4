# SPDX-License-Identifier: Apache-2.0
"""Shared by forests/matrix/test_mixtures.py and other tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from veilwood.data.encoding import EncodedColumn
from veilwood.forests.matrix.marginals import Mixture
from veilwood.forests.matrix.strategies import NoiseName
from veilwood.forests.matrix.workloads import PathWorkload
from veilwood.trees.random import grow_binary, grow_multiway

NOISES: list[NoiseName] = ["laplace", "gaussian"]


def columns(sizes: Sequence[int]) -> list[EncodedColumn]:
    return [EncodedColumn(str(i), ordered=True, n_codes=n, missing_code=None) for i, n in enumerate(sizes)]


def leaves_of(sizes: Sequence[int], trees: int, depth: int, seed: int, *, multiway: bool = True) -> PathWorkload:
    """The leaves of a random forest."""
    forest = (grow_multiway if multiway else grow_binary)(columns(sizes), trees, depth, seed)
    return PathWorkload.from_forest(sizes, forest, multiway=multiway)


def some(workload: PathWorkload, rng: np.random.Generator) -> list[Mixture]:
    """All trees alike, all with other weights, and two of them beside marginals."""
    everything = tuple(range(len(workload.shape)))
    n_trees = int(workload.tree_of_leaf[-1]) + 1
    return [
        Mixture(workload, {3: tuple(range(n_trees))}, {}),
        Mixture(workload, {int(rng.integers(1, 5)) + 5 * tree: (tree,) for tree in range(n_trees)}, {}),
        Mixture(workload, {2: (0,), 7: (2,)}, {everything: 3, (0,): 4}),
    ]
