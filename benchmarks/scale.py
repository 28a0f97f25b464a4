# SPDX-License-Identifier: Apache-2.0
"""Speed of fits from Parquet files larger than memory, compared with reading alone, other libraries and small clusters.

Nothing is asserted here. Each measurement runs in its own process, to isolate its peak memory. It reports CPU seconds
of all threads next to wall time, which depends on the load of the machine. For a full run of 100 million rows (about
10 GB in FOLDER): `python benchmarks/scale.py --folder DEFAULT_FOLDER --rows 100000000`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

ROWS_BY_FILE = 1_000_000
NUMBERS, WHOLE, TEXTS = 12, 4, 4  # columns of each kind: 20 in all
WORDS = np.array([f"value {i}" for i in range(8)])
DEPTH = 8


def make_files(folder: Path, rows: int) -> None:
    """Write a table as most people have it: float64 and int64 numbers, texts, the defaults of pyarrow."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, rows, ROWS_BY_FILE)):
        path = folder / f"{number:05d}.parquet"
        if path.exists():
            continue
        rng, n = np.random.default_rng(number), min(ROWS_BY_FILE, rows - start)
        columns: dict[str, Any] = {f"number_{i}": rng.normal(50, 20, n) for i in range(NUMBERS)}
        columns |= {f"whole_{i}": rng.integers(0, 100, n) for i in range(WHOLE)}
        columns |= {f"text_{i}": WORDS[rng.integers(0, len(WORDS), n)] for i in range(TEXTS)}
        columns["class"] = np.where(columns["number_0"] + columns["whole_0"] > 100, "yes", "no")
        unfinished = path.with_suffix(".part")
        pa.parquet.write_table(pa.table(columns), unfinished)
        unfinished.rename(path)


def schema() -> Any:
    import veilwood as vw

    names = [f"number_{i}" for i in range(NUMBERS)] + [f"whole_{i}" for i in range(WHOLE)]
    columns = [vw.Column(name, "numeric", lower=0, upper=100) for name in names]
    columns += [vw.Column(f"text_{i}", "categorical", values=tuple(map(str, WORDS))) for i in range(TEXTS)]
    target = vw.Column("class", "categorical", values=("no", "yes"))
    return vw.Schema("scale", "classification", target, tuple(columns))


