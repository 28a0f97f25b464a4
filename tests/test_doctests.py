# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings are true: every module's doctests run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import warnings

import pytest

import veilwood
from veilwood_testing import SOURCES

MODULES = sorted(
    module.name
    for package, folder in SOURCES.items()
    for module in pkgutil.walk_packages([str(folder)], f"{package}.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", veilwood.UtilityWarning)
        assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(found) > 60
