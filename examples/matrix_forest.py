# SPDX-License-Identifier: Apache-2.0
"""Matrix forests: the gain from optimised noise, and a predictor that publishes answers instead of a model.

Run: python examples/matrix_forest.py
"""

from __future__ import annotations

import veilwood as vw

car = vw.datasets.car()
settings = {"epsilon": 1.0, "n_estimators": 32, "max_depth": 2, "random_state": 0}

# Batch training: the same trees, with separate noise for each tree, and with noise optimised over all trees.
# Plans need only the schema and spend nothing.
for mechanism in ("laplace", "optimized"):
    plan = vw.MatrixForestClassifier(car.schema, mechanism=mechanism, **settings).plan()
    print(f"{mechanism:>9}: mean squared error of a leaf {plan.expected_leaf_mse:,.0f}")
print()
print(plan)

# Batch prediction: the data stays in memory, and each batch of public queries is charged separately.
ledger = vw.MemoryLedger(epsilon=2.0)
predictor = vw.MatrixForestPredictor(car.schema, ledger=ledger, **settings).fit(car.X, car.y)
queries = car.X.sample(100, random_state=0)
labels = predictor.answer(queries)
print(f"\naccuracy on 100 queries {(labels == car.y[queries.index]).mean():.2f}; {ledger.spent} spent")
predictor.answer(queries)
print(f"the same queries again are free: {ledger.spent} spent")
try:
    predictor.answer(car.X, epsilon=1.5)
except vw.BudgetExceededError as error:
    print(f"and too much is refused: {error}")
