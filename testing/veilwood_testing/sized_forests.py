# SPDX-License-Identifier: Apache-2.0
"""Shared by forests/test_sizes.py and other tests."""

from __future__ import annotations

import veilwood as vw

CAR = vw.datasets.car()


CLASSIFIERS = [
    vw.RandomTreesClassifier,
    vw.MatrixForestClassifier,
    vw.MedianForestClassifier,
    vw.GreedyForestClassifier,
]
