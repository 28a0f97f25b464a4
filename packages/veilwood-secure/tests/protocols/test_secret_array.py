# SPDX-License-Identifier: Apache-2.0
"""Arrays on shares that look like arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilwood.errors import VeilwoodError
from veilwood_secure.protocols.joint_forest import RING
from veilwood_secure.protocols.secret_array import SecretArray
from veilwood_testing.mpc_engines import PlainEngine

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


VERBS: dict[str, Any] = {
    "sizes by table": lambda x: np.add.reduceat(np.abs(x).sum(axis=1), [0, 2, 3]) - np.array([1, 2, 3]),
    "largest": lambda x: np.stack([x.max() * 4, np.maximum(x, 0).sum()]),
    "smallest by row": lambda x: np.where(np.arange(3) > 0, x, 10**9).min(axis=1),
    "running": lambda x: np.concatenate([np.cumsum(x, axis=1)[:, :-1], np.zeros((1, 2), np.int64)]),
    "public first": lambda x: np.array([5, 6, 7]) - 2 * x + np.subtract(np.ones(3, np.int64), x),
    "parts": lambda x: np.split(x.ravel(), [4, 6])[1].reshape(2, 1),
    "taken": lambda x: -np.take_along_axis(x, np.array([[0], [2], [1], [0]]), axis=1)[:, 0],
    "kept": lambda x: x.sum(axis=1, keepdims=True),
}


@pytest.mark.parametrize("verb", VERBS)
def test_secret_numbers_do_what_arrays_do(verb: str) -> None:
    exact = np.array([[3, -4, 0], [7, 7, -9], [0, 0, 1], [-5, 2, 6]])
    engine = PlainEngine(RING)
    found = VERBS[verb](SecretArray(engine, engine.constant(exact)))
    assert np.array_equal(engine.open(found.shared), VERBS[verb](exact))


def test_what_cannot_be_done_on_shares_is_refused_by_name() -> None:
    engine = PlainEngine(RING)
    x: Any = SecretArray(engine, engine.constant([1, 2]))
    for verb in (np.sqrt, np.sort, lambda x: np.floor_divide(x, 2)):
        with pytest.raises(VeilwoodError, match="on shares"):
            verb(x)
