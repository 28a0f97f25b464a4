# SPDX-License-Identifier: Apache-2.0
"""Contribution bounds (every id counts as at most k rows, in all sources) and row weights.

``canonical`` decides whether two ids are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from veilwood.arrays import Indices, Ints, NDArray
from veilwood.data.canonical import ColumnValues, NoText, factorize_texts, to_canonical_id
from veilwood.data.frames import Table, target_values
from veilwood.data.numbers import read_numbers
from veilwood.data.problems import Invalid, Problem
from veilwood.errors import OutOfSchemaError, ParameterError, UseError
from veilwood.privacy import entropy
from veilwood.privacy.entropy import random_integers
from veilwood.privacy.neighbours import Rows, RowsOf, Unit
from veilwood.safe_io import is_int_in

IdFilter = Callable[[str], bool]
"""Predicate on the canonical text of an id: True if the id is in the selected fraction of the units."""
NO_ID = -1  # a row without a usable id, which never counts


def copies_per_row(ids: Ints, order: NDArray[np.uint64], at_most: int, *, shared: bool = True) -> Ints:
    """Return how often each row counts, so that all rows of an id together count ``at_most`` times.

    The m rows of an id share this number evenly, and the first rows in the given order take the remainder. If m exceeds
    ``at_most``, only the first ``at_most`` rows count. If not ``shared``, the first ``at_most`` rows count once each.
    Either way, the result depends on the order of that id's rows alone. Rows without an id do not count.

    Examples
    --------
    >>> copies_per_row(np.array([5, 8, 5, 5]), np.array([3, 1, 1, 2], np.uint64), 4)
    array([1, 4, 2, 1])
    >>> copies_per_row(np.array([5, 8, 5, 5]), np.array([3, 1, 1, 2], np.uint64), 2)
    array([0, 2, 1, 1])
    """
    rows = np.lexsort((order, ids))
    grouped = ids[rows]
    first = np.searchsorted(grouped, grouped, side="left")
    rank = np.arange(len(grouped)) - first
    n_rows = np.searchsorted(grouped, grouped, side="right") - first
    copies = np.empty(len(ids), np.int64)
    copies[rows] = np.where(grouped == NO_ID, 0, (at_most - 1 - rank) // n_rows + 1 if shared else rank < at_most)
    return copies


def order_by_time(times: NDArray[np.integer[Any]], order: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return sort keys by time; rows of the same time are ordered by the upper bits of ``order``.

    >>> order_by_time(np.array([1, 0]), np.array([1 << 20, 1 << 40], np.uint64)).argsort().tolist()
    [1, 0]
    """
    return (times.astype(np.uint64) << np.uint64(48)) | (order >> np.uint64(16))


def bound_contributions(
    partitions: Iterable[Iterable[ColumnValues]],
    cap: RowsOf,
    invalid: Invalid,
    id_filter: IdFilter | None = None,
    times: Sequence[NDArray[np.integer[Any]]] | None = None,
) -> list[Ints]:
    """Return how often each row counts (``copies_per_row``, at random), given the id columns of all partitions.

    ``id_filter`` selects the ids that take part, if a fraction is held out. ``times`` has the time of every row, and
    may be filled while the partitions are read. With it, the earliest rows count once each (at random among rows of
    the same time), because later rows must not change how often earlier rows count.
    """
    numbering: dict[str, int] = {}  # exact, because ids with the same number would share one bound
    columns: list[Ints] = []
    for partition in partitions:
        pieces = [np.empty(0, np.int64)]
        for values in partition:
            codes, texts = encode_ids(values, cap, invalid)
            here = [id_filter is None or id_filter(text) for text in texts]
            ids = [
                numbering.setdefault(text, len(numbering)) if kept else NO_ID
                for text, kept in zip(texts, here, strict=True)
            ]
            pieces.append(np.array([*ids, NO_ID], np.int64)[codes])
        columns.append(np.concatenate(pieces))
    everyone = np.concatenate(columns)
    order = entropy.random_integers(len(everyone))
    order = order if times is None else order_by_time(np.concatenate(times), order)
    copies = copies_per_row(everyone, order, cap.at_most, shared=times is None)
    return np.split(copies, np.cumsum([len(column) for column in columns])[:-1])


def encode_ids(values: ColumnValues, cap: RowsOf, invalid: Invalid) -> tuple[Indices, list[str]]:
    """Number the ids of a column. Rows without a usable id get ``NO_ID``, or are rejected."""
    codes, texts = factorize_texts(values, to_canonical_id)
    worst = codes.min(initial=0)
    if worst < 0 and invalid == "refuse":
        raise unknown_id_error(cap, missing=worst == NoText.MISSING.value)
    return np.maximum(codes, NO_ID), texts


