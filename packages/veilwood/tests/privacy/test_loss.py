# SPDX-License-Identifier: Apache-2.0
"""Losses, units and neighbours: exact arithmetic, composition, and the zCDP conversion against another library."""

from __future__ import annotations

import math
from decimal import MAX_EMAX, Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, ZCDpEvent, rdp
from dp_accounting.privacy_accountant import NeighboringRelation
from hypothesis import example, given, settings
from hypothesis import strategies as st

from veilwood.errors import MechanismError, ParameterError, VeilwoodError
from veilwood.privacy.loss import Loss, exact_fraction, guarantee_strength, requested_loss, zcdp_epsilon, zcdp_rho
from veilwood.privacy.neighbours import Neighbours, Rows, RowsOf, resolve_unit
from veilwood_testing.errors import rejects

rhos = st.fractions(min_value=Fraction(1, 10**6), max_value=20, max_denominator=10**6)
deltas = st.integers(min_value=2, max_value=12).map(lambda power: Fraction(1, 10**power))
epsilons = st.fractions(min_value=Fraction(1, 100), max_value=20, max_denominator=1000)


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        (0.1, Fraction(1, 10)),
        (1e-6, Fraction(1, 10**6)),
        (3, Fraction(3)),
        (np.int64(7), Fraction(7)),
        (np.float64(0.3), Fraction(3, 10)),
        ("1/3", Fraction(1, 3)),
        ("0.25", Fraction(1, 4)),
        (Decimal("0.7"), Fraction(7, 10)),
        (Fraction(2, 7), Fraction(2, 7)),
    ],
)
def test_exact_is_what_a_person_means(value: object, meaning: Fraction) -> None:
    assert exact_fraction(value) == meaning


@pytest.mark.parametrize("value", [True, "many", "1/0", float("nan"), float("inf"), None, [1], 1j, Decimal("NaN")])
def test_exact_refuses_what_is_no_number(value: object) -> None:
    with pytest.raises(VeilwoodError, match="epsilon"):
        exact_fraction(value, "epsilon")


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_exact_stays_next_to_the_float(value: float) -> None:
    assert float(exact_fraction(value)) == value


