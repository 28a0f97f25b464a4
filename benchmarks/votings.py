# SPDX-License-Identifier: Apache-2.0
"""Compare the votings of a default matrix forest on the same releases: public tables, and parities of a few columns.

    python benchmarks/votings.py --data DATA -o benchmarks/results/votings.md

Votings are post-processing, so each forest is fitted once and read in every way. Each seed draws another split and
another release.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tune_coefficients import schema_of

import veilwood as vw

VOTINGS = ("auto", "hard", "weight")
EPSILONS = (0.1, 1.0, 4.0, 10.0)
MOST_ROWS = 3000
LADDER = ((10, 1), (20, 1), (6, 2), (6, 3))  # columns, and how many of them the label is the parity of
LADDER_ROWS, LADDER_TEST, FLIPPED = 50_000, 2_000, 0.05
SMALL, MORE_SEEDS = 1000, 4  # tables of fewer rows have so many times as many seeds
MOST_COLUMNS = 62  # of one matrix forest
MARGIN = 0.02


def parity_table(n_columns: int, n_relevant: int, seed: int) -> tuple[vw.Schema, pd.DataFrame, pd.Series[Any]]:
    """Return binary columns and a label that is the parity of the first few, with some labels flipped."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2, (LADDER_ROWS + LADDER_TEST, n_columns))
    label = codes[:, :n_relevant].sum(axis=1) % 2 ^ (rng.random(len(codes)) < FLIPPED)
    names = [f"c{i}" for i in range(n_columns)]
    columns = [{"name": name, "kind": "categorical", "values": ["0", "1"]} for name in (*names, "label")]
    schema = vw.Schema.from_dict({"name": "parity", "task": "classification", "target": "label", "columns": columns})
    return schema, pd.DataFrame(codes.astype(str), columns=names), pd.Series(label.astype(int).astype(str))


def scores_by_voting(forest: Any, X: pd.DataFrame, y: pd.Series[Any]) -> dict[str, float]:
    """Return the accuracy of one fitted forest under each voting."""
    arrays, scores = forest.model_.to_arrays(), {}
    codes, classes = forest._encode_rows(X), np.array(forest.schema_.classes)
    for voting in VOTINGS:
        model = forest.set_params(voting=voting)._make_method().restore_model(forest.schema_, forest.plan_, arrays)
        scores[voting] = float(np.mean(classes[model.predict_both(codes)[1]] == y.astype(str).to_numpy()))
    return scores


def measure(name: str, schema: vw.Schema, parts: Any, epsilon: float, seed: int) -> dict[str, Any]:
    """Fit one forest and score every voting."""
    X, y, X_test, y_test = parts
    forest = vw.MatrixForestClassifier(schema, epsilon=epsilon, random_state=seed).fit(X, y)
    size = "{n_estimators} x {max_depth}".format(**forest.plan_.choices)
    majority = float(y_test.value_counts(normalize=True).max())
    return {"table": name, "epsilon": epsilon, "seed": seed, "size": size, "majority": majority,
            **scores_by_voting(forest, X_test, y_test)}  # fmt: skip


def page(rows: list[dict[str, Any]], too_wide: list[str]) -> str:
    """Return the results as Markdown."""
    frame = pd.DataFrame(rows)
    frame["gap"] = frame["auto"] - frame[["hard", "weight"]].max(axis=1)
    lines = [
        "# Votings of the default matrix forest", "",
        f"`python benchmarks/votings.py`: `MatrixForestClassifier(schema, epsilon=...)`, read in three ways from the "
        f"same release. Public tables: at most {MOST_ROWS:,} rows, 70 per cent to fit, the rest to score. Parities: "
        f"{LADDER_ROWS:,} rows of binary columns, label the parity of the first few with {FLIPPED:.0%} of labels "
        "flipped. *auto* multiplies class frequencies. Accuracy, mean over seeds; *auto less best*: difference of the "
        "means of auto and of the better of the two others, with the standard error of the paired difference. Not "
        f"there: tables of more than {MOST_COLUMNS} columns, which a default matrix forest rejects "
        f"({', '.join(too_wide)}).", "",
    ]  # fmt: skip
    table, short = ["| table | epsilon | seeds | size | majority | hard | weight | auto | auto less best |",
                    "|---" * 9 + "|"], []  # fmt: skip
    gaps = []
    for (name, epsilon), own in frame.groupby(["table", "epsilon"], sort=False):
        means = own[[*VOTINGS, "majority"]].mean()
        best = "hard" if means["hard"] >= means["weight"] else "weight"
        paired = own["auto"] - own[best]
        error = paired.std(ddof=1) / math.sqrt(len(own)) if len(own) > 1 else math.nan
        gaps.append(paired.mean())
        cell = f"| {name} | {epsilon:g} | {len(own)} | {own['size'].iloc[0]} | {means['majority']:.3f} | "
        cell += " | ".join(f"{means[voting]:.3f}" for voting in ("hard", "weight", "auto"))
        table.append(f"{cell} | {paired.mean():+.3f} ± {error:.3f} |")
        if paired.mean() < -MARGIN:
            short.append(f"- {name} at epsilon {epsilon:g}: {paired.mean():+.3f} ± {error:.3f} against {best}")
    lines += [f"{len(gaps)} cells: auto is {np.mean(gaps):+.3f} against the better of both on average, at worst "
              f"{min(gaps):+.3f}. Cells in which it loses more than {MARGIN:g}: {len(short) or 'none'}.", "", *short,
              *([""] if short else []), *table]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every table that has no results yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of public tables: NAME.csv.gz and NAME.json")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--only", nargs="*", help="tables to measure now; others keep their results")
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = given.out.with_suffix(".json")
    rows: list[dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else []
    names = [f"parity of {k} of {n}" for n, k in LADDER]
    facts = {path.stem: json.loads(path.read_text()) for path in sorted(given.data.glob("*.json"))}
    tables = {name: len(fact["columns"]) - 1 for name, fact in facts.items() if fact.get("task") == "classification"}
    too_wide = [name for name, n_columns in tables.items() if n_columns > MOST_COLUMNS]
    names += [name for name in tables if name not in too_wide]
    given.out.write_text(page(rows, too_wide) if rows else "")
    for name in names:
        if (given.only and name not in given.only) or name in {row["table"] for row in rows}:
            continue
        parity = [int(word) for word in name.split() if word.isdigit()] if name.startswith("parity") else []
        if not parity:
            schema = schema_of(given.data / f"{name}.json")
            X, y = vw.read_table(given.data / f"{name}.csv.gz", schema)
        few_rows = not parity and len(X) < SMALL
        for seed in range(given.seeds * (MORE_SEEDS if few_rows else 1)):
            if parity:
                schema, X, y = parity_table(parity[1], parity[0], seed)
                order, cut = np.arange(len(X)), LADDER_ROWS
            else:
                order = np.random.default_rng(seed).permutation(len(X))[:MOST_ROWS]
                cut = int(0.7 * len(order))
            train, test = order[:cut], order[cut:]
            parts = X.iloc[train], y.iloc[train], X.iloc[test], y.iloc[test]
            rows += [measure(name, schema, parts, epsilon, seed) for epsilon in EPSILONS]
        rows.sort(key=lambda row: names.index(row["table"]) if row["table"] in names else len(names))
        kept.write_text(json.dumps(rows) + "\n")
        given.out.write_text(page(rows, too_wide))
        print(name, flush=True)


if __name__ == "__main__":
    main()
