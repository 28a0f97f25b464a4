# SPDX-License-Identifier: Apache-2.0
"""Forests of hidden trees: each row in one tree, by its place alone."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood.arrays import Ints
from veilwood.privacy import entropy
from veilwood_papers.mpc import plain as plaintext
from veilwood_secure.mpc.replicated import Links, ReplicatedEngine, run_in_threads
from veilwood_secure.mpc.shares import share
from veilwood_secure.protocols import hidden_forest as forests
from veilwood_secure.protocols.hidden_forest import (
    HiddenPlan,
    assign_rows_to_trees,
    grow_hidden_forest,
    plan_hidden_forest,
)
from veilwood_secure.protocols.hidden_trees import Recipe, predict_queries
from veilwood_secure.protocols.records import Domain, SharedRows, encode_classes, encode_one_hot
from veilwood_testing.hidden_trees import load_rows, random_table
from veilwood_testing.mpc_engines import PlainEngine
from veilwood_testing.parties import CAR


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_hidden_forest_is_its_trees_on_disjoint_rows(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    domain = Domain((3, 2, 3), n_classes)
    codes, target = random_table(90, domain)
    own = np.random.default_rng(1).integers(0, 4, 90)  # one of the four trees may be empty
    monkeypatch.setattr(forests, "assign_rows_to_trees", lambda engine, n_rows, n_trees: np.where(own == 2, 1, own))
    planned = plan_hidden_forest(CAR.schema, epsilon=1, max_depth=1, n_trees=4)
    planned = HiddenPlan(planned.plan, Recipe(domain, (None, None), None), 4)
    engine = PlainEngine()
    trees = grow_hidden_forest(engine, load_rows(engine, codes, target, domain), planned)
    twins = [
        plaintext.grow_tree(
            codes[rows], target[rows], sizes=(3, 3, 3), n_classes=n_classes, depth=2,
            split=plaintext.first_largest, label=plaintext.first_largest,
        )
        for rows in (np.where(own == 2, 1, own) == tree for tree in range(4))
    ]  # fmt: skip
    queries, _ = random_table(40, domain, seed=2)
    answers = engine.open(predict_queries(engine, trees, engine.constant(encode_one_hot(queries, domain))))
    assert (answers == plaintext.majority_vote(twins, queries, n_classes)).all()


def test_a_hidden_forest_on_three_servers_draws_its_own_noise() -> None:
    planned = plan_hidden_forest(CAR.schema, epsilon=2.0, max_depth=2, n_trees=3)
    domain = Domain.from_schema(CAR.schema)
    codes, target = random_table(200, domain)
    inputs = [share(encode_one_hot(codes, domain)), share(encode_classes(target, domain))]

    def program(links: Links) -> Ints:
        engine = ReplicatedEngine(links)
        features, classes = (engine.load(pairs[links.party]) for pairs in inputs)
        return engine.open(
            predict_queries(engine, grow_hidden_forest(engine, SharedRows(features, classes), planned), features)
        )

    found = run_in_threads(program)
    assert all((answer == found[0]).all() for answer in found)
    assert set(found[0].tolist()) <= set(range(domain.n_classes))


def test_rows_get_their_tree_by_place_alone() -> None:
    engine = PlainEngine()
    tree = assign_rows_to_trees(engine, 6000, 6)
    assert (abs(np.bincount(tree, minlength=6) - 1000) < 200).all()
    assert (tree != assign_rows_to_trees(engine, 6000, 6)).any()  # a fresh key every time
    with entropy.seeded_for_tests(1):
        longer = assign_rows_to_trees(engine, 6001, 6)
    with entropy.seeded_for_tests(1):
        assert (assign_rows_to_trees(engine, 6000, 6) == longer[:6000]).all()  # a row more moves no other
