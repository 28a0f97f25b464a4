# SPDX-License-Identifier: Apache-2.0
"""What is counted to judge a model: one vector of counts, to which every row adds a one in one or a few cells.

What the counts say once they have passed the door is in ``quality``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Batch, Count
from veilwood.data.counts import Coins
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.engines.sql.dialects import EngineWords
from veilwood.engines.sql.scoring import count_scores, largest, place_among
from veilwood.engines.sql.source import SqlSource
from veilwood.errors import UseError
from veilwood.estimators.method import Codes, Floats, Model
from veilwood.privacy.entropy import secret_key
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.steps import Step, counting_step
from veilwood.trees.counting import Assignment

SCORE_BINS = 20
LOG_ODDS = 0.6  # width of a bin of scores
TARGET_BINS = 32
SIZES = 31  # of residuals, on either side of 0
_SIZE_RATIO = 2.0 ** (1 / 3)
_OFF = 1e-7  # edges stand beside round numbers, where vote shares lie
_DOUBT = 1e-9  # rounding moves a score by far less

SCORE_EDGES: Floats = 1 / (1 + np.exp(-LOG_ODDS * (np.arange(1, SCORE_BINS) - SCORE_BINS / 2))) + _OFF
"""Between bins of a probability, even in log-odds; the middle one stands for the decision between two classes."""
SIZE_EDGES: Floats = _SIZE_RATIO ** -np.arange(SIZES - 1, 0, -1.0) + _OFF
"""Between sizes of a residual, in parts of the target's range: from a thousandth, by steps of a quarter, to 1."""


@dataclass(frozen=True, eq=False)
class Scoring:
    """Counts how the predictions of a model meet the truth.

    Two classes: one table, true class by bin of the score. More classes, or votes drawn by chance: three tables, true
    by predicted class, bin of the true class's probability, and, for one class of each row that a secret key draws
    (half of the time the true one), bin of its probability by whether it is the true one. Numbers: two tables, the
    signed size of the residual and the target.

    Notes
    -----
    Guarantee

    The cells of a row follow from the model, the row and, for the drawn class, a secret coin of its own: rows whose
    score lies so close to an edge that rounding could decide are computed alone. So one row adds a one to ``per_row``
    cells and changes no other (proofs/evaluation.md, attacked by packages/veilwood/tests/evaluation/test_scoring.py).
    """

    model: Model

    @property
    def n_classes(self) -> int:
        """Classes; 0 for numbers."""
        return len(self.model.encoding.schema.classes)

    @property
    def one_table(self) -> bool:
        """Whether the score of the second of two classes tells the prediction too."""
        return self.n_classes == 2 and getattr(self.model, "voting", "") != "probabilistic"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tables, by name."""
        k = self.n_classes
        if self.one_table:
            return {"scores": (2, SCORE_BINS)}
        if k:
            return {"confusion": (k, k), "own": (SCORE_BINS,), "drawn": (k, 2, SCORE_BINS)}
        return {"residuals": (2, SIZES), "targets": (TARGET_BINS,)}

    @property
    def per_row(self) -> int:
        """In how many cells a row counts."""
        return len(self.shapes)

    @property
    def n_cells(self) -> int:
        """Cells of all tables together."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def step(self, loss: Loss, neighbours: Neighbours) -> Step:
        """Plan the release: a row adds ``per_row`` ones."""
        return counting_step(
            "predictions by truth", (self.n_cells,), loss, neighbours, l1=self.per_row, squared_l2=self.per_row
        )

    def count(self) -> Count:
        """Say what is added up, under a fresh secret key where a class is drawn for each row."""
        drawn = Assignment(secret_key(), 2 * (self.n_classes - 1)) if "drawn" in self.shapes else None
        return ScoreCount(self, drawn)

    def tables(self, released: NDArray[np.int64]) -> dict[str, Floats]:
        """Cut the released counts into tables."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])
        parts = np.split(released.astype(np.float64), ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def cells(self, codes: Codes, target: NDArray[np.int32], drawn: NDArray[np.int32] | None) -> NDArray[np.int64]:
        """Return the cells of each row, shape (rows, per_row); ``drawn`` is the class drawn for each, if any is."""
        found, doubtful = self._cells(codes, target, drawn)
        if doubtful.any():
            known = (codes, target) if drawn is None else (codes, target, drawn)
            about = np.column_stack(known)[doubtful].astype(np.int64)
            _, first, which = np.unique(about, axis=0, return_index=True, return_inverse=True)
            rows = np.flatnonzero(doubtful)[first]
            alone = [self._cells(codes[[i]], target[[i]], None if drawn is None else drawn[[i]])[0] for i in rows]
            found[doubtful] = np.concatenate(alone)[which.ravel()]
        return found

    def _cells(
        self, codes: Codes, target: NDArray[np.int32], drawn: NDArray[np.int32] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the cells of each row, and where rounding could decide between two of them."""
        truth, rows = target.astype(np.int64), np.arange(len(codes))
        if not self.n_classes:
            said = self.model.outputs(codes)
            lower, upper = self.model.encoding.schema.target.bounds
            wrong = target / TARGET_LEVELS - (said - lower) / (upper - lower)
            size = np.searchsorted(SIZE_EDGES, np.abs(wrong))
            place = truth * TARGET_BINS // (TARGET_LEVELS + 1)
            found = np.column_stack([(wrong > 0) * SIZES + size, 2 * SIZES + place])
            return found, _near(np.abs(wrong), SIZE_EDGES) | (np.abs(wrong) < _DOUBT)
        said, chosen = self.model.answers(codes)
        ordered = np.sort(said, axis=1)
        tied = ordered[:, -1] - ordered[:, -2] < _DOUBT
        if self.one_table:
            bins, half = np.searchsorted(SCORE_EDGES, said[:, 1]), SCORE_BINS // 2
            # The middle edge is the decision itself.
            bins = np.where(chosen == 1, np.maximum(bins, half), np.minimum(bins, half - 1))
            return (truth * SCORE_BINS + bins)[:, None], _near(said[:, 1], SCORE_EDGES) | tied
        assert drawn is not None
        k, own, theirs = self.n_classes, said[rows, target], said[rows, drawn]
        confusion = truth * k + chosen
        one_of = (drawn.astype(np.int64) * 2 + (drawn == target)) * SCORE_BINS + np.searchsorted(SCORE_EDGES, theirs)
        found = np.column_stack([confusion, k * k + np.searchsorted(SCORE_EDGES, own), k * k + SCORE_BINS + one_of])
        by_chance = getattr(self.model, "voting", "") == "probabilistic"  # a coin may fall anywhere
        return found, _near(own, SCORE_EDGES) | _near(theirs, SCORE_EDGES) | tied | by_chance


