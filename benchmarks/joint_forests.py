# SPDX-License-Identifier: Apache-2.0
"""Compare PrivateForest fitted by several owners with a fit to the pooled rows at the same epsilon.

python benchmarks/joint_forests.py accuracy --data DATA --seeds 5 [--only heart car] [--shares heart car] [--jobs 2]
python benchmarks/joint_forests.py roles --data DATA
python benchmarks/joint_forests.py write

DATA is a folder of NAME.csv.gz and NAME.json. ``accuracy`` runs the servers' protocol in one process and in the clear
(``PlainEngine``: the same steps and the same law of noise as three servers, without their secrecy), on sums as online
owners share them, and, for the tables named by --shares, on rows in shares. ``roles`` trains over TLS among three
server processes. Each call keeps its rows in results/joint_forests.json; ``write`` makes results/joint_forests.md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

import veilwood as vw
from veilwood_secure.roles.config import Task
from veilwood_secure.roles.local import local_servers
from veilwood_testing.parties import fit_on_shares, fit_online

RESULTS = Path(__file__).parent / "results"
TABLES = {
    "adult": "Adult",
    "credit-default": "Credit",
    "heart": "Heart",
    "car": "Car",
    "titanic": "Titanic",
    "metro-traffic": "Metro",
}
EPSILONS = (0.5, 1.0, 2.0)
TEST = 0.2


def load(folder: Path, name: str) -> tuple[vw.Schema, Any, Any]:
    """Read a table; marks of bounds that were read off it are taken out, as these tables are public."""
    facts = json.loads((folder / f"{name}.json").read_text())
    for column in facts["columns"]:
        for mark in ("bounds", "notes", "inferred"):
            column.pop(mark, None)
    facts.pop("inferred", None)
    schema = vw.Schema.from_dict(facts)
    return schema, *vw.read_table(folder / f"{name}.csv.gz", schema)


def estimator_of(schema: vw.Schema, epsilon: float, seed: int) -> Any:
    made = vw.PrivateForestClassifier if schema.classes else vw.PrivateForestRegressor
    return made(schema, epsilon=epsilon, random_state=seed)


def on_shares(schema: vw.Schema, epsilon: float, seed: int, X: Any, y: Any) -> Any:
    settings = {"estimator": type(estimator_of(schema, 1, 0)).__name__, "parameters": {"random_state": seed}}
    half = len(X) // 2
    task = Task("t", schema.to_dict(), str(epsilon), {"a": None, "b": None}, ("u",), "forest-on-shares", settings)
    return fit_on_shares(task, {"a": (X[:half], y[:half]), "b": (X[half:], y[half:])})


def one(folder: Path, name: str, epsilon: float, seed: int, shares: bool) -> list[dict[str, Any]]:
    warnings.simplefilter("ignore")
    schema, X, y = load(folder, name)
    order = np.random.default_rng(seed).permutation(len(X))
    test, train = np.split(order, [int(TEST * len(X))])
    X_train, y_train, X_test, y_test = X.iloc[train], y.iloc[train], X.iloc[test], y.iloc[test]
    ways = {
        "pooled": lambda: estimator_of(schema, epsilon, seed).fit(X_train, y_train),
        "online": lambda: fit_online(estimator_of(schema, epsilon, seed), X_train, y_train),
    }
    if shares:
        ways["shares"] = lambda: on_shares(schema, epsilon, seed, X_train, y_train)
    rows = []
    for way, fit in ways.items():
        began = time.process_time()
        model = fit()
        cpu = time.process_time() - began
        score = float(model.score(X_test, y_test))
        rows.append({"table": name, "epsilon": epsilon, "seed": seed, "way": way, "score": score, "cpu": cpu})
    return rows


def accuracy(options: argparse.Namespace) -> list[dict[str, Any]]:
    seeds = range(options.first, options.first + options.seeds)
    cells = [(name, epsilon, seed) for name in options.only for epsilon in options.epsilons for seed in seeds]
    done = Parallel(options.jobs, verbose=5)(
        delayed(one)(options.data, name, epsilon, seed, name in options.shares) for name, epsilon, seed in cells
    )
    return [row for rows in done for row in rows]


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def roles(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train over TLS among three processes: online owners, then rows in shares."""
    warnings.simplefilter("ignore")
    rows = []
    for name in options.only:
        schema, X, y = load(options.data, name)
        settings = {"estimator": type(estimator_of(schema, 1, 0)).__name__, "parameters": {"random_state": 0}}
        protocols = ("public-forest", *(("forest-on-shares",) if name in options.shares else ()))
        for protocol, servers in product(protocols, ("honest", "checked")):
            half = len(X) // 2
            parts = {"north": (X[:half], y[:half]), "south": (X[half:], y[half:])}
            with local_servers(schema, epsilon=1, protocol=protocol, timeout=600, servers=servers, **settings) as here:
                before = [cpu_of(process.pid) for process in here.processes if process is not None]
                if protocol == "public-forest":
                    with ThreadPoolExecutor(2) as pool:
                        list(pool.map(lambda o, h=here, p=parts: h.owner(o).participate(*p[o]), parts))
                else:
                    for owner, part in parts.items():
                        here.owner(owner).contribute(*part)
                    here.owner("north").wait(3600)
                after = [cpu_of(process.pid) for process in here.processes if process is not None]
                model = here.user("analyst").model()
            busiest = max(end - start for start, end in zip(before, after, strict=True))
            rows.append({"table": name, "protocol": protocol, "servers": servers, "rows": len(X),
                         "cpu_server": busiest, "score_on_training_rows": float(model.score(X, y))})  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def merged(kind: str, rows: list[dict[str, Any]], keys: tuple[str, ...]) -> None:
    """Keep new rows beside those of earlier calls, in place of those with the same keys."""
    file = RESULTS / "joint_forests.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    by_key = {tuple(row[key] for key in keys): row for row in [*kept.get(kind, []), *rows]}
    kept[kind] = list(by_key.values())
    file.write_text(json.dumps(kept, indent=0) + "\n")


