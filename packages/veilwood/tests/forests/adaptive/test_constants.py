# SPDX-License-Identifier: Apache-2.0
"""The constants of PrivateForest have the values that were chosen on the benchmark suite.

Changing one changes every forest but breaks no guarantee, so no other test would notice. After a change, measure it on
the suite (benchmarks/private_forest.py) and record the new values:
``python packages/veilwood/tests/forests/adaptive/test_constants.py``.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from veilwood.forests import adaptive
from veilwood.forests.adaptive import loop
from veilwood.privacy.adaptive_budget import TableStepName
from veilwood_testing import FILES

FILE = FILES / "chosen_constants.json"
MODULES = (
    *(f"{adaptive.__name__}.{module.name}" for module in pkgutil.iter_modules(adaptive.__path__)),
    "veilwood.forests.expected_skill", "veilwood.kernels", "veilwood.privacy.adaptive_budget", "veilwood.privacy.noise",
    "veilwood.privacy.joint_noise", "veilwood.data.encoding",
    "veilwood_engines.gpu", "veilwood_engines.cluster.source", "veilwood_engines.sql.backend",
)  # fmt: skip


def constants() -> dict[str, Any]:
    """Return every upper-case constant defined in these modules: numbers, tuples and arrays of numbers."""
    found = {}
    for path in MODULES:
        module = importlib.import_module(path)
        for name in _assigned_names(module):
            value = getattr(module, name)
            if not name.isupper() or isinstance(value, bool | TableStepName):
                continue
            if isinstance(value, int | float | tuple | np.ndarray):
                found[f"{path.rpartition('.')[2]}.{name}"] = json.loads(json.dumps(_plain(value)))
    return found


def _assigned_names(module: ModuleType) -> list[str]:
    """Return the names that a module assigns at its top level, so that imported constants are recorded once."""
    names = []
    for node in ast.parse(inspect.getsource(module)).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names += [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    return names


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.size > 100:  # a table of a function
        return [value.size, float(value.sum())]
    if isinstance(value, tuple | list | np.ndarray):
        return [_plain(each) for each in value]
    return round(float(value), 12) if isinstance(value, int | float | np.number) else repr(value)


def test_constants_have_their_recorded_values() -> None:
    assert constants() == json.loads(FILE.read_text())


def test_a_changed_constant_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "START_FRACTION", loop.START_FRACTION * 1.01)
    recorded = json.loads(FILE.read_text())
    assert {name for name, value in constants().items() if recorded[name] != value} >= {"loop.START_FRACTION"}


if __name__ == "__main__":
    FILE.write_text(json.dumps(constants(), indent=1) + "\n")