def _near(values: Floats, edges: Floats) -> NDArray[np.bool_]:
    """Whether a value lies so close to an edge that rounding could put it on either side."""
    return np.asarray(np.abs(values[:, None] - edges).min(axis=1, initial=1.0) < _DOUBT)


def _class_by(coins: NDArray[np.int32], target: NDArray[np.int32], n_classes: int) -> NDArray[np.int32]:
    """Return the true class for the first half of the coins, and one of the others for each of the rest.

    >>> _class_by(np.arange(4, dtype=np.int32), np.full(4, 1, np.int32), 3).tolist()
    [1, 1, 0, 2]
    """
    others = coins - (n_classes - 1)
    return np.where(others < 0, target, others + (others >= target)).astype(np.int32)


@dataclass(frozen=True, eq=False, repr=False)
class ScoreCount:
    """Counts rows in the cells of a scoring (``batches.Count``); in a database too (``data.sql``)."""

    scoring: Scoring
    drawn: Assignment | None

    def __call__(self, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> NDArray[np.int64]:
        """Count the rows of some batches in their cells."""
        sums = np.zeros(self.scoring.n_cells, np.int64)
        for batch in batches:
            of_rows = None
            if self.drawn is not None:
                coins = self.drawn.trees(batch.partition, batch.first_row, len(batch.target))
                of_rows = _class_by(coins, batch.target, self.scoring.n_classes)
            cells = self.scoring.cells(batch.codes, batch.target, of_rows)
            sums += np.bincount(cells.ravel(), minlength=len(sums))
        return sums

    def count_in_sql(self, source: SqlSource) -> NDArray[np.int64]:
        """Count the rows of a table where it is."""
        if getattr(self.scoring.model, "voting", "") == "probabilistic":
            raise UseError("votes drawn by chance cannot be evaluated in a database. Hint: pass files or a table.")
        coins = None if self.drawn is None else Coins(self.drawn.key, self.drawn.n_trees)
        return count_scores(self.scoring.model, self._written, self.scoring.n_cells, source, coins)

    def _written(self, words: EngineWords, said: Sequence[str], chosen: Sequence[str]) -> list[str]:
        """Write the cells of a row, one for each table."""
        k = self.scoring.n_classes
        if not k:
            lower, upper = self.scoring.model.encoding.schema.target.bounds
            true = f"CAST(t AS {words.types.double}) / {words.number(TARGET_LEVELS)}"
            wrong = f"({true} - ({said[0]} - {words.number(lower)}) / {words.number(upper - lower)})"
            size = place_among(words, f"ABS({wrong})", SIZE_EDGES)
            sign = f"CASE WHEN {wrong} > {words.number(0.0)} THEN {SIZES} ELSE 0 END"
            place = words.divided(f"(t * {TARGET_BINS})", str(TARGET_LEVELS + 1))
            return [f"{sign} + {size}", f"{2 * SIZES} + {place}"]
        if self.scoring.one_table:
            bins, half = place_among(words, said[1], SCORE_EDGES), SCORE_BINS // 2
            above, below = words.greatest(bins, str(half)), words.least(bins, str(half - 1))
            return [f"t * {SCORE_BINS} + CASE WHEN {chosen[1]} > {chosen[0]} THEN {above} ELSE {below} END"]
        others = f"(coin - {k - 1})"
        drawn = f"(CASE WHEN {others} < 0 THEN t WHEN {others} >= t THEN {others} + 1 ELSE {others} END)"
        own, theirs = (
            f"(CASE {' '.join(f'WHEN {which} = {i} THEN {one}' for i, one in enumerate(said))} END)"
            for which in ("t", drawn)
        )
        is_true = f"CASE WHEN {drawn} = t THEN 1 ELSE 0 END"
        of_drawn = f"({drawn} * 2 + {is_true}) * {SCORE_BINS} + {place_among(words, theirs, SCORE_EDGES)}"
        return [
            f"t * {k} + {largest(chosen)}",
            f"{k * k} + {place_among(words, own, SCORE_EDGES)}",
            f"{k * k + SCORE_BINS} + {of_drawn}",
        ]
