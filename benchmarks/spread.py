# SPDX-License-Identifier: Apache-2.0
"""Measure how far fits of PrivateForest on the same rows differ, on the development suite, for plans and reports.

    python benchmarks/spread.py --data DATA -o packages/veilwood/src/veilwood/forests/expected_private_forest.json

Each table is split once, and fitted several times at each budget. The standard deviation of the score (accuracy, or R2)
on the test rows is added to the table of results that plans read, which ``quality_table.py`` writes.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
from sklearn.metrics import accuracy_score, r2_score

import veilwood as vw
from veilwood_papers.suite.tables import load_table, split_rows

EPSILONS = (0.1, 1.0, 4.0)
MAX_ROWS = 25_000  # larger tables add nothing: their fits differ little


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of real tables: NAME.csv.gz and NAME.json")
    parser.add_argument("--fits", type=int, default=5)
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    parser.add_argument("--max-rows", type=int, default=MAX_ROWS)
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    results = json.loads(given.out.read_text())
    warnings.simplefilter("ignore")
    for name, entry in results["tables"].items():
        if entry["rows"] > given.max_rows:
            continue
        table = load_table("development", name, given.data)
        train, test = split_rows(len(table.y), 0)
        is_class = entry["task"] == "classification"
        estimator, score = (
            (vw.PrivateForestClassifier, accuracy_score) if is_class else (vw.PrivateForestRegressor, r2_score)
        )
        truth = table.y.iloc[test]
        spreads = {}
        for epsilon in given.epsilons:
            scores = []
            for fit in range(given.fits):
                forest = estimator(table.schema, epsilon=epsilon, random_state=fit, ledger=vw.MemoryLedger(), n_jobs=1)
                forest.fit(table.X.iloc[train], table.y.iloc[train])
                predicted = forest.predict(table.X.iloc[test])
                scores.append(score(truth.astype(str), predicted.astype(str)) if is_class else score(truth, predicted))
            spreads[f"{epsilon:g}"] = round(float(np.std(scores, ddof=1)), 4)
        entry["spread"] = spreads
        print(name, spreads, flush=True)
    results["spread_made_by"] = f"benchmarks/spread.py, {given.fits} fits of the same rows"
    given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
