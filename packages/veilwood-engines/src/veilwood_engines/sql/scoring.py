# SPDX-License-Identifier: Apache-2.0
"""Evaluation in a database: SQL for the predictions of a model, and counts of them by true class or target.

Sums over trees are computed in the order of the trees, in floats of 64 bits. An engine may round the last digit of an
exponential differently, so a row with a score on an edge can fall into the neighbouring bin. The cells of a row still
depend only on the row and the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np

from veilwood.arrays import Floats
from veilwood.data.batches import Sums
from veilwood.data.counts import CellRule, KeyedRowHash
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.data.schema import Schema
from veilwood.errors import DomainTooLargeError, UseError
from veilwood.estimators.method import ForestModel
from veilwood.evaluation.scoring import N_SIZES, SCORE_BINS, SCORE_EDGES, SIZE_EDGES, TARGET_BINS, ScoreCount, Scoring
from veilwood.forests.adaptive.private_forest import PrivateForestModel
from veilwood.forests.matrix.training import GEOMETRIC, MatrixModel
from veilwood.forests.noisy_leaves import LeafModel
from veilwood.trees.counting import tree_rule
from veilwood_engines.sql.cell_sql import CellSqlWriter, join_selects
from veilwood_engines.sql.dialects import SqlDialect
from veilwood_engines.sql.source import SqlSource

MAX_VALUES = 200_000  # leaves times outputs that one query can hold


@singledispatch
def count_in_sql(count: Any, source: SqlSource) -> Sums:
    """Return the sums of a count over a source. Raise UseError if the count has no SQL form."""
    raise UseError("this count cannot run in a database. Hint: pass files, or a table in memory.")


@count_in_sql.register
def _(count: ScoreCount, source: SqlSource) -> Sums:
    if count.scoring.model.votes_by_chance:
        raise UseError("probabilistic voting cannot be evaluated in a database. Hint: pass files or a table.")
    return count_scores(count, source)


@singledispatch
def model_to_sql(model: Any, dialect: SqlDialect, sums: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return expressions of ``predict_outputs``, from sums over trees, and of the values that decide the class."""
    raise UseError("this model cannot be evaluated in a database. Hint: pass files, or a table in memory.")


@model_to_sql.register
def _(model: LeafModel, dialect: SqlDialect, sums: Sequence[str]) -> tuple[list[str], list[str]]:
    shares = [f"({one} / {dialect.float_literal(float(model.forest.n_trees))})" for one in sums]
    if model.encoding.schema.classes:
        return (smooth_probabilities_sql(dialect, shares, model.forest.n_trees) if model.smoothed else shares), shares
    level = f"({shares[0]} * {dialect.float_literal(TARGET_LEVELS)})"
    return [decode_target_sql(dialect, level, model.encoding.schema.target.bounds)], []


@model_to_sql.register
def _(model: MatrixModel, dialect: SqlDialect, sums: Sequence[str]) -> tuple[list[str], list[str]]:
    if model.voting == GEOMETRIC:
        means = [f"({one} / {dialect.float_literal(float(model.forest.n_trees))})" for one in sums]
        return scores_to_sql(dialect, np.zeros(len(sums)), means, model.encoding.schema)
    # Probabilities are normalized votes, but the votes themselves decide the class, as in ``predict``.
    zero, even = dialect.float_literal(0.0), dialect.float_literal(1 / len(sums))
    votes = [dialect.greatest_of(one, zero) for one in sums]
    total = f"({' + '.join(votes)})"
    shares = [f"(CASE WHEN {total} > {zero} THEN {one} / {total} ELSE {even} END)" for one in votes]
    return smooth_probabilities_sql(dialect, shares, model.forest.n_trees), list(sums)


@model_to_sql.register
def _(model: PrivateForestModel, dialect: SqlDialect, sums: Sequence[str]) -> tuple[list[str], list[str]]:
    if model.cell_forest is not None:
        raise UseError("a model with sparse cells cannot be evaluated in a database. Hint: evaluate it on files.")
    return scores_to_sql(dialect, model.start, sums, model.encoding.schema)


