# SPDX-License-Identifier: Apache-2.0
"""Measure a fit of PrivateForest with rows in a GPU's memory, against the bandwidth of that memory.

Before timing, a smaller fit with the same random bits must give the same model as on the CPU. The clock starts with
rows as codes in the GPU's memory and stops when the model is complete. The docs read the output of `python
benchmarks/gpu_rounds.py --json benchmarks/results/gpu_rounds.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from gpu import copy_bandwidth

import veilwood as vw
from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import GRID_BINS
from veilwood.privacy.accountant import handle_of
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.release import Release
from veilwood_engines import gpu
from veilwood_engines.gpu import GpuBackend

BATCH_ROWS = 1 << 24


def rows_there(n_rows: int, n_columns: int) -> Source:
    """Rows in the GPU's memory: bell-shaped columns, two classes by a sum of some of them and a product."""
    rng = cupy.random.default_rng(0)
    batches = []
    for first in range(0, n_rows, BATCH_ROWS):
        size = min(BATCH_ROWS, n_rows - first)
        codes, score = cupy.empty((n_columns, size), np.uint16), cupy.zeros(size, np.float32)
        held = cupy.zeros(size, np.float32)
        for column in range(n_columns):
            values = rng.standard_normal(size, dtype=np.float32)
            codes[column] = cupy.clip((values / 10 + 0.5) * GRID_BINS, 0, GRID_BINS - 1).astype(np.uint16)
            score += values * (0.6 if column < 5 else 0.2) + values * held * (column % 2)
            held = values
        target = (score + cupy.log(1 / rng.random(size, dtype=np.float32) - 1) > 0).astype(np.int32)
        batches.append(partial(Batch, codes.T, target, 0, first))
    return Source(lambda: iter(batches))


def fit(forest: Any, source: Source) -> Any:
    """Fit rows that are encoded already."""
    method = forest._make_method()
    design = forest._design_for(forest.schema, method=method)
    door = Door(design.plan, open_ledger(None), table=handle_of(None))
    forest._run_release(Release(door), design, method, lambda opened: method.measure_rows(design, source, opened))
    return forest


