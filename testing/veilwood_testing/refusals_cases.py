# SPDX-License-Identifier: Apache-2.0
"""Shared by data/test_refusals.py and other tests."""

from __future__ import annotations

from typing import Any

import pytest

import veilwood as vw

SCHEMA = vw.Schema.from_dict({
    "name": "clinic", "task": "classification", "target": "ill",
    "columns": [
        {"name": "age", "kind": "numeric", "lower": 0, "upper": 100},
        {"name": "ward", "kind": "categorical", "values": ["A", "B"]},
        {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
    ],
})  # fmt: skip


def forest(**params: Any) -> Any:
    return vw.RandomTreesClassifier(SCHEMA, n_estimators=2, max_depth=2, random_state=0, **params)


def refusal_of(X: Any, y: Any = None, **params: Any) -> vw.OutOfSchemaError:
    with pytest.raises(vw.OutOfSchemaError) as caught:
        forest(**params).fit(X, y)
    return caught.value


def told_by(error: BaseException) -> str:
    """All that a reader of a log could see."""
    return " ".join([str(error), repr(vars(error)), *getattr(error, "__notes__", ())])
