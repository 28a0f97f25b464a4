# SPDX-License-Identifier: Apache-2.0
"""Attacks sparse counts: exact losses, fits of what comes out to the law cell by cell, and mutants that must be caught.

The samplers below are attacked in test_mechanisms.py and test_samplers.py, the forests above elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, product
from math import exp, expm1, log, log1p, prod
from typing import Any

import numpy as np
import pytest
from scipy import stats

from veilwood.arrays import Floats, Ints
from veilwood.errors import MechanismError, PlanError, UseError, VeilwoodError
from veilwood.privacy import entropy, samplers
from veilwood.privacy.door import Door
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import MAX_SPARSE_CELLS, MAX_SPARSE_SCALE, DiscreteLaplace, SparseLaplace
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import Step, counting_step, selection_step, sparse_step
from veilwood_audit.statistics import epsilon_lower_bound
from veilwood_testing.errors import rejects
from veilwood_testing.noise_checks import ROWS_THAT_DIFFER

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")

ALARM = 1e-8  # a fit below this p-value is a failure; there are fewer than 100 fits here
SIGMAS = 6.0  # the same for a single number
NONE = np.zeros(0, np.int64)
HALF = Fraction(1, 2)


class LongGap(SparseLaplace):
    """Mutant: half as many chance finds."""

    @property
    def gap(self) -> int:
        return 2 * super().gap


def beyond_the_limit(scale: int) -> SparseLaplace:
    """Mutant: a scale that is refused."""
    noise = SparseLaplace(1)
    object.__setattr__(noise, "scale", Fraction(scale))
    return noise


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


# Laws: deterministic.

SCALES = [Fraction(1, 60), Fraction(1, 20), Fraction(1, 5), HALF, Fraction(1), Fraction(3), Fraction(4)]


def worst_loss(noise: SparseLaplace, most: int = 6, up_to: int = 9) -> float:
    """Return the worst log-ratio between cells of c and c + 1 rows, up to ``most``, over outputs from 0."""
    logs = np.log([noise.probabilities(c, up_to) for c in range(most + 1)])
    return float(np.abs(np.diff(logs, axis=0)).max())


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_loss_is_the_bound_and_attains_it(scale: Fraction) -> None:
    noise = SparseLaplace(scale)
    claimed = float(noise.epsilon(l1_sensitivity=1))
    assert noise.epsilon(l1_sensitivity=3) == 3 / scale
    assert worst_loss(noise) <= claimed * (1 + 1e-9)
    assert worst_loss(noise) > claimed * (1 - 1e-9)
    assert worst_loss(SparseLaplace(scale / 2), 3, 4) > 1.9 * claimed
    if Fraction(1, 60) < scale <= HALF:  # elsewhere there are more finds than needed
        assert worst_loss(LongGap(scale), 1) > claimed + 0.5


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_laws_sum_to_one(scale: Fraction) -> None:
    a = exp(-1 / scale)
    for count in range(7):
        law = SparseLaplace(scale).probabilities(count, 40)
        beyond = law[-1] * a / (1 - a)  # all laws are geometric beyond the count
        assert law.sum() + beyond == pytest.approx(1, abs=1e-12)
        assert (law >= 0).all()


def test_all_small_tables_cost_the_distance_of_their_counts() -> None:
    # Three cells, every table of up to two rows a cell: s steps apart costs at most s / scale, also when a row moves.
    noise = SparseLaplace(Fraction(2, 3))
    logs = np.log([noise.probabilities(c, 5) for c in range(3)])

    def log_law(table: tuple[int, ...]) -> Floats:
        x, y, z = (logs[c] for c in table)
        return np.asarray(x[:, None, None] + y[:, None] + z)

    worst: dict[int, float] = {}
    for one, other in product(product(range(3), repeat=3), repeat=2):
        distance = sum(abs(c - d) for c, d in zip(one, other, strict=True))
        worst[distance] = max(worst.get(distance, 0.0), float(np.abs(log_law(one) - log_law(other)).max()))
    assert set(worst) == set(range(7))
    assert all(loss <= float(noise.epsilon(distance)) * (1 + 1e-9) for distance, loss in worst.items())


@pytest.mark.parametrize("scale", [*SCALES, Fraction(1, 7), Fraction(1, 1000), Fraction(1, 10**9)], ids=str)
def test_the_gap_never_exceeds_what_the_proof_allows(scale: Fraction) -> None:
    gap = SparseLaplace(scale).gap
    low, above = samplers.exp_minus(1 / scale, 400)
    assert type(gap) is int
    assert 1 <= gap <= 2**50
    assert gap * above <= 1 << 400  # 1/gap >= exp(-1/scale)
    assert gap == 2**50 or (gap + 1) * low > 1 << 400  # and not smaller than need be
    assert 1 / gap >= log1p(exp(-1 / scale))


def test_more_noise_is_refused_because_it_would_not_keep_its_loss() -> None:
    # Beyond a scale of 4.97 empty cells come out so often that one row is seen by its cell's not coming out.
    assert worst_loss(beyond_the_limit(5)) > 1 / 5
    assert worst_loss(beyond_the_limit(10)) > 2 / 10
    for scale in np.linspace(0.02, MAX_SPARSE_SCALE, 300):
        noise = SparseLaplace(Fraction(float(scale)))
        assert worst_loss(noise) <= 1 / float(noise.scale) * (1 + 1e-9)
    for refused in (Fraction(4) + Fraction(1, 10**9), 5, 2**50):
        with rejects(MechanismError, raised_in="SparseLaplace.__init__"):
            SparseLaplace(refused)


# Fits: statistical, in the seeded context so that a failure repeats.


def control(scale: float, count: int, n: int, rng: np.random.Generator) -> Ints:
    """Draw what comes out of one cell, straight from the definition and with numpy's own generator."""
    a = exp(-1 / scale)
    above_none = rng.geometric(1 - a, n) - 1
    if count == 0:
        comes_out = rng.random(n) >= exp(-1 / int(exp(1 / scale)))
        return np.where(comes_out, 1 + above_none, 0)
    return np.asarray(np.maximum(0, count + above_none - (rng.geometric(1 - a, n) - 1)), np.int64)


