# SPDX-License-Identifier: Apache-2.0
"""At most k rows of an id: whose row it is, and which rows of a person are kept. The one rule for every source.

When two ids are the same is decided in ``canonical``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from veilwood.data.canonical import ColumnCells, Nothing, category_codes, id_of
from veilwood.data.problems import Invalid, Problem
from veilwood.errors import OutOfSchemaError
from veilwood.privacy import entropy
from veilwood.privacy.neighbours import RowsOf

__all__ = ["NOBODY", "Keeps", "choose_rows", "first_rows", "id_codes", "no_id", "nobody"]

Keeps = Callable[[str], bool]
"""Whether an id, by its canonical text, is in a part of the units."""
NOBODY = -1  # whose row cannot be told: never kept


def first_rows(person: npt.NDArray[np.int64], order: npt.NDArray[np.uint64], at_most: int) -> npt.NDArray[np.intp]:
    """Return the first ``at_most`` rows of each person in the given order, sorted by person and order.

    Which rows of a person are kept depends on the order of that person's rows alone: taking someone away leaves the
    others' rows as they were, so that all rows of a person change at most ``at_most`` kept rows.

    Examples
    --------
    >>> first_rows(np.array([5, 8, 5, 5]), np.array([3, 1, 1, 2], np.uint64), 2)
    array([2, 3, 1])
    """
    rows = np.lexsort((order, person))
    grouped = person[rows]
    rank = np.arange(len(grouped)) - np.searchsorted(grouped, grouped, side="left")
    kept: npt.NDArray[np.intp] = rows[(rank < at_most) & (grouped != NOBODY)]
    return kept


def choose_rows(
    partitions: Iterable[Iterable[ColumnCells]], cap: RowsOf, invalid: Invalid, keeps: Keeps | None = None
) -> list[npt.NDArray[np.bool_]]:
    """Choose at random which rows of each id to keep, given the id columns of all partitions.

    ``keeps`` says which ids are there at all, where a part of them was set aside.
    """
    numbering: dict[str, int] = {}  # exact, as two ids that share a number would disturb each other
    columns: list[npt.NDArray[np.int64]] = []
    for partition in partitions:
        pieces = [np.empty(0, np.int64)]
        for values in partition:
            codes, texts = id_codes(values, cap, invalid)
            here = [keeps is None or keeps(text) for text in texts]
            ids = [
                numbering.setdefault(text, len(numbering)) if kept else NOBODY
                for text, kept in zip(texts, here, strict=True)
            ]
            pieces.append(np.array([*ids, NOBODY], np.int64)[codes])
        columns.append(np.concatenate(pieces))
    everyone = np.concatenate(columns)
    kept = np.zeros(len(everyone), dtype=bool)
    kept[first_rows(everyone, entropy.words(len(everyone)), cap.at_most)] = True
    return np.split(kept, np.cumsum([len(column) for column in columns])[:-1])


def id_codes(values: ColumnCells, cap: RowsOf, invalid: Invalid) -> tuple[npt.NDArray[np.intp], list[str]]:
    """Number the ids of a column; rows of which it cannot be told whose they are get ``NOBODY``, or are refused."""
    codes, texts = category_codes(values, id_of)
    worst = codes.min(initial=0)
    if worst < 0 and invalid == "refuse":
        raise nobody(cap, missing=worst == Nothing.MISSING.value)
    return np.maximum(codes, NOBODY), texts


def nobody(cap: RowsOf, *, missing: bool) -> OutOfSchemaError:
    """Say that it cannot be told whose row one is."""
    problem = "a missing value" if missing else "an id that is neither text nor a whole number"
    rounded = "" if missing else " (floats beyond 2^53 are rounded)"
    kind = Problem.MISSING if missing else Problem.UNUSABLE
    return OutOfSchemaError(
        f"column {cap.id!r} has {problem}{rounded}, so whose row it is cannot be told. "
        "Hint: drop such rows, or give each an id of its own.",
        column=cap.id,
        problems=((cap.id, kind.in_short),),
    )


def no_id(cap: RowsOf) -> OutOfSchemaError:
    """Say that the column of ids is not there."""
    return OutOfSchemaError(
        f"the table has no column {cap.id!r}, which the privacy unit names. Hint: pass a table that has it, or the "
        "file itself: fit(path).",
        column=cap.id,
    )
