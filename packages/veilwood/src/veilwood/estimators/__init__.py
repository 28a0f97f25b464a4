# SPDX-License-Identifier: Apache-2.0
"""The scikit-learn estimators, one file a family.

A family is loaded when it is first asked for. Mechanisms, counting and the release live in the modules above;
variants that are not private in ``not_private``.
"""

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from veilwood.forests.adaptive.private_forest import PrivateForestClassifier, PrivateForestRegressor
    from veilwood.forests.greedy import GreedyForestClassifier, GreedyForestRegressor
    from veilwood.forests.matrix.answering import MatrixForestPredictor
    from veilwood.forests.matrix.training import MatrixForestClassifier
    from veilwood.forests.medians import MedianForestClassifier, MedianForestRegressor
    from veilwood.forests.random_trees import RandomTreesClassifier, RandomTreesRegressor

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

_HOMES: Final = {
    "GreedyForestClassifier": "greedy",
    "GreedyForestRegressor": "greedy",
    "MatrixForestClassifier": "matrix.training",
    "MatrixForestPredictor": "matrix.answering",
    "MedianForestClassifier": "medians",
    "MedianForestRegressor": "medians",
    "PrivateForestClassifier": "adaptive.private_forest",
    "PrivateForestRegressor": "adaptive.private_forest",
    "RandomTreesClassifier": "random_trees",
    "RandomTreesRegressor": "random_trees",
}


def __getattr__(name: str) -> Any:
    """Load the family of an estimator that is asked for the first time."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"veilwood.forests.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def family_of(name: str) -> str:
    """Return an estimator's family as one types it.

    >>> family_of("RandomTreesClassifier"), family_of("RandomTreesRegressor")
    ('random-trees', 'random-trees')
    """
    return "-".join(re.findall("[A-Z][a-z]+", re.sub("(Classifier|Regressor|Predictor)$", "", name))).lower()
