# SPDX-License-Identifier: Apache-2.0
"""Measure the constants of the cost model of benchmarks/results/cost_model.md, check the model, and simulate clusters.

Measured values and assumptions (network, variation between workers) are printed separately. Times are CPU seconds of
all threads together, because wall time means little on a busy machine.
Run `python benchmarks/cost_model.py --gpu gpu.json`.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
from counting import make_table

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood_engines.cluster.engines import FAN_IN

FILES = 32  # of the table that is measured, so that every core has some
CLASSES = 2
COUNTER_BYTES = 8


@dataclass(frozen=True)
class Constants:
    """Seconds of one core, except where named otherwise."""

    read: float  # a cell out of Parquet, by pyarrow alone
    encode: float  # a cell to its code
    step: float  # one row, one level down one tree
    start: float  # a fit, whatever its size
    grow: float  # a level of a tree
    release: float  # a counter: its noise, and all that follows
    add: float  # a counter, when two arrays are added
    cell_bytes: float  # of a cell in the file


@dataclass(frozen=True)
class Setting:
    """What a fit costs depends on this and on nothing in the data."""

    rows: float
    columns: int
    trees: int
    depth: int

    @property
    def counters(self) -> int:
        return self.trees * 2**self.depth * CLASSES

    def driver_seconds(self, constants: Constants) -> float:
        """Core seconds before and after the pass, on one core of one machine."""
        grown = self.trees * self.depth * constants.grow
        return constants.start + grown + self.counters * constants.release

    def pass_seconds(self, constants: Constants, step: float | None = None) -> float:
        """Core seconds of the pass over the rows; a GPU takes the steps off the cores."""
        walk = self.trees * self.depth * (constants.step if step is None else step)
        return self.rows * (self.columns * (constants.read + constants.encode) + walk)


def cpu(work: Callable[[], Any], repeats: int = 3) -> float:
    """Return the least CPU seconds, all threads together, after a run that warms up."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def write_table(folder: Path, rows: int, numeric: int, categorical: int) -> vw.Schema:
    """Write a table as Parquet files: numbers as 32-bit floats, categories and classes as text."""
    schema, X, y = make_table(rows, numeric, categorical)
    for number, part in enumerate(np.array_split(np.arange(rows), FILES)):
        columns: dict[str, Any] = {}
        for j, column in enumerate(schema.features):
            values = X[part[0] : part[-1] + 1, j]
            columns[column.name] = (
                values if column.kind == "numeric" else pa.array(values.astype(int).astype(str)).dictionary_encode()
            )
        columns["class"] = pa.array(y[part[0] : part[-1] + 1].astype(str)).dictionary_encode()
        pyarrow.parquet.write_table(pa.table(columns), folder / f"part{number:03}.parquet")
    return schema


def read_all(folder: Path) -> None:
    for _ in pyarrow.dataset.dataset(folder).to_batches(batch_size=65536):
        pass


def drain(schema: vw.Schema, folder: Path) -> None:
    for _ in open_rows(folder, None, Encoding(schema, "grid")).batches():
        pass


