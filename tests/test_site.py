# SPDX-License-Identifier: Apache-2.0
"""The site is whole and short: links lead somewhere, names and options are on it, figures come from results files."""

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
from veilwood.cli.main import whole_command

ROOT = Path(__file__).parents[1]


def script(name: str) -> Any:
    """Import a script of docs/."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


assemble, figures = script("assemble"), script("figures")
# Pages that name the source beside each figure.
SOURCES_NAMED = {"audit", "private-forest", "quality", "secure", "service"}
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path.stem not in SOURCES_NAMED)]
RESULTS = ROOT / "benchmarks" / "results"
HELD = {
    figure
    for path in (*RESULTS.glob("*.md"), *RESULTS.glob("papers/**/report.md"), *RESULTS.glob("papers/*.csv"))
    for figure in re.findall(r"\d[\d,]*(?:\.\d+)?", path.read_text())
}
# Figures that are no measurement: they are computed here once more.
COMPUTED = {"22,027": math.exp(10), "149": math.exp(5), "485 million": math.exp(20) / 1e6}
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
    drawn = dict(
        zip(("accuracy", "members", "differences"), [*figures.draw(), figures.draw_differences()], strict=True)
    )
    for name, axes in drawn.items():
        inside = html.unescape((ROOT / "docs" / f"{name}.svg").read_text(encoding="utf-8"))
        assert figures.caption(axes) in inside, "run: python docs/figures.py"


def test_links_lead_somewhere_and_everything_public_is_on_the_site(tmp_path: Path) -> None:
    assemble.assemble(tmp_path)  # refuses links to nothing, and parts of results that are not there
    assert (tmp_path / "proofs" / "door.md").exists()
    listed = [name for names in assemble.NAMES.values() for name in names]
    assert sorted(listed) == sorted(vw.__all__)  # type: ignore[attr-defined]
    for name in listed:
        assert f"veilwood.{name}" in (tmp_path / f"{assemble.api_page(name)}.md").read_text(encoding="utf-8")
    reference = (tmp_path / "command-line.md").read_text(encoding="utf-8")
    entries = dict(re.findall(r"^#+ (veilwood [\w -]+)\n(.*?)(?=^#+ |\Z)", reference, flags=re.M | re.S))
    for name, command in leaf_commands("veilwood", whole_command()):
        for parameter in command.params:
            if not parameter.name.endswith("_completion"):
                texts = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or ""]
                assert all(text in entries[name] for text in texts), (name, texts)


def leaf_commands(name: str, command: Any) -> list[tuple[str, Any]]:
    """Return every command of a group that is no group itself, with its whole name."""
    inner = getattr(command, "commands", None)
    if not inner:
        return [(name, command)]
    return [leaf for part, child in inner.items() for leaf in leaf_commands(f"{name} {part}", child)]


def count_words(text: str) -> int:
    """Return the number of words of a page: no metadata, no comments, no addresses, no descriptions of pictures."""
    for pattern in (r"\A---\n.*?\n---\n", r"<!--.*?-->", r"!\[[^\]]*\]\([^)]*\)", r"\]\([^)]*\)", r"^```\{.*?^```"):
        text = re.sub(pattern, " ", text, flags=re.M | re.S)
    return len(re.findall(r"\S*\w\S*", text))


def test_the_menu_has_25_pages_and_none_is_longer_than_its_budget() -> None:
    pages = assemble.menu_pages()
    assert len(pages) <= 25
    long = {}
    for page, (_, budget) in (entry for entries in assemble.MENU.values() for entry in entries.items()):
        words = count_words(assemble.source_of(page).read_text(encoding="utf-8"))
        if words > 1.1 * budget:
            long[page] = (words, budget)
    assert long == {}


def test_the_readme_is_one_screen() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert count_words(text) <= 450
    (sentence,) = re.findall(r"^\*\*(.+)\*\*$", text, flags=re.M)
    assert len(sentence.split()) <= 12
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", sorted(ROOT.glob("packages/*/README.md")), ids=lambda path: path.parent.name)
def test_the_long_description_on_an_index_has_no_relative_address(page: Path) -> None:
    """An index shows the text without the repository."""
    text = page.read_text(encoding="utf-8")
    targets = [*re.findall(r"\]\(([^)]+)\)", text), *re.findall(r'(?:href|src)="([^"]+)"', text)]
    assert [target for target in targets if not target.startswith(("https://", "mailto:"))] == []


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("install", "start"), ("class imbalance", "choose"), ("feature importance", "quality"),
        ("categorical", "schema"), ("fairness", "quality"), ("missing values", "schema"), ("predict", "deploy"),
        ("report", "quality"), ("epsilon", "guarantee"), ("unit", "guarantee"),
    ],
)  # fmt: skip
def test_a_search_leads_to_a_guide(word: str, page: str) -> None:
    text = assemble.source_of(page).read_text(encoding="utf-8")
    entries = [
        entry.strip() for line in re.findall(r"^```\{index\} (.+)$", text, flags=re.M) for entry in line.split(",")
    ]
    assert f"! {word}" in entries  # a main entry, which a search ranks before every other result


def test_results_and_proofs_are_not_searched(tmp_path: Path) -> None:
    assemble.assemble(tmp_path)
    for folder in ("proofs", "results", "scripts"):
        for path in (tmp_path / folder).glob("*.md"):
            assert "no-search: true" in path.read_text(encoding="utf-8").split("\n#")[0], path.name


def test_every_page_is_in_the_menu() -> None:
    folder = ROOT / "docs"
    found = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.md")}
    assert found - {page for entries in assemble.MENU.values() for page in entries} == {"index"}
    assert set(assemble.menu_pages()) <= found


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
    text = "".join(path.read_text() for path in (ROOT / "examples" / "gallery").glob("plot_*.py"))
    assert {name for name in vw.plots.__all__ if name.startswith("plot_") and f"plots.{name}(" not in text} == set()


def test_every_paper_that_is_cited_has_its_page() -> None:
    cited = re.findall(r'^    title: "(.+)"$', (ROOT / "CITATION.cff").read_text(), flags=re.M)
    assert len(cited) >= 4
    page = (ROOT / "docs" / "classic-forests.md").read_text()
    assert [title for title in cited if title not in page] == []


def test_there_are_thirty_sharp_edges() -> None:
    text = (ROOT / "docs" / "sharp-edges.md").read_text()
    numbers = re.findall(r"^(\d+)\. \*\*.+\*\* .*\*.+\*$", text, flags=re.M)  # a pitfall, and what is done about it
    assert list(map(int, numbers)) == list(range(1, 31))


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
    assert "plot_tree" in (tmp_path / "site" / "api" / "plots.html").read_text()
    index = (tmp_path / "site" / "searchindex.js").read_text()
    assert '"proofs/' in index  # listed as pages
    assert "lemma" not in index  # but their words are not searched
