# SPDX-License-Identifier: Apache-2.0
"""
What two columns do together
============================

A class that depends on two columns at once, and on neither alone. Cells that noise could explain are faint.
"""

import matplotlib.pyplot as plt
import numpy as np

import veilwood as vw

X = np.random.default_rng(0).random((20_000, 3))
y = ((X[:, 0] > 0.5) ^ (X[:, 2] > 0.5)).astype(int)
schema = vw.Schema.numeric((0, 1), classes=[0, 1], n_features=3)
effects = vw.PrivateForestClassifier(schema, epsilon=20.0, random_state=0).fit(X, y).explain()

figure, ax = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
vw.plots.plot_pair(effects.interactions[0], unit=effects.unit, ax=ax)
print(vw.plots.caption(ax))
