# SPDX-License-Identifier: Apache-2.0
"""One column of a schema: the public facts about its values, validated on construction.

The table of columns, with its target and its JSON form, is in ``schema``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from veilwood.arrays import Floats
from veilwood.data.canonical import DATE_PARTS, NoText, to_canonical_text
from veilwood.data.dialect import FrozenTexts
from veilwood.errors import SchemaError, short_repr

ColumnKind = Literal["categorical", "numeric"]
Label: TypeAlias = str | int | float | bool
LabelType = Literal["text", "int", "float", "bool"]
TextRule = Literal["missing", "limit"]

MAX_CATEGORIES: Final = 65535  # category codes are uint16, and one code is reserved for missing values


class _Transform(NamedTuple):
    forward: Callable[[Floats], Floats]
    inverse: Callable[[Floats], Floats]
    valid_from: float


TRANSFORMS: Final[dict[str, _Transform]] = {
    "log1p": _Transform(np.log1p, np.expm1, math.nextafter(-1.0, 0.0)),
    "sqrt": _Transform(np.sqrt, np.square, 0.0),
    "asinh": _Transform(np.arcsinh, np.sinh, -math.inf),
}


def did_you_mean(name: str, known_names: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the most similar of ``known_names``, or an empty string."""
    small = {one.lower(): one for one in known_names}
    near = difflib.get_close_matches(name.lower(), list(small), n=1)
    return f" Did you mean {small[near[0]]!r}?" if near else ""


