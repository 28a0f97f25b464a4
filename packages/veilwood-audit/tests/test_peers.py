# SPDX-License-Identifier: Apache-2.0
"""Attacks on implementations of others."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator

import veilwood as vw
from veilwood.cli.main import main
from veilwood.privacy.selection import PermuteAndFlip
from veilwood_audit import peers
from veilwood_audit.commands import EXIT_REFUTED

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def in_order(n: int, trees: int) -> Any:
    return (np.arange(n) // (n / trees)).astype(int)


def independently(n: int, trees: int) -> Any:
    return np.random.default_rng().integers(trees, size=n)


class PeerTree(BaseEstimator):  # type: ignore[misc]
    """The tree of a small re-implementation of the peer: a label by permute-and-flip, drawn from its own seed."""

    def __init__(self, random_state: Any = None) -> None:
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Any:
        rng = np.random.default_rng(self.random_state)
        counts = np.bincount(y, minlength=2)
        label = int(rng.choice(2, p=PermuteAndFlip(1, 1).probabilities(counts)))
        self.tree_ = SimpleNamespace(threshold=rng.random(4), value=np.array([label]))
        return self

    def predict(self, X: Any) -> Any:
        return np.repeat(self.tree_.value, len(X))


def peer(parts: Any, seeded: bool) -> ModuleType:
    """A module in place of the peer's, whose forest gives rows to trees by ``parts``."""

    class Forest:
        def __init__(self, n_estimators: int, **ignored: Any) -> None:
            self.n_estimators = n_estimators

        def fit(self, X: Any, y: Any) -> Any:
            trees = parts(len(y), self.n_estimators)
            seeds = np.random.default_rng().integers(2**31, size=self.n_estimators)
            self.estimators_ = [
                PeerTree(int(seeds[t]) if seeded else None).fit(X[trees == t], y[trees == t])
                for t in range(self.n_estimators)
            ]
            return self

    module = ModuleType("diffprivlib.models")
    module.RandomForestClassifier = Forest  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(("parts", "seeded", "refuted"), [(in_order, True, True), (independently, False, False)])
def test_the_attack_on_a_peer(
    parts: Any, seeded: bool, refuted: bool, here: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    package = ModuleType("diffprivlib")
    package.__version__ = "0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "diffprivlib", package)
    monkeypatch.setitem(sys.modules, "diffprivlib.models", peer(parts, seeded))
    code = main(["audit", "peer", "diffprivlib", "--runs", "400", "-o", "out", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (EXIT_REFUTED if refuted else 0)
    assert (found["epsilon_lower_bound"] > 1, found["seed_in_model"]) == (refuted, seeded)
    assert ("REFUTED" in (here / "out/diffprivlib-audit.md").read_text()) is refuted


def test_a_peer_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "diffprivlib.models", None)
    assert main(["audit", "peer", "diffprivlib"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install" in line
    with pytest.raises(vw.VeilwoodError):
        peers.attack_diffprivlib()
