# SPDX-License-Identifier: Apache-2.0
"""The files of the page: every text is in one file, and nothing comes from another host."""

from __future__ import annotations

import json
import re

from veilwood_testing import SOURCES

PAGES = SOURCES["veilwood_service"] / "pages"
SCRIPTS = "".join(path.read_text() for path in sorted(PAGES.glob("*.js")))
TEXTS = json.loads((PAGES / "texts.json").read_text())
MADE = ("estimator.", "job.", "model.")  # put together from what the service says


def test_every_text_exists_and_is_used() -> None:
    used = set(re.findall(r'\bt\("([\w.-]+)"', SCRIPTS)) | set(
        re.findall(r'"((?:set|nav|data|people)\.[\w.]+)"', SCRIPTS)
    )
    assert used - set(TEXTS) == set()
    assert {name for name in set(TEXTS) - used if not name.startswith(MADE)} == set()


def test_nothing_is_fetched_from_another_host() -> None:
    everything = SCRIPTS + (PAGES / "index.html").read_text() + (PAGES / "style.css").read_text()
    assert set(re.findall(r"https?://[^\s\"')]+", everything)) == {"http://www.w3.org/2000/svg"}


def test_no_markup_is_made_from_texts() -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", SCRIPTS)