def count_scores(count: ScoreCount, source: SqlSource) -> Sums:
    """Count the rows of a table by the cells of a ``Scoring``, inside the database."""
    scoring, model = count.scoring, count.scoring.model
    if not isinstance(model, ForestModel):
        raise UseError("this model cannot be evaluated in a database. Hint: pass files, or a table in memory.")
    assignment = None if count.assignment is None else KeyedRowHash(count.assignment.key, count.assignment.n_trees)
    writer, dialect = source.make_writer(), source.rows.dialect
    if model.leaf_values.size > MAX_VALUES:
        raise DomainTooLargeError("the model is too large for a query. Hint: evaluate it on files.")
    sums = [_sum_leaves(model, output, writer) for output in range(model.leaf_values.shape[1])]
    outputs, chosen = model_to_sql(model, dialect, [f"z{i}" for i in range(len(sums))])
    rows = source.rows_relation()
    if assignment is not None:  # the draws depend on the contents of rows, so they are the same in each query
        rows = writer.hashed_rows(rows, assignment.key, source.rows.feature_names)
    coin = "" if assignment is None else f", {writer.row_bucket(assignment)} AS coin"
    summed = ", ".join(["t", *(f"{one} AS z{i}" for i, one in enumerate(sums))]) + coin
    passed_on = ["t", *(["coin"] if assignment else [])]
    expressions = [
        *(f"{one} AS p{i}" for i, one in enumerate(outputs)),
        *(f"{one} AS a{i}" for i, one in enumerate(chosen)),
    ]
    selected = ", ".join([*passed_on, *expressions])
    common_tables = (
        f"WITH veilwood_sums AS {dialect.materialized_keyword}(SELECT {summed} FROM {rows} AS veilwood_from), "
        f"veilwood_said AS {dialect.materialized_keyword}(SELECT {selected} FROM veilwood_sums) "
    )
    cells = _cell_expressions(
        scoring, dialect, [f"p{i}" for i in range(len(outputs))], [f"a{i}" for i in range(len(chosen))]
    )
    selects = (f"SELECT {cell} AS c, COUNT(*) AS n FROM veilwood_said GROUP BY 1" for cell in cells)
    counts = np.zeros(scoring.n_cells, np.int64)
    for statement in join_selects(selects, common_tables):
        for cell, n_rows in source.session.execute(statement):
            counts[int(cell)] += int(n_rows)
    return counts


def _sum_leaves(model: ForestModel, output: int, writer: CellSqlWriter) -> str:
    """Return the expression of the sum of a row's leaf values, in the order of the trees."""
    values, n_codes = model.leaf_values[:, output].tolist(), model.encoding.n_codes
    ways: list[CellRule] = [
        tree_rule(model.forest, tree, n_codes, rule_of_leaf=values.__getitem__) for tree in range(model.forest.n_trees)
    ]
    return " + ".join([writer.dialect.float_literal(0.0), *(f"({writer.rule_sql(way)})" for way in ways)])


def decode_target_sql(dialect: SqlDialect, level: str, bounds: tuple[float, float]) -> str:
    """Return the expression of a number from its level (``Encoding.decode_target``)."""
    lower, upper = bounds
    return f"({dialect.float_literal(lower)} + {level} * {dialect.float_literal((upper - lower) / TARGET_LEVELS)})"


def scores_to_sql(
    dialect: SqlDialect, start: Floats, sums: Sequence[str], schema: Schema
) -> tuple[list[str], list[str]]:
    """Return expressions of a number, or of class probabilities, which also decide the class."""
    number = dialect.float_literal
    started = [f"({number(one)} + {z})" for one, z in zip(start.tolist(), sums, strict=True)]
    if not schema.classes:
        share = dialect.least_of(dialect.greatest_of(started[0], number(0.0)), number(1.0))
        return [decode_target_sql(dialect, f"({share} * {number(TARGET_LEVELS)})", schema.target.bounds)], []
    if len(started) == 1:
        clipped = dialect.least_of(dialect.greatest_of(started[0], number(-50.0)), number(50.0))
        second = f"({number(1.0)} / ({number(1.0)} + EXP(-{clipped})))"
        shares = [f"({number(1.0)} - {second})", second]
    else:
        best = dialect.greatest_of(*started)
        powers = [f"EXP({dialect.greatest_of(f'{one} - {best}', number(-700.0))})" for one in started]
        shares = [f"({power} / ({' + '.join(powers)}))" for power in powers]
    return shares, shares


