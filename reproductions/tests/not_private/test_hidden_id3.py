# SPDX-License-Identifier: Apache-2.0
"""The published hidden tree, and the attack it does not withstand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from veilwood.arrays import Ints
from veilwood.privacy import entropy
from veilwood_papers.not_private.hidden_id3 import ExactHiddenSplitTreeNotPrivate
from veilwood_secure.mpc.engine import Engine
from veilwood_secure.protocols.hidden_forest import plan_hidden_forest
from veilwood_secure.protocols.hidden_trees import HiddenTree, draw_tree_noise, grow_hidden_tree, predict_queries
from veilwood_secure.protocols.records import Domain, SharedRows, encode_one_hot
from veilwood_testing.hidden_trees import PAIR, epsilon_bound, load_rows
from veilwood_testing.mpc_engines import PlainEngine

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")


def answers(train: Callable[[Engine, SharedRows], HiddenTree], one_more: bool, runs: int, m: int = 150) -> Ints:
    domain = Domain((2, 2), 2)
    codes = np.array([[0, 0]] * m + [[1, 1]] * m + [[0, 1]])
    target = np.array([0] * m + [1] * m + [1 if one_more else -1])
    engine = PlainEngine()
    records, query = load_rows(engine, codes, target, domain), engine.constant(encode_one_hot([[0, 1]], domain))
    return np.concatenate([engine.open(predict_queries(engine, [train(engine, records)], query)) for _ in range(runs)])


def test_the_counterexample_is_loud_on_the_published_tree_and_quiet_on_ours() -> None:
    published = ExactHiddenSplitTreeNotPrivate(PAIR, epsilon_in_paper=0.1, max_depth=1)
    recipe = plan_hidden_forest(PAIR, epsilon=0.1, max_depth=1).recipe

    def sound(engine: Engine, records: SharedRows) -> HiddenTree:
        return grow_hidden_tree(engine, records, recipe, draw_tree_noise(engine, recipe))

    with entropy.seeded_for_tests(33):
        assert epsilon_bound(answers(published.train, True, 120), answers(published.train, False, 120)) > 1
        assert epsilon_bound(answers(sound, True, 400), answers(sound, False, 400)) <= 0.1
    assert not published.privacy_.is_private
    assert published.privacy_.epsilon is None
    assert "no finite epsilon" in str(published.privacy_)
