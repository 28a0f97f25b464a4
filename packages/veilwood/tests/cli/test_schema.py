# SPDX-License-Identifier: Apache-2.0
"""Commands on schemas: draft, review, check and discover; predictions that carry an id along."""

from __future__ import annotations

import json
import logging
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer

import veilwood as vw
from veilwood.cli.main import main
from veilwood.data.schema import Schema
from veilwood_testing.tables import NOTE_WORDS, SURNAMES, review_messy_table, write_messy_table


class Person:
    """Somebody at the terminal: keys, and what is typed where a line is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, keys: str, lines: list[Any]) -> None:
        self.keys, self.lines = list(keys), list(lines)
        monkeypatch.setattr(typer, "getchar", lambda: self.keys.pop(0))
        monkeypatch.setattr(typer, "prompt", lambda *words, **more: self.lines.pop(0))
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)


ROOT = Path(__file__).parents[4]


SMALL = ["--epsilon", "5", "--estimator", "random-trees", "--param", "n_estimators=2", "--param", "max_depth=2"]


def test_from_a_draft_by_a_review_to_predictions_with_an_id(
    visits: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schema", "draft", "visits.csv", "-o", "visits.json"]) == 0
    output = capsys.readouterr().out
    assert "'patient_id': looks like an id, proposed as the privacy unit" in output
    assert "'note': free text" in output
    assert "came on foot" not in output + Path("visits.json").read_text()

    # The first half, then q; ward has no usual values, so a key alone does not take its mark.
    somebody = Person(monkeypatch, "aaq", [2])
    assert main(["schema", "review", "visits.json"]) == 0
    output = capsys.readouterr().out
    assert "this key has no function" in output  # ward has no usual values
    assert "2 columns to review" in output
    assert Schema.load("visits.json").inferred
    assert main(["fit", "visits.csv", "--schema", "visits.json", *SMALL, "-o", "m.veilwood"]) == 0
    assert "NOT PRIVATE" in capsys.readouterr().out
    Path("m.veilwood").unlink()

    somebody = Person(monkeypatch, "sea", ["", "A1, B1, C1", "the list of wards", ""])
    assert main(["schema", "review", "visits.json"]) == 0
    output = capsys.readouterr().out
    assert "keeps its mark" in output
    assert "has no marks left" in output
    assert (somebody.keys, somebody.lines) == ([], [])
    schema = Schema.load("visits.json")
    assert not schema.inferred
    assert schema.features[1].values == ("A1", "B1", "C1")
    assert schema.privacy_unit == vw.RowsOf("patient_id", 2)

    assert main(["schema", "check", "visits.csv", "--schema", "visits.json"]) == 0
    assert main(["fit", "visits.csv", "--schema", "visits.json", *SMALL, "-o", "m.veilwood"]) == 0
    assert "all rows of one patient_id (counted as at most 2)" in capsys.readouterr().out
    assert main(["predict", "m.veilwood", "visits.csv", "--keep", "patient_id", "-o", "out.csv"]) == 0
    out = pd.read_csv("out.csv", dtype=str)
    assert list(out) == ["patient_id", "prediction"]
    assert out["patient_id"].tolist() == [f"{row // 2:04d}" for row in range(120)]
    # New rows need neither the target nor the note, and may have the id.
    bare = pd.read_csv("visits.csv", sep=";", dtype=str).drop(columns=["ill", "note"])
    bare.to_csv("new.csv", index=False)
    assert main(["predict", "m.veilwood", "new.csv", "--sep", ",", "-o", "new_out.csv"]) == 0
    assert Path("new_out.csv").read_text().splitlines()[1:] == [line.split(",")[1] for line in out_lines("out.csv")]
    for words, error in (
        (["--keep", "patient"], "Did you mean 'patient_id'"),
        (["--keep", "prediction"], "rename"),
        (["--sep", ","], "separated by ';'"),
    ):
        assert main(["predict", "m.veilwood", "visits.csv", *words]) == 2
        assert error in capsys.readouterr().err


def out_lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()[1:]


def test_a_check_tells_how_many_rows_count_as_other(visits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["schema", "draft", "visits.csv", "-o", "d.json"])
    draft, table = json.loads(Path("d.json").read_text()), pd.read_csv("visits.csv", sep=";", dtype=str)
    ward = next(column for column in draft["columns"] if column["name"] == "ward")
    first = ward["values"][0]
    ward |= {"values": [first, "rest"], "other": "rest"}
    Path("d.json").write_text(json.dumps(draft))
    capsys.readouterr()
    assert main(["schema", "check", "visits.csv", "--schema", "d.json"]) == 0
    assert "60" not in capsys.readouterr().out  # what fits says the same whatever the rows
    assert main(["schema", "check", "visits.csv", "--schema", "d.json", "--show-values"]) == 0
    rest = int((table["ward"] != first).sum())
    assert 0 < rest < len(table)
    assert f"ward{rest:>32}" in capsys.readouterr().out
    assert main(["schema", "check", "visits.csv", "--schema", "d.json", "--json", "--show-values"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["ward"] == {"other": rest}


def test_a_check_lists_all_problems_and_a_fit_names_them(visits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["schema", "draft", "visits.csv", "-o", "d.json"])
    table = pd.read_csv("visits.csv", sep=";", dtype=str)
    table.loc[3, "age"], table.loc[4, "age"], table.loc[5, "ward"], table.loc[6, "ill"] = (
        "old",
        None,
        "Hidden",
        "perhaps",
    )
    table.to_csv("odd.csv", index=False, sep=";")
    capsys.readouterr()
    assert main(["schema", "check", "odd.csv", "--schema", "d.json"]) == 2
    output = capsys.readouterr().err
    for problem in (
        "'age': missing value in 1 row",
        "'age': not a number in 1 row",
        "'ward': unknown",
        "'ill': unknown",
    ):
        assert problem in output
    assert main(["fit", "odd.csv", "--schema", "d.json", *SMALL]) == 2
    output = capsys.readouterr().err
    for name in ("'age' has a missing value", "'age' must contain numbers only", "'ward'", "'ill'"):
        assert name in output
    assert not any(value in output for value in ("old,", "Hidden", "perhaps", "in 1 row"))
    assert main(["fit", "visits.csv", "--schema", "d.json", *SMALL, "--sep", "|"]) == 2
    assert "separated by ';'" in capsys.readouterr().err


def test_a_schema_is_discovered_at_a_price(visits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = pd.concat([pd.read_csv("visits.csv", sep=";", dtype=str)] * 20)
    rows.to_csv("big.csv", index=False, sep=";")
    main(["ledger", "create", "l.db", "--epsilon", "5", "--delta", "1e-5"])
    words = ["schema", "discover", "big.csv", "--epsilon", "3", "--delta", "1e-6", "--sep", ";", "--ignore", "note",
             "--ignore", "patient_id", "--ledger", "l.db"]  # fmt: skip
    assert main([*words, "-o", "found.json"]) == 0
    output = capsys.readouterr().out
    assert "Certificate: private: epsilon=3, delta=1e-06" in output
    assert Schema.load("found.json").dialect.sep == ";"
    assert json.loads(Path("found.json").read_text())["certificate"]["ledger_entry"] == 2
    assert main(["schema", "check", "big.csv", "--schema", "found.json"]) == 0
    assert main(["fit", "big.csv", "--schema", "found.json", *SMALL]) == 0
    assert main([*words, "-o", "again.json"]) == 3  # the budget is spent
    assert not Path("again.json").exists()
    assert main([*words[:-2], "--delta", "0"]) == 2
    assert "bounds_only=True" in capsys.readouterr().err
    assert main([*words[:-2], "--dialect", "german"]) == 2


# -- the messy table, from CSV to predictions, by commands -------------------------------------------------------------


def test_the_messy_table_from_csv_to_a_signed_report(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The example itself, on fewer rows; no note, name, id or amount of a patient is in what it prints or writes."""
    monkeypatch.setattr(sys, "argv", ["messy_table.py", str(tmp_path), "1000"])
    caplog.set_level(logging.DEBUG)
    runpy.run_path(str(ROOT / "examples" / "messy_table.py"), run_name="__main__")
    output = "".join(capfd.readouterr())
    assert "Learned  AUC" in output
    assert "NOT PRIVATE" not in output
    assert "all rows of one patient_id (counted as at most 3)" in " ".join(output.split())
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 1001
    table = pd.read_csv(tmp_path / "visits.csv", sep=";", encoding="cp1252", dtype=str)
    own = {"visits.csv", "predictions.csv"}  # the table, and what was asked to keep a column of it
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in own]
    assert {f"visits.{end}" for end in ("json", "veilwood", "veilwood.sig", "db", "html")} <= {f.name for f in files}
    written = output.encode() + caplog.text.encode() + b"".join(path.read_bytes() for path in files)
    private = {*table["fallnummer"], *table["patient_id"], *table["notiz"], *table["kosten"], *table["name"], *SURNAMES}
    private |= set(table["plz"]) | set(table["geburtsdatum"])
    assert [value for value in private if value.encode() in written and not value.isdigit()] == []
    assert not any(word.encode() in written for word in NOTE_WORDS if len(word) > 8)
    # No number that a computer writes begins with 0 and has no point, so that such a postcode would be one.
    east = {code for code in table["plz"] if code.startswith("0")}
    assert len(east) > 20
    words = output + caplog.text + "".join((tmp_path / f"visits.{end}").read_text() for end in ("json", "html"))
    assert east.isdisjoint(re.findall(r"(?<![\w.,-])0\d{4}(?![\w.,])", words))