def write() -> None:
    """Make the page."""
    found = json.loads((RESULTS / "joint_forests.json").read_text())
    lines = ["# PrivateForest by several owners", "", __doc__.strip().split("\n\n", 1)[1], "", "## Accuracy", ""]
    lines += [
        "Version " + vw.__version__ + ". Share of right classes on a fifth of the rows held out, means over seeds; the",
        "difference is joint less pooled, with its standard error over seeds.",
        "",
        "| table | epsilon | seeds | pooled | online | difference | on shares | difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = found.get("accuracy", [])
    for name, title in TABLES.items():
        for epsilon in EPSILONS:
            own = [row for row in rows if (row["table"], row["epsilon"]) == (name, epsilon)]
            if not own:
                continue
            by = {
                way: {r["seed"]: r["score"] for r in own if r["way"] == way} for way in ("pooled", "online", "shares")
            }
            cells = [title, f"{epsilon:g}", str(len(by["pooled"])), f"{np.mean(list(by['pooled'].values())):.4f}"]
            for way in ("online", "shares"):
                seeds = sorted(set(by[way]) & set(by["pooled"]))
                if not seeds:
                    cells += ["-", "-"]
                    continue
                apart = np.array([by[way][seed] - by["pooled"][seed] for seed in seeds])
                error = apart.std(ddof=1) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
                cells += [f"{np.mean([by[way][seed] for seed in seeds]):.4f}", f"{apart.mean():+.4f} ± {error:.4f}"]
            lines.append(f"| {' | '.join(cells)} |")
    rows = found.get("roles", [])
    if rows:
        lines += [
            "",
            "## Over TLS",
            "",
            "Three server processes and two owners on one machine, epsilon 1, all rows. CPU seconds of the busiest",
            "server, from the first owner's call to the stored model, TLS included.",
            "",
            "| table | rows | protocol | servers | CPU seconds of a server |",
            "|---|---|---|---|---|",
        ]
    for row in rows:
        cells = [
            TABLES[row["table"]],
            f"{row['rows']:,}",
            row["protocol"],
            row["servers"],
            f"{row['cpu_server']:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    (RESULTS / "joint_forests.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("accuracy", "roles", "write"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--only", nargs="+", default=list(TABLES))
    parser.add_argument("--shares", nargs="*", default=["heart", "car", "titanic"])
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.what == "accuracy":
        merged("accuracy", accuracy(options), ("table", "epsilon", "seed", "way"))
    elif options.what == "roles":
        merged("roles", roles(options), ("table", "protocol", "servers"))
    write()


if __name__ == "__main__":
    main()
