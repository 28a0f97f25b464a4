# SPDX-License-Identifier: Apache-2.0
"""The coefficients by which ``veilwood.tune`` ranks settings: fitted to skills that were measured on public tables.

    python benchmarks/tune_coefficients.py --data DATA --measured measured.csv -o src/veilwood/tune.json

Each setting of a grid is fitted with noise on a part of each table and judged on the rest. What is learned is how
skill, less its mean over the settings of a table at an epsilon, follows from public numbers (``tune.facts``). How well
that ranks the settings of a table that was left out is written beside the coefficients.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

import veilwood as vw
from veilwood.tune import BASICS, FAMILIES, averaging, basics, facts, tune

TABLES = (
    "adult", "balance-scale", "banknote", "blood-transfusion", "car", "credit-default", "heart", "mammographic",
    "mushroom", "titanic", "wall-following-robot", "gas-turbine", "parkinsons", "metro-traffic", "appliances-energy",
)  # fmt: skip
EPSILONS = (0.1, 1.0, 10.0)
GRID = {"n_estimators": (1, 4, 16), "max_depth": (1, 2, 4, 6)}
MOST_ROWS = 4000
WIDE = 15  # columns beyond which it takes minutes to plan matrix forests
STIFFNESS = 30.0  # of the ridge, in rows


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
    if forest.task == "regression":
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
    for epsilon in EPSILONS:
        kinds = [kind for kind in FAMILIES if kind.task == schema.task]
        if len(schema.features) > WIDE:
            kinds = [kind for kind in kinds if not kind.__name__.startswith("Matrix")]
        grid = GRID | {"n_ensembles": (1,), "max_features": (min(4, len(schema.features)),)}
        for kind in kinds:
            own = {key: values for key, values in grid.items() if key in kind().get_params()}
            try:
                found = tune(schema, averaging(kind), n=half, epsilon=epsilon, grid=own)
            except vw.VeilwoodError:
                continue
            for setting in found.settings:
                forest = averaging(kind).set_params(
                    schema=schema, epsilon=epsilon, random_state=seed, **setting.parameters
                )
                forest.fit(X.iloc[train], y.iloc[train])
                known = basics(setting)
                rows.append({"table": name, "epsilon": epsilon, "estimator": kind.__name__, **setting.parameters,
                             **dict(zip(BASICS, known, strict=True)),
                             "skill": skill_of(forest, X.iloc[rest], y.iloc[rest])})  # fmt: skip
    return rows


def expanded(table: pd.DataFrame) -> pd.DataFrame:
    """What is weighed, for each setting."""
    rows = zip(table["estimator"], table[list(BASICS)].to_numpy(float), strict=True)
    return pd.DataFrame([facts(estimator, numbers) for estimator, numbers in rows], index=table.index)


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
        mine = table[table["table"] == name]
        for _, here in mine.groupby("epsilon"):
            said, true = score(here, weights), here["skill"].to_numpy()
            errors.append(said - said.mean() - (true - true.mean()))
            gained.append(true[said.argmax()] - np.median(true))
            if true.std() > 0 and said.std() > 0:
                found.append(spearmanr(said, true).statistic)
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
    by_prior = left_out(done, lambda mine, _: mine["prior"].to_numpy(float))
    by_facts = left_out(done, lambda mine, weights: expanded(mine).to_numpy(float) @ weights)
    told = {
        "weights": {name: round(float(w), 5) for name, w in zip(expanded(done[:1]), fit(done), strict=True)},
        **by_facts,
        "by_the_prior_alone": by_prior,
        "most_rows_times_epsilon": MOST_ROWS / 2 * max(EPSILONS),
        "tables": sorted(set(done["table"])),
        "settings": len(done),
    }
    print(json.dumps(told, indent=2))
    if given.out:
        given.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