def fit(observed: Ints, law: Floats) -> float:
    """Return the chi-square p-value of how often each outcome was seen, rare outcomes taken together."""
    expected = observed.sum() * law
    order = np.argsort(-expected)
    ends = np.cumsum(expected[order])
    kept = int((expected >= 10).sum())
    e = np.append(expected[order][:kept], max(observed.sum() - ends[kept - 1], 0.0))
    o = np.append(observed[order][:kept], observed[order][kept:].sum())
    if e[-1] < 10:  # too rare for a bin of its own
        e, o = np.append(e[:-2], e[-2] + e[-1]), np.append(o[:-2], o[-2] + o[-1])
    return float(stats.chi2.sf(((o - e) ** 2 / e).sum(), len(e) - 1))


@pytest.mark.parametrize("scale", [Fraction(1, 3), HALF, Fraction(1), Fraction(3)], ids=str)
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_law_is_that_of_a_naive_twin(scale: Fraction, count: int) -> None:
    rng = np.random.default_rng([count, scale.numerator, scale.denominator])
    top = count + 40
    seen = np.bincount(np.minimum(control(float(scale), count, 100_000, rng), top), minlength=top + 1)
    assert fit(seen, SparseLaplace(scale).probabilities(count, top)) > ALARM
    assert fit(seen, SparseLaplace(scale / 2).probabilities(count, top)) < ALARM
    if count == 0 and scale < 1:
        assert fit(seen, LongGap(scale).probabilities(count, top)) < ALARM


TOP = 3  # noisy counts from here on are taken together
# Occupied cells at either end, next to each other, and all there are.
TABLES = [(0,), (1,), (2,), (0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 2, 0), (0, 1, 1), (1, 0, 3), (2, 1, 1)]


