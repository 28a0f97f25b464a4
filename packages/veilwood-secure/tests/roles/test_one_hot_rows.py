# SPDX-License-Identifier: Apache-2.0
"""Rows as ones and zeros, which servers check unseen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.errors import PartyError
from veilwood_secure.roles.hidden_programs import HiddenForest
from veilwood_secure.roles.program import program_for_task
from veilwood_testing.mpc_engines import PlainEngine
from veilwood_testing.secure_roles import TASK


@pytest.mark.parametrize(
    ("protocol", "settings"),
    [
        ("hidden-tree", {"max_depth": 2}),
        ("hidden-tree", {"max_depth": 2, "n_trees": 3}),
        ("private-votes", {"max_depth": 1, "n_trees": 3}),
    ],
)
def test_every_protocol_that_answers_refuses_values_no_row_has(protocol: str, settings: dict[str, Any]) -> None:
    """The features of cars have 4 or 3 values; a fourth value of the latter is a filler that no row has."""
    schema, cars, _ = vw.datasets.car()
    task = replace(TASK, schema=schema.to_dict(), epsilon="2", protocol=protocol, settings=settings)
    program, engine = program_for_task(task), PlainEngine()
    assert isinstance(program, HiddenForest)
    features = program.encode_queries(cars[:4])[0]["features"].astype(np.int64)
    program.check_queries(engine, "analyst", {"features": engine.constant(features)})
    feature = int(program.domain.dummy_mask.any(axis=1).argmax())
    features[feature, :, 1] = program.domain.dummy_mask[feature]
    assert features[feature, :, 1].sum() == 1
    with pytest.raises(PartyError, match="queries of user analyst do not fit"):
        program.check_queries(engine, "analyst", {"features": engine.constant(features)})
