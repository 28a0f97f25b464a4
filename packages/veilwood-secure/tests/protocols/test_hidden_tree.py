# SPDX-License-Identifier: Apache-2.0
"""Trees on shares: equal to their plaintext twins, and no dearer than they say.

Their privacy is in test_hidden_privacy.py, what a server sees of them in test_server_views.py.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from veilwood.arrays import Ints
from veilwood_papers.mpc import plain as plaintext
from veilwood_secure.mpc.replicated import Links, ReplicatedEngine, run_in_threads
from veilwood_secure.mpc.shares import share
from veilwood_secure.protocols.circuits import absolute, argmax, maximum
from veilwood_secure.protocols.hidden_trees import Recipe, draw_tree_noise, grow_hidden_tree, predict_queries
from veilwood_secure.protocols.records import Domain, SharedRows, are_one_hot, encode_classes, encode_one_hot
from veilwood_testing.hidden_trees import load_rows, no_noise, noise_of, open_tree, random_noise, random_rows, recipe_of
from veilwood_testing.mpc_engines import PlainEngine


@pytest.mark.parametrize("seed", range(12))
def test_hidden_trees_equal_their_twins(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 20))
    domain = Domain(tuple(rng.integers(1, 4, m).tolist()), 2 + seed % 3)
    depth = int(rng.integers(1, min(m, 4) + 1))
    codes, target = random_rows(rng, domain, int(rng.integers(1, 100)))
    engine = PlainEngine()
    records = load_rows(engine, codes, target, domain)
    for extra in (random_noise(rng, domain, depth), None):
        added = no_noise(depth) if extra is None else noise_of(engine, extra)
        tree = grow_hidden_tree(engine, records, recipe_of(domain, depth), added)
        choose = plaintext.first_largest if extra is None else plaintext.noisy_largest(extra)
        control = plaintext.grow_tree(
            codes,
            target,
            sizes=(domain.width,) * m,
            n_classes=domain.n_classes,
            depth=depth,
            split=choose,
            label=choose,
        )
        splits, leaves = open_tree(engine, tree)
        assert all((own == other).all() for own, other in zip(splits, control.splits, strict=True))
        assert (leaves == control.leaves).all()
        queries, _ = random_rows(rng, domain, 30)
        answers = engine.open(predict_queries(engine, [tree], engine.constant(encode_one_hot(queries, domain))))
        assert (answers == control.predict(queries)).all()


@pytest.mark.parametrize(("sizes", "u", "depth"), [((3, 2, 4), 2, 2), ((2,) * 18, 3, 2), ((2, 3, 3, 2), 2, 4)])
def test_three_servers_grow_the_same_tree_as_one_process(sizes: tuple[int, ...], u: int, depth: int) -> None:
    rng = np.random.default_rng(3)
    domain = Domain(sizes, u)
    codes, target = random_rows(rng, domain, 60)
    queries, _ = random_rows(rng, domain, 20)
    extra = random_noise(rng, domain, depth)
    inputs = [
        share(x)
        for x in (encode_one_hot(codes, domain), encode_classes(target, domain), encode_one_hot(queries, domain))
    ]

    def program(links: Links) -> tuple[list[Ints], Ints, Ints, Any]:
        engine = ReplicatedEngine(links)
        features, classes, request = (engine.load(pairs[links.party]) for pairs in inputs)
        assert engine.is_consistent(features)
        assert are_one_hot(engine, features, domain)
        tree = grow_hidden_tree(
            engine, SharedRows(features, classes), recipe_of(domain, depth), noise_of(engine, extra)
        )
        answers = engine.open(predict_queries(engine, [tree, tree], request))
        return *open_tree(engine, tree), answers, engine.stats

    found = run_in_threads(program)
    engine = PlainEngine()
    tree = grow_hidden_tree(
        engine, load_rows(engine, codes, target, domain), recipe_of(domain, depth), noise_of(engine, extra)
    )
    splits, leaves = open_tree(engine, tree)
    for other in found:
        assert all((own == his).all() for own, his in zip(splits, other[0], strict=True))
        assert (leaves == other[1]).all()
        assert (
            engine.open(predict_queries(engine, [tree], engine.constant(encode_one_hot(queries, domain)))) == other[2]
        ).all()


def test_small_protocols() -> None:
    rng = np.random.default_rng(4)
    engine = PlainEngine()
    for count in (1, 2, 3, 16, 17, 40):
        x = rng.integers(-9, 9, (count, 50))
        shared = engine.constant(x)
        assert (engine.open(absolute(engine, shared)) == abs(x)).all()
        assert (engine.open(maximum(engine, shared)) == x.max(axis=0)).all()
        one = engine.open(argmax(engine, shared))
        assert (one.sum(axis=0) == 1).all()
        assert (one.argmax(axis=0) == x.argmax(axis=0)).all()  # the first of equals


def test_rounds_and_traffic_do_not_depend_on_rows_and_stay_few() -> None:
    domain, depth = Domain((7,) * 12, 2), 3
    recipe = Recipe(domain, (Fraction(2),) * depth, Fraction(2))
    seen = []
    for seed in range(2):
        engine = PlainEngine()
        codes, target = random_rows(np.random.default_rng(seed), domain, 300)
        grow_hidden_tree(engine, load_rows(engine, codes, target, domain), recipe, draw_tree_noise(engine, recipe))
        seen.append(engine.stats)
    assert seen[0] == seen[1]
    assert seen[0].rounds <= 60 * depth


def test_products_follow_their_formula() -> None:
    """Section 3.1.3 counts w^(h-1) m (n + l) w u products; level by level, n enters with fewer of them."""
    m, w, n, depth = 5, 4, 500, 3
    domain = Domain((w,) * m, 2)
    engine = PlainEngine()
    codes, target = random_rows(np.random.default_rng(9), domain, n)
    records = load_rows(engine, codes, target, domain)
    grow_hidden_tree(engine, records, recipe_of(domain, depth), no_noise(depth))
    paper = w ** (depth - 1) * m * (n + 32) * w * 2
    # Products that are sent: cells, then a branch a level, the feature and the masks from the second level on.
    of_rows = n * (m * w + (depth - 1) * w + (depth - 2) * m + sum(w**level for level in range(2, depth)))
    assert of_rows < engine.stats.products < of_rows + 40 * m * m * w**depth < paper
