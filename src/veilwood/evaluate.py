# SPDX-License-Identifier: Apache-2.0
"""How good a model is on private rows, measured through the door and charged: ``vw.evaluate``.

What is counted is in ``forests.scoring``, what the noisy counts say in ``forests.quality``.
"""

from __future__ import annotations

from contextlib import nullcontext
from os import PathLike
from typing import Any

from veilwood.bounded import is_whole
from veilwood.data.open_rows import open_rows
from veilwood.data.problems import Invalid
from veilwood.errors import ParameterError
from veilwood.estimators.evaluation import Evaluation, evaluation_plan, measure_quality
from veilwood.privacy.certificate import PrivacyStatement
from veilwood.privacy.door import Door, noting_refusals
from veilwood.privacy.ledger import Ledger, open_ledger
from veilwood.privacy.loss import requested_loss
from veilwood.privacy.neighbours import Neighbours, unit_of
from veilwood.privacy.spending import handle_of

__all__ = ["Evaluation", "evaluate"]


def evaluate(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    epsilon: float,
    delta: float = 0.0,
    ledger: Ledger | str | PathLike[str] | None = None,
    privacy_unit: Any = None,
    adjacency: str | None = None,
    invalid: Invalid = "refuse",
    confidence: float = 0.95,
    n_jobs: int | None = None,
) -> Evaluation:
    """Measure how good a model is on private rows: one noisy histogram, released through the door and charged.

    Every number of the result comes from the same release: accuracy, AUC, log-loss, calibration and the confusion
    matrix of a classifier; R2, RMSE, MAE and bias of a regressor. Intervals take in the noise and the chance by which
    these rows were drawn, as if rows were drawn one by one. On the rows a model was trained on, the numbers are of
    those rows, and often better than on new ones.

    Parameters
    ----------
    model : fitted estimator
        It must be private itself: what is computed with a model that is not carries no guarantee, and says so.
    X, y
        The rows, as in ``fit``. They must come from people whose ledger is given.
    epsilon, delta : float
        The privacy loss of this evaluation. It adds to what the fit has cost, if people are in both tables.
    ledger : Ledger or path, optional
        Where the spend is recorded.
    privacy_unit, adjacency
        Whom the guarantee protects; by default as in the model's own fit.
    invalid : {"refuse", "drop"}
        What to do with rows that do not fit the schema.
    confidence : float
        Of the intervals, between 0.5 and 0.9999.
    n_jobs : int, optional
        Threads.

    Returns
    -------
    Evaluation

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/evaluation.md, attacked by
    tests/test_evaluate.py.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.PrivateForestClassifier(car.schema, epsilon=1.0, random_state=0).fit(car.X[::2], car.y[::2])
    >>> found = vw.evaluate(forest, car.X[1::2], car.y[1::2], epsilon=1.0)
    >>> sorted(found.quality.scores)
    ['accuracy', 'auc', 'calibration_error', 'log_loss']
    >>> found.privacy.epsilon, bool(found.accuracy.low <= found.accuracy.value <= found.accuracy.high)
    (1.0, True)
    """
    if not isinstance(confidence, float) or not 0.5 <= confidence <= 0.9999:
        raise ParameterError("confidence", confidence, "must be a number between 0.5 and 0.9999", "0.95 is usual")
    if n_jobs is not None and not is_whole(n_jobs, -4096, 4096):
        raise ParameterError("n_jobs", n_jobs, "is not a number of threads", "1, 2, ... or -1 for all")
    loss = requested_loss(epsilon, delta)
    own = getattr(model, "plan_", None)
    usual = Neighbours() if own is None else own.neighbours
    neighbours = Neighbours(
        usual.adjacency if adjacency is None else adjacency,  # type: ignore[arg-type]
        usual.unit if privacy_unit is None else unit_of(privacy_unit),
    )
    plan = evaluation_plan(model, loss, neighbours, invalid)
    book = open_ledger(ledger)
    if ledger is not None and loss.is_bounded:
        book.check_affordable(loss)  # first of all: whether rows fit must not be told for nothing
    door = Door(plan, book, not_private=_without_guarantee(model.privacy_), table=handle_of(X))
    with nullcontext() if ledger is None else noting_refusals(lambda: door):
        source = open_rows(X, y, model.model_.encoding, unit=neighbours.unit, invalid=invalid, estimator="evaluate")
    return measure_quality(model, source, door, confidence=confidence, n_jobs=n_jobs)


def _without_guarantee(statement: PrivacyStatement) -> str | None:
    """Why nothing is promised about an evaluation, if the model itself promises nothing."""
    return None if statement.is_private else f"the model that was evaluated is NOT PRIVATE: {statement.reason}"
