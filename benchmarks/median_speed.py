# SPDX-License-Identifier: Apache-2.0
"""Time and memory of a median forest on a million rows, compared with scikit-learn's random forest of the same size.

python benchmarks/median_speed.py [--rows 1000000] [--jobs 2] [--out benchmarks/results/median_speed.md]
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np
from sklearn.ensemble import RandomForestRegressor

import veilwood as vw


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    X = rng.random((options.rows, 20))
    y = np.clip(X[:, 0] + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(options.rows), 0, 2)
    schema = vw.Schema.numeric((0, 1), target_bounds=(0, 2), n_features=20)
    small = slice(0, 1000)
    for trees in ("disjoint", "shared"):  # compile the kernels
        vw.MedianForestRegressor(schema, epsilon=10, n_estimators=10, max_depth=2, trees=trees).fit(X[small], y[small])

    lines = [
        f"10 trees of depth 8, {options.rows:,} rows x 20 numeric columns ({X.nbytes / 2**20:.0f} MB), "
        f"{options.jobs} threads.",
        "",
        "| forest | seconds | CPU seconds | extra peak memory, MB |",
        "|---|---|---|---|",
    ]
    forests = {
        "MedianForestRegressor(epsilon=10)": vw.MedianForestRegressor(
            schema, epsilon=10, n_estimators=10, max_depth=8, trees="disjoint", random_state=0, n_jobs=options.jobs
        ),
        "MedianForestRegressor(epsilon=10, trees='shared')": vw.MedianForestRegressor(
            schema, epsilon=10, n_estimators=10, max_depth=8, random_state=0, trees="shared", n_jobs=options.jobs
        ),
        "scikit-learn RandomForestRegressor": RandomForestRegressor(
            n_estimators=10, max_depth=8, n_jobs=options.jobs, random_state=0
        ),
    }
    for name, forest in forests.items():
        before, began, worked = peak_megabytes(), time.perf_counter(), time.process_time()
        forest.fit(X, y)
        seconds, work = time.perf_counter() - began, time.process_time() - worked
        lines.append(f"| {name} | {seconds:.1f} | {work:.1f} | {peak_megabytes() - before:.0f} |")
        print(lines[-1], flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("# Speed of median forests\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
