# SPDX-License-Identifier: Apache-2.0
"""Measure counting and prediction on a GPU against its memory bandwidth and against the CPU, on the same rows.

Before timing, each result is checked against the CPU's integers, on all rows if numba is installed. Rows are in the
GPU's memory unless a line states otherwise. Run `python benchmarks/gpu.py --json gpu.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from counting import make_table
from numpy.typing import NDArray

import veilwood as vw
from veilwood.arrays import HAVE_NUMBA
from veilwood.data.batches import Batch
from veilwood.data.encoding import EncodedColumn, Encoding
from veilwood.trees.counting import leaf_totals, sum_over_trees
from veilwood.trees.random import grow_binary
from veilwood_engines import gpu

CHECKED_BY_NUMPY = 20_000  # rows compared where there is no numba


def on_device(work: Callable[[], Any], repeats: int = 7) -> float:
    """Return the median seconds between two events on the GPU, after a run that compiles."""
    work()
    seconds = []
    for _ in range(repeats):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        work()
        end.record()
        end.synchronize()
        seconds.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
    return statistics.median(seconds)


def wall(work: Callable[[], Any], repeats: int = 3) -> float:
    """Return the median seconds of a call that ends with the result in the processor's memory."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def copy_bandwidth(gigabytes: int = 4) -> float:
    """Return bytes per second, read and written, of a copy inside the GPU's memory."""
    source = cupy.arange(gigabytes << 27, dtype=np.uint64)
    target = cupy.empty_like(source)
    return 2 * source.nbytes / on_device(lambda: cupy.copyto(target, source))


def random_rows(columns: list[EncodedColumn], n: int) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    """Return uniformly random codes and two classes."""
    rng = np.random.default_rng(0)
    codes = np.empty((n, len(columns)), np.uint16)
    for j, column in enumerate(columns):
        codes[:, j] = rng.integers(column.n_codes, size=n, dtype=np.uint16)
    return codes, rng.integers(2, size=n, dtype=np.int32)


def check(forest: Any, codes: NDArray[np.uint16], target: NDArray[np.int32], values: NDArray[np.float64]) -> int:
    """Compare the GPU with the processor, bit for bit; return the rows compared."""
    n = len(codes) if HAVE_NUMBA else min(len(codes), CHECKED_BY_NUMPY)
    batch = Batch(codes[:n], target[:n], 0, 0)
    totals = leaf_totals(forest, [batch], n_classes=2, n_jobs=-1)
    sums = sum_over_trees(forest, batch.codes, values, n_jobs=-1)
    with gpu.use():
        if not np.array_equal(totals, leaf_totals(forest, [batch], n_classes=2)):
            raise SystemExit("the GPU counts otherwise than the processor")
        if not np.array_equal(sums, sum_over_trees(forest, batch.codes, values)):
            raise SystemExit("the GPU adds otherwise than the processor")
    return n


def measure(
    columns: list[EncodedColumn], codes: NDArray[np.uint16], target: NDArray[np.int32], trees: int, depth: int
) -> dict[str, Any]:
    """Measure one forest; rows on the device, codes column after column, unless named otherwise."""
    forest = grow_binary(columns, trees, depth, 0)
    values = np.random.default_rng(1).random((forest.n_leaves, 2))
    checked = check(forest, codes, target, values)
    rows_there, target_there, values_there = cupy.asarray(codes), cupy.asarray(target), cupy.asarray(values)
    columns_there = gpu.to_device_columns(rows_there)
    totals = cupy.zeros((forest.n_leaves, 2), np.uint64)
    counting = gpu.DeviceForest(forest, 2, np.uint32)
    predicting = gpu.DeviceForest(forest, 2, np.float64)
    batch = Batch(codes, target, 0, 0)
    with gpu.use():
        result = {
            "trees": trees,
            "depth": depth,
            "rows compared": checked,
            "count": on_device(lambda: counting.count_rows(columns_there, target_there, None, 0, totals)),
            "count rows": on_device(
                lambda: counting.count_rows(gpu.to_device_columns(rows_there), target_there, None, 0, totals)
            ),
            "predict": on_device(lambda: predicting.sum_leaf_values(columns_there, values_there)),
            "count from host": wall(lambda: leaf_totals(forest, [batch], n_classes=2)),
            "predict from host": wall(lambda: sum_over_trees(forest, codes, values)),
        }
    if HAVE_NUMBA:
        result["count, processor"] = wall(lambda: leaf_totals(forest, [batch], n_classes=2, n_jobs=-1), 1)
        result["predict, processor"] = wall(lambda: sum_over_trees(forest, codes, values, n_jobs=-1), 1)
    return result


