# SPDX-License-Identifier: Apache-2.0
"""Matrix random forests, batch prediction: the forest stays private, and batches of queries are answered with noise.

Batch training, which releases a model once and predicts for free ever after, is in ``matrix_forest``; it is the
better choice whenever more than one batch is expected.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Batch
from veilwood.data.cluster.engines import open_rows
from veilwood.data.encoding import Encoding
from veilwood.data.schema import Task
from veilwood.errors import VeilwoodError
from veilwood.forests.base import BaseForest, layout_of
from veilwood.forests.matrix.training import (
    BRANCHINGS,
    MECHANISMS,
    VOTINGS,
    Ensemble,
    Measurement,
    grow_ensembles,
    moves,
    plan_measurement,
)
from veilwood.forests.matrix.workloads import LeafVoteWorkload, VoteWorkload
from veilwood.privacy.certificate import PrivacyStatement
from veilwood.privacy.door import SEEDED, Door
from veilwood.privacy.entropy import is_seeded, secret_key
from veilwood.privacy.ledger import Ledger, open_ledger
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import ALL_TO_EVERY_TREE, EACH_TO_ONE_TREE, Plan
from veilwood.privacy.steps import Step, counting_step
from veilwood.progress import track
from veilwood.trees.counting import Assignment, leaf_totals, route
from veilwood.trees.forest import Forest, public_seed

MODES = ("batch", "subsample")


class MatrixForestPredictor(BaseForest):
    """A forest that keeps the training data in memory and answers batches of queries, each at its own price.

    ``fit`` releases nothing and costs nothing; every call of ``answer`` is a release, charged to the ledger before
    the answer exists. A batch that was answered before gets the stored answer, for free. The object holds private
    data by its nature (encoded rows, or exact counts of leaves): it cannot be pickled or saved.

    Parameters
    ----------
    schema, delta, privacy_unit, adjacency, n_estimators, max_depth, n_ensembles, max_features, branching
        As in ``MatrixForestClassifier``.
    epsilon : float
        The price of a batch, unless ``answer`` is told otherwise.
    mode : {"batch", "subsample"}
        All rows count in every tree; or each row in one tree only, drawn by a secret key (subsample-and-aggregate).
    voting : {"weight", "hard"}
        Leaves add up their counts, or vote for their largest class (subsample only: labels of leaves are then what
        one row can turn around).
    mechanism : {"optimized", "laplace"}
        Optimise the noise over the whole batch, or give every query an equal share (the baseline).
    random_state, ledger, n_jobs
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
    tests/forests/test_matrix_answering.py). The queries must be public: nothing protects the people in them.

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

    _task: ClassVar[Task] = "classification"
    ledger_: Ledger
    forest_: Forest

    def __init__(
        self,
        schema: Any = None,
        *,
        epsilon: float = 1.0,
        delta: float = 0.0,
        privacy_unit: Any = "row",
        adjacency: str = "add-remove",
        n_estimators: Any = 128,
        max_depth: Any = 3,
        mode: str = "batch",
        voting: str = "weight",
        mechanism: str = "optimized",
        n_ensembles: int = 1,
        max_features: int | None = None,
        branching: str = "multiway",
        random_state: Any = None,
        ledger: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.schema = schema
        self.epsilon = epsilon
        self.delta = delta
        self.privacy_unit = privacy_unit
        self.adjacency = adjacency
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.mode = mode
        self.voting = voting
        self.mechanism = mechanism
        self.n_ensembles = n_ensembles
        self.max_features = max_features
        self.branching = branching
        self.random_state = random_state
        self.ledger = ledger
        self.n_jobs = n_jobs

    def plan(self) -> NoReturn:
        """Refuse: what a batch costs and how well it is answered depends on the queries."""
        raise VeilwoodError("a batch is planned with its queries. Hint: fit, then call plan_answer(X_new).")

    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Self:
        """Count the training data, privately. Nothing is released and nothing is spent."""
        self._refuse(unsupported)
        self._check_choices()
        _, neighbours = self._promise()
        schema, inferred = self._declared_schema(X, y)
        seeded = SEEDED if is_seeded() else None  # the key that gives rows to trees is then known
        encoding = Encoding(schema, "bins")
        seed = public_seed(self.random_state)
        ensembles, forest = grow_ensembles(
            encoding,
            n_ensembles=self.n_ensembles,
            max_features=self.max_features,
            n_estimators=self.n_estimators,
            max_depth=self.max_depth,
            branching=self.branching,
            random_state=seed,
        )
        source = open_rows(X, y, encoding, unit=neighbours.unit)
        exact: Any
        if self.mode == "batch":
            batches = list(track(source.batches(), "counting"))
            exact = (
                np.concatenate([batch.codes for batch in batches]),
                np.concatenate([batch.target for batch in batches]),
            )
        else:
            assignment = Assignment(secret_key(), forest.n_trees)
            count = partial(leaf_totals, forest, n_classes=len(schema.classes), assignment=assignment)
            exact = source.add_up(count, n_jobs=self.n_jobs)
        ledger = open_ledger(self.ledger)
        # Only now, all at once: what is answered from belongs to the promise that was checked with it.
        self._forget(self._fitted())
        self._fitted_mode, self._seed = self.mode, seed
        self._neighbours, self._not_private = neighbours, "; ".join(r for r in (inferred, seeded) if r) or None
        self._ensembles, self.forest_, self._exact, self.ledger_ = ensembles, forest, exact, ledger
        self._stored: dict[bytes, tuple[NDArray[np.int64], PrivacyStatement, Plan]] = {}
        self._set_public(schema)
        return self

    def plan_answer(self, X: Any, epsilon: float | None = None) -> Plan:
        """Return what answering this batch will release and cost. Nothing is spent."""
        codes = self._encode(X)
        return self._plan_batch(codes, self._price(epsilon))[0]

    def answer(self, X: Any, epsilon: float | None = None) -> NDArray[Any]:
        """Predict the classes of a batch of public queries, charging the ledger once.

        Parameters
        ----------
        X : dataframe or array
            The queries. They must not be private: what is measured is chosen to fit them.
        epsilon : float, optional
            The price of this batch.
        """
        codes = self._encode(X)
        key = hashlib.sha256(repr(codes.shape).encode() + codes.tobytes()).digest()
        price = self._price(epsilon)
        stored = self._stored.get(key)
        if stored is None or (price.is_bounded and not stored[1].is_private and self._not_private is None):
            votes = self._release(codes, price)
            stored = self._stored[key] = (votes.argmax(axis=1), self.privacy_, self.plan_)
        chosen, self.privacy_, self.plan_ = stored
        labels: NDArray[Any] = self.classes_[chosen]
        return labels

    def _price(self, epsilon: float | None) -> Loss:
        return requested_loss(self.epsilon if epsilon is None else epsilon, self.delta)

    def _check_choices(self) -> None:
        self._one_of("mode", MODES)
        self._one_of("voting", VOTINGS)
        self._one_of("mechanism", MECHANISMS)
        self._one_of("branching", BRANCHINGS)
        if self.mode == "batch" and self.voting == "hard":
            raise VeilwoodError(
                "mode='batch' adds up leaf counts, which one row moves by little; labels of leaves that all rows share "
                "have no such bound. Hint: voting='weight', or mode='subsample'."
            )

    # -- planning a batch ------------------------------------------------------------------------------------

    def _plan_batch(self, codes: NDArray[np.uint16], loss: Loss) -> tuple[Plan, list[Measurement]]:
        """Choose what to measure for these queries, from public facts alone."""
        self._check_choices()
        if self.mode != self._fitted_mode:
            raise VeilwoodError(
                f"mode={self.mode!r} was set after fitting with {self._fitted_mode!r}. Hint: fit again."
            )
        neighbours = self._neighbours
        reached = route(self.forest_, codes)
        n_columns = self._n_columns
        measurements: list[Measurement] = []
        if self.mechanism == "laplace":
            steps: tuple[Step, ...] = (self._equal_shares_step(len(codes), n_columns, loss, neighbours),)
            error = steps[0].variance
        else:
            measurements = self._measurements(codes, reached, loss, neighbours, n_columns)
            steps = tuple(step for measurement in measurements for step in measurement.steps)
            error = sum(measurement.expected_error for measurement in measurements) / len(codes)
        plan = Plan(
            estimator=type(self).__name__,
            loss=loss,
            neighbours=neighbours,
            steps=steps,
            released=f"votes for {len(codes)} public queries, with noise",
            schema_name=self.schema_.name,
            schema_hash=self.schema_.fingerprint(),
            layout=layout_of(
                self.forest_, ALL_TO_EVERY_TREE if self.mode == "batch" else EACH_TO_ONE_TREE, queries=len(codes)
            ),
            notes={"ensembles": len(self._ensembles)},
            choices={"structure": self.forest_.fingerprint()},
            parameters=self._plan_parameters(),
            public_seed=self._seed,
            expected_leaf_mse=error,
        )
        return plan, measurements

    @property
    def _n_columns(self) -> int:
        """Two classes of hard votes need one column: the other is its complement."""
        one_suffices = self.voting == "hard" and len(self.classes_) == 2
        return 1 if one_suffices else len(self.classes_)

    def _measurements(
        self, codes: NDArray[np.uint16], reached: NDArray[np.int32], loss: Loss, neighbours: Neighbours, n_columns: int
    ) -> list[Measurement]:
        if self.mode == "subsample":
            # A row is in one tree of one ensemble, so all ensembles together are one table of leaves.
            workload = LeafVoteWorkload(self.forest_.n_leaves, reached)
            return [plan_measurement("votes", workload, loss, neighbours, n_columns, votes=self.voting == "hard")]
        share = loss.part(Fraction(1, len(self._ensembles)))
        return [
            plan_measurement(
                f"votes of ensemble {i}",
                VoteWorkload(ensemble.paths, route(ensemble.forest, codes[:, ensemble.features])),
                share,
                neighbours,
                n_columns,
            )
            for i, ensemble in enumerate(self._ensembles, start=1)
        ]

    def _equal_shares_step(self, n_queries: int, n_columns: int, loss: Loss, neighbours: Neighbours) -> Step:
        """Plan the baseline: every vote of every query is released by itself, so one row moves all of them."""
        l1, squared_l2 = moves(n_columns, self.voting == "hard", neighbours)
        trees = self.forest_.n_trees if self.mode == "batch" else 1  # that a row can be in, adding to the same query
        return counting_step(
            "votes, query by query", (n_queries, n_columns), loss, neighbours,
            l1=n_queries * trees * l1, squared_l2=n_queries * trees**2 * squared_l2,
        )  # fmt: skip

    # -- releasing a batch -----------------------------------------------------------------------------------

    def _release(self, codes: NDArray[np.uint16], loss: Loss) -> NDArray[np.float64]:
        """Answer a batch through the door; return the votes by class."""
        plan, measurements = self._plan_batch(codes, loss)
        door = Door(plan, self.ledger_, not_private=self._not_private)
        with door:
            if measurements:
                noisy = [
                    [door.noisy(step, exact) for step, exact in zip(m.steps, self._exact_tables(i, m), strict=True)]
                    for i, m in enumerate(measurements)
                ]
                votes = sum(m.reconstruct(tables) for m, tables in zip(measurements, noisy, strict=True))
            else:
                votes = door.noisy(plan.steps[0], self._exact_votes(codes)).astype(np.float64)
        self._certify(door)
        votes = np.asarray(votes, np.float64)
        return votes if votes.shape[1] > 1 else np.column_stack([votes, self.forest_.n_trees - votes])

    def _exact_tables(self, place: int, measurement: Measurement) -> list[NDArray[np.int64]]:
        if self.mode == "batch":
            cells, classes = self._exact
            ensemble: Ensemble = self._ensembles[place]
            return measurement.strategy.measure_exact(cells[:, ensemble.features], classes, len(self.classes_))
        return measurement.strategy.measure_cells(self._leaf_table())

    def _exact_votes(self, codes: NDArray[np.uint16]) -> NDArray[np.int64]:
        reached = route(self.forest_, codes)
        if self.mode == "batch":
            cells, classes = self._exact
            rows = Batch(cells, classes, partition=0, first_row=0)
            table = leaf_totals(self.forest_, [rows], n_classes=len(self.classes_), n_jobs=self.n_jobs)
        else:
            table = self._leaf_table()
        return np.asarray(table[reached].sum(axis=1))

    def _leaf_table(self) -> NDArray[np.int64]:
        """What each leaf contributes to votes: its counts, or its label (for two classes, the first class only)."""
        counts: NDArray[np.int64] = self._exact
        if self.voting == "weight":
            return counts
        labels = np.zeros_like(counts)
        labels[np.arange(len(counts)), counts.argmax(axis=1)] = 1
        return labels[:, : self._n_columns]

    # -- a private object ----------------------------------------------------------------------------------------

    def _encoding(self) -> Encoding:
        return Encoding(self.schema_, "bins")

    def __getstate__(self) -> NoReturn:
        raise VeilwoodError(
            "a MatrixForestPredictor holds private data and cannot be pickled or saved. "
            "Hint: train a MatrixForestClassifier, whose model is public."
        )
