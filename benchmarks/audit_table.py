# SPDX-License-Identifier: Apache-2.0
"""Attack every estimator and write the table of claimed against attacked epsilon into docs/audit.md.

Run: python benchmarks/audit_table.py [--epsilon 1] [--docs docs/audit.md]
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import Any

from veilwood import estimators, plots
from veilwood.audit import attacks, reports

START, END = "<!-- table: benchmarks/audit_table.py -->", "<!-- end of table -->"
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in estimators.__all__),
    ("PrivateForestClassifier", {"method": "boosting"}),
    ("PrivateForestClassifier", {"method": "cells"}),
    ("RandomTreesClassifier", {"n_estimators": 3}),
    ("RandomTreesClassifier", {"n_estimators": 2, "trees": "disjoint"}),
    ("MatrixForestPredictor", {"mode": "subsample", "voting": "hard"}),
    ("RandomTreesClassifier", {"delta": 1e-12}),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--docs", type=Path, default=Path(__file__).parents[1] / "docs" / "audit.md")
    options = parser.parse_args()
    started = time.process_time()
    found = [
        attacks.attack(attacks.prepared(getattr(estimators, name), options.epsilon, params))
        for name, params in SETTINGS
    ]
    table = f"{reports.attack_table(found)}\n\nEach bound holds with probability {100 * found[0].confidence:.7f} %."
    text = options.docs.read_text(encoding="utf-8")
    fresh, count = re.subn(f"{START}.*?{END}", lambda _: f"{START}\n\n{table}\n\n{END}", text, flags=re.S)
    assert count == 1, f"{options.docs} has no place for the table"
    options.docs.write_text(fresh, encoding="utf-8")
    rows = [
        (
            f"{one.estimator}\n{one.setting}{', Gaussian' if one.delta else ''}",
            one.epsilon,
            one.sound.epsilon_lower_bound,
            one.twin.epsilon_lower_bound,
        )
        for one in found
    ]
    plots.claimed_and_attacked(rows).savefig(options.docs.with_suffix(".png"), dpi=100)
    print(table)
    print(f"{time.process_time() - started:.0f} s of CPU; wrote {options.docs} and {options.docs.with_suffix('.png')}")


if __name__ == "__main__":
    main()
