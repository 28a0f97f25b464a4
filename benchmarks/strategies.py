# SPDX-License-Identifier: Apache-2.0
"""Expected error and time of the strategy search, compared with the identity and the lower bound. Needs no data.

Run on one thread: OMP_NUM_THREADS=1 python benchmarks/strategies.py [--draws 10] [--large]

Errors are totals over all queries at epsilon = 1 for one class column, with the variance 2 / epsilon^2 of continuous
noise, as in the papers. The last column has the exact value for discrete noise. "known" is the best previously known
value: M-RF as published always returns the identity.
"""

from __future__ import annotations

import argparse
import resource
import time
from fractions import Fraction

import numpy as np

from veilwood.forests.matrix.search import lower_bound, optimize
from veilwood.forests.matrix.strategies import Marginals, expected_error
from veilwood.forests.matrix.workloads import LeafVoteWorkload, PathWorkload, VoteWorkload

CAR, BALANCE, IRIS = (4, 4, 4, 3, 3, 3), (5, 5, 5, 5), (3, 4, 5, 6)
HEART = (5, 2, 4, 5, 5, 2, 3, 5, 2, 5, 3, 4, 3)
SMALL = Fraction(1, 1000)  # epsilon at which discrete and continuous noise agree

# name, sizes, depth, trees, queries, kind, thorough, best known total error
CASES = [
    ("Car T, depth 1, 32 trees", CAR, 1, 32, 0, "T", False, 5300),
    ("Car T, depth 2, 32 trees", CAR, 2, 32, 0, "T", False, 56000),
    ("Car T, depth 4, 128 trees", CAR, 4, 128, 0, "T", False, 442368),
    ("Balance T, depth 2, 128 trees", BALANCE, 2, 128, 0, "T", False, 138500),
    ("Car QT', depth 3, 16 trees, 346", CAR, 3, 16, 346, "QT'", False, 9500),
    ("Iris QT'T, depth 2, 64 trees, 30", IRIS, 2, 64, 30, "QT'T", False, 1663000),
    ("Balance QT'T, depth 2, 128 trees, 125", BALANCE, 2, 128, 125, "QT'T", False, 31800000),
    ("Car QT'T, depth 4, 128 trees, 346", CAR, 4, 128, 346, "QT'T", False, 35800000),
]
THOROUGH = [("Car QT'T, thorough", CAR, 4, 128, 346, "QT'T", True, 35800000)]
LARGE = [
    ("13 features, 3 million cells, depth 3", HEART, 3, 128, 0, "T", False, 170_161_000),
    ("20 features, 10^12 cells, depth 3", (4,) * 20, 3, 128, 0, "T", False, 0),
]


def grow(sizes, depth, trees, rng):
    """Leaves of random multiway trees [leaves, depth], and the tree of each."""
    features = values = np.zeros((trees, 0), np.int64)
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
    return features, values, tree


def build(sizes, depth, trees, queries, kind, rng):
    """The workload, and the same without merging for the identity of the paper."""
    features, values, tree = grow(sizes, depth, trees, rng)
    paths = PathWorkload.from_leaves(sizes, features, values)
    plain = PathWorkload.from_leaves(sizes, features, values, merge=False)
    if kind == "T":
        return paths, plain
    cells = rng.permutation(int(np.prod(sizes)))[:queries]
    codes = np.stack(np.unravel_index(cells, sizes), axis=1)
    reached = np.zeros((queries, trees), np.int64)
    for row, point in enumerate(codes):
        hit = np.flatnonzero((point[features] == values).all(axis=1))
        reached[row, tree[hit]] = hit
    if kind == "QT'":
        return LeafVoteWorkload(len(tree), reached), LeafVoteWorkload(len(tree), reached, merge=False)
    return VoteWorkload(paths, reached), VoteWorkload(plain, reached)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10, help="forests to average over")
    parser.add_argument(
        "--large", action="store_true", help="also the large domains (one draw) and the thorough search"
    )
    options = parser.parse_args()
    head = ("workload", "identity", "known", "ours", "ours/ident", "ours/bound", "CPU s", "discrete")
    print(f"{head[0]:40}" + "".join(f"{word:>14}" for word in head[1:]))
    for name, sizes, depth, trees, queries, kind, thorough, known in CASES + (THOROUGH + LARGE) * options.large:
        figures = []
        many = (name, sizes) in {(case[0], case[1]) for case in CASES}
        for draw in range(options.draws if many else 1):
            workload, plain = build(sizes, depth, trees, queries, kind, np.random.default_rng(draw))
            begin = time.process_time()
            best = optimize(workload, budget=SMALL, thorough=thorough)
            seconds = time.process_time() - begin
            identity, ours = (
                expected_error(which, strategy, budget=SMALL) * float(SMALL) ** 2
                for which, strategy in ((plain, Marginals.identity(plain)), (workload, best))
            )
            bound = (
                lower_bound(workload, budget=SMALL) * float(SMALL) ** 2
                if workload.n_cells < 2048 and draw < 2
                else np.nan
            )
            exact = expected_error(workload, optimize(workload), budget=Fraction(1)) if not thorough else np.nan
            figures.append((identity, ours, ours / identity, ours / bound, seconds, exact))
        identity, ours, ratio, bound, seconds, exact = np.nanmean(figures, axis=0) if many else figures[0]
        print(
            f"{name:40}{identity:14.0f}{known:14.0f}{ours:14.0f}{ratio:14.3f}{bound:14.2f}{seconds:14.2f}{exact:14.0f}"
            f"   {best!r}",
            flush=True,
        )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
