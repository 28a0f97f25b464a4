# SPDX-License-Identifier: Apache-2.0
"""Preview of the statements that a fit would send to a database, for its owner to review before anything runs.

For random trees, the preview is exact. For forests that depend on released values, later statements have the same form
with other constants, which are released numbers. Secret keys are shown as KEY.
"""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np

from veilwood.arrays import Ints
from veilwood.forests.adaptive.private_forest import PrivateForest
from veilwood.privacy.neighbours import RowsOf
from veilwood.siblings import find_database
from veilwood_engines.sql.backend import preview_queries
from veilwood_engines.sql.dialects import SqlDialect, SqlEngine, column_kind
from veilwood_engines.sql.session import Session, open_session
from veilwood_engines.sql.source import EncodedRows, SqlSource, assumed_types, scratch_table_statements

_KEY: Final = bytes(32)  # stands in for a secret key, and is replaced by "KEY" in the preview
_MAX_STATEMENT_LENGTH: Final = (
    1500  # characters shown of a statement; statements that fill lookup tables are much longer
)


class _DryRunDoor:
    """Release door of a dry run without rows: counts stay 0, and selections return the first admissible candidate."""

    joint_noise_variance = 1.0

    def __init__(self, plan: Any) -> None:
        self.plan = plan

    def refine(self, plan: Any) -> None:
        """Replace the plan."""
        self.plan = plan

    def extend(self, step: Any) -> None:
        """Accept a further step."""

    def release_counts(self, step: Any, exact: Ints) -> Ints:
        """Return the counts, which are 0, without noise."""
        return exact

    def select(self, step: Any, scores: Ints, admissible: Any = None) -> Ints:
        """Select the first admissible candidate."""
        allowed = np.broadcast_to(True if admissible is None else admissible, scores.shape)
        return np.asarray(allowed.argmax(axis=1), np.int64)


def preview_statements(forest: Any, where: str) -> list[str]:
    """Return the statements that ``fit`` would send.

    Parameters
    ----------
    forest : estimator
        An unfitted estimator with its schema and parameters.
    where : str
        Address of a table; only its column names and types are read. Or an engine: "duckdb", "postgres", "sqlite",
        "bigquery", "snowflake" or "spark"; columns then have the types that the schema suggests.

    Examples
    --------
    >>> import veilwood as vw
    >>> schema = vw.Schema.numeric((0, 10), classes=["a", "b"], n_features=1)
    >>> forest = vw.RandomTreesClassifier(schema, n_estimators=1, max_depth=1, random_state=0)
    >>> preview_statements(forest, "postgres")[-1].partition(" THEN 0 ELSE 1 END")[2].partition(" FROM")[0]
    ' + 0 AS c, t AS k, COUNT(*) AS n'
    """
    method = forest._make_method()
    design = forest._design_for(forest._resolve_schema()[0], None, method)
    unit = design.plan.neighbours.unit
    cap = unit if isinstance(unit, RowsOf) else None
    sent: list[str] = []
    encoding = design.encoding
    if find_database(where) is not None:
        session = open_session(where, sent.append)
        columns = session.column_types()
        words, relation = session.dialect, session.relation
        types = {name: (column_kind(type_name, words.engine), type_name) for name, type_name in columns}
    else:
        words = SqlDialect(cast(SqlEngine, where))
        relation, types = words.quote_name(encoding.schema.name), assumed_types(words, encoding, cap)
    rows = EncodedRows.for_table(words, relation, types, encoding, cap, forest.invalid, _KEY)
    dry = Session(words, relation, lambda statement: ([], []), on_statement=sent.append)
    dry.create_scratch_tables([rows.create_statement(), *scratch_table_statements(rows)])
    if forest.invalid == "refuse":
        sent.append(rows.problem_query())
    source = SqlSource.from_session(dry, rows)
    if isinstance(method, PrivateForest):
        preview_queries(design.columns, source, len(encoding.schema.classes))
    else:
        method.measure_rows(design, source, cast(Any, _DryRunDoor(design.plan)))
    return [_shorten_statement(statement) for statement in sent]


def _shorten_statement(sql: str) -> str:
    text = sql.replace(_KEY.hex(), "KEY")
    is_lookup = text.startswith("INSERT INTO veilwood_lookup") and len(text) > _MAX_STATEMENT_LENGTH
    return f"{text[:_MAX_STATEMENT_LENGTH]} ..." if is_lookup else text
