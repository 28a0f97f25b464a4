# SPDX-License-Identifier: Apache-2.0
"""Joint noise, attacked: exact losses, counts and boxes by enumeration, moments, mutants that are caught."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, product
from math import exp, prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from veilwood.arrays import Ints
from veilwood.errors import MechanismError, PlanError, VeilwoodError
from veilwood.privacy import entropy, joint_noise, samplers
from veilwood.privacy import joint_noise as joint_moments
from veilwood.privacy.door import Door
from veilwood.privacy.joint_noise import MAX_JOINT_SCALE, JointLaplace, count_vectors, unit_scale_moments
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import Step, joint_step
from veilwood_audit.statistics import epsilon_lower_bound
from veilwood_testing.errors import rejects
from veilwood_testing.noise_checks import ROWS_THAT_DIFFER

pytestmark = [pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")]


Vector = tuple[int, ...]


Sizes = tuple[int, ...]


ALARM = 1e-8  # a fit below this p-value is a failure; there are fewer than 100 p-values here


HALF = Fraction(1, 2)


@pytest.fixture
def fresh_boxes() -> Iterator[None]:
    """Boxes of a patched sampler are made anew, and not kept for other tests."""
    joint_noise._cached_sampler.cache_clear()
    yield
    joint_noise._cached_sampler.cache_clear()


# -- enumeration ----------------------------------------------------------------------------------------------------


def vectors(m: int, total: int, most: int) -> list[Vector]:
    """All vectors of a sum whose entries' negative sum is at most so much, one by one."""
    entries = range(-most, abs(total) + most + 1)
    return [x for x in product(entries, repeat=m) if sum(x) == total and -sum(min(one, 0) for one in x) <= most]


def shells(m: int, reach: int) -> Ints:
    """How many vectors have a sum, from -reach on, and an L1 norm of at most r: by adding one entry at a time."""
    found = np.zeros((2 * reach + 1, reach + 1), np.int64)
    found[reach, 0] = 1
    for _ in range(m):
        longer = np.zeros_like(found)
        for entry in range(-reach, reach + 1):
            left, far = max(0, -entry), abs(entry)
            part = found[left : 2 * reach + 1 - max(0, entry), : reach + 1 - far]
            longer[left + entry : left + entry + len(part), far:] += part
        found = longer
    return found.cumsum(axis=1)


def whole_weight(scale: Fraction, sizes: Sizes, reach: int) -> float:
    """The sum of exp(-norm/scale) over the lattice, up to a norm far out."""
    within = np.ones((2 * reach + 1, reach + 1))
    for m in sizes:
        within *= shells(m, reach)
    exactly = np.diff(within, axis=1, prepend=0.0).sum(axis=0)
    return float(exactly @ np.exp(-np.arange(reach + 1) / float(scale)))


def norm(x: Vector, sizes: Sizes) -> int:
    ends = np.cumsum(sizes)
    return max(sum(abs(one) for one in x[end - m : end]) for m, end in zip(sizes, ends.tolist(), strict=True))


def lattice(sizes: Sizes, most: int) -> list[Vector]:
    """All points of a norm of at most so much: tables of one total, next to each other."""
    tables = [[x for x in product(range(-most, most + 1), repeat=m) if sum(map(abs, x)) <= most] for m in sizes]
    points = []
    for total in range(-most, most + 1):
        same = [[x for x in table if sum(x) == total] for table in tables]
        points += [tuple(one for x in each for one in x) for each in product(*same)]
    return points


def law(scale: Fraction, sizes: Sizes, most: int) -> dict[Vector, float]:
    """Probabilities of all points of a norm of at most so much."""
    weight = whole_weight(scale, sizes, int(60 * scale) + 60)
    return {x: exp(-norm(x, sizes) / scale) / weight for x in lattice(sizes, most)}


def fit(observed: NDArray[Any], chances: NDArray[Any]) -> float:
    """Return the chi-square p-value of how often outcomes were seen; rare ones, and all others, are taken together."""
    expected = observed.sum() * chances
    kept = expected >= 10
    e = np.append(expected[kept], observed.sum() - expected[kept].sum())
    o = np.append(observed[kept], observed[~kept].sum())
    if e[-1] < 10:  # too rare for a bin of its own
        e, o = np.append(e[:-2], e[-2] + e[-1]), np.append(o[:-2], o[-2] + o[-1])
    return float(stats.chi2.sf(((o - e) ** 2 / e).sum(), len(e) - 1))