def joint_fit(noise: SparseLaplace, table: tuple[int, ...], claimed: SparseLaplace, runs: int) -> float:
    """Return the p-value of what came out of all cells of a table together, under independent cells."""
    cells, counts = np.flatnonzero(table), np.array([c for c in table if c], dtype=np.int64)
    seen = np.zeros((TOP + 1,) * len(table), np.int64)
    for _ in range(runs):
        dense = [0] * len(table)
        found, values = noise.perturb(cells, counts, len(table))
        assert len(set(found.tolist())) == len(found)
        for cell, value in zip(found.tolist(), values.tolist(), strict=True):
            dense[cell] = min(value, TOP)
        seen[tuple(dense)] += 1
    laws = [claimed.probabilities(c, TOP - 1) for c in table]
    capped = [np.append(law, 1 - law.sum()) for law in laws]
    joint = np.array([prod(parts) for parts in product(*capped)])
    return fit(seen.ravel(), joint)


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_small_tables_fit_the_law_cell_by_cell(table: tuple[int, ...]) -> None:
    claimed = SparseLaplace(HALF)
    with entropy.seeded_for_tests(60):
        assert joint_fit(claimed, table, claimed, 2500) > ALARM
        assert joint_fit(SparseLaplace(HALF / 2), table, claimed, 600) < ALARM


@pytest.mark.parametrize("table", [(0,), (0, 0, 1), (1, 0, 3)], ids=str)
def test_half_as_many_finds_are_caught(table: tuple[int, ...]) -> None:
    with entropy.seeded_for_tests(60):
        assert joint_fit(LongGap(HALF), table, SparseLaplace(HALF), 3000) < ALARM


def test_small_tables_fit_with_short_words() -> None:
    # With digits of two bits nearly every draw is resolved lazily.
    claimed = SparseLaplace(Fraction(2, 3))
    with entropy.seeded_for_tests(61, 2):
        assert joint_fit(claimed, (0, 1, 0), claimed, 2000) > ALARM


@pytest.mark.parametrize("scale", [Fraction(1, 4), Fraction(1), Fraction(4)], ids=str)
def test_long_tables_fit_the_law_by_count(scale: Fraction) -> None:
    # The pattern of counts 0 0 1 0 2 repeated: many cells in one draw, so that small faults are seen.
    n = 40_000
    pattern = np.tile(ints(0, 0, 1, 0, 2), n)
    cells = np.flatnonzero(pattern)
    noise = SparseLaplace(scale)

    def p_values(drawn: SparseLaplace) -> list[float]:
        dense = np.zeros(len(pattern), np.int64)
        found, values = drawn.perturb(cells, pattern[cells], len(pattern))
        dense[found] = values
        top = 2 + int(12 * scale)
        return [
            fit(np.bincount(np.minimum(column, top), minlength=top + 1), with_rest(noise.probabilities(count, top - 1)))
            for column, count in zip(dense.reshape(n, 5).T, (0, 0, 1, 0, 2), strict=True)
        ]

    with entropy.seeded_for_tests(62):
        assert min(p_values(noise)) > ALARM
        assert max(p_values(SparseLaplace(scale / 2))) < ALARM


def with_rest(law: Floats) -> Floats:
    """Append what is left to 1."""
    return np.append(law, 1 - law.sum())


