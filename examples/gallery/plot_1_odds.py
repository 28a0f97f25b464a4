# SPDX-License-Identifier: Apache-2.0
"""
What epsilon promises
=====================

How far the strongest observer's belief about one person can move, at three epsilons. The line is what was
thought before; the bar is all that can be thought after.
"""

import matplotlib.pyplot as plt

import veilwood as vw

figure, panels = plt.subplots(3, 1, figsize=(7, 6.4), layout="constrained")
for epsilon, ax in zip((0.1, 1.0, 5.0), panels, strict=True):
    vw.plots.plot_odds(epsilon, ax=ax)
    print(vw.plots.caption(ax))
