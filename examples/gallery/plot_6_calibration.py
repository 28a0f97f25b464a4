# SPDX-License-Identifier: Apache-2.0
"""
Whether probabilities can be trusted
====================================

How often something happened among rows to which about the same probability was given. The rows are made up, so they
may be shown; a picture of private rows is not private.
"""

import matplotlib.pyplot as plt
import numpy as np

import veilwood as vw

rng = np.random.default_rng(1)
X = rng.random((8000, 4))
y = (rng.random(8000) < 0.1 + 0.8 * X[:, 0] * X[:, 1]).astype(int)
schema = vw.Schema.numeric((0, 1), classes=[0, 1], n_features=4)
forest = vw.PrivateForestClassifier(schema, epsilon=1.0, random_state=0).fit(X[:6000], y[:6000])

figure, ax = plt.subplots(figsize=(4.8, 4.6), layout="constrained")
vw.plots.plot_calibration(y[6000:] == 1, forest.predict_proba(X[6000:])[:, 1], bins=6, ax=ax)
print(vw.plots.caption(ax))
