# SPDX-License-Identifier: Apache-2.0
"""Weights of rows with a declared maximum: a row of weight 2.5 counts two or three times, by a secret coin.

So a weighted row is nothing but a few equal rows, and what protects that many rows protects it (proofs/neighbours.md).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilwood.bounded import is_whole
from veilwood.data.frames import target_cells
from veilwood.data.numbers import numbers_of
from veilwood.data.problems import Invalid
from veilwood.errors import OutOfSchemaError, ParameterError, UseError
from veilwood.privacy.entropy import words
from veilwood.privacy.neighbours import Rows, RowsOf, Unit

__all__ = ["MOST_WEIGHT", "Weights", "check_weight", "weighed"]

MOST_WEIGHT = 10_000


class Weights(NamedTuple):
    """The weight of each row, as it was given, and the largest one that counts."""

    given: Any
    most: int

    @classmethod
    def asked(cls, given: Any, most: object) -> Weights:
        """Return weights with their declared maximum."""
        if most is None:
            raise UseError(
                "sample_weight needs a public bound on what one row can do. Hint: max_weight=10, the largest weight "
                "that counts, as a parameter of the estimator; noise grows with it."
            )
        return cls(given, check_weight(most))

    def copies(self, n_rows: int, invalid: Invalid) -> NDArray[np.int64]:
        """Say how often each row counts: its weight between 0 and the maximum, rounded up or down at random.

        Each weight is read by itself, as a number of the table is; with "drop" a row without one does not count.

        Notes
        -----
        Guarantee

        A row counts at most ``most`` times, whatever its weight and the coins, and how often depends on no other row
        (proofs/neighbours.md, attacked by tests/data/test_weights.py).
        """
        try:
            numbers, _ = numbers_of(target_cells(self.given, total=invalid == "drop"), parse=invalid == "drop")
        except OutOfSchemaError:
            numbers = np.empty(0)
        if numbers.shape != (n_rows,):
            raise OutOfSchemaError("sample_weight has not one number for each row. Hint: an array as long as y.")
        fits = numbers >= 0
        if not fits.all() and invalid == "refuse":
            raise OutOfSchemaError(
                "sample_weight has entries that are below 0, missing or no number. Hint: mend them, or invalid='drop'."
            )
        kept = np.clip(np.where(fits, numbers, 0.0), 0.0, self.most)
        whole = np.floor(kept)
        coins = (words(n_rows) >> np.uint64(11)) / 2.0**53
        copies: NDArray[np.int64] = np.minimum(whole + (coins < kept - whole), self.most).astype(np.int64)
        return copies


def check_weight(most: object) -> int:
    """Return the declared maximum of weights."""
    if not is_whole(most, 1, MOST_WEIGHT):
        raise ParameterError("max_weight", most, f"must be a whole number from 1 to {MOST_WEIGHT:,}", "max_weight=10")
    return int(most)  # type: ignore[call-overload, no-any-return]


def weighed(unit: Unit, most: int) -> Unit:
    """Return the unit that protects rows of weights up to ``most``: as many more rows.

    >>> weighed(Rows(1), 3)
    Rows(k=3)
    """
    if isinstance(unit, RowsOf):
        return RowsOf(unit.id, unit.at_most * most)
    return Rows(unit.k * most)
