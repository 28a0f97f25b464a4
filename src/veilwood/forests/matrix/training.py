# SPDX-License-Identifier: Apache-2.0
"""Matrix random forests, batch training (Tajima, Wu, Houmansadr, AAAI 2025): noise shared by all trees.

The forest's leaves are linear queries over one table. What is measured is not the leaves but a strategy that
answers them all with the least noise (``strategies``); the leaves are reconstructed from the noisy measurements.
Batch prediction and subsample-and-aggregate are in ``answering``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Batch, Count
from veilwood.data.encoding import Encoding
from veilwood.errors import PlanError, VeilwoodError
from veilwood.forests import leaves as cleaning
from veilwood.forests.matrix.ensembles import BRANCHINGS, Ensemble, EnsembleParameters, grow_ensembles
from veilwood.forests.matrix.measurement import MECHANISMS, Measurement, plan_measurement
from veilwood.forests.matrix.strategies import strategy_to_choice
from veilwood.forests.method import Asked, Codes, Floats, ForestDesign, OnePassMethod, layout_of
from veilwood.forests.noisy_leaves import LeafMethod, LeafModel, LeafParameters
from veilwood.privacy.door import Door
from veilwood.privacy.plan import Plan
from veilwood.trees.forest import Forest

VOTINGS = ("hard", "weight")


@dataclass(eq=False, repr=False, kw_only=True)
class MatrixForestParameters(EnsembleParameters, LeafParameters):
    """Parameters of a matrix forest, which is for classes."""

    mechanism: str = "optimized"
    trees: str = "shared"
    voting: str = "hard"


@dataclass(frozen=True)
class MatrixDesign(ForestDesign):
    """The public design of a matrix forest; no measurements where leaves are released directly."""

    ensembles: tuple[Ensemble, ...]
    measurements: tuple[Measurement, ...]


def _measured_tables(design: MatrixDesign, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> NDArray[np.int64]:
    """Add up the exact tables of all measurements, one after the other in one array; always on one thread."""
    n_classes = len(design.encoding.schema.classes)
    totals = [[np.zeros(step.shape, np.int64) for step in m.steps] for m in design.measurements]
    for batch in batches:
        for ensemble, measurement, sums in zip(design.ensembles, design.measurements, totals, strict=True):
            columns = batch.codes[:, ensemble.features]
            parts = measurement.strategy.measure_exact(columns, batch.target, n_classes)
            for total, part in zip(sums, parts, strict=True):
                total += part
    return np.concatenate([total.ravel() for sums in totals for total in sums])


class MatrixModel(LeafModel):
    """Leaves vote, or add up their counts."""

    def outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return the share of each class among the votes."""
        return cleaning.plain_shares(np.maximum(self.sums(codes, n_jobs), 0.0))

    def choices(self, codes: Codes, n_jobs: int | None = None) -> NDArray[np.int64]:
        """Return the class with the most votes."""
        return np.asarray(self.sums(codes, n_jobs).argmax(axis=1))


class MatrixForest(LeafMethod[MatrixForestParameters], OnePassMethod[MatrixForestParameters]):
    """Random trees whose leaves are estimated together."""

    numeric: Literal["bins"] = "bins"
    leaf_dtype: ClassVar[type] = np.float64  # reconstructed, not released as they are
    votings: ClassVar[tuple[str, ...]] = VOTINGS

    def check(self) -> None:
        """Refuse words that are not known or do not go together."""
        super().check()
        self.parameters.one_of("mechanism", MECHANISMS)
        self.parameters.one_of("branching", BRANCHINGS)
        if self.parameters.trees == "disjoint" and self.parameters.mechanism == "optimized":
            raise VeilwoodError(
                "trees='disjoint' has nothing to optimise: each row is in one tree. Hint: mechanism='laplace'."
            )

    def design(self, asked: Asked) -> MatrixDesign:
        """Grow the trees and choose what to measure, both without data."""
        schema, loss, neighbours = asked.schema, asked.loss, asked.neighbours
        encoding = Encoding(schema, self.numeric)
        ensembles, forest = grow_ensembles(encoding, self.parameters, asked.seed)
        measurements: tuple[Measurement, ...] = ()
        if self.parameters.mechanism == "optimized":
            share = loss.part(Fraction(1, len(ensembles)))
            found = asked.choices.get("strategies") or [None] * len(ensembles)
            if not isinstance(found, list) or len(found) != len(ensembles):
                raise PlanError("the plan does not have a strategy for each ensemble.")
            measurements = tuple(
                plan_measurement(
                    f"ensemble {i}",
                    ensemble.paths,
                    share,
                    neighbours,
                    len(schema.classes),
                    features=[encoding.columns[j].name for j in ensemble.features],
                    choice=choice,
                )
                for i, (ensemble, choice) in enumerate(zip(ensembles, found, strict=True), start=1)
            )
            steps = tuple(step for measurement in measurements for step in measurement.steps)
            error = sum(measurement.expected_error for measurement in measurements) / forest.n_leaves
            strategy = ", ".join(dict.fromkeys(m.strategy.name for m in measurements))
            released = f"noisy tables ({strategy}) chosen to answer the {forest.n_leaves:,} leaves"
        else:
            steps = (self.leaf_step(schema, loss, neighbours, forest.n_leaves),)
            error, released = steps[0].variance, f"{steps[0].name}, with noise"
        plan = asked.plan(
            steps,
            released,
            layout_of(forest, self.records),
            error,
            choices={
                "structure": forest.fingerprint(),
                "strategies": [strategy_to_choice(measurement.strategy) for measurement in measurements],
            },
            notes={"ensembles": len(ensembles)},
        )
        return MatrixDesign(encoding, plan, forest, ensembles, measurements)

    def count(self, design: MatrixDesign) -> Count:
        """Count the cells of the tables that are measured, or the leaves."""
        if design.measurements:
            return partial(_measured_tables, design)
        return self.leaf_count(design.encoding, design.forest, self.assignment(design.forest.n_trees))

    def release(self, design: MatrixDesign, exact: NDArray[np.int64], door: Door) -> Floats:
        """Let the tables out, with noise, and reconstruct the leaves from them."""
        if not design.measurements:
            return door.noisy(design.plan.steps[0], exact).astype(np.float64)
        ends = np.cumsum([math.prod(step.shape) for step in design.plan.steps])
        tables = iter(np.split(exact, ends[:-1]))
        answers = []
        for measurement in design.measurements:
            noisy = [door.noisy(step, next(tables).reshape(step.shape)) for step in measurement.steps]
            answers.append(measurement.reconstruct(noisy))
        return np.concatenate(answers)

    def learn(self, design: MatrixDesign, plan: Plan, released: Floats, n_jobs: int | None = None) -> MatrixModel:
        """Clean the leaves."""
        return self.model(design.encoding, design.forest, released, plan)

    def model(self, encoding: Encoding, forest: Forest, counts: NDArray[Any], plan: Plan) -> MatrixModel:
        """Make the model of estimated leaves."""
        cleaned, voting = counts, self.parameters.voting
        if self.parameters.leaves == "empirical-bayes":
            cleaned = cleaning.shrunken_counts(forest, counts, plan.expected_leaf_mse)
        return MatrixModel(encoding, forest, cleaning.votes(cleaned) if voting == "hard" else cleaned, counts, voting)
