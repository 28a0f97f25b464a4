# SPDX-License-Identifier: Apache-2.0
"""Shared by forests/cells/test_cluster_rows.py and other tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import veilwood as vw
from veilwood.privacy import entropy
from veilwood_testing.engines_cases import (
    CLINIC,
    STAY,
)

KINDS: dict[str, tuple[Callable[..., Any], str]] = {
    "rounds": (partial(vw.PrivateForestClassifier, CLINIC, epsilon=3.0), "ill"),
    "fine cells": (partial(vw.PrivateForestClassifier, CLINIC, epsilon=20.0), "ill"),
    "numbers": (partial(vw.PrivateForestRegressor, STAY, epsilon=5.0), "days"),
}


def fitted(kind: str, X: Any, **params: Any) -> Any:
    with entropy.seeded_for_tests(5):
        return KINDS[kind][0](random_state=0, **params).fit(X)


def assert_same(one: Any, other: Any) -> None:
    mine, yours = one.model_.to_arrays(), other.model_.to_arrays()
    assert mine.keys() == yours.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], yours[name], err_msg=name)
    assert one.plan_.choices == other.plan_.choices
