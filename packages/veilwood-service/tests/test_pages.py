# SPDX-License-Identifier: Apache-2.0
"""The files of the page: nothing comes from another host, no markup is made from texts, and scripts are formatted."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from veilwood_testing import ROOT, SOURCES

PAGES = SOURCES["veilwood_service"] / "pages"
SCRIPTS = {path.name: path.read_text() for path in sorted(PAGES.glob("*.js"))}
MAX_LINE = 200  # prettier leaves long texts as they are


def test_nothing_is_fetched_from_another_host() -> None:
    everything = "".join(SCRIPTS.values()) + (PAGES / "index.html").read_text() + (PAGES / "style.css").read_text()
    assert re.findall(r"(?:https?:)?//[^\s\"')]+\.[a-z]+", everything) == []


def test_no_markup_is_made_from_texts() -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", "".join(SCRIPTS.values()))


def test_lines_can_be_reviewed() -> None:
    long = [(name, line) for name, text in SCRIPTS.items() for line in text.splitlines() if len(line) > MAX_LINE]
    assert long == []


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["prettier@3 --check", "eslint@9 --max-warnings 0"])
def test_scripts_are_formatted_and_linted(tool: str, tmp_path: Path) -> None:
    if shutil.which("npx") is None:
        pytest.skip("needs npx, of Node.js")
    if subprocess.run(["npx", "--yes", *tool.split()[:1], "--version"], capture_output=True, check=False).returncode:
        pytest.skip("the tool is not available")
    command = ["npx", "--yes", *tool.split(), str(PAGES.relative_to(ROOT) / "*.js")]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
