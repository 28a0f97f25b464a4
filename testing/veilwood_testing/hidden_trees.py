# SPDX-License-Identifier: Apache-2.0
"""Rows, noise and recipes for tests of trees on shares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import veilwood as vw
from veilwood.arrays import Ints
from veilwood_audit.statistics import epsilon_lower_bound
from veilwood_secure.mpc.engine import Engine
from veilwood_secure.protocols.hidden_trees import HiddenTree, Recipe, TreeNoise
from veilwood_secure.protocols.records import Domain, SharedRows, encode_classes, encode_one_hot


def random_rows(rng: np.random.Generator, domain: Domain, n: int) -> tuple[Ints, Ints]:
    codes = np.stack([rng.integers(0, size, n) for size in domain.sizes], axis=1)
    return codes, rng.integers(-1, domain.n_classes, n)  # some are padding


def load_rows(engine: Engine, codes: Ints, target: Ints, domain: Domain) -> SharedRows:
    return SharedRows(engine.constant(encode_one_hot(codes, domain)), engine.constant(encode_classes(target, domain)))


def random_noise(rng: np.random.Generator, domain: Domain, depth: int) -> list[Ints]:
    shapes = [(domain.n_features, domain.width**level) for level in range(depth)]
    return [rng.geometric(0.3, shape) - 1 for shape in [*shapes, (domain.n_classes, domain.width**depth)]]


def noise_of(engine: Engine, arrays: Sequence[Ints]) -> TreeNoise:
    *splits, leaves = [engine.constant(array) for array in arrays]
    return TreeNoise(tuple(splits), leaves)


def no_noise(depth: int) -> TreeNoise:
    return TreeNoise((None,) * depth, None)


def recipe_of(domain: Domain, depth: int) -> Recipe:
    return Recipe(domain, (None,) * depth, None)


def open_tree(engine: Engine, tree: HiddenTree) -> tuple[list[Ints], Ints]:
    parts = [engine.open(part) for part in (*tree.splits, tree.leaves)]
    assert all(((part == 0) | (part == 1)).all() and (part.sum(axis=0) == 1).all() for part in parts)
    *splits, leaves = [part.argmax(axis=0) for part in parts]
    return splits, leaves


# Section 4.3's pair: m rows (0, 0, class 0) and m rows (1, 1, class 1); the neighbour has one row (0, 1, class 1) more.
PAIR = vw.Schema.from_dict({
    "name": "pair", "task": "classification", "target": "c",
    "columns": [{"name": name, "kind": "categorical", "values": ["0", "1"]} for name in ("a", "b", "c")],
})  # fmt: skip


def random_table(n: int, domain: Domain, seed: int = 0) -> tuple[Ints, Ints]:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, n) for size in domain.sizes], axis=1)
    return codes, rng.integers(0, domain.n_classes, n)


def epsilon_bound(likely: Ints, unlikely: Ints) -> float:
    return epsilon_lower_bound(int(likely.sum()), len(likely), int(unlikely.sum()), len(unlikely))
