# SPDX-License-Identifier: Apache-2.0
"""Encoding of values as uint16 codes, determined by the public schema alone.

Each row is encoded by itself, as the guarantees require. Reading never raises: problems of values are recorded, and
the caller rejects the table or drops the rows. Sources of rows are in ``open_rows``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, overload

import numpy as np
import pyarrow as pa

from veilwood.arrays import (
    AMBIENT_JOBS,
    HAVE_NUMBA,
    AnyArray,
    ArrayLike,
    Codes,
    Floats,
    Int32s,
    Ints,
    NDArray,
    map_on_threads,
    row_ranges,
)  # fmt: skip
from veilwood.data import canonical
from veilwood.data.columns import TRANSFORMS, Column, did_you_mean
from veilwood.data.dialect import Dialect
from veilwood.data.frames import Table, target_values
from veilwood.data.numbers import read_column, read_numbers
from veilwood.data.problems import Kinds, Problem, Problems, unusable_kinds
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError, VeilwoodError

_TextColumn = tuple[
    str, canonical.Categories, canonical.ColumnValues, AnyArray
]  # name, categories and cells; where the codes go

GRID_BINS: Final = 65535
"""Bins of equal width of a numeric range; one uint16 code is reserved for missing values."""
DEFAULT_BINS: Final = 5
"""Default number of bins for methods that need few, if a column declares neither ``bins`` nor ``cutoffs``."""
TARGET_LEVELS: Final = 65535
"""A regression target is rounded to the integers 0 (its lower bound) to TARGET_LEVELS (its upper bound)."""

_LABEL_TYPES: Final[dict[str, Any]] = {"text": object, "int": np.int64, "float": np.float64, "bool": np.bool_}

_BLOCK_ROWS: Final = 8192  # a block of an array with a few dozen columns stays in the cache


@dataclass(frozen=True)
class EncodedColumn:
    """Properties of the codes of one column."""

    name: str
    """The name of the column."""
    ordered: bool
    """Whether codes are ordered (numeric columns)."""
    n_codes: int
    """Number of codes, ``0 .. n_codes - 1``, including the code of missing values."""
    missing_code: int | None
    """The code of a missing value, always the last; None where missing values are refused."""


class _ColumnEncoder:
    """Encoder of one numeric column."""

    def __init__(self, column: Column, numeric: Literal["grid", "bins"], dialect: Dialect) -> None:
        self.column, self.dialect = column, dialect
        # Values at which the code increases by one; None for bins of equal width, which need no table.
        self.edges: Floats | None = None
        self.n_bins = len(column.values)
        self.categories = _make_categories(column) if column.kind == "categorical" else None
        if column.kind == "numeric":
            self.n_bins = GRID_BINS if numeric == "grid" else (column.bins or DEFAULT_BINS)
            if numeric == "bins" and column.cutoffs:
                self.edges = np.array(column.cutoffs)
                self.n_bins = len(self.edges) + 1
            elif numeric == "bins" or column.transform is not None:
                self.edges = _equal_width_edges(column, self.n_bins)

    @property
    def encoded_column(self) -> EncodedColumn:
        name, nullable = self.column.name, self.column.nullable
        missing_code = self.n_bins if nullable else None
        return EncodedColumn(name, self.column.kind == "numeric", self.n_bins + nullable, missing_code)

    def write_codes(self, values: canonical.ColumnValues, codes: Codes, parse: bool) -> Kinds | None:
        """Write the codes of one numeric column. Return the kinds of problems, or None if there are none."""
        if self.column.part is not None:
            found, kinds = _read_date_parts(self.column, values)
            codes[:] = self.encode_numbers(found)
            return self.mark_missing(found, codes, kinds)
        if isinstance(values, pa.ChunkedArray) and self.edges is None and HAVE_NUMBA and _is_plain_number(values.type):
            from veilwood.kernels import grid_codes

            array = _one_chunk(values).to_numpy(zero_copy_only=False)  # nulls are NaN
            missing = grid_codes(array, *self.grid_scale, float(GRID_BINS - 1), codes)
            return self.mark_missing(array, codes, None) if missing else None
        found, kinds = read_column(values, self.column, self.dialect, parse)
        codes[:] = self.encode_numbers(found)
        return self.mark_missing(found, codes, kinds)

    @property
    def grid_scale(self) -> tuple[float, float]:
        """Lower bound, and bins per unit, if all bins have the same width."""
        lower, upper = self.column.bounds
        return lower, GRID_BINS / (upper - lower)

    def mark_missing(self, values: Any, codes: Codes, kinds: Kinds | None = None) -> Kinds | None:
        """Write the code of missing numbers. Return them as problems if the column is not nullable."""
        missing = np.isnan(values)
        if not missing.any():
            return kinds
        if self.column.nullable:
            codes[missing] = self.n_bins
            return kinds
        kinds = np.zeros(len(codes), np.uint8) if kinds is None else kinds
        kinds[missing & (kinds == 0)] = Problem.MISSING
        return kinds

    def encode_numbers(self, values: Floats) -> Codes:
        """Encode numbers. Infinities are clamped like all values outside the bounds; NaN gets an arbitrary code."""
        if self.edges is not None:
            return np.searchsorted(self.edges, values, side="right").astype(np.uint16)
        return _grid_codes(values, *self.grid_scale)

    def thresholds(self, wanted: NDArray[np.integer[Any]]) -> Floats:
        """Return, for each code, the smallest float64 that gets this code or a higher one (-inf for 0)."""
        if self.column.kind != "numeric" or wanted.min(initial=0) < 0 or wanted.max(initial=0) >= self.n_bins:
            raise ValueError(
                f"{self.column.name!r} has no threshold for a code outside those of "
                "numbers. Hint: pass codes from 0 to the last."
            )
        if self.edges is not None:
            return np.asarray(np.concatenate([[-np.inf], self.edges])[wanted])
        # Bisection over all float64 between the bounds, in their own order: at most 64 steps, exact.
        lower, upper = self.column.bounds
        ends = _flip_sign_bits(np.array([np.nextafter(lower, -np.inf), upper]).view(np.int64))
        below, reached = np.full(wanted.shape, ends[0]), np.full(wanted.shape, ends[1])
        while np.any(reached > below + 1):
            middle = (below >> 1) + (reached >> 1) + (below & reached & 1)  # no overflow
            enough = self.encode_numbers(_flip_sign_bits(middle).view(np.float64)) >= wanted
            reached, below = np.where(enough, middle, reached), np.where(enough, below, middle)
        exact = _flip_sign_bits(reached).view(np.float64) + 0.0  # + 0.0: no negative zero
        return np.where(wanted == 0, -np.inf, exact)


def _grid_codes(values: Floats, lower: float | Floats, scale: float | Floats) -> Codes:
    """Encode numbers on a grid of equal bins, with one grid, or one per column, given by ``lower`` and ``scale``."""
    # Each step is monotone after rounding, so a larger number never gets a lower code.
    with np.errstate(over="ignore", invalid="ignore"):
        cells = values - lower
        cells *= scale
        np.clip(cells, 0, GRID_BINS - 1, out=cells)
        return cells.astype(np.uint16)


def _equal_width_edges(column: Column, n_bins: int) -> Floats:
    """Divide the range into bins of equal width on the column's scale, and return the inner edges."""
    return _compute_edges(*column.bounds, column.transform, n_bins)


