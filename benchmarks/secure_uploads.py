# SPDX-License-Identifier: Apache-2.0
"""Cost of uploading many rows in shares to three servers, and of training PrivateForest on them.

python benchmarks/secure_uploads.py upload --rows 100000 1000000 --columns 50
python benchmarks/secure_uploads.py train --rows 20000 --columns 50

Servers are processes on this machine, reached over TLS. Memory is the peak of a process (VmHWM), so this runs only on
Linux. Each call stores its results in results/secure_uploads.json and writes results/secure_uploads.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import veilwood as vw
from veilwood_secure.roles.local import LocalServers, local_servers

RESULTS = Path(__file__).parent / "results"
VALUES = 4


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> int:
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) << 10


def table(rows: int, columns: int) -> tuple[vw.Schema, pd.DataFrame, Any]:
    names = [f"c{number}" for number in range(columns)]
    values = [f"v{value}" for value in range(VALUES)]
    features = [{"name": name, "kind": "categorical", "values": values} for name in names]
    target = {"name": "y", "kind": "categorical", "values": ["no", "yes"]}
    schema = vw.Schema.from_dict(
        {"name": "many rows", "task": "classification", "target": "y", "columns": [*features, target]}
    )
    codes = np.random.default_rng(0).integers(0, VALUES, (columns, rows), dtype=np.int8)
    X = pd.DataFrame({name: pd.Categorical.from_codes(code, values) for name, code in zip(names, codes, strict=True)})
    y = pd.Series(pd.Categorical.from_codes(((codes[0] + codes[1]) % 2).astype(np.int8), ["no", "yes"]))
    return schema, X, y


def measured(here: LocalServers, before: list[float]) -> dict[str, Any]:
    pids = [process.pid for process in here.processes if process is not None]
    stored = [
        sum(file.stat().st_size for file in (here.folder / f"server-{n}").rglob("*/*") if file.is_file())
        for n in range(3)
    ]
    return {
        "cpu": [round(cpu_of(pid) - start, 2) for pid, start in zip(pids, before, strict=True)],
        "memory": [memory_of(pid) for pid in pids],
        "disk": stored,
    }


def one(rows: int, columns: int, trains: bool) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    schema, X, y = table(rows, columns)
    with local_servers(schema, epsilon=1, owners=("only",), protocol="forest-on-shares", timeout=600.0) as here:
        pids = [process.pid for process in here.processes if process is not None]
        before, own, began = [cpu_of(pid) for pid in pids], time.process_time(), time.monotonic()
        client = here.owner("only")
        client.contribute(X, y, more=not trains)
        found = {"rows": rows, "columns": columns, "owner": time.process_time() - own, "load": os.getloadavg()[0]}
        if trains:
            client.wait(3600)
        return found | {"trains": trains, "wall": time.monotonic() - began} | measured(here, before)


def write(kept: list[dict[str, Any]]) -> None:
    lines = [
        "# Many rows in shares",
        "",
        f"`python benchmarks/secure_uploads.py`: `forest-on-shares`, one owner, columns of {VALUES} values, three",
        "server processes on one machine over TLS. CPU and memory are those of the server that used most; memory is",
        "the most it ever held, its imports included.",
        "",
        "| what | rows | columns | wall, s | owner's CPU, s | server's CPU, s | its memory, MB | on disk, MB | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(kept, key=lambda row: (row["trains"], row["rows"], row["columns"])):
        what = "upload and training" if row["trains"] else "upload and checks"
        disk = "" if row["trains"] else f"{max(row['disk']) / 1e6:.0f}"
        lines.append(
            f"| {what} | {row['rows']:,} | {row['columns']} | {row['wall']:.1f} | {row['client']:.1f} | "
            f"{max(row['cpu']):.1f} | {max(row['memory']) / 1e6:.0f} | {disk} | {row['load']:.1f} |"
        )
    (RESULTS / "secure_uploads.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["upload", "train"])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--columns", type=int, default=50)
    options = parser.parse_args()
    file = RESULTS / "secure_uploads.json"
    kept = json.loads(file.read_text()) if file.exists() else []
    for rows in options.rows:
        found = one(rows, options.columns, options.what == "train")
        same = ("rows", "columns", "trains")
        kept = [row for row in kept if any(row[key] != found[key] for key in same)] + [found]
        print(found, flush=True)
        file.write_text(json.dumps(kept, indent=1) + "\n")
        write(kept)


if __name__ == "__main__":
    main()