def fit(schema: vw.Schema, folder: Path, trees: int, depth: int, jobs: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forest = vw.RandomTreesClassifier(schema, n_estimators=trees, max_depth=depth, random_state=0, n_jobs=jobs)
        forest.fit(folder)


@dataclass(frozen=True)
class Measured:
    """The constants, other fits beside what the constants foretell, and one fit on more and more threads."""

    constants: Constants
    checks: list[tuple[Setting, float, float]]
    threads: list[tuple[int, float, float]]  # threads, wall and CPU seconds


def measure(rows: int, jobs: int) -> Measured:
    """Take the constants, and try them on fits that had no part in them."""
    with tempfile.TemporaryDirectory() as name:
        folder, tiny = Path(name) / "table", Path(name) / "tiny"
        folder.mkdir()
        tiny.mkdir()
        schema = write_table(folder, rows, 14, 6)
        write_table(tiny, 10 * FILES, 14, 6)
        cells = rows * 20
        cell_bytes = sum(file.stat().st_size for file in folder.iterdir()) / cells
        read = cpu(lambda: read_all(folder)) / cells

        # Each constant has a measurement of its own: a remainder would take up the errors of all the others.
        encode = cpu(lambda: drain(schema, folder)) / cells - read
        small = [Setting(0, 20, 1, 1), Setting(0, 20, 100, 4), Setting(0, 20, 100, 11)]
        equations = [[1, s.trees * s.depth, s.counters] for s in small]
        seconds = [cpu(lambda s=s: fit(schema, tiny, s.trees, s.depth, jobs)) for s in small]
        start, grow, release = np.linalg.solve(equations, seconds).tolist()
        few, many = (cpu(lambda n=n: fit(schema, folder, n, 8, jobs)) for n in (20, 100))
        step = ((many - few) - 80 * (8 * grow + 2**8 * CLASSES * release)) / (rows * 80 * 8)
        counters = np.ones(1 << 20, np.int64)
        add = cpu(lambda: [counters.__iadd__(counters) for _ in range(50)]) / (50 * len(counters))
        constants = Constants(read, encode, step, start, grow, release, add, cell_bytes)

        checks = []
        for trees, depth in ((10, 8), (50, 8), (100, 4), (100, 10)):
            setting = Setting(rows, 20, trees, depth)
            foretold = setting.pass_seconds(constants) + setting.driver_seconds(constants)
            checks.append((setting, foretold, cpu(lambda t=trees, d=depth: fit(schema, folder, t, d, jobs), 2)))

        threads = []
        for n in sorted({*(2**k for k in range(jobs.bit_length())), jobs}):
            wall, used = time.perf_counter(), time.process_time()
            fit(schema, folder, 100, 8, n)
            threads.append((n, time.perf_counter() - wall, time.process_time() - used))
    return Measured(constants, checks, threads)


def simulate(
    parts: int, part_seconds: float, cores: int, receive_seconds: float, spread: float, seed: int = 0
) -> tuple[float, int]:
    """Return when the last sum is there, and how many levels the sums were added up in.

    Cores take parts of the data in turn. As soon as ``FAN_IN`` neighbouring arrays of sums are there, some free core
    fetches and adds them (``receive_seconds`` each), and so on up to one; that goes before further parts.
    """
    rng = np.random.default_rng(seed)
    uneven = np.exp(spread * rng.standard_normal(parts))
    slowness = (uneven / uneven.mean()).tolist()
    widths = [parts]
    while widths[-1] > 1:
        widths.append(math.ceil(widths[-1] / FAN_IN))
    missing = [[min(FAN_IN, below - FAN_IN * i) for i in range(width)] for below, width in pairwise(widths)]
    arrived = [[0.0] * width for width in widths[1:]]
    free, ready, started, finish = [0.0] * cores, [], 0, 0.0
    while started < parts or ready:
        now = heapq.heappop(free)
        if ready and (ready[0][0] <= now or started == parts):
            since, level, place = heapq.heappop(ready)
            inputs = min(FAN_IN, widths[level - 1] - FAN_IN * place)
            finish = max(now, since) + inputs * receive_seconds
        else:
            level, place = 0, started
            finish = now + part_seconds * slowness[started]
            started += 1
        heapq.heappush(free, finish)
        if level + 1 < len(widths):
            above = place // FAN_IN
            missing[level][above] -= 1
            arrived[level][above] = max(arrived[level][above], finish)
            if not missing[level][above]:
                heapq.heappush(ready, (arrived[level][above], level + 1, above))
    return finish, len(widths) - 1


def duration(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def cluster_rows(options: argparse.Namespace, constants: Constants, gpu_step: float | None) -> list[str]:
    """Return lines of the table of clusters: one for each forest and number of machines."""
    lines = []
    for trees, with_gpu in ((10, False), (100, False), (100, True)):
        if with_gpu and gpu_step is None:
            continue
        setting = Setting(options.target_rows, 20, trees, 8)
        part = Setting(options.part_rows, 20, trees, 8)
        parts = math.ceil(setting.rows / part.rows)
        array_bytes = COUNTER_BYTES * setting.counters
        for machines in (1, 10, 100, 1000):
            cores = machines * options.cores
            # All cores of a machine share its network and its GPU.
            fetch = options.latency + array_bytes * options.cores / options.bandwidth
            receive = fetch + constants.add * setting.counters
            step = gpu_step * options.cores if with_gpu and gpu_step is not None else None
            seconds = part.pass_seconds(constants, step)
            end, levels = simulate(parts, seconds, cores, receive, options.spread)
            end += setting.driver_seconds(constants)
            ideal = parts * seconds / cores
            read = setting.rows * setting.columns * constants.cell_bytes
            lines.append(
                f"| {trees} | {machines:,}{' with a GPU each' if with_gpu else ''} | {duration(end)} | "
                f"{100 * (end / ideal - 1):.1f} % | {levels} | {parts * array_bytes / 1e9:,.0f} GB | "
                f"{read / end / 1e9:,.2f} GB/s |"
            )
    return lines


def report(options: argparse.Namespace, measured: Measured, gpu: dict[str, Any] | None) -> str:
    """Return everything as Markdown."""
    constants = measured.constants
    nano = 1e9
    run = next((r for r in gpu["runs"] if (r["trees"], r["depth"]) == (100, 8)), None) if gpu else None
    gpu_step = run["count from host"] / (gpu["rows"] * 100 * 8) if gpu and run else None
    lines = [
        f"Measured with {options.threads} threads on {os.cpu_count()} cores, {options.rows:,} rows of 14 numeric and 6 "
        "categorical columns in Parquet; CPU time, the best of three:",
        "",
        "| constant | | value |",
        "|---|---|---|",
        f"| r | read and decode a cell, pyarrow alone | {constants.read * nano:.2f} ns |",
        f"| e | encode a cell | {constants.encode * nano:.2f} ns |",
        f"| s | one row one level down one tree | {constants.step * nano:.3f} ns |",
        f"| o | start and end of a fit, on one core | {constants.start * 1e3:.1f} ms |",
        f"| w | grow one level of a tree, on one core | {constants.grow * 1e6:.0f} µs |",
        f"| f | draw the noise of a counter and what follows, on one core | {constants.release * nano:.0f} ns |",
        f"| a | add one counter of two arrays | {constants.add * nano:.2f} ns |",
        f"| b | bytes of a cell in the file | {constants.cell_bytes:.2f} |",
    ]
    if gpu_step is not None and gpu is not None:
        lines.append(
            f"| g | the same as s, {gpu['device']}, rows sent from the host (gpu.json) | {gpu_step * nano:.5f} ns |"
        )
    lines += [
        "",
        "Whole fits that had no part in the constants, CPU seconds:",
        "",
        "| trees | depth | foretold | measured |",
        "|---|---|---|---|",
        *(f"| {s.trees} | {s.depth} | {result:.2f} | {found:.2f} |" for s, result, found in measured.checks),
        "",
        "One fit, 100 trees of depth 8, by number of threads:",
        "",
        "| threads | wall seconds | CPU seconds |",
        "|---|---|---|",
        *(f"| {n} | {wall:.2f} | {used:.2f} |" for n, wall, used in measured.threads),
        "",
        f"{options.target_rows:,.0f} rows of 20 columns, depth 8, in parts of {options.part_rows:,.0f} rows. "
        f"SIMULATED, from the constants above. Assumed, not measured: machines of {options.cores} cores like these, "
        f"{options.bandwidth * 8 / 1e9:g} Gbit/s and {1e3 * options.latency:g} ms between them, parts that take "
        f"unequally long (standard deviation {100 * options.spread:g} %), storage that keeps up.",
        "",
        "| trees | machines | time | over even sharing | levels of adding up | sums sent | storage must deliver |",
        "|---|---|---|---|---|---|---|",
        *cluster_rows(options, constants, gpu_step),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table that is measured")
    parser.add_argument("--target-rows", type=float, default=1e12, help="rows of the table that is simulated")
    parser.add_argument("--part-rows", type=float, default=1e7, help="rows of one part of it")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of the fits that are measured")
    parser.add_argument("--cores", type=int, default=16, help="cores of a machine that is simulated")
    parser.add_argument("--bandwidth", type=float, default=1.25e9, help="bytes per second of a machine's network")
    parser.add_argument("--latency", type=float, default=1e-3, help="seconds to fetch an empty array")
    parser.add_argument("--spread", type=float, default=0.2, help="unevenness of the parts")
    parser.add_argument("--gpu", type=Path, help="what benchmarks/gpu.py --json wrote")
    options = parser.parse_args()

    gpu = json.loads(options.gpu.read_text()) if options.gpu else None
    print(report(options, measure(options.rows, options.threads), gpu))


if __name__ == "__main__":
    main()
