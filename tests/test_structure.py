# SPDX-License-Identifier: Apache-2.0
"""The layout of the repository: modules, tests, the page that describes them, and equal versions of all packages.

Which package may import which is checked by import-linter (settings in pyproject.toml, run by ``make style``).
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import veilwood
from veilwood_testing import ROOT, SOURCES

PAGE = (ROOT / "ARCHITECTURE.md").read_text()
MODULES = sorted(path for source in SOURCES.values() for path in source.rglob("*.py"))
TEST_FILES = sorted(
    path for folder in ("packages", "reproductions", "tests") for path in (ROOT / folder).rglob("test_*.py")
)
MAX_LINES, MAX_TEST_LINES = 800, 900
LICENSED = re.compile(r"# SPDX-License-Identifier[:] Apache-2\.0\n")


def longer_than(limit: int, paths: Iterable[Path]) -> set[str]:
    return {path.name for path in paths if len(path.read_text().splitlines()) > limit}


def test_every_folder_is_described() -> None:
    core = SOURCES["veilwood"]
    folders = {path.parent.relative_to(core).as_posix() for path in core.rglob("*.py")} - {"."}
    assert [folder for folder in sorted(folders) if f"`{folder}/`" not in PAGE] == []
    assert [name for name in SOURCES if f"`{name}`" not in PAGE] == []


def test_modules_named_on_the_page_exist() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+)`", PAGE))
    assert len(named) > 15
    places = [*SOURCES.values(), *(folder.parent for folder in SOURCES.values()), ROOT]
    assert [name for name in named if not any((p / f"{name}.py").exists() or (p / name).exists() for p in places)] == []


def test_test_files_hold_tests() -> None:
    assert [
        path for path in TEST_FILES if not re.search(r"^ *(async )?def test_", path.read_text(), re.MULTILINE)
    ] == []


def test_files_are_not_too_long(tmp_path: Path) -> None:
    assert longer_than(MAX_LINES, MODULES) == set()
    assert longer_than(MAX_TEST_LINES, TEST_FILES) == set()
    (tmp_path / "long.py").write_text("\n" * (MAX_LINES + 1))
    assert longer_than(MAX_LINES, tmp_path.iterdir()) == {"long.py"}


def test_modules_start_alike() -> None:
    texts = {path: path.read_text() for path in MODULES}
    assert [p for p, text in texts.items() if LICENSED.match(text) is None] == []
    assert [p for p, text in texts.items() if not ast.get_docstring(ast.parse(text))] == []
    assert [p for p in MODULES if p.stem in ("utils", "helpers")] == []


def test_all_packages_have_one_version() -> None:
    projects = [path for path in ROOT.glob("*/*/pyproject.toml")] + [ROOT / "reproductions" / "pyproject.toml"]
    assert len(projects) >= 5
    for path in projects:
        project = tomllib.loads(path.read_text())["project"]
        assert project.get("version", veilwood.__version__) == veilwood.__version__, path
        extras = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
        siblings = [
            line for line in [*project["dependencies"], *extras] if re.match(r"veilwood(-\w+)?(\[.*\])?==", line)
        ]
        assert all(line.endswith(f"=={veilwood.__version__}") for line in siblings), path


def untyped_errors(source: str) -> list[int]:
    """Return the lines that raise the base class of errors itself."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "VeilwoodError"
    ]


def test_every_error_has_a_type() -> None:
    texts = {path: path.read_text() for path in MODULES}
    found = {path: untyped_errors(text) for path, text in texts.items() if "VeilwoodError(" in text}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_an_error_without_a_type_is_caught() -> None:
    assert untyped_errors("raise VeilwoodError('no')\nraise ParameterError('x', 1, 'no')") == [1]
    assert untyped_errors("raise errors.VeilwoodError('no')") == [1]
