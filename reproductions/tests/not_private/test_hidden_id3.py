# SPDX-License-Identifier: Apache-2.0
"""The published hidden tree, and the attack it does not withstand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import veilwood as vw
from veilwood.arrays import Ints
from veilwood.privacy import entropy
from veilwood_papers.not_private.hidden_id3 import ExactHiddenSplitTreeNotPrivate
from veilwood_secure.mpc.engine import Engine
from veilwood_secure.mpc.replicated import Links, ReplicatedEngine, run_in_threads
from veilwood_secure.mpc.round_batching import run_in_lockstep
from veilwood_secure.mpc.shares import share
from veilwood_secure.protocols.hidden_forest import plan_hidden_forest
from veilwood_secure.protocols.hidden_trees import HiddenTree, draw_tree_noise, grow_hidden_tree, predict_queries
from veilwood_secure.protocols.records import Domain, SharedRows, encode_classes, encode_one_hot
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


def leaf_classes(counts: Sequence[int], epsilon: float, width: int = 40, runs: int = 60) -> Ints:
    """Train trees of one split whose leaves all have the same class counts, and return how often each class is chosen.

    Servers count on shares: the law is tested through the whole protocol, from rows to labels.
    """
    domain = Domain((width,), len(counts))
    codes = np.repeat(np.arange(width), sum(counts))[:, None]
    target = np.tile(np.repeat(np.arange(len(counts)), counts), width)
    published = ExactHiddenSplitTreeNotPrivate(
        schema_of(domain), epsilon_in_paper=epsilon, max_depth=1, leaves="exponential"
    )
    engine = PlainEngine(np.uint64)
    records = load_rows(engine, codes, target, domain)
    return np.sum([engine.open(published.train(engine, records).leaves).sum(axis=1) for _ in range(runs)], axis=0)


def schema_of(domain: Domain) -> vw.Schema:
    values = {"x": range(domain.width), "c": range(domain.n_classes)}
    columns = [{"name": name, "kind": "categorical", "values": list(map(str, own))} for name, own in values.items()]
    return vw.Schema.from_dict({"name": "leaves", "task": "classification", "target": "c", "columns": columns})


def fits_law(drawn: Ints, counts: Sequence[int], epsilon: float) -> bool:
    """Whether no class is 6 standard deviations from its probability, exp(epsilon count / 2) up to a factor."""
    weights = np.exp(epsilon * np.array(counts) / 2)
    expected = weights / weights.sum()
    return bool((abs(drawn - expected * drawn.sum()) <= 6 * np.sqrt(expected * (1 - expected) * drawn.sum())).all())


@pytest.mark.parametrize(("counts", "epsilon"), [((2, 5), 0.8), ((3, 4, 1), 1.0), ((4, 3, 0, 4), 0.5)])
def test_exponential_leaves_on_shares_have_the_plaintext_law(counts: tuple[int, ...], epsilon: float) -> None:
    with entropy.seeded_for_tests(9):
        drawn = leaf_classes(counts, epsilon)
        assert fits_law(drawn, counts, epsilon)
        assert not fits_law(leaf_classes(counts, 2 * epsilon), counts, epsilon), "the test sees a doubled epsilon"


def test_three_servers_select_the_leaves_of_several_trees() -> None:
    """At an epsilon of 60 the most frequent class wins; all servers hold shares of the same labels."""
    domain, counts = Domain((3,), 2), (1, 4)
    codes = np.repeat(np.arange(3), 5)[:, None]
    target = np.tile(np.repeat([0, 1], counts), 3)
    features, classes = (
        share(encode_one_hot(codes, domain), np.uint64),
        share(encode_classes(target, domain), np.uint64),
    )
    published = ExactHiddenSplitTreeNotPrivate(
        schema_of(domain), epsilon_in_paper=60, max_depth=1, leaves="exponential"
    )

    def program(links: Links) -> Ints:
        engine = ReplicatedEngine(links, ring=np.uint64)
        records = SharedRows(engine.load(features[links.party]), engine.load(classes[links.party]))
        grown = run_in_lockstep(engine, [lambda lane: published.train(lane, records)] * 2)
        return np.stack([engine.open(tree.leaves) for tree in grown])

    for opened in run_in_threads(program):
        assert (opened.argmax(axis=1) == 1).all()
