# SPDX-License-Identifier: Apache-2.0
"""The classic estimators with default parameters on public tables, beside majority, mean and forests without noise.

    python benchmarks/default_sizes.py --data DATA -o benchmarks/results/default_sizes.md

Each is fitted with noise on a part of each table, on one seed or more, and judged on the rest.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from tune_coefficients import schema_of

import veilwood as vw
from veilwood.data.encoding import Encoding

TABLES = (
    "iris", "parkinsons", "titanic", "gas-turbine", "metro-traffic", "blood-transfusion", "mammographic", "banknote",
    "appliances-energy", "car", "balance-scale", "heart", "mushroom", "wall-following-robot", "credit-default", "adult",
)  # fmt: skip
FAMILIES = ("RandomTrees", "MatrixForest", "MedianForest", "GreedyForest")
EPSILONS = (0.1, 1.0, 10.0, math.inf)
MOST_ROWS = 1500
WIDE = 4  # columns beyond which matrix forests are left out: planning takes long


def as_numbers(X: pd.DataFrame) -> np.ndarray:
    """Categories by number, for forests of scikit-learn."""
    found = {name: X[name] if X[name].dtype.kind in "fi" else pd.factorize(X[name], sort=True)[0] for name in X}
    return pd.DataFrame(found, index=X.index).fillna(-1e3).to_numpy(float)


def counterpart(family: str, task: str) -> Any:
    """What a family is without privacy: random trees, or a tree of greedy splits."""
    if family == "GreedyForest":
        return (
            DecisionTreeClassifier(random_state=0)
            if task == "classification"
            else DecisionTreeRegressor(min_samples_leaf=5)
        )
    kind = ExtraTreesClassifier if task == "classification" else ExtraTreesRegressor
    return kind(100, max_features=1 if family in ("RandomTrees", "MatrixForest") else "sqrt", random_state=0)


def measure(data: Path, name: str, seeds: int) -> list[dict[str, Any]]:
    """Fit every family at every epsilon."""
    schema = schema_of(data / f"{name}.json")
    X, y = vw.read_table(data / f"{name}.csv.gz", schema)
    order = np.random.default_rng(0).permutation(len(X))[:MOST_ROWS]
    cut = int(0.7 * len(order))
    train, rest = order[:cut], order[cut:]
    numbers, rows = as_numbers(X), []
    constant = float((y.iloc[rest] == y.iloc[train].mode()[0]).mean()) if schema.task == "classification" else 0.0
    for family in FAMILIES:
        kind = getattr(vw, f"{family}{'Classifier' if schema.task == 'classification' else 'Regressor'}", None)
        if kind is None or (family == "MatrixForest" and len(schema.features) > WIDE):
            continue
        plain = counterpart(family, schema.task).fit(numbers[train], y.iloc[train]).score(numbers[rest], y.iloc[rest])
        if family == "MatrixForest":  # which sees the bins of the schema only
            cells = Encoding(schema, "bins").encode(X)
            own = counterpart(family, schema.task).fit(cells[train], y.iloc[train]).score(cells[rest], y.iloc[rest])
        else:
            own = plain
        for epsilon in EPSILONS:
            n = 1 if math.isinf(epsilon) else seeds
            fits = [
                kind(schema, epsilon=epsilon, random_state=seed).fit(X.iloc[train], y.iloc[train]) for seed in range(n)
            ]
            scores = [forest.score(X.iloc[rest], y.iloc[rest]) for forest in fits]
            size = "{n_estimators} x {max_depth}".format(**fits[0].plan_.choices)
            rows.append({"table": name, "task": schema.task, "family": family, "epsilon": epsilon, "size": size,
                         "score": float(np.mean(scores)), "constant": constant,
                         "plain": plain, "own": own})  # fmt: skip
    return rows


def promises(table: pd.DataFrame) -> list[str]:
    """What was promised, and what was measured: on average over tables, and every cell that falls short."""
    lines = ["## Promises", "",
             "| family | task | own less without noise | constant less 0.1 | largest loss by more epsilon |",
             "|---|---|---|---|---|"]  # fmt: skip
    short = []
    for (task, family), mine in table.groupby(["task", "family"], sort=False):
        cells = mine.pivot(index="table", columns="epsilon", values="score")
        own = mine.groupby("table")[["own", "constant"]].first()
        behind, below = own["own"] - cells[math.inf], own["constant"] - cells[0.1]
        steps = list(pairwise(EPSILONS))
        lost = {high: cells[low] - cells[high] for low, high in steps}
        worst = max(each.mean() for each in lost.values())
        lines.append(f"| {family} | {task} | {behind.mean():+.3f} | {below.mean():+.3f} | {worst:+.3f} |")
        short += [f"{family} on {name}: {gap:.3f} behind its own counterpart without noise"
                  for name, gap in behind.items() if gap > 0.02]  # fmt: skip
        short += [f"{family} on {name}: {gap:.3f} below the constant at 0.1"
                  for name, gap in below.items() if gap > (0.02 if task == "classification" else 0.05)]  # fmt: skip
        for (low, high), gaps in zip(steps, lost.values(), strict=True):
            short += [f"{family} on {name}: {gap:.3f} lost from {low:g} to {high:g}"
                      for name, gap in gaps.items() if gap > 0.01]  # fmt: skip
    return [*lines, "", "Cells that fall short (more than 0.02 behind, 0.02 or an R2 of -0.05 below, 0.01 lost):", "",
            *(f"- {each}" for each in short), ""]  # fmt: skip


def page(table: pd.DataFrame, seeds: int) -> str:
    """The results in words."""
    lines = ["# Default sizes of the classic estimators", "",
             f"`python benchmarks/default_sizes.py`: no parameter but epsilon; {seeds} seeds; 70 per cent of at most "
             f"{MOST_ROWS:,} rows of each table, judged on the rest; delta 0, `n_rows` not declared. Matrix forests on "
             f"tables of at most {WIDE} columns. Accuracy, or R2 for numbers. *constant*: the most frequent class, or "
             "the mean. *plain*: without privacy, 100 extremely random trees (one column tried at a node for random "
             "trees and matrix forests, the usual number for median forests), one decision tree for greedy forests; "
             "*own*: the same on what the family sees, for matrix forests the bins of the schema.",
             "", *promises(table)]  # fmt: skip
    for task, words in (("classification", "Classes"), ("regression", "Numbers")):
        own = table[table["task"] == task]
        lines += [
            f"## {words}",
            "",
            "Mean over tables, less the constant:",
            "",
            "| family | 0.1 | 1 | 10 | inf | own | plain |",
            "|---|---|---|---|---|---|---|",
        ]
        for family, mine in own.groupby("family", sort=False):
            gains = (mine["score"] - mine["constant"]).groupby(mine["epsilon"]).mean()
            last = mine[mine["epsilon"] == math.inf]
            gains = [*gains, *((last[plain] - last["constant"]).mean() for plain in ("own", "plain"))]
            lines.append(f"| {family} | " + " | ".join(f"{gain:+.3f}" for gain in gains) + " |")
        lines += [
            "",
            "| table | family | constant | 0.1 | 1 | 10 | inf | plain | sizes |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for (name, family), mine in own.groupby(["table", "family"], sort=False):
            scores = " | ".join(f"{score:.3f}" for score in mine["score"])
            first = mine.iloc[0]
            lines.append(
                f"| {name} | {family} | {first['constant']:.3f} | {scores} | {first['plain']:.3f} | "
                f"{', '.join(mine['size'])} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of public tables: NAME.csv.gz and NAME.json")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--more", action="store_true", help="go on where an earlier run was stopped")
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = given.out.with_suffix(".json")
    rows: list[dict[str, Any]] = json.loads(kept.read_text()) if given.more else []
    for row in rows:
        row["epsilon"] = float(row["epsilon"])
    for name in [each for each in TABLES if each not in {row["table"] for row in rows}]:
        rows += measure(given.data, name, given.seeds)
        table = pd.DataFrame(rows)
        given.out.write_text(page(table, given.seeds))
        given.out.with_suffix(".json").write_text(
            json.dumps(rows, indent=1, default=str).replace("Infinity", '"inf"') + "\n"
        )
        print(name, flush=True)


if __name__ == "__main__":
    main()
