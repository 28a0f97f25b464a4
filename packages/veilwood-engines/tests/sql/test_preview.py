# SPDX-License-Identifier: Apache-2.0
"""Forests that are counted in a database: what needs rows says so."""

from __future__ import annotations

from pathlib import Path

import veilwood as vw
from veilwood.errors import OutOfSchemaError, UseError
from veilwood_testing.databases import database_rows, schema_of, write_databases
from veilwood_testing.errors import rejects


def test_a_table_without_rows_is_refused_or_fine(tmp_path: Path) -> None:
    where = write_databases(database_rows("two", 5).iloc[:0].astype({"age": float}), tmp_path)
    forest = vw.RandomTreesClassifier(schema_of("two"), n_estimators=1, max_depth=1)
    with rejects(OutOfSchemaError, raised_in="EncodedRows.raise_found_problems"):
        forest.fit(where["sqlite"])
    forest.set_params(invalid="drop").fit(where["sqlite"])


def test_what_needs_rows_says_so(tmp_path: Path) -> None:
    address = write_databases(database_rows("two", 30), tmp_path)["duckdb"]
    with rejects(UseError, raised_in="count_in_sql"):
        vw.RandomTreesClassifier(schema_of("two"), n_rows=30).partial_fit(address)
    with rejects(UseError, raised_in="_raise_rows_stay"):
        vw.MatrixForestPredictor(schema_of("two"), n_estimators=2, max_depth=1).fit(address)
    of_people = vw.RandomTreesClassifier(schema_of("two"), privacy_unit={"id": "person", "at_most": 1})
    with rejects(UseError, raised_in="Opener.check"):
        of_people.fit(address, holdout_fraction=0.5)
    with rejects(UseError, raised_in="open_session"):
        vw.RandomTreesClassifier(schema_of("two")).fit(address.partition("#")[0])
    with rejects(UseError, raised_in="_database_file"):
        vw.RandomTreesClassifier(schema_of("two")).fit("duckdb:///nowhere.db#t")
