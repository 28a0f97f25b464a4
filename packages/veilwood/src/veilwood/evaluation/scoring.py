# SPDX-License-Identifier: Apache-2.0
"""Counts that an evaluation releases: one vector in which every row adds 1 to one or a few cells.

Estimates from the released counts are in ``quality``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from veilwood.arrays import Bools, Codes, Floats, Int32s, Ints
from veilwood.data.batches import Batch, Count
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.estimators.method import Model
from veilwood.privacy.entropy import secret_key
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.steps import Step, counting_step
from veilwood.trees.counting import Assignment

SCORE_BINS = 20
LOG_ODDS = 0.6  # width of a bin of scores, in log-odds
TARGET_BINS = 32
N_SIZES = 31  # bins of the size of a residual, on either side of 0
_SIZE_RATIO = 2.0 ** (1 / 3)
_EDGE_OFFSET = 1e-7  # moves edges off round numbers, where vote frequencies lie
_EDGE_TOLERANCE = 1e-9  # far more than rounding moves a score

SCORE_EDGES: Floats = 1 / (1 + np.exp(-LOG_ODDS * (np.arange(1, SCORE_BINS) - SCORE_BINS / 2))) + _EDGE_OFFSET
"""Edges between bins of a probability, evenly spaced in log-odds. The middle edge is the decision threshold."""
SIZE_EDGES: Floats = _SIZE_RATIO ** -np.arange(N_SIZES - 1, 0, -1.0) + _EDGE_OFFSET
"""Edges between sizes of a residual, as fractions of the target range: from a thousandth to 1, in ratios of 1.26."""


@dataclass(frozen=True, eq=False)
class Scoring:
    """Definition of the tables that count a model's predictions by the true target.

    - Two classes: one table, true class by bin of the score.
    - More classes, or votes drawn by chance: three tables. True by predicted class; bin of the probability of the true
      class; and, for one class per row that a secret key draws (the true one half of the time), bin of its probability
      by whether it is the true one.
    - Regression: two tables, the signed size of the residual and the target.

    Notes
    -----
    Guarantee

    The cells of a row follow from the model, the row and, for the drawn class, a secret draw of its own. Rows whose
    score lies so close to an edge that rounding could decide are computed separately. One row therefore adds 1 to
    ``cells_per_row`` cells and changes no other cell (proofs/evaluation.md, attacked by
    packages/veilwood/tests/evaluation/test_scoring.py).
    """

    model: Model

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 for regression."""
        return len(self.model.encoding.schema.classes)

    @property
    def is_single_table(self) -> bool:
        """Whether one table suffices, because the score of the second of two classes determines the prediction."""
        return self.n_classes == 2 and not self.model.votes_by_chance

    @property
    def table_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tables, by name."""
        k = self.n_classes
        if self.is_single_table:
            return {"scores": (2, SCORE_BINS)}
        if k:
            return {"confusion": (k, k), "own": (SCORE_BINS,), "drawn": (k, 2, SCORE_BINS)}
        return {"residuals": (2, N_SIZES), "targets": (TARGET_BINS,)}

    @property
    def cells_per_row(self) -> int:
        """Number of cells in which a row counts."""
        return len(self.table_shapes)

    @property
    def n_cells(self) -> int:
        """Number of cells of all tables together."""
        return sum(int(np.prod(shape)) for shape in self.table_shapes.values())

    def plan_step(self, loss: Loss, neighbours: Neighbours) -> Step:
        """Plan the release: a row adds 1 to ``cells_per_row`` cells."""
        return counting_step(
            "predictions by truth",
            (self.n_cells,),
            loss,
            neighbours,
            l1=self.cells_per_row,
            squared_l2=self.cells_per_row,
        )

    def make_count(self) -> Count:
        """Return the count to run on the rows, with a fresh secret key if a class is drawn for each row."""
        drawn = Assignment(secret_key(), 2 * (self.n_classes - 1)) if "drawn" in self.table_shapes else None
        return ScoreCount(self, drawn)

    def split_tables(self, released: Ints) -> dict[str, Floats]:
        """Split the released counts into tables."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.table_shapes.values()])
        parts = np.split(released.astype(np.float64), ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.table_shapes.items(), parts, strict=True)}

    def cell_indices(self, codes: Codes, target: Int32s, drawn_class: Int32s | None) -> Ints:
        """Return the cells of each row, shape (rows, cells_per_row). ``drawn_class`` is the drawn class of each row."""
        found, doubtful = self._cells_and_ties(codes, target, drawn_class)
        if doubtful.any():
            known = (codes, target) if drawn_class is None else (codes, target, drawn_class)
            about = np.column_stack(known)[doubtful].astype(np.int64)
            _, first, which = np.unique(about, axis=0, return_index=True, return_inverse=True)
            rows = np.flatnonzero(doubtful)[first]
            alone = [
                self._cells_and_ties(codes[[i]], target[[i]], None if drawn_class is None else drawn_class[[i]])[0]
                for i in rows
            ]
            found[doubtful] = np.concatenate(alone)[which.ravel()]
        return found

    def _cells_and_ties(self, codes: Codes, target: Int32s, drawn_class: Int32s | None) -> tuple[Ints, Bools]:
        """Return the cells of each row, and a mask of the rows whose cells could depend on rounding."""
        truth, rows = target.astype(np.int64), np.arange(len(codes))
        if not self.n_classes:
            outputs = self.model.predict_outputs(codes)
            lower, upper = self.model.encoding.schema.target.bounds
            wrong = target / TARGET_LEVELS - (outputs - lower) / (upper - lower)
            size = np.searchsorted(SIZE_EDGES, np.abs(wrong))
            place = truth * TARGET_BINS // (TARGET_LEVELS + 1)
            found = np.column_stack([(wrong > 0) * N_SIZES + size, 2 * N_SIZES + place])
            return found, _is_near_edge(np.abs(wrong), SIZE_EDGES) | (np.abs(wrong) < _EDGE_TOLERANCE)
        outputs, chosen = self.model.predict_both(codes)
        ordered = np.sort(outputs, axis=1)
        tied = ordered[:, -1] - ordered[:, -2] < _EDGE_TOLERANCE
        if self.is_single_table:
            bins, half = np.searchsorted(SCORE_EDGES, outputs[:, 1]), SCORE_BINS // 2
            # The middle edge is the decision itself.
            bins = np.where(chosen == 1, np.maximum(bins, half), np.minimum(bins, half - 1))
            return (truth * SCORE_BINS + bins)[:, None], _is_near_edge(outputs[:, 1], SCORE_EDGES) | tied
        assert drawn_class is not None
        k, own, other = self.n_classes, outputs[rows, target], outputs[rows, drawn_class]
        confusion = truth * k + chosen
        one_of = (drawn_class.astype(np.int64) * 2 + (drawn_class == target)) * SCORE_BINS + np.searchsorted(
            SCORE_EDGES, other
        )
        found = np.column_stack([confusion, k * k + np.searchsorted(SCORE_EDGES, own), k * k + SCORE_BINS + one_of])
        by_chance = self.model.votes_by_chance  # its coin may fall on either side
        return found, _is_near_edge(own, SCORE_EDGES) | _is_near_edge(other, SCORE_EDGES) | tied | by_chance