def files(folder: Path, rows: int) -> list[str]:
    return sorted(map(str, folder.glob("*.parquet")))[: -(-rows // ROWS_BY_FILE)]


# -- what is measured, each in a process of its own -------------------------------------------------------------------


def forest(trees: int, **params: Any) -> Any:
    import veilwood as vw

    return vw.RandomTreesClassifier(schema(), n_estimators=trees, max_depth=DEPTH, random_state=0, n_jobs=-1, **params)


def measure_read(paths: list[str], trees: int) -> Callable[[], Any]:
    """Read and decode every column, with pyarrow alone and its defaults."""

    def read() -> int:
        return sum(batch.num_rows for path in paths for batch in pa.dataset.dataset(path).to_batches())

    return read


def measure_fit(paths: list[str], trees: int) -> Callable[[], Any]:
    model = forest(trees)
    model.fit(pa.dataset.dataset(paths[0]).head(1000))  # compile or load the kernels before the clock runs
    dataset = pa.dataset.dataset(paths)
    folder = str(Path(paths[0]).parent)
    whole = len(paths) == len(list(Path(folder).glob("*.parquet")))
    return lambda: model.fit(folder if whole else dataset)


def as_matrix(paths: list[str]) -> tuple[Any, Any]:
    """A table in memory for libraries that need one: texts as their numbers."""
    table = pa.dataset.dataset(paths).to_table()
    X = np.empty((table.num_rows, NUMBERS + WHOLE + TEXTS), np.float32)
    for i, name in enumerate(table.column_names[:-1]):
        column = table.column(name)
        if name.startswith("text"):
            column = pa.compute.index_in(column, pa.array(WORDS))
        X[:, i] = column.to_numpy()
    return X, (table.column("class").to_numpy() == "yes").astype(int)


def measure_memory(paths: list[str], trees: int) -> Callable[[], Any]:
    table, model = pa.dataset.dataset(paths).to_table(), forest(trees)
    model.fit(table.slice(0, 1000))
    return lambda: model.fit(table)


def measure_extra_trees(paths: list[str], trees: int, **params: Any) -> Callable[[], Any]:
    from sklearn.ensemble import ExtraTreesClassifier

    X, y = as_matrix(paths)
    model = ExtraTreesClassifier(trees, max_depth=DEPTH, n_jobs=-1, random_state=0, **params)
    return lambda: model.fit(X, y)


def measure_random_trees(paths: list[str], trees: int) -> Callable[[], Any]:
    return measure_extra_trees(paths, trees, max_features=1)  # a random attribute: the nearest to ours


def measure_diffprivlib(paths: list[str], trees: int) -> Callable[[], Any]:
    from diffprivlib.models import RandomForestClassifier

    X, y = as_matrix(paths)
    bounds = (np.zeros(X.shape[1]), np.full(X.shape[1], 100.0))
    model = RandomForestClassifier(trees, max_depth=DEPTH, bounds=bounds, classes=[0, 1], n_jobs=2, random_state=0)
    return lambda: model.fit(np.clip(X, 0, 100), y)


@contextmanager
def spark_session() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master("local[2]").config("spark.driver.memory", "6g").config(
        "spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false").getOrCreate()  # fmt: skip
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def measure_mllib(paths: list[str], trees: int) -> Callable[[], Any]:
    from pyspark.ml import Pipeline
    from pyspark.ml.classification import RandomForestClassifier
    from pyspark.ml.feature import StringIndexer, VectorAssembler

    session = spark_session().__enter__()
    frame = session.read.parquet(*paths)
    names = [name for name in frame.columns if not name.startswith("text") and name != "class"]
    texts = [f"text_{i}" for i in range(TEXTS)]
    indexed = [f"{name}_index" for name in texts]
    steps = [
        StringIndexer(inputCols=[*texts, "class"], outputCols=[*indexed, "label"]),
        VectorAssembler(inputCols=[*names, *indexed], outputCol="features"),
    ]
    ready = Pipeline(stages=steps).fit(frame).transform(frame).select("features", "label").cache()
    ready.count()  # reading and preparing is not part of its time
    model = RandomForestClassifier(numTrees=trees, maxDepth=DEPTH, seed=0)
    return lambda: model.fit(ready)


def exact_counts(X: Any, trees: int) -> list[list[int]]:
    """Counts without noise, to compare: NOT PRIVATE."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts: list[list[int]] = forest(trees, epsilon=float("inf")).fit(X).leaf_counts_.tolist()
    return counts


def measure_dask(paths: list[str], trees: int) -> Callable[[], Any]:
    import dask.dataframe as dd
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    Client(cluster)
    exact_counts(dd.read_parquet(paths[:1]), trees)  # workers load the library
    return lambda: exact_counts(dd.read_parquet(paths), trees)


def measure_spark(paths: list[str], trees: int) -> Callable[[], Any]:
    session = spark_session().__enter__()
    exact_counts(session.read.parquet(paths[0]), trees)
    return lambda: exact_counts(session.read.parquet(*paths), trees)


def measure_alone(paths: list[str], trees: int) -> Callable[[], Any]:
    exact_counts(paths[0], trees)
    return lambda: exact_counts(pa.dataset.dataset(paths), trees)


MEASURES = {name.removeprefix("measure_"): thing for name, thing in globals().items() if name.startswith("measure_")}


OURS = ("read", "fit", "memory", "alone", "dask", "spark")


def measured_here(name: str, paths: list[str], trees: int) -> dict[str, Any]:
    work = MEASURES[name](paths, trees)
    out: dict[str, Any] = {"wall": np.inf, "cpu": np.inf}
    for _ in range(3 if len(paths) <= 10 and name in OURS else 1):
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        out["wall"] = min(out["wall"], time.perf_counter() - wall)
        out["cpu"] = min(out["cpu"], time.process_time() - cpu)
    out["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if name in ("dask", "spark", "alone"):
        out["counts"] = hash(str(result))  # hashes are compared between processes of one run
    return out


def measured(name: str, folder: Path, rows: int, trees: int, python: str = sys.executable) -> dict[str, Any] | None:
    """Run one measurement in a process of its own; None where what it needs is not installed."""
    print(f"{name}, {rows:,} rows, {trees} trees ...", file=sys.stderr, flush=True)
    words = [python, __file__, "--folder", str(folder), "--rows", str(rows), "--measure", name, "--trees", str(trees)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONHASHSEED": "0"})
    if done.returncode:
        print(done.stderr.strip().splitlines()[-1:], file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


# -- the report -------------------------------------------------------------------------------------------------------


def report(folder: Path, rows: int, compared: int, diffprivlib: str | None) -> str:
    gigabytes = sum(os.path.getsize(path) for path in files(folder, rows)) / 1e9
    lines = [
        "# Scale",
        "",
        f"{rows:,} rows, {NUMBERS + WHOLE + TEXTS} columns and a target in Parquet, {gigabytes:.1f} GB; "
        f"{os.cpu_count()} cores; trees of depth {DEPTH}. By `benchmarks/scale.py --rows {rows}`, on a machine that "
        "may be busy: compare CPU seconds, which are those of all threads.",
        "",
        "## From files",
        "",
        "| work | wall s | CPU s | rows per CPU second | share of the speed of reading (CPU) | peak memory |",
        "|---|---|---|---|---|---|",
    ]
    read = None
    for label, name, trees in (
        ("pyarrow reads and decodes", "read", 0), ("fit, 10 trees", "fit", 10), ("fit, 100 trees", "fit", 100),
    ):  # fmt: skip
        found = measured(name, folder, rows, trees)
        if found is None:
            continue
        read = read or found["cpu"]
        lines.append(
            f"| {label} | {found['wall']:.1f} | {found['cpu']:.1f} | {rows / found['cpu']:,.0f} "
            f"| {read / found['cpu']:.2f} | {found['peak MB']:,.0f} MB |"
        )
    lines += [
        "",
        f"## Beside others, {compared:,} rows",
        "",
        "A row-tree visit is one row that one tree trains on. The others start from a table in memory, in the form "
        "they like best. Best of three runs for ours, and one above ten million rows and for the others.",
        "",
        "Visits are per CPU second, and for Spark, which works in another process, per second on two cores.",
        "",
        "| library | trees | row-tree visits | wall s | CPU s | visits per second | the first is faster by |",
        "|---|---|---|---|---|---|---|",
    ]
    ours = None
    for label, name, python, trees in (
        ("Veilwood, from an Arrow table in memory", "memory", sys.executable, 100),
        ("Veilwood, from files", "fit", sys.executable, 100),
        ("scikit-learn ExtraTrees", "extra_trees", sys.executable, 100),
        ("scikit-learn ExtraTrees, max_features=1", "random_trees", sys.executable, 100),
        ("Spark MLlib random forest, local[2]", "mllib", sys.executable, 10),
        ("diffprivlib random forest (each row in one tree only)", "diffprivlib", diffprivlib, 10),
    ):
        found = measured(name, folder, compared, trees, python) if python else None
        if found is None:
            lines.append(f"| {label} | {trees} | not installed | | | | |")
            continue
        visits = compared * (1 if name == "diffprivlib" else trees)
        speed = visits / found["wall" if name == "mllib" else "cpu"]
        ours = ours or speed
        cpu = "in the JVM" if name == "mllib" else f"{found['cpu']:.2f}"
        lines.append(
            f"| {label} | {trees} | {visits:,} | {found['wall']:.2f} | {cpu} | {speed:,.0f} "
            f"| {ours / speed:.1f} times |"
        )
    lines += [
        "",
        f"## Two workers, {compared:,} rows, 10 trees",
        "",
        "| engine | wall s | over one process | counts |",
        "|---|---|---|---|",
    ]
    alone = measured("alone", folder, compared, 10)
    assert alone is not None
    lines.append(f"| one process, 2 threads | {alone['wall']:.2f} | 1.0 | |")
    for label, name in (("Dask, 2 processes", "dask"), ("Spark, local[2]", "spark")):
        found = measured(name, folder, compared, 10)
        if found is None:
            lines.append(f"| {label} | not installed | | |")
            continue
        same = "identical" if found["counts"] == alone["counts"] else "DIFFERENT"
        lines.append(f"| {label} | {found['wall']:.2f} | {found['wall'] / alone['wall']:.1f} | {same} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("scale-files"), help="where the Parquet files are made")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--compared", type=int, default=1_000_000, help="rows for other libraries and clusters")
    parser.add_argument("--diffprivlib", help="a python that has diffprivlib, which needs an older scikit-learn")
    parser.add_argument("--out", type=Path, help="write the report there too")
    parser.add_argument("--measure", choices=sorted(MEASURES), help=argparse.SUPPRESS)
    parser.add_argument("--trees", type=int, default=10, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measured_here(given.measure, files(given.folder, given.rows), given.trees)), flush=True)
        os._exit(0)  # engines need not say goodbye
    make_files(given.folder, given.rows)
    text = report(given.folder, given.rows, given.compared, given.diffprivlib)
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
