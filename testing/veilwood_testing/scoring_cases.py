# SPDX-License-Identifier: Apache-2.0
"""Shared by forests/test_scoring.py and other tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import veilwood as vw
from veilwood.arrays import Codes, Floats
from veilwood.data.encoding import Encoding
from veilwood.estimators.method import Model

COLUMNS = [{"name": "x", "kind": "categorical", "values": list("abcd")}]


def schema_of(n_classes: int) -> vw.Schema:
    target: dict[str, Any] = {"name": "y", "kind": "numeric", "lower": -1, "upper": 3}
    if n_classes:
        target = {"name": "y", "kind": "categorical", "values": [f"c{i}" for i in range(n_classes)]}
    task = "classification" if n_classes else "regression"
    return vw.Schema.from_dict({"name": "s", "task": task, "target": "y", "columns": [*COLUMNS, target]})


@dataclass(frozen=True, eq=False)
class Says(Model):
    """A model that says what a function of the codes says."""

    says: Callable[[Codes], Floats]
    voting: str = ""
    public_attributes: ClassVar[tuple[str, ...]] = ()

    def predict_outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        return self.says(codes)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {}


def model_of(n_classes: int, voting: str = "", seed: int = 0) -> Says:
    shares = np.random.default_rng(seed).dirichlet(np.ones(n_classes or 2), 4)
    shares[2] = 1 / (n_classes or 2)  # a tie
    said = shares if n_classes else -1 + 4 * shares[:, 0]
    return Says(Encoding(schema_of(n_classes), "bins"), lambda codes: said[codes[:, 0]].copy(), voting)
