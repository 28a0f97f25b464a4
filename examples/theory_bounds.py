# SPDX-License-Identifier: Apache-2.0
"""Error bounds of the theorems on random decision trees, compared with measured errors.

Bojarski et al. (2014) bound the training error of a forest by quantities of its trees. This script computes the bounds
for trees of increasing depth, on points of the unit square that are labelled by their side of the diagonal:

* Theorem 5.3 uses the fraction of rows whose weight keeps a distance from 1/2. Theorem 5.4 uses only the average
  accuracy of a tree. Both hold with the printed probability.
* Theorem 5.6 is the private version. Its constants are so loose that it holds with no positive probability at this
  size. It is printed and not drawn. The private forest itself does well.

Run: python examples/theory_bounds.py [FOLDER]
"""

import sys
import warnings
from pathlib import Path

import numpy as np

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.plots import error_vs_bound
from veilwood.trees.counting import route_rows
from veilwood_papers import theory

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
n_rows, epsilon, slack, depths = 1500, 2.0, 0.15, (1, 2, 3, 4, 5)
n_trees = theory.trees_needed(n_rows, slack)

rng = np.random.default_rng(0)
X = rng.random((n_rows, 2))
label = (X.sum(axis=1) > 1).astype(int)
schema = vw.Schema.numeric((0, 1), classes=[0, 1], n_features=2)
codes = Encoding(schema, "grid").encode(X)

bounds: dict[str, list[float]] = {"Theorem 5.4, from tree accuracy": [], "Theorem 5.3, from weights": []}
measured: dict[str, list[float]] = {"no noise": [], f"epsilon = {epsilon:g}": []}
print(f"{n_rows} rows, {n_trees} trees")
print("depth  tree accuracy  Thm 5.4  Thm 5.3  probability  no noise  private  P(Thm 5.6)")
for depth in depths:
    errors = []
    for loss in (np.inf, epsilon):
        forest = vw.RandomTreesClassifier(
            schema, epsilon=loss, n_estimators=n_trees, max_depth=depth, voting="threshold", random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", vw.UtilityWarning)  # expected: too few rows for this many trees
            errors.append(1 - forest.fit(X, label).score(X, label))
    trees = theory.forest_quantities(route_rows(forest.forest_, codes), label, forest.forest_.n_leaves)
    setting = theory.Setting("threshold", n_rows=n_rows, depth=depth, n_trees=n_trees, slack=slack)
    from_accuracy = theory.bound_from_accuracy(trees.tree_accuracy, setting)
    from_weights = theory.bound_from_fraction(float(np.mean(trees.weight >= setting.threshold)), setting)
    private = theory.Setting("threshold", n_rows=n_rows, depth=depth, n_trees=n_trees, slack=slack, epsilon=epsilon)
    for series, value in zip(bounds.values(), (from_accuracy.error, from_weights.error), strict=True):
        series.append(value)
    for series, value in zip(measured.values(), errors, strict=True):
        series.append(value)
    print(
        f"{depth:5d}  {trees.tree_accuracy:13.3f}  {from_accuracy.error:7.3f}  {from_weights.error:7.3f}  "
        f"{setting.probability:11.4f}  {errors[0]:8.3f}  {errors[1]:7.3f}  {max(0.0, private.probability):10g}"
    )

picture = folder / "theory-bounds.png"
error_vs_bound(
    depths,
    measured=measured,
    bounds=bounds,
    xlabel="depth of the trees",
    title=f"Training error of {n_trees} random trees on {n_rows} rows: bound and measured",
).savefig(picture, dpi=150)
print(f"Picture: {picture}")
