# SPDX-License-Identifier: Apache-2.0
"""Measures fits inside DuckDB, beside the same fits on the same rows in memory; CPU seconds of all threads.

Nothing is asserted here. Each fit runs in a process of its own. DuckDB works inside that process, so that its seconds
are counted too: python benchmarks/sql.py --rows 1000000
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = 20
FITS = {
    "RandomTreesClassifier, 20 trees of depth 6": ("RandomTreesClassifier", {"n_estimators": 20, "max_depth": 6}),
    "MedianForestClassifier, 5 trees of depth 4": (
        "MedianForestClassifier", {"n_estimators": 5, "max_depth": 4, "trees": "shared"},
    ),
    "PrivateForestClassifier": ("PrivateForestClassifier", {}),
}  # fmt: skip


def make(path: Path, rows: int) -> None:
    import duckdb
    import pyarrow as pa

    rng = np.random.default_rng(0)
    table: dict[str, Any] = {f"x{i}": rng.normal(50, 20, rows) for i in range(COLUMNS)}
    signal = (table["x0"] + table["x1"] - table["x2"]) / 20 + rng.normal(0, 1, rows)
    table["y"] = np.where(signal > 2.5, "yes", "no")
    with duckdb.connect(str(path)) as connection:
        connection.register("given", pa.table(table))
        connection.execute("CREATE TABLE visits AS SELECT * FROM given")


def measured(path: Path, name: str, where: str) -> dict[str, Any]:
    """Fit in this process."""
    import duckdb

    import veilwood as vw

    columns = [vw.Column(f"x{i}", "numeric", lower=0, upper=100) for i in range(COLUMNS)]
    schema = vw.Schema("visits", "classification", vw.Column("y", "categorical", values=("no", "yes")), tuple(columns))
    estimator, params = FITS[name]
    forest = getattr(vw, estimator)(schema, epsilon=1.0, random_state=0, n_jobs=1, **params)
    if where == "memory":
        with duckdb.connect(str(path), read_only=True) as connection:
            given: Any = connection.sql("SELECT * FROM visits").to_arrow_table()
    else:
        given = f"duckdb:///{path}#visits"
    if where == "memory":  # compile kernels on a few rows first
        getattr(vw, estimator)(schema, epsilon=1.0, random_state=0, n_jobs=1, **params).fit(given.slice(0, 2000))
    start, wall = time.process_time(), time.perf_counter()
    forest.fit(given)
    found: dict[str, Any] = {"cpu": time.process_time() - start, "wall": time.perf_counter() - wall}
    found["statements"] = len(getattr(forest, "statements_", ()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "sql.md")
    parser.add_argument("--one", nargs=3, metavar=("PATH", "FIT", "WHERE"))
    arguments = parser.parse_args()
    if arguments.one:
        path, name, where = arguments.one
        print(json.dumps(measured(Path(path), name, where)))
        return
    import duckdb

    lines = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.duckdb"
        make(path, arguments.rows)
        for name in FITS:
            found = {}
            for where in ("memory", "DuckDB"):
                words = [sys.executable, __file__, "--one", str(path), name, where]
                done = subprocess.run(words, check=True, capture_output=True, text=True, env=dict(os.environ))
                found[where] = json.loads(done.stdout.splitlines()[-1])
            inside, here = found["DuckDB"], found["memory"]
            lines.append(
                f"| {name} | {inside['cpu']:.2f} | {here['cpu']:.2f} | {inside['statements']} | {inside['wall']:.1f} |"
            )
            print(lines[-1])
    text = (
        f"""# Fits inside DuckDB

{arguments.rows:,} rows, {COLUMNS} columns of floats, two classes, epsilon 1. CPU seconds of all threads, planning and
parsing of statements included, DuckDB {duckdb.__version__}, {os.cpu_count()} cores ({platform.machine()}). Beside it
the same fit on the same rows in memory, with compiled kernels that were warm, on one thread. Others used the machine
too, which shows in wall time.

| fit | CPU s inside DuckDB | CPU s in memory | statements | wall s inside |
|---|---|---|---|---|
"""
        + "\n".join(lines)
        + "\n"
    )
    arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
