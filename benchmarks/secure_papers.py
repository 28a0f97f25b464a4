# SPDX-License-Identifier: Apache-2.0
"""Compare each protocol of the paper on secure trees, run by roles over TLS on public tables, with its plaintext twin.

python benchmarks/secure_papers.py --data DATA [--only titanic heart car adult] [--twins 20] [--speed]

DATA is a folder of NAME.csv.gz and NAME.json. Three server processes, two owners with half of the training rows each,
and a user that asks the held-out rows (a fifth), all on this machine. The twin grows the same kind of tree in the
clear (``papers.plain_id3``), with noise of the same law, so many times; without noise both must give the same answers.
Columns are cut and grouped as for the paper's figures. Results: results/secure_papers.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import veilwood as vw
from veilwood.data.encoding import Encoding, class_labels
from veilwood_papers.mpc import plain as plain_id3
from veilwood_papers.mpc.data import ADULT_GROUPS, CUTOFFS, DROPPED
from veilwood_secure.mpc.replicated import ReplicatedEngine, run_in_threads
from veilwood_secure.mpc.shares import share
from veilwood_secure.protocols.hidden_forest import level_epsilons
from veilwood_secure.roles.config import Task
from veilwood_secure.roles.local import local_servers
from veilwood_secure.roles.program import program_for_task

RESULTS = Path(__file__).parent / "results"
EPSILON, DEPTH, TREES = 1.0, 2, 5
PROTOCOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "MPC-ID3 (NOT PRIVATE)": ("mpc-id3", {}),
    "CDP+PMPC-ID3, Laplace leaves": ("cdp-id3", {"leaves": "laplace"}),
    "CDP+PMPC-ID3, exponential splits and leaves": ("cdp-id3", {"splits": "exponential", "leaves": "exponential"}),
    "ODP+FMPC-ID3 as published (NOT PRIVATE)": ("odp-id3", {}),
    "hidden tree, private": ("hidden-tree", {}),
    "ID3 forest, private": ("hidden-tree", {"n_trees": TREES}),
    "extra trees": ("extra-trees", {"n_trees": TREES}),
    "binary tree, private": ("binary-tree", {}),
}


def load(folder: Path, name: str) -> tuple[vw.Schema, Any, Any]:
    """Read a table, its columns cut and grouped as for the paper."""
    facts = json.loads((folder / f"{name}.json").read_text())
    columns = [column for column in facts["columns"] if name != "adult" or column["name"] not in DROPPED]
    for column in columns:
        for mark in ("bounds", "notes", "inferred"):
            column.pop(mark, None)
    X, y = vw.read_table(folder / f"{name}.csv.gz", vw.Schema.from_dict({**facts, "inferred": None}))
    for column in columns:
        own = column["name"]
        if own in CUTOFFS.get(name, {}):
            column["cutoffs"] = CUTOFFS[name][own]
        groups = ADULT_GROUPS.get(own) if name == "adult" else None
        if groups:
            X[own] = X[own].replace(groups)
            column["values"] = sorted({groups.get(value, value) for value in column["values"]})
        elif name == "adult" and own == "native_country":
            X[own] = np.where(X[own] == "United-States", "United-States", "other")
            column["values"] = ["United-States", "other"]
    schema = vw.Schema.from_dict({**facts, "columns": columns})
    return schema, X[list(schema.feature_names)], y


def control(
    protocol: str, settings: dict[str, Any], codes: Any, target: Any, request: Any, schema: Any, seed: int
) -> Any:
    """The answers of one tree or forest grown in the clear, with noise of the same law; None where there is no twin."""
    rng = np.random.default_rng(seed)
    sizes, k, n_trees = Encoding(schema, "bins").n_codes, len(schema.classes), settings.get("n_trees", 1)
    hidden = protocol in ("hidden-tree", "odp-id3")
    widths = (max(sizes),) * len(sizes) if hidden else sizes
    budgets = [float(part) for part in level_epsilons(Fraction(EPSILON), DEPTH)]

    def geometric(scale: float, shape: Any) -> Any:
        return rng.geometric(-np.expm1(-1 / scale), shape) - 1

    def split(level: int, scores: Any) -> Any:
        used = scores == plain_id3.USED
        if protocol in ("mpc-id3", "odp-id3"):
            noisy = scores.astype(float)
        elif protocol == "extra-trees":
            noisy = rng.random(scores.shape)
        elif settings.get("splits") == "exponential":
            noisy = scores * budgets[level] + rng.gumbel(size=scores.shape)
        else:
            noisy = scores + geometric(1 / budgets[level], scores.shape)
        return np.where(used, -np.inf, noisy).argmax(axis=1)

    def label(level: int, counts: Any) -> Any:
        if protocol == "mpc-id3":
            return counts.argmax(axis=1)
        own = EPSILON if protocol in ("odp-id3", "extra-trees") else budgets[-1]
        if settings.get("leaves") == "exponential":
            return (counts * own + rng.gumbel(size=counts.shape)).argmax(axis=1)
        drawn = geometric(1 / own, counts.shape)
        if protocol in ("odp-id3", "cdp-id3"):
            drawn = drawn - geometric(1 / own, counts.shape)
        return (counts + drawn).argmax(axis=1)

    if protocol == "binary-tree":
        return None
    tree_of_row = rng.integers(0, n_trees, len(codes)) if n_trees > 1 else np.zeros(len(codes), np.int64)
    trees = [
        plain_id3.grow_tree(
            codes[tree_of_row == t], target[tree_of_row == t], sizes=widths, n_classes=k, depth=DEPTH, split=split,
            label=label,
        )
        for t in range(n_trees)
    ]  # fmt: skip
    return class_labels(schema)[plain_id3.majority_vote(trees, request, k)]


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(folder: Path, name: str, twins: int) -> list[dict[str, Any]]:
    warnings.simplefilter("ignore")
    schema, X, y = load(folder, name)
    encoding = Encoding(schema, "bins")
    order = np.random.default_rng(0).permutation(len(X))
    test, train = np.split(order, [len(X) // 5])
    codes = np.asarray(encoding.encode(X), np.int64)
    target = np.asarray(encoding.encode_target(y), np.int64)
    half = len(train) // 2
    owners = {"north": train[:half], "south": train[half:]}
    truth = np.asarray(y.iloc[test])
    found = []
    with local_servers(schema, epsilon=EPSILON, max_depth=1, timeout=300) as here:
        for title, (protocol, settings) in PROTOCOLS.items():
            chosen = {"max_depth": DEPTH, **settings}
            task = Task(f"t{len(found)}", schema.to_dict(), str(EPSILON), dict.fromkeys(owners), ("analyst",), protocol,
                        chosen)  # fmt: skip
            here.add_task(task)
            before = [cpu_of(process.pid) for process in here.processes if process is not None]
            began = time.perf_counter()
            for owner, rows in owners.items():
                here.owner(owner, task.name).contribute(X.iloc[rows], y.iloc[rows])
            with here.user("analyst", task.name) as analyst:
                statement = analyst.wait(600)
                seconds = time.perf_counter() - began
                answers = analyst.predict(X.iloc[test])
            after = [cpu_of(process.pid) for process in here.processes if process is not None]
            lines = [
                control(protocol, settings, codes[train], target[train], codes[test], schema, s) for s in range(twins)
            ]
            plain = [float((one == truth).mean()) for one in lines if one is not None]
            row = {
                "table": name, "rows": len(X), "title": title, "protocol": protocol, "private": statement.is_private,
                "accuracy": float((answers == truth).mean()), "twin": float(np.mean(plain)) if plain else None,
                "twin_spread": float(np.std(plain)) if plain else None,
                "same": bool((answers == lines[0]).all()) if protocol == "mpc-id3" else None, "seconds": seconds,
                "cpu": max(end - start for start, end in zip(before, after, strict=True)),
            }  # fmt: skip
            found.append(row)
            print(row, flush=True)
    return found


def speed(folder: Path) -> list[dict[str, Any]]:
    """CPU seconds of a server, a third of three threads, the best of three runs; rounds; and MB sent, without TLS."""
    schema, X, y = adult_as_it_is(folder)
    rng = np.random.default_rng(0)
    found = []
    for title, width, features, rows, depth, trees in (
        ("Titanic's shape, hidden tree", 5, 6, 708, 4, 1),
        ("Titanic's shape, hidden tree", 5, 6, 708, 3, 1),
        ("Titanic's shape, forest of 100", 5, 6, 708, 3, 100),
        ("Adult's shape, hidden tree", 7, 12, 26_120, 4, 1),
    ):
        names = [f"f{place}" for place in range(features)]
        values = [str(value) for value in range(width)]
        columns = [{"name": own, "kind": "categorical", "values": values} for own in names]
        target = {"name": "y", "kind": "categorical", "values": ["0", "1"]}
        facts = {"name": "shape", "task": "classification", "target": "y", "columns": [*columns, target]}
        table = pd.DataFrame({own: rng.integers(0, width, rows).astype(str) for own in names})
        task = Task("t", facts, "1", {"n": None}, ("u",), "hidden-tree", {"max_depth": depth, "n_trees": trees})
        found.append(timed(title, task, table, rng.integers(0, 2, rows).astype(str), depth))
    for depth in (2, 4):
        task = Task("t", schema.to_dict(), "1", {"n": None}, ("u",), "binary-tree", {"max_depth": depth})
        found.append(timed("Adult with its own 42 values, binary tree", task, X, y, depth))
    return found


def adult_as_it_is(folder: Path) -> tuple[vw.Schema, Any, Any]:
    facts = json.loads((folder / "adult.json").read_text())
    for column in facts["columns"]:
        for mark in ("bounds", "notes", "inferred"):
            column.pop(mark, None)
    schema = vw.Schema.from_dict({**facts, "inferred": None})
    return schema, *vw.read_table(folder / "adult.csv.gz", schema)


def timed(title: str, task: Task, X: Any, y: Any, depth: int) -> dict[str, Any]:
    program = program_for_task(task)
    arrays, rows = program.encode_rows("n", X, y)
    shared = {key: share(array, program.ring) for key, array in arrays.items()}

    def serve(links: Any) -> Any:
        engine = ReplicatedEngine(links, ring=program.ring)
        program.train(engine, {"n": {key: engine.load(pairs[links.party]) for key, pairs in shared.items()}})
        return engine.stats

    seconds = []
    for _ in range(3):
        began = time.process_time()
        stats = run_in_threads(serve)[0]
        seconds.append((time.process_time() - began) / 3)
    cpu = min(seconds)
    row = {"title": title, "rows": rows, "depth": depth, "cpu": cpu, "rounds": stats.rounds,
           "sent": stats.bytes_sent / 1e6}  # fmt: skip
    print(row, flush=True)
    return row


def write(rows: list[dict[str, Any]], speeds: list[dict[str, Any]]) -> None:
    lines = ["# The paper's protocols by roles", "", __doc__.strip().split("\n\n", 1)[1], ""]
    lines += [
        f"Epsilon {EPSILON:g}, depth {DEPTH}, forests of {TREES} trees; one run by roles, twins' mean and standard "
        "deviation over runs. Seconds from the first owner's call to the stored model; CPU seconds of the busiest "
        "server, answers included.",
        "",
        "| table | rows | protocol | right answers by roles | twins | same without noise | seconds | CPU seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        plain = "-" if row["twin"] is None else f"{row['twin']:.3f} ± {row['twin_spread']:.3f}"
        same = {True: "yes", False: "no", None: ""}[row["same"]]
        cells = [row["table"], f"{row['rows']:,}", row["title"], f"{row['accuracy']:.3f}", plain, same,
                 f"{row['seconds']:.1f}", f"{row['cpu']:.2f}"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## Speed of training",
        "",
        "Three servers as threads of one process, random rows of the shape or Adult's own; CPU seconds of one server,",
        "the best of three runs, without TLS and without the owners' work.",
        "",
        "| what | rows | depth | CPU seconds | rounds | MB sent by a server |",
        "|---|---|---|---|---|---|",
    ]
    for row in speeds:
        cells = [row["title"], f"{row['rows']:,}", str(row["depth"]), f"{row['cpu']:.3f}", str(row["rounds"]),
                 f"{row['sent']:.1f}"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    (RESULTS / "secure_papers.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=["titanic", "heart", "car", "adult"])
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--twins", type=int, default=20)
    options = parser.parse_args()
    file = RESULTS / "secure_papers.json"
    kept = json.loads(file.read_text()) if file.exists() else {"roles": [], "speed": []}
    if options.speed:
        kept["speed"] = speed(options.data)
    for name in options.only:
        kept["roles"] = [row for row in kept["roles"] if row["table"] != name]
        kept["roles"] += measure(options.data, name, options.twins)
    file.write_text(json.dumps(kept, indent=0) + "\n")
    write(kept["roles"], kept["speed"])


if __name__ == "__main__":
    main()
