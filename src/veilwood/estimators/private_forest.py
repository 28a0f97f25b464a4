# SPDX-License-Identifier: Apache-2.0
"""PrivateForest as scikit-learn estimators; the method is in ``forests.adaptive.private_forest``."""

from __future__ import annotations

from dataclasses import dataclass

from sklearn.utils.validation import check_is_fitted

from veilwood.estimators.base import BaseForest, SharedParameters
from veilwood.estimators.class_weights import ClassWeights
from veilwood.estimators.predicting import Classifier, Regressor
from veilwood.forests.adaptive.private_forest import PrivateForest, PrivateForestParameters
from veilwood.forests.explained.effects import Effects

_PARAMETERS = """
    Parameters
    ----------
    schema : Schema, path or dict
        The public facts about the table.
    epsilon, delta : float
        The privacy budget; delta=0 is pure epsilon. With delta above 0 large tables are learned better.
    n_rows : int, optional
        The number of rows, or a guess at it, where that is public; ``plan()`` then says what would be done for it.
        Otherwise the first step, a twentieth of the budget, tells it.
    privacy_unit, adjacency
        Whom the guarantee protects (see the README).
    max_weight : int, optional
        The largest ``sample_weight`` of a row that counts; noise grows with it. Classifiers also take ``class_weight``,
        by which probabilities are multiplied, at no cost.
    random_state : int, optional
        Public randomness only: which columns meet in a table, and which pairs a round looks at.
    ledger : Ledger or path, optional
        Where the spend is recorded.
    n_jobs : int, optional
        Threads.
    invalid : {"refuse", "drop"}
        What to do with rows that do not fit the schema: refuse the whole fit, or leave them out, row by row.
"""


class _PrivateForest(BaseForest):
    """What both tasks share: explanations."""

    _method = PrivateForest

    def explain(self) -> Effects:
        """Return main effects and the strongest interactions, with error bars that hold noise and sampling.

        Free: computed from what was released. Effects are not shrunk, as predictions are.

        Returns
        -------
        Effects
            Print it, or look at it with ``veilwood.plots.plot_effects`` and ``veilwood.plots.plot_pair``.
        """
        check_is_fitted(self, "model_")
        effects: Effects = self.model_.explain()
        return effects


@dataclass(eq=False, repr=False)
class PrivateForestClassifier(Classifier, _PrivateForest, PrivateForestParameters, ClassWeights, SharedParameters):  # noqa: D101
    __doc__ = f"""The classifier most people should use: it needs a schema and an epsilon and chooses the rest.
{_PARAMETERS}
    Notes
    -----
    Guarantee

    Everything in the fitted model is computed from steps of the plan, whose losses add up to at most (epsilon, delta)
    (proofs/private-forest.md, attacked by tests/forests/cells/test_rows.py,
    tests/forests/adaptive/test_attacks.py and tests/audit/test_attacks.py).

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.PrivateForestClassifier(car.schema, epsilon=1.0, n_rows=len(car.X), random_state=0)
    >>> [step.name for step in forest.plan().steps]
    ['class counts']
    >>> forest.fit(car.X, car.y).predict_proba(car.X).shape
    (1728, 4)
    """


@dataclass(eq=False, repr=False)
class PrivateForestRegressor(Regressor, _PrivateForest, PrivateForestParameters, SharedParameters):  # noqa: D101
    __doc__ = f"""The regressor most people should use: it needs a schema and an epsilon and chooses the rest.
{_PARAMETERS}
    Notes
    -----
    Guarantee

    As for ``PrivateForestClassifier`` (proofs/private-forest.md, attacked by tests/forests/cells/test_rows.py).

    Examples
    --------
    >>> import numpy as np, veilwood as vw
    >>> schema = vw.Schema.from_dict({{
    ...     "name": "line", "task": "regression", "target": "y", "columns": [
    ...         {{"name": "x", "kind": "numeric", "lower": 0, "upper": 1}},
    ...         {{"name": "y", "kind": "numeric", "lower": 0, "upper": 1}}]}})
    >>> x = np.linspace(0, 1, 20_000)
    >>> forest = vw.PrivateForestRegressor(schema, epsilon=1.0, n_rows=20_000, random_state=0).fit(x[:, None], x)
    >>> bool(np.abs(forest.predict([[0.2], [0.8]]) - [0.2, 0.8]).max() < 0.1)
    True
    """