@pytest.mark.parametrize("rho", [0.0003, 0.0244, 0.3125, 2.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
def test_zcdp_conversion_agrees_with_dp_accounting(rho: float, delta: float) -> None:
    accountant = rdp.RdpAccountant(
        orders=1 + np.exp(np.linspace(-6, 8, 4000)), neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    accountant.compose(ZCDpEvent(rho))
    other = accountant.get_epsilon(delta)
    ours = float(zcdp_epsilon(exact_fraction(rho), exact_fraction(delta)))
    assert ours == pytest.approx(other, rel=2e-3)
    assert ours <= other * (1 + 1e-6)  # they try fixed orders, we search: never above


def test_several_gaussian_steps_agree_with_dp_accounting() -> None:
    accountant = rdp.RdpAccountant(
        orders=1 + np.exp(np.linspace(-6, 8, 4000)), neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    accountant.compose(ComposedDpEvent([GaussianDpEvent(4.0)] * 10))
    total = sum((Loss.zcdp(Fraction(1, 32), Fraction(1, 10**6)) for _ in range(10)), Loss.zero())
    assert float(total.epsilon_at(Fraction(1, 10**6)) or 0) == pytest.approx(accountant.get_epsilon(1e-6), rel=2e-3)


@given(rhos, deltas)
@settings(deadline=None, max_examples=50)
def test_zcdp_epsilon_is_valid_and_better_than_the_simple_form(rho: Fraction, delta: Fraction) -> None:
    epsilon = zcdp_epsilon(rho, delta)
    simple = float(rho) + 2 * math.sqrt(float(rho) * -math.log(delta))
    assert float(epsilon) <= simple * (1 + 1e-6)
    # The bound must hold at some order: find it on a grid, no better than the answer.
    orders = 1 + np.exp(np.linspace(-12, 30, 20_001))
    a = orders - 1
    log_delta = a * (orders * float(rho) - float(epsilon)) - np.log(a) + orders * np.log(a / orders)
    assert log_delta.min() == pytest.approx(math.log(delta), abs=1e-3) or epsilon < Fraction(1, 10**10)


@given(epsilons, deltas)
@settings(deadline=None, max_examples=20)
def test_zcdp_rho_never_exceeds_the_epsilon_it_was_made_for(epsilon: Fraction, delta: Fraction) -> None:
    rho = zcdp_rho(epsilon, delta)
    assert rho > 0
    assert zcdp_epsilon(rho, delta) <= epsilon
    assert zcdp_epsilon(rho * Fraction(1001, 1000), delta) > epsilon * Fraction(999, 1000)


def test_zcdp_needs_delta() -> None:
    assert zcdp_epsilon(Fraction(0), Fraction(1, 100)) == 0
    with rejects(MechanismError, raised_in="zcdp_epsilon"):
        zcdp_epsilon(Fraction(1), Fraction(0))


@given(st.lists(epsilons, min_size=1, max_size=6))
def test_pure_losses_add_exactly(parts: list[Fraction]) -> None:
    total = sum((Loss.pure(part) for part in parts), Loss.zero())
    assert total.epsilon == sum(parts)
    assert total.delta == 0
    assert total.rho == sum(part * part / 2 for part in parts)
    assert total.is_within(Loss.pure(sum(parts, Fraction(0))))
    assert not total.is_within(Loss.pure(sum(parts) - Fraction(1, 10**9)))


def test_many_small_pure_losses_are_cheaper_under_zcdp() -> None:
    total = sum((Loss.pure(Fraction(1, 10)) for _ in range(100)), Loss.zero())
    assert total.epsilon_at(Fraction(0)) == 10
    at_delta = total.epsilon_at(Fraction(1, 10**6))
    assert at_delta is not None
    assert at_delta < 6
    assert total.is_within(Loss(Fraction(6), Fraction(1, 10**6)))
    assert not total.is_within(Loss(Fraction(6)))


def test_an_unbounded_loss_stays_unbounded() -> None:
    total = Loss.pure(Fraction(1)) + Loss.unbounded()
    assert not total.is_bounded
    assert total.epsilon_at(Fraction(1, 2)) is None
    assert not total.is_within(Loss.pure(Fraction(10**6)))
    assert total.is_within(Loss.unbounded())
    assert "NOT PRIVATE" in str(total)


def test_deltas_that_reach_one_promise_nothing() -> None:
    half = Loss(Fraction(1), Fraction(1, 2))
    assert (half + half).epsilon is None
    assert (half + half).epsilon_at(Fraction(9, 10)) is None


def test_a_loss_out_of_range_is_refused() -> None:
    for epsilon, delta in ((-1, 0), (1, -1), (1, 1), (1, 2)):
        with pytest.raises(VeilwoodError):
            Loss(Fraction(epsilon), Fraction(delta))


def test_requested_losses() -> None:
    assert requested_loss(0.1, 0) == Loss.pure(Fraction(1, 10))
    assert requested_loss(math.inf, 0) == Loss.unbounded()
    approximate = requested_loss(1.0, 1e-6)
    assert approximate.epsilon == 1
    assert approximate.rho is not None
    assert float(approximate.rho) == pytest.approx(0.0244, rel=0.01)  # privacy-soundness table, epsilon 1
    assert zcdp_epsilon(approximate.rho, Fraction(1, 10**6)) <= 1


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0, 0), (-1, 0), (-math.inf, 0), (math.nan, 0), (1e-9, 0), (1e9, 0), (1, 1), (1, -0.1), (1, 1e-40), ("x", 0)],
)
def test_senseless_budgets_are_refused(epsilon: object, delta: object) -> None:
    with pytest.raises(VeilwoodError, match=r"epsilon|delta"):
        requested_loss(epsilon, delta)


def test_units() -> None:
    assert resolve_unit("row") == resolve_unit(1) == Rows(1)
    assert resolve_unit(np.int64(3)) == Rows(3)
    assert resolve_unit({"id": "patient", "at_most": 5}) == resolve_unit(RowsOf("patient", 5)) == RowsOf("patient", 5)
    assert str(RowsOf("patient", 5)) == "all rows of one patient (counted as at most 5)"
    for wrong in (0, -1, True, 1.5, "person", {"id": "patient"}, {"id": "p", "at_most": 0}, RowsOf("p", 0), None):
        with rejects(ParameterError, name="privacy_unit"):
            resolve_unit(wrong)


def test_neighbours_multiply_what_one_row_does() -> None:
    one, three = Neighbours(), Neighbours("add-remove", Rows(3))
    swap = Neighbours("replace-one", RowsOf("p", 3))
    assert (one.l1_sensitivity(4), one.squared_l2_sensitivity(4), one.score_range(1)) == (4, 4, 1)
    assert (three.l1_sensitivity(4), three.squared_l2_sensitivity(4), three.score_range(1)) == (12, 36, 3)
    assert (swap.l1_sensitivity(4), swap.squared_l2_sensitivity(4), swap.score_range(1)) == (24, 72, 6)
    assert str(swap) == "all rows of one p (counted as at most 3), replaced"
    with rejects(ParameterError, name="adjacency"):
        Neighbours("bounded")  # type: ignore[arg-type]


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=2, max_size=2),
)
def test_a_replacement_of_non_negative_vectors_at_most_doubles_the_squared_distance(rows: list[list[int]]) -> None:
    removed, added = np.array(rows)
    largest = max(int((removed**2).sum()), int((added**2).sum()))
    assert int(((removed - added) ** 2).sum()) <= Neighbours("replace-one").squared_l2_sensitivity(largest)