def measure_fit(rows: int, trees: int, depth: int) -> dict[str, float]:
    """Return the seconds of a whole fit, encoding of the table and noise included, with and without the GPU."""
    schema, X, y = make_table(rows, 14, 6)

    def fit() -> None:
        vw.RandomTreesClassifier(schema, n_estimators=trees, max_depth=depth, random_state=0, n_jobs=-1).fit(X, y)

    figures = {"rows": rows, "without": wall(fit, 1)}
    with gpu.use():
        figures["with"] = wall(fit, 1)
    return figures


def report(figures: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    rows, bandwidth = figures["rows"], figures["copy bytes per second"]
    bytes_per_row = 2 * figures["columns"] + 4  # codes and class, each read once
    n = max(run["rows compared"] for run in figures["runs"])

    def rate(run: dict[str, Any], name: str) -> str:
        return f"{rows * run['trees'] / run[name] / 1e9:.3g}" if name in run else "not measured"

    lines = [
        f"{figures['device']}, CuPy {figures['cupy']}; {figures['cores']} processor cores. {rows:,} rows of "
        f"{figures['columns']} columns (14 numeric, 6 categorical), uniformly random codes, two classes. Every result "
        f"was first compared with the processor's on {n:,} rows: equal bit for bit.",
        "",
        "Billions of row-trees (one row down one tree) per second, median of 7:",
        "",
        "| trees | depth | counting | of memory bandwidth | counting, with the codes turned | prediction | "
        "counting from the processor's memory | prediction, likewise | counting, all cores | prediction, all cores |",
        "|" + "---|" * 10,
    ]
    lines += [
        f"| {run['trees']} | {run['depth']} | {rate(run, 'count')} | "
        f"{100 * rows * bytes_per_row / run['count'] / bandwidth:.2f} % | {rate(run, 'count rows')} | "
        f"{rate(run, 'predict')} | {rate(run, 'count from host')} | {rate(run, 'predict from host')} | "
        f"{rate(run, 'count, processor')} | {rate(run, 'predict, processor')} |"
        for run in figures["runs"]
    ]
    fit = figures["fit"]
    lines += [
        "",
        f"A copy inside the GPU's memory moves {bandwidth / 1e12:.2f} TB/s, read and written. The share is that of the "
        f"{bytes_per_row} bytes of a row, each counted once: memory bandwidth is not what limits the walk.",
        "",
        f"A whole `fit` of {fit['rows']:,} rows held in memory, 100 trees of depth 8, encoding and noise included: "
        f"{fit['with']:.2f} s with the GPU, {fit['without']:.2f} s without.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--fit-rows", type=int, default=2_000_000)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()

    schema, _, _ = make_table(1, 14, 6)
    columns = list(Encoding(schema, "grid").columns)
    codes, target = random_rows(columns, options.rows)
    figures = {
        "device": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "cupy": cupy.__version__,
        "cores": os.cpu_count(),
        "rows": options.rows,
        "columns": len(columns),
        "copy bytes per second": copy_bandwidth(),
        "runs": [
            measure(columns, codes, target, trees, depth) for trees, depth in ((10, 8), (100, 4), (100, 8), (100, 12))
        ],
        "fit": measure_fit(options.fit_rows, 100, 8),
    }
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
