# SPDX-License-Identifier: Apache-2.0
"""Answers of a custodian, and the facts of small releases."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

import veilwood as vw
from veilwood.release_pack.card import CustodianCard, ReleaseFacts, card_template
from veilwood.release_pack.pack import _ledger_extract, _opening_plan

ANSWERS = {
    "title": "No-shows of clinic X",
    "contact": "privacy@clinic.example",
    "region": "Freiburg, Germany",
    "license": "cc-by-4.0",
    "release_type": "One release",
    "data_source_type": "Static",
    "purpose": "To plan visits of the next year; not to decide about any patient.",
    "people": "Patients of clinic X in 2031, one row for each visit, from the booking system.",
    "decision": "The data protection board chose epsilon 1 on 4 May 2031, after the plan was read to it.",
    "access": "Two clerks reach the rows on a machine without a network.",
    "other_uses": "Yearly totals of visits were published in 2032 without noise.",
}


def card_text(**changes: str) -> str:
    """Return a card with answers; a change to an empty text leaves a question open."""
    text = (
        card_template().replace("curators = []", 'curators = ["Clinic X"]').replace("authors = []", 'authors = ["A"]')
    )
    for name, answer in {**ANSWERS, **changes}.items():
        text, found = re.subn(rf'^{name} = ""$', lambda _, n=name, a=answer: f'{n} = "{a}"', text, flags=re.M)  # type: ignore[misc]
        assert found == 1, name
    return text


def fit_and_charge(kind: Any, ledger: Any, **parameters: Any) -> Any:
    """Return a small forest of a class, charged to a ledger."""
    if kind.__name__.endswith("Regressor"):
        schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=2)
        rows: Any = np.random.default_rng(0).random((400, 2))
        target: Any = 10 * rows[:, 0]
    else:
        car = vw.datasets.car()
        schema, rows, target = car.schema, car.X, car.y
    if "privacy_unit" in parameters:
        rows = pd.DataFrame(rows).assign(person=np.arange(len(rows)) // 3)
    return kind(schema, random_state=0, ledger=ledger, **parameters).fit(rows, target)


def facts_of(kind: Any, card: str | None = None, **parameters: Any) -> ReleaseFacts:
    """Return the facts of a small release."""
    ledger = vw.MemoryLedger(epsilon=4, delta=1e-5)
    forest = fit_and_charge(kind, ledger, **parameters)
    answers = CustodianCard.from_toml(card_text() if card is None else card)
    return ReleaseFacts(forest, _opening_plan(forest), answers, _ledger_extract(ledger), "2031-05-05")
