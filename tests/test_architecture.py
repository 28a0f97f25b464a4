# SPDX-License-Identifier: Apache-2.0
"""ARCHITECTURE.md describes the house that stands, and the tests are where the modules they test would lead one."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import veilwood
from veilwood_papers import runner as catalog
from veilwood_testing.layers import LAYERS

SOURCE = Path(veilwood.__file__).parent
ROOT = SOURCE.parents[1]
TESTS = ROOT / "tests"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
TEST_FILES = sorted(TESTS.rglob("test_*.py"))

# Why a module has no test file of its name. Everything else has one, in the folder of its room.
NO_TEST_OF_ITS_OWN = {
    "_version": "a text",
    "forests.grown.levels": "declares what is passed to the families, whose tests make and use it",
    "service.migrations.env": "what Alembic runs: the steps are tested with the database they lead to",
}
EXHIBITS = {f"papers.{module}" for module in catalog.MODULES}
"""Tables and figures: reproductions/tests/test_catalog.py measures, draws, compares and contradicts every one of them."""
MOST_LINES, MOST_TEST_LINES = 500, 600


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def without_test(source: Path, tests: Path) -> set[str]:
    """The modules of a package that have no test file of their name in the folder of their room."""
    modules = {path.relative_to(source) for path in source.rglob("*.py")} - {Path("__main__.py")}
    return {
        ".".join(path.with_suffix("").parts)
        for path in modules
        if path.name != "__init__.py" and not (tests / path.with_name(f"test_{path.name}")).exists()
    }


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


def test_tests_mirror_the_tree() -> None:
    missing = without_test(SOURCE, TESTS)
    assert missing - EXHIBITS - set(NO_TEST_OF_ITS_OWN) == set(), "a module without a test file of its name"
    assert set(NO_TEST_OF_ITS_OWN) - missing == set(), "no longer needed in the table"


def test_a_module_without_a_test_file_is_caught(tmp_path: Path) -> None:
    for name in ("src/room/told.py", "src/room/silent.py", "src/room/__init__.py", "tests/room/test_told.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "tests/test_silent.py").touch()  # not in its room
    assert without_test(tmp_path / "src", tmp_path / "tests") == {"room.silent"}


def test_test_files_hold_tests() -> None:
    assert [
        path for path in TEST_FILES if not re.search(r"^ *(async )?def test_", path.read_text(), re.MULTILINE)
    ] == []


def longer_than(most: int, paths: Iterable[Path]) -> set[str]:
    return {path.name for path in paths if len(path.read_text().splitlines()) > most}


def test_files_are_short(tmp_path: Path) -> None:
    assert longer_than(MOST_LINES, MODULES) == set()
    assert longer_than(MOST_TEST_LINES, TEST_FILES) == set()
    (tmp_path / "long.py").write_text("\n" * (MOST_LINES + 1))
    assert longer_than(MOST_LINES, tmp_path.iterdir()) == {"long.py"}


def test_rooms_of_tests_are_rooms_of_the_house() -> None:
    rooms = {path.relative_to(TESTS).parts[0] for path in TEST_FILES if path.parent != TESTS}
    assert {room for room in rooms if not (SOURCE / room).is_dir()} == {"guarantees"}


# Names of classes and types that stand for one thing in several modules.
SHARED_NAMES = {
    "Client": "both are public: one of the service, one of the secure servers, each in a namespace of its own",
    **dict.fromkeys(("Arrays", "Bools", "Codes", "Floats", "Ints", "Longs", "Words"), "arrays of one kind"),
    **dict.fromkeys(("Kind", "Outcome", "Result"), "type variables"),
    "Buffer": "bytes in memory",
    "Counts": "arrays of whole numbers",
    "Said": "tells a line to whoever waits",
}


def types_in(source: str) -> list[str]:
    """The classes and aliases that a module defines."""
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).endswith("TypeAlias"):
            found.append(ast.unparse(node.target))
        elif isinstance(node, ast.Assign) and re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", name := ast.unparse(node.targets[0])):
            found.append(name)
    return found


def shared_types(sources: list[str]) -> set[str]:
    return {
        name for name, times in Counter(name for source in sources for name in types_in(source)).items() if times > 1
    }


def test_a_name_is_one_thing() -> None:
    shared = shared_types([path.read_text() for path in MODULES])
    assert shared - set(SHARED_NAMES) == set(), "rename one of them"
    assert set(SHARED_NAMES) - shared == set(), "no longer needed in the table"


def test_a_name_that_is_two_things_is_caught() -> None:
    alias, kind, other = "Rows: TypeAlias = list[int]", "class Rows: ...", "Rows = TypeVar('Rows')\nROWS = 3"
    for pair in ([alias, kind], [kind, other], [alias, other]):
        assert shared_types(pair) == {"Rows"}
    assert shared_types([kind, "class Row: ...", "rows = 3"]) == set()


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
