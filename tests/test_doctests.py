# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings of all packages are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import warnings

import pytest

import veilwood
from veilwood_testing import SOURCES


def module_names(package: str) -> list[str]:
    modules = pkgutil.walk_packages([str(SOURCES[package])], f"{package}.")
    return [package, *(module.name for module in modules if not module.name.endswith("__main__"))]


@pytest.mark.parametrize("package", sorted(SOURCES))
def test_examples_in_docstrings(package: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", veilwood.UtilityWarning)
        results = {name: doctest.testmod(importlib.import_module(name)) for name in module_names(package)}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) > 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    modules = [importlib.import_module(name) for package in SOURCES for name in module_names(package)]
    assert len([test for module in modules for test in finder.find(module) if test.examples]) > 60


def test_a_false_example_is_caught(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(veilwood.Schema, "__doc__", ">>> 1 + 1\n3\n")
    assert doctest.testmod(importlib.import_module("veilwood.data.schema")).failed == 1
    assert "Expected" in capsys.readouterr().out
