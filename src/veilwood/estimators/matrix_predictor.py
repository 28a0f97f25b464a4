# SPDX-License-Identifier: Apache-2.0
"""The matrix forest that answers batches of queries; how it does that is in ``forests.matrix.answering``."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from veilwood.data.open_rows import open_rows
from veilwood.data.schema import TaskKind
from veilwood.errors import ParameterError, UseError
from veilwood.estimators.base import BaseForest, SharedParameters
from veilwood.forests.matrix.answering import Answering, AnsweringParameters, PlannedBatch
from veilwood.privacy.certificate import PrivacyStatement
from veilwood.privacy.door import SEEDED, Door
from veilwood.privacy.entropy import is_seeded
from veilwood.privacy.ledger import MemoryLedger, open_ledger
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.spending import handle_of
from veilwood.privacy.steps import counting_step
from veilwood.trees.random import public_seed


@dataclass(eq=False, repr=False)
class MatrixForestPredictor(BaseForest, AnsweringParameters, SharedParameters):
    """A forest that keeps the training data in memory and answers batches of queries, each at its own price.

    ``fit`` releases nothing and costs nothing; every call of ``answer`` is a release, charged to the ledger before
    the answer exists. A batch that was answered before gets the stored answer, for free. The object holds private
    data by its nature (encoded rows, or exact counts of leaves): it cannot be pickled or saved.

    Parameters
    ----------
    schema, delta, privacy_unit, adjacency, n_estimators, max_depth, max_features, feature_subsets, branching
        As in ``MatrixForestClassifier``.
    n_ensembles : int or None
        Number of ensembles; one by default.
    epsilon : float
        The price of a batch, unless ``answer`` is told otherwise.
    mode : {"batch", "subsample"}
        All rows count in every tree; or each row in one tree only, drawn by a secret key (subsample-and-aggregate).
    voting : {"weight", "hard"}
        Leaves add up their counts, or vote for their largest class (subsample only: labels of leaves are then what
        one row can turn around).
    mechanism : {"optimized", "laplace"}
        Optimise the noise over the whole batch, or give every query an equal share (the baseline); never worse.
    random_state, ledger, n_jobs, invalid
        As in ``MatrixForestClassifier``. The ledger lives as long as the predictor.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
        As in ``MatrixForestClassifier``.
    privacy_ : PrivacyStatement
        The certificate of the latest answer; ``ledger_`` has them all.

    Notes
    -----
    Guarantee

    Each answer is (epsilon, delta)-private, and answers compose in the ledger (proofs/matrix-forest.md, attacked by
    tests/forests/matrix/test_answering.py). The queries must be public: nothing protects the people in them.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> predictor = vw.MatrixForestPredictor(
    ...     car.schema, n_estimators=16, max_depth=3, random_state=0, ledger=vw.MemoryLedger(epsilon=3))
    >>> labels = predictor.fit(car.X, car.y).answer(car.X[:20], epsilon=2.0)
    >>> again = predictor.answer(car.X[:20])
    >>> bool((labels == again).all()), str(predictor.ledger_.spent)
    (True, 'epsilon=2')
    """

    task: ClassVar[TaskKind] = "classification"

    def plan(self) -> NoReturn:
        """Refuse: what a batch costs and how well it is answered depends on the queries."""
        raise UseError("a batch is planned with its queries. Hint: fit, then call plan_answer(X_new).")

    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Self:
        """Count the training data, privately. Nothing is released and nothing is spent."""
        self._refuse(unsupported)
        parameters = AnsweringParameters.of(self)
        parameters.check()
        loss, neighbours = self.promise()
        schema, inferred = self.declared_schema(X, y)
        seeded = SEEDED if is_seeded() else None  # the key that gives rows to trees is then known
        seed = public_seed(self.random_state)
        answering = Answering.grow(parameters, schema, seed)
        ledger = MemoryLedger() if self.ledger is None else open_ledger(self.ledger)
        if loss.is_bounded:
            ledger.check_affordable(loss)  # once a budget is spent, whether rows fit must not be told
        step = counting_step("rows", (1,), loss, neighbours, l1=1, squared_l2=1)  # what refusals are noted under
        plan = self.ask(schema, seed).plan((step,), "nothing: rows are counted in memory", Layout(), 0.0)
        with self._noting_refusals(plan, inferred or seeded, handle_of(X)):
            source = open_rows(X, y, answering.encoding, unit=neighbours.unit, invalid=self.invalid)
            exact = answering.count(source, self.n_jobs)
        # Only now, all at once: what is answered from belongs to the promise that was checked with it.
        self._forget(self._fitted())
        self._answering, self._exact, self._seed, self._table = answering, exact, seed, handle_of(X)
        self._stored: dict[bytes, tuple[NDArray[np.int64], PrivacyStatement, Plan]] = {}
        self._planned: tuple[Any, PlannedBatch] | None = None
        self._neighbours, self._not_private = neighbours, "; ".join(r for r in (inferred, seeded) if r) or None
        self.forest_, self.ledger_ = answering.forest, ledger
        self._set_public(schema, answering.encoding)
        return self

    def plan_answer(self, X: Any, epsilon: float | None = None) -> Plan:
        """Return what answering this batch will release and cost. Nothing is spent."""
        return self._plan_batch(self.encode(X), self._price(epsilon)).plan

    def answer(self, X: Any, epsilon: float | None = None) -> NDArray[Any]:
        """Predict the classes of a batch of public queries, charging the ledger once.

        Parameters
        ----------
        X : dataframe or array
            The queries. They must not be private: what is measured is chosen to fit them.
        epsilon : float, optional
            The price of this batch.
        """
        codes = self.encode(X)
        key = hashlib.sha256(repr(codes.shape).encode() + codes.tobytes()).digest()
        price = self._price(epsilon)
        stored = self._stored.get(key)
        if stored is None or (price.is_bounded and not stored[1].is_private and self._not_private is None):
            votes = self._release(codes, price)
            stored = self._stored[key] = (votes.argmax(axis=1), self.privacy_, self.plan_)
        chosen, self.privacy_, self.plan_ = stored
        labels: NDArray[Any] = self.classes_[chosen]
        return labels

    def forget_answers(self) -> None:
        """Forget the answers given so far: the same batch will be charged again. For who stores answers elsewhere."""
        self._stored.clear()

    def encode(self, X: Any) -> NDArray[np.uint16]:
        """Encode queries; needs a fitted predictor."""
        check_is_fitted(self, "schema_")
        return self._encode(self._answering.encoding, X)

    def _price(self, epsilon: float | None) -> Loss:
        return requested_loss(self.epsilon if epsilon is None else epsilon, self.delta)

    def _plan_batch(self, codes: NDArray[np.uint16], loss: Loss) -> PlannedBatch:
        """Plan the answer by the present parameters; rows were counted for one mode only."""
        parameters, counted_for = AnsweringParameters.of(self), self._answering.parameters.mode
        parameters.check()
        if self.mode != counted_for:
            raise ParameterError("mode", self.mode, f"was set after fitting with {counted_for!r}", "fit again")
        key = (codes.shape, codes.tobytes(), loss, tuple(vars(parameters).items()))
        if self._planned is None or self._planned[0] != key:  # a batch that was planned is not searched again
            asked = replace(self.ask(self.schema_, self._seed), loss=loss, neighbours=self._neighbours)
            self._planned = key, replace(self._answering, parameters=parameters).plan(asked, codes)
        return self._planned[1]

    def _release(self, codes: NDArray[np.uint16], loss: Loss) -> NDArray[np.float64]:
        """Answer a batch through the door; return the votes by class."""
        questions = self._plan_batch(codes, loss)
        answering = replace(self._answering, parameters=AnsweringParameters.of(self))
        door = Door(questions.plan, self.ledger_, not_private=self._not_private, table=self._table)
        with door:
            votes = answering.release(questions, self._exact, door, self.n_jobs)
        self._certify(door)
        return votes

    def __getstate__(self) -> NoReturn:
        raise UseError(
            "a MatrixForestPredictor holds private data and cannot be pickled or saved. "
            "Hint: train a MatrixForestClassifier, whose model is public."
        )
