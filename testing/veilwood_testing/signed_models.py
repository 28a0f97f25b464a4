# SPDX-License-Identifier: Apache-2.0
"""A folder with signed models and plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import veilwood as vw
from veilwood.models import file as signed
from veilwood.privacy import signature

SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
X = np.random.default_rng(0).random((60, 2))
Y = np.where(X[:, 0] > 0.5, "yes", "no")


def fitted(**parameters: Any) -> Any:
    usual: dict[str, Any] = {"n_estimators": 3, "max_depth": 2, "random_state": 0, "ledger": vw.MemoryLedger()}
    return vw.RandomTreesClassifier(SCHEMA, **usual | parameters).fit(X, Y)


def fill(folder: Path) -> None:
    """Put into a folder two key pairs, a signed model, another signed model, and a signed plan."""
    for name in ("clinic", "stranger"):
        signature.generate_key_pair(folder / f"{name}.key")
    vw.save(fitted(), folder / "model.veilwood")
    vw.save(fitted(epsilon=2.0), folder / "other.veilwood")
    vw.RandomTreesClassifier(SCHEMA, n_estimators=3, max_depth=2, random_state=0).plan().save(folder / "plan.json")
    for name in ("model.veilwood", "other.veilwood", "plan.json"):
        signed.sign(folder / name, folder / "clinic.key")
