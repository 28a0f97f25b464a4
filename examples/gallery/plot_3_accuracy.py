# SPDX-License-Identifier: Apache-2.0
"""
Accuracy by epsilon
===================

A public table, so that accuracy may be looked at. On a private one, draw what vw.evaluate released instead.
"""

import matplotlib.pyplot as plt
from sklearn.model_selection import train_test_split

import veilwood as vw

balance = vw.datasets.balance_scale()
X, X_test, y, y_test = train_test_split(balance.X, balance.y, test_size=0.3, random_state=0)
measured = {}
for epsilon in (0.1, 0.5, 1.0, 2.0, 5.0):
    forest = vw.PrivateForestClassifier(balance.schema, epsilon=epsilon, n_rows=400, random_state=0)
    measured[epsilon] = forest.fit(X, y).score(X_test, y_test)

figure, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
most_frequent = (y_test == y.mode()[0]).mean()
curves = {"PrivateForest, one fit each": measured}
vw.plots.plot_accuracy_by_epsilon(curves, levels={"most frequent class": most_frequent}, title="balance scale", ax=ax)
print(vw.plots.caption(ax))
