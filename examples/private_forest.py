# SPDX-License-Identifier: Apache-2.0
"""PrivateForest: its plans for small and large tables, a fit, and the explained effects.

Run: python examples/private_forest.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

import veilwood as vw
from veilwood.plots import all_effects, plot_pair, save

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")

# A clinic: stays are long for old patients, and for smokers on ward C. Incomes are skewed and uninformative.
schema = vw.Schema.from_dict({
    "name": "clinic", "task": "classification", "target": "stay",
    "columns": [
        {"name": "age", "kind": "numeric", "lower": 0, "upper": 120},
        {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"]},
        {"name": "smoker", "kind": "categorical", "values": ["no", "yes"]},
        {"name": "income", "kind": "numeric", "lower": 0, "upper": 1e6, "transform": "log1p"},
        {"name": "stay", "kind": "categorical", "values": ["short", "long"]},
    ],
})  # fmt: skip
rng = np.random.default_rng(0)
n = 20_000
age, ward, smoker = rng.uniform(20, 90, n), rng.choice(["A", "B", "C"], n), rng.choice(["no", "yes"], n)
income = rng.lognormal(10, 1, n).clip(0, 1e6)
odds = (age - 60) / 10 + 2.5 * ((ward == "C") & (smoker == "yes"))
stay = np.where(rng.random(n) < 1 / (1 + np.exp(-odds)), "long", "short")
X = pd.DataFrame({"age": age, "ward": ward, "smoker": smoker, "income": income})

# The plan for a given number of rows follows from public facts, so you can inspect it before there is any data.
for rows in (20, 1_000, 100_000):
    plan = vw.PrivateForestClassifier(schema, epsilon=1.0, n_rows=rows, random_state=0).plan()
    print(f"{rows:>7,} rows: {plan.notes[f'at {rows:,} rows']}")

# Without n_rows, the first step spends a twentieth of the budget to estimate the number of rows. Each later step is
# chosen from the values released before it.
forest = vw.PrivateForestClassifier(schema, epsilon=1.0, random_state=0).fit(X[:16_000], stay[:16_000])
print(f"\nAbout {forest.plan_.layout.rows_planned:,} rows; {forest.privacy_.released}.")
print(f"Accuracy on rows held out: {forest.score(X[16_000:], stay[16_000:]):.3f}\n")

# The learned effects, with error bars for noise and sampling. They are free: computed from released values only.
effects = forest.explain()
print(effects)
all_effects(effects).savefig(folder / "private-forest-effects.png")
if effects.interactions:
    save(plot_pair(effects.interactions[0], unit=effects.unit), folder / "private-forest-pair.png")
print(f"\nDrawn in {folder / 'private-forest-effects.png'}")
