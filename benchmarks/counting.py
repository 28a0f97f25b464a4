# SPDX-License-Identifier: Apache-2.0
"""Measure counting and routing against scikit-learn's extremely randomised trees, on the same table in the same run.

The script asserts nothing. Wall time depends on the load of the machine, so CPU time is printed next to it. Memory is
measured in a separate process. Run `python benchmarks/counting.py --json counting.json`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier

import veilwood as vw
from veilwood.data.batches import Batch
from veilwood.data.encoding import Encoding
from veilwood.trees.counting import leaf_totals, sum_over_trees
from veilwood.trees.random import grow_binary

CATEGORIES = (2, 3, 5, 8, 12, 20)  # values of the categorical columns, repeated as needed


def make_table(rows: int, numeric: int, categorical: int) -> tuple[vw.Schema, NDArray[np.float32], NDArray[np.int64]]:
    """Return a table both libraries can read: numbers in [0, 1], categories as whole numbers, two classes."""
    rng = np.random.default_rng(0)
    widths = [CATEGORIES[j % len(CATEGORIES)] for j in range(categorical)]
    X = np.empty((rows, numeric + categorical), np.float32)
    y = np.empty(rows, np.int64)
    for start in range(0, rows, 65536):  # in blocks, so that making the table needs no memory of its own
        block = X[start : start + 65536]
        block[:, :numeric] = rng.random((len(block), numeric), dtype=np.float32)
        block[:, numeric:] = rng.integers(0, widths, (len(block), categorical))
        y[start : start + 65536] = block[:, 0] + block[:, 1] + 0.3 * rng.standard_normal(len(block)) > 1
    columns = [vw.Column(f"number_{i}", "numeric", lower=0, upper=1) for i in range(numeric)]
    for j, width in enumerate(widths):
        columns.append(vw.Column(f"category_{j}", "categorical", values=tuple(str(v) for v in range(width))))
    target = vw.Column("class", "categorical", values=("0", "1"))
    return vw.Schema("synthetic", "classification", target, tuple(columns)), X, y


def timed(work: Callable[[], Any], repeats: int = 1) -> dict[str, float]:
    """Return the best wall and CPU seconds, all threads together, over some repeats."""
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {"wall": min(walls), "cpu": min(cpus)}


def copy_bandwidth(megabytes: int = 256, repeats: int = 5) -> float:
    """Return bytes per second that one core reads and writes while copying a large array."""
    source = np.ones(megabytes << 17)
    target = np.empty_like(source)
    np.copyto(target, source)
    return 2 * source.nbytes / timed(lambda: np.copyto(target, source), repeats)["cpu"]


def measure_speed(options: argparse.Namespace) -> dict[str, Any]:
    schema, X, y = make_table(options.rows, options.numeric, options.categorical)
    encoding = Encoding(schema, "grid")
    codes, target = encoding.encode(X), encoding.encode_target(y)
    batch = Batch(codes, target, 0, 0)
    grow = timed(lambda: grow_binary(encoding.columns, options.trees, options.depth, 0), 3)
    forest = grow_binary(encoding.columns, options.trees, options.depth, 0)
    values = np.random.default_rng(1).random((forest.n_leaves, 2))
    first = Batch(codes[:1], target[:1], 0, 0)
    leaf_totals(forest, [first], n_classes=2)  # compile or load the kernels before the clock runs
    sum_over_trees(forest, codes[:1], values)

    encode = timed(lambda: (encoding.encode(X), encoding.encode_target(y)), 3)
    bandwidth = copy_bandwidth()
    runs = []
    for n_jobs in options.jobs:
        peer = ExtraTreesClassifier(options.trees, max_depth=options.depth, n_jobs=n_jobs, random_state=0)
        count = timed(lambda n=n_jobs: leaf_totals(forest, [batch], n_classes=2, n_jobs=n), 3)
        route = timed(lambda n=n_jobs: sum_over_trees(forest, codes, values, n_jobs=n), 3)
        runs.append(
            {
                "n_jobs": n_jobs,
                "count": count,
                "sklearn fit": timed(lambda p=peer: p.fit(X, y)),
                "route": route,
                "sklearn predict_proba": timed(lambda p=peer: p.predict_proba(X), 2),
                "node steps per CPU second": options.rows * options.trees * options.depth / count["cpu"],
                # Each thread streams all codes and targets once; nodes and counters stay in its cache.
                "share of bandwidth": (codes.nbytes + target.nbytes) * n_jobs / count["cpu"] / bandwidth,
            }
        )
    return {"grow": grow, "encode": encode, "copy bytes per second": bandwidth, "runs": runs}


def measure_memory(options: argparse.Namespace, connection: Any) -> None:
    """Send the peak memory of a whole fit and of predict_proba, in bytes beyond the table and the loaded libraries."""
    schema, X, y = make_table(options.rows, options.numeric, options.categorical)
    forest = vw.RandomTreesClassifier(
        schema, n_estimators=options.trees, max_depth=options.depth, random_state=0, n_jobs=max(options.jobs)
    )
    forest.fit(X[:100], y[:100])  # loads the compiled kernels
    forest.predict_proba(X[:100])
    before = _memory("VmRSS")
    forest.fit(X, y)
    fit = _memory("VmHWM") - before
    forest.predict_proba(X)
    connection.send({"table": X.nbytes + y.nbytes, "fit": fit, "fit and predict_proba": _memory("VmHWM") - before})


def _memory(field: str) -> int:
    """Return a figure of this process in bytes: VmRSS now, VmHWM its highest so far (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def in_own_process(options: argparse.Namespace) -> dict[str, int]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=measure_memory, args=(options, sender))
    process.start()
    figures: dict[str, int] = receiver.recv()
    process.join()
    return figures


