# SPDX-License-Identifier: Apache-2.0
"""The checklist: every row has an answer, proofs exist, and answers follow the release."""

from __future__ import annotations

from typing import Any

import pytest

import veilwood as vw
from veilwood import estimators
from veilwood.privacy.noise import Mechanism
from veilwood.release_pack.checklist import (
    _MECHANISM_PAGES,
    ASSUMED,
    NOT_COVERED,
    PROVED,
    checklist,
    checklist_data,
    checklist_page,
    mechanism_pages,
)
from veilwood_testing import ROOT
from veilwood_testing.release_packs import ANSWERS, card_text, facts_of

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning", "ignore::veilwood.PrivacyWarning")

NAMES = [name for name in estimators.__all__ if name != "MatrixForestPredictor"]


def answers(facts: Any) -> dict[str, str]:
    return {row.topic: row.answer for row in checklist(facts)}


@pytest.mark.parametrize("name", NAMES)
def test_every_estimator_has_answers_with_proofs_that_exist(name: str) -> None:
    facts = facts_of(getattr(vw, name), epsilon=1.0)
    rows = checklist(facts)
    assert len({row.topic for row in rows}) == len(rows) > 30
    for row in rows:
        assert row.answer in (PROVED, ASSUMED, NOT_COVERED)
        assert (row.answer == PROVED) <= bool(row.proofs), row.topic
        assert all((ROOT / "proofs" / f"{page}.md").exists() for page in row.proofs), row.proofs
    assert mechanism_pages(facts)


def test_every_mechanism_has_a_page() -> None:
    named = {name for name, kind in Mechanism._by_kind.items() if kind.__module__.startswith("veilwood.")}
    assert named == {*_MECHANISM_PAGES}


def test_what_only_the_custodian_knows_is_quoted_and_never_called_proved() -> None:
    facts = facts_of(vw.RandomTreesClassifier, n_estimators=2)
    for sentence in ("people", "decision", "access", "other_uses"):
        quoting = [row for row in checklist(facts) if ANSWERS[sentence] in row.text]
        assert quoting
        assert all(row.answer != PROVED for row in quoting)


def test_answers_follow_the_release() -> None:
    pure = answers(facts_of(vw.RandomTreesClassifier, n_estimators=2))
    with_delta = answers(facts_of(vw.RandomTreesClassifier, n_estimators=40, max_depth=2, delta=1e-6))
    assert (pure["Variant, and delta"], with_delta["Variant, and delta"]) == (PROVED, ASSUMED)
    assert pure["Utility, measured privately"] == NOT_COVERED
    weak = facts_of(vw.RandomTreesClassifier, n_estimators=2, epsilon=4.0)
    assert "weak" not in checklist(weak)[0].text


def test_proofs_are_links_if_the_custodian_says_where_they_are() -> None:
    base = "https://docs.example"
    facts = facts_of(vw.RandomTreesClassifier, card_text(documentation=base), n_estimators=2)
    assert f"]({base}/proofs/random-trees.html)" in checklist_page(facts)
    assert "](" not in checklist_page(facts_of(vw.RandomTreesClassifier, n_estimators=2))


def test_programs_get_the_same_rows() -> None:
    facts = facts_of(vw.RandomTreesClassifier, n_estimators=2)
    rows = checklist_data(facts)["rows"]
    assert [row["answer"] for row in rows] == [row.answer for row in checklist(facts)]