def unknown_id_error(cap: RowsOf, *, missing: bool) -> OutOfSchemaError:
    """Return the error for a row whose id is missing or unusable."""
    problem = "a missing value" if missing else "an id that is neither text nor an integer"
    rounded = "" if missing else " (floats from 2^53 on are rounded)"
    kind = Problem.MISSING if missing else Problem.UNUSABLE
    return OutOfSchemaError(
        f"column {cap.id!r} has {problem}{rounded}, so the row cannot be assigned to a unit. "
        "Hint: drop such rows, or give each row its own id.",
        column=cap.id,
        problems=((cap.id, kind.label),),
    )


def missing_id_column_error(cap: RowsOf) -> OutOfSchemaError:
    """Return the error for a table without the column of ids."""
    return OutOfSchemaError(
        f"the table has no column {cap.id!r}, which the privacy unit names. Hint: pass a table that has it, or the "
        "file itself: fit(path).",
        column=cap.id,
    )


def id_column(table: Table, cap: RowsOf) -> ColumnValues:
    """Return the ids of a table. Raise OutOfSchemaError if it has none."""
    ids = table.column_by_name(cap.id)
    if ids is None:
        raise missing_id_column_error(cap)
    return ids


def row_hash(values: NDArray[np.integer[Any]], seed: int) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row (splitmix64, column by column). Equal rows get equal hashes.

    >>> one, other, again = row_hash(np.array([[1, 2], [2, 1], [1, 2]]), 7).tolist()
    >>> one == again != other
    True
    """
    state = np.full(len(values), seed % 2**64, np.uint64)
    for column in values.T:
        state += column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


MAX_WEIGHT = 10_000


class Weights(NamedTuple):
    """Row weights as passed, and the maximum weight."""

    values: Any
    max_weight: int

    @classmethod
    def validated(cls, values: Any, max_weight: object) -> Weights:
        """Return validated weights with their declared maximum."""
        if max_weight is None:
            raise UseError(
                "sample_weight needs a public bound on the weight of one row. "
                "Hint: set the parameter max_weight of the estimator, for "
                "example to 10. Larger weights are clipped, and noise grows with max_weight."
            )
        return cls(values, check_max_weight(max_weight))

    def draw_copies(self, n_rows: int, invalid: Invalid) -> Ints:
        """Return the number of copies of each row: its weight, clipped to the maximum, rounded up or down at random.

        Each weight is read independently of other rows. With "drop", a row without a weight does not count.

        Notes
        -----
        Guarantee

        A row counts at most ``max_weight`` times, whatever its weight and the draws. The number depends on no other row
        (proofs/neighbours.md, attacked by packages/veilwood/tests/data/test_contributions.py).
        """
        try:
            numbers, _ = read_numbers(
                target_values(self.values, every_entry_is_label=invalid == "drop"), parse=invalid == "drop"
            )
        except OutOfSchemaError:
            numbers = np.empty(0)
        if numbers.shape != (n_rows,):
            raise OutOfSchemaError("sample_weight must have one number per row. Hint: pass an array as long as y.")
        fits = numbers >= 0
        if not fits.all() and invalid == "refuse":
            raise OutOfSchemaError(
                "sample_weight has entries that are below 0, missing or not numbers. "
                "Hint: correct them, or set invalid='drop'."
            )
        kept = np.clip(np.where(fits, numbers, 0.0), 0.0, self.max_weight)
        whole = np.floor(kept)
        coins = (random_integers(n_rows) >> np.uint64(11)) / 2.0**53
        copies: Ints = np.minimum(whole + (coins < kept - whole), self.max_weight).astype(np.int64)
        return copies


def check_max_weight(max_weight: object) -> int:
    """Validate the declared maximum of the weights and return it."""
    if not is_int_in(max_weight, 1, MAX_WEIGHT):
        raise ParameterError(
            "max_weight", max_weight, f"must be an integer from 1 to {MAX_WEIGHT:,}", "for example max_weight=10"
        )
    return int(max_weight)  # type: ignore[call-overload, no-any-return]


def scale_unit(unit: Unit, max_weight: int) -> Unit:
    """Return a unit that protects ``max_weight`` times as many rows.

    >>> scale_unit(Rows(1), 3)
    Rows(k=3)
    """
    if isinstance(unit, RowsOf):
        return RowsOf(unit.id, unit.at_most * max_weight)
    return Rows(unit.k * max_weight)
