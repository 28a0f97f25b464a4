# SPDX-License-Identifier: Apache-2.0
"""Measure series of releases: variance of every release, ratios to splitting the budget, accuracy by month.

python benchmarks/series.py variance
python benchmarks/series.py accuracy --data DATA [--seeds 20] [--only flights traffic]
python benchmarks/series.py embed --data DATA
python benchmarks/series.py write

DATA is a folder of NAME.csv.gz and NAME.json (``veilwood papers fetch``). ``variance`` makes series of 4, 12 and 52
releases of a table without rows, whose estimates are noise alone. ``accuracy`` releases twelve models of two tables
whose rows are in order of time, under one budget: as a series, by splitting the budget, and once, never refreshed.
``embed`` writes the hours of traffic that the tutorial reads. Each call keeps its rows in results/series.json;
``write`` makes results/series.md.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import veilwood as vw
from veilwood.privacy.time_factors import STRATEGIES, compare_factors

RESULTS = Path(__file__).parent / "results"
EMBEDDED = Path(__file__).parents[1] / "docs" / "tutorials" / "traffic.csv.gz"
RELEASES = 12
EPSILON, DELTA = 1.0, 1e-6
TEST = 0.25
LATE_MINUTES, BUSY_CARS = 15, 3500
METHODS = {
    "series": ("RandomTreesClassifier", "auto"), "splitting": ("RandomTreesClassifier", "splitting"),
    "PrivateForest series": ("PrivateForestClassifier", "auto"),
    "PrivateForest splitting": ("PrivateForestClassifier", "splitting"),
}  # fmt: skip
CELLS, TREES, RUNS = 1000, 20, 8  # leaves and trees of the table without rows, and series of it


def bands_of(values: Any, edges: list[float]) -> list[str]:
    """Return the index of each value's band as text."""
    return [str(place) for place in np.digitize(values, edges)]


