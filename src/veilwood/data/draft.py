# SPDX-License-Identifier: Apache-2.0
"""A first schema read off a table, for a person to review: marked as such until every bound is public knowledge.

What a column looks like is guessed in ``guess``, what is usually known of it stands in ``catalogue``; reviewing is in
``review``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Final

from veilwood.data.canonical import PARTS
from veilwood.data.columns import closest
from veilwood.data.dialect import DIALECT, Dialect, detect
from veilwood.data.files import find_files, find_places
from veilwood.data.frames import Table
from veilwood.data.guess import FEWEST_UNITS, Look, column_of, look_at, unit_among
from veilwood.data.relations import Relation
from veilwood.data.schema import UNREVIEWED
from veilwood.errors import OutOfSchemaError, SchemaError

__all__ = ["DRAFT", "draft"]

DRAFT: Final = (
    "DRAFT: bounds and categories below were read off the data. Walk through with 'veilwood schema review', or replace "
    "them by what is publicly known and delete each column's 'bounds' mark, then this line and 'inferred'. Until then "
    "every result is NOT PRIVATE."
)
ROWS_OF_A_UNIT: Final = 3  # proposed, whatever the data: how many rows people have is private


def draft(
    X: Any,
    target: str | None = None,
    *,
    dates: Collection[str] = (),
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
) -> dict[str, Any]:
    """Draft the JSON form of a schema from a table, for a person to review before it is used.

    Left out, with a reason, is what looks like an id, a date, free text or has nearly as many values as rows. Of an id
    the draft proposes a ``privacy_unit``. No category held by fewer than 20 people (rows, where there is no id) is in
    it, and bounds are rounded outwards. All the same it is as private as the data until someone replaces what it says
    by what is publicly known and deletes the marks. A model made with an unreviewed draft is NOT PRIVATE and says so.

    Parameters
    ----------
    X : dataframe or path
        The table, target included.
    target : str, optional
        Name of the target column; the last column by default.
    dates : collection of {"year", "month", "weekday", "hour"}
        Which parts of dates to use; without any, dates are left out.
    sep, decimal, encoding : str, optional
        How a CSV file is written; what is not given is guessed from the file and written into the draft.

    Examples
    --------
    >>> import pandas as pd
    >>> found = draft(pd.DataFrame({"age": [31, 58] * 50, "name": range(100), "ill": ["no", "yes"] * 50}))
    >>> found["columns"][0]
    {'name': 'age', 'kind': 'numeric', 'lower': 0, 'upper': 120, 'bounds': 'from data: review (usual: age in years)'}
    >>> found["left_out"]
    {'name': 'nearly every row has a value of its own'}
    """
    unknown = [part for part in dates if part not in PARTS]
    if unknown:
        raise SchemaError(f"dates have no part {unknown[0]!r}. Hint: {', '.join(PARTS)}.")
    name, dialect, table = _opened(X, {"sep": sep, "decimal": decimal, "encoding": encoding})
    if table.names is None:
        raise OutOfSchemaError("a draft needs column names. Hint: pass a dataframe or a file.")
    target = table.names[-1] if target is None else target
    if target not in table.names:
        raise OutOfSchemaError(f"the table has no column {target!r}.{closest(target, table.names)}", column=target)
    looks = [look_at(label, table, dialect, is_target=label == target) for label in table.names]
    unit = unit_among(looks)
    columns: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    (goal,) = (column_of(look, unit) for look in looks if look.name == target)
    if isinstance(goal, str):
        raise SchemaError(
            f"target {target!r} cannot be drafted: {goal}. Hint: a target needs numbers, or two classes or more, each "
            f"held by {FEWEST_UNITS} people or more; or write the schema by hand."
        )
    for look in (look for look in looks if look.name != target):
        if look.kind == "date" and dates:
            columns += [_part(look, part) for part in dates]
            continue
        found = column_of(look, unit)
        if isinstance(found, str):
            left_out[look.name] = found
        else:
            columns.append(found)
    if not columns:
        raise SchemaError("no column of the table can be used as it is. Hint: write the schema by hand.")
    task = "regression" if goal["kind"] == "numeric" else "classification"
    head: dict[str, Any] = {"notes": DRAFT, "name": name, "task": task, "target": target, "inferred": True}
    if unit is not None:
        head["privacy_unit"] = {"id": unit.name, "at_most": ROWS_OF_A_UNIT}
        left_out[unit.name] += ", proposed as the privacy unit"
    used = {column["name"] for column in [*columns, goal] if column["kind"] == "numeric"}
    signs = {look.name: look.decimal for look in looks if look.decimal and look.name in used}
    dialect = replace(dialect, decimals=signs)
    if dialect != DIALECT:
        head["dialect"] = dialect.to_dict()
    if left_out:
        head |= {"ignore": list(left_out), "left_out": left_out}
    return head | {"columns": [*columns, goal]}


def _opened(X: Any, written: dict[str, str | None]) -> tuple[str, Dialect, Table]:
    """Read a table whole, with what it is called and how its numbers are written."""
    if not isinstance(X, str | PathLike):
        return "draft", DIALECT, Table.of(X)
    places = find_places(X)
    if isinstance(places, Relation):
        return Path(X).name, DIALECT, Table.of(places.to_table(list(places.names)))
    place = places[0]
    # Guessed from the rows, so for a draft only.
    dialect = detect(place.open, **written) if place.format == "csv" else Dialect(decimal=written["decimal"] or ".")
    (file,) = find_files(place, None, dialect=dialect)
    return place.name.split(".")[0], dialect, Table.of(file.load(list(file.names)))


def _part(look: Look, part: str) -> dict[str, Any]:
    """Use a part of a date; the values of all but the year are public."""
    known = {"month": (1, 12), "weekday": (1, 7), "hour": (0, 23), "year": (1900, 2100)}
    kind: dict[str, Any] = {"kind": "numeric", "lower": known[part][0], "upper": known[part][1]}
    if part == "weekday":
        kind = {"kind": "categorical", "values": list(range(1, 8))}
    column = {"name": f"{look.name}_{part}", "of": look.name, "part": part} | kind
    return column | ({"nullable": True} if look.nullable else {}) | {"bounds": f"{UNREVIEWED} (usual: {part})"}
