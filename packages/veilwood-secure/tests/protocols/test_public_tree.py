# SPDX-License-Identifier: Apache-2.0
"""Trees whose structure is opened level by level, as the paper prints them: equal to their plaintext twins."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from veilwood_papers.mpc import plain as plaintext
from veilwood_secure.protocols import public_trees as id3
from veilwood_secure.protocols.records import Domain
from veilwood_testing.hidden_trees import load_rows, random_rows
from veilwood_testing.mpc_engines import PlainEngine


def test_public_trees_equal_their_twins() -> None:
    rng = np.random.default_rng(5)
    zero = Fraction(1, 50)  # noise of this scale is 0, but with probability exp(-50)
    for u in (2, 3):
        domain = Domain((3, 2, 4, 2), u)
        codes, target = random_rows(rng, domain, 80)
        engine = PlainEngine()
        records = load_rows(engine, codes, target, domain)
        control = plaintext.grow_tree(
            codes, target, sizes=domain.sizes, n_classes=u, depth=3,
            split=plaintext.first_largest, label=plaintext.first_largest,
        )  # fmt: skip
        for select, label in [
            (id3.select_best_features, id3.select_best_labels),
            (id3.noisy_max_selector(zero), id3.noisy_count_labeller(zero)),
            (id3.noisy_max_selector(zero), id3.noisy_max_labeller(zero)),
        ]:
            tree = id3.grow_public_tree(engine, records, domain, 3, select, label)
            assert all((a == b).all() for a, b in zip(tree.splits, control.splits, strict=True))
            assert (tree.leaves == control.leaves).all()
            assert (tree.predict(codes) == control.predict(codes)).all()


def test_a_feature_is_used_once_on_a_path_and_random_features_need_no_data() -> None:
    domain = Domain((2, 2, 2), 2)
    engine = PlainEngine()
    codes, target = random_rows(np.random.default_rng(6), domain, 30)
    trees = [
        id3.grow_public_tree(
            engine, load_rows(engine, codes[rows], target[rows], domain), domain, 3,
            id3.random_selector(np.random.default_rng(0)), id3.select_best_labels,
        )
        for rows in (slice(None), slice(0, 3))
    ]  # fmt: skip
    assert all((a == b).all() for a, b in zip(trees[0].splits, trees[1].splits, strict=True))
    root, middle, last = trees[0].splits
    for leaf in range(4):
        assert {int(root[0]), int(middle[leaf // 2]), int(last[leaf])} == {0, 1, 2}