def flights(folder: Path) -> tuple[vw.Schema, pd.DataFrame]:
    """Flights from New York, January to April 2013, by ten days: is a flight more than a quarter of an hour late?"""
    raw = pd.read_csv(folder / "flight-delay-nyc2013.csv.gz")
    day = pd.to_datetime(dict(year=2013, month=raw["month"], day=raw["day"])).dt.dayofyear
    table = pd.DataFrame({
        "weekday": raw["weekday"].astype(str),
        "hour": (raw["dep_time"] // 100) % 24,
        "air_time": raw["air_time"],
        "distance": raw["distance"],
        "late": np.where(raw["delay"] > LATE_MINUTES, "yes", "no"),
        "period": np.minimum((day - 1) // 10 + 1, RELEASES),
    })  # fmt: skip
    schema = vw.Schema.from_dict({
        "name": "flights", "task": "classification", "target": "late", "ignore": ["period"],
        "columns": [
            {"name": "weekday", "kind": "categorical", "values": [str(place) for place in range(1, 8)]},
            {"name": "hour", "kind": "numeric", "lower": 0, "upper": 24},
            {"name": "air_time", "kind": "numeric", "lower": 0, "upper": 720},
            {"name": "distance", "kind": "numeric", "lower": 0, "upper": 5000},
            {"name": "late", "kind": "categorical", "values": ["no", "yes"]},
        ],
    })  # fmt: skip
    return schema, table


def traffic(folder: Path) -> tuple[vw.Schema, pd.DataFrame]:
    """Hours on Interstate 94, 2012 to 2018, in twelve parts in order of time: do more than 3,500 cars pass?"""
    facts = json.loads((folder / "metro-traffic.json").read_text())
    raw = pd.read_csv(folder / "metro-traffic.csv.gz", keep_default_na=False)
    columns = [column for column in facts["columns"] if column["name"] in ("temp", "clouds_all", "weekday", "hour")]
    for column in columns:
        column.pop("bounds", None)
        column.pop("meaning", None)
    schema = vw.Schema.from_dict({
        "name": "traffic", "task": "classification", "target": "busy", "ignore": ["period"],
        "columns": [*columns, {"name": "busy", "kind": "categorical", "values": ["no", "yes"]}],
    })  # fmt: skip
    table = raw[[column["name"] for column in columns]].assign(
        busy=np.where(raw["traffic_volume"] > BUSY_CARS, "yes", "no"),
        period=np.arange(len(raw)) * RELEASES // len(raw) + 1,
    )
    return schema, table.astype({"weekday": str})


TABLES = {"flights": flights, "traffic": traffic}


def accuracy_by_month(name: str, folder: Path, seed: int) -> list[dict[str, Any]]:
    """Return the accuracy of every release of every method on held-out rows of the same and of later periods.

    Each model is tested on a quarter of the rows of its own period, which no model is trained on.
    """
    schema, table = TABLES[name](folder)
    rng = np.random.default_rng(seed)
    is_test = rng.random(len(table)) < TEST
    train, test = table[~is_test], table[is_test]
    out = []
    features = list(schema.feature_names)
    models: dict[str, list[Any]] = {}
    n_rows = len(train)
    for method, (kind, strategy) in METHODS.items():
        own = {"trees": "shared"} if kind == "RandomTreesClassifier" else {}
        forest = getattr(vw, kind)(
            schema, epsilon=EPSILON, delta=DELTA, n_rows=n_rows, random_state=seed, n_jobs=1, **own
        )
        series = vw.ReleaseSeries(
            forest, releases=RELEASES, period="period", ledger=vw.MemoryLedger(), strategy=strategy
        )
        models[method] = [series.release(train) for _ in range(RELEASES)]
    first = train[train["period"] == 1]
    once = vw.RandomTreesClassifier(
        schema, epsilon=EPSILON, delta=DELTA, n_rows=len(first), random_state=seed, n_jobs=1, ledger=vw.MemoryLedger()
    )
    models["never refreshed"] = [once.fit(first[features], first["late" if name == "flights" else "busy"])] * RELEASES
    target = schema.target.name
    for method, fitted in models.items():
        for number, model in enumerate(fitted, start=1):
            rows = test[test["period"] == number]
            likelihood = model.predict_proba(rows[features])[np.arange(len(rows)), (rows[target] == "yes").astype(int)]
            right = model.predict(rows[features]) == rows[target].to_numpy()
            loss = float(-np.log(likelihood).mean())
            out.append({
                "kind": "accuracy", "table": name, "method": method, "seed": seed, "release": number,
                "accuracy": round(float(right.mean()), 5), "log_loss": round(loss, 5),
            })  # fmt: skip
    return out


def measured_variances(releases: int, strategy: str, delta: float, seed: int) -> list[dict[str, Any]]:
    """Return the expected and the measured variance of every release of a table without rows."""
    schema = vw.Schema.from_dict({
        "name": "cells", "task": "classification", "target": "c",
        "columns": [
            {"name": "v", "kind": "categorical", "values": list(range(CELLS))},
            {"name": "c", "kind": "categorical", "values": ["0", "1"]},
        ],
    })  # fmt: skip
    empty = pd.DataFrame({"v": [-1], "c": ["0"], "month": [1]})  # a row that is dropped
    squares: list[list[float]] = [[] for _ in range(releases)]
    for run in range(RUNS):
        forest = vw.MatrixForestClassifier(
            schema, epsilon=EPSILON, delta=delta, n_estimators=TREES, max_depth=1, mechanism="laplace", invalid="drop",
            random_state=seed + run,
        )  # fmt: skip
        series = vw.ReleaseSeries(
            forest, releases=releases, period="month", ledger=vw.MemoryLedger(), strategy=strategy
        )
        for number in range(releases):
            model = series.release(empty)
            squares[number].append(float((model.measurements_[0].values[0].astype(float) ** 2).mean()))
    plans = [series.plan(number + 1) for number in range(releases)]
    settings = {"kind": "variance", "releases": releases, "strategy": strategy, "delta": delta}
    return [
        {
            **settings,
            "release": number + 1,
            "expected": round(plans[number].steps[0].variance, 3),
            "measured": round(float(np.mean(squares[number])), 3),
        }
        for number in range(releases)
    ]


def keep(rows: list[dict[str, Any]], kind: str, **same: Any) -> None:
    """Replace the rows of a kind, and with these values, in the file of results."""
    path = RESULTS / "series.json"
    known = json.loads(path.read_text()) if path.exists() else []
    left = [row for row in known if row["kind"] != kind or any(row.get(key) != value for key, value in same.items())]
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in left + rows) + "\n]\n")


def embed(folder: Path) -> None:
    """Write the table of the tutorial: hours of traffic in order of time, temperatures in whole degrees Celsius."""
    _, table = traffic(folder)
    table["temp"] = (table["temp"] - 273.15).clip(-45, 45).round().astype(int)
    table.rename(columns={"clouds_all": "clouds"}).to_csv(
        EMBEDDED, index=False, compression={"method": "gzip", "mtime": 0}
    )


