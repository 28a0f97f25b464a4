# SPDX-License-Identifier: Apache-2.0
"""Reviews of drafts at the terminal, with keys, numbers and by script."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from veilwood.cli.main import main
from veilwood.data.schema import Schema
from veilwood_testing.messy import go_through, write_table
from veilwood_testing.terminal import Person


def test_keys_of_a_review(visits: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    main(["schema", "draft", "visits.csv", "-o", "d.json"])
    Person(monkeypatch, "zelxsq", [3, "0 to 130", "a registry", "some law"])
    assert main(["schema", "review", "d.json", "-o", "half.json"]) == 0
    told = capsys.readouterr().out
    assert "press one of a, s, e, k, x, l, q" in told
    half = json.loads(Path("half.json").read_text())
    assert half["columns"][0] | {"bounds": ""} == {
        "name": "age", "kind": "numeric", "lower": 0.0, "upper": 130.0, "bounds": "",
    }  # fmt: skip
    assert half["columns"][2]["bounds"] == "public: some law"  # after ward was put off, and the target not left out
    assert "the target cannot be left out" in told
    assert json.loads(Path("d.json").read_text())["inferred"]
    Person(monkeypatch, "e\x1b", [1, "one"])
    assert main(["schema", "review", "d.json"]) == 0  # the unit is asked for again, as nothing was answered
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert main(["schema", "review", "d.json"]) == 2
    assert "needs a terminal" in capsys.readouterr().err


def test_what_newcomers_typed_into_a_review(
    visits: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pd.read_csv("visits.csv", sep=";", dtype=str)
    table.insert(0, "stay", [f"{row % 5},500" for row in range(len(table))])  # thousands, or thousandths
    table["dose"] = [f"{row % 5},5" for row in range(len(table))]
    table["height"] = [f"{150 + row % 40}.5" for row in range(len(table))]
    table.to_csv("mixed.csv", index=False, sep=";")
    assert main(["schema", "draft", "mixed.csv", "--decimal", ".", "-o", "d.json"]) == 0
    told = capsys.readouterr().out
    assert "Read with sep ';', decimals {'dose': ','}" in told
    assert "'stay' looks like numbers with a decimal comma, and was read as text. Hint: pass --decimal ','" in told
    assert "'ward' looks" not in told
    Person(monkeypatch, "", ["q"])
    assert main(["schema", "review", "d.json"]) == 0
    Person(monkeypatch, "ekq", ["three", 0, "4", "0 to 365", "0 to 365", "the hospital's rules"])
    assert main(["schema", "review", "d.json"]) == 0
    told = capsys.readouterr().out
    assert "enter an integer, such as 3, or q to stop" in told
    assert "these are bounds of numbers, and the column has categories" in told
    draft = json.loads(Path("d.json").read_text())
    assert draft["privacy_unit"]["at_most"] == 4
    assert all("0 to 365" not in column.get("values", []) for column in draft["columns"])
    assert draft["columns"][0] == {
        "name": "stay", "kind": "numeric", "lower": 0, "upper": 365, "bounds": "public: the hospital's rules",
    }  # fmt: skip
    assert draft["dialect"]["decimals"] == {"dose": ",", "stay": ","}
    assert main(["schema", "check", "mixed.csv", "--schema", "d.json"]) == 0


def test_a_review_by_script_leaves_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(Path("visits.csv"), 600, seed=1)
    assert main(["schema", "draft", "visits.csv", "--target", "wiederaufnahme", "-o", "visits.json"]) == 0
    assert len(Path("visits.json").read_bytes()) < 10_000
    go_through(Path("visits.json"))
    assert not Schema.load("visits.json").inferred
    assert "from data" not in Path("visits.json").read_text()
