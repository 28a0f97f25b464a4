# SPDX-License-Identifier: Apache-2.0
"""The site is whole: links lead somewhere, names have examples, and figures come from results files."""

from __future__ import annotations

import doctest
import html
import importlib.util
import inspect
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import veilwood as vw

ROOT = Path(__file__).parents[1]


def script(name: str) -> Any:
    """A script of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


assemble, figures = script("assemble"), script("figures")
# Pages that say where their figures come from themselves, beside each figure; audit.md is written by its script.
TOLD_THERE = {"audit", "median-forests", "private-forest", "quality", "scale", "secure", "service", "tuning"}
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path.stem not in TOLD_THERE)]
RESULTS = ROOT / "benchmarks" / "results"
HELD = {
    figure
    for path in (*RESULTS.glob("*.md"), *RESULTS.glob("papers/**/report.md"), *RESULTS.glob("papers/*.csv"))
    for figure in re.findall(r"\d[\d,]*(?:\.\d+)?", path.read_text())
}
# Figures that are no measurement: they are computed here once more.
COMPUTED = {"22,026": math.exp(10), "148": math.exp(5), "485 million": math.exp(20) / 1e6}
FIGURE = re.compile(r"\d{1,3}(?:,\d{3})+|\d+ (?:million|billion)|\d+\.\d+|\d+(?= ?%)|\d+(?= times)")


def prose(text: str) -> str:
    """What a page says in words: no code, no addresses, no budgets, no versions, nothing that a script filled in."""
    for pattern in (
        r"^```.*?^```",
        r"<!-- figures:.*?end of figures -->",
        r"`[^`]*`",
        r"\]\([^)]*\)",
        r"(?i)epsilons?(?: of)?:? [\d.]+(?:(?:, | to | and )[\d.]+)*",
        r"(?i)(?:python|diffprivlib|version|licen[cs]e:? apache-?) ?[\d.]+",
        r"^\| [\d.]+(?: to [\d.]+)? \|",  # a table by epsilon
    ):
        text = re.sub(pattern, " ", text, flags=re.M | re.S)
    return text


def unfounded(text: str) -> list[str]:
    """Figures of a page that no results file holds."""
    return [found for found in FIGURE.findall(prose(text)) if found not in COMPUTED and found not in HELD]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_no_figure_that_a_results_file_does_not_hold(page: Path) -> None:
    assert unfounded(page.read_text(encoding="utf-8")) == []


def test_a_figure_from_nowhere_is_caught() -> None:
    assert unfounded("It is 97.31 % accurate, 8123 times as fast, on 7,654,321 rows.") == ["97.31", "8123", "7,654,321"]
    assert unfounded("At epsilon 0.5, in Python 3.11, `x = 97.31`.") == []
    for words, value in COMPUTED.items():
        assert float(re.sub(r"[^\d]", "", words)) == pytest.approx(value, rel=0.005)


@pytest.mark.parametrize("page", figures.PAGES)
def test_filled_blocks_are_what_the_results_say(page: str) -> None:
    assert figures.filled(page) == (ROOT / page).read_text(encoding="utf-8"), "run: python docs/figures.py"
    assert figures.BLOCK.search((ROOT / page).read_text(encoding="utf-8"))


def test_the_picture_is_of_the_results() -> None:
    inside = html.unescape((ROOT / "docs" / "accuracy.svg").read_text(encoding="utf-8"))
    for axes in figures.draw():
        assert vw.plots.caption(axes) in inside, "run: python docs/figures.py"


def test_links_lead_somewhere_and_names_are_in_the_reference(tmp_path: Path) -> None:
    assemble.assemble(tmp_path)  # refuses links to nothing, and parts of results that are not there
    assert (tmp_path / "proofs" / "door.md").exists()
    listed = [name for _, names in assemble.REFERENCE.values() for name in names]
    assert sorted(listed) == sorted(vw.__all__)  # type: ignore[attr-defined]


def test_every_page_is_in_a_table_of_contents() -> None:
    folder, listed = ROOT / "docs", {"index"}
    for path in folder.rglob("*.md"):
        for entries in re.findall(r"^```\{toctree\}\n(.*?)^```", path.read_text(), flags=re.M | re.S):
            near = path.parent.relative_to(folder)
            names = (re.sub(r".*<(.+)>", r"\1", line) for line in entries.splitlines() if line and line[0] != ":")
            listed |= {(near / name).as_posix() for name in names}
    found = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.md")}
    assert found - listed == set()


def test_a_link_to_nothing_is_caught() -> None:
    places = assemble.pages()
    for broken in ("[x](nowhere.md)", "[x](../proofs/nowhere.md)", "![x](nowhere.png)"):
        with pytest.raises(assemble.BrokenLinkError, match="nowhere"):
            assemble.with_links(f"See {broken}.", "docs/start.md", places)
    turned = assemble.with_links(
        "[proof](../proofs/door.md), [code](../packages/veilwood/src/veilwood/py.typed)", "docs/start.md", places
    )
    assert turned == "[proof](proofs/door.md), code (`packages/veilwood/src/veilwood/py.typed`)"


@pytest.mark.parametrize(
    "include",
    ['{include} nowhere.md\n', '{include} results.md\n:start-after: "# Nothing"\n',
     '{include} results.md\n:start-after: "# Fits"\n:end-before: "# Nothing"\n'],
)  # fmt: skip
def test_a_part_of_a_file_that_is_not_there_is_caught(tmp_path: Path, include: str) -> None:
    (tmp_path / "results.md").write_text("# Fits\n\nfast\n")
    page = tmp_path / "page.md"
    page.write_text('# Page\n\n```{include} results.md\n:start-after: "# Fits"\n```\n')
    assemble.check_includes(page)
    page.write_text(f"# Page\n\n```{include}```\n")
    with pytest.raises(assemble.BrokenLinkError, match="not there"):
        assemble.check_includes(page)


@pytest.mark.parametrize("page", sorted((ROOT / "proofs").glob("[!R]*.md")), ids=lambda path: path.stem)
def test_a_proof_shows_what_it_proves_as_a_formula(page: Path) -> None:
    text = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))
    assert re.search(r"^ *\$\$\n.+?\n *\$\$$", text, flags=re.M | re.S)
    formulas = [one or other for one, other in re.findall(r"\$\$(.+?)\$\$|\$(.+?)\$", text, flags=re.S)]
    assert "$" not in re.sub(r"\$\$.+?\$\$|\$[^$\n]+\$", "", text, flags=re.S)  # each that begins ends
    assert [formula for formula in formulas if formula.count("{") != formula.count("}")] == []
    assert [formula for formula in formulas if formula.count("\\left") != formula.count("\\right")] == []


def test_every_public_name_has_an_example() -> None:
    extra = assemble.examples_of_names()
    silent = {name for name in vw.__all__ if ">>>" not in (inspect.getdoc(getattr(vw, name)) or "")}  # type: ignore[attr-defined]
    assert silent - set(extra) == set()
    assert set(extra) <= set(vw.__all__)  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning", "ignore::veilwood.PrivacyWarning")
def test_examples_of_names_are_true() -> None:
    text = "\n\n".join(assemble.examples_of_names().values())
    test = doctest.DocTestParser().get_doctest(text, {}, "names", "docs/names.txt", 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_every_picture_is_in_the_gallery() -> None:
    shown = "".join(path.read_text() for path in (ROOT / "examples" / "gallery").glob("plot_*.py"))
    assert {name for name in vw.plots.__all__ if name.startswith("plot_") and f"plots.{name}(" not in shown} == set()


def test_every_paper_that_is_cited_has_its_page() -> None:
    cited = re.findall(r'^    title: "(.+)"$', (ROOT / "CITATION.cff").read_text(), flags=re.M)
    assert len(cited) >= 4
    page = (ROOT / "docs" / "systems.md").read_text()
    assert [title for title in cited if title not in page] == []


def test_there_are_thirty_sharp_edges() -> None:
    text = (ROOT / "docs" / "sharp-edges.md").read_text()
    told = re.findall(r"^(\d+)\. \*\*.+\*\* .*\*.+\*$", text, flags=re.M)  # a pitfall, and what is done about it
    assert list(map(int, told)) == list(range(1, 31))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["quick", "whole"])
def test_the_site_builds_without_a_warning(how: str, tmp_path: Path) -> None:
    pytest.importorskip("sphinx_gallery", reason="needs the extra [docs]")
    assemble.assemble(tmp_path / "source")
    build = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", tmp_path / "source", tmp_path / "site"],
        env=os.environ | {"VEILWOOD_ROOT": str(ROOT), "VEILWOOD_DOCS": how},
        capture_output=True,
        text=True,
    )
    assert build.returncode == 0, build.stderr[-3000:]
    page = (tmp_path / "site" / "tutorials" / "banks.html").read_text()
    assert ("% do not default" in page) is (how == "whole")  # printed when the notebook ran
    assert "plot_tree" in (tmp_path / "site" / "reference" / "rooms.html").read_text()
