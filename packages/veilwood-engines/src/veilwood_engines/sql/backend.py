# SPDX-License-Identifier: Apache-2.0
"""Backend for rows in a database: bins and scores are in a temporary table there, and only sums are returned.

Results are the same integers as in ``row_backend``, with the same lookups: class probabilities are in a second
temporary table, and only non-negative integers are divided. Sparse cells are not supported: nearly every row has its
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final, assert_never

import numpy as np

from veilwood.arrays import Int32s, Ints
from veilwood.data import counts
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.errors import MechanismError, UseError
from veilwood.forests.adaptive import row_backend
from veilwood.forests.adaptive.contingency import BinnedColumn
from veilwood.privacy.entropy import secret_key
from veilwood_engines.sql.cell_sql import BinSqlWriter, join_selects
from veilwood_engines.sql.source import BINS_TABLE, LOOKUP_TABLE, SAMPLE_TABLE, SqlSource

MAX_PENDING: Final = 8  # pending steps that each query recomputes; storing scores is an UPDATE that rewrites every row
LOOKUP_ROWS: Final = 4000  # rows of the lookup table that one INSERT writes
UNITS, SCORED = "veilwood_units", "veilwood_scored"
MAX_JOINS: Final = 60  # per query; SQLite allows 64 tables
MAX_JOINT_CELLS: Final = 1024  # maximum number of cells of a table that covers several tables
LOOKUP_RANGE: Final = 10 * row_backend.SCORE_UNITS  # beyond this score, class probabilities no longer change


class SqlBackend(counts.RowBackend):
    """Backend that queries rows in a database (``counts.RowBackend``)."""

    def __init__(self, columns: Sequence[BinnedColumn], source: SqlSource, n_classes: int) -> None:
        session, rows = source.session, source.rows
        if not session.can_create_tables:
            raise UseError(
                "PrivateForest stores scores in a temporary table, and this account may not create temporary tables. "
                "Hint: run GRANT TEMPORARY ON DATABASE, or fit another estimator."
            )
        self._execute, self._execute_integers = session.execute, session.execute_integers
        self._dialect, self._columns, self._n_classes = session.dialect, columns, n_classes
        self._outputs = n_classes if n_classes > 2 else 1
        self._writer = BinSqlWriter(session.dialect, rows.encoding, [column.n_bins for column in columns])
        self._pending: dict[str, list[row_backend.ScoredTable]] = {BINS_TABLE: []}
        encoded = source.make_writer()
        cells = []
        for column in columns:
            way = counts.Split(column.feature, tuple(column.starts.tolist()), tuple(range(column.n_bins)))
            cells.append(encoded.cell_expression(counts.CellQuery((way,), column.n_bins)))
        start = ", ".join(["0"] * self._outputs)
        selected = f"SELECT {', '.join(cells)}, t, {start} FROM ({source.rows_query()}) AS veilwood_from"
        self._execute(f"INSERT INTO {BINS_TABLE} {selected}")
        for statement in lookup_statements(n_classes):
            self._execute(statement)

    # -- the protocol ------------------------------------------------------------------------------------------------

    def run(self, query: counts.RowQuery) -> Ints:
        """Return the result of a query, summed over all rows."""
        return self._run_on(query, BINS_TABLE)

    def run_together(self, asked: Sequence[counts.RowQuery]) -> list[Ints]:
        """Return the results of several queries. Rows and gradients of one table come from one statement."""
        match asked:
            case [counts.RowsByCell(table), counts.GradientSums([same]) as gradients] if table is same:
                if self._dialect.engine == "duckdb":
                    self._apply_pending(BINS_TABLE)
                sums = self._gradient_sums(gradients, BINS_TABLE, with_rows=True)
                return [sums[:, -1], sums[:, :-1]]
        return super().run_together(asked)

    def run_on_sample(self, query: counts.RowQuery, fraction: float) -> tuple[Ints, float]:
        """Run a query on a fraction of the rows, drawn once by a keyed hash; return the fraction too."""
        if SAMPLE_TABLE not in self._pending:
            self._apply_pending(BINS_TABLE)
            names = [f"c{column.feature}" for column in self._columns]
            limit = self._dialect.quote_text(f"{min(int(fraction * 16**8), 16**8 - 1):08x}")
            drawn = self._writer.hashed_rows(BINS_TABLE, secret_key(), names)
            wanted = ", ".join([*names, "t", *(f"s{i}" for i in range(self._outputs))])
            self._execute(
                f"INSERT INTO {SAMPLE_TABLE} SELECT {wanted} FROM {drawn} AS veilwood_drawn WHERE h < {limit}"
            )
            self._pending[SAMPLE_TABLE] = []
        return self._run_on(query, SAMPLE_TABLE), fraction

    def add_scores(self, table: counts.ContingencyTable, values: Int32s) -> None:
        """Add the value of each row's cell to its scores."""
        for name, steps in self._pending.items():
            steps.append((table, values))
            # The parser stack of SQLite holds only a hundred unfinished terms, so nested steps are stored at once.
            if self._dialect.engine == "sqlite" or len(steps) >= MAX_PENDING:
                self._apply_pending(name)

    # -- scores ------------------------------------------------------------------------------------------------------

    def _score_columns(self, name: str) -> list[str]:
        """Return expressions of the scores per output, including steps that are not stored yet."""
        largest, smallest, dialect = str(row_backend.MAX_SCORE), str(-row_backend.MAX_SCORE), self._dialect
        scores = []
        for output in range(self._outputs):
            score = f"s{output}"
            for table, values in self._pending[name]:
                step = self._writer.rule_sql(self._value_rule(table.axes, values[:, output], 0))
                score = dialect.greatest_of(dialect.least_of(f"{score} + {step}", largest), smallest)
            scores.append(score)
        return scores

    def _value_rule(self, axes: Sequence[counts.Axis], values: Int32s, cell: int) -> counts.Split | int:
        """Return the rule, nested column by column, that maps a row to the value of its cell."""
        if not axes:
            return int(values[cell])
        axis = axes[0]
        below = axes[1:]
        return counts.split_by_code(
            axis.feature, axis.groups, lambda group: self._value_rule(below, values, cell * axis.size + group)
        )

    def _apply_pending(self, name: str) -> None:
        if self._pending[name]:
            scores = ", ".join(f"s{output} = {score}" for output, score in enumerate(self._score_columns(name)))
            self._execute(f"UPDATE {name} SET {scores}")
            self._pending[name] = []

    # -- queries -----------------------------------------------------------------------------------------------------

    def _run_on(self, query: counts.RowQuery, name: str) -> Ints:
        if self._dialect.engine == "duckdb":  # rewriting one column costs less than planning the steps in each query
            self._apply_pending(name)
        match query:
            case counts.RowsByCell(table):
                return self._count_cells(self._cell_expression(table), table.n_cells, name)
            case counts.ClassesByCell(tables, n_classes):
                placed = [f"({self._cell_expression(table)}) * {n_classes} + t" for table in tables]
                class_sums = self._sum_tables(placed, ["COUNT(*)"], [t.n_cells * n_classes for t in tables], name, "")
                return np.concatenate([sums[:, 0] for sums in class_sums]).reshape(-1, n_classes)
            case counts.TargetSums():
                rows = self._execute(f"SELECT COUNT(*) AS n, COALESCE(SUM(t), 0) AS s FROM {name}")
                n, up = next(iter(rows), (0, 0))  # a dry run has no rows
                return np.array([int(up), TARGET_LEVELS * int(n) - int(up)], np.int64)
            case counts.ResidualHistogram():
                residual = f"t * {row_backend.LEVEL_UNITS} - ({self._score_columns(name)[0]})"
                marks = [*(int(mark) + 1 for mark in query.marks[:-1])]
                cases = " ".join(f"WHEN z < {mark} THEN {place}" for place, mark in enumerate(marks))
                inner = f"(SELECT {residual} AS z FROM {name}) AS veilwood_away"
                return self._count_cells(f"CASE {cases} ELSE {len(marks)} END" if marks else "0", len(marks) + 1, inner)
            case counts.GradientSums():
                return self._gradient_sums(query, name)
            case counts.EvidenceGain():
                return self._evidence_gain(query, name)
        assert_never(query)

    def _count_cells(self, cell: str, n_cells: int, name: str) -> Ints:
        return self._sum_tables([cell], ["COUNT(*)"], [n_cells], name, "")[0][:, 0]

    def _sum_tables(
        self, cells: Sequence[str], sums: Sequence[str], sizes: Sequence[int], rows: str, prefix: str
    ) -> list[Ints]:
        """Return the sums in each cell of several tables."""
        totals = np.zeros((sum(sizes), len(sums)), np.int64)
        listed = ", ".join(f"{one} AS n{i}" for i, one in enumerate(sums))
        selects = (
            f"SELECT {number} AS b, {cell} AS c, {listed} FROM {rows} GROUP BY 2" for number, cell in enumerate(cells)
        )
        starts, n_cells = np.cumsum([0, *sizes[:-1]]), np.array(sizes)
        for statement in join_selects(selects, prefix):
            answers = self._execute_integers(statement, 2 + len(sums))
            if ((answers[:, 1] < 0) | (answers[:, 1] >= n_cells[answers[:, 0]])).any():
                raise MechanismError("a cell index is outside its table and would overwrite another sum.")
            totals[starts[answers[:, 0]] + answers[:, 1]] = answers[:, 2:]
        return np.split(totals, starts[1:])

    def _cell_expression(self, table: counts.ContingencyTable) -> str:
        """Return the expression of a row's cell in a table."""
        stride, parts = table.n_cells, []
        for axis in table.axes:
            stride //= axis.size
            parts.append(counts.split_by_code(axis.feature, axis.groups.astype(np.int64) * stride))
        return self._writer.cell_expression(counts.CellQuery(tuple(parts), table.n_cells))

    def _gradient_sums(self, query: counts.GradientSums, name: str, *, with_rows: bool = False) -> Ints:
        """Return sums of gradients: groups and gradients are computed once, then each table is a sum over groups.

        ``with_rows`` adds a column with the number of rows.
        """
        axes: dict[tuple[int, bytes], counts.Axis] = {}
        for table in query.tables:
            axes |= {(axis.feature, axis.groups.tobytes()): axis for axis in table.axes}
        number = {key: place for place, key in enumerate(axes)}
        groups = [self._writer.rule_sql(counts.split_by_code(axis.feature, axis.groups)) for axis in axes.values()]
        listed = [f"{group} AS x{place}" for place, group in enumerate(groups)]
        scored = ", ".join([*listed, "t", *(f"{score} AS z{i}" for i, score in enumerate(self._score_columns(name)))])
        known, units = self._gradient_columns(f"(SELECT {scored} FROM {name}) AS {SCORED}", query.limit)
        named = [f"{unit} AS g{i}" for i, unit in enumerate(units)]
        names = ", ".join([*(f"x{place}" for place in range(len(groups))), *named])
        units_query = f"SELECT {names} FROM {known}"
        axes_of_tables = [
            tuple(number[axis.feature, axis.groups.tobytes()] for axis in table.axes) for table in query.tables
        ]
        sizes = [axis.size for axis in axes.values()]
        blocks, block_of = merge_tables(axes_of_tables, sizes)
        cells, totals = [], []
        for block in blocks:
            stride, parts = prod(sizes[axis] for axis in block), []
            totals.append(stride)
            for axis in block:
                stride //= sizes[axis]
                parts.append(f"x{axis} * {stride}")
            cells.append(" + ".join(parts) or "0")
        int64 = self._dialect.type_names.int64  # some engines return sums of integers as another type
        sums = [f"CAST(SUM(g{i}) AS {int64})" for i in range(self._outputs)] + ["COUNT(*)"] * with_rows
        if len(blocks) == 1:
            block_sums = self._sum_tables(cells, sums, totals, f"({units_query}) AS {UNITS}", "")
        elif self._dialect.allows_tables_in_snapshot:  # a table is read faster than a common table expression
            self._execute(f"CREATE TEMPORARY TABLE {UNITS} AS {units_query}")
            block_sums = self._sum_tables(cells, sums, totals, UNITS, "")
            self._execute(f"DROP TABLE {UNITS}")
        else:
            before = f"WITH {UNITS} AS {self._dialect.materialized_keyword}({units_query}) "
            block_sums = self._sum_tables(cells, sums, totals, UNITS, before)
        return np.concatenate([
            split_sums(block_sums[place], blocks[place], table, sizes)
            for table, place in zip(axes_of_tables, block_of, strict=True)
        ])  # fmt: skip

    def _evidence_gain(self, query: counts.EvidenceGain, name: str) -> Ints:
        scored = ", ".join(["t", *(f"{score} AS z{i}" for i, score in enumerate(self._score_columns(name)))])
        known, units = self._gradient_columns(f"(SELECT {scored} FROM {name}) AS {SCORED}", query.limit)
        parts = (f"({unit}) * (z{i} - ({query.start[i]}))" for i, unit in enumerate(units))
        gains = f"SELECT {' + '.join(parts)} AS z FROM {known}"
        size = self._dialect.least_of(
            self._dialect.integer_quotient("ABS(z)", str(row_backend.GRADIENT_UNITS)), str(query.max_gain)
        )
        signed = f"CASE WHEN z < 0 THEN -{size} ELSE {size} END"
        ((total,),) = self._execute(f"SELECT COALESCE(SUM({signed}), 0) AS s FROM ({gains}) AS {UNITS}")
        return np.array([int(total)], np.int64)

    def _gradient_columns(self, scored: str, limit: int) -> tuple[str, list[str]]:
        """Return scored rows joined with lookups, and the gradient per output (``row_backend.row_gradients``)."""
        dialect, units = self._dialect, row_backend.GRADIENT_UNITS
        if self._n_classes == 0:
            residual = f"(t * {row_backend.LEVEL_UNITS} - z0)"
            size = dialect.least_of(dialect.integer_quotient(f"(ABS{residual} * {units})", str(limit)), str(units))
            return scored, [f"CASE WHEN {residual} < 0 THEN -{size} ELSE {size} END"]
        if self._n_classes == 2:
            clipped = dialect.least_of(dialect.greatest_of("z0", str(-LOOKUP_RANGE)), str(LOOKUP_RANGE))
            away = dialect.least_of(dialect.greatest_of(f"t * {units} - l0.v", str(-limit)), str(limit))
            return f"{scored} JOIN {LOOKUP_TABLE} AS l0 ON l0.i = {clipped}", [away]
        best = dialect.greatest_of(*(f"z{i}" for i in range(self._n_classes)))
        behind = [dialect.least_of(f"{best} - z{i}", str(len(row_backend.EXP_TABLE))) for i in range(self._n_classes)]
        power = [f"l{i}.v" for i in range(self._n_classes)]
        # SQLite joins at most 64 tables, so lookups are joined in nested queries. LIMIT prevents their flattening.
        several = dialect.engine == "sqlite" and self._n_classes > MAX_JOINS
        for first in range(0, self._n_classes, MAX_JOINS if several else self._n_classes):
            these = range(first, min(first + MAX_JOINS, self._n_classes) if several else self._n_classes)
            join = "CROSS JOIN" if several else "JOIN"  # fixes the order: rows first, then lookups
            scored += "".join(f" {join} {LOOKUP_TABLE} AS l{i} ON l{i}.i = {behind[i]}" for i in these)
            if several:
                listed = ", ".join(f"l{i}.v AS p{i}" for i in these)
                scored = f"(SELECT {SCORED}.*, {listed} FROM {scored} LIMIT -1) AS {SCORED}"
                power = [f"p{i}" for i in range(self._n_classes)]
        total = f"({' + '.join(power)})"
        shares = [dialect.integer_quotient(f"({one} * {units})", total) for one in power]
        return scored, [f"(CASE WHEN t = {i} THEN {units} ELSE 0 END) - {share}" for i, share in enumerate(shares)]


