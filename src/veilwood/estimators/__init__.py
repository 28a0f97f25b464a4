# SPDX-License-Identifier: Apache-2.0
"""The scikit-learn estimators, one file a family."""

from veilwood.estimators.random_trees import RandomTreesClassifier, RandomTreesRegressor

__all__ = ["RandomTreesClassifier", "RandomTreesRegressor"]
