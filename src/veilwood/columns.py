# SPDX-License-Identifier: Apache-2.0
"""One column of a schema: what is public about its values, checked when it is made.

The table of columns, with its target and its JSON form, is in ``schema``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from veilwood.errors import SchemaError
from veilwood.tables import Floats, text_of

__all__ = ["COLUMN_KEYS", "MAX_CATEGORIES", "TRANSFORMS", "Column", "closest"]

Kind = Literal["categorical", "numeric"]

MAX_CATEGORIES: Final = 65535  # category codes are uint16, and one code is kept for missing values


class _Transform(NamedTuple):
    forward: Callable[[Floats], Floats]
    inverse: Callable[[Floats], Floats]
    valid_from: float


TRANSFORMS: Final[dict[str, _Transform]] = {
    "log1p": _Transform(np.log1p, np.expm1, math.nextafter(-1.0, 0.0)),
    "sqrt": _Transform(np.sqrt, np.square, 0.0),
    "asinh": _Transform(np.arcsinh, np.sinh, -math.inf),
}


def closest(word: str, words: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest of ``words``, or nothing."""
    near = difflib.get_close_matches(word, list(words), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


@dataclass(frozen=True)
class Column:
    """One column, as far as it is public.

    Parameters
    ----------
    name : str
        The name in the table.
    kind : {"categorical", "numeric"}
        Whether the values are labels or numbers.
    values : sequence, categorical only
        Every category that can occur, as text; numbers and booleans are turned into text.
    lower, upper : float, numeric only
        Public bounds. Numbers outside are clamped to them.
    nullable : bool, default False
        Missing values are allowed and are treated as a value of their own. Otherwise they are refused.
    bins : int, optional, numeric only
        Into how many bins of equal width (after ``transform``) a method that needs categories cuts the range.
    cutoffs : sequence of float, numeric only
        Where such a method cuts instead; a value equal to a cutoff falls to its right.
    transform : {"log1p", "sqrt", "asinh"}, optional, numeric only
        Scale on which the range is divided evenly.
    other : str, optional, categorical only
        The category that stands for every value not in ``values``; itself one of ``values``.

    Examples
    --------
    >>> Column("age", "numeric", lower=0, upper=120, nullable=True)
    Column('age', numeric, 0 to 120, nullable)
    >>> Column("smoker", "categorical", values=[True, False]).values
    ('True', 'False')
    """

    name: str
    kind: Kind
    values: tuple[str, ...] = ()
    lower: float | None = None
    upper: float | None = None
    nullable: bool = False
    bins: int | None = None
    cutoffs: tuple[float, ...] = ()
    transform: str | None = None
    other: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SchemaError(f"a column name must be a non-empty text, not {self.name!r}.")
        if not isinstance(self.nullable, bool):
            raise self._error(f"'nullable' is {self.nullable!r}", "use true or false")
        if self.kind == "categorical":
            self._check_categorical()
        elif self.kind == "numeric":
            self._check_numeric()
        else:
            raise self._error(f"unknown kind {self.kind!r}", "use 'categorical' or 'numeric'")

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound of a numeric column."""
        if self.lower is None or self.upper is None:
            raise self._error("a categorical column has no bounds", "ask a numeric column")
        return self.lower, self.upper

    def _error(self, problem: str, hint: str) -> SchemaError:
        return SchemaError(f"column {self.name!r}: {problem}. Hint: {hint}.")

    def _check_categorical(self) -> None:
        for key in ("lower", "upper", "bins", "cutoffs", "transform"):
            if getattr(self, key) not in (None, ()):
                raise self._error(f"{key!r} belongs to numeric columns", "remove it, or set kind to 'numeric'")
        if isinstance(self.values, str) or not isinstance(self.values, Iterable):
            raise self._error(f"'values' is {self.values!r}, not a list", 'write ["a", "b", ...]')
        values = list(self.values)
        if any(not isinstance(v, str | int | float | np.generic) for v in values):
            raise self._error(
                "'values' holds something that is neither text nor number", "for missing values set nullable"
            )
        texts = tuple(map(text_of, values))
        if not texts:
            raise self._error("no values", "list every category that can occur, whether or not the data has it")
        if "" in texts:
            raise self._error("an empty text is not a category", "it means a missing value: set nullable to true")
        if len(set(texts)) < len(texts):
            twice = next(t for t in texts if texts.count(t) > 1)
            raise self._error(f"value {twice!r} appears twice", "list each category once")
        if len(texts) > MAX_CATEGORIES:
            raise self._error(f"{len(texts)} values, more than {MAX_CATEGORIES}", "group rare ones under an 'other'")
        object.__setattr__(self, "values", texts)
        if self.other is not None:
            object.__setattr__(self, "other", text_of(self.other))
            if self.other not in texts:
                raise self._error(f"other={self.other!r} is not one of its values", "add it to 'values'")

    def _check_numeric(self) -> None:
        if self.values != () or self.other is not None:
            key = "other" if self.other is not None else "values"
            raise self._error(f"{key!r} belongs to categorical columns", "remove it, or set kind to 'categorical'")
        lower, upper = self._number("lower", self.lower), self._number("upper", self.upper)
        if lower >= upper:
            raise self._error(f"lower={lower:g} is not below upper={upper:g}", "swap or widen the bounds")
        if not 1e-300 < upper - lower < math.inf:
            raise self._error(f"the range {lower:g} to {upper:g} cannot be divided", "choose other bounds")
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        if self.bins is not None and (type(self.bins) is not int or not 1 <= self.bins < MAX_CATEGORIES):
            raise self._error(f"bins={self.bins!r}", "use a whole number of 1 or more")
        if self.transform is not None:
            if self.transform not in TRANSFORMS:
                raise self._error(f"unknown transform {self.transform!r}", f"use one of {sorted(TRANSFORMS)}")
            if lower < TRANSFORMS[self.transform].valid_from:
                raise self._error(f"{self.transform} is not defined at lower={lower:g}", "use 'asinh', or raise lower")
        if isinstance(self.cutoffs, str) or not isinstance(self.cutoffs, Iterable):
            raise self._error(f"cutoffs={self.cutoffs!r}", "write a list of numbers")
        cutoffs = tuple(self._number("cutoffs", c) for c in self.cutoffs)
        object.__setattr__(self, "cutoffs", cutoffs)
        if any(a >= b for a, b in zip((lower, *cutoffs), (*cutoffs, upper), strict=True)):
            raise self._error(
                f"cutoffs {list(cutoffs)} do not increase strictly between {lower:g} and {upper:g}",
                "sort them and drop those at or outside the bounds",
            )
        if cutoffs and self.bins is not None:
            raise self._error("both 'bins' and 'cutoffs' are given", "keep one")

    def _number(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise self._error(f"{key} is {value!r}, not a number", "numeric columns need lower and upper")
        if not math.isfinite(value):
            raise self._error(f"{key} is {value!r}", "bounds and cutoffs must be finite")
        return float(value)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; keys at their defaults are left out."""
        out: dict[str, Any] = {}
        for key in COLUMN_KEYS:
            value = getattr(self, key)
            if value is None or value is False or value == ():
                continue
            out[key] = list(value) if isinstance(value, tuple) else value
        return out

    def describe(self) -> str:
        """Say in a few words what values the column takes."""
        words: list[str] = []
        if self.kind == "categorical":
            words.append(", ".join(self.values[:8]))
            words += [f"... ({len(self.values)})"] * (len(self.values) > 8)
            words += [f"unknown is {self.other!r}"] * (self.other is not None)
        else:
            words.append(f"{self.lower:g} to {self.upper:g}")
            words += [self.transform] if self.transform else []
            words += [f"{self.bins} bins"] if self.bins else []
            words += ["cut at " + ", ".join(f"{c:g}" for c in self.cutoffs)] if self.cutoffs else []
        return ", ".join(words + ["nullable"] * self.nullable)

    def __repr__(self) -> str:
        return f"Column({self.name!r}, {self.kind}, {self.describe()})"


COLUMN_KEYS: Final = tuple(field.name for field in fields(Column))