@dataclass(frozen=True)
class Column:
    """Public description of one column.

    Parameters
    ----------
    name : str
        Name of the column in the schema, and in the table unless ``of`` is given.
    kind : {"categorical", "numeric"}
        Whether the values are labels or numbers.
    values : sequence, categorical only
        Every category that can occur: strings, numbers or booleans. They are stored as the text by which categories are
        compared (see ``veilwood.data.canonical``): 1, 1.0, "1" and "1.0" are all the category "1".
    lower, upper : float, numeric only
        Public bounds. Numbers outside are clamped to them.
    nullable : bool, default False
        Whether missing values are allowed, as a separate value. Otherwise they are rejected.
    bins : int, optional, numeric only
        Number of bins of equal width (after ``transform``), for methods that need few bins.
    cutoffs : sequence of float, numeric only
        Bin boundaries for such methods, instead of ``bins``. A value equal to a cutoff belongs to the bin on its right.
    transform : {"log1p", "sqrt", "asinh"}, optional, numeric only
        Scale on which bins have equal width.
    other : str, optional, categorical only
        Category of all values that are not in ``values``; itself one of ``values``.
    prefix : int, optional, categorical only
        Number of leading characters to use, for example the first two of a postcode.
    part : {"year", "month", "weekday", "hour"}, optional
        Part of a date to use, as a number or a category. Dates are written as 2026-01-31 or 31.1.2026; weekdays
        are 1 (Monday) to 7.
    of : str, optional
        Column of the table to read, if its name differs. Several columns can read one date: its year, its month.
    texts : {"missing", "limit"}, optional, numeric only
        How to read text that is not a number: "missing" as a missing value; "limit" as the number in text such as <0.6
        or >200, and otherwise as a missing value. Requires ``nullable``. By default such values are rejected.
    whole : bool, default False, numeric only
        Whether all numbers are integers, as days are. Effects are then shown between integers.
    aliases : mapping, categorical only
        Other spellings of categories, such as ``{"m": "M"}``.
    known_from : str, optional
        Public source of the bounds or categories, such as a manual or a code list. Reports show it.

    Attributes
    ----------
    labels : tuple
        The values as declared, which are also the predicted labels of this column.
    label_type : {"text", "int", "float", "bool"}
        Common type of the labels: integers, numbers or booleans if all of them are, otherwise text.

    Examples
    --------
    >>> Column("age", "numeric", lower=0, upper=120, nullable=True)
    Column('age', numeric, 0 to 120, nullable)
    >>> smoker = Column("smoker", "categorical", values=[True, False])
    >>> smoker.values, smoker.labels, smoker.label_type
    (('True', 'False'), (True, False), 'bool')
    """

    name: str
    kind: ColumnKind
    values: tuple[str, ...] = ()
    lower: float | None = None
    upper: float | None = None
    nullable: bool = False
    bins: int | None = None
    cutoffs: tuple[float, ...] = ()
    transform: str | None = None
    other: str | None = None
    prefix: int | None = None
    part: str | None = None
    of: str | None = None
    texts: TextRule | None = None
    whole: bool = False
    aliases: Mapping[str, str] = FrozenTexts()
    known_from: str | None = None
    labels: tuple[Label, ...] = field(init=False, default=())
    label_type: LabelType = field(init=False, default="text")

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SchemaError(f"a column name must be a non-empty string, not {short_repr(self.name)}.")
        if not isinstance(self.nullable, bool):
            raise self._schema_error(f"'nullable' is {short_repr(self.nullable)}", "use true or false")
        if not isinstance(self.whole, bool):
            raise self._schema_error(f"'whole' is {short_repr(self.whole)}", "use true or false")
        if self.of is not None and (not isinstance(self.of, str) or not self.of):
            raise self._schema_error(f"'of' is {short_repr(self.of)}", "name the column of the table to read")
        if self.known_from is not None and not (isinstance(self.known_from, str) and self.known_from.strip()):
            raise self._schema_error(f"'known_from' is {short_repr(self.known_from)}", "name the public source")
        if self.part is not None and (not isinstance(self.part, str) or self.part not in DATE_PARTS):
            raise self._schema_error(f"unknown part {short_repr(self.part)}", f"use one of {list(DATE_PARTS)}")
        if self.prefix is not None and (self.part is not None or type(self.prefix) is not int or self.prefix < 1):
            raise self._schema_error(f"prefix={short_repr(self.prefix)}", "use an integer of at least 1, and no part")
        if self.kind == "categorical":
            self._check_categorical()
        elif self.kind == "numeric":
            self._check_numeric()
        else:
            raise self._schema_error(f"unknown kind {short_repr(self.kind)}", "use 'categorical' or 'numeric'")

    @cached_property
    def source(self) -> str:
        """Name of the table's column that is read."""
        return self.name if self.of is None else self.of

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound of a numeric column."""
        if self.lower is None or self.upper is None:
            raise self._schema_error("a categorical column has no bounds", "use a numeric column")
        return self.lower, self.upper

    def _schema_error(self, problem: str, hint: str) -> SchemaError:
        return SchemaError(f"column {short_repr(self.name)}: {problem}. Hint: {hint}.")

    def _check_categorical(self) -> None:
        for key in ("lower", "upper", "bins", "cutoffs", "transform", "texts", "whole"):
            if getattr(self, key) not in (None, ()) and getattr(self, key) is not False:
                raise self._schema_error(f"{key!r} belongs to numeric columns", "remove it, or set kind to 'numeric'")
        if isinstance(self.values, str) or not isinstance(self.values, Iterable):
            raise self._schema_error(f"'values' is {short_repr(self.values)}, not a list", 'write ["a", "b", ...]')
        values = list(self.values)
        if len(values) > MAX_CATEGORIES:
            raise self._schema_error(
                f"{len(values)} values, more than {MAX_CATEGORIES}", "group rare ones under an 'other'"
            )
        if any(not isinstance(v, str | int | float | np.generic) for v in values):
            raise self._schema_error(
                "'values' contains an entry that is neither text nor number", "set nullable to allow missing values"
            )
        if any(isinstance(v, str) and not v for v in values):
            raise self._schema_error(
                "an empty text is not a category", "it means a missing value: set nullable to true"
            )
        texts = tuple(text for text in map(to_canonical_text, values) if isinstance(text, str))
        if len(texts) < len(values) or any(isinstance(v, float | np.floating) and math.isinf(v) for v in values):
            raise self._schema_error(
                "'values' contains an entry that is not finite", "set nullable to allow missing values"
            )
        if not texts:
            raise self._schema_error("no values", "list every category that can occur, whether or not the data has it")
        self._check_distinct(values, texts)
        object.__setattr__(self, "values", texts)
        label_type, labels = _infer_labels(values, texts)
        object.__setattr__(self, "label_type", label_type)
        object.__setattr__(self, "labels", labels)
        if self.other is not None:
            other = to_canonical_text(self.other)
            if isinstance(other, NoText) or other not in texts:
                raise self._schema_error(
                    f"other={short_repr(self.other)} is not one of its values", "add it to 'values'"
                )
            object.__setattr__(self, "other", other)
        object.__setattr__(self, "aliases", self._check_aliases(texts))

    def _check_aliases(self, categories: tuple[str, ...]) -> FrozenTexts:
        given = self.aliases if isinstance(self.aliases, Mapping) else None
        if given is None or not all(isinstance(word, str) for pair in given.items() for word in pair):
            raise self._schema_error(f"'aliases' is {short_repr(self.aliases)}", 'write {"other spelling": "category"}')
        pairs = [(to_canonical_text(spelling), to_canonical_text(category)) for spelling, category in given.items()]
        for spelling, category in pairs:
            if category not in categories or spelling in categories or not isinstance(spelling, str):
                raise self._schema_error(
                    f"the alias {short_repr(spelling)} of {short_repr(category)} does not fit",
                    "map a spelling that is not among the values to one of the values",
                )
        return FrozenTexts(pairs)  # type: ignore[arg-type]

    def _check_distinct(self, values: list[Any], texts: tuple[str, ...]) -> None:
        first: dict[str, int] = {}
        for place, text in enumerate(texts):
            one = first.setdefault(text, place)
            if one != place:
                pair = f"{short_repr(values[one])} and {short_repr(values[place])}"
                same = (
                    "value " + short_repr(text) if values[one] == values[place] else f"{pair} are one category, which"
                )
                raise self._schema_error(
                    f"{same} appears twice",
                    "list each category once; texts that are the same number are one, so put a letter before codes",
                )

    def _check_numeric(self) -> None:
        unset: dict[str, Any] = {"other": None, "values": (), "prefix": None, "aliases": {}}
        key = next((name for name, value in unset.items() if getattr(self, name) != value), None)
        if key is not None:
            raise self._schema_error(
                f"{key!r} belongs to categorical columns", "remove it, or set kind to 'categorical'"
            )
        lower, upper = self._to_finite_float("lower", self.lower), self._to_finite_float("upper", self.upper)
        if lower >= upper:
            raise self._schema_error(f"lower={lower:g} is not below upper={upper:g}", "swap or widen the bounds")
        if not 1e-300 < upper - lower < math.inf:
            raise self._schema_error(f"the range {lower:g} to {upper:g} cannot be divided", "choose other bounds")
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        if self.bins is not None and (type(self.bins) is not int or not 1 <= self.bins < MAX_CATEGORIES):
            raise self._schema_error(f"bins={short_repr(self.bins)}", "use an integer of at least 1")
        if self.transform is not None:
            if not isinstance(self.transform, str) or self.transform not in TRANSFORMS:
                raise self._schema_error(
                    f"unknown transform {short_repr(self.transform)}", f"use one of {sorted(TRANSFORMS)}"
                )
            if lower < TRANSFORMS[self.transform].valid_from:
                raise self._schema_error(
                    f"{self.transform} is not defined at lower={lower:g}", "use 'asinh', or raise lower"
                )
        if isinstance(self.cutoffs, str) or not isinstance(self.cutoffs, Iterable):
            raise self._schema_error(f"cutoffs={short_repr(self.cutoffs)}", "write a list of numbers")
        cutoffs = tuple(self._to_finite_float("cutoffs", c) for c in self.cutoffs)
        if len(cutoffs) >= MAX_CATEGORIES - 1:
            raise self._schema_error(
                f"{len(cutoffs)} cutoffs, but at most {MAX_CATEGORIES - 2} are allowed", "keep the most useful ones"
            )
        object.__setattr__(self, "cutoffs", cutoffs)
        if any(a >= b for a, b in zip((lower, *cutoffs), (*cutoffs, upper), strict=True)):
            raise self._schema_error(
                f"cutoffs {short_repr(list(cutoffs))} do not increase strictly between {lower:g} and {upper:g}",
                "sort them and drop those at or outside the bounds",
            )
        if cutoffs and self.bins is not None:
            raise self._schema_error("both 'bins' and 'cutoffs' are given", "keep one")
        if self.texts is not None and (self.texts not in get_args(TextRule) or self.part is not None):
            raise self._schema_error(f"texts={short_repr(self.texts)}", "use 'missing' or 'limit', and no part")
        if self.texts is not None and not self.nullable:
            raise self._schema_error("'texts' needs missing values", "set nullable to true")

    def _to_finite_float(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise self._schema_error(
                f"{key} is {short_repr(value)}, not a number", "numeric columns need lower and upper"
            )
        try:
            number = float(value)
        except OverflowError:  # an integer larger than every float
            number = math.inf
        if not math.isfinite(number):
            raise self._schema_error(f"{key} is {short_repr(value)}", "bounds and cutoffs must be finite")
        return number

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, without keys at their defaults."""
        out: dict[str, Any] = {}
        for key in COLUMN_KEYS:
            value = getattr(self, key)
            if value is None or value is False or value == () or value == {}:
                continue
            out[key] = list(value) if isinstance(value, tuple) else value
        if self.labels:
            out["values"] = list(self.labels)
        if self.other is not None:
            out["other"] = self.labels[self.values.index(self.other)]
        if self.aliases:
            out["aliases"] = dict(self.aliases)
        return out

    def describe(self) -> str:
        """Return a short description of the allowed values."""
        words: list[str] = []
        if self.kind == "categorical":
            words.append(", ".join(map(self._describe_category, self.values[:8])))
            words += [f"... ({len(self.values)})"] * (len(self.values) > 8)
            words += [f"unknown is {self.other!r}"] * (self.other is not None)
            words += [f"first {self.prefix} characters"] if self.prefix else []
        else:
            words.append(f"{self.lower:g} to {self.upper:g}")
            words += ["whole numbers"] * self.whole
            words += [self.transform] if self.transform else []
            words += [f"{self.bins} bins"] if self.bins else []
            words += ["cut at " + ", ".join(f"{c:g}" for c in self.cutoffs)] if self.cutoffs else []
        words += [f"{self.part} of {self.source!r}" if self.part else f"in {self.of!r}"] * bool(self.part or self.of)
        words += [TEXT_RULES[self.texts]] if self.texts else ["nullable"] * self.nullable
        return ", ".join(words)

    def _describe_category(self, category: str) -> str:
        spellings = ", ".join(repr(spelling) for spelling, other in self.aliases.items() if other == category)
        text = category if category == category.strip() and "," not in category else repr(category)
        return f"{text} (also {spellings})" if spellings else text

    def __repr__(self) -> str:
        return f"Column({self.name!r}, {self.kind}, {self.describe()})"