class Watch:
    """Adds up the seconds, and the bytes of rows, of what is asked of a GPU."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.bytes: dict[str, int] = defaultdict(int)
        self.calls: dict[str, int] = defaultdict(int)

    def over(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def watched(rows: GpuBackend, *given: Any) -> Any:
            cupy.cuda.Device().synchronize()
            began = time.perf_counter()
            out = method(rows, *given)
            cupy.cuda.Device().synchronize()
            kind = name or type(given[0]).__name__
            kind += " (some rows)" if method.__name__ == "ask_some" else ""
            self.seconds[kind] += time.perf_counter() - began
            self.calls[kind] += 1
            if method.__name__ in ("ask", "add"):
                self.bytes[kind] += sum(part.n_rows for part in rows._parts) * self._of_a_row(rows, name, given[0])
            return out

        return watched

    @staticmethod
    def _of_a_row(rows: GpuBackend, name: str, given: Any) -> int:
        """Bytes of a row that have to be read, or written, at least."""
        cell, score = rows._parts[0].cells.itemsize, 4 * rows._n_outputs
        if name == "steps":
            return cell * len(given.axes) + 2 * score
        tables = given.tables if hasattr(given, "tables") else [given.table] if hasattr(given, "table") else []
        columns = {feature for table in tables for feature in table.features}
        more = {"GradientSums": 4 + score, "ClassesByCell": 4}
        return cell * len(columns) + more.get(type(given).__name__, 0)


def check(n_rows: int, n_columns: int, schema: vw.Schema) -> dict[str, float]:
    """Fit the same rows with the same bits on both, and compare; return the seconds of each."""
    there = list(rows_there(n_rows, n_columns).batches())
    here = [Batch(b.codes.get(), b.target.get(), 0, b.first_row) for b in there]
    seconds, models = {}, {}
    for where, batches in (("processor", here), ("gpu", there)):
        source = Source(lambda batches=batches: (partial(lambda b: b, batch) for batch in batches))  # type: ignore[misc]
        forest = vw.PrivateForestClassifier(schema, epsilon=1, random_state=0, n_jobs=-1)
        began = time.perf_counter()
        with seeded_for_tests(1):
            if where == "gpu":
                with gpu.use():
                    models[where] = fit(forest, source)
            else:
                models[where] = fit(forest, source)
        seconds[where] = time.perf_counter() - began
    same = models["gpu"].plan_.steps == models["processor"].plan_.steps
    if not same or not np.array_equal(models["gpu"].leaf_values_, models["processor"].leaf_values_):
        raise SystemExit("the GPU adds up otherwise than the processor")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--checked-rows", type=int, default=2_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    schema = vw.Schema.numeric((-5, 5), classes=[0, 1], n_features=options.columns)
    check(1 << 16, options.columns, schema)  # compiles
    figures: dict[str, Any] = {
        "device": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "cupy": cupy.__version__, "cores": os.cpu_count(), "rows": options.rows, "columns": options.columns,
        "copy bytes per second": copy_bandwidth(), "checked rows": options.checked_rows,
        "seconds of checked rows": check(options.checked_rows, options.columns, schema),
    }  # fmt: skip
    source = rows_there(options.rows, options.columns)
    cupy.cuda.Device().synchronize()
    plain, watch = {}, Watch()
    forest = vw.PrivateForestClassifier(schema, epsilon=1, random_state=0)
    with gpu.use():
        began, cpu = time.perf_counter(), time.process_time()
        fit(forest, source)
        figures["fit seconds"], figures["fit cpu seconds"] = time.perf_counter() - began, time.process_time() - cpu
        figures["learned"] = forest.plan_.learned
        for name, label in (("run", ""), ("run_on_sample", ""), ("add_scores", "steps")):
            plain[name] = getattr(GpuBackend, name)
            setattr(GpuBackend, name, watch.over(plain[name], label))
        began = time.perf_counter()
        fit(vw.PrivateForestClassifier(schema, epsilon=1, random_state=0), source)
        figures["watched fit seconds"] = time.perf_counter() - began
    for name, method in plain.items():
        setattr(GpuBackend, name, method)
    figures["asked"] = {
        kind: {"calls": watch.calls[kind], "seconds": watch.seconds[kind], "bytes": watch.bytes[kind]}
        for kind in sorted(watch.seconds, key=lambda kind: -watch.seconds[kind])
    }
    figures["peak bytes"] = cupy.get_default_memory_pool().total_bytes()
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
        options.json.with_suffix(".md").write_text(report(figures))


def report(figures: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    bandwidth, checked = figures["copy bytes per second"], figures["seconds of checked rows"]
    on_device = sum(each["seconds"] for each in figures["asked"].values())
    moved = sum(each["bytes"] for each in figures["asked"].values())
    passes = sum(each["seconds"] for each in figures["asked"].values() if each["bytes"])
    lines = [
        "# PrivateForest's rounds on a GPU", "",
        f"{figures['device']}, CuPy {figures['cupy']}; {figures['cores']} processor cores. Two classes, "
        f"{figures['columns']} numeric columns, epsilon 1 ({figures['learned']}). A fit of "
        f"{figures['checked rows']:,} rows with the same bits of noise gave the same model on the processor, bit for "
        f"bit: {checked['gpu']:.2f} s with the GPU, {checked['processor']:.2f} s on all cores.", "",
        f"{figures['rows']:,} rows, from codes in the GPU's memory to the model: **{figures['fit seconds']:.2f} s** "
        f"({figures['fit cpu seconds']:.2f} s of one core). Watched once more, with a wait after every question: "
        f"{figures['watched fit seconds']:.2f} s, of which {on_device:.2f} s were the GPU's.", "",
        "| asked of the GPU | times | seconds | GB of rows | of the bandwidth of a copy |", "|---|---|---|---|---|",
        *(
            f"| {kind} | {each['calls']} | {each['seconds']:.3f} | {each['bytes'] / 1e9:.1f} | "
            + (f"{100 * each['bytes'] / each['seconds'] / bandwidth:.0f} % |" if each["bytes"] else "|")
            for kind, each in figures["asked"].items()
        ), "",
        f"A copy inside the GPU's memory moves {bandwidth / 1e12:.2f} TB/s, read and written. Passes over all rows "
        f"moved {moved / 1e9:.0f} GB in {passes:.2f} s: {100 * moved / passes / bandwidth:.0f} % of that, counting "
        "each byte that is needed once. At the limit they would take "
        f"{moved / bandwidth:.2f} s; the rest of the fit is work of the processor, which does not grow with the rows.",
        f"Memory taken on the GPU, rows and generator included: {figures['peak bytes'] / 2**30:.1f} GiB.", "",
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
