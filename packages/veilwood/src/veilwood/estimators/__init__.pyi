# Every estimator, and the module that defines it: the table from which all other lists of estimators follow.
# In the order in which messages and help texts name them.
# ruff: noqa: RUF022
# ruff: isort: skip_file
from veilwood.forests.adaptive.private_forest import PrivateForestClassifier, PrivateForestRegressor
from veilwood.forests.matrix.training import MatrixForestClassifier
from veilwood.forests.matrix.answering import MatrixForestPredictor
from veilwood.forests.random_trees import RandomTreesClassifier, RandomTreesRegressor
from veilwood.forests.medians import MedianForestClassifier, MedianForestRegressor
from veilwood.forests.greedy import GreedyForestClassifier, GreedyForestRegressor

__all__ = [
    "PrivateForestClassifier",
    "PrivateForestRegressor",
    "MatrixForestClassifier",
    "MatrixForestPredictor",
    "RandomTreesClassifier",
    "RandomTreesRegressor",
    "MedianForestClassifier",
    "MedianForestRegressor",
    "GreedyForestClassifier",
    "GreedyForestRegressor",
]

def family_of(name: str) -> str: ...