@lru_cache(maxsize=64)  # half a megabyte per entry; the same schema is encoded many times
def _compute_edges(lower: float, upper: float, transform: str | None, n_bins: int) -> Floats:
    share = np.arange(1, n_bins) / n_bins
    edges = np.asarray(lower + (upper - lower) * share)
    if transform is not None:
        scale = TRANSFORMS[transform]
        low, high = scale.forward(np.array([lower, upper]))
        # Above lower, so that numbers clamped to it keep code 0.
        edges = np.sort(np.clip(scale.inverse(low + (high - low) * share), np.nextafter(lower, upper), upper))
    edges.setflags(write=False)
    return edges


def _flip_sign_bits(bits: Ints) -> Ints:
    """Map the bits of a float64 to its rank among all float64s, and back."""
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


@dataclass(frozen=True)
class Encoding:
    """Encoder of a whole table: the codes of every column of a schema.

    Parameters
    ----------
    schema : Schema
        The only input that determines codes.
    numeric : {"grid", "bins"}
        "grid" encodes numbers on a fine grid of ``GRID_BINS`` bins, for threshold splits; "bins" by the schema's
        ``bins`` or ``cutoffs`` (``DEFAULT_BINS`` otherwise), for multiway splits.
    first_by : str, optional
        Categorical column whose values are in chronological order. If an id has more rows than its bound, its earliest
        rows count.

    Examples
    --------
    >>> schema = Schema.from_dict({
    ...     "name": "clinic", "task": "classification", "target": "ill",
    ...     "columns": [
    ...         {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "nullable": True},
    ...         {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"]},
    ...         {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
    ...     ],
    ... })
    >>> encoding = Encoding(schema, numeric="bins")
    >>> import pandas as pd
    >>> encoding.encode(pd.DataFrame({"ward": ["C", "A"], "age": [35.0, None]}))
    array([[1, 2],
           [5, 0]], dtype=uint16)
    >>> encoding.threshold(0, 1)
    20.0
    """

    schema: Schema
    numeric: Literal["grid", "bins"] = "grid"
    first_by: str | None = None
    columns: tuple[EncodedColumn, ...] = field(init=False, repr=False, compare=False)
    labels: AnyArray = field(init=False, repr=False, compare=False)
    _coders: tuple[_ColumnEncoder, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.numeric not in ("grid", "bins"):
            raise ValueError(f"numeric must be 'grid' or 'bins', not {self.numeric!r}. Hint: pass one of them.")
        coders = tuple(_ColumnEncoder(column, self.numeric, self.schema.dialect) for column in self.schema.features)
        object.__setattr__(self, "_coders", coders)
        object.__setattr__(self, "columns", tuple(coder.encoded_column for coder in coders))
        object.__setattr__(self, "labels", class_labels(self.schema))

    def __reduce__(self) -> tuple[type[Encoding], tuple[Schema, str, str | None]]:
        """Pickle the schema only: edges of 65,535 bins per column would fill every pickle."""
        return Encoding, (self.schema, self.numeric, self.first_by)

    @property
    def time_index(self) -> int | None:
        """Index of the time column that orders the rows of an id, or None if rows are drawn at random."""
        return None if self.first_by is None else self.schema.feature_names.index(self.first_by)

    def encode_times(self, table: Table) -> Codes:
        """Return the code of each row in the time column. Rows without a valid time get an arbitrary code."""
        coder, times = self._coders[self.time_index or 0], np.zeros(table.n_rows, np.uint16)
        assert coder.categories is not None
        canonical.write_categories([(coder.categories, self.column_values(table, coder.column.name), times)])
        return times

    @property
    def n_codes(self) -> tuple[int, ...]:
        """Number of codes of each column."""
        return tuple(column.n_codes for column in self.columns)

    def encode(self, X: Any, *, allowed_extra: Collection[str] = (), estimator: str = "the schema") -> Codes:
        """Encode a table.

        Parameters
        ----------
        X : dataframe, 2-D array or list of rows
            Columns of a dataframe are matched by name, in any order, and the target is skipped if present.
            Columns of an array are matched by position.
        allowed_extra : collection of str
            Additional columns to skip if present.
        estimator : str
            Name of the caller, for error messages.

        Returns
        -------
        ndarray of uint16, shape (rows, features)
            In Fortran order: each column is contiguous.
        """
        table = _view_table(X)
        codes, problems = self.read_features(table, allowed_extra=allowed_extra, estimator=estimator)
        if problems.kinds_by_column:
            problems.raise_if_any(lambda name: self.column_values(table, name))
        return codes

    def read_features(
        self,
        table: Table,
        *,
        parse: bool = False,
        allowed_extra: Collection[str] = (),
        estimator: str = "the schema",
    ) -> tuple[Codes, Problems]:
        """Encode the valid values of a table and return its problems. ``parse`` reads strings as numbers."""
        return self._read_columns(table, parse, allowed_extra, estimator, [])

    def _read_columns(
        self, table: Table, parse: bool, allowed_extra: Collection[str], estimator: str, texts: list[_TextColumn]
    ) -> tuple[Codes, Problems]:
        """Encode a table, together with additional categorical columns."""
        places = self.column_positions(table, allowed_extra=allowed_extra, estimator=estimator)
        codes = np.zeros((len(self.columns), table.n_rows), dtype=np.uint16).T
        problems = Problems(self.schema.features, self.schema.target)
        for feature, (coder, place) in enumerate(zip(self._coders, places, strict=True)):
            if coder.categories is not None:
                texts.append((coder.column.name, coder.categories, _values_at(table, place), codes[:, feature]))
            elif table.array is None or coder.column.part is not None:
                kinds = coder.write_codes(_values_at(table, place), codes[:, feature], parse)
                if kinds is not None:
                    problems.add(coder.column.name, kinds)
        for (name, *_), kinds in zip(texts, canonical.write_categories([column[1:] for column in texts]), strict=True):
            if kinds is not None:
                problems.add(name, kinds)
        if table.array is not None:
            in_order = table.array if table.names is None else table.array[:, places]
            self._read_array(in_order, codes, problems)
        return codes, problems

    def read_rows(
        self,
        table: Table,
        y: Any = None,
        *,
        parse: bool = False,
        allowed_extra: Collection[str] = (),
        estimator: str = "the schema",
    ) -> tuple[Codes, Int32s, Problems]:
        """Encode features and target as ``read_features`` does. If ``y`` is None, the table contains the target."""
        column, names = self.schema.target, table.names or ()
        if y is None and column.source not in names:
            raise OutOfSchemaError(
                "fit requires y to be passed, but the target y is None. "
                f"Hint: pass y, or a table with the target column {column.name!r}.",
                column=column.name,
            )
        cells = (
            _values_at(table, names.index(column.source)) if y is None else target_values(y, every_entry_is_label=parse)
        )
        target = np.empty(len(cells), np.int32)
        texts: list[_TextColumn] = [(column.name, _make_categories(column), cells, target)] if column.values else []
        codes, problems = self._read_columns(table, parse, allowed_extra, estimator, texts)
        if not column.values:
            target, kinds = self.read_target(cells, parse=parse)
            problems.add(column.name, kinds)
        return codes, target, problems

    def _read_array(self, array: AnyArray, codes: Codes, problems: Problems) -> None:
        numeric = [i for i, each in enumerate(self._coders) if each.column.kind == "numeric" and not each.column.part]
        grid = [i for i in numeric if self._coders[i].edges is None]
        lower, scale = np.array([self._coders[i].grid_scale for i in grid]).reshape(-1, 2).T
        kinds: dict[int, Kinds] = {}

        def read_range(span: tuple[int, int]) -> None:
            for start in range(*span, _BLOCK_ROWS):
                rows = slice(start, min(start + _BLOCK_ROWS, span[1]))
                with np.errstate(over="ignore"):
                    values = array[rows][:, numeric].astype(np.float64)
                if grid:
                    inside = values if len(grid) == len(numeric) else values[:, [numeric.index(i) for i in grid]]
                    codes[rows, grid] = _grid_codes(inside, lower, scale)
                missing = np.asarray(np.isnan(values).any(axis=0))
                for place, feature in enumerate(numeric):
                    coder = self._coders[feature]
                    if coder.edges is not None:
                        codes[rows, feature] = coder.encode_numbers(values[:, place])
                    found = coder.mark_missing(values[:, place], codes[rows, feature]) if missing[place] else None
                    if found is not None:
                        kinds.setdefault(feature, np.zeros(len(array), np.uint8))[rows] = found

        n_jobs = AMBIENT_JOBS.get()
        map_on_threads(read_range, row_ranges(len(array), n_jobs), n_jobs)
        for feature, wrong in kinds.items():
            problems.add(self.columns[feature].name, wrong)

    def encode_numbers(self, feature: int, values: Floats) -> Codes:
        """Encode numbers of one numeric column, none of them missing."""
        return self._coders[feature].encode_numbers(values)

    def column_values(self, table: Table, name: str) -> canonical.ColumnValues:
        """Return the column of a feature or of the target."""
        if table.names is None:
            return table.column(self.schema.feature_names.index(name))
        (column,) = (column for column in (*self.schema.features, self.schema.target) if column.name == name)
        found = table.column_by_name(column.source)
        assert found is not None  # column_positions() has checked that the column exists
        return found

    def column_positions(
        self, table: Table, *, allowed_extra: Collection[str] = (), estimator: str = "the schema"
    ) -> list[int]:
        """Return the position of each feature's column in a table. Raise if columns are missing or unknown."""
        names = self.schema.feature_names
        if table.names is None:
            if table.n_columns != len(names):
                raise OutOfSchemaError(
                    f"X has {table.n_columns} features, but {estimator} is expecting {len(names)} features as input."
                    f" Hint: pass the columns {', '.join(names[:20])}."
                )
            return list(range(len(names)))
        check_names(self.schema, table.names, allowed_extra=allowed_extra)
        return [table.names.index(column.source) for column in self.schema.features]

    def encode_target(self, y: Any) -> Int32s:
        """Encode the target: class indices, or integers from 0 to ``TARGET_LEVELS`` for regression."""
        values = target_values(y)
        target, kinds = self.read_target(values)
        problems = Problems(self.schema.features, self.schema.target)
        problems.add(self.schema.target.name, kinds)
        problems.raise_if_any(lambda name: values)
        return target

    def read_target(self, values: canonical.ColumnValues, *, parse: bool = False) -> tuple[Int32s, Kinds | None]:
        """Encode the valid values of the target and return its problems."""
        column = self.schema.target
        if column.kind == "categorical":
            places = np.empty(len(values), np.int32)
            (kinds,) = canonical.write_categories([(_make_categories(column), values, places)])
            return places, kinds
        found, kinds = read_numbers(values, parse)
        finite = np.isfinite(found)
        if not finite.all():
            kinds = np.zeros(len(found), np.uint8) if kinds is None else kinds
            kinds[np.isnan(found) & (kinds == 0)] = Problem.MISSING
            kinds[np.isinf(found)] = Problem.INFINITE
            found = np.where(finite, found, 0.0)
        lower, upper = column.bounds
        with np.errstate(over="ignore"):
            levels = np.rint((found - lower) * (TARGET_LEVELS / (upper - lower)))
        return np.clip(levels, 0, TARGET_LEVELS).astype(np.int32), kinds

    def decode_target(self, levels: ArrayLike) -> Floats:
        """Convert levels of a regression target, integer or not, back to values."""
        lower, upper = self.schema.target.bounds
        return np.asarray(lower + np.asarray(levels, dtype=np.float64) * ((upper - lower) / TARGET_LEVELS))

    @overload
    def threshold(self, feature: int, code: int) -> float: ...
    @overload
    def threshold(self, feature: int, code: NDArray[np.integer[Any]]) -> Floats: ...
    def threshold(self, feature: int, code: int | NDArray[np.integer[Any]]) -> float | Floats:
        """Return the smallest number of a numeric column that gets this code or a higher one.

        Except for missing values, ``codes[:, feature] >= code`` if and only if ``x >= threshold(feature, code)``.
        Code 0 gives minus infinity. An array of codes gives an array.
        """
        out = self._coders[feature].thresholds(np.atleast_1d(code))
        return out if isinstance(code, np.ndarray) else float(out[0])


def _view_table(X: Any) -> Table:
    """View a table. Any other error becomes OutOfSchemaError without a value of the table."""
    try:
        return Table.from_data(X)
    except VeilwoodError:
        raise
    except Exception:
        raise OutOfSchemaError("the table cannot be read. Hint: pass a dataframe, a 2-D array or a file.") from None


def check_names(
    schema: Schema, names: Collection[str], *, allowed_extra: Collection[str] = (), target: bool = False
) -> None:
    """Raise OutOfSchemaError that names all missing and unknown columns of a table, if there are any."""
    wanted = [column.source for column in schema.features] + [schema.target.source] * target
    allowed = {*schema.sources, *allowed_extra}
    unknown = [name for name in names if name not in allowed and not schema.allows(name)]
    lacking = [name for name in dict.fromkeys(wanted) if name not in names]
    messages = []
    if lacking:
        more = f" and {len(schema.feature_names) - 20} more" * (len(schema.feature_names) > 20)
        messages.append(
            f"the table has no {_quote_columns(lacking)}.{did_you_mean(lacking[0], unknown)} Hint: columns are "
            f"matched by name; the schema has {', '.join(schema.feature_names[:20])}{more}."
        )
    if unknown:
        messages.append(
            f"the table has {'a ' * (len(unknown) == 1)}{_quote_columns(unknown)} that the schema does not have. "
            'Hint: list unused columns under "ignore" in the schema, or declare them.'
        )
    if messages:
        raise OutOfSchemaError(" ".join(messages), column=[*lacking, *unknown][0])


def _quote_columns(names: list[str]) -> str:
    more = f" and {len(names) - 20} more" * (len(names) > 20)
    return f"column{'s' * (len(names) > 1)} {', '.join(repr(name) for name in names[:20])}{more}"


def class_labels(schema: Schema) -> AnyArray:
    """Return the classes in the type and order that the schema declares, independently of the data.

    Examples
    --------
    >>> class_labels(Schema.numeric((0, 1), classes=[0, 1], n_features=1))
    array([0, 1])
    >>> class_labels(Schema.numeric((0, 1), classes=["0", "1"], n_features=1))
    array(['0', '1'], dtype=object)
    """
    return np.array(schema.target.labels, dtype=_LABEL_TYPES[schema.target.label_type])


def _text_reader(column: Column) -> canonical.TextReader:
    """Return the function that maps a value to the text to compare: the whole text, a prefix, or a part of a date."""
    if column.part is not None:
        return canonical.date_part_reader(column.part)
    return canonical.to_canonical_text if column.prefix is None else canonical.prefix_reader(column.prefix)


def _make_categories(column: Column) -> canonical.Categories:
    """Return the codes of a column's categories; missing values come after the last."""
    known = {text: place for place, text in enumerate(column.values)}
    known |= {spelling: known[category] for spelling, category in column.aliases.items()}
    unknown = -Problem.UNKNOWN if column.other is None else known[column.other]
    missing = len(column.values) if column.nullable else -Problem.MISSING
    return canonical.Categories(_text_reader(column), known, unknown, -Problem.UNUSABLE, missing)


def _values_at(table: Table, place: int) -> canonical.ColumnValues:
    return table.column(place) if table.arrow is None else table.arrow.column(place)


def _read_date_parts(column: Column, values: canonical.ColumnValues) -> tuple[Floats, Kinds | None]:
    """Return a part of each date as a number (NaN without a valid date), and the problems of non-missing values."""
    codes, texts = canonical.factorize_texts(values, _text_reader(column))
    numbers = np.array([*map(float, texts), np.nan, np.nan])  # the last two entries are for the codes -2 and -1
    return numbers[codes], unusable_kinds(codes)


def _one_chunk(values: pa.ChunkedArray) -> Any:
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()


def _is_plain_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))
