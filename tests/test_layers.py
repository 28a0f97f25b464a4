# SPDX-License-Identifier: Apache-2.0
"""Imports go one way: from a room only to rooms below it, inside a room never in a circle, and not between families."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import veilwood
from veilwood_testing.layers import LAYERS

SOURCE = Path(veilwood.__file__).parent

FAMILIES = ("forests.random_trees", "forests.grown", "forests.matrix", "forests.adaptive")
BELOW_FAMILIES = ("forests.cells", "forests.explained")


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


TEXTS = {module_name(path): path.read_text() for path in SOURCE.rglob("*.py")}


def imported(text: str) -> set[str]:
    """Names of the library's modules that a text imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "veilwood":
            package = str(node.module).removeprefix("veilwood").removeprefix(".")
            names = {f"{package}.{alias.name}".removeprefix(".") for alias in node.names}
            found |= names & set(TEXTS)
            if names - set(TEXTS):  # some names are things inside a module
                found.add(package or "__init__")
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("veilwood").removeprefix(".") or "__init__"
                for alias in node.names
                if alias.name.split(".")[0] == "veilwood"
            }
    return found


def within(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def room_of(module: str) -> str:
    rooms = [room for layer in LAYERS for room in layer if within(module, room)]
    assert rooms, f"give {module} a room in LAYERS"
    return max(rooms, key=len)


def height(module: str) -> int:
    return next(place for place, layer in enumerate(LAYERS) if room_of(module) in layer)


def wrong_imports(module: str, text: str) -> list[str]:
    """The imports of a module that go upwards, sideways to an equal room, or from one family to another."""
    family = next((family for family in (*FAMILIES, *BELOW_FAMILIES) if within(module, family)), None)
    found = []
    for other in imported(text):
        upwards = height(other) > height(module)
        sideways = height(other) == height(module) and room_of(other) != room_of(module)
        abroad = family is not None and any(within(other, f) for f in FAMILIES if f != family)
        if upwards or sideways or abroad:
            found.append(other)
    return sorted(found)


def circles(texts: dict[str, str]) -> list[str]:
    """Modules that import each other in a circle."""
    graph = {module: imported(text) & set(texts) - {module} for module, text in texts.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("module", sorted(TEXTS))
def test_imports_go_one_way(module: str) -> None:
    assert wrong_imports(module, TEXTS[module]) == []


def test_no_imports_in_a_circle() -> None:
    assert circles(TEXTS) == []


def test_every_room_of_the_table_exists() -> None:
    assert [room for layer in LAYERS for room in layer if not any(within(m, room) for m in TEXTS)] == []
    assert [family for family in FAMILIES if not any(within(m, family) for m in TEXTS)] == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("privacy.door", "from veilwood.data.schema import Schema"),
        ("trees.counting", "def count():\n    from veilwood.forests import leaves"),
        ("data.encoding", "import veilwood.estimators"),
        ("forests.random_trees", "from veilwood.forests.matrix import training"),
        ("forests.grown.base", "from veilwood.forests.adaptive.loop import Loop"),
        ("privacy.plan", "from veilwood import Schema"),
        ("privacy.loss", "import veilwood"),
        ("tune", "from veilwood_audit import leaks"),
        ("secure.mpc.ring", "from veilwood_secure.roles import server"),
    ],
)
def test_a_wrong_import_is_caught(module: str, text: str) -> None:
    assert wrong_imports(module, text)


def test_a_circle_is_caught() -> None:
    mutant = TEXTS | {"privacy.loss": "from veilwood.privacy import ledger"}
    assert circles(mutant)


def test_datasets_know_the_schema_only() -> None:
    assert imported(TEXTS["datasets"]) <= {"data.columns", "data.schema", "errors"}


@pytest.mark.parametrize("module", sorted(TEXTS))
def test_modules_start_alike_and_stay_short(module: str) -> None:
    text = TEXTS[module]
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 510, "a module of more than about 500 lines wants to be two"
    assert module.rsplit(".", 1)[-1] not in ("utils", "helpers")
