# SPDX-License-Identifier: Apache-2.0
"""The scikit-learn estimators, one file a family.

Mechanisms, counting and the release live in the modules above; variants that are not private in ``not_private``.
"""

import re

from veilwood.estimators.greedy_forest import GreedyForestClassifier, GreedyForestRegressor
from veilwood.estimators.matrix_forest import MatrixForestClassifier
from veilwood.estimators.matrix_predictor import MatrixForestPredictor
from veilwood.estimators.median_forest import MedianForestClassifier, MedianForestRegressor
from veilwood.estimators.private_forest import PrivateForestClassifier, PrivateForestRegressor
from veilwood.estimators.random_trees import RandomTreesClassifier, RandomTreesRegressor

__all__ = [
    "GreedyForestClassifier",
    "GreedyForestRegressor",
    "MatrixForestClassifier",
    "MatrixForestPredictor",
    "MedianForestClassifier",
    "MedianForestRegressor",
    "PrivateForestClassifier",
    "PrivateForestRegressor",
    "RandomTreesClassifier",
    "RandomTreesRegressor",
]


def family_of(name: str) -> str:
    """Return an estimator's family as one types it.

    >>> family_of("RandomTreesClassifier"), family_of("RandomTreesRegressor")
    ('random-trees', 'random-trees')
    """
    return "-".join(re.findall("[A-Z][a-z]+", re.sub("(Classifier|Regressor|Predictor)$", "", name))).lower()
