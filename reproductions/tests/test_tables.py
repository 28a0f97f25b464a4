# SPDX-License-Identifier: Apache-2.0
"""Public tables by name, and the hashes they are known by."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from veilwood.data.schema import Schema
from veilwood.errors import FileError, SetupError
from veilwood_papers.tables import PublicTables, hash_of_file, hash_of_rows, known_tables, packed_rows
from veilwood_testing.errors import rejects


def test_the_hash_of_a_table_sees_every_cell_and_no_order(tmp_path: Path) -> None:
    facts = {"columns": [{"name": "x", "kind": "numeric"}, {"name": "c", "kind": "categorical"}]}
    rows = [["1.50", "a"], ["", "b"], ["3", "1.0"]]
    right = hash_of_rows(["x", "c"], rows, facts)
    assert right == hash_of_rows(["x", "c"], [["3.0", "1.0"], ["1.5", "a"], ["", "b"]], facts)
    for other in ([["1.51", "a"], *rows[1:]], [rows[0], rows[1], ["3", "1"]], rows[:2], [*rows, rows[0]]):
        assert right != hash_of_rows(["x", "c"], other, facts)
    (tmp_path / "t.csv.gz").write_bytes(packed_rows(["x", "c"], rows))
    assert hash_of_file(tmp_path / "t.csv.gz", facts) == right
    (tmp_path / "t.csv.gz").write_bytes(packed_rows(["x", "c"], rows)[:-9])
    with pytest.raises(FileError):
        hash_of_file(tmp_path / "t.csv.gz", facts)


@pytest.mark.parametrize("name", ["car", "balance-scale"])
def test_tables_by_rule_have_the_known_hash(name: str) -> None:
    table = PublicTables().load_table(name)
    rows = table.X.assign(target=table.y).astype(str).to_numpy().tolist()
    header = [column["name"] for column in table.facts["columns"]]
    assert hash_of_rows(header, rows, table.facts) == known_tables()[name]["sha256"]


def test_a_table_that_is_not_here_is_an_error_with_the_next_step() -> None:
    with rejects(SetupError, raised_in="PublicTables.load_table"):
        PublicTables().load_table("banknote")


def test_facts_of_tables_are_schemas() -> None:
    for name, facts in known_tables().items():
        assert Schema.from_dict(facts).name == name
        assert re.fullmatch("[0-9a-f]{64}", facts["sha256"])
        assert facts["licence"]
        assert "class_counts" not in json.dumps(facts)
