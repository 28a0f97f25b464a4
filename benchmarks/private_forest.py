# SPDX-License-Identifier: Apache-2.0
"""Compare PrivateForest with its peers: accuracy and error at equal privacy, calibration, and speed.

The script asserts nothing. The data is read from a folder of NAME.csv.gz and NAME.json, the peers' accuracies from a
table with columns dataset, epsilon, delta, accuracy, peer, and the M-RF figures from a folder with
mrf_accuracy_vs_epsilon_main.csv and mrf_nonprivate.csv. Run
`python benchmarks/private_forest.py --data DATA --peers PEERS.csv --published PUBLISHED --out FILE.md`.

Each seed has its own random split (80:20, regression 90:10) and its own public randomness. The number of rows is passed
as public, as the peers treat it. "Range" bounds are the minimum and maximum of each numeric column over the file, as
the peers used them. "Schema" bounds are those of the schema.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed, parallel_config
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.metrics import log_loss, roc_auc_score

import veilwood as vw

Data = tuple[vw.Schema, pd.DataFrame, pd.Series]
SECTIONS = ("speed", "plain-speed", "rich-speed", "range", "schema", "mrf", "regression", "rich")
RICH = 20.0
RICH_FROM_ROWS = 5000
REGRESSION = ("parkinsons", "appliances-energy", "metro-traffic", "gas-turbine")
# Mean squared errors of the best of DP-EBM (epsilon, 1e-6), dp-xgboost and diffprivlib, measured elsewhere, each with
# its best setting; the target is scaled to [0, 1]. Appliances was not measured.
BEST_PEER = {
    "gas-turbine": {0.5: 0.0012, 1: 0.00089, 2: 0.00071, 10: 0.00068},
    "metro-traffic": {0.5: 0.023, 1: 0.023, 2: 0.021, 10: 0.017},
    "parkinsons": {0.5: 0.044, 1: 0.036, 2: 0.030, 10: 0.028},
}
DIPRIME = ("select-then-median", "k-medians", "random-attribute")
MRF_FILES = {"Car": "car", "Iris": "iris", "Balance": "balance-scale", "Heart": "heart", "Mushroom": "mushroom",
             "Adult-categorical": "adult"}  # fmt: skip
MRF_ADULT = ("age", "workclass", "education", "marital_status", "occupation", "relationship", "race", "sex")


def load(folder: Path, name: str, bounds: str) -> Data:
    """Read a table, and its schema with the bounds asked for."""
    facts = json.loads((folder / f"{name}.json").read_text())
    X, y = vw.read_table(folder / f"{name}.csv.gz", vw.Schema.from_dict(facts))
    for column in facts["columns"]:
        if bounds == "range" and column["kind"] == "numeric" and column["name"] != facts["target"]:
            column |= {"lower": float(X[column["name"]].min()), "upper": float(X[column["name"]].max())}
            column.pop("transform", None)
        if column["name"] == facts["target"] and column["kind"] == "numeric":
            # As in the DiPriMe experiments: y / max for Parkinson's, minimum and maximum for the others.
            column |= {"lower": 0.0 if name == "parkinsons" else float(y.min()), "upper": float(y.max())}
    return vw.Schema.from_dict(facts), X, y


def split(n: int, seed: int, part: int) -> tuple[Any, Any]:
    order = np.random.default_rng(seed).permutation(n)
    return order[n // part :], order[: n // part]


def classify(data: Data, epsilon: float, delta: float, seed: int) -> dict[str, Any]:
    """Fit and test one classifier."""
    warnings.simplefilter("ignore")
    schema, X, y = data
    train, test = split(len(y), seed, 5)
    forest = vw.PrivateForestClassifier(schema, epsilon=epsilon, delta=delta, n_rows=len(train), random_state=seed)
    forest.fit(X.iloc[train], y.iloc[train])
    probabilities, truth = forest.predict_proba(X.iloc[test]), y.iloc[test].to_numpy()
    place = np.searchsorted(np.sort(forest.classes_), truth)
    ordered = probabilities[:, np.argsort(forest.classes_)]
    scores = {
        "accuracy": float((forest.predict(X.iloc[test]) == truth).mean()),
        "method": forest.plan_.learned,
    }
    scores["log loss"] = float(log_loss(place, ordered, labels=range(len(forest.classes_))))
    if len(forest.classes_) == 2:
        scores["auc"] = float(roc_auc_score(place, ordered[:, 1]))
    shares = np.bincount(np.searchsorted(np.sort(forest.classes_), y.iloc[train]), minlength=len(forest.classes_))
    scores["log loss of class shares"] = float(log_loss(place, np.tile(shares / shares.sum(), (len(place), 1)),
                                                        labels=range(len(forest.classes_))))  # fmt: skip
    return scores


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5)


def peers_table(folder: Path, peers: pd.DataFrame, seeds: int, bounds: str) -> str:
    lines = [
        f"## Classification, {bounds} bounds", "",
        "| data | epsilon | delta | best peer | ours | difference | AUC | log loss (class shares) | method |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    differences, badly = [], []
    for name, cells in peers.groupby("dataset", sort=True):
        if not (folder / f"{name}.csv.gz").exists():
            continue
        data = load(folder, str(name), bounds)
        for cell in cells.sort_values("epsilon").itertuples():
            runs = Parallel()(delayed(classify)(data, cell.epsilon, cell.delta, seed) for seed in range(seeds))
            mean, error = mean_and_error([run["accuracy"] for run in runs])
            difference = mean - cell.accuracy
            differences.append(difference)
            if difference < -0.01 and difference < -2 * error:
                badly.append(f"{name} at {cell.epsilon}")
            auc = f"{np.mean([run['auc'] for run in runs]):.3f}" if "auc" in runs[0] else "-"
            loss, shares = (np.mean([run[key] for run in runs]) for key in ("log loss", "log loss of class shares"))
            lines.append(
                f"| {name} | {cell.epsilon} | {cell.delta} | {cell.accuracy:.3f} {cell.peer} "
                f"| {mean:.3f} +- {error:.3f} | {difference:+.3f} | {auc} | {loss:.3f} ({shares:.3f}) "
                f"| {runs[0]['method']} |"
            )
            print(lines[-1], flush=True)
    reached = np.array(differences)
    lines += [
        "",
        f"At or above the best peer in {(reached >= 0).sum()} of {len(reached)} cells "
        f"({(reached >= 0).mean():.0%}), by {100 * reached.mean():+.1f} points on average. Below by more than a point "
        f"and two standard errors (ours): {', '.join(badly) or 'none'}.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def plain_accuracy(data: Data, seed: int) -> float:
    """Accuracy of ExtraTrees without privacy, on the split of a seed."""
    _, X, y = data
    train, test = split(len(y), seed, 5)
    columns = pd.get_dummies(X).fillna(0).to_numpy(np.float32)
    trees = ExtraTreesClassifier(100, random_state=seed).fit(columns[train], y.iloc[train])
    return float((trees.predict(columns[test]) == y.iloc[test]).mean())


def _narrowed(data: Data, kept: tuple[str, ...]) -> Data:
    facts = data[0].to_dict()
    facts["columns"] = [c for c in facts["columns"] if c["name"] in (*kept, facts["target"])]
    return vw.Schema.from_dict(facts), data[1][list(kept)], data[2]


def mrf_table(folder: Path, published: Path, seeds: int) -> str:
    best: dict[tuple[str, float], tuple[float, float, str]] = {}
    with open(published / "mrf_accuracy_vs_epsilon_main.csv") as file:
        for row in csv.DictReader(file):
            if row["method"] not in ("DP batch training (OPT)", "DP batch prediction (optimised)"):
                continue
            key, mean = (row["dataset"], float(row["eps"])), float(row["acc_mean"])
            error = float(row["acc_std"]) / float(row["n_trials"]) ** 0.5
            if key not in best or mean > best[key][0]:
                best[key] = (mean, error, row["method"])
    lines = [
        "## M-RF, as published (best of batch training and batch prediction)", "",
        "Published figures are of one split; ours of a new split for each seed, so the errors are not of one kind. "
        "ExtraTrees is not private: on their split, and on ours.", "",
        "| data | epsilon | published | ours | difference | ExtraTrees, theirs and ours |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    with open(published / "mrf_nonprivate.csv") as file:
        plain = [row for row in csv.DictReader(file) if row["model"].startswith("scikit") and not row["note"]]
    limit = {row["dataset"]: float(row["accuracy"]) for row in plain}
    differences, below = [], []
    for name, file_name in MRF_FILES.items():
        if not (folder / f"{file_name}.csv.gz").exists():
            continue
        data = load(folder, file_name, "schema")
        if name == "Adult-categorical":  # published with 45,222 rows of these eight columns
            data = _narrowed(data, MRF_ADULT)
        trees = np.mean(Parallel()(delayed(plain_accuracy)(data, seed) for seed in range(seeds)))
        for (dataset, epsilon), (mean, error, _) in sorted(best.items()):
            if dataset != name:
                continue
            runs = Parallel()(delayed(classify)(data, epsilon, 0.0, seed) for seed in range(seeds))
            ours, our_error = mean_and_error([run["accuracy"] for run in runs])
            differences.append(ours - mean)
            if ours - mean < -2 * (error**2 + our_error**2) ** 0.5 and mean <= limit.get(name, 1.0):
                below.append(f"{name} at {epsilon}")
            lines.append(
                f"| {name} | {epsilon} | {mean:.3f} +- {error:.3f} | {ours:.3f} +- {our_error:.3f} "
                f"| {ours - mean:+.3f} | {limit.get(name, float('nan')):.3f}, {trees:.3f} |"
            )
            print(lines[-1], flush=True)
    lines += ["", f"Mean difference {100 * np.mean(differences):+.1f} points over {len(differences)} cells. "
              f"Below by two joint standard errors: {', '.join(below) or 'none'}.", ""]  # fmt: skip
    return "\n".join(lines)


def regress(data: Data, epsilon: float, seed: int) -> dict[str, float]:
    """Fit PrivateForest and the sound median forests on one split; mean squared errors with the target in [0, 1]."""
    warnings.simplefilter("ignore")
    schema, X, y = data
    train, test = split(len(y), seed, 10)
    lower, upper = schema.target.bounds
    common: dict[str, Any] = {"epsilon": epsilon, "random_state": seed}
    forests = {
        "ours": vw.PrivateForestRegressor(schema, delta=1e-6, n_rows=len(train), **common),
        **{
            variant: vw.MedianForestRegressor(schema, variant=variant, n_estimators=10, max_depth=6, **common)
            for variant in DIPRIME
        },
    }
    errors = {}
    for name, forest in forests.items():
        forest.fit(X.iloc[train], y.iloc[train])
        errors[name] = float(np.mean(((forest.predict(X.iloc[test]) - y.iloc[test]) / (upper - lower)) ** 2))
    errors["variance"] = float(np.mean(((y.iloc[train].mean() - y.iloc[test]) / (upper - lower)) ** 2))
    return errors


def regression_table(folder: Path, seeds: int) -> str:
    lines = [
        "## Regression: mean squared error, target in [0, 1]", "",
        "PrivateForest at delta = 1e-6, as DP-EBM, the best peer nearly everywhere; median forests are pure epsilon.",
        "", f"| data | epsilon | variance | best peer | {' | '.join(DIPRIME)} | ours |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    won = total = 0
    for name in REGRESSION:
        if not (folder / f"{name}.csv.gz").exists():
            continue
        data = load(folder, name, "range")
        for epsilon in (0.5, 1, 2, 10):
            runs = Parallel()(delayed(regress)(data, epsilon, seed) for seed in range(seeds))
            mean = {key: mean_and_error([run[key] for run in runs]) for key in runs[0]}
            peer = BEST_PEER.get(name, {}).get(epsilon)
            rivals = [mean[variant][0] for variant in DIPRIME] + ([peer] if peer else [])
            won, total = won + (mean["ours"][0] <= min(rivals)), total + 1
            variants = " | ".join(f"{mean[variant][0]:.3g}" for variant in DIPRIME)
            lines.append(
                f"| {name} | {epsilon} | {mean['variance'][0]:.3g} | {peer or '-'} | {variants} "
                f"| {mean['ours'][0]:.3g} +- {mean['ours'][1]:.1g} |"
            )
            print(lines[-1], flush=True)
    lines += ["", f"At or below every rival in {won} of {total} cells.", ""]
    return "\n".join(lines)


def rich(folder: Path, name: str, seed: int) -> tuple[float, float, float]:
    """Accuracy at epsilon 20 with the range's and with the schema's bounds, and of ExtraTrees without privacy."""
    data = load(folder, name, "range")
    ours = [classify(one, RICH, 0.0, seed)["accuracy"] for one in (data, load(folder, name, "schema"))]
    return ours[0], ours[1], plain_accuracy(data, seed)


def rich_table(folder: Path, seeds: int) -> str:
    lines = [
        f"## Epsilon {RICH:g}, delta 0: classification with more than {RICH_FROM_ROWS} rows", "",
        "| data | ours, range bounds | ours, schema bounds | ExtraTrees, not private | difference |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    names = [file.stem for file in sorted(folder.glob("*.json"))
             if json.loads(file.read_text())["task"] == "classification"
             and len(load(folder, file.stem, "schema")[2]) > RICH_FROM_ROWS]  # fmt: skip
    jobs = [delayed(rich)(folder, name, seed) for name in names for seed in range(seeds)]
    found = np.array(Parallel()(jobs)).reshape(len(names), seeds, 3)
    for name, runs in zip(names, found, strict=True):
        ours, wider, plain = (mean_and_error(list(column)) for column in runs.T)
        lines.append(
            f"| {name} | {ours[0]:.3f} +- {ours[1]:.3f} | {wider[0]:.3f} +- {wider[1]:.3f} | {plain[0]:.3f} "
            f"| {ours[0] - plain[0]:+.3f}, {wider[0] - plain[0]:+.3f} |"
        )
        print(lines[-1], flush=True)
    return "\n".join([*lines, ""])


def speed(epsilon: float, n_rows: int = 1_000_000, n_columns: int = 20) -> str:
    """Fit a table of numbers, in this process."""
    rng = np.random.default_rng(0)
    X = rng.random((n_rows, n_columns))
    y = (X[:, 0] + X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(n_rows) > 0.8).astype(int)
    columns: list[dict[str, Any]] = [
        {"name": f"x{i}", "kind": "numeric", "lower": 0, "upper": 1} for i in range(n_columns)
    ]
    columns.append({"name": "y", "kind": "categorical", "values": [0, 1]})
    schema = vw.Schema.from_dict({"name": "made", "task": "classification", "target": "y", "columns": columns})
    size = X.nbytes / 2**20

    def fitted() -> tuple[Any, str]:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of the fit, and no earlier one
        before, wall, cpu = memory("VmRSS"), time.perf_counter(), time.process_time()
        forest = vw.PrivateForestClassifier(schema, epsilon=epsilon, n_rows=n_rows, n_jobs=-1, random_state=0).fit(X, y)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        beyond = memory("VmHWM") - before
        return forest, (
            f"{wall:.1f} s wall, {cpu:.1f} s CPU; {beyond:.0f} MB at the peak beyond an input of {size:.0f} MB: "
            f"{(beyond + size) / size:.2f} times the input in all"
        )

    (_, first), (forest, second) = fitted(), fitted()
    return (
        f"## Speed at epsilon {epsilon:g}\n\n"
        f"{n_rows:,} rows x {n_columns} columns ({forest.plan_.choices['learned']}, {forest.plan_.layout.trees} trees)."
        f" The first fit of a process, which loads compiled loops where numba is: {first}. The second: {second}.\n"
    )


def plain_speed() -> str:
    """The same in a process that finds no numba, as on a platform for which it has no wheels."""
    code = "import sys; sys.modules['numba'] = None; import private_forest; print(private_forest.speed(1.0))"
    words, here = [sys.executable, "-c", code], Path(__file__).parent
    result = subprocess.run(words, cwd=here, capture_output=True, text=True, check=True).stdout
    return result.replace("at epsilon 1", "at epsilon 1 without numba")


def memory(kind: str) -> float:
    """Return a figure of this process in MB: VmRSS now, VmHWM the highest since it was cleared (Linux)."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--published", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", choices=SECTIONS)
    parser.add_argument("--workers", type=int, default=-1, help="processes; -1 is one for each core")
    parser.add_argument("--datasets", nargs="*", help="of the peers' table, only these")
    arguments = parser.parse_args()
    began = time.time()
    peers = pd.read_csv(arguments.peers)
    peers = peers[peers.dataset.isin(arguments.datasets)] if arguments.datasets else peers
    sections = {
        "speed": lambda: speed(1.0),
        "plain-speed": plain_speed,
        "rich-speed": lambda: speed(RICH),  # in a run of its own: its first fit is to be the first of the process
        "range": lambda: peers_table(arguments.data, peers, arguments.seeds, "range"),
        "schema": lambda: peers_table(arguments.data, peers, arguments.seeds, "schema"),
        "mrf": lambda: mrf_table(arguments.data, arguments.published, arguments.seeds),
        "regression": lambda: regression_table(arguments.data, arguments.seeds),
        "rich": lambda: rich_table(arguments.data, arguments.seeds),
    }
    with parallel_config(n_jobs=arguments.workers):
        lines = [section() for name, section in sections.items() if not arguments.filter or name in arguments.filter]
    parts = [
        "# PrivateForest beside its peers\n",
        f"{arguments.seeds} seeds. The peers had the best of several settings, chosen on the test score.\n",
        *lines,
    ]
    parts.append(f"Whole run: {(time.time() - began) / 60:.0f} minutes.\n")
    if arguments.out:
        arguments.out.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
