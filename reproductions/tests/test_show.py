# SPDX-License-Identifier: Apache-2.0
"""An exhibit as text, picture and files."""

from __future__ import annotations

import csv
from pathlib import Path

from veilwood_papers.exhibit import Row
from veilwood_papers.runner import all_exhibits, measure_exhibits
from veilwood_papers.show import results_of, to_csv, write_files
from veilwood_papers.tables import PublicTables
from veilwood_testing.exhibits import results_of_exhibit
from veilwood_testing.exhibits import toy_exhibit as toy


def test_files_of_an_exhibit_are_the_same_for_the_same_cells(tmp_path: Path) -> None:
    shown = results_of(toy(), measure_exhibits([toy()], PublicTables(), tmp_path))
    first = {name: path.read_bytes() for name, path in write_files(shown, tmp_path).items()}
    assert first == {name: path.read_bytes() for name, path in write_files(shown, tmp_path).items()}
    assert set(first) == {"table", "picture"}


def test_what_is_not_private_is_marked(found: dict[str, list[Row]]) -> None:
    for exhibit in all_exhibits():
        shown = results_of_exhibit(exhibit, found)
        private = {line["curve"]: line["private"] for line in csv.DictReader(to_csv(shown).splitlines())}
        for curve, word in private.items():
            if any(name in curve for name in ("no noise", "published (", "as printed", "RF (", "ERT (")):
                assert word == "no", (exhibit.name, curve)