def _is_near_edge(values: Floats, edges: Floats) -> Bools:
    """Return True if a value lies so close to an edge that rounding could put it on either side."""
    return np.asarray(np.abs(values[:, None] - edges).min(axis=1, initial=1.0) < _EDGE_TOLERANCE)


def _draw_class(uniforms: Int32s, target: Int32s, n_classes: int) -> Int32s:
    """Return the true class for the lower half of the uniforms, and one of the other classes for the upper half.

    >>> _draw_class(np.arange(4, dtype=np.int32), np.full(4, 1, np.int32), 3).tolist()
    [1, 1, 0, 2]
    """
    others = uniforms - (n_classes - 1)
    return np.where(others < 0, target, others + (others >= target)).astype(np.int32)


@dataclass(frozen=True, eq=False, repr=False)
class ScoreCount:
    """Count of the rows in the cells of a scoring; ``veilwood_engines.sql.scoring`` runs it in a database."""

    scoring: Scoring
    assignment: Assignment | None

    def __call__(self, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> Ints:
        """Count the rows of batches by cell."""
        sums = np.zeros(self.scoring.n_cells, np.int64)
        for batch in batches:
            of_rows = None
            if self.assignment is not None:
                row_draws = self.assignment.trees_of_rows(batch.partition, batch.first_row, len(batch.target))
                of_rows = _draw_class(row_draws, batch.target, self.scoring.n_classes)
            cells = self.scoring.cell_indices(batch.codes, batch.target, of_rows)
            sums += np.bincount(cells.ravel(), minlength=len(sums))
        return sums