def _infer_labels(values: list[Any], texts: tuple[str, ...]) -> tuple[LabelType, tuple[Label, ...]]:
    """Return the declared values in their common type, or as strings."""
    if all(isinstance(value, bool | np.bool_) for value in values):
        return "bool", tuple(map(bool, values))
    numbers = [value for value in values if isinstance(value, int | float | np.integer | np.floating)]
    if len(numbers) == len(values) and not any(isinstance(value, bool | np.timedelta64) for value in values):
        if not any(isinstance(value, float | np.floating) for value in values):
            if all(-(2**63) <= int(value) < 2**63 for value in values):
                return "int", tuple(map(int, values))
        elif all(to_canonical_text(float(text)) == text for text in texts):
            return "float", tuple(map(float, texts))
    return "text", tuple(
        _escape_surrogates(v) if isinstance(v, str) else text for v, text in zip(values, texts, strict=True)
    )


def _escape_surrogates(text: str) -> str:
    return str.__str__(text).encode(errors="backslashreplace").decode()  # an unpaired surrogate cannot be saved


TEXT_RULES: Final = {
    "missing": "texts count as missing",
    "limit": "limits such as <0.6 count as their number, other texts as missing",
}
COLUMN_KEYS: Final = tuple(entry.name for entry in fields(Column) if entry.init)
