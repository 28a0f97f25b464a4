# SPDX-License-Identifier: Apache-2.0
"""Fit PrivateForest from a folder of Parquet files, and compare with the time that pyarrow needs to read them.

Run `python benchmarks/many_rows.py --rows 100000000 --json benchmarks/results/many_rows.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

COLUMNS, PIECE = 20, 1 << 22


def write(folder: Path, piece: int, n_rows: int) -> None:
    rng = np.random.default_rng(piece)
    X = rng.standard_normal((COLUMNS, n_rows), dtype=np.float32)
    score = X[:5].sum(axis=0) + X[5] * X[6] + rng.logistic(size=n_rows)
    columns = {f"x{i}": column for i, column in enumerate(X)} | {"target": (score > 0).astype(np.int8)}
    pa.parquet.write_table(pa.table(columns), folder / f"{piece:05}.parquet", use_dictionary=False)


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def read(folder: Path) -> dict[str, Any]:
    (wall, cpu), rows = clocks(), 0
    for batch in pa.dataset.dataset(folder).to_batches(batch_size=65536):
        rows += batch.num_rows
    return {"rows": rows, "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def fit(folder: Path, n_jobs: int) -> dict[str, Any]:
    import veilwood as vw

    warnings.simplefilter("ignore")
    names = [f"x{i}" for i in range(COLUMNS)]
    schema = vw.Schema.numeric((-5, 5), classes=[0, 1], names=names)
    wall, cpu = clocks()
    forest = vw.PrivateForestClassifier(schema, epsilon=1, random_state=0, n_jobs=n_jobs).fit(folder)
    facts = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**facts, "peak_bytes": peak, "learned": forest.plan_.learned, "n_jobs": n_jobs}


def report(found: dict[str, Any]) -> str:
    reading, lines = found["read"], ["# Many rows from Parquet", ""]
    lines += [
        f"{found['rows']:,} rows of {COLUMNS} columns, two classes, epsilon 1, {found['bytes'] / 1e9:.1f} GB Parquet; "
        f"{found['cores']} cores. pyarrow reads them in {reading['wall']:.1f} s ({reading['cpu']:.1f} CPU s).", "",
        "| threads | fit, s | CPU s | highest memory, GiB | of pyarrow's reading speed | by CPU |", "|---" * 6 + "|",
    ]  # fmt: skip
    lines += [
        f"| {each['n_jobs']} | {each['wall']:.1f} | {each['cpu']:.1f} | {each['peak_bytes'] / 2**30:.2f} | "
        f"{100 * reading['wall'] / each['wall']:.1f} % | {100 * reading['cpu'] / each['cpu']:.1f} % |"
        for each in found["fits"]
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--jobs", type=int, nargs="*", default=[1])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fit", type=Path)
    options = parser.parse_args()
    if options.fit:
        print(json.dumps(fit(options.fit, options.jobs[0])))
        return
    with tempfile.TemporaryDirectory() as name:
        folder, pieces = Path(name), range(0, options.rows, PIECE)
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            list(pool.map(lambda at: write(folder, at // PIECE, min(PIECE, options.rows - at)), pieces))
        size = sum(file.stat().st_size for file in folder.iterdir())
        found: dict[str, Any] = {"rows": options.rows, "bytes": size, "cores": os.cpu_count(), "read": read(folder)}
        found["fits"] = []
        for jobs in options.jobs:
            words = [sys.executable, __file__, "--fit", name, "--jobs", str(jobs)]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            found["fits"].append(json.loads(done.stdout.splitlines()[-1]))
            print(found["fits"][-1], flush=True)
    print(report(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
        options.json.with_suffix(".md").write_text(report(found))


if __name__ == "__main__":
    main()
