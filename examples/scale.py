# SPDX-License-Identifier: Apache-2.0
"""The same fit from four sources: a folder of files, batch by batch, an iterator, and a Dask cluster.

Needs the extra `cluster`. Each fit reads every row once, holds one batch in memory, and counts the same integers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow.dataset
from distributed import Client, LocalCluster

import veilwood as vw

ROWS, FILES = 40_000, 4
SCHEMA = vw.Schema.from_dict(
    {
        "name": "visits",
        "task": "classification",
        "target": "returned",
        "columns": [
            {"name": "age", "kind": "numeric", "lower": 0, "upper": 110},
            {"name": "ward", "kind": "categorical", "values": ["east", "north", "west"]},
            {"name": "returned", "kind": "categorical", "values": ["no", "yes"]},
        ],
    }
)


def write_files(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = []
    for number in range(FILES):
        age, ward = rng.uniform(0, 110, ROWS // FILES), rng.choice(["east", "north", "west"], ROWS // FILES)
        returned = np.where((age > 60) | (ward == "west"), "yes", "no")
        paths.append(folder / f"{number}.parquet")
        pd.DataFrame({"age": age, "ward": ward, "returned": returned}).to_parquet(paths[-1], index=False)
    return paths


def main() -> None:
    new = pd.DataFrame({"age": [30.0, 80.0], "ward": ["east", "east"]})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write_files(folder)
        # Each fit below is a separate release and costs epsilon 1. On real data, choose one.
        forest = vw.RandomTreesClassifier(SCHEMA, epsilon=1.0, n_estimators=10, max_depth=4, random_state=0, n_jobs=-1)

        forest.fit(folder)
        print("a folder of files:", *forest.predict(new))

        for path in paths:  # as batches arrive; no budget is spent, and no prediction is possible, before release
            forest.partial_fit(pd.read_parquet(path))
        forest.release()
        print("batch by batch:   ", *forest.predict(new))

        forest.fit(pyarrow.dataset.dataset(paths).scanner(batch_size=5000).to_reader())
        print("an iterator:      ", *forest.predict(new))

        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
            forest.fit(dd.read_parquet(paths))  # the workers count; noise is drawn here, once
            print("on a cluster:     ", *forest.predict(dd.from_pandas(new, npartitions=1)).compute())
    print(forest.privacy_)


if __name__ == "__main__":
    main()
