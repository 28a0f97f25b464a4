# SPDX-License-Identifier: Apache-2.0
"""Shared by bench/test_suite.py and other tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from veilwood_papers.suite import peers

FOREST = """
from sklearn.ensemble import RandomForestClassifier as Plain
def RandomForestClassifier(epsilon, bounds, classes, random_state, shuffle):
    if epsilon > 10:
        raise RuntimeError("too much")
    return Plain(10, random_state=random_state)
"""


CHEAP = """
class Cheap:
    def __init__(self, schema, epsilon, delta, random_state):
        self.note_ = f"{epsilon}"
    def fit(self, X, y):
        self.most = y.mode()[0] if y.dtype == object else y.mean()
        with open("fits", "a") as file:
            file.write("x")
        return self
    def predict(self, X):
        return [self.most] * len(X)
"""


def use_fake(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let our own interpreter be the environment, with a library of that name that is none."""
    (folder / "diffprivlib").mkdir()
    (folder / "diffprivlib" / "__init__.py").write_text("")
    (folder / "diffprivlib" / "models.py").write_text(FOREST)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(peers, "peer_python", lambda peer, say=print: Path(sys.executable))