def smooth_probabilities_sql(dialect: SqlDialect, probabilities: Sequence[str], n_trees: int) -> list[str]:
    """Return expressions of smoothed probabilities (``leaves.smooth_probabilities``)."""
    trees, more, even = (dialect.float_literal(float(x)) for x in (n_trees, n_trees + 1, 1 / len(probabilities)))
    return [f"(({share} * {trees} + {even}) / {more})" for share in probabilities]


def count_edges_below(dialect: SqlDialect, x: str, edges: Floats, first: int = 0) -> str:
    """Return the expression of the number of edges below a number."""
    if not len(edges):
        return str(first)
    half = len(edges) // 2
    below = count_edges_below(dialect, x, edges[:half], first)
    above = count_edges_below(dialect, x, edges[half + 1 :], first + half + 1)
    return f"CASE WHEN {x} <= {dialect.float_literal(float(edges[half]))} THEN {below} ELSE {above} END"


def argmax_sql(expressions: Sequence[str]) -> str:
    """Return the expression of the index of the maximum; ties go to the lowest index."""
    tests = [
        f"WHEN {' AND '.join(f'{one} >= {other}' for other in expressions if other != one)} THEN {place}"
        for place, one in enumerate(expressions)
    ]
    return f"CASE {' '.join(tests)} ELSE 0 END"


def _cell_expressions(
    scoring: Scoring, dialect: SqlDialect, outputs: Sequence[str], chosen: Sequence[str]
) -> list[str]:
    """Return the cells of a row, one per table (``Scoring.cell_indices``)."""
    k = scoring.n_classes
    if not k:
        lower, upper = scoring.model.encoding.schema.target.bounds
        true = f"CAST(t AS {dialect.type_names.double}) / {dialect.float_literal(TARGET_LEVELS)}"
        wrong = f"({true} - ({outputs[0]} - {dialect.float_literal(lower)}) / {dialect.float_literal(upper - lower)})"
        size = count_edges_below(dialect, f"ABS({wrong})", SIZE_EDGES)
        sign = f"CASE WHEN {wrong} > {dialect.float_literal(0.0)} THEN {N_SIZES} ELSE 0 END"
        place = dialect.integer_quotient(f"(t * {TARGET_BINS})", str(TARGET_LEVELS + 1))
        return [f"{sign} + {size}", f"{2 * N_SIZES} + {place}"]
    if scoring.is_single_table:
        bins, half = count_edges_below(dialect, outputs[1], SCORE_EDGES), SCORE_BINS // 2
        above, below = dialect.greatest_of(bins, str(half)), dialect.least_of(bins, str(half - 1))
        return [f"t * {SCORE_BINS} + CASE WHEN {chosen[1]} > {chosen[0]} THEN {above} ELSE {below} END"]
    others = f"(coin - {k - 1})"
    drawn = f"(CASE WHEN {others} < 0 THEN t WHEN {others} >= t THEN {others} + 1 ELSE {others} END)"
    true_score, drawn_score = (
        f"(CASE {' '.join(f'WHEN {which} = {i} THEN {one}' for i, one in enumerate(outputs))} END)"
        for which in ("t", drawn)
    )
    is_true = f"CASE WHEN {drawn} = t THEN 1 ELSE 0 END"
    of_drawn = f"({drawn} * 2 + {is_true}) * {SCORE_BINS} + {count_edges_below(dialect, drawn_score, SCORE_EDGES)}"
    return [
        f"t * {k} + {argmax_sql(chosen)}",
        f"{k * k} + {count_edges_below(dialect, true_score, SCORE_EDGES)}",
        f"{k * k + SCORE_BINS} + {of_drawn}",
    ]
