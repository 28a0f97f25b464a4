# SPDX-License-Identifier: Apache-2.0
"""Explanations: effects are what the leaves say, and their error bars are those of the noise."""

from __future__ import annotations

import numpy as np
import pytest

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.forests.adaptive.cell_tables import Axis, CellTable, grow_tables
from veilwood.forests.adaptive.effects import effects_of

SCHEMA = vw.Schema.from_dict(
    {
        "name": "visits",
        "task": "classification",
        "target": "ill",
        "columns": [
            {"name": "age", "kind": "numeric", "lower": 0, "upper": 100},
            {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"]},
            {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
        ],
    }
)
ENCODING = Encoding(SCHEMA, "grid")


def axis(feature: int, starts: list[int]) -> Axis:
    groups = np.arange(len(starts), dtype=np.uint16)
    return Axis(feature, groups, ENCODING.columns[feature].ordered, len(starts), np.array(starts))


AGE, COARSE_AGE, WARD = axis(0, [0, 20_000, 40_000]), axis(0, [0, 30_000]), axis(1, [0, 1, 2])


def test_main_effects_are_the_means_of_the_leaves_over_the_other_column() -> None:
    forest, cells = grow_tables([CellTable((AGE, WARD))])
    table = np.arange(9.0).reshape(3, 3) ** 1.5
    told = effects_of(forest, table.reshape(-1, 1)[cells], np.zeros((9, 1)), ENCODING)
    by_name = {main.column: main.effect[:, 0] for main in told.main}
    assert np.allclose(by_name["age"], table.mean(axis=1) - table.mean())
    assert np.allclose(by_name["ward"], table.mean(axis=0) - table.mean())
    assert told.interactions[0].columns == ("age", "ward")


def test_errors_are_those_of_the_noise() -> None:
    """Values that are pure noise of the stated errors give effects of the stated errors."""
    rng = np.random.default_rng(0)
    forest, _ = grow_tables([CellTable((AGE, WARD)), CellTable((COARSE_AGE,))])
    errors = rng.uniform(0.5, 2, (forest.n_leaves, 1))
    drawn = [effects_of(forest, rng.normal(size=errors.shape) * errors, errors, ENCODING) for _ in range(250)]
    for name in ("age", "ward"):
        mains = [next(main for main in told.main if main.column == name) for told in drawn]
        measured = np.std([main.effect for main in mains], axis=0)
        assert np.allclose(measured, mains[0].error, rtol=0.25)
    strengths = np.array([told.interactions[0].strength for told in drawn])
    assert np.sqrt((strengths**2).mean()) == pytest.approx(drawn[0].interactions[0].noise, rel=0.1)
