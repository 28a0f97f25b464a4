# SPDX-License-Identifier: Apache-2.0
"""Tests of the embedded data sets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from veilwood import datasets
from veilwood.data.encoding import Encoding


@pytest.mark.parametrize("make", [datasets.car, datasets.balance_scale, datasets.iris])
def test_data_fits_its_schema(make: Callable[[], datasets.Dataset]) -> None:
    schema, X, y = make()
    assert tuple(X.columns) == schema.feature_names
    assert y.name == schema.target.name
    assert y.dtype == object
    encoding = Encoding(schema)
    assert encoding.encode(X).shape == X.shape
    assert set(encoding.encode_target(y)) == set(range(len(schema.classes)))
    for column in schema.features:
        if column.kind == "numeric":
            assert X[column.name].between(*column.bounds).all()
        else:
            assert X[column.name].dtype == object
            assert set(X[column.name]) == set(column.values)


def test_car_counts_and_known_rows() -> None:
    _, X, y = datasets.car()
    assert len(X.drop_duplicates()) == 1728
    assert y.value_counts().to_dict() == {"unacc": 1210, "acc": 384, "good": 69, "vgood": 65}
    assert X.iloc[0].tolist() == ["vhigh", "vhigh", "2", "2", "small", "low"]
    assert (X.iloc[-1].tolist(), y.iloc[-1]) == (["low", "low", "5more", "more", "big", "high"], "vgood")
    rated = dict(zip(map(tuple, X.to_numpy()), y, strict=True))
    assert rated["low", "low", "2", "4", "small", "high"] == "good"
    assert rated["low", "low", "2", "more", "small", "high"] == "unacc"
    assert rated["med", "med", "4", "4", "med", "med"] == "acc"


def test_balance_scale_is_symmetric() -> None:
    _, X, y = datasets.balance_scale()
    assert y.value_counts().to_dict() == {"L": 288, "R": 288, "B": 49}
    label = dict(zip(map(tuple, X.to_numpy()), y, strict=True))
    swap = {"L": "R", "R": "L", "B": "B"}
    assert all(label[c, d, a, b] == swap[label[a, b, c, d]] for a, b, c, d in label)


def test_iris_shape() -> None:
    assert datasets.iris().X.shape == (150, 4)
