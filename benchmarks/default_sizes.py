# SPDX-License-Identifier: Apache-2.0
"""Compare the classic estimators at default parameters with majority, mean and forests without noise.

    python benchmarks/default_sizes.py --data DATA -o benchmarks/results/default_sizes.md

Each estimator is fitted to a part of each public table and evaluated on the rest. Each seed draws a new split. All
families use the same rows.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Sequence
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
SLOW_SEEDS = 3  # of matrix forests
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


def without_order(numbers: np.ndarray, schema: vw.Schema, rng: np.random.Generator) -> np.ndarray:
    """Number categories in a random order: the schema knows of none, and neither do our forests."""
    found = numbers.copy()
    for i, column in enumerate(schema.features):
        if column.kind != "numeric":
            values, place = np.unique(numbers[:, i], return_inverse=True)
            found[:, i] = rng.permutation(len(values))[place]
    return found


def measure(data: Path, name: str, seeds: int, families: Sequence[str] = FAMILIES) -> list[dict[str, Any]]:
    """Fit every family at every epsilon, once for each seed."""
    schema = schema_of(data / f"{name}.json")
    X, y = vw.read_table(data / f"{name}.csv.gz", schema)
    classes = schema.task == "classification"
    numbers, bins, rows = as_numbers(X), Encoding(schema, "bins").encode(X).astype(float), []
    for family in families:
        kind = getattr(vw, f"{family}{'Classifier' if classes else 'Regressor'}", None)
        if kind is None or (family == "MatrixForest" and len(schema.features) > WIDE):
            continue
        for seed in range(SLOW_SEEDS if family == "MatrixForest" else seeds):
            rng = np.random.default_rng(seed)
            order = rng.permutation(len(X))[:MOST_ROWS]
            train, rest = np.split(order, [int(0.7 * len(order))])
            fitted, judged = (X.iloc[train], y.iloc[train]), (X.iloc[rest], y.iloc[rest])
            constant = float((judged[1] == fitted[1].mode()[0]).mean()) if classes else 0.0
            seen = without_order(bins if family == "MatrixForest" else numbers, schema, rng)
            plain, own = (
                counterpart(family, schema.task).fit(table[train], fitted[1]).score(table[rest], judged[1])
                for table in (numbers, seen)
            )
            for epsilon in EPSILONS:
                forest = kind(schema, epsilon=epsilon, random_state=seed).fit(*fitted)
                size = "{n_estimators} x {max_depth}".format(**forest.plan_.choices)
                rows.append({"table": name, "task": schema.task, "family": family, "epsilon": epsilon, "seed": seed,
                             "size": size, "score": forest.score(*judged), "constant": constant, "plain": plain,
                             "own": own})  # fmt: skip
    return rows


def promises(table: pd.DataFrame) -> list[str]:
    """What was promised, and what was measured: on average over tables, and every cell that falls short."""
    lines = ["## Promises", "",
             "| family | task | own less without noise | constant less 0.1 | largest loss by more epsilon |",
             "|---|---|---|---|---|"]  # fmt: skip
    short = []
    steps = list(pairwise(EPSILONS))
    for (task, family), first in table.groupby(["task", "family"], sort=False):
        cells = first.pivot(index=["table", "seed"], columns="epsilon", values="score")
        own = first.groupby(["table", "seed"])[["own", "constant"]].first()
        most_below = 0.02 if task == "classification" else 0.05
        found = {"behind its own counterpart without noise": (own["own"] - cells[math.inf], 0.02),
                 "below the constant at 0.1": (own["constant"] - cells[0.1], most_below)}  # fmt: skip
        found |= {f"lost from {low:g} to {high:g}": (cells[low] - cells[high], 0.01) for low, high in steps}
        means = [gaps.groupby("table").mean().mean() for gaps, _ in found.values()]
        lines.append(f"| {family} | {task} | {means[0]:+.3f} | {means[1]:+.3f} | {max(means[2:]):+.3f} |")
        for words, (gaps, most) in found.items():
            by_table = gaps.groupby("table")
            errors = by_table.std() / np.sqrt(by_table.count())
            short += [f"{family} on {name}: {gap:.3f} ({errors[name]:.3f}) {words}"
                      for name, gap in by_table.mean().items() if gap > most]  # fmt: skip
    return [*lines, "", "Cells that fall short on average over seeds (more than 0.02 behind, 0.02 or an R2 of -0.05 "
            "below, 0.01 lost), with the standard error of the difference:", "",
            *(f"- {each}" for each in short), ""]  # fmt: skip


def page(table: pd.DataFrame, seeds: int) -> str:
    """The results in words."""
    lines = ["# Default sizes of the classic estimators", "",
             f"`python benchmarks/default_sizes.py`: no parameter but epsilon; {seeds} seeds, each with rows of its "
             f"own: 70 per cent of at most {MOST_ROWS:,} rows of each table, judged on the rest; delta 0, `n_rows` not "
             f"declared. Matrix forests on tables of at most {WIDE} columns, {SLOW_SEEDS} seeds. "
             "Accuracy, or R2 for numbers. *constant*: the most frequent class, or the mean. *plain*: without "
             "privacy, 100 extremely random trees (one column tried at a node for random trees and matrix forests, the "
             "usual number for median forests), one decision tree for greedy forests; *own*: the same on what the "
             "family sees: categories in a random order, as the schema knows of none, and for matrix forests the bins "
             "of the schema.",
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
        for family, first in own.groupby("family", sort=False):
            first = (
                first.groupby(["table", "epsilon"], sort=False)[["score", "constant", "own", "plain"]]
                .mean()
                .reset_index()
            )
            gains = (first["score"] - first["constant"]).groupby(first["epsilon"]).mean()
            last = first[first["epsilon"] == math.inf]
            gains = [*gains, *((last[plain] - last["constant"]).mean() for plain in ("own", "plain"))]
            lines.append(f"| {family} | " + " | ".join(f"{gain:+.3f}" for gain in gains) + " |")
        lines += [
            "",
            "| table | family | constant | 0.1 | 1 | 10 | inf | own | plain | sizes |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for (name, family), first in own.groupby(["table", "family"], sort=False):
            scores = " | ".join(f"{score:.3f}" for score in first.groupby("epsilon")["score"].mean())
            mean, sizes = first[["constant", "own", "plain"]].mean(), first[first["seed"] == 0]["size"]
            lines.append(
                f"| {name} | {family} | {mean['constant']:.3f} | {scores} | {mean['own']:.3f} | {mean['plain']:.3f} | "
                f"{', '.join(sizes)} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of public tables: NAME.csv.gz and NAME.json")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--more", action="store_true", help="go on where an earlier run was stopped")
    parser.add_argument("--family", choices=FAMILIES, help="measure this one again; the others keep their results")
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = given.out.with_suffix(".json")
    rows: list[dict[str, Any]] = json.loads(kept.read_text()) if given.more or given.family else []
    for row in rows:
        row["epsilon"] = float(row["epsilon"])
    known = {row["table"] for row in rows}
    rows = [row for row in rows if row["family"] != given.family]
    order = {name: place for place, name in enumerate(TABLES)}
    for name in [each for each in TABLES if given.family or each not in known]:
        rows += measure(given.data, name, given.seeds, [given.family] if given.family else FAMILIES)
        rows.sort(key=lambda row: (order[row["table"]], FAMILIES.index(row["family"])))
        table = pd.DataFrame(rows)
        given.out.write_text(page(table, given.seeds))
        given.out.with_suffix(".json").write_text(
            json.dumps(rows, indent=1, default=str).replace("Infinity", '"inf"') + "\n"
        )
        print(name, flush=True)


if __name__ == "__main__":
    main()
