# Every estimator, and the module that defines it: the table from which all other lists of estimators follow.
# In the order in which messages and help texts name them.
# ruff: isort: skip_file
from veilwood.forests.adaptive.private_forest import PrivateForestClassifier as PrivateForestClassifier
from veilwood.forests.adaptive.private_forest import PrivateForestRegressor as PrivateForestRegressor
from veilwood.forests.matrix.training import MatrixForestClassifier as MatrixForestClassifier
from veilwood.forests.matrix.answering import MatrixForestPredictor as MatrixForestPredictor
from veilwood.forests.random_trees import RandomTreesClassifier as RandomTreesClassifier
from veilwood.forests.random_trees import RandomTreesRegressor as RandomTreesRegressor
from veilwood.forests.medians import MedianForestClassifier as MedianForestClassifier
from veilwood.forests.medians import MedianForestRegressor as MedianForestRegressor
from veilwood.forests.greedy import GreedyForestClassifier as GreedyForestClassifier
from veilwood.forests.greedy import GreedyForestRegressor as GreedyForestRegressor

def family_of(name: str) -> str: ...
