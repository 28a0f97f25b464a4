# SPDX-License-Identifier: Apache-2.0
"""Time and memory of matrix forests: strategy search and complete fits, compared with the authors' code.

Nothing is asserted here, and no data is read: rows are random if the data set is not built in.
Run on one thread: OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/mrf_speed.py

Each case runs in its own process, to measure its peak memory. Times are CPU seconds. Those of the authors' code
(arisa77/mrf-public 176d5ac) are from one thread of an AMD EPYC at 2.4 GHz; wall seconds reported in the paper are in
brackets. Phases of their code: tree building, noise optimisation, fit, reconstruction and one draw of noise.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
import warnings
from typing import Any

import numpy as np

import veilwood as vw

# The sizes the authors' schemas give Heart and Mushroom.
HEART = (4, 2, 4, 3, 3, 2, 3, 3, 2, 3, 3, 4, 3)
MUSHROOM = (6, 4, 10, 2, 9, 4, 3, 2, 12, 2, 7, 4, 4, 9, 9, 2, 4, 3, 8, 9, 6, 7)
CAR, WIDE = (4, 4, 4, 3, 3, 3), (4,) * 20

# name, sizes, classes, rows, parameters, authors: optimisation, authors: whole fit
CASES: list[tuple[str, tuple[int, ...], int, int, dict[str, Any], str, str]] = [
    ("Car, 128 trees, depth 4", CAR, 4, 1728, {"n_estimators": 128, "max_depth": 4}, "14.4 [322]", "58.3"),
    (
        "Car, q=2, 128 trees over 4 features, depth 4", CAR, 4, 1728,
        {"n_estimators": 128, "max_depth": 4, "n_ensembles": 2, "max_features": 4}, "9.3 [85]", "47.8",
    ),
    (
        "Mushroom, q=5, 125 trees over 4 features, depth 3", MUSHROOM, 2, 6499,
        {"n_estimators": 125, "max_depth": 3, "n_ensembles": 5, "max_features": 4}, "10.6", "40.1",
    ),
    ("13 features (Heart), 102 trees, depth 3", HEART, 2, 297, {"n_estimators": 102, "max_depth": 3}, "-", "-"),
    ("20 features of 4 values, 128 trees, depth 3", WIDE, 2, 10_000, {"n_estimators": 128, "max_depth": 3}, "-", "-"),
]  # fmt: skip


def schema(name: str, sizes: tuple[int, ...], classes: int) -> vw.Schema:
    columns = [{"name": f"f{i}", "kind": "categorical", "values": list(range(n))} for i, n in enumerate(sizes)]
    target = {"name": "class", "kind": "categorical", "values": list(range(classes))}
    return vw.Schema.from_dict(
        {"name": name, "task": "classification", "target": "class", "columns": [*columns, target]}
    )


def run(case: tuple[Any, ...]) -> tuple[float, float, float, str]:
    """CPU seconds of the plan (trees and strategy), of a whole fit, peak memory in GiB, and what is released."""
    name, sizes, classes, rows, parameters, *_ = case
    warnings.simplefilter("ignore")
    facts, rng = schema(name, sizes, classes), np.random.default_rng(0)
    X = rng.integers(0, sizes, (rows, len(sizes)))
    y = rng.integers(0, classes, rows)
    small = vw.MatrixForestClassifier(facts, n_estimators=len(sizes), max_depth=1, random_state=1)
    small.fit(X[:10], y[:10])  # compiled code is loaded before the clock starts
    forest = vw.MatrixForestClassifier(facts, epsilon=1.0, random_state=0, **parameters)
    begin = time.process_time()
    forest.plan()
    planned = time.process_time() - begin
    begin = time.process_time()
    forest.fit(X, y)
    fitted = time.process_time() - begin
    return planned, fitted, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, forest.plan_.released


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out the two large domains")
    options = parser.parse_args()
    head = [
        "forest", "cells", "plan: trees and strategy, s", "authors: optimisation, s", "whole fit, s",
        "authors: whole fit, s", "times faster", "peak GiB", "released",
    ]  # fmt: skip
    print(f"| {' | '.join(head)} |\n|" + "---|" * len(head))
    for case in CASES[:3] if options.quick else CASES:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            planned, fitted, memory, released = pool.apply(run, (case,))
        name, sizes, *_, optimisation, whole = case
        ratio = "-" if whole == "-" else f"{float(whole) / fitted:.0f}"
        cells = [
            name, f"{np.prod(np.array(sizes, float)):.3g}", f"{planned:.2f}", optimisation, f"{fitted:.2f}", whole,
            ratio, f"{memory:.2f}", released,
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
