# SPDX-License-Identifier: Apache-2.0
"""Shared by not_private/test_random_trees.py and other tests."""

from __future__ import annotations

from typing import Any

from veilwood.datasets import car
from veilwood_papers.not_private.as_published import RandomTreesAsPrintedNotPrivate


def forest(**parameters: Any) -> RandomTreesAsPrintedNotPrivate:
    return RandomTreesAsPrintedNotPrivate(
        car().schema, **{"n_estimators": 4, "max_depth": 3, "random_state": 0, **parameters}
    )
