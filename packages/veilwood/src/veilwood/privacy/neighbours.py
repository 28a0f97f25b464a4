# SPDX-License-Identifier: Apache-2.0
"""Privacy units and adjacency: which tables are neighbours, and how the sensitivity to a unit follows from one row.

How much a release may reveal about a unit is in ``loss``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypeAlias

from veilwood.errors import ParameterError

Adjacency: TypeAlias = Literal["add-remove", "replace-one"]


ADJACENCIES: tuple[Adjacency, ...] = ("add-remove", "replace-one")


MAX_ROWS_PER_UNIT = 10**9


@dataclass(frozen=True)
class Rows:
    """Privacy unit: any ``k`` rows together. The default is one row, for tables with one row per person."""

    k: int = 1

    @property
    def at_most(self) -> int:
        """The largest number of rows, including repetitions, that one unit can contribute."""
        return self.k

    def __str__(self) -> str:
        return "one row" if self.k == 1 else f"any {self.k} rows"


@dataclass(frozen=True)
class RowsOf:
    """Privacy unit: all rows with the same value of column ``id``, which together weigh as much as ``at_most`` rows.

    All m rows of an id count, each ``at_most / m`` times, randomly rounded up or down. Every person therefore has the
    same weight, and the noise relative to a person does not depend on ``at_most``. Choose the usual number of rows per
    person.
    """

    id: str
    at_most: int

    def __str__(self) -> str:
        return f"all rows of one {self.id} (counted as at most {self.at_most})"


Unit: TypeAlias = Rows | RowsOf


def resolve_unit(value: object) -> Unit:
    """Return the privacy unit that a parameter denotes: "row", a number of rows, or an id column with a bound.

    >>> resolve_unit("row"), resolve_unit(3), resolve_unit({"id": "patient", "at_most": 5})
    (Rows(k=1), Rows(k=3), RowsOf(id='patient', at_most=5))
    """
    if isinstance(value, str) and value == "row":
        return Rows(1)
    if isinstance(value, Mapping) and set(value) == {"id", "at_most"}:
        value = RowsOf(value["id"], value["at_most"])
    elif isinstance(value, Integral) and not isinstance(value, bool):
        value = Rows(int(value))
    if isinstance(value, RowsOf) and not isinstance(value.id, str):
        raise ParameterError("privacy_unit", value, "must have a column name as its id", "pass the id as a string")
    if isinstance(value, Rows | RowsOf):
        if isinstance(value.at_most, Integral) and 1 <= value.at_most <= MAX_ROWS_PER_UNIT:
            n = int(value.at_most)  # a NumPy integer could overflow when sensitivities are multiplied
            return Rows(n) if isinstance(value, Rows) else RowsOf(value.id, n)
        raise ParameterError("privacy_unit", value, f"must allow 1 to {MAX_ROWS_PER_UNIT:,} rows", "change at_most")
    raise ParameterError(
        "privacy_unit",
        value,
        "must be a unit",
        "pass 'row', a number of rows such as 3, or {'id': 'patient_id', 'at_most': 5}",
    )


def may_protect_less(unit: Unit, declared: Unit) -> bool:
    """Return True unless protecting ``unit`` also protects the unit that a schema declares.

    >>> may_protect_less(Rows(1), RowsOf("patient", 3)), may_protect_less(RowsOf("patient", 5), RowsOf("patient", 3))
    (True, False)
    >>> may_protect_less(Rows(2), Rows(3)), may_protect_less(Rows(4), Rows(3))
    (True, False)
    """
    match unit, declared:
        case RowsOf(id=column), RowsOf(id=other):  # all rows of an id are protected, whatever at_most is
            return column != other
        case Rows(k=k), Rows(k=other):
            return k < other
    return True


def id_names(unit: Unit | None) -> tuple[str, ...]:
    """Return the name of the unit's id column, which is read in addition to the schema's columns; empty without ids."""
    return (unit.id,) if isinstance(unit, RowsOf) else ()


@dataclass(frozen=True)
class Neighbours:
    """Neighbouring relation: two tables that differ by adding or removing one unit, or by replacing one.

    Notes
    -----
    Guarantee

    Converts the effect of one row into the effect of one unit (proofs/neighbours.md):
    k rows change a sum k times as much, and a replacement is a removal and an addition. The squared L2 distance
    of a replacement is at most twice that of one row, because the vectors of rows have no negative entries.
    """

    adjacency: Adjacency = "add-remove"
    unit: Unit = Rows(1)

    @classmethod
    def from_parameters(cls, adjacency: object, unit: object) -> Neighbours:
        """Return the neighbouring relation for the parameters ``adjacency`` and ``privacy_unit``."""
        return cls(adjacency, resolve_unit(unit))  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        if not isinstance(self.adjacency, str) or self.adjacency not in ADJACENCIES:
            raise ParameterError("adjacency", self.adjacency, "must be 'add-remove' or 'replace-one'")

    @property
    def _n_sides(self) -> int:
        return 1 if self.adjacency == "add-remove" else 2

    @property
    def in_one_part(self) -> bool:
        """Whether a changed unit affects only one of two groups, if a secret key divides the units into two groups.

        True if the unit is one row or all rows of an id, and is added or removed. The two units of a replacement, or
        several rows, may be in both groups.
        """
        return self.adjacency == "add-remove" and (isinstance(self.unit, RowsOf) or self.unit.k == 1)

    def l1_sensitivity(self, row_norm: int) -> int:
        """Return the L1 sensitivity if one row adds a vector of L1 norm at most ``row_norm``."""
        return row_norm * self.unit.at_most * self._n_sides

    def squared_l2_sensitivity(self, row_norm: int) -> int:
        """Return the squared L2 sensitivity if one row adds a non-negative vector of squared norm ``row_norm``."""
        return row_norm * self.unit.at_most**2 * self._n_sides

    def score_range(self, row_range: int) -> int:
        """Return the range of score changes by one unit, if one added row changes scores within ``row_range``."""
        return row_range * self.unit.at_most * self._n_sides

    def __str__(self) -> str:
        verb = "added or removed" if self.adjacency == "add-remove" else "replaced"
        return f"{self.unit}, {verb}"
