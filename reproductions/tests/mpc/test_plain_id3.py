# SPDX-License-Identifier: Apache-2.0
"""The plaintext twin of hidden trees is Algorithm 1 of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from veilwood.arrays import Ints
from veilwood_papers.mpc import plain as plaintext
from veilwood_secure.protocols.records import Domain
from veilwood_testing.hidden_trees import random_noise, random_rows


def naive(
    rows: list[tuple[Ints, int]], domain: Domain, depth: int, extra: Sequence[Any], node: int = 0, used: Any = ()
) -> Any:
    """Algorithm 1 in the open, one node after the other: features by level and node, and classes of leaves."""
    level = len(used)
    u, w = domain.n_classes, domain.width
    if level == depth:
        counts = [sum(c == k for _, c in rows) + extra[level][k, node] for k in range(u)]
        return [{} for _ in range(depth)], {node: int(np.argmax(counts))}
    best, chosen = None, -1
    for f in range(domain.n_features):
        if f in used:
            continue
        score = sum(max(sum(x[f] == v and c == k for x, c in rows) for k in range(u)) for v in range(w))
        score += extra[level][f, node]
        if best is None or score > best:
            best, chosen = score, f
    splits: list[dict[int, int]] = [{} for _ in range(depth)]
    splits[level][node] = chosen
    leaves = {}
    for v in range(w):
        below, labels = naive(
            [r for r in rows if r[0][chosen] == v], domain, depth, extra, node * w + v, (*used, chosen)
        )
        for mine, theirs in zip(splits, below, strict=True):
            mine.update(theirs)
        leaves.update(labels)
    return splits, leaves


def test_the_plaintext_twin_is_algorithm_1() -> None:
    rng = np.random.default_rng(1)
    for sizes, u, depth in [((2, 3), 2, 2), ((3, 1, 2), 3, 2), ((2, 2, 2), 2, 3), ((4,), 2, 1)]:
        domain = Domain(sizes, u)
        codes, target = random_rows(rng, domain, 25)
        extra = random_noise(rng, domain, depth)
        choose = plaintext.noisy_largest(extra)
        widths = (domain.width,) * domain.n_features
        tree = plaintext.grow_tree(codes, target, sizes=widths, n_classes=u, depth=depth, split=choose, label=choose)
        rows = [(x, int(c)) for x, c in zip(codes, target, strict=True) if c >= 0]
        splits, leaves = naive(rows, domain, depth, extra)
        assert [dict(enumerate(level.tolist())) for level in tree.splits] == splits
        assert dict(enumerate(tree.leaves.tolist())) == leaves
