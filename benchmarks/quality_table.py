# SPDX-License-Identifier: Apache-2.0
"""Write the results of PrivateForest on the development suite as the table that plans read (``adaptive.quality``).

    python benchmarks/quality_table.py CACHE.csv -o packages/veilwood/src/veilwood/forests/expected_private_forest.json

Rows and columns of tables that need a folder are read with ``--data DIR``; without it, those of the present file are
kept. Only pure epsilon counts, and only tables on which a plain forest has skill.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from veilwood_papers.suite.accuracy import MIN_GAP, add_skills, read_results
from veilwood_papers.suite.tables import SYNTHETIC, load_table, split_rows


def size_of(name: str, folder: Path | None, present: dict[str, Any]) -> dict[str, Any]:
    """Return task, training rows and columns of a table."""
    if name not in SYNTHETIC["development"] and folder is None:
        if name not in present:
            raise SystemExit(f"the size of {name!r} is not known: give the folder of the real tables with --data")
        return {key: present[name][key] for key in ("task", "rows", "columns")}
    table = load_table("development", name, folder)
    train, _ = split_rows(len(table.y), 0)
    return {"task": table.schema.task, "rows": len(train), "columns": len(table.schema.features)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, help="folder of real tables: NAME.csv.gz and NAME.json")
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    present = json.loads(given.out.read_text())["tables"] if given.out.exists() else {}
    found = read_results(*given.cache)
    result = add_skills(found[found.suite == "development"])
    result = result[(result.estimator == "PrivateForest") & (result.delta == 0) & (result.gap >= MIN_GAP)]
    means = result.groupby(["table", "epsilon"]).skill.mean()
    tables = {
        str(name): {
            **size_of(str(name), given.data, present),
            "skill": {f"{epsilon:g}": round(float(means[name, epsilon]), 3) for epsilon in means[name].index},
        }
        for name in sorted(result.table.unique())
    }
    seeds = int(result.groupby(["table", "epsilon"]).seed.nunique().min())
    facts = {"made_by": "benchmarks/quality_table.py", "suite": "development", "seeds": seeds, "tables": tables}
    given.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{len(tables)} tables, at least {seeds} seeds each: {given.out}")


if __name__ == "__main__":
    main()
