# SPDX-License-Identifier: Apache-2.0
"""How the predictions of a model meet the truth, counted in a database: ``scoring`` as SQL.

Sums over trees are added up in the order of the trees, in floats of 64 bits. Where there is an exponential, an engine
may round its last digit otherwise: a row whose score lies on an edge can fall into the bin beside it. What a row adds
follows from the row and the key alone all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilwood.data.counts import CellRule, KeyedRowHash
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.data.schema import Schema
from veilwood.engines.sql.cell_sql import CellSqlWriter, join_selects
from veilwood.engines.sql.dialects import SqlDialect
from veilwood.engines.sql.source import SqlSource
from veilwood.errors import DomainTooLargeError, UseError
from veilwood.estimators.method import Floats, ForestModel
from veilwood.trees.counting import tree_rule

__all__ = [
    "argmax_sql",
    "count_edges_below",
    "count_scores",
    "decode_target_sql",
    "scores_to_sql",
    "smooth_probabilities_sql",
]

MAX_VALUES = 200_000  # leaves times outputs that a query can hold


def count_scores(
    model: Any, cells: Callable[[SqlDialect, Sequence[str], Sequence[str]], list[str]], n_cells: int,
    source: SqlSource, assignment: KeyedRowHash | None,
) -> NDArray[np.int64]:  # fmt: skip
    """Count the rows in their cells; ``cells`` writes them from what the model says and what it chooses by."""
    if not isinstance(model, ForestModel) or not hasattr(model, "to_sql"):
        raise UseError("this model cannot be evaluated in a database. Hint: pass files, or a table in memory.")
    writer, words = source.make_writer(), source.rows.dialect
    if model.leaf_values.size > MAX_VALUES:
        raise DomainTooLargeError("the model is too large to be written as a query. Hint: evaluate it on files.")
    sums = [_sum_leaves(model, output, writer) for output in range(model.leaf_values.shape[1])]
    said, chosen = model.to_sql(words, [f"z{i}" for i in range(len(sums))])
    rows = source.rows_relation()
    if assignment is not None:
        hashed = writer.row_hash_expression(assignment.key, source.rows.feature_names)
        rows = f"(SELECT veilwood_all.*, {hashed} AS h FROM {rows} AS veilwood_all)"
    coin = "" if assignment is None else f", {writer.row_bucket(assignment)} AS coin"
    summed = ", ".join(["t", *(f"{one} AS z{i}" for i, one in enumerate(sums))]) + coin
    kept = ["t", *(["coin"] if assignment else [])]
    told = [*(f"{one} AS p{i}" for i, one in enumerate(said)), *(f"{one} AS a{i}" for i, one in enumerate(chosen))]
    before = (
        f"WITH veilwood_sums AS {words.materialized_keyword}(SELECT {summed} FROM {rows} AS veilwood_from), "
        f"veilwood_said AS {words.materialized_keyword}(SELECT {', '.join([*kept, *told])} FROM veilwood_sums) "
    )
    written = cells(words, [f"p{i}" for i in range(len(said))], [f"a{i}" for i in range(len(chosen))])
    selects = (f"SELECT {cell} AS c, COUNT(*) AS n FROM veilwood_said GROUP BY 1" for cell in written)
    found = np.zeros(n_cells, np.int64)
    for statement in join_selects(selects, before):
        for cell, count in source.session.execute(statement):
            found[int(cell)] += int(count)
    return found


def _sum_leaves(model: ForestModel, output: int, writer: CellSqlWriter) -> str:
    """What the leaves of a row say, tree after tree."""
    values, n_codes = model.leaf_values[:, output].tolist(), model.encoding.n_codes
    ways: list[CellRule] = [
        tree_rule(model.forest, tree, n_codes, rule_of_leaf=values.__getitem__) for tree in range(model.forest.n_trees)
    ]
    return " + ".join([writer.dialect.float_literal(0.0), *(f"({writer.rule(way)})" for way in ways)])


def decode_target_sql(dialect: SqlDialect, level: str, bounds: tuple[float, float]) -> str:
    """A level of a numeric target as a number (``Encoding.decode_target``)."""
    lower, upper = bounds
    return f"({dialect.float_literal(lower)} + {level} * {dialect.float_literal((upper - lower) / TARGET_LEVELS)})"


def scores_to_sql(
    dialect: SqlDialect, start: Floats, sums: Sequence[str], schema: Schema
) -> tuple[list[str], list[str]]:
    """Scores from a start as a number, or as probabilities of classes, which are chosen by them too."""
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
    """Shares as probabilities (``leaves.smooth_probabilities``)."""
    trees, more, even = (dialect.float_literal(float(x)) for x in (n_trees, n_trees + 1, 1 / len(probabilities)))
    return [f"(({share} * {trees} + {even}) / {more})" for share in probabilities]


def count_edges_below(dialect: SqlDialect, x: str, edges: Floats, first: int = 0) -> str:
    """How many edges are below a number."""
    if not len(edges):
        return str(first)
    half = len(edges) // 2
    below = count_edges_below(dialect, x, edges[:half], first)
    above = count_edges_below(dialect, x, edges[half + 1 :], first + half + 1)
    return f"CASE WHEN {x} <= {dialect.float_literal(float(edges[half]))} THEN {below} ELSE {above} END"


def argmax_sql(expressions: Sequence[str]) -> str:
    """The place of the first of the largest."""
    tests = [
        f"WHEN {' AND '.join(f'{one} >= {other}' for other in expressions if other != one)} THEN {place}"
        for place, one in enumerate(expressions)
    ]
    return f"CASE {' '.join(tests)} ELSE 0 END"
