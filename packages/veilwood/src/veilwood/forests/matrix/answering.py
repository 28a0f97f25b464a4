# SPDX-License-Identifier: Apache-2.0
"""Batch prediction with matrix random forests: the forest stays private, and batches of queries get noisy answers.

``training`` releases a model once, whose predictions spend no budget. It is the better choice if more than one batch is
expected.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from veilwood.arrays import AnyArray, Codes, Floats, Ints
from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.data.schema import Schema, TaskKind
from veilwood.errors import ParameterError, UseError
from veilwood.estimators.base import BaseForest
from veilwood.estimators.method import FitRequest
from veilwood.estimators.parameters import Role, SharedParameters, parameter
from veilwood.forests.matrix import training
from veilwood.forests.matrix.measurement import MECHANISMS, MatrixStep, Measurement, plan_measurement, row_sensitivity
from veilwood.forests.matrix.workloads import LeafVoteWorkload, VoteWorkload
from veilwood.forests.noisy_leaves import lower_noise_design
from veilwood.privacy.accountant import handle_of
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.door import SEEDED_NOISE, Door
from veilwood.privacy.entropy import is_seeded, secret_key
from veilwood.privacy.ledger_stores import MemoryLedger, open_ledger
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.plan import ALL_TO_EVERY_TREE, EACH_TO_ONE_TREE, Layout, Plan
from veilwood.privacy.release import Release
from veilwood.privacy.steps import Step, counting_step
from veilwood.progress import track_progress
from veilwood.trees.counting import Assignment, LeafCount, leaf_totals, route_rows
from veilwood.trees.forest import Forest
from veilwood.trees.random import public_seed

MODES = ("batch", "subsample")


@dataclass(eq=False, repr=False, kw_only=True)
class AnsweringParameters(training.EnsembleParameters):
    """Parameters of a predictor."""

    mode: str = parameter("batch", role=Role.LEARNING)
    voting: str = parameter("weight", role=Role.LEARNING)
    mechanism: str = parameter("optimized", role=Role.LEARNING)

    def _check_parameters(self) -> None:
        """Raise an error if options are unknown or incompatible."""
        self._check_options(
            mode=MODES,
            voting=training.VOTINGS,
            mechanism=MECHANISMS,
            branching=training.BRANCHINGS,
            feature_subsets=training.FEATURE_SUBSETS,
        )
        if self.mode == "batch" and self.voting == "hard":
            raise UseError(
                "mode='batch' sums leaf counts, to which one row contributes little; labels of leaves shared by all "
                "rows have no such bound. Hint: set voting='weight' or mode='subsample'."
            )


@dataclass(frozen=True)
class PlannedBatch:
    """Planned batch: queries, the plan of their answers, and the measurements (none if answered query by query)."""

    codes: Codes
    plan: Plan
    measurements: list[Measurement]


@dataclass(frozen=True, eq=False, repr=False)
class QueryAnswering:
    """Method for public trees that plans and answers batches of queries."""

    parameters: AnsweringParameters
    encoding: Encoding
    ensembles: tuple[training.Ensemble, ...]
    forest: Forest

    @classmethod
    def grow_trees(cls, parameters: AnsweringParameters, schema: Schema, seed: int) -> Self:
        """Grow the trees, without data."""
        encoding = Encoding(schema, "bins")
        return cls(parameters, encoding, *training.grow_ensembles(encoding, parameters, seed))

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
        """Number of measured columns. Hard votes for two classes need only one column."""
        return 1 if self._is_hard and self._n_classes == 2 else self._n_classes

    def count_rows(self, source: Source, n_jobs: int | None) -> Any:
        """Return the private encoded rows, or the exact leaf counts under a fresh secret key; in memory only."""
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
        """Choose the measurements for these queries, from public facts only."""
        self.parameters._check_parameters()
        return lower_noise_design(request, partial(self._plan_uncached, codes=codes))

    def _plan_uncached(self, request: FitRequest, codes: Codes) -> PlannedBatch:
        measurements: list[Measurement] = []
        steps: tuple[Step, ...] = (self._direct_step(codes, request),)
        error = steps[0].variance
        if self.parameters.mechanism == "optimized":
            optimized = self._choose_measurements(codes, request)
            optimized_error = sum(measurement.expected_error for measurement in optimized) / len(codes)
            # A few queries are best answered one by one. Without noise both ways are exact, and tables are used.
            if optimized_error < error or steps[0].mechanism is None:
                measurements, error = optimized, optimized_error
                steps = tuple(step for measurement in measurements for step in measurement.steps)
        row_sharing = ALL_TO_EVERY_TREE if self._is_batch else EACH_TO_ONE_TREE
        plan = request.make_plan(
            steps,
            f"votes for {len(codes)} public queries, with noise",
            self.forest.layout(row_sharing, queries=len(codes)),
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
        ensemble_loss = loss.scaled(Fraction(1, len(self.ensembles)))
        return [
            plan_measurement(
                f"votes of ensemble {i}",
                VoteWorkload(ensemble.paths, route_rows(ensemble.forest, codes[:, ensemble.features])),
                ensemble_loss,
                neighbours,
                n_columns,
            )
            for i, ensemble in enumerate(self.ensembles, start=1)
        ]

    def _direct_step(self, codes: Codes, request: FitRequest) -> Step:
        """Plan the release of the votes for each query. One row changes the votes of all trees that count it.

        The paper's baseline assumes that each row is in a leaf with all queries. The number of queries in a leaf is
        public. If the noise is optimised, a row can change as many queries as there are in the fullest leaf of each
        tree.
        """
        l1, squared_l2 = row_sensitivity(self._n_columns, self._is_hard, request.neighbours)
        trees = self.forest.n_trees if self._is_batch else 1  # in which one row can add to the same query
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
        """Release the answers through the release door; return the votes by class."""
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

    def _exact_tables(self, ensemble: int, measurement: Measurement, exact: Any) -> list[Ints]:
        if self._is_batch:
            cells, classes = exact
            features = self.ensembles[ensemble].features
            return measurement.strategy.measure_exact(cells[:, features], classes, self._n_classes)
        return measurement.strategy.measure_cells(self._leaf_table(exact))

    def _exact_votes(self, codes: Codes, exact: Any, n_jobs: int | None) -> Ints:
        if self._is_batch:
            codes_of_rows, classes = exact
            rows = Batch(codes_of_rows, classes, partition=0, first_row=0)
            table = leaf_totals(self.forest, [rows], n_classes=self._n_classes, n_jobs=n_jobs)
        else:
            table = self._leaf_table(exact)
        return np.asarray(table[route_rows(self.forest, codes)].sum(axis=1))

    def _leaf_table(self, counts: Ints) -> Ints:
        """Return the contribution of each leaf to votes: its counts, or its label (one column for two classes)."""
        if not self._is_hard:
            return counts
        labels = np.zeros_like(counts)
        labels[np.arange(len(counts)), counts.argmax(axis=1)] = 1
        return labels[:, : self._n_columns]


@dataclass(eq=False, repr=False)
class MatrixForestPredictor(BaseForest, AnsweringParameters, SharedParameters):
    """Forest that keeps the training data in memory and charges the ledger for every batch of queries.

    ``fit`` releases nothing and spends no budget. Every call of ``answer`` is a release, charged to the ledger before
    the answer is computed. A repeated batch gets the stored answer, which spends no budget. The object holds private
    data (encoded rows, or exact leaf counts), so it cannot be pickled or saved.

    Parameters
    ----------
    schema, delta, privacy_unit, adjacency, n_estimators, max_depth, max_features, feature_subsets, branching
        As in ``MatrixForestClassifier``.
    n_ensembles : int or None
        Number of ensembles. Default: one.
    epsilon : float
        Default privacy loss of a batch.
    mode : {"batch", "subsample"}
        Count every row in every tree, or in one tree drawn by a secret key (subsample-and-aggregate).
    voting : {"weight", "hard"}
        Leaf counts are summed, or leaves vote for their largest class (subsample only: one row can then change one
        label).
    mechanism : {"optimized", "laplace"}
        Optimise the noise over the whole batch, or divide the budget equally among queries (the baseline, which is
        never better).
    random_state, ledger, n_jobs, invalid
        As in ``MatrixForestClassifier``. All answers of the predictor are charged to the same ledger.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
        As in ``MatrixForestClassifier``.
    privacy_ : PrivacyCertificate
        Certificate of the latest answer. ``ledger_`` has an entry for each answer.

    Notes
    -----
    Guarantee

    Each answer is (epsilon, delta)-private, and answers compose in the ledger (proofs/matrix-forest.md, attacked by
    packages/veilwood/tests/forests/matrix/test_answering.py). The queries must be public: nothing protects the people
    in them.

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
        """Raise UseError: the loss and the error of a batch depend on its queries."""
        raise UseError("a plan needs the queries of a batch. Hint: call fit, then plan_answer(X_new).")

    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Self:
        """Read the training data into memory. Nothing is released, and no budget is spent."""
        self._reject_arguments(unsupported)
        parameters = AnsweringParameters._from_estimator(self)
        parameters._check_parameters()
        schema, inferred = self._resolve_schema(X, y)
        loss, neighbours = self._requested_privacy(schema)
        seeded = SEEDED_NOISE if is_seeded() else None  # the key that assigns rows to trees would then be known
        seed = public_seed(self.random_state)
        answering = QueryAnswering.grow_trees(parameters, schema, seed)
        ledger = MemoryLedger() if self.ledger is None else open_ledger(self.ledger)
        # Nothing is released, so no door opens; rejected rows are recorded in the ledger under this plan.
        step = counting_step("rows", (1,), loss, neighbours, l1=1, squared_l2=1)
        plan = self._fit_request(schema, seed).make_plan((step,), "nothing: rows are counted in memory", Layout(), 0.0)
        exact = Release.for_plan(plan, ledger, X, not_private=inferred or seeded).open_rows(
            lambda: answering.count_rows(
                open_rows(X, y, answering.encoding, unit=neighbours.unit, invalid=self.invalid), self.n_jobs
            )
        )
        # Replace all attributes together, at the end: answers must use the rows and the privacy parameters of the same
        # fit.
        self._remove_attributes(self._fitted_attributes())
        self._query_engine, self._exact, self._seed, self._table = answering, exact, seed, handle_of(X)
        self._answers: dict[bytes, tuple[Ints, PrivacyCertificate, Plan]] = {}
        self._planned_batch: tuple[Any, PlannedBatch] | None = None
        self._neighbours, self._not_private = neighbours, "; ".join(r for r in (inferred, seeded) if r) or None
        self.forest_, self.ledger_ = answering.forest, ledger
        self._set_schema_attributes(schema, answering.encoding)
        return self

    def plan_answer(self, X: Any, epsilon: float | None = None) -> Plan:
        """Return the plan for answering this batch. No budget is spent."""
        return self._plan_batch(self._encode_rows(X), self._batch_loss(epsilon)).plan

    def answer(self, X: Any, epsilon: float | None = None) -> AnyArray:
        """Predict the classes of a batch of public queries, and charge the ledger once.

        Parameters
        ----------
        X : dataframe or array
            Queries. They must not be private: the measurements are chosen for them.
        epsilon : float, optional
            Privacy loss of this batch. Default: the estimator's epsilon.
        """
        codes = self._encode_rows(X)
        key = hashlib.sha256(repr(codes.shape).encode() + codes.tobytes()).digest()
        loss = self._batch_loss(epsilon)
        stored = self._answers.get(key)
        if stored is None or (loss.is_bounded and not stored[1].is_private and self._not_private is None):
            votes = self._release_votes(codes, loss)
            stored = self._answers[key] = (votes.argmax(axis=1), self.privacy_, self.plan_)
        chosen, self.privacy_, self.plan_ = stored
        labels: AnyArray = self.classes_[chosen]
        return labels

    def forget_answers(self) -> None:
        """Delete the stored answers, for callers that store them elsewhere. Repeated batches are charged again."""
        self._answers.clear()

    def _encode_rows(self, X: Any) -> Codes:
        """Encode queries with a fitted predictor."""
        check_is_fitted(self, "schema_")
        return self._encode_with(self._query_engine.encoding, X)

    def _batch_loss(self, epsilon: float | None) -> Loss:
        return requested_loss(self.epsilon if epsilon is None else epsilon, self.delta)

    def _plan_batch(self, codes: Codes, loss: Loss) -> PlannedBatch:
        """Plan the answer with the present parameters. The mode cannot change after fit."""
        parameters, counted_for = AnsweringParameters._from_estimator(self), self._query_engine.parameters.mode
        parameters._check_parameters()
        if self.mode != counted_for:
            raise ParameterError("mode", self.mode, f"was set after fitting with {counted_for!r}", "fit again")
        key = (codes.shape, codes.tobytes(), loss, tuple(vars(parameters).items()))
        if (
            self._planned_batch is None or self._planned_batch[0] != key
        ):  # a batch that was planned is not searched again
            request = replace(self._fit_request(self.schema_, self._seed), loss=loss, neighbours=self._neighbours)
            self._planned_batch = key, replace(self._query_engine, parameters=parameters).plan_answer(request, codes)
        return self._planned_batch[1]

    def _release_votes(self, codes: Codes, loss: Loss) -> Floats:
        """Release the answers of a batch through the release door, and return the votes by class."""
        batch = self._plan_batch(codes, loss)
        answering = replace(self._query_engine, parameters=AnsweringParameters._from_estimator(self))
        release = Release(Door(batch.plan, self.ledger_, not_private=self._not_private, table=self._table))
        votes = release.measure(lambda door: answering.release_votes(batch, self._exact, door, self.n_jobs))
        self._set_certificate(release)
        return votes

    def __getstate__(self) -> NoReturn:
        raise UseError(
            "a MatrixForestPredictor holds private data and cannot be pickled or saved. "
            "Hint: train a MatrixForestClassifier, whose model is public."
        )
