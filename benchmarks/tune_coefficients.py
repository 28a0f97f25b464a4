# SPDX-License-Identifier: Apache-2.0
"""Fit the coefficients with which ``veilwood.tune`` ranks settings to skills measured on public tables.

    python benchmarks/tune_coefficients.py --data DATA --measured measured.csv \\
        -o packages/veilwood/src/veilwood/forests/expected_families.json

Each setting of a grid is fitted with noise to a part of each table and evaluated on the rest. The regression predicts
skill, relative to its mean over the settings of a table at an epsilon, from public numbers (``tune.facts``). The output
also states how well the coefficients rank the settings of a table that was left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import warnings
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.forests.expected_skill import ForestSize, size_features
from veilwood.tuning import averaging_estimator, tunable_estimators

TABLES = (
    "adult", "balance-scale", "car", "mushroom", "wall-following-robot", "titanic", "gas-turbine", "parkinsons",
    "banknote", "heart", "blood-transfusion", "credit-default", "mammographic", "iris", "higgs",
    "metro-traffic", "appliances-energy",
)  # fmt: skip
EPSILONS = (0.1, 1.0, 10.0)
SIZES = [(trees, depth) for trees in (1, 4, 16, 64) for depth in (1, 2, 4, 7)]
MATRIX_SIZES = [(64, depth) for depth in (1, 2, 3)]
MOST_ROWS = 4000
MOST_LEAVES = 1 << 14
WIDE = 8  # columns beyond which it takes minutes to plan matrix forests
STIFFNESS = 3.0  # of the ridge, in rows


def schema_of(path: Path) -> vw.Schema:
    """A schema of a public table: its bounds may be read off the data."""
    data = json.loads(path.read_text())
    columns = [{k: v for k, v in column.items() if k not in ("bounds", "notes")} for column in data["columns"]]
    return vw.Schema.from_dict(
        {"name": data["name"], "task": data["task"], "target": data["target"], "columns": columns}
    )


def skill_of(forest: Any, X: Any, y: Any) -> float:
    """0 for the most frequent class, or the mean; 1 for no error at all."""
    score = forest.score(X, y)
    if forest._task == "regression":
        return float(np.clip(score, -1, 1))
    majority = pd.Series(np.asarray(y)).value_counts(normalize=True).max()
    return float(np.clip((score - majority) / (1 - majority), -1, 1))


def measure(data: Path, name: str, seed: int) -> list[dict[str, Any]]:
    """Fit every setting on a half of a table, and judge it on the other."""
    schema = schema_of(data / f"{name}.json")
    X, y = vw.read_table(data / f"{name}.csv.gz", schema)
    order = np.random.default_rng(seed).permutation(len(X))[:MOST_ROWS]
    half = len(order) // 2
    train, rest = order[:half], order[half:]
    rows = []
    kinds = [kind for kind in tunable_estimators() if kind._task == schema.task]
    for epsilon, kind in itertools.product(EPSILONS, kinds):
        matrix = kind.__name__.startswith("Matrix")
        if matrix and len(schema.features) > WIDE:
            continue
        for trees, depth in MATRIX_SIZES if matrix else SIZES:
            forest = averaging_estimator(kind).set_params(
                schema=schema, epsilon=epsilon, random_state=seed, n_estimators=trees, max_depth=depth,
                leaves="empirical-bayes",
            )  # fmt: skip
            try:
                plan, method = forest.plan(), forest._make_method()
            except vw.VeilwoodError:  # too large, or deeper than there are columns
                continue
            if plan.n_leaves > MOST_LEAVES:
                continue
            setting = ForestSize.from_method(
                method, Encoding(schema, method.numeric), half, plan.n_leaves, plan.expected_leaf_mse, epsilon
            )  # fmt: skip
            forest.fit(X.iloc[train], y.iloc[train])
            judged = skill_of(forest, X.iloc[rest], y.iloc[rest])
            rows.append({"table": name, "epsilon": epsilon, **asdict(setting), "skill": judged})
    return rows


def expanded(table: pd.DataFrame) -> pd.DataFrame:
    """What is weighed, for each setting."""
    names = [field.name for field in fields(ForestSize)]
    rows = [
        size_features(ForestSize(**dict(zip(names, row, strict=True)))) for row in table[names].itertuples(index=False)
    ]
    return pd.DataFrame(rows, index=table.index)


def centred(table: pd.DataFrame, values: pd.DataFrame) -> np.ndarray:
    """Values less their mean over the settings of one table at one epsilon."""
    return (values - values.groupby([table["table"], table["epsilon"]]).transform("mean")).to_numpy(float)


def fit(table: pd.DataFrame) -> np.ndarray:
    """Ridge regression of skill on the facts."""
    A, b = centred(table, expanded(table)), centred(table, table[["skill"]])[:, 0]
    size = A.std(axis=0) + 1e-12
    A = A / size
    return np.linalg.solve(A.T @ A + STIFFNESS * np.eye(A.shape[1]), A.T @ b) / size


def left_out(table: pd.DataFrame, score: Any) -> dict[str, float]:
    """How well settings are ranked on tables that were left out: rank correlation, error, and what the best gains."""
    found, errors, gained = [], [], []
    for name in table["table"].unique():
        weights = fit(table[table["table"] != name])
        own = table[table["table"] == name]
        for _, here in own.groupby("epsilon"):
            result, true = score(here, weights), here["skill"].to_numpy()
            errors.append(result - result.mean() - (true - true.mean()))
            gained.append(true[result.argmax()] - np.median(true))
            if true.std() > 0 and result.std() > 0:  # where all settings are alike there is nothing to rank
                found.append(spearmanr(result, true).statistic)
    error = np.sqrt(np.mean(np.concatenate(errors) ** 2))
    numbers = {"rank_correlation": np.mean(found), "error": error, "best_above_median": np.mean(gained)}
    return {name: round(float(value), 3) for name, value in numbers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of public tables: NAME.csv.gz and NAME.json")
    parser.add_argument("--measured", type=Path, required=True, help="what was measured; made, or gone on with")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("-o", "--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    done = pd.read_csv(given.measured) if given.measured.exists() else pd.DataFrame({"table": []})
    for name in TABLES:
        if name not in set(done["table"]):
            rows = [row for seed in range(given.seeds) for row in measure(given.data, name, seed)]
            done = pd.concat([done, pd.DataFrame(rows)], ignore_index=True)
            done.to_csv(given.measured, index=False)
            print(name, len(rows), flush=True)
    settings = ["table", "epsilon", "family", "trees", "depth"]  # the mean over seeds: one fit is noisy
    done = done.groupby(settings, as_index=False, sort=False).mean()
    by_prior = left_out(done, lambda first, _: first["prior"].to_numpy(float))
    by_facts = left_out(done, lambda first, weights: expanded(first).to_numpy(float) @ weights)
    facts = {
        "weights": {name: round(float(w), 5) for name, w in zip(expanded(done[:1]), fit(done), strict=True)},
        **by_facts,
        "by_the_prior_alone": by_prior,
        "most_rows_times_epsilon": MOST_ROWS / 2 * max(EPSILONS),
        "tables": sorted(set(done["table"])),
        "settings": len(done),
    }
    print(json.dumps(facts, indent=2))
    if given.out:
        given.out.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
