# SPDX-License-Identifier: Apache-2.0
"""
What a ledger has spent
=======================

Three releases under one budget. The fourth would exceed it, so it is refused before a row is read.
"""

import matplotlib.pyplot as plt

import veilwood as vw

iris = vw.datasets.iris()
ledger = vw.MemoryLedger(epsilon=3, population="flowers of one garden")
for epsilon in (1.0, 0.5, 1.0):
    vw.PrivateForestClassifier(iris.schema, epsilon=epsilon, n_rows=150, ledger=ledger).fit(iris.X, iris.y)
try:
    vw.PrivateForestClassifier(iris.schema, epsilon=1.0, n_rows=150, ledger=ledger).fit(iris.X, iris.y)
except vw.BudgetExceededError as error:
    print(error)

figure, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
print(vw.plots.caption(vw.plots.plot_budget(ledger, ax=ax)))