def merge_tables(tables: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return a few joint tables, as sets of axes, and for each given table the index of the joint table that covers it.

    The sums of a table follow from the joint table by marginalisation. A joint table that covers more than one table
    has at most ``MAX_JOINT_CELLS`` cells.

    >>> merge_tables([(0,), (0, 1), (1, 2), (0, 2)], [4, 4, 4])
    ([(0, 1, 2)], [0, 0, 0, 0])
    """
    has = np.zeros((len(tables), len(sizes)), np.int64)
    for place, table in enumerate(tables):
        has[place, list(table)] = 1
    width, left = has.sum(axis=1), np.ones(len(tables), bool)
    blocks: list[tuple[int, ...]] = []
    block_of = [0] * len(tables)
    while left.any():
        block = has[int(np.flatnonzero(left)[width[left].argmax()])].copy()
        while True:
            missing = width - has @ block
            gain = (left & (missing == 1)) @ has * (1 - block)
            fits = np.array(sizes) * prod(np.array(sizes)[block > 0].tolist()) <= MAX_JOINT_CELLS
            gain = np.where(fits, gain, 0)
            if not gain.any():
                break
            block[int(gain.argmax())] = 1
        inside = left & (width - has @ block == 0)
        for contained in np.flatnonzero(inside).tolist():
            block_of[contained] = len(blocks)
        blocks.append(tuple(np.flatnonzero(block).tolist()))
        left &= ~inside
    return blocks, block_of


def split_sums(sums: Ints, block: tuple[int, ...], table: tuple[int, ...], sizes: Sequence[int]) -> Ints:
    """Marginalise the sums of a joint table to a table that it covers."""
    every = sums.reshape(*(sizes[axis] for axis in block), -1)
    others = tuple(place for place, axis in enumerate(block) if axis not in table)
    small = every.sum(axis=others) if others else every
    order = [axis for axis in block if axis in table]
    moved = np.transpose(small, [*(order.index(axis) for axis in table), len(order)])
    return np.asarray(moved.reshape(-1, sums.shape[1]))


def lookup_statements(n_classes: int) -> Iterator[str]:
    """Return statements that fill the lookup table with public constants: class probabilities or exponentials."""
    if n_classes == 0:
        return
    if n_classes == 2:
        scores = np.arange(-LOOKUP_RANGE, LOOKUP_RANGE + 1)
        shares = -row_backend.row_gradients(
            scores[:, None].astype(np.int32), np.zeros(len(scores), np.int32), 2, row_backend.GRADIENT_UNITS
        )[:, 0]
        pairs = list(zip(scores.tolist(), shares.tolist(), strict=True))
    else:
        pairs = [*enumerate(row_backend.EXP_TABLE.tolist()), (len(row_backend.EXP_TABLE), 0)]
    for first in range(0, len(pairs), LOOKUP_ROWS):
        values = ", ".join(f"({i}, {v})" for i, v in pairs[first : first + LOOKUP_ROWS])
        yield f"INSERT INTO {LOOKUP_TABLE} VALUES {values}"


def preview_queries(columns: Sequence[BinnedColumn], source: SqlSource, n_classes: int) -> None:
    """Run one query of each kind, so that a dry-run session records its form."""
    rows = SqlBackend(columns, source, n_classes)
    one, *others = [column.default_groups(4) for column in columns]
    table = counts.ContingencyTable((one, *others[:1]))
    zeros = np.zeros((table.n_cells, n_classes if n_classes > 2 else 1), np.int32)
    queries: list[counts.RowQuery] = [
        counts.RowsByCell(counts.ContingencyTable((columns[0].ungrouped_axis(),))),
        counts.RowsByCell(table),
    ]
    if n_classes:
        queries += [counts.ClassesByCell([counts.ALL_ROWS], n_classes), counts.ClassesByCell([table], n_classes)]
    else:
        marks = np.array([row_backend.LEVEL_UNITS, TARGET_LEVELS * row_backend.LEVEL_UNITS], np.int64)
        queries += [counts.RowsByCell(counts.ALL_ROWS), counts.TargetSums(), counts.ResidualHistogram(marks)]
    for query in queries:
        rows.run(query)
    rows.add_scores(table, zeros)
    gradients = counts.GradientSums([table], n_classes, row_backend.GRADIENT_UNITS)
    rows.run(gradients)
    rows.run_together([counts.RowsByCell(table), gradients])
    rows.run_on_sample(gradients, 0.5)
    if n_classes:
        rows.run(counts.EvidenceGain(zeros[0], n_classes, row_backend.GRADIENT_UNITS, row_backend.SCORE_UNITS))
