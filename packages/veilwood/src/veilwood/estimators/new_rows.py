# SPDX-License-Identifier: Apache-2.0
"""Predictions for new rows in memory or in files, including rows with values that the schema does not allow.

Spends no budget: predictions depend on released values and the new rows only. ``data.encoding`` encodes the values.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from veilwood.arrays import AnyArray, Bools, Codes, Floats
from veilwood.data.encoding import Encoding
from veilwood.data.files import are_files
from veilwood.data.frames import Table
from veilwood.data.problems import Problem, Problems, format_examples, may_show_values, value_at
from veilwood.data.schema import Schema
from veilwood.data.tables import read_feature_batches
from veilwood.errors import OutOfSchemaError, ParameterError, UseError, UtilityWarning
from veilwood.privacy.neighbours import RowsOf

UnknownRule: TypeAlias = Literal["other", "missing", "skip", "refuse"]
"""Treatment of a value outside the schema. "other": average the predictions over all categories."""

_MAX_COMBINATIONS: Final = 1000  # predictions that are averaged for one row
_MAX_EXAMPLES: Final = 3  # values shown per column, if values may be shown
UNKNOWN_HINT: Final = "Hint: to predict such rows anyway, pass unknown='other', 'missing' or 'skip'."


@dataclass
class NewRowCounts:
    """Number of new rows, and of rows with a value that the schema does not allow, by column and treatment."""

    n_rows: int = 0
    by_column: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [
            f"{name!r} in {rows:,} ({treatment}{'; ' + self.examples[name] if name in self.examples else ''})"
            for (name, treatment), rows in self.by_column.items()
        ]
        return f"of {self.n_rows:,} rows, some have a value outside the schema of the model: {', '.join(parts)}"


def predict_rows(
    estimator: Any, X: Any, unknown: UnknownRule | None
) -> tuple[Floats, AnyArray] | tuple[Floats, Floats]:
    """Return outputs and labels for a table or files: probabilities and classes, or the predicted numbers as both.

    Files are predicted with the rule "other" by default, tables in memory with "refuse". Rows that are skipped have NaN
    for probabilities and numbers, and None for classes.
    """
    check_is_fitted(estimator, "model_")
    in_files = are_files(X)
    rule = check_rule(unknown, "other" if in_files else "refuse")
    if not in_files and rule == "refuse":
        return estimator._predict_in_memory(X)  # type: ignore[no-any-return]
    counts = NewRowCounts()
    if in_files:
        files = predict_files(estimator, X, estimator.schema_, rule, counts)
        parts = [(outputs, labels) for _, outputs, labels in files]
    else:
        parts = [_predict_table(estimator, estimator.model_.encoding, Table.from_data(X), rule, counts)]
    if counts.by_column:
        warnings.warn(f"{counts}. Hint: pass unknown=... to choose.", UtilityWarning, stacklevel=4)
    outputs, labels = zip(*parts, strict=True)
    return np.concatenate(outputs), np.concatenate(labels)


def check_rule(unknown: object, usual: UnknownRule) -> UnknownRule:
    """Return the rule for unknown values, or raise ParameterError."""
    if unknown is None:
        return usual
    if not isinstance(unknown, str) or unknown not in get_args(UnknownRule):
        raise ParameterError(
            "unknown", unknown, "must be a known rule", f"choose one of {', '.join(get_args(UnknownRule))}"
        )
    return unknown  # type: ignore[return-value]


def predict_files(
    estimator: Any, X: Any, schema: Schema, rule: UnknownRule, counts: NewRowCounts, keep: Sequence[str] = ()
) -> Iterator[tuple[pd.DataFrame, Any, Any]]:
    """Predict the rows of files in batches. Yield the columns in ``keep``, outputs and labels; fill ``counts``.

    Files are first read as for a fit. If a value violates the schema, all files are read again as text, so that each
    value can be treated separately.
    """
    try:
        batches = list(_predict_batches(estimator, X, schema, "refuse", NewRowCounts(), keep))
    except OutOfSchemaError as error:
        if rule == "refuse" or not error.problems:
            raise
        yield from _predict_batches(estimator, X, schema, rule, counts, keep)
    else:
        yield from batches


def _predict_batches(
    estimator: Any, X: Any, schema: Schema, rule: UnknownRule, counts: NewRowCounts, keep: Sequence[str]
) -> Iterator[tuple[pd.DataFrame, Any, Any]]:
    as_text, own = rule != "refuse", estimator.model_.encoding
    encoding = own if schema is own.schema else Encoding(schema, own.numeric)  # with the dialect of these files
    extra = [*keep, *_id_names(estimator)]
    for rows, kept in read_feature_batches(X, schema, keep, allowed_extra=extra, as_text=as_text):
        outputs, labels = _predict_table(estimator, encoding, rows, rule, counts, parse=as_text)
        yield kept, outputs, labels


def _predict_table(
    estimator: Any, encoding: Encoding, table: Table, rule: UnknownRule, counts: NewRowCounts, *, parse: bool = False
) -> tuple[Any, Any]:
    codes, problems = encoding.read_features(
        table, parse=parse, allowed_extra=_id_names(estimator), estimator=type(estimator).__name__
    )
    first_row, counts.n_rows = counts.n_rows, counts.n_rows + table.n_rows
    if rule == "refuse" or not problems.kinds_by_column:
        problems.raise_if_any(lambda name: encoding.column_values(table, name), first_row)
        return split_outputs(estimator._predict_encoded(codes))
    skipped, averaged = _treat_problems(encoding, codes, problems, rule, counts)
    if may_show_values():
        _note_examples(encoding, table, problems, first_row, counts)
    outputs, labels = split_outputs(estimator._predict_encoded(codes))
    outputs = np.array(outputs, np.float64)
    for features, rows in averaged.items():
        outputs[rows] = _mean_outputs(estimator, encoding, codes[rows], features)
        if outputs.ndim == 2:
            labels[rows] = estimator.classes_[outputs[rows].argmax(axis=1)]
    outputs[skipped] = np.nan
    if outputs.ndim == 1:
        return outputs, outputs
    if skipped.any():
        labels = labels.astype(object)
        labels[skipped] = None
    return outputs, labels


def _mean_outputs(estimator: Any, encoding: Encoding, codes: Codes, features: tuple[int, ...]) -> Floats:
    """Return the mean outputs of rows over all categories of some features."""
    combinations = list(itertools.product(*(range(len(encoding.schema.features[f].values)) for f in features)))
    codes, total = codes.copy(), 0.0
    for combination in combinations:
        codes[:, features] = combination
        total = total + split_outputs(estimator._predict_encoded(codes))[0]
    return np.asarray(total / len(combinations))


def _id_names(estimator: Any) -> tuple[str, ...]:
    """Return the name of the id column that the table may contain, if the fit protected units by id."""
    unit = estimator.plan_.neighbours.unit
    return (unit.id,) if isinstance(unit, RowsOf) else ()


def split_outputs(predicted: Any) -> tuple[Any, Any]:
    """Return outputs and labels. For regression, both are the predicted numbers."""
    return predicted if isinstance(predicted, tuple) else (predicted, predicted)


def _treat_problems(
    encoding: Encoding, codes: Codes, problems: Problems, rule: UnknownRule, counts: NewRowCounts
) -> tuple[Bools, dict[tuple[int, ...], list[int]]]:
    """Set the codes of values outside the schema. Return the rows to skip, and rows by the features to average over."""
    skipped = np.zeros(len(codes), bool)
    of_rows: dict[int, tuple[int, ...]] = {}
    for feature, column in enumerate(encoding.schema.features):
        kinds = problems.kinds_by_column.get(column.name)
        if kinds is None:
            continue
        missing = encoding.columns[feature].missing_code
        for kind in (kind for kind in Problem if (kinds == kind).any()):
            rows = np.flatnonzero(kinds == kind)
            if rule == "missing" and missing is None:
                raise UseError(f"column {column.name!r} has no missing values. Hint: pass unknown='other' or 'skip'.")
            if missing is not None and (rule == "missing" or (rule == "other" and kind != Problem.UNKNOWN)):
                codes[rows, feature], treatment = missing, "counted as missing"
            elif rule == "skip" or column.kind == "numeric" or len(column.values) > _MAX_COMBINATIONS:
                skipped[rows], treatment = True, "not predicted"
            else:
                for row in rows.tolist():
                    of_rows[row] = (*of_rows.get(row, ()), feature)
                treatment = "mean over its categories"
            counts.by_column[column.name, treatment] += len(rows)
    averaged: dict[tuple[int, ...], list[int]] = {}
    for row, features in of_rows.items():
        if math.prod(len(encoding.schema.features[f].values) for f in features) > _MAX_COMBINATIONS:
            skipped[row] = True
        elif not skipped[row]:
            averaged.setdefault(features, []).append(row)
    return skipped, averaged


def _note_examples(encoding: Encoding, table: Table, problems: Problems, first_row: int, counts: NewRowCounts) -> None:
    """Store example values of each column, if the custodian enabled the display of values."""
    for column, _, rows in problems.iter_problems():
        values = [value_at(encoding.column_values(table, column.name), int(row)) for row in rows[:_MAX_EXAMPLES]]
        counts.examples.setdefault(column.name, format_examples(column, values, (rows + first_row).tolist()))
