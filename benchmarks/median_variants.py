# SPDX-License-Identifier: Apache-2.0
"""Compare variants of a median forest, select-then-median and k-medians, paired over splits, to choose the default.

    python benchmarks/median_variants.py --data FOLDER [--seeds 10] [--out FILE.md]

For classification the script also compares voting rules. FOLDER contains NAME.csv.gz and NAME.json. Depths are those
of the paper's tables, as are 10 trees, 5 candidates and half of epsilon for splits.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

import veilwood as vw
from veilwood_papers.diprime.methods import FLIP, load_table
from veilwood_papers.diprime.tables import CLASSES, REGRESSION, published_depths
from veilwood_papers.tables import PublicTables

VARIANTS = ("select-then-median", "k-medians", "random-attribute")
EPSILONS = (0.5, 2.0, 10.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", help="names of data sets")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = [
        "# Variants of median forests",
        "",
        "Loss on test rows (mean squared error over the variance of the target, or error rate), "
        f"{options.seeds} splits 90:10, mean; then the paired difference k-medians minus select-then-median ± its "
        "standard error (above 0: select-then-median is better). For classes, also majority votes minus "
        "averaged shares.",
        "",
        f"| data | epsilon | {' | '.join(VARIANTS)} | k-medians minus select-then-median | votes minus shares |",
        "|---|---|---|---|---|---|---|",
    ]
    tables = PublicTables([options.data])
    for panel, name in {**REGRESSION, **CLASSES}.items():
        if (options.only and name not in options.only) or panel == "Flight":
            continue
        table = load_table(tables, name)
        schema, X, y = table.schema, table.X, table.y
        for epsilon in EPSILONS:
            losses = np.array(
                [one_split(schema, X, y, published_depths(panel)[FLIP], epsilon, s) for s in range(options.seeds)]
            )
            cells = [f"{mean:.4g}" for mean in losses[:, :3].mean(axis=0)]
            cells.append(paired(losses[:, 1] - losses[:, 0]))
            cells.append(paired(losses[:, 3] - losses[:, 0]) if schema.classes else "")
            lines.append(f"| {name} | {epsilon:g} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text("\n".join(lines) + "\n")


def one_split(schema: vw.Schema, X: Any, y: Any, depth: int, epsilon: float, seed: int) -> list[float]:
    """Losses of the variants, then of the first one with majority votes."""
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.1, random_state=seed)
    kind: Any = vw.MedianForestClassifier if schema.classes else vw.MedianForestRegressor
    right = np.asarray(y_test)
    out, votes = [], []
    for variant in VARIANTS:
        forest = kind(
            schema, epsilon=epsilon, n_estimators=10, max_depth=depth, variant=variant, random_state=seed
        ).fit(X_train, y_train)
        predicted = forest.predict(X_test)
        if schema.classes:
            out.append(float(np.mean(predicted != right)))
            voting = kind(
                schema,
                epsilon=epsilon,
                n_estimators=10,
                max_depth=depth,
                variant=variant,
                random_state=seed,
                voting="majority",
            ).fit(X_train, y_train)
            votes.append(float(np.mean(voting.predict(X_test) != right)))
        else:
            out.append(float(np.mean((predicted - right) ** 2) / np.var(right)))
    return [*out, *votes[:1]]


def paired(differences: Any) -> str:
    return f"{differences.mean():+.4f} ± {differences.std(ddof=1) / len(differences) ** 0.5:.4f}"


if __name__ == "__main__":
    main()
