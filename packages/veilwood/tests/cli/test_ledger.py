# SPDX-License-Identifier: Apache-2.0
"""The commands of those who keep a ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.cli.main import main
from veilwood.privacy.loss import Loss, exact_fraction


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) not in (0, 1)
    return capsys.readouterr().err


def text(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return " ".join(capsys.readouterr().out.split())  # lines wrap at the width of the terminal


def write_visits(folder: Path, inferred: bool = False) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.random((60, 2)), columns=["x0", "x1"]).assign(target=rng.choice(["no", "yes"], 60))
    frame.to_csv(folder / "visits.csv", index=False)
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2).to_dict()
    (folder / "visits.json").write_text(json.dumps(schema | ({"inferred": True} if inferred else {})))


FIT = ["fit", "visits.csv", "--schema", "visits.json", "--epsilon", "0.5"]
FIT += ["--estimator", "random-trees", "--param", "max_depth=2"]


def test_create_says_whom_it_protects(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("ledger", "create", "x.db", "--epsilon", "1", "--delta", "1e-6", "--population", "patients of clinic X")
    made = answer(capsys, *words)
    assert (made["of"], made["budget"]) == ("patients of clinic X", "epsilon=1, delta=1e-06")
    assert "of patients of clinic X" in text(capsys, "ledger", "show", "x.db")
    assert vw.open_ledger("x.db").population == "patients of clinic X"
    assert answer(capsys, "ledger", "create", "y.db")["of"] is None


def test_show_lists_by_table_and_says_what_adds_up(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_visits(here)
    answer(capsys, "ledger", "create", "x.db", "--epsilon", "3")
    answer(capsys, *FIT, "--ledger", "x.db")
    book = vw.open_ledger("x.db")
    neighbours = book.entries()[0].neighbours
    book.reserve(
        Loss.pure(exact_fraction(1)), what="x", neighbours=neighbours, plan="0", table="stays.csv", schema="ab"
    )
    printed = text(capsys, "ledger", "show", "x.db")
    assert "visits.csv: epsilon=0.5" in printed
    assert str(here) not in printed
    assert "stays.csv: epsilon=1" in printed
    assert "same people, so their losses add up" in printed
    assert "reserved: charged before noise was drawn" in printed
    entries = answer(capsys, "ledger", "show", "x.db")["entries"]
    assert [entry["table"] for entry in entries] == [str(here / "visits.csv"), "stays.csv"]
    assert entries[0]["schema"] == vw.Schema.load("visits.json").fingerprint()


def test_resolve_settles_as_spent(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = vw.SQLiteLedger("x.db", 1)
    left = book.reserve(Loss.pure(exact_fraction(0.5)), what="x", neighbours="rows", plan="0")
    done = answer(capsys, "ledger", "resolve", "x.db", str(left.id), "--reason", "power failure")
    assert (done["resolved"], done["spent"], done["remaining"]) == (left.id, "epsilon=0.5", "epsilon=0.5")
    assert "resolved by a custodian: power failure" in text(capsys, "ledger", "show", "x.db")
    assert answer(capsys, "ledger", "verify", "x.db")["intact"]
    assert "only a reserved entry" in refused(capsys, "ledger", "resolve", "x.db", str(left.id), "--reason", "again")
    assert "--reason" in refused(capsys, "ledger", "resolve", "x.db", str(left.id))
    assert "reason" in refused(capsys, "ledger", "resolve", "x.db", str(left.id), "--reason", " ")
    assert "there is no ledger" in refused(capsys, "ledger", "resolve", "nosuch.db", "2", "--reason", "x")


def test_a_budget_refuses_a_draft_and_a_free_ledger_names_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_visits(here, inferred=True)
    answer(capsys, "ledger", "create", "x.db", "--epsilon", "3")
    message = refused(capsys, *FIT, "--ledger", "x.db")
    assert "NOT PRIVATE: the schema was inferred" in message
    assert "Nothing was spent." in message
    assert not (here / "visits.veilwood").exists()
    answer(capsys, "ledger", "create", "free.db")
    answer(capsys, *FIT, "--ledger", "free.db")
    facts = answer(capsys, "ledger", "show", "free.db")
    assert (facts["spent"], facts["unbounded_by"]) == ("unbounded (NOT PRIVATE)", 2)
    assert "because of entry 2" in text(capsys, "ledger", "show", "free.db")