def fit_of_draws(drawn: Ints, scale: Fraction, sizes: Sizes, most: int) -> float:
    """Return the lower p-value of draws, one in a column: of points, and of norms."""
    points = law(scale, sizes, most)
    seen = Counter(map(tuple, drawn.T.tolist()))
    others = drawn.shape[1] - sum(seen[x] for x in points)
    by_point = fit(
        np.array([*(seen[x] for x in points), others]), np.array([*points.values(), 1 - sum(points.values())])
    )
    chances, norms = np.zeros(most + 2), np.zeros(most + 2, np.int64)
    for x, chance in points.items():
        chances[norm(x, sizes)] += chance
        norms[norm(x, sizes)] += seen[x]
    chances[-1], norms[-1] = 1 - chances.sum(), others
    return min(by_point, fit(norms, chances))


# -- the count, and vectors of it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_the_number_of_vectors_is_that_of_an_enumeration(m: int) -> None:
    for bound, total in product(range(4), range(4)):
        assert count_vectors(m, bound, total) == len(vectors(m, total, bound))


def test_the_number_of_vectors_is_that_of_adding_entries_one_by_one() -> None:
    reach = 24
    for m in (2, 5, 8):
        known = shells(m, reach)
        for total in range(reach + 1):
            for bound in range((reach - total) // 2 + 1):
                assert count_vectors(m, bound, total) == known[reach + total, total + 2 * bound]


@pytest.mark.parametrize(("m", "bound", "total"), [(1, 3, 2), (2, 4, 0), (3, 2, 1), (3, 4, 0), (4, 2, 1), (5, 1, 0)])
def test_vectors_of_a_sum_and_a_bound_are_equally_likely(m: int, bound: int, total: int) -> None:
    every = vectors(m, total, bound)
    runs = max(20 * len(every), 300)
    weights = joint_noise._vector_counts(m, bound, total)
    with entropy.seeded_for_tests(70):
        seen = Counter(tuple(joint_noise._draw_vector(m, bound, total, weights).tolist()) for _ in range(runs))
    assert set(seen) <= set(every)
    if len(every) > 1:
        assert fit(np.array([seen[x] for x in every]), np.full(len(every), 1 / len(every))) > ALARM
        skewed = [8 * weight if h == 0 else weight for h, weight in enumerate(weights)]  # mutant
        with entropy.seeded_for_tests(71):
            seen = Counter(tuple(joint_noise._draw_vector(m, bound, total, skewed).tolist()) for _ in range(2 * runs))
        assert fit(np.array([seen[x] for x in every]), np.full(len(every), 1 / len(every))) < ALARM


def test_whole_numbers_below_a_bound_are_equally_likely() -> None:
    with entropy.seeded_for_tests(72):
        for n in (1, 2, 3, 7, 64):
            drawn = np.bincount([entropy.draw_below(n) for _ in range(100 * n)], minlength=n)
            assert len(drawn) == n
            assert n == 1 or fit(drawn, np.full(n, 1 / n)) > ALARM
        large = [entropy.draw_below(3 << 130) >> 130 for _ in range(600)]  # of more than two words
        assert fit(np.bincount(large, minlength=3), np.full(3, 1 / 3)) > ALARM
        pairs = Counter(tuple(joint_noise._draw_subset(5, 2)) for _ in range(1000))
    assert set(pairs) == set(combinations(range(1, 6), 2))
    assert fit(np.array(list(pairs.values())), np.full(10, 0.1)) > ALARM


# -- losses ---------------------------------------------------------------------------------------------------------


def rows_of(sizes: Sizes, n_classes: int) -> list[Ints]:
    """Every row there can be, as what it adds: 1 in one cell of every table, in the column of its class."""
    found, starts = [], np.cumsum((0, *sizes[:-1]))
    for cells in product(*map(range, sizes)):
        for column in range(n_classes):
            row = np.zeros((sum(sizes), n_classes), np.int64)
            row[starts + cells, column] = 1
            found.append(row)
    return found


def worst_loss(noise: JointLaplace, moved: list[Ints]) -> float:
    """Return the worst log-ratio of the law between tables that differ so, over outputs around them."""
    points = lattice(noise.sizes, 3)
    losses: dict[Vector, int] = {}  # by what moved in one class
    for column in {tuple(column) for difference in moved for column in difference.T.tolist()}:
        farther = (norm(tuple(np.subtract(x, column).tolist()), noise.sizes) - norm(x, noise.sizes) for x in points)
        losses[column] = max(farther)
    # Classes are independent: their worst outputs come together.
    worst = max(sum(losses[tuple(column)] for column in difference.T.tolist()) for difference in moved)
    return worst / float(noise.scale)


@pytest.mark.parametrize("sizes", [(3,), (1, 2), (2, 2), (2, 3), (2, 2, 2)], ids=str)
def test_loss_is_the_bound_and_attains_it(sizes: Sizes) -> None:
    noise = JointLaplace(Fraction(3, 2), sizes)
    rows = rows_of(sizes, 2)
    neighbours = {
        1: [sign * row for row in rows for sign in (1, -1)],  # added, removed
        2: [one - other for one in rows for other in rows] + [one + other for one in rows for other in rows],
    }
    for r, moved in neighbours.items():
        claimed = float(noise.epsilon(r))
        assert claimed == pytest.approx(r / 1.5)
        assert worst_loss(noise, moved) == pytest.approx(claimed)
        assert all(noise.norm(difference) <= r for difference in moved)
        assert worst_loss(noise, [2 * difference for difference in moved]) > 1.9 * claimed  # mutant: rows count twice


def test_what_no_rows_can_change_has_no_norm() -> None:
    """A row in one table that is missing in another: attacks that compare two fits must see it."""
    with rejects(MechanismError, raised_in="JointLaplace._check_totals"):
        JointLaplace(1, (2, 2)).norm([[1], [0], [0], [0]])


def test_the_norm_is_that_of_the_definition_class_by_class() -> None:
    rng = np.random.default_rng(73)
    for sizes in ((1,), (2, 3), (4, 1, 2)):
        noise = JointLaplace(1, sizes)
        ends = np.cumsum(sizes, dtype=np.int64)
        for x in rng.integers(-9, 10, (20, sum(sizes), 3)):
            totals = np.add.reduceat(x, ends - sizes, axis=0)
            x[ends - 1] += totals[0] - totals  # as rows of all tables do
            assert noise.class_norms(x).tolist() == [norm(tuple(column), sizes) for column in x.T.tolist()]
            assert noise.norm(x) == noise.class_norms(x).sum()


# -- laws of draws, in the seeded context so that a failure repeats ----------------------------------------------------

SCALES = [Fraction(1, 3), Fraction(1), Fraction(5, 2)]


ALL_SIZES: list[Sizes] = [(1, 1), (2, 2), (1, 3), (2, 2, 2)]


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("sizes", ALL_SIZES, ids=str)
def test_draws_fit_the_law_and_half_the_noise_is_caught(sizes: Sizes, scale: Fraction) -> None:
    with entropy.seeded_for_tests(74):
        assert fit_of_draws(JointLaplace(scale, sizes).sample(1000), scale, sizes, 6) > ALARM
        assert fit_of_draws(JointLaplace(scale / 2, sizes).sample(1000), scale, sizes, 6) < ALARM


@pytest.mark.slow
@pytest.mark.parametrize("scale", [*SCALES, Fraction(6)], ids=str)
@pytest.mark.parametrize("sizes", ALL_SIZES, ids=str)
def test_many_draws_fit_the_law(sizes: Sizes, scale: Fraction) -> None:
    with entropy.seeded_for_tests(75):
        assert fit_of_draws(JointLaplace(scale, sizes).sample(30_000), scale, sizes, 9) > ALARM
        assert fit_of_draws(JointLaplace(scale * Fraction(9, 10), sizes).sample(50_000), scale, sizes, 9) < ALARM


@pytest.mark.parametrize("digit_bits", [1, 2])
def test_draws_fit_with_short_words(digit_bits: int) -> None:
    # With words of a few bits nearly every coin is decided lazily.
    with entropy.seeded_for_tests(76, digit_bits):
        assert fit_of_draws(JointLaplace(2, (2, 2)).sample(1500), Fraction(2), (2, 2), 6) > ALARM


def test_one_table_by_itself_has_discrete_laplace_noise() -> None:
    scale = Fraction(4, 3)
    alone = DiscreteLaplace(scale)
    for x, chance in law(scale, (3,), 5).items():
        assert chance == pytest.approx(prod(alone.pmf(list(x)).tolist()), rel=1e-9)
    with entropy.seeded_for_tests(77):
        assert fit_of_draws(JointLaplace(scale, (3,)).sample(1500), scale, (3,), 6) > ALARM


def test_tables_keep_one_total_and_classes_are_independent() -> None:
    sizes = (2, 3, 4)
    with entropy.seeded_for_tests(78):
        drawn = JointLaplace(3, sizes).sample(1500)
    assert drawn.dtype == np.int64
    totals = np.add.reduceat(drawn, [0, 2, 5], axis=0)
    assert (totals == totals[0]).all()
    assert abs(np.corrcoef(totals[0][:-1], totals[0][1:])[0, 1]) < 6 / 1500**0.5
    assert abs(drawn.mean(axis=1) / drawn.std(axis=1)).max() < 6 / 1500**0.5


def test_a_distinguisher_sees_one_row_and_half_the_noise_is_caught() -> None:
    # Tables of no rows, and of one. The event: without the row the tables would be nearer to none.
    sizes, runs = (2, 2), 3000
    (row, *_) = rows_of(sizes, 1)

    def bound(noise: JointLaplace) -> float:
        hits = []
        for exact in (np.broadcast_to(row, (sum(sizes), runs)), np.zeros((sum(sizes), runs), np.int64)):
            seen = noise.perturb(exact)
            hits.append(int((noise.class_norms(seen - row) < noise.class_norms(seen)).sum()))
        return epsilon_lower_bound(hits[0], runs, hits[1], runs)

    with entropy.seeded_for_tests(79):
        assert 0.7 < bound(JointLaplace(1, sizes)) <= 1
        assert bound(JointLaplace(HALF, sizes)) > 1.5


# -- boxes ----------------------------------------------------------------------------------------------------------


def made(scale: Fraction | int, sizes: Sizes) -> joint_noise._BoxSampler:
    return joint_noise._BoxSampler(Fraction(scale), tuple(sorted(Counter(sizes).items())))


def is_bounded(boxes: joint_noise._BoxSampler, row: int, column: int, bound: int, total: int, halved: int) -> bool:
    """Whether the weight of a point, from above, is at most that of its box, a piece of a tail halved so often."""
    vectors = prod(count_vectors(m, bound, total) ** times for m, times in boxes._counted)
    bits = 100 + max(0, vectors.bit_length() + boxes._shift)
    _, high = samplers.exp_minus((total + 2 * bound) / boxes._scale, bits)
    up = boxes._shift + halved - bits
    return high * vectors << max(up, 0) <= boxes._proposal_weight(row, column) << max(-up, 0)


def points_of(axis: joint_noise._SegmentedAxis, pieces: int) -> list[tuple[int, int, int]]:
    """All points of an axis with their segment, and of so many pieces beyond, with how often those are halved."""
    inside = [(place // axis.length, place, 0) for place in range(axis.n * axis.length)]
    piece = axis.tail * axis.length
    return inside + [(axis.n, axis.n * axis.length + place, place // piece) for place in range(pieces * piece)]


def all_bounded(boxes: joint_noise._BoxSampler) -> bool:
    every = product(points_of(boxes._bounds, 2), points_of(boxes._totals, 2))
    return all(is_bounded(boxes, row, column, u, t, i + j) for (row, u, i), (column, t, j) in every)


@pytest.mark.parametrize(
    ("scale", "sizes"),
    [(Fraction(1, 3), (2, 3)), (Fraction(1), (2, 2)), (Fraction(5, 2), (2,)), (Fraction(1, 1000), (3, 4))],
    ids=str,
)
def test_boxes_bound_the_weight_everywhere_and_smaller_ones_are_caught(scale: Fraction, sizes: Sizes) -> None:
    boxes = made(scale, sizes)
    assert all_bounded(boxes)
    boxes._weights = boxes._weights * 99 // 100
    assert not all_bounded(boxes)


def test_boxes_of_several_points_bound_the_weight() -> None:
    boxes = made(8, (2, 1))
    assert (boxes._bounds.length, boxes._totals.length) == (2, 4)
    assert all_bounded(boxes)
    boxes._weights = boxes._weights * 3 // 4
    assert not all_bounded(boxes)


@pytest.mark.parametrize(
    ("scale", "sizes"),
    [
        (MAX_JOINT_SCALE, (2,) * 128),
        (MAX_JOINT_SCALE, (48,) * 5 + (16,)),
        (Fraction(799, 100), (48,) * 5 + (16,)),
        (100, tuple(range(1, 22))),
        (Fraction(1, 10**300), (48,) * 5),
    ],
    ids=["small tables", "large tables", "small boxes", "all sizes", "no noise"],
)
def test_the_largest_boxes_bound_the_weight_at_their_corners_and_inside(scale: Fraction | int, sizes: Sizes) -> None:
    boxes, rng = made(scale, sizes), np.random.default_rng(80)
    heaviest = np.unravel_index(np.argsort(boxes._weights, axis=None)[-3:], boxes._weights.shape)
    rows = [*heaviest[0].tolist(), 0, boxes._bounds.n, *rng.integers(0, boxes._bounds.n, 2).tolist()]
    columns = [*heaviest[1].tolist(), 0, boxes._totals.n, *rng.integers(0, boxes._totals.n, 2).tolist()]
    for row, column in product(rows, columns):
        ends = [
            (axis.segment_starts[at], axis.segment_ends[at])
            for axis, at in ((boxes._bounds, row), (boxes._totals, column))
        ]
        for u, t in [*product(*ends), tuple(rng.integers(first, last + 1) for first, last in ends)]:
            assert is_bounded(boxes, row, column, int(u), int(t), 0)


@pytest.mark.parametrize(
    ("scale", "sizes"), [(MAX_JOINT_SCALE, (2,) * 128), (7, (48,) * 5), (Fraction(1, 2), (8,) * 8)], ids=str
)
def test_beyond_the_ends_a_piece_more_halves_the_weight(scale: Fraction | int, sizes: Sizes) -> None:
    boxes = made(scale, sizes)
    bounds, totals = (axis.n * axis.length for axis in (boxes._bounds, boxes._totals))
    pieces = [axis.tail * axis.length for axis in (boxes._bounds, boxes._totals)]

    def weight(u: int, t: int) -> tuple[Fraction, Fraction]:
        vectors = prod(count_vectors(m, u, t) ** times for m, times in boxes._counted)
        low, high = samplers.exp_minus((t + 2 * u) / boxes._scale, 6000)
        return Fraction(low * vectors), Fraction(high * vectors)

    for u, t in (
        (bounds, 0),
        (bounds, totals),
        (0, totals),
        (bounds + pieces[0] - 1, totals + 5),
        (3 * bounds, totals),
    ):
        if u >= bounds:
            assert weight(u + pieces[0], t)[1] <= weight(u, t)[0] / 2
        if t >= totals:
            assert weight(u, t + pieces[1])[1] <= weight(u, t)[0] / 2


@pytest.mark.usefixtures("fresh_boxes")
def test_draws_from_the_tails_follow_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    # Axes end where they begin; pieces beyond are so long that each is half as heavy as the last all the same.
    def short(scale: Fraction, part: Fraction, end: Fraction, tail: Fraction) -> joint_noise._SegmentedAxis:
        length = max(1, int(part * scale))
        return joint_noise._SegmentedAxis(2, length, int(4 * scale / length))

    monkeypatch.setattr(joint_noise, "_segment_axis", short)
    scale, sizes = Fraction(1), (2, 2)
    boxes = made(scale, sizes)
    assert all_bounded(boxes)
    halved = []
    sound = joint_noise._BoxSampler._accepts_point

    def accepted(self: joint_noise._BoxSampler, bound: int, total: int, weight: int, often: int) -> bool:
        found = sound(self, bound, total, weight, often)
        halved.extend([often] * found)
        return found

    monkeypatch.setattr(joint_noise._BoxSampler, "_accepts_point", accepted)
    with entropy.seeded_for_tests(81):
        drawn = JointLaplace(scale, sizes).sample(800)
        assert fit_of_draws(drawn, scale, sizes, 8) > ALARM
    assert (drawn.sum(axis=0) // 2 >= 2).mean() > 0.1
    assert max(halved) >= 1
    joint_noise._cached_sampler.cache_clear()
    monkeypatch.setattr(
        joint_noise._SegmentedAxis, "draw_point", lambda axis, at: (entropy.draw_below(axis.length * (at + 1)), 0)
    )
    with entropy.seeded_for_tests(81):  # mutant: nothing from beyond
        assert fit_of_draws(JointLaplace(scale, sizes).sample(500), scale, sizes, 8) < ALARM


def test_a_coin_of_hardly_any_chance_needs_few_bits() -> None:
    # A point of a box that is drawn by its floor of one unit.
    boxes = made(Fraction(1, 10**300), (4, 4))
    with entropy.seeded_for_tests(82):
        assert not boxes._accepts_point(7, 1, 1, 0)
        assert not JointLaplace(boxes._scale, (4, 4)).sample(20).any()


def test_the_largest_scale_and_the_most_cells_are_drawn() -> None:
    for sizes in ((2,) * 128, (48,) * 5 + (16,)):
        noise = JointLaplace(MAX_JOINT_SCALE, sizes)
        drawn = noise.sample(3)
        assert (noise.class_norms(drawn) > MAX_JOINT_SCALE).all()
        assert (noise.class_norms(drawn) < 1000 * MAX_JOINT_SCALE).all()


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "counts",
    [
        [[1], [2], [3]],
        [1, 0, 1, 0],
        [[[1]], [[0]], [[1]], [[0]]],
        [[1], [0], [1], [1]],
        [[1, 0], [0, 1], [1, 1], [0, 1]],
        [[1.0], [0.0], [1.0], [0.0]],
        [[True], [False], [True], [False]],
        [["1"], ["0"], ["1"], ["0"]],
        [[2**62], [0], [2**62], [0]],
    ],
    ids=str,
)
def test_tables_that_do_not_fit_are_refused(counts: Any) -> None:
    with pytest.raises(MechanismError):
        JointLaplace(1, (2, 2)).perturb(counts)


def test_tables_of_no_class_and_negative_ones_pass() -> None:
    noise = JointLaplace(1, (2, 1))
    assert noise.perturb(np.zeros((3, 0), np.int64)).shape == (3, 0)
    seen = noise.perturb([[-5], [2], [-3]])
    assert seen[:2].sum() == seen[2]


@pytest.mark.parametrize(
    "sizes", [(), (0,), (-1, 3), (49,), (48,) * 6, (2.0,), (True,), ("2",), (None,), (10**30,)], ids=str
)
def test_sizes_that_are_none_are_refused(sizes: Any) -> None:
    with rejects(MechanismError, raised_in="JointLaplace.__init__"):
        JointLaplace(1, sizes)


@pytest.mark.parametrize("scale", [0, -1, MAX_JOINT_SCALE + 1, 2**50, 0.5, None, "1", Fraction(-1, 2)], ids=str)
def test_scales_that_are_none_are_refused(scale: Any) -> None:
    with pytest.raises(VeilwoodError, match="scale"):
        JointLaplace(scale, (2, 2))


# -- steps ----------------------------------------------------------------------------------------------------------

EIGHT = Loss.pure(Fraction(8))


@pytest.mark.parametrize(("neighbours", "sensitivity"), ROWS_THAT_DIFFER, ids=str)
def test_a_step_has_the_noise_its_neighbours_need(neighbours: Neighbours, sensitivity: int) -> None:
    step = joint_step("tables", (2, 3), 4, EIGHT, neighbours)
    assert step.sensitivity == sensitivity
    assert step.mechanism == JointLaplace(Fraction(sensitivity, 8), (2, 3))
    assert step.shape == (5, 4)
    assert step.has_enough_noise
    assert step.mechanism_text == f"joint Laplace, scale {sensitivity / 8:g}"
    assert Step.from_dict(json.loads(json.dumps(step.to_dict()))) == step
    assert pickle.loads(pickle.dumps(step)) == step
    assert len({step.mechanism, JointLaplace(Fraction(sensitivity, 8), [2, 3])}) == 1
    broken = step.to_dict()
    broken["exact"]["mechanism"]["scale"] = str(Fraction(sensitivity, 16))
    with rejects(PlanError, raised_in="Step.__post_init__"):
        Step.from_dict(broken)


@pytest.mark.parametrize("loss", [Loss.zcdp(Fraction(1), Fraction(1, 10**6)), Loss.unbounded()], ids=str)
def test_a_step_takes_pure_epsilon(loss: Loss) -> None:
    with rejects(PlanError, raised_in="joint_step"):
        joint_step("tables", (2, 2), 2, loss, Neighbours())


@pytest.mark.parametrize(
    "text",
    ["-1", "1e9", "2 x", "2.0 2", "", " ", "0 2", "9" * 900, "2 " * 5000, "\u0662 \u0662", "\u00b2", "1_0", "49",
     "(2, 3)", "+2", "1 " * 257, "2\x002"],
)  # fmt: skip
def test_forged_sizes_are_refused(text: str) -> None:
    plain = joint_step("tables", (2, 3), 4, EIGHT, Neighbours()).to_dict()
    plain["exact"]["mechanism"]["sizes"] = text
    with pytest.raises((PlanError, MechanismError)):
        Step.from_dict(plain)


def test_a_joint_step_passes_the_door_once() -> None:
    step = joint_step("tables", (2, 3), 2, EIGHT, Neighbours())
    exact = np.array([[5, 1], [0, 2], [5, 0], [0, 3], [0, 0]])
    plan = Plan("Test", EIGHT, Neighbours(), (step,), "counts", "test", "0", Layout(leaves=0), 0.0)
    with Door(plan, MemoryLedger()) as door:
        seen = door.release_counts(step, exact)
        assert (seen[:2].sum(axis=0) == seen[2:].sum(axis=0)).all()
        with rejects(PlanError, raised_in="Door._admit_step"):
            door.release_counts(step, exact)
    assert door.certificate().epsilon == 8
    assert "joint Laplace" in door.certificate().mechanism


SIGMAS = 6.0


def off_by(squares: np.ndarray, variance: float) -> float:
    """How many standard errors the mean of squares is from a variance."""
    return float(abs(squares.mean() - variance) / (squares.std() / len(squares) ** 0.5))


@pytest.mark.parametrize("sizes", [(3,), (2, 2), (2, 2, 5), (8,) * 4, (2,) * 20], ids=str)
def test_variances_are_those_of_draws(sizes: tuple[int, ...]) -> None:
    noise, runs = JointLaplace(60, sizes), 600
    with entropy.seeded_for_tests(90):
        drawn = noise.sample(runs).astype(np.float64)
    assert off_by(drawn[: sizes[0]].sum(axis=0) ** 2, noise.moments.total) < SIGMAS
    first = 0
    for m, variance in zip(sizes, noise.variances, strict=True):
        table = drawn[first : first + m]
        first += m
        apart = ((table - table.mean(axis=0)) ** 2).sum(axis=0) / (m - 1)
        assert off_by(apart, variance) < SIGMAS
        assert off_by(apart, variance / 4) > SIGMAS  # half the noise


def test_a_table_by_itself_has_the_variance_of_discrete_laplace_noise() -> None:
    for scale in (Fraction(1, 3), Fraction(1), Fraction(20)):
        for m in (2, 5, 48):
            assert JointLaplace(scale, (m,)).variance == pytest.approx(DiscreteLaplace(scale).variance, rel=1e-6)
        assert JointLaplace(scale, (7,)).moments.total == pytest.approx(14 * float(scale) ** 2, rel=1e-6)


@pytest.mark.parametrize("sizes", [(2,) * 128, (48,) * 5 + (16,), (8,) * 32, (3, *(40,) * 5), tuple(range(1, 22))])
def test_the_quadrature_is_fine_enough(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    counted = tuple(sorted(Counter(sizes).items()))
    apart, total = unit_scale_moments(counted)
    nodes, weights = np.polynomial.legendre.leggauss(150)
    monkeypatch.setattr(joint_moments, "QUADRATURE_NODES", (nodes + 1) / 2)
    monkeypatch.setattr(joint_moments, "_QUADRATURE_WEIGHTS", weights / 2)
    # What is kept of the others stays theirs: the functions below the caches are called.
    monkeypatch.setattr(joint_moments, "_vector_moments", joint_moments._vector_moments.__wrapped__)
    finer, total_of_finer = unit_scale_moments.__wrapped__(counted)
    assert total == pytest.approx(total_of_finer, rel=1e-6)
    assert dict(apart) == pytest.approx(dict(finer), rel=1e-6)


def test_company_costs_less_than_noise_alone() -> None:
    for m, n_tables in ((2, 2), (2, 20), (8, 8), (48, 5)):
        together = JointLaplace(1000, (m,) * n_tables).variance
        assert 0.95 * DiscreteLaplace(1000).variance < together < 0.95 * DiscreteLaplace(1000 * n_tables).variance


def test_a_table_of_one_cell_has_nothing_apart() -> None:
    noise = JointLaplace(5, (1, 1))
    assert noise.variances == (0.0, 0.0)
    assert noise.moments.total == pytest.approx(50.0)


def test_small_noise_is_nearly_none() -> None:
    noise = JointLaplace(Fraction(1, 50), (2, 3))
    assert max(noise.variances) < 1e-10
