# SPDX-License-Identifier: Apache-2.0
"""
A tree that people can read
===========================

One tree, its splits at private medians. What is drawn was released, so looking at it costs nothing.
"""

import matplotlib.pyplot as plt

import veilwood as vw

iris = vw.datasets.iris()
tree = vw.MedianForestClassifier(iris.schema, epsilon=10.0, n_estimators=1, max_depth=3, random_state=0)
tree.fit(iris.X, iris.y)

figure, ax = plt.subplots(figsize=(10, 4.4), layout="constrained")
vw.plots.plot_tree(tree, ax=ax)
print(vw.plots.caption(ax))
