# SPDX-License-Identifier: Apache-2.0
"""The scikit-learn estimators: names, and where each is defined.

A family is loaded at its first use. What all estimators share is in ``base``, and the protocol of their methods in
``method``.
"""

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from veilwood.forests.adaptive.private_forest import PrivateForestClassifier as PrivateForestClassifier
    from veilwood.forests.adaptive.private_forest import PrivateForestRegressor as PrivateForestRegressor
    from veilwood.forests.greedy import GreedyForestClassifier as GreedyForestClassifier
    from veilwood.forests.greedy import GreedyForestRegressor as GreedyForestRegressor
    from veilwood.forests.matrix.answering import MatrixForestPredictor as MatrixForestPredictor
    from veilwood.forests.matrix.training import MatrixForestClassifier as MatrixForestClassifier
    from veilwood.forests.medians import MedianForestClassifier as MedianForestClassifier
    from veilwood.forests.medians import MedianForestRegressor as MedianForestRegressor
    from veilwood.forests.random_trees import RandomTreesClassifier as RandomTreesClassifier
    from veilwood.forests.random_trees import RandomTreesRegressor as RandomTreesRegressor

_MODULES: Final = {
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
"""The table of estimators: every name, and the module in ``veilwood.forests`` that defines it."""

__all__: list[str] = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Import an estimator at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"veilwood.forests.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def family_of(name: str) -> str:
    """Return the family of an estimator, as the command line names it.

    >>> family_of("RandomTreesClassifier"), family_of("RandomTreesRegressor")
    ('random-trees', 'random-trees')
    """
    return "-".join(re.findall("[A-Z][a-z]+", re.sub("(Classifier|Regressor|Predictor)$", "", name))).lower()