def test_keys_of_a_review(visits: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    main(["schema", "draft", "visits.csv", "-o", "d.json"])
    Person(monkeypatch, "zelxsq", [3, "0 to 130", "a registry", "some law"])
    assert main(["schema", "review", "d.json", "-o", "half.json"]) == 0
    output = capsys.readouterr().out
    assert "press one of a, s, e, k, m, x, u, l, q" in output
    half = json.loads(Path("half.json").read_text())
    assert half["columns"][0] | {"bounds": ""} == {
        "name": "age", "kind": "numeric", "lower": 0.0, "upper": 130.0, "whole": True, "known_from": "a registry",
        "bounds": "",
    }  # fmt: skip
    assert half["columns"][2]["known_from"] == "some law"  # after ward was put off, and the target not left out
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
    output = capsys.readouterr().out
    assert "Read with sep ';', decimals {'dose': ','}" in output
    assert "'stay' seems to contain numbers with a decimal comma but was read as text. Hint: press k" in output
    assert "'ward' looks" not in output
    Person(monkeypatch, "", ["q"])
    assert main(["schema", "review", "d.json"]) == 0
    Person(monkeypatch, "ekq", ["three", 0, "4", "0 to 365", "0 to 365", "the hospital's rules"])
    assert main(["schema", "review", "d.json"]) == 0
    output = capsys.readouterr().out
    assert "enter an integer such as 3" in output
    assert "the answer has numeric bounds, but the column is categorical" in output
    draft = json.loads(Path("d.json").read_text())
    assert draft["privacy_unit"]["at_most"] == 4
    assert all("0 to 365" not in column.get("values", []) for column in draft["columns"])
    assert draft["columns"][0] == {
        "name": "stay", "kind": "numeric", "lower": 0, "upper": 365, "known_from": "the hospital's rules",
    }  # fmt: skip
    assert draft["dialect"]["decimals"] == {"dose": ",", "stay": ","}
    assert main(["schema", "check", "mixed.csv", "--schema", "d.json"]) == 0


def test_a_review_by_script_leaves_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_messy_table(Path("visits.csv"), 600, seed=1)
    assert main(["schema", "draft", "visits.csv", "--target", "wiederaufnahme", "-o", "visits.json"]) == 0
    assert len(Path("visits.json").read_bytes()) < 10_000
    review_messy_table(Path("visits.json"))
    assert not Schema.load("visits.json").inferred
    assert "from data" not in Path("visits.json").read_text()
