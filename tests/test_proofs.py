# SPDX-License-Identifier: Apache-2.0
"""Every public mechanism and estimator has a proof page, and what the pages and docstrings name exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import veilwood
from veilwood.estimators.base import BaseForest
from veilwood.privacy.door import Door, SeriesDoor
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, SparseLaplace, ThresholdedGaussian
from veilwood.privacy.selection import ExponentialMechanism, NoisyMax, PermuteAndFlip
from veilwood.privacy.time_factors import SeriesNoise, TimeFactor
from veilwood.series import ReleaseSeries
from veilwood_testing import ROOT, SOURCES

PAGES = sorted(path for path in (ROOT / "proofs").glob("*.md") if path.name != "README.md")
SECTIONS = ["## Claim", "## Proof", "## Code", "## Attack"]
REFERENCE = re.compile(r"((?:packages|reproductions|testing|tests)/[\w/.-]+?\.py)(?:::([\w.]+))?")
GUARANTEED: list[Any] = [
    DiscreteGaussian, DiscreteLaplace, ExponentialMechanism, JointLaplace, NoisyMax, PermuteAndFlip,
    *(thing for thing in (getattr(veilwood, name) for name in veilwood.__all__)  # type: ignore[attr-defined]
      if isinstance(thing, type) and issubclass(thing, BaseForest)),
    SparseLaplace,
    ThresholdedGaussian,
    Door,
    SeriesDoor,
    Ledger,
    SeriesNoise,
    TimeFactor,
    ReleaseSeries,
]  # fmt: skip


@cache
def names_in(path: Path) -> set[str]:
    """Every function, class, method and variable a file defines, with dots: ``Class.method``."""
    found = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    collect(ast.parse(path.read_text()).body, "")
    return found


def missing(text: str) -> list[str]:
    """References of a text to files, names and proof pages that do not exist."""
    lost = [page for page in re.findall(r"proofs/[\w-]+\.md", text) if not (ROOT / page).exists()]
    for file, name in REFERENCE.findall(text):
        path, name = ROOT / file, name.rstrip(".")
        if not path.exists() or (name and name not in names_in(path)):
            lost.append(f"{file}::{name}")
    return lost


def section(text: str, heading: str) -> str:
    return text.split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]


def check(text: str) -> list[str]:
    """What is wrong with a page."""
    problems = [heading for heading in SECTIONS if f"\n{heading}\n" not in text]
    if not problems:
        code, attack = (REFERENCE.findall(section(text, heading)) for heading in SECTIONS[2:])
        if not any("/src/" in file and name for file, name in code):
            problems.append("names no code")
        if not any("tests/" in file and name for file, name in attack):
            problems.append("names no attack")
        _, _, pairs = section(text, SECTIONS[3]).partition("* Noninterference:")
        if not REFERENCE.search(pairs):
            problems.append("names no case of noninterference")
    return problems + missing(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_complete_and_what_it_names_exists(page: Path) -> None:
    assert check(page.read_text()) == []


def test_what_the_page_on_audits_names_exists() -> None:
    text = (ROOT / "docs" / "audit.md").read_text()
    assert len(REFERENCE.findall(text)) > 10
    assert missing(text) == []


def test_the_index_names_every_page() -> None:
    index = (ROOT / "proofs" / "README.md").read_text()
    assert sorted(set(re.findall(r"\]\(([\w-]+\.md)\)", index))) == [page.name for page in PAGES]


@pytest.mark.parametrize("thing", GUARANTEED, ids=lambda thing: thing.__name__)
def test_a_guarantee_names_its_proof_and_its_attack(thing: Any) -> None:
    text = thing.__doc__ or ""
    assert "Guarantee\n" in text
    guarantee = text.split("Guarantee\n", 1)[1]
    assert re.search(r"proofs/[\w-]+\.md", guarantee)
    assert REFERENCE.search(guarantee)


def test_what_the_source_names_exists() -> None:
    lost = {path: missing(path.read_text()) for source in SOURCES.values() for path in sorted(source.rglob("*.py"))}
    assert {path: names for path, names in lost.items() if names} == {}


def test_broken_pages_are_caught() -> None:
    page = "# P\n\n## Claim\n\n## Proof\n\n## Code\n\n* `{}`\n\n## Attack\n\n* `{}`\n* Noninterference: `{}`\n"
    code = "packages/veilwood/src/veilwood/privacy/door.py::Door.release_counts"
    attack = "tests/test_proofs.py::test_broken_pages_are_caught"
    assert check(page.format(code, attack, attack)) == []
    assert check(page.format("packages/veilwood/src/veilwood/privacy/door.py::Door.gone", attack, attack))
    assert check(page.format(code, "tests/test_gone.py::test_gone", attack))
    assert check(page.format(code, attack, "tests/test_gone.py::test_gone"))
    assert check(page.format(code, attack, "none")) == ["names no case of noninterference"]
    assert check(page.format("none", attack, attack))
    assert check(page.format(code, attack, attack).replace("## Proof", "## Sketch"))
    assert check(page.format(code, attack, attack) + "see proofs/gone.md")
