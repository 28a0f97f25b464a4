# SPDX-License-Identifier: Apache-2.0
"""Rows in shares: joined from owners, encoded by the schema, and refused where they are not one-hot."""

from __future__ import annotations

from typing import Any

import numpy as np

import veilwood as vw
from veilwood.arrays import Ints
from veilwood.errors import UseError
from veilwood_secure.protocols.records import (
    Domain,
    are_one_hot,
    are_valid_classes,
    encode_classes,
    encode_one_hot,
    encode_table,
    join_owner_columns,
    stack_owner_rows,
)
from veilwood_testing.errors import rejects
from veilwood_testing.hidden_trees import load_rows, random_rows
from veilwood_testing.mpc_engines import PlainEngine


def test_owners_of_rows_and_of_columns_join() -> None:
    domain = Domain((3, 2), 2)
    engine = PlainEngine()
    codes, target = random_rows(np.random.default_rng(7), domain, 10)
    whole = load_rows(engine, codes, target, domain)
    by_rows = stack_owner_rows(
        [load_rows(engine, codes[:4], target[:4], domain), load_rows(engine, codes[4:], target[4:], domain)]
    )
    by_columns = join_owner_columns([whole.features[:1], whole.features[1:]], whole.classes)
    for joined in (by_rows, by_columns):
        assert (engine.open(joined.features) == engine.open(whole.features)).all()
        assert (engine.open(joined.classes) == engine.open(whole.classes)).all()
    with rejects(UseError, raised_in="join_owner_columns"):
        join_owner_columns([whole.features[:1], whole.features[1:, :, :4]], whole.classes)


def test_rows_that_are_not_one_hot_are_refused() -> None:
    domain = Domain((3, 2), 2)
    engine = PlainEngine()
    features = encode_one_hot([[0, 1], [2, 0], [1, 1]], domain).astype(np.int64)
    classes = encode_classes([0, 1, -1], domain).astype(np.int64)
    assert are_one_hot(engine, engine.constant(features), domain)
    assert are_valid_classes(engine, engine.constant(classes), domain)

    def spoiled(array: Ints, at: tuple[int, ...], value: int) -> Any:
        changed = array.copy()
        changed[at] = value
        return engine.constant(changed)

    for value in (2, -1, 1 << 16, 1 << 31, (1 << 31) + 1):
        assert not are_one_hot(engine, spoiled(features, (0, 0, 0), value), domain)
        assert not are_valid_classes(engine, spoiled(classes, (0, 0), value), domain)
    two_values = features.copy()
    two_values[0, 1, 0] = 1
    dummy = features.copy()
    dummy[1, :, 0] = [0, 0, 1]
    none = features.copy()
    none[0, :, 0] = 0
    for wrong in (two_values, dummy, none, features[:, :2], features[:1]):
        assert not are_one_hot(engine, engine.constant(wrong), domain)
    assert not are_valid_classes(engine, engine.constant(np.ones((2, 3), np.int64)), domain)
    assert not are_valid_classes(engine, engine.constant(np.ones((3, 3), np.int64)), domain)


def test_encoding_follows_the_schema_and_refuses_the_rest() -> None:
    car = vw.datasets.car()
    features, classes = encode_table(car.schema, car.X[:5], car.y[:5])
    domain = Domain.from_schema(car.schema)
    assert features.shape == (6, 4, 5)
    assert classes.sum(axis=0).tolist() == [1] * 5
    assert features[domain.dummy_mask].sum() == 0
    with rejects(vw.OutOfSchemaError, raised_in="encode_one_hot"):
        encode_one_hot([[3] * 6], Domain((4, 4, 4, 3, 3, 3), 4))
    with rejects(vw.OutOfSchemaError, raised_in="encode_classes"):
        encode_classes([4], domain)
    with rejects(UseError, raised_in="encode_one_hot"):
        encode_one_hot([[0, 1]], domain)
