# SPDX-License-Identifier: Apache-2.0
"""The custodian's card: nothing is filled in, everything odd is refused, and hubs can read the model card."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

import veilwood as vw
from veilwood.errors import FileError, ParameterError, UnreadableError
from veilwood.release_pack.card import CustodianCard, card_template, model_card, schema_page, to_yaml
from veilwood.reporting.custodian import SENTENCES
from veilwood_testing.release_packs import ANSWERS, card_text, facts_of

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning", "ignore::veilwood.PrivacyWarning")


def test_answers_are_read_as_they_were_written() -> None:
    card = CustodianCard.from_toml(card_text())
    assert {name: card.sentences[name] for name in SENTENCES} == {name: ANSWERS[name] for name in SENTENCES}
    assert card.facts["curators"] == ["Clinic X"]
    assert card.facts["sector"] == ""


def test_an_unanswered_card_is_refused_with_the_name_of_each_question() -> None:
    with pytest.raises(ParameterError) as refused:
        CustodianCard.from_toml(card_template())
    required = {*ANSWERS, "curators", "authors"}
    assert isinstance(refused.value.value, list)
    assert {*refused.value.value} == required


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("purpose", ""), ("people", "none"), ("release_type", "Often"), ("publication_date", "1. May 2031"),
        ("publication_date", "2031-5-1"), ("sector", "Circus"), ("title", "a\\u0007b"), ("access", "x" * 2001),
    ],
)  # fmt: skip
def test_an_answer_that_says_nothing_is_refused(name: str, answer: str) -> None:
    with pytest.raises(ParameterError) as refused:
        CustodianCard.from_toml(card_text(**{name: answer}))
    assert refused.value.value == [name]


@pytest.mark.parametrize("extra", ["epsilon = 0.1", "[facts.more]\nx = 1", "[other]\nx = 1"])
def test_a_card_cannot_say_what_the_library_knows(extra: str) -> None:
    with pytest.raises((ParameterError, UnreadableError)):
        CustodianCard.from_toml(f"{card_text()}\n{extra}\n")


@pytest.mark.parametrize("text", ["facts = 1", "[facts", 'facts = ["a"]\nsentences = 3', "\x00"])
def test_what_is_no_card_is_refused(text: str) -> None:
    with pytest.raises((UnreadableError, ParameterError)):
        CustodianCard.from_toml(text)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text(card_text() + "#" * (1 << 17))
    for name in ("missing.toml", "long.toml", "."):
        with pytest.raises(FileError):
            CustodianCard.load(tmp_path / name)


def test_the_model_card_has_a_block_that_hubs_read() -> None:
    facts = facts_of(vw.RandomTreesClassifier, epsilon=1.0, n_estimators=2, max_depth=2)
    block = yaml.safe_load(model_card(facts).split("---")[1])
    assert block["license"] == "cc-by-4.0"
    assert block["pipeline_tag"] == "tabular-classification"
    assert block["privacy"]["epsilon"] == 1.0
    assert block["privacy"]["unit_of_protection"] == facts.certificate.unit
    assert all(ANSWERS[name] in model_card(facts) for name in ("purpose", "people", "decision"))


def test_words_of_a_card_are_no_markup() -> None:
    evil = "We <script>alert(1)</script> | ` [x](http://y) decided this."
    facts = facts_of(vw.RandomTreesClassifier, card_text(decision=evil, title="a: #b | <i>"), n_estimators=2)
    text = model_card(facts)
    assert "<script>" not in text
    assert "\\[x](http" in text  # an escaped bracket starts no link
    assert yaml.safe_load(text.split("---")[1])["license"] == "cc-by-4.0"


def test_the_schema_page_says_which_bounds_have_no_source() -> None:
    facts = facts_of(vw.RandomTreesClassifier, n_estimators=2)
    assert schema_page(facts).count("**not stated**") == len(facts.model.schema_.features) + 1


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, 1e-06, -1e20, True, None, "no", "1e5", "", "a: b # c", 'q"\\', "\u00e9\u2028"]},
        {"a": [{"b": [{"c": [1, [2, 3]]}], "d": {}}, []], "e": {"f": {"g": "h"}}},
    ],
)
def test_yaml_reads_back(value: object) -> None:
    assert yaml.safe_load(to_yaml(value)) == value
