# SPDX-License-Identifier: Apache-2.0
"""Imports go one way: a module may import only those before it in the order below."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import veilwood

SOURCE = Path(veilwood.__file__).parent

# From what everything stands on to what a person types. A new module is given its place here; families of
# estimators stand side by side and do not import one another.
ORDER = [
    "_version", "errors", "entropy", "privacy", "samplers", "mechanisms", "sparse_counts", "ledger",
    "tables", "columns", "schema", "datasets", "encoding_kernels", "encoding", "progress", "batches", "sources",
    "partitions", "cluster",
    "structure", "growing", "kernels", "histogram_kernels", "gpu", "counting", "histograms",
    "workloads", "strategies", "strategy_search",
    "plan", "statement", "release", "leaves", "medians", "greedy", "theory", "theory_medians",
    "table_trees", "recipes", "counted_tables", "boosting", "rounds", "fine_cells", "cell_forests",
    "effects", "cell_effects",
    "estimators.base", "estimators.counted", "estimators.one_pass", "estimators.grown", "estimators.*",
    "estimators.matrix_predictor", "estimators",
    "secure.ring", "secure.engine", "secure.plain", "secure.shares", "secure.links", "secure.replicated",
    "secure.mpyc_links", "secure.noise", "secure.fixed_point", "secure.records", "secure.choose", "secure.hidden_tree",
    "secure.plaintext", "secure.id3", "secure.exponential", "secure.plans", "secure.forests", "secure.joint",
    "secure.*",
    "not_private.shared", "not_private.*", "not_private", "model_file", "onnx_export",
    "secure.identity", "secure.config", "secure.transport", "secure.sessions", "secure.storage", "secure.programs",
    "secure.calls", "secure.client", "secure.user", "secure.server", "secure.local", "secure.demo", "secure",
    "audit", "attacks", "peers", "model_audit", "reports",
    "plots", "plots_medians", "tune",
    "__init__", "demo", "cli_options", "cli_audit", "cli_secure", "cli", "__main__",
]  # fmt: skip


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def imported(text: str, modules: set[str]) -> set[str]:
    """Names of the library's modules that a text imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "veilwood":
            package = str(node.module).removeprefix("veilwood").removeprefix(".")
            names = {f"{package}.{alias.name}".removeprefix(".") for alias in node.names}
            found |= names & modules
            if names - modules:  # some names are things inside a module
                found.add(package or "__init__")
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("veilwood").removeprefix(".") or "__init__"
                for alias in node.names
                if alias.name.split(".")[0] == "veilwood"
            }
    return found


TEXTS = {module_name(path): path.read_text() for path in SOURCE.rglob("*.py")}


def place(module: str) -> int:
    family = f"{module.split('.')[0]}.*"
    known = module if module in ORDER else family
    assert known in ORDER, f"give {module} a place in ORDER"
    return ORDER.index(known)


def backward(module: str, text: str) -> list[str]:
    """The imports of a module that go against the order."""
    return sorted(other for other in imported(text, set(TEXTS)) if place(other) >= place(module))


@pytest.mark.parametrize("module", sorted(TEXTS))
def test_imports_go_one_way(module: str) -> None:
    assert backward(module, TEXTS[module]) == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("counting", "from veilwood.release import Door"),
        ("structure", "def grow():\n    from veilwood import counting"),
        ("leaves", "import veilwood.estimators.base"),
        ("estimators.base", "from veilwood.estimators import random_trees"),
        ("plan", "from veilwood import Schema"),
        ("privacy", "import veilwood"),
    ],
)
def test_an_import_that_goes_back_is_caught(module: str, text: str) -> None:
    assert backward(module, text)


def test_datasets_know_the_schema_only() -> None:
    assert imported(TEXTS["datasets"], set(TEXTS)) <= {"columns", "schema", "errors"}


@pytest.mark.parametrize("module", sorted(TEXTS))
def test_modules_start_alike_and_stay_short(module: str) -> None:
    text = TEXTS[module]
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 510, "a module of more than about 500 lines wants to be two"