def report(options: argparse.Namespace, speed: dict[str, Any], memory: dict[str, int]) -> str:
    """Return the figures as Markdown."""

    def cell(seconds: dict[str, float]) -> str:
        return f"{seconds['wall']:.2f} / {seconds['cpu']:.2f}"

    def ratio(other: dict[str, float], *ours: dict[str, float]) -> str:
        return " / ".join(f"{other[clock] / sum(o[clock] for o in ours):.1f}" for clock in ("wall", "cpu"))

    lines = [
        f"{options.rows:,} rows, {options.numeric} numeric and {options.categorical} categorical columns, "
        f"{options.trees} trees of depth {options.depth}. Seconds: wall / CPU of all threads.",
        "",
        "| threads | counting | ExtraTrees fit | times as fast | with growing and encoding | routing | "
        "ExtraTrees predict_proba | times as fast | with encoding |",
        "|" + "---|" * 9,
    ]
    for run in speed["runs"]:
        fit, predict = run["sklearn fit"], run["sklearn predict_proba"]
        lines.append(
            f"| {run['n_jobs']} | {cell(run['count'])} | {cell(fit)} | {ratio(fit, run['count'])} | "
            f"{ratio(fit, run['count'], speed['grow'], speed['encode'])} | {cell(run['route'])} | {cell(predict)} | "
            f"{ratio(predict, run['route'])} | {ratio(predict, run['route'], speed['encode'])} |"
        )
    lines += [
        "",
        f"Growing the structure: {cell(speed['grow'])} s. Encoding the table: {cell(speed['encode'])} s.",
        "",
        f"Peak memory beyond the table ({memory['table'] / 1e6:.0f} MB) and the loaded libraries: "
        f"{memory['fit'] / 1e6:.0f} MB for a whole `fit`, {memory['fit and predict_proba'] / 1e6:.0f} MB for `fit` and "
        "`predict_proba` on all rows.",
        "",
        f"Copying a large array moves {speed['copy bytes per second'] / 1e9:.1f} GB/s on one core; counting streams "
        f"its input at {100 * speed['runs'][0]['share of bandwidth']:.1f} % of that and takes "
        f"{speed['runs'][0]['node steps per CPU second'] / 1e6:.0f} million node steps per CPU second: it is bound by "
        "the walk down the trees, in the cache, not by memory.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--numeric", type=int, default=14, help="numeric columns")
    parser.add_argument("--categorical", type=int, default=6, help="categorical columns")
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2], help="numbers of threads to try")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()

    memory = in_own_process(options)
    speed = measure_speed(options)
    print(report(options, speed, memory))
    if options.json:
        options.json.write_text(json.dumps({"speed": speed, "memory": memory}, indent=2) + "\n")


if __name__ == "__main__":
    main()
