# SPDX-License-Identifier: Apache-2.0
"""Schemas: the public facts about a table (columns, bounds, categories, classes) and their JSON form.

A schema contains no row and no count. Rows are encoded in ``encoding``. ``canonical`` decides whether two values are
the same category or id.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pandas as pd

from veilwood.charts import html_card
from veilwood.data.canonical import factorize_texts, to_canonical_texts
from veilwood.data.columns import COLUMN_KEYS, Column, did_you_mean
from veilwood.data.dialect import DIALECT, Dialect, FrozenTexts
from veilwood.data.frames import Table
from veilwood.data.numbers import read_numbers
from veilwood.errors import SchemaError, UndeclaredSchemaError, VeilwoodError, short_repr
from veilwood.privacy.neighbours import RowsOf, Unit, resolve_unit
from veilwood.safe_io import read_json, read_text

TaskKind = Literal["classification", "regression"]

UNREVIEWED_MARK: Final = "from data: review"
"""Marker in ``bounds`` of each drafted column. While any is left, the schema counts as inferred from the data."""

_REQUIRED: Final = {"categorical": ("values",), "numeric": ("lower", "upper")}  # keys by kind of column
_SCHEMA_KEYS: Final = ("name", "task", "target", "columns", "inferred", "ignore", "privacy_unit", "dialect", "left_out")


@dataclass(frozen=True, repr=False)
class Schema:
    """Public description of a data set, declared before any data is read.

    Parameters
    ----------
    name : str
        Name of the data set.
    task : {"classification", "regression"}
        Learning task.
    target : Column
        The column to predict: categorical with two or more values, or numeric.
    features : sequence of Column
        The columns to learn from.
    inferred : bool, default False
        Whether bounds and categories were inferred from the data, which voids every guarantee.
    ignore : sequence of str
        Unused columns that the table may have: names, or patterns such as "note_*".
    privacy_unit : optional
        Default privacy unit of every estimator. Tables may contain its id column.
    dialect : Dialect
        Dialect of this table's CSV files.
    left_out : mapping
        Columns that the schema excludes, with the reason. Reports show them.

    Notes
    -----
    **Categories and ids are compared as text**, by one rule for every format and engine. Numbers are compared as
    numbers: 7, 7.0, Decimal("7.00") and the texts "7", "7.0" are one category and one person, in CSV as in Parquet;
    "007" and " 7" are others. Booleans are "True" and "False", an empty string is a missing value, dates are ISO 8601.
    The full rule is the table at the top of ``veilwood.data.canonical``.

    **The declared classes determine the type of predictions**, never the data: ``"values": [0, 1]`` gives
    ``classes_`` of int64, ``[0.5, 1.5]`` of float64, ``[false, true]`` of bool, and ``["0", "1"]`` texts as declared.
    Labels passed to ``fit`` and ``score`` may have any of these types.

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
    task: TaskKind
    target: Column
    features: tuple[Column, ...]
    inferred: bool = False
    ignore: tuple[str, ...] = ()
    privacy_unit: Unit | None = None
    dialect: Dialect = DIALECT
    left_out: Mapping[str, str] = FrozenTexts()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SchemaError(f"the schema's 'name' must be a string, not {short_repr(self.name)}.")
        ignored = self.ignore
        if (
            isinstance(ignored, str)
            or not isinstance(ignored, Sequence)
            or not all(isinstance(n, str) for n in ignored)
        ):
            raise SchemaError("the schema's 'ignore' is not a list of names or patterns. Hint: write [\"note_*\"].")
        object.__setattr__(self, "ignore", tuple(ignored))
        if self.privacy_unit is not None:
            object.__setattr__(self, "privacy_unit", resolve_unit(self.privacy_unit))
        object.__setattr__(self, "features", tuple(self.features))
        reasons = self.left_out if isinstance(self.left_out, Mapping) else None
        if reasons is None or not all(isinstance(text, str) for pair in reasons.items() for text in pair):
            raise SchemaError('the schema\'s \'left_out\' is not an object. Hint: write {"column": "reason"}.')
        object.__setattr__(self, "left_out", FrozenTexts(reasons))
        if not isinstance(self.task, str) or self.task not in ("classification", "regression"):
            raise SchemaError(f"unknown task {short_repr(self.task)}. Hint: use 'classification' or 'regression'.")
        if not self.features:
            raise SchemaError("the schema has no feature columns. Hint: list them under 'columns'.")
        names = [column.name for column in (*self.features, self.target)]
        if len(set(names)) < len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise SchemaError(f"column {short_repr(twice)} appears twice. Hint: give every column its own name.")
        self._check_target()

    def _check_target(self) -> None:
        target, needed = self.target, "categorical" if self.task == "classification" else "numeric"
        if target.kind != needed:
            raise SchemaError(
                f"target {target.name!r} is {target.kind}, but {self.task} needs a {needed} target. "
                f"Hint: change the task, or the kind of the target."
            )
        if target.kind == "categorical" and len(target.values) < 2:
            raise SchemaError(
                f"target {target.name!r} has one class only ({short_repr(target.values[0])}). "
                "Hint: list every class that can occur, at least two."
            )
        for key in ("nullable", "bins", "cutoffs", "transform", "prefix", "part", "of", "texts"):
            if getattr(target, key):
                raise SchemaError(f"target {target.name!r}: {key!r} is for features. Hint: remove it.")

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty for regression."""
        return self.target.values

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the feature columns, in order."""
        return tuple(column.name for column in self.features)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Names of the table columns that are read, with the target last."""
        return tuple(dict.fromkeys(column.source for column in (*self.features, self.target)))

    def allows(self, name: str) -> bool:
        """Return True if tables may contain this column although it is not read: an id or an ignored column."""
        is_id = isinstance(self.privacy_unit, RowsOf) and self.privacy_unit.id == name
        return is_id or any(name == pattern or fnmatchcase(name, pattern) for pattern in self.ignore)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schema:
        """Build a schema from its JSON form; unknown keys are dropped."""
        if not isinstance(data, Mapping):
            raise SchemaError(f"a schema is a JSON object, not {type(data).__name__}. Hint: see Schema.to_dict.")
        known = _known_keys(data, _SCHEMA_KEYS, required=("name", "task", "target", "columns"), location="the schema")
        if isinstance(known["columns"], str) or not isinstance(known["columns"], Sequence):
            raise SchemaError(
                "the schema's 'columns' is not a list. Hint: write one object per column, including the target."
            )
        columns = [_column_from_dict(entry, place) for place, entry in enumerate(known["columns"])]
        target = [column for column in columns if column.name == known["target"]]
        if not target:
            hint = did_you_mean(short_repr(known["target"]).strip("'"), [column.name for column in columns])
            raise SchemaError(
                f"target {short_repr(known['target'])} is not among the columns.{hint} "
                "Hint: add the target to 'columns' too."
            )
        features = [column for column in columns if column is not target[0]]
        return cls(
            known["name"],
            known["task"],
            target[0],
            tuple(features),
            _is_draft(data),
            known.get("ignore", ()),
            known.get("privacy_unit"),
            Dialect.from_dict(known.get("dialect", {})),
            known.get("left_out", {}),
        )

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Schema:
        """Read a schema from a JSON file."""
        try:
            text = read_text(path)
        except FileNotFoundError:
            raise SchemaError(
                f"there is no schema file {short_repr(str(path))}. Hint: create one with veilwood schema draft TABLE."
            ) from None
        except (OSError, VeilwoodError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SchemaError(f"cannot read schema file {short_repr(str(path))}: {reason}.") from None
        try:
            data = read_json(text)
        except VeilwoodError as error:
            raise SchemaError(f"{short_repr(str(path))} is not valid JSON: {error}") from None
        return cls.from_dict(data)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: the features in order, the target last."""
        out: dict[str, Any] = {"name": self.name, "task": self.task, "target": self.target.name}
        if self.inferred:
            out["inferred"] = True
        if self.ignore:
            out["ignore"] = list(self.ignore)
        if self.privacy_unit is not None:
            unit = self.privacy_unit
            out["privacy_unit"] = {"id": unit.id, "at_most": unit.at_most} if isinstance(unit, RowsOf) else unit.k
        if self.dialect != DIALECT:
            out["dialect"] = self.dialect.to_dict()
        if self.left_out:
            out["left_out"] = dict(self.left_out)
        return out | {"columns": [column.to_dict() for column in (*self.features, self.target)]}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the schema to a JSON file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def for_labels(self, y: Any) -> Schema:
        """Return the schema with integer classes if ``y`` is an array of integers and no declared class is one.

        scikit-learn's VotingClassifier and StackingClassifier number the classes this way: 0 for the first in
        alphabetical order. The type of the array decides, not its values.

        >>> schema = Schema.numeric((0, 1), classes=["yes", "no"], n_features=1)
        >>> schema.for_labels(np.array([1, 0, 1])).classes, schema.for_labels(np.array(["yes"])).classes
        (('0', '1'), ('yes', 'no'))
        """
        numbered = isinstance(y, np.ndarray) and y.dtype.kind in "iu" and y.ndim == 1
        if not numbered or not self.classes or any(re.fullmatch(r"[-+.\d]+", text) for text in self.classes):
            return self
        return replace(
            self,
            target=Column(self.target.name, "categorical", values=tuple(range(len(self.classes)))),  # type: ignore[arg-type]
        )

    def fingerprint(self) -> str:
        """Return the SHA-256 hash of the canonical JSON form. Only equal schemas have the same hash."""
        return self._schema_hash

    @cached_property
    def _schema_hash(self) -> str:
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @classmethod
    def resolve(cls, schema: Schema | Mapping[str, Any] | str | PathLike[str] | None) -> Schema:
        """Return a schema from a Schema object, a dict or the path of a JSON file."""
        if schema is None:
            raise UndeclaredSchemaError(
                "no schema was given, and bounds inferred from the data would leak it. Hint: write one with "
                "'veilwood schema draft TABLE' and review it; schema='infer' is for experiments, NOT PRIVATE."
            )
        if isinstance(schema, Schema):
            return schema
        if isinstance(schema, Mapping):
            return cls.from_dict(schema)
        if isinstance(schema, str | PathLike):
            return cls.load(schema)
        raise SchemaError(
            f"schema is of type {type(schema).__name__}. Hint: pass a Schema, a dict or the path of a JSON file."
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
        """Declare numeric features in one line: with ``classes`` for classification, with target bounds for regression.

        Parameters
        ----------
        bounds : pair
            Lower and upper bounds: two numbers for all columns, or two sequences with one number per column.
        classes : sequence, optional
            The class labels, for classification.
        target_bounds : pair of float, optional
            Bounds of the target, for regression.
        names : sequence of str, optional
            Names of the features; ``x0``, ``x1``, ... by default.
        n_features : int, optional
            Number of features, if neither ``bounds`` nor ``names`` determines it.
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
                f"bounds={short_repr(bounds)} is not a pair (lower, upper) of numbers, or of one number per feature."
            ) from None
        labels = names if names is not None else [f"x{place}" for place in range(width)]
        features = [
            Column(label, "numeric", lower=float(low), upper=float(high))
            for label, low, high in zip(labels, lows, highs, strict=True)
        ]
        if classes is not None:
            column = Column(target, "categorical", values=tuple(classes))  # type: ignore[arg-type]
            return cls("numeric", "classification", column, tuple(features))
        assert target_bounds is not None
        column = Column(target, "numeric", lower=target_bounds[0], upper=target_bounds[1])
        return cls("numeric", "regression", column, tuple(features))

    @classmethod
    def infer(cls, X: Any, y: Any, task: TaskKind, *, target: str = "target") -> Schema:
        """Infer a schema from the data, for experiments: everything made from it is NOT PRIVATE.

        Examples
        --------
        >>> Schema.infer([[1.5, "a"], [2.0, "b"]], [0, 1], "classification").inferred
        True
        """
        try:
            goal, features = _infer_columns(X, y, task, target)
        except VeilwoodError:
            raise
        except (TypeError, ValueError, ArithmeticError, RecursionError):
            raise SchemaError("no schema can be inferred from the data. Hint: declare a schema.") from None
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
        rows += [f"  not used: {', '.join(self.ignore)}"] if self.ignore else []
        return "\n".join([head, *rows])

    def _repr_html_(self) -> str:
        """Show the schema in a notebook."""
        head = ("column", "kind", "bounds or categories", "source")
        rows = [(c.name, c.kind, c.describe(), c.known_from or "") for c in (*self.features, self.target)]
        text = f"protects {self.privacy_unit or 'one row'}"
        text += f"; not used: {', '.join(self.ignore)}" if self.ignore else ""
        badge = ("INFERRED from the data: NOT PRIVATE", "#b3412e") if self.inferred else None
        title = f"Schema {self.name!r}: {self.task} of {self.target.name!r}"
        return html_card(title, text, [head, *rows], badge=badge)


def _is_draft(data: Mapping[str, Any]) -> bool:
    """Return True if the schema, its notes or any column is still marked as a draft."""
    notes = data.get("notes")
    noted = isinstance(notes, str) and notes.startswith("DRAFT")
    marked = any(is_unreviewed(column) for column in data["columns"])
    return bool(data.get("inferred", False)) or noted or marked


def is_unreviewed(column: Mapping[str, Any]) -> bool:
    """Return True if the JSON form of a column marks its bounds as read from the data, in any wording.

    Examples
    --------
    >>> is_unreviewed({"bounds": "from data (rounded)"}), is_unreviewed({"bounds": "public: the ward list"})
    (True, False)
    """
    mark = column.get("bounds")
    words = " ".join(mark.casefold().split()) if isinstance(mark, str) else ""
    return words.startswith(("from data", "from the data")) or "unreviewed" in words


def _known_keys(
    data: Mapping[str, Any], known: Sequence[str], *, required: Sequence[str], location: str
) -> dict[str, Any]:
    """Return the known keys. Raise SchemaError if a required key is missing, or a key looks misspelt."""
    for key in required:
        if key not in data:
            near = difflib.get_close_matches(key, sorted(map(str, set(data) - set(known))), n=1)
            slip = f" It has {near[0]!r}: is that {key!r}?" if near else " Hint: add the key."
            raise SchemaError(f"{location} has no {key!r}.{slip}")
    for key in set(data) - set(known):
        near = difflib.get_close_matches(str(key), set(known) - set(data), n=1, cutoff=0.85)
        if near:
            raise SchemaError(f"{location} has an unknown key {short_repr(key)}. Did you mean {near[0]!r}?")
    return {key: data[key] for key in known if key in data}


def _column_from_dict(entry: object, place: int) -> Column:
    """Build one column from its JSON form."""
    if not isinstance(entry, Mapping):
        raise SchemaError(
            f"entry {place + 1} of 'columns' is {short_repr(entry)}. Hint: write a JSON object per column."
        )
    where = f"column {short_repr(entry['name'])}" if "name" in entry else f"entry {place + 1} of 'columns'"
    kind = entry.get("kind")
    required = _REQUIRED.get(kind, ()) if isinstance(kind, str) else ()
    known = _known_keys(entry, COLUMN_KEYS, required=("name", "kind", *required), location=where)
    return Column(**known)


def _infer_columns(X: Any, y: Any, task: TaskKind, target: str) -> tuple[Column, tuple[Column, ...]]:
    """Infer the target and the features from the data."""
    # scikit-learn takes long to import, and a declared schema does not need it.
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import column_or_1d

    table = Table.from_data(X)
    names = table.names or tuple(f"x{place}" for place in range(table.n_columns))
    while target in names:
        target += "_"
    features = tuple(_infer_column(name, table.column(place)) for place, name in enumerate(names))
    try:
        labels = column_or_1d(y, warn=True)
    except (TypeError, ValueError):
        raise SchemaError("y should be a 1d array: one value for each row.") from None
    if task == "regression":
        return _infer_column(target, pd.Series(labels)), features
    try:
        check_classification_targets(labels)
    except ValueError:
        raise SchemaError(
            f"Unknown label type: {type_of_target(labels)}. Hint: pass labels of a few classes that repeat."
        ) from None
    found = [label for label in np.unique(labels).tolist() if not pd.isna(label)]
    if len(found) < 2:
        raise SchemaError("the target has only one class. Hint: pass data with at least two.")
    values = tuple(dict(zip(to_canonical_texts(found), found, strict=True)).values())
    return _make_inferred_column(target, "categorical", values=values), features


def _infer_column(name: str, values: pd.Series[Any]) -> Column:
    """Infer one column from the data: the range of numbers, the set of all other values."""
    missing = values.isna().to_numpy(dtype=bool)
    kind = pd.api.types.infer_dtype(values, skipna=True)
    if kind in ("integer", "floating", "mixed-integer-float", "decimal", "empty") or bool(missing.all()):
        found, _ = read_numbers(values)
        found = found[np.isfinite(found)]
        lower, upper = (float(found.min()), float(found.max())) if found.size else (0.0, 1.0)
        if lower == upper:  # a constant column still needs a range
            upper = lower + max(1.0, abs(lower))
        return _make_inferred_column(name, "numeric", lower=lower, upper=upper, nullable=bool(missing.any()))
    _, texts = factorize_texts(values)
    return _make_inferred_column(name, "categorical", values=tuple(sorted(set(texts))), nullable=bool(missing.any()))


def _make_inferred_column(name: str, kind: Literal["categorical", "numeric"], **found: Any) -> Column:
    """Make a column from inferred values, or raise SchemaError without showing them."""
    try:
        return Column(name, kind, **found)
    except SchemaError:
        raise SchemaError(
            f"column {short_repr(name)} cannot be inferred from the data: it has no usable values, too many "
            "values, or several spellings of one category. Hint: declare the column."
        ) from None