def test_budgets_that_no_file_could_hold_are_refused() -> None:
    assert requested_loss(Fraction(1, 10**5) + Fraction(1, 10**90), 1e-30).delta > 0
    with rejects(ParameterError, name="epsilon"):
        requested_loss(1 + Fraction(1, 10**200), 0.0)


def test_repeated_losses_are_sums() -> None:
    for loss in (Loss.pure(Fraction(1, 3)), Loss.zcdp(Fraction(1, 10), Fraction(1, 100)), Loss.unbounded()):
        for n in (1, 2, 7, 98):
            assert loss.times(n) == Loss.total([loss] * n)
            assert loss.times(n) + loss == loss.times(n + 1)
            assert Loss.from_dict(loss.to_dict()) == loss
    assert not Loss.zcdp(Fraction(1, 10), Fraction(1, 100)).times(100).is_bounded  # a delta of 1


@given(st.one_of(st.floats(1e-6, 1e6), st.fractions(min_value=Fraction(1, 10**6), max_value=10**6)))
@example(31.0)
@example(9.210340371976184)  # just above log(10^4), where rounding up adds a digit
def test_a_shown_factor_is_the_bound_rounded_up(epsilon: float | Fraction) -> None:
    """The odds of the certificate, for every epsilon: never below exp(epsilon), and at most a hundredth above."""
    visible = Decimal(guarantee_strength(epsilon).factor.replace(",", ""))
    with localcontext(prec=60, Emax=MAX_EMAX):
        exponent = visible.ln()
    assert epsilon <= Fraction(exponent) <= Fraction(epsilon) + Fraction(1, 100)


def test_grades_of_guarantees() -> None:
    grades = {
        None: "none",
        0.1: "private",
        4.99: "private",
        5.0: "weak",
        9.99: "weak",
        10.0: "nearly none",
        1e6: "nearly none",
    }
    assert {epsilon: guarantee_strength(epsilon).grade for epsilon in grades} == grades
    with_verdict = {grade for epsilon, grade in grades.items() if guarantee_strength(epsilon).verdict}
    assert with_verdict == {"weak", "nearly none"}


def test_an_epsilon_is_claimed_at_its_delta_and_above_only() -> None:
    delta = Fraction(1, 10**6)
    stated = Loss(Fraction(1), delta)
    assert [stated.epsilon_at(at) for at in (Fraction(0), delta / 2, delta, 2 * delta)] == [None, None, 1, 1]
    assert not stated.is_within(Loss(Fraction(9), delta / 2))
    assert stated.is_within(Loss(Fraction(1), delta))
    only_rho = Loss(None, Fraction(0), Fraction(1, 10))
    assert only_rho.epsilon_at(Fraction(0)) is None
    assert only_rho.epsilon_at(delta) is not None
    assert not Loss.unbounded().is_within(stated)


def test_accounting_is_open_only_where_rho_does_not_imply_epsilon() -> None:
    delta = Fraction(1, 10**6)
    open_loss = Loss.pure_or_zcdp(Fraction(1), delta)
    assert open_loss.accounting_open
    assert not any(loss.accounting_open for loss in (Loss.pure(Fraction(1)), Loss.zcdp(Fraction(1, 50), delta)))
    assert not Loss(Fraction(1), delta).accounting_open
