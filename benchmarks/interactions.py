# SPDX-License-Identifier: Apache-2.0
"""Measure which interactions forests find, and how often explanations show one that is not there.

    OMP_NUM_THREADS=1 python benchmarks/interactions.py --out benchmarks/results/interactions.md

The parity of k of d binary columns with 5 % noise: 40,000 rows for training, 10,000 for testing, best possible 0.95. No
smaller set of columns predicts anything. Explanations: 30,000 rows of 12 columns, of which seven act one by one, alone
or with a product of two. The script asserts nothing.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import veilwood as vw

LADDER = ((6, 2), (6, 3), (6, 4), (6, 5), (10, 2), (10, 3), (10, 4))
FAMILIES = ("PrivateForest", "RandomTrees", "MedianForest", "GreedyForest")
EPSILONS = (1.0, 4.0)
N_TRAIN, N_TEST = 40_000, 10_000
PRODUCTS = (("classification", 0.0), ("classification", 3.0), ("regression", 0.0), ("regression", 1.0))


def parity_score(family: str, n_columns: int, together: int, epsilon: float, seed: int) -> float:
    """Return the accuracy of one fit."""
    rng = np.random.default_rng([seed, n_columns, together])
    bits = rng.integers(2, size=(N_TRAIN + N_TEST, n_columns))
    y = (bits[:, :together].sum(axis=1) % 2) ^ (rng.random(len(bits)) < 0.05)
    names = [f"b{j}" for j in range(n_columns)]
    columns = [{"name": name, "kind": "categorical", "values": [0, 1]} for name in (*names, "y")]
    schema = vw.Schema.from_dict({"name": "parity", "task": "classification", "target": "y", "columns": columns})
    X = pd.DataFrame(bits, columns=names)
    forest = getattr(vw, f"{family}Classifier")(schema, epsilon=epsilon, random_state=seed)
    return float(forest.fit(X[:N_TRAIN], y[:N_TRAIN]).score(X[N_TRAIN:], y[N_TRAIN:]))


def explained_pairs(task: str, product: float, seed: int) -> tuple[bool, bool]:
    """Return whether a fit shows a clear pair that does not act together, and whether it shows the one that does."""
    rng = np.random.default_rng(seed)
    X = rng.random((30_000, 12))
    parts = [X[:, 0] - 0.5, np.sin(6 * X[:, 1]) / 2, X[:, 2] > 0.6, X[:, 3] ** 2, X[:, 4], X[:, 5] > 0.3, X[:, 6]]
    score = np.stack(parts, axis=1) @ np.array([3, -2.5, 2, 1.5, -1.5, 1, 1]) - 1
    score += 4 * product * (X[:, 1] - 0.5) * (X[:, 6] - 0.5)
    domain: dict[str, Any] = {"classes": [0, 1]}
    y = (rng.random(30_000) < 1 / (1 + np.exp(-score))).astype(int)
    if task == "regression":
        domain, y = {"target_bounds": (-10.0, 10.0)}, score + rng.standard_normal(30_000)
    kind = vw.PrivateForestClassifier if task == "classification" else vw.PrivateForestRegressor
    forest = kind(vw.Schema.numeric((0, 1), n_features=12, **domain), epsilon=2.0, random_state=seed)
    clear = {frozenset(pair.columns) for pair in forest.fit(X, y).explain().interactions if pair.is_clear}
    true = {frozenset(("x1", "x6"))} if product else set()
    return bool(clear - true), bool(clear & true)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="fits of each parity")
    parser.add_argument("--fits", type=int, default=20, help="fits that are explained")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    began = time.process_time()
    lines = ["# Interactions", "", "Accuracy of the parity of k of d binary columns, mean and least of "
             f"{given.seeds} fits; 40,000 rows, 5 % noise, best possible 0.95, delta 0.", "",
             f"| k of d | epsilon | {' | '.join(FAMILIES)} |", "|---" * (len(FAMILIES) + 2) + "|"]  # fmt: skip
    for n_columns, together in LADDER:
        for epsilon in EPSILONS:
            texts = []
            for family in FAMILIES:
                fits = [parity_score(family, n_columns, together, epsilon, seed) for seed in range(given.seeds)]
                texts.append(f"{np.mean(fits):.3f} ({min(fits):.3f})")
            lines.append(f"| {together} of {n_columns} | {epsilon:g} | {' | '.join(texts)} |")
            print(lines[-1], flush=True)
    lines += ["", f"Explanations of {given.fits} fits of PrivateForest, 30,000 rows of 12 columns, epsilon 2.", "",
              "| target | product | fits with a false pair | fits with the product |", "|---|---|---|---|"]  # fmt: skip
    for task, product in PRODUCTS:
        shown = np.array([explained_pairs(task, product, seed) for seed in range(given.fits)])
        lines.append(f"| {task} | {product:g} | {shown[:, 0].sum()} | {shown[:, 1].sum() if product else '-'} |")
        print(lines[-1], flush=True)
    lines += ["", f"{time.process_time() - began:.0f} CPU seconds.", ""]
    if given.out:
        given.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
