# SPDX-License-Identifier: Apache-2.0
"""What is public about a table: its columns, bounds, categories and classes, and their JSON form.

Nothing here keeps a number of rows, a count or a row; turning rows into integers is in ``encoding``.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pandas as pd
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from veilwood.errors import SchemaError, UndeclaredSchemaError
from veilwood.tables import Floats, Table, category_codes, numbers, text_of

__all__ = ["MAX_CATEGORIES", "TRANSFORMS", "Column", "Schema"]

Kind = Literal["categorical", "numeric"]
Task = Literal["classification", "regression"]

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

UNREVIEWED: Final = "from data: review"
"""What a draft writes into ``bounds`` of each column; while one is left, the schema counts as read off the data."""

_SCHEMA_KEYS: Final = ("name", "task", "target", "columns", "inferred")


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
        for key in _COLUMN_KEYS:
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


_COLUMN_KEYS: Final = tuple(field.name for field in fields(Column))


@dataclass(frozen=True, repr=False)
class Schema:
    """What is public about a data set, declared before any data is seen.

    Parameters
    ----------
    name : str
        What the data set is called.
    task : {"classification", "regression"}
        What is learned.
    target : Column
        The column to predict: categorical with two or more values, or numeric.
    features : sequence of Column
        The columns to predict it from.
    inferred : bool, default False
        Whether bounds and categories were read off the data, which voids every guarantee.

    Examples
    --------
    >>> schema = Schema.from_dict({
    ...     "name": "clinic", "task": "classification", "target": "ill",
    ...     "columns": [
    ...         {"name": "age", "kind": "numeric", "lower": 0, "upper": 120},
    ...         {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"]},
    ...         {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
    ...     ],
    ... })
    >>> schema
    Schema('clinic', classification of 'ill', 2 features)
    >>> print(schema)
    Schema 'clinic': classification of 'ill' (no, yes)
      age   numeric      0 to 120
      ward  categorical  A, B, C
    >>> schema.classes
    ('no', 'yes')
    """

    name: str
    task: Task
    target: Column
    features: tuple[Column, ...]
    inferred: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SchemaError(f"the schema's 'name' must be a text, not {self.name!r}.")
        object.__setattr__(self, "features", tuple(self.features))
        if self.task not in ("classification", "regression"):
            raise SchemaError(f"unknown task {self.task!r}. Hint: use 'classification' or 'regression'.")
        if not self.features:
            raise SchemaError("the schema has no feature columns. Hint: list them under 'columns'.")
        names = [column.name for column in (*self.features, self.target)]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SchemaError(f"column {twice!r} appears twice. Hint: give every column a name of its own.")
        self._check_target()

    def _check_target(self) -> None:
        target, needed = self.target, "categorical" if self.task == "classification" else "numeric"
        if target.kind != needed:
            raise SchemaError(
                f"target {target.name!r} is {target.kind}, but {self.task} needs a {needed} one. "
                f"Hint: change the task, or the kind of the target."
            )
        if target.kind == "categorical" and len(target.values) < 2:
            raise SchemaError(
                f"target {target.name!r} has one class only ({target.values[0]!r}). "
                "Hint: list every class that can occur; there must be two or more."
            )
        for key in ("nullable", "bins", "cutoffs", "transform"):
            if getattr(target, key):
                raise SchemaError(f"target {target.name!r}: {key!r} is for features. Hint: remove it.")

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty for regression."""
        return self.target.values

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the feature columns, in order."""
        return tuple(column.name for column in self.features)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schema:
        """Build a schema from its JSON form; keys that are not part of the format are dropped."""
        if not isinstance(data, Mapping):
            raise SchemaError(f"a schema is a JSON object, not {type(data).__name__}. Hint: see Schema.to_dict.")
        known = _known_keys(data, _SCHEMA_KEYS, required=("name", "task", "target", "columns"), place="the schema")
        if isinstance(known["columns"], str) or not isinstance(known["columns"], Sequence):
            raise SchemaError("the schema's 'columns' is not a list. Hint: one object a column, the target too.")
        columns = [_column_from(entry, place) for place, entry in enumerate(known["columns"])]
        target = [column for column in columns if column.name == known["target"]]
        if not target:
            hint = closest(str(known["target"]), [column.name for column in columns])
            raise SchemaError(
                f"target {known['target']!r} is not among the columns.{hint} "
                "Hint: the target needs an entry under 'columns' too."
            )
        features = [column for column in columns if column is not target[0]]
        return cls(known["name"], known["task"], target[0], tuple(features), _is_draft(data))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Schema:
        """Read a schema from a JSON file."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SchemaError(f"there is no schema file {str(path)!r}. Hint: veilwood schema draft TABLE") from None
        except (OSError, UnicodeDecodeError) as error:
            raise SchemaError(f"cannot read schema file {str(path)!r}: {error}.") from None
        except json.JSONDecodeError as error:
            raise SchemaError(f"{str(path)!r} is not valid JSON: {error}.") from None
        return cls.from_dict(data)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: the features in order, the target last."""
        out: dict[str, Any] = {"name": self.name, "task": self.task, "target": self.target.name}
        if self.inferred:
            out["inferred"] = True
        return out | {"columns": [column.to_dict() for column in (*self.features, self.target)]}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the schema to a JSON file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def fingerprint(self) -> str:
        """Return the SHA-256 of the canonical JSON form: equal schemas, and only they, share it."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @classmethod
    def resolve(cls, schema: Schema | Mapping[str, Any] | str | PathLike[str] | None) -> Schema:
        """Return the schema given as such, as a dict, or as the path of a JSON file."""
        if schema is None:
            raise UndeclaredSchemaError(
                "no schema was given, and bounds read off the data would leak it. Hint: write one with "
                "'veilwood schema draft TABLE' and review it; schema='infer' is for experiments, NOT PRIVATE."
            )
        if isinstance(schema, Schema):
            return schema
        if isinstance(schema, Mapping):
            return cls.from_dict(schema)
        if isinstance(schema, str | PathLike):
            return cls.load(schema)
        raise SchemaError(
            f"schema is of type {type(schema).__name__}. Hint: give a Schema, a dict or the path of a JSON file."
        )

    @classmethod
    def numeric(
        cls,
        bounds: tuple[Any, Any],
        classes: Sequence[object] | None = None,
        *,
        target_bounds: tuple[float, float] | None = None,
        names: Sequence[str] | None = None,
        n_features: int | None = None,
        target: str = "target",
    ) -> Schema:
        """Declare numeric features in one line; classes make it classification, target bounds regression.

        Parameters
        ----------
        bounds : pair
            Lower and upper bounds: two numbers for all columns, or two sequences with one number a column.
        classes : sequence, optional
            The class labels, for classification.
        target_bounds : pair of float, optional
            Bounds of the target, for regression.
        names : sequence of str, optional
            Names of the features; ``x0``, ``x1``, ... by default.
        n_features : int, optional
            How many features, where neither ``bounds`` nor ``names`` says so.
        target : str
            Name of the target column.

        Examples
        --------
        >>> print(Schema.numeric(([0, 0], [10, 250]), classes=[0, 1]))
        Schema 'numeric': classification of 'target' (0, 1)
          x0  numeric  0 to 10
          x1  numeric  0 to 250
        """
        if (classes is None) == (target_bounds is None):
            raise SchemaError("give either classes (classification) or target_bounds (regression), and not both.")
        try:
            lows, highs = (np.atleast_1d(np.asarray(side, dtype=np.float64)) for side in bounds)
            width = len(names) if names is not None else (n_features or max(len(lows), len(highs)))
            lows, highs = np.broadcast_to(lows, width), np.broadcast_to(highs, width)
        except (TypeError, ValueError):
            raise SchemaError(
                f"bounds={bounds!r} is not a pair (lower, upper) of numbers, or of one number for each feature."
            ) from None
        labels = names if names is not None else [f"x{place}" for place in range(width)]
        features = [
            Column(label, "numeric", lower=float(low), upper=float(high))
            for label, low, high in zip(labels, lows, highs, strict=True)
        ]
        if classes is not None:
            column = Column(target, "categorical", values=tuple(map(text_of, classes)))
            return cls("numeric", "classification", column, tuple(features))
        assert target_bounds is not None
        column = Column(target, "numeric", lower=target_bounds[0], upper=target_bounds[1])
        return cls("numeric", "regression", column, tuple(features))

    @classmethod
    def infer(cls, X: Any, y: Any, task: Task, *, target: str = "target") -> Schema:
        """Read a schema off the data, for experiments: what is made from it is NOT PRIVATE.

        Examples
        --------
        >>> Schema.infer([[1.5, "a"], [2.0, "b"]], [0, 1], "classification").inferred
        True
        """
        table = Table.of(X)
        names = table.names or tuple(f"x{place}" for place in range(table.n_columns))
        while target in names:
            target += "_"
        features = tuple(_infer_column(name, table.column(place)) for place, name in enumerate(names))
        labels = column_or_1d(y, warn=True)
        if task == "regression":
            goal = _infer_column(target, pd.Series(labels))
        else:
            try:
                check_classification_targets(labels)
            except ValueError as error:
                raise SchemaError(str(error)) from None
            goal = Column(target, "categorical", values=tuple(map(text_of, np.unique(labels))))
        return cls("inferred", task, goal, features, inferred=True)

    def __repr__(self) -> str:
        flag = ", INFERRED: NOT PRIVATE" if self.inferred else ""
        return f"Schema({self.name!r}, {self.task} of {self.target.name!r}, {len(self.features)} features{flag})"

    def __str__(self) -> str:
        wide = max(map(len, self.feature_names))
        kind = max(len(column.kind) for column in self.features)
        flag = "\n  INFERRED from the data: NOT PRIVATE" if self.inferred else ""
        head = f"Schema {self.name!r}: {self.task} of {self.target.name!r} ({self.target.describe()}){flag}"
        rows = [f"  {c.name:<{wide}}  {c.kind:<{kind}}  {c.describe()}" for c in self.features]
        return "\n".join([head, *rows])


def _is_draft(data: Mapping[str, Any]) -> bool:
    """Whether any mark of a draft is left: on the whole, in its notes, or on a single column."""
    marks = [str(column.get("bounds", "")) for column in data["columns"]]
    noted = str(data.get("notes", "")).startswith("DRAFT")
    return bool(data.get("inferred", False)) or noted or any(mark.startswith(UNREVIEWED) for mark in marks)


def _known_keys(
    data: Mapping[str, Any], known: Sequence[str], *, required: Sequence[str], place: str
) -> dict[str, Any]:
    """Keep the keys of the format; refuse a missing one, and one that looks like a slip of the pen."""
    for key in required:
        if key not in data:
            near = difflib.get_close_matches(key, sorted(map(str, set(data) - set(known))), n=1)
            slip = f" It has {near[0]!r}: is that {key!r}?" if near else " Hint: add the key."
            raise SchemaError(f"{place} has no {key!r}.{slip}")
    for key in set(data) - set(known):
        near = difflib.get_close_matches(str(key), set(known) - set(data), n=1, cutoff=0.85)
        if near:
            raise SchemaError(f"{place} has an unknown key {key!r}. Did you mean {near[0]!r}?")
    return {key: data[key] for key in known if key in data}


def _column_from(entry: object, place: int) -> Column:
    """Build one column from its JSON form."""
    if not isinstance(entry, Mapping):
        raise SchemaError(f"entry {place + 1} of 'columns' is {entry!r}. Hint: a column is a JSON object.")
    where = f"column {entry['name']!r}" if "name" in entry else f"entry {place + 1} of 'columns'"
    required = {"categorical": ("values",), "numeric": ("lower", "upper")}.get(str(entry.get("kind")), ())
    known = _known_keys(entry, _COLUMN_KEYS, required=("name", "kind", *required), place=where)
    return Column(**known)


def _infer_column(name: str, values: pd.Series[Any]) -> Column:
    """Read one column off the data: the range of numbers, the set of anything else."""
    missing = values.isna().to_numpy(dtype=bool)
    kind = pd.api.types.infer_dtype(values, skipna=True)
    if kind in ("integer", "floating", "mixed-integer-float", "decimal", "empty") or bool(missing.all()):
        found = numbers(values, name)
        found = found[np.isfinite(found)]
        lower, upper = (float(found.min()), float(found.max())) if found.size else (0.0, 1.0)
        if lower == upper:  # a constant column still needs a range
            upper = lower + max(1.0, abs(lower))
        return Column(name, "numeric", lower=lower, upper=upper, nullable=bool(missing.any()))
    _, texts = category_codes(values)
    return Column(name, "categorical", values=tuple(sorted(texts)), nullable=bool(missing.any()))
