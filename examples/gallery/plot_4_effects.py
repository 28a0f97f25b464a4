# SPDX-License-Identifier: Apache-2.0
"""
What a column does
==================

The effect of one column of a PrivateForest on each class, with error bars. It costs nothing: it is computed from what
was released.
"""

import matplotlib.pyplot as plt

import veilwood as vw

car = vw.datasets.car()
forest = vw.PrivateForestClassifier(car.schema, epsilon=5.0, n_rows=1728, random_state=0).fit(car.X, car.y)

figure, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
vw.plots.plot_effects(forest.explain(), "safety", ax=ax)
print(vw.plots.caption(ax))
