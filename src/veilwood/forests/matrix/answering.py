# SPDX-License-Identifier: Apache-2.0
"""Matrix random forests, batch prediction: the forest stays private, and batches of queries are answered with noise.

Batch training, which releases a model once and predicts for free ever after, is in ``training``; it is the better
choice whenever more than one batch is expected.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema
from veilwood.errors import UseError
from veilwood.forests.matrix.ensembles import BRANCHINGS, FEATURE_SUBSETS, Ensemble, EnsembleParameters, grow_ensembles
from veilwood.forests.matrix.measurement import MECHANISMS, Measurement, moves, plan_measurement
from veilwood.forests.matrix.training import VOTINGS
from veilwood.forests.matrix.votes import LeafVoteWorkload, VoteWorkload
from veilwood.forests.method import Asked, Codes, Floats
from veilwood.forests.noisy_leaves import least_noise
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import secret_key
from veilwood.privacy.plan import ALL_TO_EVERY_TREE, EACH_TO_ONE_TREE, Plan
from veilwood.privacy.steps import Step, counting_step
from veilwood.progress import track
from veilwood.trees.counting import Assignment, LeafCount, leaf_totals, route
from veilwood.trees.forest import Forest

MODES = ("batch", "subsample")


@dataclass(eq=False, repr=False, kw_only=True)
class AnsweringParameters(EnsembleParameters):
    """Parameters of a predictor."""

    mode: str = "batch"
    voting: str = "weight"
    mechanism: str = "optimized"

    def check(self) -> None:
        """Refuse words that are not known or do not go together."""
        self.check_words(
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
class Answering:
    """Public trees, and how batches of queries are planned and answered from private rows."""

    parameters: AnsweringParameters
    encoding: Encoding
    ensembles: tuple[Ensemble, ...]
    forest: Forest

    @classmethod
    def grow(cls, parameters: AnsweringParameters, schema: Schema, seed: int) -> Self:
        """Grow the trees, which needs no data."""
        encoding = Encoding(schema, "bins")
        return cls(parameters, encoding, *grow_ensembles(encoding, parameters, seed))

    @property
    def _batch(self) -> bool:
        return self.parameters.mode == "batch"

    @property
    def _n_classes(self) -> int:
        return len(self.encoding.schema.classes)

    @property
    def _hard(self) -> bool:
        return self.parameters.voting == "hard"

    @property
    def _n_columns(self) -> int:
        """Two classes of hard votes need one column: the other is its complement."""
        return 1 if self._hard and self._n_classes == 2 else self._n_classes

    def count(self, source: Source, n_jobs: int | None) -> Any:
        """Keep the encoded rows, or the exact counts of leaves under a fresh secret key: private, in memory only."""
        if self._batch:
            batches = list(track(source.batches(), "counting"))
            return (
                np.concatenate([batch.codes for batch in batches]),
                np.concatenate([batch.target for batch in batches]),
            )
        assignment = Assignment(secret_key(), self.forest.n_trees)
        return source.add_up(LeafCount(self.forest, self._n_classes, assignment=assignment), n_jobs=n_jobs)

    # -- planning a batch ----------------------------------------------------------------------------------------

    def plan(self, asked: Asked, codes: Codes) -> PlannedBatch:
        """Choose what to measure for these queries, from public facts alone."""
        self.parameters.check()
        return least_noise(asked, partial(self._plan, codes=codes))

    def _plan(self, asked: Asked, codes: Codes) -> PlannedBatch:
        measurements: list[Measurement] = []
        steps: tuple[Step, ...] = (self._direct_step(codes, asked),)
        error = steps[0].variance
        if self.parameters.mechanism == "optimized":
            found = self._measurements(codes, asked)
            by_strategy = sum(measurement.expected_error for measurement in found) / len(codes)
            # A few queries are best answered by themselves. Without noise all is equal, and tables are kept.
            if by_strategy < error or steps[0].mechanism is None:
                measurements, error = found, by_strategy
                steps = tuple(step for measurement in measurements for step in measurement.steps)
        records = ALL_TO_EVERY_TREE if self._batch else EACH_TO_ONE_TREE
        plan = asked.plan(
            steps,
            f"votes for {len(codes)} public queries, with noise",
            self.forest.layout(records, queries=len(codes)),
            error,
            notes={"ensembles": len(self.ensembles)},
            choices={"structure": self.forest.fingerprint()},
        )
        return PlannedBatch(codes, plan, measurements)

    def _measurements(self, codes: Codes, asked: Asked) -> list[Measurement]:
        loss, neighbours, n_columns = asked.loss, asked.neighbours, self._n_columns
        if not self._batch:
            # A row is in one tree of one ensemble, so all ensembles together are one table of leaves.
            workload = LeafVoteWorkload(self.forest.n_leaves, route(self.forest, codes))
            return [plan_measurement("votes", workload, loss, neighbours, n_columns, votes=self._hard)]
        share = loss.part(Fraction(1, len(self.ensembles)))
        return [
            plan_measurement(
                f"votes of ensemble {i}",
                VoteWorkload(ensemble.paths, route(ensemble.forest, codes[:, ensemble.features])),
                share,
                neighbours,
                n_columns,
            )
            for i, ensemble in enumerate(self.ensembles, start=1)
        ]

    def _direct_step(self, codes: Codes, asked: Asked) -> Step:
        """Plan the release of every vote of every query by itself, which one row moves in all the trees it is in.

        The paper's baseline takes each row to be in a leaf with all queries. How many queries are in a leaf is public,
        and where noise is optimised, the most of them in each tree are what a row can move.
        """
        l1, squared_l2 = moves(self._n_columns, self._hard, asked.neighbours)
        trees = self.forest.n_trees if self._batch else 1  # that a row can be in, adding to the same query
        queries = [len(codes)] * self.forest.n_trees
        if self.parameters.mechanism == "optimized":
            queries = [int(np.bincount(leaves).max()) for leaves in route(self.forest, codes).T]
        moved = sum(queries) if self._batch else max(queries)
        return counting_step(
            "votes, query by query", (len(codes), self._n_columns), asked.loss, asked.neighbours,
            l1=moved * l1, squared_l2=moved * trees * squared_l2,
        )  # fmt: skip

    # -- releasing a batch ---------------------------------------------------------------------------------------

    def release(self, asked: PlannedBatch, exact: Any, door: Door, n_jobs: int | None) -> Floats:
        """Release the answers through the door; return the votes by class."""
        if asked.measurements:
            noisy = [
                [door.noisy(step, table) for step, table in zip(m.steps, self._tables(i, m, exact), strict=True)]
                for i, m in enumerate(asked.measurements)
            ]
            answers = [m.reconstruct(tables) for m, tables in zip(asked.measurements, noisy, strict=True)]
            votes: Floats = np.sum(answers, axis=0)
        else:
            votes = door.noisy(asked.plan.steps[0], self._votes(asked.codes, exact, n_jobs)).astype(np.float64)
        return votes if votes.shape[1] > 1 else np.column_stack([votes, self.forest.n_trees - votes])

    def _tables(self, place: int, measurement: Measurement, exact: Any) -> list[NDArray[np.int64]]:
        if self._batch:
            cells, classes = exact
            features = self.ensembles[place].features
            return measurement.strategy.measure_exact(cells[:, features], classes, self._n_classes)
        return measurement.strategy.measure_cells(self._leaf_table(exact))

    def _votes(self, codes: Codes, exact: Any, n_jobs: int | None) -> NDArray[np.int64]:
        if self._batch:
            codes_of_rows, classes = exact
            rows = Batch(codes_of_rows, classes, partition=0, first_row=0)
            table = leaf_totals(self.forest, [rows], n_classes=self._n_classes, n_jobs=n_jobs)
        else:
            table = self._leaf_table(exact)
        return np.asarray(table[route(self.forest, codes)].sum(axis=1))

    def _leaf_table(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """What each leaf contributes to votes: its counts, or its label (for two classes, the first class only)."""
        if not self._hard:
            return counts
        labels = np.zeros_like(counts)
        labels[np.arange(len(counts)), counts.argmax(axis=1)] = 1
        return labels[:, : self._n_columns]
