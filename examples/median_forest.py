# SPDX-License-Identifier: Apache-2.0
"""Median forests for regression: why balanced leaves help if every leaf gets the same noise.

Run: python examples/median_forest.py
"""

from __future__ import annotations

import numpy as np

import veilwood as vw

# Incomes are skewed: most rows fall into a small part of the public range.
rng = np.random.default_rng(0)
X = np.column_stack([rng.lognormal(3, 1, 20_000), rng.uniform(0, 1, 20_000)]).clip(0, 1000)
y = np.log1p(X[:, 0]) + X[:, 1] + rng.normal(0, 0.1, 20_000)
schema = vw.Schema.numeric(([0, 0], [1000, 1]), target_bounds=(0, 9), names=["income", "share"])
train, test = slice(0, 16_000), slice(16_000, None)

families = {
    vw.RandomTreesRegressor: {},  # thresholds anywhere in the public range: most leaves are empty
    vw.MedianForestRegressor: {},  # thresholds at private medians: leaves are equally full
    vw.GreedyForestRegressor: {"branching": "binary"},  # thresholds selected by squared error
}
for epsilon in (0.5, 2.0):
    for Forest, own in families.items():
        forest = Forest(schema, epsilon=epsilon, n_estimators=10, max_depth=5, random_state=0, **own)
        score = forest.fit(X[train], y[train]).score(X[test], y[test])
        print(f"epsilon {epsilon:<4} {Forest.__name__:<22} R^2 {score:.3f}")
