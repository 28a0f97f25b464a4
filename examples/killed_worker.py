# SPDX-License-Identifier: Apache-2.0
"""PrivateForest regression on a Dask cluster while a worker is killed: same model, and nothing is charged twice.

Needs the extra `cluster`. Bins and scores of the rows stay with their partitions; only sums are sent here.
"""

from __future__ import annotations

import os
import signal
import threading

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

import veilwood as vw

PARTS, ROWS = 4, 10_000
SCHEMA = vw.Schema.from_dict(
    {
        "name": "stays",
        "task": "regression",
        "target": "days",
        "columns": [
            {"name": "age", "kind": "numeric", "lower": 0, "upper": 110},
            {"name": "ward", "kind": "categorical", "values": ["east", "north", "west"]},
            {"name": "days", "kind": "numeric", "lower": 0, "upper": 30},
        ],
    }
)


def rows_of(part: int, n_rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(part)
    age, ward = rng.uniform(0, 110, n_rows), rng.choice(["east", "north", "west"], n_rows)
    return pd.DataFrame({"age": age, "ward": ward, "days": age / 10 + 8 * (ward == "west") + rng.uniform(0, 5, n_rows)})


def main() -> None:
    ledger = vw.MemoryLedger(epsilon=2)
    forest = vw.PrivateForestRegressor(SCHEMA, epsilon=1.0, random_state=0, ledger=ledger)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        frame = dd.from_map(rows_of, range(PARTS), meta=rows_of(0, 1))
        victim = next(iter(client.run(os.getpid).values()))
        threading.Timer(2.0, os.kill, (victim, signal.SIGKILL)).start()  # in the middle of the rounds
        forest.fit(frame)
    new = pd.DataFrame({"age": [20.0, 80.0, 80.0], "ward": ["east", "east", "west"]})
    print("days:", *forest.predict(new).round(1))
    print("spent:", [entry.state for entry in ledger.entries()])
    print(forest.privacy_)


if __name__ == "__main__":
    main()
