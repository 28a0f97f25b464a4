# SPDX-License-Identifier: Apache-2.0
"""Trees on shares: equal to their plaintext twins, private as planned, and loud where the paper's claim fails.

Forests are in test_secure_forests.py; what the engine computes is tested beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement, product
from math import exp
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import veilwood as vw
from veilwood.audit import epsilon_lower_bound, worst_log_ratio
from veilwood.errors import VeilwoodError
from veilwood.not_private import ExactHiddenSplitTreeNotPrivate
from veilwood.papers import id3
from veilwood.papers import plain_id3 as plaintext
from veilwood.papers.exponential import (
    exponential_choice,
    exponential_class,
    exponential_delta,
    exponential_feature,
    exponential_opened,
)
from veilwood.papers.mpyc_links import run_three
from veilwood.privacy import entropy
from veilwood.secure.mpc.engine import Engine
from veilwood.secure.mpc.links import Links, run_threads
from veilwood.secure.mpc.plain import PlainEngine
from veilwood.secure.mpc.replicated import ReplicatedEngine
from veilwood.secure.mpc.shares import share
from veilwood.secure.protocols.choose import absolute, argmax, maximum
from veilwood.secure.protocols.hidden_tree import HiddenTree, Recipe, TreeNoise, draw_noise, grow, predict
from veilwood.secure.protocols.plans import (
    NO_COLLUSION,
    SAMPLED_JOINTLY,
    hidden_statement,
    level_epsilons,
    plan_hidden_forest,
    sampling_delta,
)
from veilwood.secure.protocols.records import (
    Domain,
    Records,
    are_classes,
    are_one_hot,
    encode,
    join_owners,
    one_hot,
    one_hot_classes,
    stack_owners,
)

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")

Ints = NDArray[np.int64]


def random_rows(rng: np.random.Generator, domain: Domain, n: int) -> tuple[Ints, Ints]:
    codes = np.stack([rng.integers(0, size, n) for size in domain.sizes], axis=1)
    return codes, rng.integers(-1, domain.n_classes, n)  # some are padding


def loaded(engine: Engine, codes: Ints, target: Ints, domain: Domain) -> Records:
    return Records(engine.constant(one_hot(codes, domain)), engine.constant(one_hot_classes(target, domain)))


def naive(
    rows: list[tuple[Ints, int]], domain: Domain, depth: int, extra: Sequence[Any], node: int = 0, used: Any = ()
) -> Any:
    """Algorithm 1 in the open, one node after the other: features by level and node, and classes of leaves."""
    level = len(used)
    u, w = domain.n_classes, domain.width
    if level == depth:
        counts = [sum(c == k for _, c in rows) + extra[level][k, node] for k in range(u)]
        return [{} for _ in range(depth)], {node: int(np.argmax(counts))}
    best, chosen = None, -1
    for f in range(domain.n_features):
        if f in used:
            continue
        score = sum(max(sum(x[f] == v and c == k for x, c in rows) for k in range(u)) for v in range(w))
        score += extra[level][f, node]
        if best is None or score > best:
            best, chosen = score, f
    splits: list[dict[int, int]] = [{} for _ in range(depth)]
    splits[level][node] = chosen
    leaves = {}
    for v in range(w):
        below, labels = naive(
            [r for r in rows if r[0][chosen] == v], domain, depth, extra, node * w + v, (*used, chosen)
        )
        for mine, theirs in zip(splits, below, strict=True):
            mine.update(theirs)
        leaves.update(labels)
    return splits, leaves


def random_noise(rng: np.random.Generator, domain: Domain, depth: int) -> list[Ints]:
    shapes = [(domain.n_features, domain.width**level) for level in range(depth)]
    return [rng.geometric(0.3, shape) - 1 for shape in [*shapes, (domain.n_classes, domain.width**depth)]]


def noise_of(engine: Engine, arrays: Sequence[Ints]) -> TreeNoise:
    *splits, leaves = [engine.constant(array) for array in arrays]
    return TreeNoise(tuple(splits), leaves)


def quiet(depth: int) -> TreeNoise:
    return TreeNoise((None,) * depth, None)


def recipe_of(domain: Domain, depth: int) -> Recipe:
    return Recipe(domain, (None,) * depth, None)


def opened(engine: Engine, tree: HiddenTree) -> tuple[list[Ints], Ints]:
    parts = [engine.open(part) for part in (*tree.splits, tree.leaves)]
    assert all(((part == 0) | (part == 1)).all() and (part.sum(axis=0) == 1).all() for part in parts)
    *splits, leaves = [part.argmax(axis=0) for part in parts]
    return splits, leaves


# -- twins -----------------------------------------------------------------------------------------------------


def test_the_plaintext_twin_is_algorithm_1() -> None:
    rng = np.random.default_rng(1)
    for sizes, u, depth in [((2, 3), 2, 2), ((3, 1, 2), 3, 2), ((2, 2, 2), 2, 3), ((4,), 2, 1)]:
        domain = Domain(sizes, u)
        codes, target = random_rows(rng, domain, 25)
        extra = random_noise(rng, domain, depth)
        choose = plaintext.noisy_largest(extra)
        widths = (domain.width,) * domain.n_features
        tree = plaintext.grow(codes, target, sizes=widths, n_classes=u, depth=depth, split=choose, label=choose)
        rows = [(x, int(c)) for x, c in zip(codes, target, strict=True) if c >= 0]
        splits, leaves = naive(rows, domain, depth, extra)
        assert [dict(enumerate(level.tolist())) for level in tree.splits] == splits
        assert dict(enumerate(tree.leaves.tolist())) == leaves


@pytest.mark.parametrize("seed", range(12))
def test_hidden_trees_equal_their_twins(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 20))
    domain = Domain(tuple(rng.integers(1, 4, m).tolist()), 2 + seed % 3)
    depth = int(rng.integers(1, min(m, 4) + 1))
    codes, target = random_rows(rng, domain, int(rng.integers(1, 100)))
    engine = PlainEngine()
    records = loaded(engine, codes, target, domain)
    for extra in (random_noise(rng, domain, depth), None):
        added = quiet(depth) if extra is None else noise_of(engine, extra)
        tree = grow(engine, records, recipe_of(domain, depth), added)
        choose = plaintext.first_largest if extra is None else plaintext.noisy_largest(extra)
        twin = plaintext.grow(
            codes,
            target,
            sizes=(domain.width,) * m,
            n_classes=domain.n_classes,
            depth=depth,
            split=choose,
            label=choose,
        )
        splits, leaves = opened(engine, tree)
        assert all((mine == theirs).all() for mine, theirs in zip(splits, twin.splits, strict=True))
        assert (leaves == twin.leaves).all()
        queries, _ = random_rows(rng, domain, 30)
        answers = engine.open(predict(engine, [tree], engine.constant(one_hot(queries, domain))))
        assert (answers == twin.predict(queries)).all()


@pytest.mark.parametrize(("sizes", "u", "depth"), [((3, 2, 4), 2, 2), ((2,) * 18, 3, 2), ((2, 3, 3, 2), 2, 4)])
def test_three_servers_grow_the_same_tree_as_one_process(sizes: tuple[int, ...], u: int, depth: int) -> None:
    rng = np.random.default_rng(3)
    domain = Domain(sizes, u)
    codes, target = random_rows(rng, domain, 60)
    queries, _ = random_rows(rng, domain, 20)
    extra = random_noise(rng, domain, depth)
    inputs = [share(x) for x in (one_hot(codes, domain), one_hot_classes(target, domain), one_hot(queries, domain))]

    def program(links: Links) -> tuple[list[Ints], Ints, Ints, Any]:
        engine = ReplicatedEngine(links)
        features, classes, asked = (engine.load(pairs[links.party]) for pairs in inputs)
        assert engine.consistent(features)
        assert are_one_hot(engine, features, domain)
        tree = grow(engine, Records(features, classes), recipe_of(domain, depth), noise_of(engine, extra))
        answers = engine.open(predict(engine, [tree, tree], asked))
        return *opened(engine, tree), answers, engine.stats

    found = run_threads(program)
    engine = PlainEngine()
    tree = grow(engine, loaded(engine, codes, target, domain), recipe_of(domain, depth), noise_of(engine, extra))
    splits, leaves = opened(engine, tree)
    for theirs in found:
        assert all((mine == his).all() for mine, his in zip(splits, theirs[0], strict=True))
        assert (leaves == theirs[1]).all()
        assert (engine.open(predict(engine, [tree], engine.constant(one_hot(queries, domain)))) == theirs[2]).all()


def grown_by_a_server(engine: Engine, features: Any, classes: Any, domain: Domain, depth: int, extra: Any) -> Any:
    records = Records(engine.load(features), engine.load(classes))
    return opened(engine, grow(engine, records, recipe_of(domain, depth), noise_of(engine, extra)))


@pytest.mark.slow
def test_three_processes_grow_the_same_tree_as_one() -> None:
    rng = np.random.default_rng(11)
    domain, depth = Domain((4, 3, 4, 2), 2), 3
    codes, target = random_rows(rng, domain, 300)
    extra = random_noise(rng, domain, depth)
    inputs = share(one_hot(codes, domain)), share(one_hot_classes(target, domain))
    choose = plaintext.noisy_largest(extra)
    twin = plaintext.grow(codes, target, sizes=(4,) * 4, n_classes=2, depth=depth, split=choose, label=choose)
    for outcome in run_three(grown_by_a_server, *inputs, domain, depth, extra):
        splits, leaves = outcome.result
        assert all((mine == theirs).all() for mine, theirs in zip(splits, twin.splits, strict=True))
        assert (leaves == twin.leaves).all()


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


def test_public_trees_equal_their_twins() -> None:
    rng = np.random.default_rng(5)
    zero = Fraction(1, 50)  # noise of this scale is 0, but with probability exp(-50)
    for u in (2, 3):
        domain = Domain((3, 2, 4, 2), u)
        codes, target = random_rows(rng, domain, 80)
        engine = PlainEngine()
        records = loaded(engine, codes, target, domain)
        twin = plaintext.grow(
            codes, target, sizes=domain.sizes, n_classes=u, depth=3,
            split=plaintext.first_largest, label=plaintext.first_largest,
        )  # fmt: skip
        for select, label in [
            (id3.best_feature, id3.best_class),
            (id3.noisy_feature(zero), id3.class_of_noisy_counts(zero)),
            (id3.noisy_feature(zero), id3.noisy_class(zero)),
        ]:
            tree = id3.grow_public(engine, records, domain, 3, select, label)
            assert all((a == b).all() for a, b in zip(tree.splits, twin.splits, strict=True))
            assert (tree.leaves == twin.leaves).all()
            assert (tree.predict(codes) == twin.predict(codes)).all()


def test_a_feature_is_used_once_on_a_path_and_random_features_need_no_data() -> None:
    domain = Domain((2, 2, 2), 2)
    engine = PlainEngine()
    codes, target = random_rows(np.random.default_rng(6), domain, 30)
    trees = [
        id3.grow_public(
            engine, loaded(engine, codes[rows], target[rows], domain), domain, 3,
            id3.random_feature(np.random.default_rng(0)), id3.best_class,
        )
        for rows in (slice(None), slice(0, 3))
    ]  # fmt: skip
    assert all((a == b).all() for a, b in zip(trees[0].splits, trees[1].splits, strict=True))
    root, middle, last = trees[0].splits
    for leaf in range(4):
        assert {int(root[0]), int(middle[leaf // 2]), int(last[leaf])} == {0, 1, 2}


@pytest.mark.parametrize("epsilon", [Fraction(1), Fraction(1, 5)])
def test_the_papers_exponential_mechanism_has_its_law(epsilon: Fraction) -> None:
    """Algorithm 13, repaired: both forms, at many columns with the same scores."""
    scores, columns = np.array([3, 5, 0, 4]), 4000
    engine = PlainEngine(np.uint64)
    shared = engine.constant(np.repeat(scores[:, None], columns, axis=1))
    with entropy.seeded_for_tests(7):
        one = engine.open(exponential_choice(engine, shared, epsilon))
        allowed = np.repeat(np.array([1, 1, 0, 1])[:, None], columns, axis=1)
        opened_ = exponential_opened(engine, shared, epsilon, allowed)
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
    select, label = exponential_feature(strong), exponential_class(strong)
    tree = id3.grow_public(engine, loaded(engine, codes, target, domain), domain, 2, select, label)
    counts = np.zeros((len(tree.leaves), 2), np.int64)
    np.add.at(counts, (tree.leaf_of(codes[target >= 0]), target[target >= 0]), 1)
    untied = counts[:, 0] != counts[:, 1]
    assert (tree.leaves == counts.argmax(axis=1))[untied].all()
    assert (tree.splits[1] != tree.splits[0][0]).all()
    with pytest.raises(VeilwoodError, match="64-bit"):
        exponential_choice(PlainEngine(), PlainEngine().constant([[1], [2]]), strong)
    with pytest.raises(VeilwoodError, match="comparisons"):
        exponential_choice(engine, engine.constant(np.zeros((2, 1000), np.int64)), Fraction(1, 1000))


# -- rows --------------------------------------------------------------------------------------------------------


def test_owners_of_rows_and_of_columns_join() -> None:
    domain = Domain((3, 2), 2)
    engine = PlainEngine()
    codes, target = random_rows(np.random.default_rng(7), domain, 10)
    whole = loaded(engine, codes, target, domain)
    by_rows = stack_owners(
        [loaded(engine, codes[:4], target[:4], domain), loaded(engine, codes[4:], target[4:], domain)]
    )
    by_columns = join_owners([whole.features[:1], whole.features[1:]], whole.classes)
    for joined in (by_rows, by_columns):
        assert (engine.open(joined.features) == engine.open(whole.features)).all()
        assert (engine.open(joined.classes) == engine.open(whole.classes)).all()
    with pytest.raises(VeilwoodError, match="4, 10 rows"):
        join_owners([whole.features[:1], whole.features[1:, :, :4]], whole.classes)


def test_rows_that_are_not_one_hot_are_refused() -> None:
    domain = Domain((3, 2), 2)
    engine = PlainEngine()
    features = one_hot([[0, 1], [2, 0], [1, 1]], domain).astype(np.int64)
    classes = one_hot_classes([0, 1, -1], domain).astype(np.int64)
    assert are_one_hot(engine, engine.constant(features), domain)
    assert are_classes(engine, engine.constant(classes), domain)

    def spoiled(array: Ints, at: tuple[int, ...], value: int) -> Any:
        changed = array.copy()
        changed[at] = value
        return engine.constant(changed)

    for value in (2, -1, 1 << 16, 1 << 31, (1 << 31) + 1):
        assert not are_one_hot(engine, spoiled(features, (0, 0, 0), value), domain)
        assert not are_classes(engine, spoiled(classes, (0, 0), value), domain)
    two_values = features.copy()
    two_values[0, 1, 0] = 1
    dummy = features.copy()
    dummy[1, :, 0] = [0, 0, 1]
    none = features.copy()
    none[0, :, 0] = 0
    for wrong in (two_values, dummy, none, features[:, :2], features[:1]):
        assert not are_one_hot(engine, engine.constant(wrong), domain)
    assert not are_classes(engine, engine.constant(np.ones((2, 3), np.int64)), domain)
    assert not are_classes(engine, engine.constant(np.ones((3, 3), np.int64)), domain)


def test_encoding_follows_the_schema_and_refuses_the_rest() -> None:
    car = vw.datasets.car()
    features, classes = encode(car.schema, car.X[:5], car.y[:5])
    domain = Domain.of(car.schema)
    assert features.shape == (6, 4, 5)
    assert classes.sum(axis=0).tolist() == [1] * 5
    assert features[domain.dummies].sum() == 0
    with pytest.raises(vw.OutOfSchemaError, match="outside the domain"):
        one_hot([[3] * 6], Domain((4, 4, 4, 3, 3, 3), 4))
    with pytest.raises(vw.OutOfSchemaError, match="padding"):
        one_hot_classes([4], domain)
    with pytest.raises(VeilwoodError, match="6 features"):
        one_hot([[0, 1]], domain)


# -- what servers see ----------------------------------------------------------------------------------------------


class Tapped:
    """Links that keep what one server receives."""

    def __init__(self, links: Links, heard: list[bytes]) -> None:
        self.party, self._links, self._heard = links.party, links, heard

    def send(self, to: int, data: Any) -> None:
        self._links.send(to, data)

    def receive(self, sender: int) -> Any:
        data = self._links.receive(sender)
        self._heard.append(bytes(data))
        return data


def view(party: int, target: Ints, codes: Ints, domain: Domain) -> list[bytes]:
    """All messages that reach one server while a hidden tree is trained and asked."""
    recipe = Recipe(domain, (Fraction(1), Fraction(1)), Fraction(1))
    inputs = [share(one_hot(codes, domain)), share(one_hot_classes(target, domain))]
    heard: list[bytes] = []

    def program(links: Links) -> None:
        engine = ReplicatedEngine(Tapped(links, heard) if links.party == party else links)  # type: ignore[arg-type]
        features, classes = (engine.load(pairs[links.party]) for pairs in inputs)
        tree = grow(engine, Records(features, classes), recipe, draw_noise(engine, recipe))
        predict(engine, [tree], features)

    run_threads(program)
    return heard


@pytest.mark.parametrize("party", range(3))
def test_what_a_server_sees_has_one_shape_and_one_law(party: int) -> None:
    domain = Domain((4, 4, 3), 2)
    n = 200
    plain = view(party, np.zeros(n, np.int64), np.zeros((n, 3), np.int64), domain)
    codes, target = random_rows(np.random.default_rng(8), domain, n)
    mixed = view(party, target, codes, domain)
    assert [len(message) for message in plain] == [len(message) for message in mixed]
    for heard in (plain, mixed):  # uniform bytes, whatever the rows
        counts = np.bincount(np.frombuffer(b"".join(m for m in heard if len(m) >= 64), np.uint8), minlength=256)
        mean = counts.sum() / 256
        assert ((counts - mean) ** 2 / mean).sum() < 255 + 6.2 * (2 * 255) ** 0.5  # below 1e-8


def test_rounds_and_traffic_do_not_depend_on_rows_and_stay_few() -> None:
    domain, depth = Domain((7,) * 12, 2), 3
    recipe = Recipe(domain, (Fraction(2),) * depth, Fraction(2))
    seen = []
    for seed in range(2):
        engine = PlainEngine()
        codes, target = random_rows(np.random.default_rng(seed), domain, 300)
        grow(engine, loaded(engine, codes, target, domain), recipe, draw_noise(engine, recipe))
        seen.append(engine.stats)
    assert seen[0] == seen[1]
    assert seen[0].rounds <= 60 * depth


def test_products_follow_their_formula() -> None:
    """Section 3.1.3 counts w^(h-1) m (n + l) w u products; level by level, n enters with fewer of them."""
    m, w, n, depth = 5, 4, 500, 3
    domain = Domain((w,) * m, 2)
    engine = PlainEngine()
    codes, target = random_rows(np.random.default_rng(9), domain, n)
    records = loaded(engine, codes, target, domain)
    grow(engine, records, recipe_of(domain, depth), quiet(depth))
    paper = w ** (depth - 1) * m * (n + 32) * w * 2
    # Products that are sent: cells, then a branch a level, the feature and the masks from the second level on.
    of_rows = n * (m * w + (depth - 1) * w + (depth - 2) * m + sum(w**level for level in range(2, depth)))
    assert of_rows < engine.stats.products < of_rows + 40 * m * m * w**depth < paper


# -- privacy -------------------------------------------------------------------------------------------------------


def law_of_noisy_max(scores: Sequence[int], scale: float, cut: int = 400) -> NDArray[np.float64]:
    """The law of the first largest of integer scores plus geometric noise, summed directly."""
    a = exp(-1 / scale)
    z = np.arange(cut + max(scores) + 1)
    pmf = [np.where(z >= s, (1 - a) * a ** np.maximum(z - s, 0), 0.0) for s in scores]
    below = [np.cumsum(p) for p in pmf]
    law = []
    for i in range(len(scores)):
        chance = pmf[i]
        for j in range(len(scores)):
            if j < i:
                chance = chance * np.concatenate([[0.0], below[j][:-1]])  # an earlier one must be smaller
            elif j > i:
                chance = chance * below[j]
        law.append(chance.sum())
    return np.array(law)


def test_noisy_max_with_ties_in_a_fixed_order_costs_epsilon() -> None:
    """Over all scores up to 3 of three candidates and all monotone neighbours; the bound is reached."""
    epsilon = 0.7
    worst = halved = 0.0
    for scores in product(range(4), repeat=3):
        for change in product((0, 1), repeat=3):
            neighbour = [s + c for s, c in zip(scores, change, strict=True)]
            laws = [law_of_noisy_max(s, 1 / epsilon, 120) for s in (scores, neighbour)]
            worst = max(worst, worst_log_ratio(*laws))
            laws = [law_of_noisy_max(s, 0.5 / epsilon, 120) for s in (scores, neighbour)]
            halved = max(halved, worst_log_ratio(*laws))
    assert 0.99 * epsilon < worst < epsilon * (1 + 1e-6)
    assert halved > 1.9 * epsilon


def test_scores_and_counts_move_by_at_most_one_by_enumeration() -> None:
    """All tables of up to three rows and all ways to add a row: the range of the max operator is 1 (A/R), 2 (R1)."""
    domain = Domain((2, 2), 2)
    cells = list(product(range(2), range(2), range(2)))

    def scores(rows: Sequence[tuple[int, ...]]) -> Ints:
        table = np.array(rows, np.int64).reshape(-1, 3)
        kept: list[Ints] = []

        def look(level: int, found: Ints) -> Ints:
            kept.append(found[0])
            return np.asarray(found.argmax(axis=1))

        plaintext.grow(table[:, :2], table[:, 2], sizes=domain.sizes, n_classes=2, depth=1, split=look,
                       label=plaintext.first_largest)  # fmt: skip
        return kept[0]

    added, replaced = set(), 0
    for size in range(4):
        for rows in combinations_with_replacement(cells, size):
            moves = [scores([*rows, row]) - scores(rows) for row in cells]
            added |= {int(move) for change in moves for move in change}
            replaced = max(replaced, max(np.ptp(a - b) for a in moves for b in moves))
    assert added == {0, 1}
    assert (
        replaced
        == 2
        == plan_hidden_forest(
            vw.datasets.car().schema, epsilon=1, max_depth=2, adjacency="replace-one"
        ).plan.sensitivity
    )


def leaf_labels(scale: Fraction, with_row: bool) -> Ints:
    """Classes of 12^3 leaves that each hold one row of class 1, or none."""
    domain = Domain((12, 12, 12), 2)
    codes = np.array(list(product(range(12), repeat=3)))
    target = np.full(len(codes), 1 if with_row else -1)
    engine = PlainEngine()
    recipe = Recipe(domain, (None,) * 3, scale)
    tree = grow(engine, loaded(engine, codes, target, domain), recipe, draw_noise(engine, recipe))
    return opened(engine, tree)[1]


def bound(likely: Ints, unlikely: Ints) -> float:
    return epsilon_lower_bound(int(likely.sum()), len(likely), int(unlikely.sum()), len(unlikely))


def test_classes_of_leaves_cost_their_loss_and_halved_noise_is_caught() -> None:
    with entropy.seeded_for_tests(31):
        one, none = (np.concatenate([leaf_labels(Fraction(1), full) for _ in range(4)]) for full in (True, False))
        assert 0.7 < bound(one, none) <= 1
        half = Fraction(1, 2)
        one, none = (np.concatenate([leaf_labels(half, full) for _ in range(4)]) for full in (True, False))
        assert bound(one, none) > 1.3


def second_level(scale: Fraction, with_row: bool) -> Ints:
    """Features of the nodes of the second level; in each, feature 1 scores one more than 2 if a row is there."""
    w, strong = 250, 40
    value = np.arange(w - 2)
    first = np.stack([value, value, value], axis=1)
    second = np.stack([value, (value + 1) % (w - 2), value], axis=1)
    # Rows that make feature 0 the best at the root, by far, so that its noise does not matter.
    steer = np.repeat([[w - 2, w - 1, w - 1], [w - 1, w - 1, w - 1]], strong * 5, axis=0)
    codes = np.concatenate([first, second, steer])
    target = np.repeat([0, 1 if with_row else -1, 0, 1], [w - 2, w - 2, strong * 5, strong * 5])
    domain = Domain((w, w, w), 2)
    engine = PlainEngine()
    recipe = Recipe(domain, (Fraction(1, 2), scale), None)
    tree = grow(engine, loaded(engine, codes, target, domain), recipe, draw_noise(engine, recipe))
    splits, _ = opened(engine, tree)
    assert splits[0].tolist() == [0]
    return splits[1][: w - 2]


def test_hidden_splits_cost_their_loss() -> None:
    with entropy.seeded_for_tests(32):
        one, none = (np.concatenate([second_level(Fraction(1), full) for _ in range(20)]) for full in (True, False))
        assert 0.5 < bound(none == 2, one == 2) <= 1
        half = Fraction(1, 2)
        one, none = (np.concatenate([second_level(half, full) for _ in range(20)]) for full in (True, False))
        assert bound(none == 2, one == 2) > 1.1


# Section 4.3's pair: m rows (0, 0, class 0) and m rows (1, 1, class 1); the neighbour has one row (0, 1, class 1) more.
PAIR = vw.Schema.from_dict({
    "name": "pair", "task": "classification", "target": "c",
    "columns": [{"name": name, "kind": "categorical", "values": ["0", "1"]} for name in ("a", "b", "c")],
})  # fmt: skip


def answers(train: Callable[[Engine, Records], HiddenTree], one_more: bool, runs: int, m: int = 150) -> Ints:
    domain = Domain((2, 2), 2)
    codes = np.array([[0, 0]] * m + [[1, 1]] * m + [[0, 1]])
    target = np.array([0] * m + [1] * m + [1 if one_more else -1])
    engine = PlainEngine()
    records, query = loaded(engine, codes, target, domain), engine.constant(one_hot([[0, 1]], domain))
    return np.concatenate([engine.open(predict(engine, [train(engine, records)], query)) for _ in range(runs)])


def test_the_counterexample_is_loud_on_the_published_tree_and_quiet_on_ours() -> None:
    published = ExactHiddenSplitTreeNotPrivate(PAIR, epsilon_in_paper=0.1, max_depth=1)
    recipe = plan_hidden_forest(PAIR, epsilon=0.1, max_depth=1).recipe

    def sound(engine: Engine, records: Records) -> HiddenTree:
        return grow(engine, records, recipe, draw_noise(engine, recipe))

    with entropy.seeded_for_tests(33):
        assert bound(answers(published.train, True, 120), answers(published.train, False, 120)) > 1
        assert bound(answers(sound, True, 400), answers(sound, False, 400)) <= 0.1
    assert not published.privacy_.is_private
    assert published.privacy_.epsilon is None
    assert "no finite epsilon" in str(published.privacy_)


def exact_answer(epsilons: Sequence[float], one_more: bool, m: int) -> float:
    """P(class 1) of the query (0, 1) by the exact laws of split and leaf."""
    scores = [2 * m, 2 * m + one_more]
    # The leaf a=0 holds m of class 0 (and the new row), the leaf b=1 holds m of class 1 (and the new row).
    leaves = [(m, int(one_more)), (0, m + one_more)]
    split, leaf = epsilons
    chosen = law_of_noisy_max([score - 2 * m for score in scores], 1 / split, 4000)
    return float(sum(p * law_of_noisy_max(counts, 1 / leaf, 4000)[1] for p, counts in zip(chosen, leaves, strict=True)))


def test_the_counterexample_by_exact_laws() -> None:
    split, leaf = (float(part) for part in level_epsilons(Fraction(1, 10), 1))
    ours = [exact_answer((split, leaf), one_more, 300) for one_more in (False, True)]
    assert worst_log_ratio([ours[0], 1 - ours[0]], [ours[1], 1 - ours[1]]) <= 0.1
    theirs = [exact_answer((50.0, 0.1), one_more, 300) for one_more in (False, True)]  # hardly any noise on the split
    assert worst_log_ratio([theirs[0], 1 - theirs[0]], [theirs[1], 1 - theirs[1]]) > 10


# -- plans and certificates ------------------------------------------------------------------------------------------


def test_budgets_add_up_and_the_certificate_says_what_it_rests_on() -> None:
    planned = plan_hidden_forest(PAIR, epsilon=0.5, max_depth=2, n_trees=3)
    budgets = level_epsilons(Fraction(1, 2), 2)
    assert sum(budgets) == Fraction(1, 2)
    assert sum(budgets[:-1]) == Fraction(3, 20)
    assert budgets[1] == budgets[0] * Fraction(3, 2)
    assert [step.mechanism.epsilon for step in planned.plan.steps] == list(budgets)  # type: ignore[union-attr]
    assert planned.recipe.split_scales == (1 / budgets[0], 1 / budgets[1])
    assert planned.recipe.leaf_scale == 1 / budgets[2]
    said = hidden_statement(planned, ledger="clinic.db", ledger_entry=7)
    assert said.is_private
    assert said.epsilon == 0.5
    assert said.delta is not None
    assert 0 < said.delta < 1e-15
    assert {NO_COLLUSION, SAMPLED_JOINTLY} <= set(said.assumptions)
    assert "semi-honest" in said.to_markdown()
    assert said.ledger_entry == 7


def test_delta_counts_every_draw() -> None:
    one = sampling_delta(Fraction(1), [(Fraction(2), 1)])
    assert sampling_delta(Fraction(1), [(Fraction(2), 3), (Fraction(2), 4)]) == 7 * one
    assert one > 0
    with pytest.raises(VeilwoodError, match="protects nothing"):
        sampling_delta(Fraction(101), [(Fraction(2), 1)])


def test_plans_refuse_what_cannot_be() -> None:
    with pytest.raises(VeilwoodError, match="depth 3"):
        plan_hidden_forest(PAIR, epsilon=1, max_depth=3)
    with pytest.raises(VeilwoodError, match="depth 0"):
        plan_hidden_forest(PAIR, epsilon=1, max_depth=0)
    with pytest.raises(VeilwoodError, match="n_trees"):
        plan_hidden_forest(PAIR, epsilon=1, max_depth=1, n_trees=0)
    with pytest.raises(VeilwoodError, match="inf"):
        plan_hidden_forest(PAIR, epsilon=float("inf"), max_depth=1)
    with pytest.raises(VeilwoodError, match="words hold"):
        plan_hidden_forest(PAIR, epsilon=1e-6, max_depth=1)
    with pytest.raises(VeilwoodError, match="above 0"):
        ExactHiddenSplitTreeNotPrivate(PAIR, epsilon_in_paper=0)
    with pytest.raises(VeilwoodError, match="predict classes"):
        Domain.of(vw.Schema.numeric((0, 1), target_bounds=(0, 1), n_features=1))
    domain = Domain((2,), 2)
    engine = PlainEngine()
    empty = loaded(engine, np.zeros((1, 1), np.int64), np.zeros(1, np.int64), domain)
    with pytest.raises(VeilwoodError, match="between 1 and"):
        id3.grow_public(engine, empty, domain, 2, id3.best_feature, id3.best_class)
