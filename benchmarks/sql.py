# SPDX-License-Identifier: Apache-2.0
"""Measure fits inside DuckDB and PostgreSQL against the same fits on rows in memory, in CPU seconds of all threads.

The script asserts nothing. Each fit runs in a separate process. DuckDB runs inside that process, so its seconds are
included; those of a server are read from the system. Earlier measurements stay in the results:
python benchmarks/sql.py --rows 1000000 --fits PrivateForestClassifier --postgres postgresql://...
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


def measured(path: Path, name: str, where: str, server: str | None = None) -> dict[str, Any]:
    """Fit in this process; the seconds of a server are added."""
    import duckdb

    import veilwood as vw

    columns = [vw.Column(f"x{i}", "numeric", lower=0, upper=100) for i in range(COLUMNS)]
    schema = vw.Schema("visits", "classification", vw.Column("y", "categorical", values=("no", "yes")), tuple(columns))
    estimator, params = FITS[name]
    forest = getattr(vw, estimator)(schema, epsilon=1.0, random_state=0, n_jobs=1, **params)
    given: Any = f"duckdb:///{path}#visits" if where == "DuckDB" else f"{server}#visits"
    if where == "memory":
        with duckdb.connect(str(path), read_only=True) as connection:
            given = connection.sql("SELECT * FROM visits").to_arrow_table()
        # Kernels are compiled on a few rows first.
        getattr(vw, estimator)(schema, epsilon=1.0, random_state=0, n_jobs=1, **params).fit(given.slice(0, 2000))
    there = 0.0 if where != "PostgreSQL" else seconds_of(str(server))
    start, wall = time.process_time(), time.perf_counter()
    forest.fit(given)
    found: dict[str, Any] = {"cpu": time.process_time() - start, "wall": time.perf_counter() - wall}
    if where == "PostgreSQL":
        found["cpu"] += seconds_of(str(server)) - there
    found["statements"] = len(getattr(forest, "statements_", ()))
    return found


def seconds_of(server: str) -> float:
    """CPU seconds of a server on this machine and of all connections that have ended; Linux only."""
    import psycopg

    with psycopg.connect(server) as connection:
        ((own,),) = connection.execute("SELECT pg_backend_pid()").fetchall()
        parent = Path(f"/proc/{own}/stat").read_text().rpartition(")")[2].split()[1]
    time.sleep(1)  # until the connections that have ended are counted
    ticks = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def copy_to_server(path: Path, server: str) -> None:
    import duckdb
    import psycopg

    names = [f"x{i}" for i in range(COLUMNS)]
    with duckdb.connect(str(path), read_only=True) as source, psycopg.connect(server) as target:
        target.execute("DROP TABLE IF EXISTS visits")
        target.execute(f"CREATE TABLE visits ({', '.join(f'{name} DOUBLE PRECISION' for name in names)}, y TEXT)")
        rows = source.execute("SELECT * FROM visits")
        with target.cursor().copy("COPY visits FROM STDIN") as copy:
            while some := rows.fetchmany(10_000):
                for row in some:
                    copy.write_row(row)
        target.execute("ANALYZE visits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--fits", nargs="+", choices=[kind for kind, _ in FITS.values()], help="these alone, by class")
    parser.add_argument("--postgres", metavar="ADDRESS", help="a server here, whose table visits is replaced")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "sql.json")
    parser.add_argument("--one", nargs=3, metavar=("PATH", "FIT", "WHERE"))
    arguments = parser.parse_args()
    if arguments.one:
        path, name, where = arguments.one
        print(json.dumps(measured(Path(path), name, where, arguments.postgres)))
        return
    known = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {"fits": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.duckdb"
        make(path, arguments.rows)
        places = ["memory", "DuckDB"]
        if arguments.postgres:
            copy_to_server(path, arguments.postgres)
            places.append("PostgreSQL")
        for name, (kind, _) in FITS.items():
            for where in places if arguments.fits is None or kind in arguments.fits else []:
                words = [sys.executable, __file__, "--one", str(path), name, where]
                words += ["--postgres", arguments.postgres] if arguments.postgres else []
                done = subprocess.run(words, check=True, capture_output=True, text=True, env=dict(os.environ))
                found = json.loads(done.stdout.splitlines()[-1])
                known["fits"].setdefault(f"{name}, {arguments.rows:,} rows", {})[where] = found
                print(name, where, found, flush=True)
                write(known, arguments.out)  # what was measured stays, whatever comes next


def write(known: dict[str, Any], out: Path) -> None:
    import duckdb

    known["machine"] = f"DuckDB {duckdb.__version__}, {os.cpu_count()} cores ({platform.machine()})"
    out.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    lines = []
    for name, places in sorted(known["fits"].items()):
        for where, found in places.items():
            if where != "memory":
                here = f"{places['memory']['cpu']:.2f}" if "memory" in places else ""
                lines.append(
                    f"| {name} | {where} | {found['cpu']:.1f} | {here} | {found['statements']} | {found['wall']:.0f} |"
                )
    text = (
        f"""# Fits inside databases

{COLUMNS} columns of floats, two classes, epsilon 1. CPU seconds of all threads, of the server too, planning and parsing
of statements included; {known["machine"]}. Beside them the same fit on the same rows in memory, with compiled kernels
that were warm, on one thread. Others used the machine too, which shows in wall time.

| fit | inside | CPU s | CPU s in memory | statements | wall s |
|---|---|---|---|---|---|
"""
        + "\n".join(lines)
        + "\n"
    )
    out.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
