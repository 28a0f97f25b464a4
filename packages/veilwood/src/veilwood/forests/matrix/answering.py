# SPDX-License-Identifier: Apache-2.0
"""Matrix random forests, batch prediction: the forest stays private, and batches of queries are answered with noise.

Batch training, which releases a model once and predicts for free ever after, is in ``training``; it is the better
choice whenever more than one batch is expected.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.data.schema import Schema, TaskKind
from veilwood.errors import ParameterError, UseError
from veilwood.estimators.base import BaseForest, SharedParameters
from veilwood.estimators.method import Codes, FitRequest, Floats
from veilwood.estimators.parameters import Role, parameter
from veilwood.forests.matrix.measurement import MECHANISMS, MatrixStep, Measurement, plan_measurement, row_sensitivity
from veilwood.forests.matrix.training import (
    BRANCHINGS,
    FEATURE_SUBSETS,
    VOTINGS,
    Ensemble,
    EnsembleParameters,
    grow_ensembles,
)
from veilwood.forests.matrix.workloads import LeafVoteWorkload, VoteWorkload
from veilwood.forests.noisy_leaves import lower_noise_design
from veilwood.privacy.accountant import handle_of
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.door import SEEDED_NOISE, Door
from veilwood.privacy.entropy import is_seeded, secret_key
from veilwood.privacy.ledger_stores import MemoryLedger, open_ledger
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.plan import ALL_TO_EVERY_TREE, EACH_TO_ONE_TREE, Layout, Plan
from veilwood.privacy.steps import Step, counting_step
from veilwood.progress import track_progress
from veilwood.trees.counting import Assignment, LeafCount, leaf_totals, route_rows
from veilwood.trees.forest import Forest
from veilwood.trees.random import public_seed

MODES = ("batch", "subsample")


@dataclass(eq=False, repr=False, kw_only=True)
class AnsweringParameters(EnsembleParameters):
    """Parameters of a predictor."""

    mode: str = parameter("batch", role=Role.LEARNING)
    voting: str = parameter("weight", role=Role.LEARNING)
    mechanism: str = parameter("optimized", role=Role.LEARNING)

    def _check_parameters(self) -> None:
        """Refuse words that are not known or do not go together."""
        self._check_options(
            mode=MODES,
            voting=VOTINGS,
            mechanism=MECHANISMS,
            branching=BRANCHINGS,
            feature_subsets=FEATURE_SUBSETS,
        )
        if self.mode == "batch" and self.voting == "hard":
            raise UseError(
                "mode='batch' adds up leaf counts, which one row moves by little; labels of leaves that all rows share "
                "have no such bound. Hint: voting='weight', or mode='subsample'."
            )


@dataclass(frozen=True)
class PlannedBatch:
    """A planned batch: the queries, the plan of their answers, and what is measured; nothing, query by query."""

    codes: Codes
    plan: Plan
    measurements: list[Measurement]


@dataclass(frozen=True, eq=False, repr=False)
class QueryAnswering:
    """Public trees, and how batches of queries are planned and answered from private rows."""

    parameters: AnsweringParameters
    encoding: Encoding
    ensembles: tuple[Ensemble, ...]
    forest: Forest

    @classmethod
    def grow_trees(cls, parameters: AnsweringParameters, schema: Schema, seed: int) -> Self:
        """Grow the trees, which needs no data."""
        encoding = Encoding(schema, "bins")
        return cls(parameters, encoding, *grow_ensembles(encoding, parameters, seed))

    @property
    def _is_batch(self) -> bool:
        return self.parameters.mode == "batch"

    @property
    def _n_classes(self) -> int:
        return len(self.encoding.schema.classes)

    @property
    def _is_hard(self) -> bool:
        return self.parameters.voting == "hard"

    @property
    def _n_columns(self) -> int:
        """Two classes of hard votes need one column: the other is its complement."""
        return 1 if self._is_hard and self._n_classes == 2 else self._n_classes

    def count_rows(self, source: Source, n_jobs: int | None) -> Any:
        """Keep the encoded rows, or the exact counts of leaves under a fresh secret key: private, in memory only."""
        if self._is_batch:
            batches = list(track_progress(source.batches(), "counting"))
            return (
                np.concatenate([batch.codes for batch in batches]),
                np.concatenate([batch.target for batch in batches]),
            )
        assignment = Assignment(secret_key(), self.forest.n_trees)
        return source.aggregate(LeafCount(self.forest, self._n_classes, assignment=assignment), n_jobs=n_jobs)

    # -- planning a batch ----------------------------------------------------------------------------------------

    def plan_answer(self, request: FitRequest, codes: Codes) -> PlannedBatch:
        """Choose what to measure for these queries, from public facts alone."""
        self.parameters._check_parameters()
        return lower_noise_design(request, partial(self._plan_uncached, codes=codes))

    def _plan_uncached(self, request: FitRequest, codes: Codes) -> PlannedBatch:
        measurements: list[Measurement] = []
        steps: tuple[Step, ...] = (self._direct_step(codes, request),)
        error = steps[0].variance
        if self.parameters.mechanism == "optimized":
            found = self._choose_measurements(codes, request)
            by_strategy = sum(measurement.expected_error for measurement in found) / len(codes)
            # A few queries are best answered by themselves. Without noise all is equal, and tables are kept.
            if by_strategy < error or steps[0].mechanism is None:
                measurements, error = found, by_strategy
                steps = tuple(step for measurement in measurements for step in measurement.steps)
        records = ALL_TO_EVERY_TREE if self._is_batch else EACH_TO_ONE_TREE
        plan = request.make_plan(
            steps,
            f"votes for {len(codes)} public queries, with noise",
            self.forest.layout(records, queries=len(codes)),
            error,
            notes={"ensembles": len(self.ensembles)},
            choices={"structure": self.forest.fingerprint()},
        )
        return PlannedBatch(codes, plan, measurements)

    def _choose_measurements(self, codes: Codes, request: FitRequest) -> list[Measurement]:
        loss, neighbours, n_columns = request.loss, request.neighbours, self._n_columns
        if not self._is_batch:
            # A row is in one tree of one ensemble, so all ensembles together are one table of leaves.
            workload = LeafVoteWorkload(self.forest.n_leaves, route_rows(self.forest, codes))
            return [plan_measurement("votes", workload, loss, neighbours, n_columns, votes=self._is_hard)]
        share = loss.scaled(Fraction(1, len(self.ensembles)))
        return [
            plan_measurement(
                f"votes of ensemble {i}",
                VoteWorkload(ensemble.paths, route_rows(ensemble.forest, codes[:, ensemble.features])),
                share,
                neighbours,
                n_columns,
            )
            for i, ensemble in enumerate(self.ensembles, start=1)
        ]

    def _direct_step(self, codes: Codes, request: FitRequest) -> Step:
        """Plan the release of every vote of every query by itself, which one row moves in all the trees it is in.

        The paper's baseline takes each row to be in a leaf with all queries. How many queries are in a leaf is public,
        and where noise is optimised, the most of them in each tree are what a row can move.
        """
        l1, squared_l2 = row_sensitivity(self._n_columns, self._is_hard, request.neighbours)
        trees = self.forest.n_trees if self._is_batch else 1  # that a row can be in, adding to the same query
        queries = [len(codes)] * self.forest.n_trees
        if self.parameters.mechanism == "optimized":
            queries = [int(np.bincount(leaves).max()) for leaves in route_rows(self.forest, codes).T]
        moved = sum(queries) if self._is_batch else max(queries)
        return counting_step(
            MatrixStep.VOTES.at(), (len(codes), self._n_columns), request.loss, request.neighbours,
            l1=moved * l1, squared_l2=moved * trees * squared_l2,
        )  # fmt: skip

    # -- releasing a batch ---------------------------------------------------------------------------------------

    def release_votes(self, batch: PlannedBatch, exact: Any, door: Door, n_jobs: int | None) -> Floats:
        """Release the answers through the door; return the votes by class."""
        if batch.measurements:
            noisy = [
                [
                    door.release_counts(step, table)
                    for step, table in zip(m.steps, self._exact_tables(i, m, exact), strict=True)
                ]
                for i, m in enumerate(batch.measurements)
            ]
            answers = [m.reconstruct(tables) for m, tables in zip(batch.measurements, noisy, strict=True)]
            votes: Floats = np.sum(answers, axis=0)
        else:
            votes = door.release_counts(batch.plan.steps[0], self._exact_votes(batch.codes, exact, n_jobs)).astype(
                np.float64
            )
        return votes if votes.shape[1] > 1 else np.column_stack([votes, self.forest.n_trees - votes])

    def _exact_tables(self, ensemble: int, measurement: Measurement, exact: Any) -> list[NDArray[np.int64]]:
        if self._is_batch:
            cells, classes = exact
            features = self.ensembles[ensemble].features
            return measurement.strategy.measure_exact(cells[:, features], classes, self._n_classes)
        return measurement.strategy.measure_cells(self._leaf_table(exact))

    def _exact_votes(self, codes: Codes, exact: Any, n_jobs: int | None) -> NDArray[np.int64]:
        if self._is_batch:
            codes_of_rows, classes = exact
            rows = Batch(codes_of_rows, classes, partition=0, first_row=0)
            table = leaf_totals(self.forest, [rows], n_classes=self._n_classes, n_jobs=n_jobs)
        else:
            table = self._leaf_table(exact)
        return np.asarray(table[route_rows(self.forest, codes)].sum(axis=1))

    def _leaf_table(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """What each leaf contributes to votes: its counts, or its label (for two classes, the first class only)."""
        if not self._is_hard:
            return counts
        labels = np.zeros_like(counts)
        labels[np.arange(len(counts)), counts.argmax(axis=1)] = 1
        return labels[:, : self._n_columns]


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
    privacy_ : PrivacyCertificate
        The certificate of the latest answer; ``ledger_`` has them all.

    Notes
    -----
    Guarantee

    Each answer is (epsilon, delta)-private, and answers compose in the ledger (proofs/matrix-forest.md, attacked by
    packages/veilwood/tests/forests/matrix/test_answering.py). The queries must be public: nothing protects the people in them.

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

    _task: ClassVar[TaskKind] = "classification"

    def plan(self) -> NoReturn:
        """Refuse: what a batch costs and how well it is answered depends on the queries."""
        raise UseError("a batch is planned with its queries. Hint: fit, then call plan_answer(X_new).")

    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Self:
        """Count the training data, privately. Nothing is released and nothing is spent."""
        self._reject_arguments(unsupported)
        parameters = AnsweringParameters._from_estimator(self)
        parameters._check_parameters()
        loss, neighbours = self._requested_privacy()
        schema, inferred = self._resolve_schema(X, y)
        seeded = SEEDED_NOISE if is_seeded() else None  # the key that gives rows to trees is then known
        seed = public_seed(self.random_state)
        answering = QueryAnswering.grow_trees(parameters, schema, seed)
        ledger = MemoryLedger() if self.ledger is None else open_ledger(self.ledger)
        if loss.is_bounded:
            ledger.check_affordable(loss)  # once a budget is spent, whether rows fit must not be told
        step = counting_step("rows", (1,), loss, neighbours, l1=1, squared_l2=1)  # what refusals are noted under
        plan = self._fit_request(schema, seed).make_plan((step,), "nothing: rows are counted in memory", Layout(), 0.0)
        with self._record_rejections(plan, inferred or seeded, handle_of(X)):
            source = open_rows(X, y, answering.encoding, unit=neighbours.unit, invalid=self.invalid)
            exact = answering.count_rows(source, self.n_jobs)
        # Only now, all at once: what is answered from belongs to the promise that was checked with it.
        self._remove_attributes(self._fitted_attributes())
        self._query_engine, self._exact, self._seed, self._table = answering, exact, seed, handle_of(X)
        self._answers: dict[bytes, tuple[NDArray[np.int64], PrivacyCertificate, Plan]] = {}
        self._planned_batch: tuple[Any, PlannedBatch] | None = None
        self._neighbours, self._not_private = neighbours, "; ".join(r for r in (inferred, seeded) if r) or None
        self.forest_, self.ledger_ = answering.forest, ledger
        self._set_schema_attributes(schema, answering.encoding)
        return self

    def plan_answer(self, X: Any, epsilon: float | None = None) -> Plan:
        """Return what answering this batch will release and cost. Nothing is spent."""
        return self._plan_batch(self._encode_rows(X), self._batch_loss(epsilon)).plan

    def answer(self, X: Any, epsilon: float | None = None) -> NDArray[Any]:
        """Predict the classes of a batch of public queries, charging the ledger once.

        Parameters
        ----------
        X : dataframe or array
            The queries. They must not be private: what is measured is chosen to fit them.
        epsilon : float, optional
            The price of this batch.
        """
        codes = self._encode_rows(X)
        key = hashlib.sha256(repr(codes.shape).encode() + codes.tobytes()).digest()
        price = self._batch_loss(epsilon)
        stored = self._answers.get(key)
        if stored is None or (price.is_bounded and not stored[1].is_private and self._not_private is None):
            votes = self._release_votes(codes, price)
            stored = self._answers[key] = (votes.argmax(axis=1), self.privacy_, self.plan_)
        chosen, self.privacy_, self.plan_ = stored
        labels: NDArray[Any] = self.classes_[chosen]
        return labels

    def forget_answers(self) -> None:
        """Forget the answers given so far: the same batch will be charged again. For who stores answers elsewhere."""
        self._answers.clear()

    def _encode_rows(self, X: Any) -> NDArray[np.uint16]:
        """Encode queries; needs a fitted predictor."""
        check_is_fitted(self, "schema_")
        return self._encode_with(self._query_engine.encoding, X)

    def _batch_loss(self, epsilon: float | None) -> Loss:
        return requested_loss(self.epsilon if epsilon is None else epsilon, self.delta)

    def _plan_batch(self, codes: NDArray[np.uint16], loss: Loss) -> PlannedBatch:
        """Plan the answer by the present parameters; rows were counted for one mode only."""
        parameters, counted_for = AnsweringParameters._from_estimator(self), self._query_engine.parameters.mode
        parameters._check_parameters()
        if self.mode != counted_for:
            raise ParameterError("mode", self.mode, f"was set after fitting with {counted_for!r}", "fit again")
        key = (codes.shape, codes.tobytes(), loss, tuple(vars(parameters).items()))
        if (
            self._planned_batch is None or self._planned_batch[0] != key
        ):  # a batch that was planned is not searched again
            asked = replace(self._fit_request(self.schema_, self._seed), loss=loss, neighbours=self._neighbours)
            self._planned_batch = key, replace(self._query_engine, parameters=parameters).plan_answer(asked, codes)
        return self._planned_batch[1]

    def _release_votes(self, codes: NDArray[np.uint16], loss: Loss) -> NDArray[np.float64]:
        """Answer a batch through the door; return the votes by class."""
        questions = self._plan_batch(codes, loss)
        answering = replace(self._query_engine, parameters=AnsweringParameters._from_estimator(self))
        door = Door(questions.plan, self.ledger_, not_private=self._not_private, table=self._table)
        with door:
            votes = answering.release_votes(questions, self._exact, door, self.n_jobs)
        self._set_certificate(door)
        return votes

    def __getstate__(self) -> NoReturn:
        raise UseError(
            "a MatrixForestPredictor holds private data and cannot be pickled or saved. "
            "Hint: train a MatrixForestClassifier, whose model is public."
        )
