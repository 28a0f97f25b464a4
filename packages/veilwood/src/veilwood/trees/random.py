# SPDX-License-Identifier: Apache-2.0
"""Public randomness, and random trees grown from it without data.

Data-dependent trees grow in ``level_growth``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from veilwood.arrays import Bools, Codes, Int32s, Ints
from veilwood.errors import DomainTooLargeError, ParameterError, short_repr
from veilwood.privacy.plan import MAX_SEED
from veilwood.safe_io import all_ints_in, is_int_in
from veilwood.trees.forest import LEAF, Forest, build_forest

if TYPE_CHECKING:
    from veilwood.data.encoding import EncodedColumn

Thresholds: TypeAlias = Literal["path", "range"]
THRESHOLDS: tuple[Thresholds, ...] = ("path", "range")

MAX_NODES = 1 << 28  # about 3 GB of structure: a larger number is probably a typing error
MAX_TREES = 100_000  # each tree takes a Python call
# A missing number is coded above the upper bound. Probability that a split separates it from all numbers.
MISSING_SPLIT_CHANCE: Final = 0.25


def public_seed(random_state: object) -> int:
    """Return a public seed: the given integer, or an integer drawn from a generator or fresh entropy.

    >>> public_seed(7)
    7
    """
    if is_int_in(random_state, 0, MAX_SEED):
        return int(random_state)  # type: ignore[call-overload,no-any-return]
    (rng,) = public_generators(random_state, 1)
    return int(rng.integers(2**63))


def public_generators(random_state: object, n: int) -> list[np.random.Generator]:
    """Return ``n`` generators of public randomness. Generator i does not depend on ``n``."""
    check_random_state(random_state)
    return _spawn_generators(random_state, n)


def _spawn_generators(random_state: object, n: int) -> list[np.random.Generator]:
    if random_state is None:
        root = np.random.SeedSequence()
    elif isinstance(random_state, np.random.RandomState):
        root = np.random.SeedSequence([int(w) for w in random_state.randint(0, 2**31 - 1, 4)])
    elif isinstance(random_state, np.random.Generator):
        root = np.random.SeedSequence([int(w) for w in random_state.integers(0, 2**31 - 1, 4)])
    else:
        root = np.random.SeedSequence(int(random_state))  # type: ignore[call-overload]
    return [np.random.default_rng(child) for child in root.spawn(n)]


def check_random_state(random_state: object) -> None:
    """Raise ParameterError unless public randomness can be drawn from ``random_state``."""
    known = random_state is None or isinstance(random_state, np.random.RandomState | np.random.Generator)
    if not known and not is_int_in(random_state, 0, MAX_SEED):
        raise ParameterError(
            "random_state", random_state, "must be an integer from 0 to 2^128 - 1, a generator or None", "pass 0"
        )


def check_counts(**values: object) -> None:
    """Raise ParameterError or DomainTooLargeError unless all values are integers from 1 to ``MAX_TREES``."""
    if all_ints_in(values.values(), 1, MAX_TREES):
        return
    for name, value in values.items():
        if not is_int_in(value, 1, MAX_TREES):
            requirement = f"must be an integer from 1 to {MAX_TREES:,}"
            if is_int_in(value, MAX_TREES):
                raise DomainTooLargeError(
                    f"{name}={short_repr(value)} {requirement}. Hint: lower max_depth or n_estimators."
                )
            raise ParameterError(name, value, requirement, "pass an integer in this range")


def check_size(n_trees: int, max_depth: int, branching: int) -> None:
    """Raise an error if the number of trees or the depth is invalid, or if the forest could be too large."""
    check_counts(n_estimators=n_trees, max_depth=max_depth)
    # Python integers do not overflow, and a depth beyond 64 is not even raised to a power.
    if max_depth > 64 or int(n_trees) * branching ** int(max_depth) > MAX_NODES:
        raise DomainTooLargeError(
            f"{n_trees} trees of depth {max_depth} could have more than {MAX_NODES:,} leaves. "
            "Hint: lower max_depth or n_estimators."
        )


class _RandomTree(NamedTuple):
    """One tree in level order, with its own lookup table."""

    feature: Int32s
    cut: Int32s
    branches: Int32s
    lookup: Codes


def grow_binary(
    columns: Sequence[EncodedColumn],
    n_trees: int,
    max_depth: int,
    random_state: object = None,
    *,
    thresholds: Thresholds = "path",
) -> Forest:
    """Grow binary trees with random attributes and random cuts.

    Bojarski et al., section 3, use complete trees of fixed depth, with uniform attributes, and thresholds uniform
    between the bounds of the attribute: ``thresholds="range"``. A second cut of an attribute then often
    falls outside the range that remains on the path, and one of its branches stays empty. With ``"path"``, the cut
    falls inside this range. An attribute with a single remaining value is not drawn again, and a node without
    attributes is a leaf, so every leaf can be reached. Categories are split at random, with at least one value on each
    side.
    """
    check_size(n_trees, max_depth, 2)
    trees, length = [], 0
    for rng in _spawn_generators(random_state, n_trees):
        tree = _grow_binary_tree(columns, max_depth, rng, narrowing=thresholds == "path")
        trees.append(tree._replace(cut=np.where(tree.cut < 0, tree.cut - length, tree.cut)))
        length += len(tree.lookup)
    return _join_trees(trees, [tree.lookup for tree in trees])


def grow_multiway(
    columns: Sequence[EncodedColumn], n_trees: int, max_depth: int, random_state: object = None
) -> Forest:
    """Grow multiway trees (ID3): a random attribute not yet on the path, with one branch per value."""
    check_counts(n_estimators=n_trees, max_depth=max_depth)
    if max_depth > len(columns):
        raise ParameterError(
            "max_depth",
            max_depth,
            f"exceeds the {len(columns)} features: a multiway tree uses each feature at most once on a path",
            f"pass max_depth={len(columns)} or less",
        )
    widest = sorted((column.n_codes for column in columns), reverse=True)[:max_depth]
    # The lookup table of an n-valued column is 0, 1, ..., n-1: all columns can share the longest one.
    identity = np.arange(max(column.n_codes for column in columns), dtype=np.uint16)
    check_size(n_trees, 1, int(np.prod(widest, dtype=object)))
    trees = [_grow_multiway_tree(columns, max_depth, rng) for rng in _spawn_generators(random_state, n_trees)]
    return _join_trees(trees, [identity])


def _grow_binary_tree(
    columns: Sequence[EncodedColumn], max_depth: int, rng: np.random.Generator, *, narrowing: bool
) -> _RandomTree:
    """Grow a tree level by level. If ``narrowing``, track the remaining range of every column on each path."""
    ordered = np.array([column.ordered for column in columns])
    n_codes = np.array([column.n_codes for column in columns])
    missing = np.array([-1 if column.missing_code is None else column.missing_code for column in columns])
    offsets = np.cumsum(np.where(ordered, 0, n_codes)) - np.where(ordered, 0, n_codes)
    n_category_bits = int(np.where(ordered, 0, n_codes).sum())

    low = np.zeros((1, len(columns)), np.int32)  # codes low <= c < high remain, for ordered columns
    high = n_codes[None, :].astype(np.int32)
    alive = np.ones((1, n_category_bits), bool)  # mask of the remaining categories of all columns
    features, cuts, branches, tables = [], [], [], []
    lookup_length = 0

    for _ in range(max_depth):
        n_level = len(low)
        splittable = high - low > 1
        splittable[:, ~ordered] = _category_totals(alive, offsets[~ordered]) > 1
        feature = _draw_columns(splittable, rng)
        inner = np.flatnonzero(feature != LEAF)
        cut = np.zeros(n_level, np.int32)
        goes_right = np.zeros((n_level, n_category_bits), bool)  # of the split column's categories

        numeric = inner[ordered[feature[inner]]]
        cut[numeric] = _draw_cuts(low, high, missing, feature, numeric, rng)

        categorical = inner[~ordered[feature[inner]]]
        in_column = _column_mask(feature[categorical], offsets, n_codes, n_category_bits)
        goes_right[categorical] = _draw_subsets(alive[categorical] & in_column, rng)
        widths = n_codes[feature[categorical]]
        cut[categorical] = -1 - (lookup_length + np.cumsum(widths) - widths)
        tables.append(goes_right[categorical][in_column].astype(np.uint16))
        lookup_length += int(widths.sum())

        features.append(feature)
        cuts.append(cut)
        branches.append(np.where(feature == LEAF, 0, 2))

        low, high = np.repeat(low[inner], 2, axis=0), np.repeat(high[inner], 2, axis=0)
        alive = np.repeat(alive[inner], 2, axis=0)
        if not narrowing:
            continue
        position = np.searchsorted(inner, numeric)
        high[2 * position, feature[numeric]] = cut[numeric]
        low[2 * position + 1, feature[numeric]] = cut[numeric]
        position = np.searchsorted(inner, categorical)
        alive[2 * position] &= ~(in_column & goes_right[categorical])
        alive[2 * position + 1] &= ~in_column | goes_right[categorical]

    return _close_tree(features, cuts, branches, len(low), np.concatenate([np.empty(0, np.uint16), *tables]))


def _grow_multiway_tree(columns: Sequence[EncodedColumn], max_depth: int, rng: np.random.Generator) -> _RandomTree:
    n_codes = np.array([column.n_codes for column in columns], np.int32)
    unused = np.ones((1, len(columns)), bool)
    features, cuts, branches = [], [], []
    for _ in range(max_depth):
        feature = _draw_columns(unused, rng)
        widths = n_codes[feature]
        features.append(feature)
        cuts.append(np.full(len(feature), -1, np.int32))
        branches.append(widths)
        unused[np.arange(len(feature)), feature] = False
        unused = np.repeat(unused, widths, axis=0)
    return _close_tree(features, cuts, branches, len(unused), np.empty(0, np.uint16))


def _close_tree(
    features: list[Int32s], cuts: list[Int32s], branches: list[Int32s], n_open: int, lookup: Codes
) -> _RandomTree:
    """Return the finished tree: open nodes become leaves."""
    leaf, none = np.full(n_open, LEAF, np.int32), np.zeros(n_open, np.int32)
    return _RandomTree(
        np.concatenate([*features, leaf]), np.concatenate([*cuts, none]), np.concatenate([*branches, none]), lookup
    )


def _join_trees(trees: Sequence[_RandomTree], lookup: Sequence[Codes]) -> Forest:
    return build_forest(
        [len(tree.feature) for tree in trees],
        np.concatenate([tree.feature for tree in trees]),
        np.concatenate([tree.cut for tree in trees]),
        np.concatenate([tree.branches for tree in trees]),
        lookup,
    )


def _draw_columns(allowed: Bools, rng: np.random.Generator) -> Int32s:
    """Draw one allowed column per row, uniformly; LEAF if none is allowed."""
    totals = allowed.sum(axis=1)
    rank = rng.integers(0, np.maximum(totals, 1))
    chosen = np.argmax(np.cumsum(allowed, axis=1) > rank[:, None], axis=1)
    return np.where(totals > 0, chosen, LEAF).astype(np.int32)


def _category_totals(alive: Bools, starts: Ints) -> Ints:
    """Return the number of remaining categories, per node and categorical column."""
    return (
        np.add.reduceat(alive, starts, axis=1, dtype=np.int64) if len(starts) else np.empty((len(alive), 0), np.int64)
    )


def _column_mask(feature: Int32s, offsets: Ints, n_codes: Ints, n_bits: int) -> Bools:
    """Return a mask of the category bits that belong to the split column of each node."""
    bit = np.arange(n_bits)
    start = offsets[feature][:, None]
    return (bit >= start) & (bit < start + n_codes[feature][:, None])


def _draw_cuts(
    low: Int32s, high: Int32s, missing: Ints, feature: Int32s, nodes: Ints, rng: np.random.Generator
) -> Ints:
    lower, upper = low[nodes, feature[nodes]].astype(np.int64), high[nodes, feature[nodes]].astype(np.int64)
    missing_code = missing[feature[nodes]]
    has_missing = (missing_code >= 0) & (upper > missing_code)
    apart = has_missing & ((rng.random(len(nodes)) < MISSING_SPLIT_CHANCE) | (missing_code - lower <= 1))
    top = np.where(has_missing & ~apart, missing_code, upper)
    uniform = rng.integers(lower + 1, np.maximum(top, lower + 2))
    return np.where(apart, missing_code, uniform)


def _draw_subsets(alive: Bools, rng: np.random.Generator) -> Bools:
    """Send each remaining category right with probability 1/2. Redraw until both sides have a category."""
    right = np.zeros_like(alive)
    pending = np.arange(len(alive))
    while len(pending):
        right[pending] = alive[pending] & (rng.random((len(pending), alive.shape[1])) < 0.5)
        n_right = right[pending].sum(axis=1)
        pending = pending[(n_right == 0) | (n_right == alive[pending].sum(axis=1))]
    return right