def curves(rows: list[dict[str, Any]], table: str, value: str = "accuracy") -> dict[str, pd.DataFrame]:
    """Return mean and standard error over seeds, by release, of every method."""
    frame = pd.DataFrame([row for row in rows if row["kind"] == "accuracy" and row["table"] == table])
    return {
        method: part.groupby("release")[value].agg(["mean", "sem", "count"])
        for method, part in frame.groupby("method", sort=False)
    }


def write() -> None:
    """Write results/series.md."""
    rows = json.loads((RESULTS / "series.json").read_text())
    lines = ["# Series of releases", "", "Written by `benchmarks/series.py`.", ""]
    lines += ["## Variance of every release", ""]
    lines += [
        "Class counts of leaves of a table without rows: the estimates are noise alone. 8 series with 40,000 "
        "counts each. Variance of the first, the middle and the last release, and the largest deviation of any.",
        "",
        "| releases | noise | strategy | expected, first | middle | last | measured, first | middle | last | "
        "largest deviation |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    frame = pd.DataFrame([row for row in rows if row["kind"] == "variance"])
    for (releases, delta, strategy), part in frame.groupby(["releases", "delta", "strategy"]):
        part = part.sort_values("release")
        places = [0, len(part) // 2, len(part) - 1]
        cells = [f"{part[name].iloc[place]:.4g}" for name in ("expected", "measured") for place in places]
        away = float((part["measured"] / part["expected"] - 1).abs().max())
        noise = "Gaussian" if delta else "Laplace"
        lines.append(f"| {releases} | {noise} | {strategy} | {' | '.join(cells)} | {100 * away:.1f} % |")
    lines += ["", "## Ratios to splitting", ""]
    lines += [
        "Largest variance over the series, in units of a single release at the same loss, computed from the integer "
        "weights; and how many times smaller the noise is than if the budget were split.",
        "",
        f"| releases | noise | {' | '.join(STRATEGIES)} | less noise than splitting |",
        "|---" * (len(STRATEGIES) + 3) + "|",
    ]
    for squared in (True, False):
        for releases in (4, 12, 52):
            errors = compare_factors(releases, "largest", squared=squared)
            best = (errors["splitting"] / min(errors.values())) ** 0.5
            cells = " | ".join(f"{errors[name]:.3g}" for name in STRATEGIES)
            lines.append(f"| {releases} | {'Gaussian' if squared else 'Laplace'} | {cells} | {best:.2f} |")
    for table in TABLES:
        for value, title in (("accuracy", "Accuracy"), ("log_loss", "Log loss")):
            found = curves(rows, table, value)
            if not found:
                continue
            n_seeds = int(next(iter(found.values()))["count"].min())
            lines += ["", f"## {title} by release: {table}", ""]
            lines += [
                f"{RELEASES} releases under epsilon {EPSILON:g} and delta {DELTA:g} in all, RandomTreesClassifier with "
                f"shared trees unless PrivateForest is named, `n_rows` declared, {n_seeds} seeds; each model is tested "
                "on a quarter of the rows of its own period. Mean, and the standard error of the last column's mean "
                "over releases.",
                "",
                "| method | " + " | ".join(str(number) for number in range(1, RELEASES + 1)) + " | mean | error |",
                "|---" * (RELEASES + 3) + "|",
            ]
            frame = pd.DataFrame([row for row in rows if row["kind"] == "accuracy" and row["table"] == table])
            for method, part in found.items():
                by_seed = frame[frame["method"] == method].groupby("seed")[value].mean()
                cells = " | ".join(f"{mean:.3f}" for mean in part["mean"])
                lines.append(f"| {method} | {cells} | {by_seed.mean():.4f} | {by_seed.sem():.4f} |")
    (RESULTS / "series.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("command", choices=("variance", "accuracy", "embed", "write"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=list(TABLES))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    started = time.process_time()
    if given.command == "variance":
        settings = [
            (releases, strategy, delta)
            for releases in (4, 12, 52)
            for strategy, delta in (("optimized", DELTA), ("toeplitz", DELTA), ("optimized", 0.0))
        ]
        keep([row for setting in settings for row in measured_variances(*setting, seed=1)], "variance")
    elif given.command == "accuracy":
        for name in given.only:
            rows = [row for seed in range(given.seeds) for row in accuracy_by_month(name, given.data, seed)]
            keep(rows, "accuracy", table=name)
    elif given.command == "embed":
        embed(given.data)
    else:
        write()
    print(f"{time.process_time() - started:.0f} CPU seconds")


if __name__ == "__main__":
    main()
