# SPDX-License-Identifier: Apache-2.0
"""M-RF is measured on what was published: the authors' split, their groups of Adult, and one forest a repeat."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from veilwood.data.encoding import Encoding
from veilwood.estimators import MatrixForestPredictor
from veilwood.papers.exhibit import Cell, Value, verdict
from veilwood.papers.mrf import adult, methods
from veilwood.papers.published import read
from veilwood.papers.tables import Table, Tables, known
from veilwood.privacy.ledger import MemoryLedger

PANELS = {"Car": "car", "Iris": "iris", "Balance": "balance-scale"}


@pytest.mark.parametrize("panel", PANELS)
def test_the_split_is_that_of_the_authors(panel: str) -> None:
    """The class that is most frequent among training rows has the share among test rows that theirs has."""
    data = methods.split(methods.load(Tables(), PANELS[panel]), 7)
    (theirs,) = (r for r in read("mrf_nonprivate") if r["model"] == "majority class" and r["dataset"] == panel)
    assert round(float(np.mean(data.truth == data.y.value_counts().idxmax())), 4) == float(theirs["accuracy"])


def test_a_value_on_a_cut_falls_to_its_left() -> None:
    table = methods.load(Tables(), "iris")
    row = table.X.iloc[[0]].assign(petal_length=5.0, sepal_length=5.0, sepal_width=3.0, petal_width=1.5)
    codes = Encoding(table.schema, "bins").encode(row)
    assert codes.tolist() == [[0, 0, 3, 2]]


def random_adult(n: int) -> Table:
    facts, rng = known()["adult-both"], np.random.default_rng(0)
    columns = {
        c["name"]: rng.uniform(c["lower"], c["upper"], n) if c["kind"] == "numeric" else rng.choice(c["values"], n)
        for c in facts["columns"]
    }
    frame = pd.DataFrame(columns)
    return Table({**facts, "columns": [dict(c) for c in facts["columns"]]}, frame.drop(columns="income"), frame.income)


def test_adult_is_grouped_and_complete() -> None:
    table = random_adult(500)
    complete = int((table.X != adult.MISSING).all(axis=1).sum())
    grouped = adult.adult_in_groups(table)
    assert len(grouped.X) == len(grouped.y) == complete < 500
    assert grouped.X.notna().all(axis=None), "every category has a group"
    for column in grouped.facts["columns"]:
        if "mrf_cutoffs" in column:
            column["cutoffs"] = column["mrf_cutoffs"]
    cells = math.prod(column.n_codes for column in Encoding(grouped.schema, "bins").columns)
    assert cells == 168_000
    assert set(grouped.X.columns) == {c["name"] for c in grouped.facts["columns"]} - {"income"}


def test_one_repeat_that_was_published_spreads_as_ours_do() -> None:
    cell, ours, theirs = Cell("Car", "training", "1"), Value(0.7, 0.02, 25), Value(0.85, 0.01, 5)
    assert verdict(cell, ours, theirs) == "worse"
    assert verdict(cell, ours, theirs, published_once=True) == "same"
    assert verdict(cell, ours, Value(0.95, 0.01, 5), published_once=True) == "worse"
    assert verdict(cell, ours, Value(0.45, 0.01, 5), published_once=True) == "better"


def test_a_batch_that_was_planned_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from veilwood.forests.matrix.answering import Answering

    searched: list[Any] = []
    plan = Answering.plan
    monkeypatch.setattr(Answering, "plan", lambda self, *given: searched.append(1) or plan(self, *given))
    data = methods.split(methods.load(Tables(), "car"), 0)
    size: dict[str, Any] = {"n_estimators": 2, "max_depth": 1, "n_jobs": 1, "random_state": 0}
    predictor = MatrixForestPredictor(data.schema, ledger=MemoryLedger(), **size).fit(data.X, data.y)
    assert predictor.plan_answer(data.asked[:3]).fingerprint() == predictor.plan_answer(data.asked[:3]).fingerprint()
    predictor.answer(data.asked[:3])
    assert len(searched) == 1
    predictor.answer(data.asked[:4])
    predictor.answer(data.asked[:3], epsilon=0.5)  # answered before, for free: nothing to plan
    predictor.forget_answers()
    predictor.answer(data.asked[:3], epsilon=0.5)
    predictor.set_params(mechanism="laplace").plan_answer(data.asked[:3], epsilon=0.5)
    assert len(searched) == 4
