# SPDX-License-Identifier: Apache-2.0
"""ARCHITECTURE.md describes the house that stands, and the tests are where the modules they test would lead one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import veilwood
from fixtures.layers import LAYERS

SOURCE = Path(veilwood.__file__).parent
ROOT = SOURCE.parents[1]
TESTS = ROOT / "tests"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
WORDS = {path: set(re.findall(r"\w+", path.read_text())) for path in TESTS.rglob("test_*.py")}

# Two lines long, or compiled twins: the tests of what they speed up run both.
UNNAMED = {"__main__", "_version", "data.encoding_kernels", "forests.cells.row_kernels",
           "trees.fitting_kernels", "forests.matrix.sum_kernels", "trees.histogram_kernels"}  # fmt: skip
# Tested through something else: by which file.
TESTED_BY = {
    "data.unreadable": "data/test_dialect.py",
    "data.sql.writing": "data/test_sql_rows.py",
    "estimators.in_sql": "data/test_sql_rows.py",
    "trees.ways": "data/test_sql.py",
    "trees.table_kernels": "trees/test_tabulated.py",
    "forests.grown.base": "forests/grown/test_medians.py",
    "service.migrations.env": "service/test_accounts.py",
}
MOST_LINES = 600


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


@cache
def public_names(path: Path) -> set[str]:
    """What a module defines for others."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in found if not name.startswith("_")}


def own_tests(module: str) -> list[Path]:
    """The test files of a module's room; the root's stand in the root."""
    room = module.split(".")[0] if "." in module else None
    return [path for path in WORDS if room == (path.relative_to(TESTS).parts[0] if path.parent != TESTS else None)]


def is_tested(path: Path, tests: list[Path]) -> bool:
    """Whether a test file is named after a module, or names something that it defines."""
    return any(test.stem == f"test_{path.stem}" or public_names(path) & WORDS[test] for test in tests)


def missing_rooms(page: str) -> list[str]:
    folders = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")} - {"."}
    roots = {path.stem for path in SOURCE.glob("*.py") if path.stem != "__init__"}
    return sorted(f"{room}/" for room in folders if f"`{room}/`" not in page) + sorted(
        module for module in roots if f"`{module}`" not in page
    )


def layers_of(page: str) -> list[tuple[str, ...]]:
    listed = page.split("<!-- layers -->")[1].split("<!-- end of layers -->")[0].strip().splitlines()
    return [tuple(re.findall(r"`([\w.]+)`", line)) for line in listed]


def test_every_room_is_described() -> None:
    assert missing_rooms(PAGE) == []


def test_a_room_that_is_left_out_is_caught() -> None:
    assert missing_rooms(PAGE.replace("`forests/matrix/`", "")) == ["forests/matrix/"]
    assert missing_rooms(PAGE.replace("`bounded`", "")) == ["bounded"]


def test_the_layers_on_the_page_are_those_that_are_enforced() -> None:
    assert layers_of(PAGE) == LAYERS


def test_modules_named_on_the_page_exist() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+)`", PAGE))
    assert len(named) > 15
    assert [name for name in named if not (SOURCE / f"{name}.py").exists() and not (ROOT / name).exists()] == []


def test_every_module_is_tested_in_its_room() -> None:
    """A test file of its room has its name or names what it defines, or the table says where it is tested."""
    silent = {name_of(path) for path in MODULES if not is_tested(path, own_tests(name_of(path)))}
    assert silent - UNNAMED - set(TESTED_BY) == set()
    assert set(TESTED_BY) - silent == set(), "no longer needed in the table"
    assert [file for file in TESTED_BY.values() if not (TESTS / file).exists()] == []


def test_a_module_without_a_test_is_caught(tmp_path: Path) -> None:
    (tmp_path / "nowhere_tested.py").write_text("def unheard_of() -> None: ...\n")
    assert not is_tested(tmp_path / "nowhere_tested.py", [path for path in WORDS if path != Path(__file__)])


def test_test_files_are_short() -> None:
    assert {path.name for path in WORDS if len(path.read_text().splitlines()) > MOST_LINES} == set()


def test_rooms_of_tests_are_rooms_of_the_house() -> None:
    rooms = {path.relative_to(TESTS).parts[0] for path in WORDS if path.parent != TESTS}
    assert {room for room in rooms if not (SOURCE / room).is_dir()} == {"guarantees"}


def bare_errors(source: str) -> list[int]:
    """The lines that make an error of no kind."""
    if "VeilwoodError(" not in source:
        return []
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "VeilwoodError"
    ]


def test_every_error_has_a_type() -> None:
    assert {name_of(path): lines for path in MODULES if (lines := bare_errors(path.read_text()))} == {}


def test_an_error_without_a_type_is_caught() -> None:
    assert bare_errors("raise VeilwoodError('no')\nraise ParameterError('x', 1, 'no')") == [1]
    assert bare_errors("raise errors.VeilwoodError('no')") == [1]
