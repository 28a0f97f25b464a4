# SPDX-License-Identifier: Apache-2.0
"""Cost by cores: fits and predictions on one and more threads beside other libraries, and beside an older version.

``python benchmarks/all_cores.py [--before SRC] [--rows N ...] [-o FILE.json]`` measures each case in a process of its
own, in one run, and writes a Markdown page next to the JSON file. ``--before`` is the folder ``packages/veilwood/src``
of an older checkout: the same cases are measured with it, right before those of this version. Wall time needs a quiet
machine; CPU seconds need none.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from veilwood_papers.suite import speed_worker

ESTIMATORS = ("PrivateForest", "RandomTrees", "MatrixForest", "HistGradientBoosting", "LightGBM")
OWN = ("PrivateForest", "RandomTrees", "MatrixForest")
MAX_ROWS = {"MatrixForest": 1_000_000}  # its search of a strategy takes longest, and does not depend on rows
REPEATS = 2  # the least of each figure is kept: others may use the machine

Result = dict[str, Any]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="packages/veilwood/src of an older checkout")
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 3_000_000])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--estimators", nargs="+", default=list(ESTIMATORS))
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/all_cores.json"))
    options = parser.parse_args()
    results: list[Result] = []
    for estimator in options.estimators:
        if estimator == "LightGBM" and importlib.util.find_spec("lightgbm") is None:
            print("LightGBM is not installed, and skipped")
            continue
        for rows in options.rows:
            if rows > MAX_ROWS.get(estimator, rows):
                continue
            for threads in options.threads:
                for version, source in _versions(estimator, options.before):
                    case = {"estimator": estimator, "rows": rows, "threads": threads, "version": version}
                    results.append(case | _measure_in_process(case, source))
                    print(json.dumps(results[-1]), flush=True)
    page = to_markdown(results)
    options.output.write_text(json.dumps({"cores": os.cpu_count(), "results": results}, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(page)
    print(page)


def _versions(estimator: str, before: Path | None) -> Iterator[tuple[str, Path | None]]:
    if before is not None and estimator in OWN:
        yield "before", before
    yield "now", None


def _measure_in_process(case: Result, source: Path | None) -> Result:
    threads = str(case["threads"])
    environment = os.environ | {name: threads for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    environment["OPENBLAS_NUM_THREADS"] = "1"
    if source is not None:
        environment["PYTHONPATH"] = str(source)
    done = subprocess.run(
        [sys.executable, __file__, "--measure", json.dumps(case)], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        return {"failed": " ".join(done.stderr.split())[-300:]}
    figures: Result = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(case: Result) -> Result:
    """Return wall and CPU seconds of a fit and of predicting its rows, after a small fit that loads everything."""
    import resource
    import time
    import warnings

    warnings.simplefilter("ignore")
    X, y = speed_worker.make_table(case["rows"], 20, 2)
    estimator, threads = case["estimator"], case["threads"]

    def make() -> Any:
        if estimator == "LightGBM":
            import lightgbm

            return lightgbm.LGBMClassifier(n_jobs=threads, verbose=-1)
        model = speed_worker.make_model({"estimator": estimator, "classes": 2, "columns": 20, "epsilon": 1.0})
        return model.set_params(n_jobs=threads) if estimator in OWN else model

    make().fit(X[:2000], y[:2000]).predict(X[:2000])
    figures: dict[str, float] = {}
    for _ in range(REPEATS):
        model = make()
        for name, run in (("fit", partial(model.fit, X, y)), ("predict", partial(model.predict, X))):
            cpu, wall = time.process_time(), time.perf_counter()
            run()
            seconds = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
            for key, value in seconds.items():
                figures[f"{name}_{key}"] = min(value, figures.get(f"{name}_{key}", value))
    figures["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return figures


def to_markdown(results: list[Result]) -> str:
    """Return the results as a page: ratios first, then seconds."""
    good = [each for each in results if "failed" not in each]
    lines = [
        "# All cores", "",
        f"One run of `benchmarks/all_cores.py` on {os.cpu_count()} cores: 20 columns, 2 classes, epsilon 1; the "
        f"least of {REPEATS} fits. Speed-up is wall time on one thread by wall time on more.", "",
        "| | rows | version | threads | CPU of a fit, times HistGradientBoosting on one thread | speed-up of fit | "
        "of predict | fit, CPU s | fit, wall s | predict, CPU s | predict, wall s |", "|---" * 11 + "|",
    ]  # fmt: skip
    for each in good:
        alone = _find(good, each, threads=1)
        reference = _find(good, each, threads=1, estimator="HistGradientBoosting", version="now")
        ratio = f"{each['fit_cpu'] / reference['fit_cpu']:.2f}" if reference else ""
        gains = [f"{alone[key] / each[key]:.2f}" if alone else "" for key in ("fit_wall", "predict_wall")]
        seconds = [f"{each[key]:.3f}" for key in ("fit_cpu", "fit_wall", "predict_cpu", "predict_wall")]
        cells = [each["estimator"], f"{each['rows']:,}", each["version"], str(each["threads"]), ratio, *gains, *seconds]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"Failed: {each}" for each in results if "failed" in each)]
    return "\n".join(lines).rstrip() + "\n"


def _find(results: list[Result], like: Result, **changed: Any) -> Result | None:
    keys = ("estimator", "rows", "version", "threads")
    wanted = {key: like[key] for key in keys} | changed
    return next((each for each in results if all(each[key] == wanted[key] for key in keys)), None)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(json.loads(sys.argv[2]))))
    else:
        main()