def test_chance_finds_are_independent() -> None:
    # Found together at a distance: as often as the square of being found. The number of 10**6 cells is binomial.
    n, noise = 10**6, SparseLaplace(HALF)
    p = -expm1(-1 / noise.gap)
    with entropy.seeded_for_tests(63):
        cells, _ = noise.perturb(NONE, NONE, n)
    found = np.zeros(n, np.bool_)
    found[cells] = True
    for lag in (1, 2, 3, noise.gap, 1000):
        pairs = (found[:-lag] & found[lag:])[: (n // (2 * lag)) * 2 * lag]
        # Pairs that overlap in a cell are correlated: both together are found with p**3.
        variance = p**2 * (1 - p**2) + 2 * (p**3 - p**4)
        assert abs(pairs.sum() - len(pairs) * p**2) < SIGMAS * (len(pairs) * variance) ** 0.5
    dependent = found | np.roll(found, 1)  # mutant: a find brings its neighbour along
    assert (dependent[:-1] & dependent[1:]).sum() > 2 * n * p**2


def number_of_finds(noise: SparseLaplace, n_cells: int, runs: int) -> Floats:
    return np.array([len(noise.perturb(NONE, NONE, n_cells)[0]) for _ in range(runs)], dtype=np.float64)


def test_a_big_table_has_a_binomial_number_of_finds_all_over() -> None:
    n_cells, runs, noise = 10**12, 600, SparseLaplace(Fraction(1, 20))
    p = -expm1(-1 / noise.gap)
    mean, variance = n_cells * p, n_cells * p * (1 - p)

    def is_binomial(numbers: Floats) -> bool:
        z = (numbers.mean() - mean) / (variance / len(numbers)) ** 0.5
        spread = numbers.var(ddof=1) / variance * (len(numbers) - 1)
        tail = min(stats.chi2.cdf(spread, len(numbers) - 1), stats.chi2.sf(spread, len(numbers) - 1))
        return bool(abs(z) < SIGMAS and tail > ALARM)

    with entropy.seeded_for_tests(64):
        assert is_binomial(number_of_finds(noise, n_cells, runs))
        assert not is_binomial(number_of_finds(LongGap(noise.scale), n_cells, 20))
        assert not is_binomial(number_of_finds(SparseLaplace(noise.scale / 2), n_cells, 20))
        places = np.concatenate([noise.perturb(NONE, NONE, n_cells)[0] for _ in range(100)])
    parts = np.bincount(places // 10**10, minlength=100)
    assert fit(parts, np.full(100, 0.01)) > ALARM
    last_digits = np.bincount(places % 64, minlength=64)
    assert fit(last_digits, np.full(64, 1 / 64)) > ALARM


@pytest.mark.parametrize("make", [SparseLaplace, LongGap])
def test_distinguisher_sees_one_row(make: Callable[[Fraction], SparseLaplace]) -> None:
    # Many cells drawn at once: with one row in each, and all of them empty. The event: a cell comes out.
    n, scale = 10**6, Fraction(1, 5)
    every, ones = np.arange(n), np.ones(n, np.int64)

    def bound(noise: SparseLaplace) -> float:
        with_row, _ = noise.perturb(every, ones, n)
        empty, _ = noise.perturb(NONE, NONE, n)
        return epsilon_lower_bound(len(with_row), n, len(empty), n)

    with entropy.seeded_for_tests(65):
        visible = bound(make(scale))
        assert (visible > 1 / scale) == (make is LongGap)
        assert visible > 0.97 / scale  # it is a sharp eye
        assert bound(SparseLaplace(scale / 2)) > 1.5 / scale
        assert bound(SparseLaplace(scale * Fraction(9, 10))) > 1 / scale


def test_a_row_shows_by_not_coming_out_if_there_is_too_much_noise() -> None:
    n, noise = 10**6, beyond_the_limit(10)
    with entropy.seeded_for_tests(66):
        with_row, _ = noise.perturb(np.arange(n), np.ones(n, np.int64), n)
        empty, _ = noise.perturb(NONE, NONE, n)
    assert epsilon_lower_bound(n - len(with_row), n, n - len(empty), n) > 1 / noise.scale


# How finds are drawn.


def recorded(monkeypatch: pytest.MonkeyPatch, gap: int) -> list[Ints]:
    """Keep every batch of gaps that is drawn."""
    batches: list[Ints] = []
    sound = samplers.geometric

    def geometric(scale: Fraction, n: int) -> Ints:
        drawn = sound(scale, n)
        if scale == gap:  # and not one of the digits it is put together from
            batches.append(drawn)
        return drawn

    monkeypatch.setattr(samplers, "geometric", geometric)
    return batches


@pytest.mark.parametrize("n_cells", [MAX_SPARSE_CELLS, MAX_SPARSE_CELLS - 1, MAX_SPARSE_CELLS // 3])
def test_many_batches_of_gaps_go_on_from_one_another(n_cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = SparseLaplace(Fraction(1, 25))
    batches = recorded(monkeypatch, noise.gap)
    with entropy.seeded_for_tests(67):
        places = noise._draw_false_positives(n_cells)
    assert len(batches) > 20
    assert all(len(batch) * (n_cells + 1) <= 2**62 for batch in batches)
    by_hand = accumulate((gap + 1 for batch in batches for gap in batch.tolist()), initial=-1)  # of any length
    assert places.tolist() == [place for place in by_hand if 0 <= place < n_cells]
    expected = n_cells / noise.gap
    assert abs(len(places) - expected) < SIGMAS * expected**0.5
    assert (np.diff(places) > 0).all()
    assert 0 <= places[0] < places[-1] < n_cells


@pytest.mark.parametrize("scale", [Fraction(1, 60), Fraction(1, 25), Fraction(1)])
def test_gaps_beyond_the_end_do_not_overflow(scale: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "geometric", lambda scale, n: np.full(n, 2**63 - 1, np.int64))
    for n_cells in (1, 10**6, MAX_SPARSE_CELLS):
        assert SparseLaplace(scale)._draw_false_positives(n_cells).size == 0


def test_gaps_of_nothing_find_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "geometric", lambda scale, n: np.zeros(n, np.int64))
    for n_cells in (1, 2, 1000):
        assert SparseLaplace(Fraction(1, 20))._draw_false_positives(n_cells).tolist() == list(range(n_cells))


@pytest.mark.parametrize("scale", [Fraction(1, 20), Fraction(1, 3), Fraction(4)], ids=str)
def test_what_comes_out_is_ascending_and_positive(scale: Fraction) -> None:
    cells, counts = ints(999, 0, 500, 3), ints(1, 2, 10**6, 1)
    for _ in range(50):
        found, values = SparseLaplace(scale).perturb(cells, counts, 1000)
        assert found.dtype == values.dtype == np.int64
        assert found.shape == values.shape
        assert (np.diff(found) > 0).all()
        assert (values >= 1).all()
        assert abs(values[found == 500] - 10**6) < 1000  # counts stay with their cells
        assert set(found.tolist()) <= set(range(1000))
    assert cells.tolist() == [999, 0, 500, 3]


@pytest.mark.parametrize("scale", [Fraction(1, 20), Fraction(1, 3), Fraction(4)], ids=str)
@pytest.mark.parametrize("order", [1, -1])
def test_plain_python_lets_out_the_same(scale: Fraction, order: int) -> None:
    """Given the same draws; at the larger scales many chance finds fall on cells that hold rows, and are dropped."""
    noise, cells = SparseLaplace(scale), np.arange(0, 3000, 7)[::order]
    counts = 1 + cells % 3
    for seed in range(20):
        with entropy.seeded_for_tests(seed):
            found, values = noise.perturb(cells, counts, 3000)
        with entropy.seeded_for_tests(seed):
            rows = dict(sorted(zip(cells.tolist(), counts.tolist(), strict=True)))
            drawn = DiscreteLaplace(scale).sample(len(rows)).tolist()
            expected = {cell: rows[cell] + more for cell, more in zip(rows, drawn, strict=True)}
            empty = [place for place in noise._draw_false_positives(3000).tolist() if place not in rows]
            expected |= dict(zip(empty, (1 + samplers.geometric(scale, len(empty))).tolist(), strict=True))
        assert list(zip(found.tolist(), values.tolist(), strict=True)) == sorted(
            (cell, count) for cell, count in expected.items() if count > 0
        )


def test_little_noise_leaves_the_table_as_it_is() -> None:
    cells, counts = ints(7, 0, MAX_SPARSE_CELLS - 1), ints(1, 2, 2**61)
    found, values = SparseLaplace(Fraction(1, 10**6)).perturb(cells[:2], counts[:2], 1000)
    assert (found.tolist(), values.tolist()) == ([0, 7], [2, 1])
    found, values = SparseLaplace(Fraction(1, 30)).perturb(cells, counts, MAX_SPARSE_CELLS)
    assert abs(int(values[found == MAX_SPARSE_CELLS - 1][0]) - 2**61) < 100


# Refusals.


@pytest.mark.parametrize(
    ("cells", "counts", "n_cells", "message"),
    [
        ([0, 10], [1, 1], 10, "different numbers from 0 up to 9"),
        ([-1, 3], [1, 1], 10, "different numbers"),
        ([3, 1, 3], [1, 1, 1], 10, "different numbers"),
        ([3], [0], 10, "at least 1"),
        ([3, 4], [5, -2], 10, "leave empty cells out"),
        ([3], [2**61 + 1], 10, r"2\*\*61"),
        ([], [], 0, r"n_cells=0.*Hint"),
        ([], [], -5, "n_cells=-5"),
        ([], [], 2**53 + 1, r"2\*\*53.*coarser"),
        ([1, 2], [1], 10, "one length"),
        ([1], [1, 1], 10, "one length"),
        ([[1]], [[1]], 10, "vectors"),
    ],
)
def test_bad_tables_are_refused(cells: Any, counts: Any, n_cells: int, message: str) -> None:
    with pytest.raises(VeilwoodError, match=message):
        SparseLaplace(1).perturb(np.array(cells, np.int64), np.array(counts, np.int64), n_cells)


def test_floats_are_refused() -> None:
    # Cut to integers, ten tenths of a row spread over ten cells could move ten counts.
    for cells, counts in ((ints(3), np.array([1.9])), (np.array([3.0]), ints(1)), (ints(3), np.array([True]))):
        with rejects(MechanismError, raised_in="SparseLaplace.perturb"):
            SparseLaplace(1).perturb(cells, counts, 10)


@pytest.mark.parametrize("value", [0, -1, Fraction(-1, 2), 0.5, float("nan"), "1", None, True])
def test_bad_scales_are_refused(value: Any) -> None:
    with pytest.raises(VeilwoodError, match="scale must be"):
        SparseLaplace(value)


# The plan.

EIGHT = Loss.pure(Fraction(8))


@pytest.mark.parametrize(("neighbours", "sensitivity"), ROWS_THAT_DIFFER, ids=str)
def test_a_step_has_the_noise_its_neighbours_need(neighbours: Neighbours, sensitivity: int) -> None:
    step = sparse_step("cells", 1000, EIGHT, neighbours, l1=1)
    assert step.sensitivity == sensitivity
    assert step.mechanism == SparseLaplace(Fraction(sensitivity, 8))
    assert step.has_enough_noise
    assert step.shape == (1000,)
    assert sparse_step("cells", 1000, EIGHT, neighbours, l1=2).sensitivity == 2 * sensitivity
    assert Step.from_dict(json.loads(json.dumps(step.to_dict()))) == step
    assert step.variance == DiscreteLaplace(Fraction(sensitivity, 8)).variance
    with rejects(PlanError, raised_in="Step.__post_init__"):
        replace(step, mechanism=SparseLaplace(Fraction(sensitivity, 16)))
    with rejects(PlanError, raised_in="Step.__post_init__"):
        replace(step, sensitivity=sensitivity + 1)
    broken = step.to_dict()
    broken["exact"]["mechanism"]["scale"] = str(Fraction(sensitivity, 16))
    with rejects(PlanError, raised_in="Step.__post_init__"):
        Step.from_dict(broken)


def test_a_step_takes_pure_epsilon_of_some_size() -> None:
    with rejects(PlanError, raised_in="sparse_step"):
        sparse_step("cells", 10, Loss.zcdp(Fraction(1), Fraction(1, 10**6)), Neighbours(), l1=1)
    with rejects(MechanismError, raised_in="SparseLaplace.__init__"):
        sparse_step("cells", 10, Loss.pure(Fraction(1, 5)), Neighbours(), l1=1)
    exact = sparse_step("cells", 10, Loss.unbounded(), Neighbours(), l1=1)
    assert exact.mechanism is None
    assert Step.from_dict(exact.to_dict()) == exact


def test_a_step_says_what_it_does() -> None:
    step = sparse_step("cells", 1000, Loss.pure(Fraction(20)), Neighbours(), l1=1)
    assert step.mechanism_text == "sparse Laplace, scale 0.05, an empty cell turns up with probability 2.06e-09"
    assert log(485_165_195) < 20 < log(485_165_196)


# The door.


def plan_of(*steps: Step, loss: Loss = EIGHT) -> Plan:
    return Plan("Test", loss, Neighbours(), steps, "cells", "test", "0", Layout(leaves=0), 0.0)


def test_a_sparse_step_passes_the_door_once() -> None:
    step = sparse_step("cells", 1000, EIGHT, Neighbours(), l1=1)
    door = Door(plan_of(step), MemoryLedger())
    with rejects(UseError, raised_in="Door._admit_step"):
        door.release_sparse(step, ints(3), ints(5), 1000)
    with door:
        for n_cells in (1001, 0, -1):
            with rejects(PlanError, raised_in="Door.release_sparse"):
                door.release_sparse(step, ints(3), ints(5), n_cells)
        with rejects(PlanError, raised_in="Door._admit_step"):
            door.release_sparse(replace(step, name="other"), ints(3), ints(5), 1000)
        found, values = door.release_sparse(step, ints(3), ints(50), 900)  # fewer cells than planned
        assert values[found == 3][0] > 1
        with rejects(PlanError, raised_in="Door._admit_step"):
            door.release_sparse(step, ints(3), ints(5), 1000)
    assert door.certificate().epsilon == 8
    assert "sparse Laplace" in door.certificate().mechanism


def test_a_refused_table_cannot_be_tried_again() -> None:
    step = sparse_step("cells", 1000, EIGHT, Neighbours(), l1=1)
    with Door(plan_of(step), MemoryLedger()) as door:
        with rejects(MechanismError, raised_in="SparseLaplace.perturb"):
            door.release_sparse(step, ints(3, 3), ints(5, 5), 1000)
        with rejects(PlanError, raised_in="Door._admit_step"):
            door.release_sparse(step, ints(3), ints(5), 1000)


def test_steps_of_another_kind_do_not_pass_as_sparse_ones() -> None:
    part = Loss.pure(Fraction(2))
    sparse = [sparse_step(name, 3, part, Neighbours(), l1=1) for name in ("one", "two")]
    counting = counting_step("counts", (3,), part, Neighbours(), l1=1, squared_l2=1)
    choosing = selection_step("choice", (3, 1), part, Neighbours(), score_range=1)
    flat = replace(choosing, name="flat", shape=(3,))
    with Door(plan_of(*sparse, counting, choosing), MemoryLedger()) as door:
        with rejects(UseError, raised_in="Door._mechanism_of"):
            door.release_counts(sparse[0], ints(1, 0, 0))
        with rejects(PlanError, raised_in="Door._admit_step"):  # a table of scores has two axes
            door.select(sparse[1], np.zeros((3, 1), np.int64))
        with rejects(UseError, raised_in="Door._mechanism_of"):
            door.release_sparse(counting, ints(1), ints(1), 3)
    with Door(plan_of(flat), MemoryLedger()) as door, rejects(UseError, raised_in="Door._mechanism_of"):
        door.release_sparse(flat, ints(1), ints(1), 3)
    square = replace(sparse[0], shape=(3, 1))
    with Door(plan_of(square), MemoryLedger()) as door, rejects(UseError, raised_in="Door._mechanism_of"):
        door.select(square, np.zeros((3, 1), np.int64))


def test_without_a_bound_exact_counts_pass() -> None:
    step = sparse_step("cells", 1000, Loss.unbounded(), Neighbours(), l1=1)
    door = Door(plan_of(step, loss=Loss.unbounded()), MemoryLedger())
    with door:
        found, values = door.release_sparse(step, ints(9, 3), ints(5, 7), 1000)
    assert (found.tolist(), values.tolist()) == ([3, 9], [7, 5])
    assert not door.certificate().is_private
