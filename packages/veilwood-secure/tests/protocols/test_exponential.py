# SPDX-License-Identifier: Apache-2.0
"""The paper's exponential mechanism in shares, repaired, has its law."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from veilwood.errors import MechanismError
from veilwood.privacy import entropy
from veilwood_secure.protocols import public_trees as id3
from veilwood_secure.protocols.noise import exponential_delta, select_exponential
from veilwood_secure.protocols.public_trees import (
    exponential_labeller,
    exponential_selector,
    open_exponential_selection,
)
from veilwood_secure.protocols.records import Domain
from veilwood_testing.errors import rejects
from veilwood_testing.hidden_trees import load_rows, random_rows
from veilwood_testing.mpc_engines import PlainEngine


@pytest.mark.parametrize("epsilon", [Fraction(1), Fraction(1, 5)])
def test_the_papers_exponential_mechanism_has_its_law(epsilon: Fraction) -> None:
    """Algorithm 13, repaired: both forms, at many columns with the same scores."""
    scores, columns = np.array([3, 5, 0, 4]), 4000
    engine = PlainEngine(np.uint64)
    shared = engine.constant(np.repeat(scores[:, None], columns, axis=1))
    with entropy.seeded_for_tests(7):
        one = engine.open(select_exponential(engine, shared, epsilon))
        allowed = np.repeat(np.array([1, 1, 0, 1])[:, None], columns, axis=1)
        opened_ = open_exponential_selection(engine, shared, epsilon, allowed)
    assert (one.sum(axis=0) == 1).all()
    for found, weights in [
        (one.sum(axis=1), np.exp(float(epsilon) * scores / 2)),
        (np.bincount(opened_, minlength=4), np.exp(float(epsilon) * scores / 2) * allowed[:, 0]),
    ]:
        expected = weights / weights.sum() * columns
        assert (abs(found - expected) <= 6 * np.sqrt(expected)).all()
    assert exponential_delta(epsilon, 4, 1) < 1e-7


def test_public_trees_by_the_exponential_mechanism() -> None:
    rng = np.random.default_rng(15)
    domain = Domain((3, 2, 4), 2)
    codes, target = random_rows(rng, domain, 150)
    engine = PlainEngine(np.uint64)
    strong = Fraction(80)  # chooses the best, but with probability exp(-40)
    select, label = exponential_selector(strong), exponential_labeller(strong)
    tree = id3.grow_public_tree(engine, load_rows(engine, codes, target, domain), domain, 2, select, label)
    counts = np.zeros((len(tree.leaves), 2), np.int64)
    np.add.at(counts, (tree.leaf_indices(codes[target >= 0]), target[target >= 0]), 1)
    untied = counts[:, 0] != counts[:, 1]
    assert (tree.leaves == counts.argmax(axis=1))[untied].all()
    assert (tree.splits[1] != tree.splits[0][0]).all()
    with rejects(MechanismError, raised_in="cumulative_weights"):
        select_exponential(PlainEngine(), PlainEngine().constant([[1], [2]]), strong)
    with rejects(MechanismError, raised_in="weight_steps"):
        select_exponential(engine, engine.constant(np.zeros((2, 1000), np.int64)), Fraction(1, 1000))
