# SPDX-License-Identifier: Apache-2.0
"""The scikit-learn estimators. ``__init__.pyi`` lists them; each family is imported on first use.

What all estimators share is in ``base``, and the protocol of their methods in ``method``.
"""

import re

from veilwood import lazy_names

__getattr__, __all__ = lazy_names(__name__, __file__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def family_of(name: str) -> str:
    """Return the name of an estimator's family on the command line.

    >>> family_of("RandomTreesClassifier"), family_of("RandomTreesRegressor")
    ('random-trees', 'random-trees')
    """
    return "-".join(re.findall("[A-Z][a-z]+", re.sub("(Classifier|Regressor|Predictor)$", "", name))).lower()
