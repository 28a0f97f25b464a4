# SPDX-License-Identifier: Apache-2.0
"""Statements of the custodian about a model (``card.toml``) for the report.

A release pack demands every answer (``release_pack.card``); a report shows those that there are.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any, Final

from veilwood.errors import FileError, ParameterError, UnreadableError, short_repr, shorten_text
from veilwood.safe_io import read_text

MAX_CARD_BYTES: Final = 1 << 16

SENTENCES: Final = {
    "purpose": "What is the model for, and what must it not be used for?",
    "people": "Whose rows were used, how and when were they collected, and is one unit of protection all of a person?",
    "decision": "Who decided on epsilon and on the unit of protection, and why are they right for these people?",
    "access": "Who can reach the raw rows and the ledger, and how are they guarded?",
    "other_uses": "What else was published from these rows, or tried on them, outside the ledger?",
}
"""The five sentences that only a custodian can say, by name, as questions."""

FACTS: Final = {
    "title": "Name of the release, for readers.",
    "curators": "Who publishes it: a list of names.",
    "authors": "Who filled in this card: a list of names.",
    "contact": "Where to ask, or to report a problem.",
    "region": "What region the rows describe, or whose law applies.",
    "license": "Licence of the model, such as cc-by-4.0.",
    "release_type": 'One of "One release" and "Many releases" (the same model again, from newer rows).',
    "data_source_type": 'One of "Static" and "Dynamic" (new rows arrive).',
}
OPTIONAL_FACTS: Final = {
    "publication_date": "YYYY-MM-DD. Left empty: the date of the ledger entry.",
    "sector": "One of Technology, Healthcare, Education, Government, Energy, Finance.",
    "sources": "Addresses of further documents.",
    "documentation": "Address of the documentation, which has proofs/door.html. Left empty: pages are named only.",
}

_LABELS: Final = {
    "purpose": "Use", "people": "People and rows", "decision": "Decision on epsilon", "access": "Access to the rows",
    "other_uses": "Other uses of the rows", "curators": "Published by", "authors": "Card by",
    "publication_date": "Published on",
}  # fmt: skip


def read_card(path: str | PathLike[str]) -> dict[str, str]:
    """Return the answers of a card by label, without unanswered questions."""
    try:
        text = read_text(path, MAX_CARD_BYTES)
    except OSError as error:
        raise FileError(
            f"cannot read the card {short_repr(str(path))}: {error.strerror}. "
            "Hint: write one with veilwood pack --new-card."
        ) from None
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = shorten_text(str(error))
        raise UnreadableError(f"the card is not TOML: {reason}. Hint: put every answer in quotes.") from None
    return dict(_iter_answers(data))


def _iter_answers(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    tables = {"sentences": SENTENCES, "facts": {**FACTS, **OPTIONAL_FACTS}}
    for table, names in tables.items():
        answers = data.get(table, {})
        unknown = sorted(set(answers) - set(names)) if isinstance(answers, dict) else [table]
        if unknown or set(data) - set(tables):
            wrong = unknown or sorted(set(data) - set(tables))
            raise ParameterError("card", wrong, "has names that a card does not have", "remove or correct them")
        for name in names:
            answer = answers.get(name, "")
            lines = answer if isinstance(answer, list) else [answer]
            text = " ".join(", ".join(map(str, lines)).split())
            if text:
                yield _LABELS.get(name, name.replace("_", " ").capitalize()), text
