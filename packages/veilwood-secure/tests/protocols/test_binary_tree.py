# SPDX-License-Identifier: Apache-2.0
"""Hidden binary trees: equal to a twin in the open, with scores that one row moves by at most one, at their price."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood_secure.protocols.hidden_trees import (
    CutCandidates,
    Recipe,
    TreeNoise,
    classify_binary,
    draw_tree_noise,
    drop_dummy_values,
    grow_binary_tree,
)
from veilwood_secure.protocols.records import Domain, encode_classes, encode_one_hot
from veilwood_secure.roles.program import program_for_task
from veilwood_testing.mpc_engines import PlainEngine
from veilwood_testing.secure_roles import TASK

SIZES, ORDERED = (5, 2, 3), (True, False, False)


def asks(codes: Any) -> Any:
    """Which rows each cut sends to the left, in words: below a threshold, or equal to a value."""
    found = [codes[:, 0] <= t for t in range(4)] + [codes[:, 1] == 0] + [codes[:, 2] == v for v in range(3)]
    return np.array(found)


def scores_of(codes: Any, target: Any, n_classes: int) -> Any:
    """Rows of the most frequent class on both sides, for each cut."""
    best = []
    for left in asks(codes):
        sides = [np.bincount(target[side], minlength=n_classes).max() for side in (left, ~left)]
        best.append(sum(sides))
    return np.array(best)


def control(codes: Any, target: Any, n_classes: int, depth: int, added: list[Any], leaves: Any) -> Any:
    """The tree in the open, and the class of every row."""
    node = np.zeros(len(codes), np.int64)
    left = asks(codes)
    for level in range(depth):
        goes = np.zeros(len(codes), bool)
        for place_ in range(2**level):
            here = node == place_
            scores = scores_of(codes[here], target[here], n_classes) + added[level][:, place_]
            goes[here] = left[scores.argmax()][here]
        node = 2 * node + ~goes
    counts = np.zeros((2**depth, n_classes), np.int64)
    np.add.at(counts, (node, target), 1)
    return (counts + leaves.T).argmax(axis=1)[node]


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_hidden_binary_tree_is_its_twin(n_classes: int) -> None:
    rng = np.random.default_rng(n_classes)
    domain, cuts = Domain(SIZES, n_classes), CutCandidates(SIZES, ORDERED)
    codes, target = np.stack([rng.integers(0, size, 120) for size in SIZES], axis=1), rng.integers(0, n_classes, 120)
    engine = PlainEngine()
    recipe = Recipe(domain, (Fraction(1),) * 3, Fraction(1), n_cuts=cuts.n_cuts)
    features = engine.constant(drop_dummy_values(encode_one_hot(codes, domain), SIZES).astype(np.int64))
    classes = engine.constant(encode_classes(target, domain).astype(np.int64))
    for draw in (0, 7):
        added = [rng.integers(0, draw + 1, (cuts.n_cuts, 2**level)) for level in range(3)]
        leaves = rng.integers(0, draw + 1, (n_classes, 8))
        given = TreeNoise(tuple(engine.constant(part) for part in added), engine.constant(leaves))
        tree = grow_binary_tree(engine, features, classes, cuts, recipe, given)
        result = engine.open(classify_binary(engine, tree, cuts, features)).argmax(axis=0)
        assert (result == control(codes, target, n_classes, 3, added, leaves)).all()


def test_one_row_moves_a_score_by_at_most_one_by_enumeration() -> None:
    every = np.array(list(product(*map(range, SIZES))))
    rng = np.random.default_rng(0)
    for _ in range(20):
        some = every[rng.integers(0, len(every), rng.integers(0, 6))]
        target = rng.integers(0, 3, len(some))
        before = scores_of(some, target, 3)
        for row, own in product(every, range(3)):
            moved = scores_of(np.vstack([some, row]), np.append(target, own), 3) - before
            assert set(moved) <= {0, 1}


def test_widths_are_those_of_the_columns_and_levels_double() -> None:
    wide = vw.Schema.from_dict({
        "name": "wide", "task": "classification", "target": "y",
        "columns": [
            {"name": "a", "kind": "categorical", "values": [str(v) for v in range(42)]},
            {"name": "b", "kind": "categorical", "values": ["0", "1"]},
            {"name": "y", "kind": "categorical", "values": ["0", "1"]},
        ],
    })  # fmt: skip
    task = replace(TASK, schema=wide.to_dict(), protocol="binary-tree", settings={"max_depth": 4})
    program = program_for_task(task)
    assert program.row_shapes("north", 10)["features"] == (44, 10)
    assert [step.shape for step in program.plan.steps] == [(1, 43), (2, 43), (4, 43), (8, 43), (16, 2)]
    planned: Any = program
    drawn = draw_tree_noise(PlainEngine(), planned._planned.recipe)
    assert [part.shape for part in drawn.splits if part is not None] == [(43, 1), (43, 2), (43, 4), (43, 8)]
