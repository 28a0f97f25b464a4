# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic that budgets and ids rest on: properties, tried by examples and solved for counterexamples.

With the package hypothesis-crosshair, the slow tests run the code on symbols: an SMT solver looks for numbers that
break a property, instead of drawing them. Planted mistakes that need one number in a billion are found that way.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilwood.data.canonical import _format_digits, to_canonical_id
from veilwood.errors import BudgetExceededError
from veilwood.privacy import loss as losses
from veilwood.privacy.ledger import Balance, Limit, Part
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours, Rows
from veilwood.privacy.noise import DiscreteLaplace

Property = Callable[..., None]

WHOLE = st.integers(0, 10**12)
PARTS = st.integers(1, 10**6)
FEW = st.integers(1, 50)


def check_sum(a: int, b: int, c: int, d: int) -> None:
    """The sum that keeps its denominator is the sum of fractions."""
    total = losses._ExactSum()
    total.add(Fraction(a, b))
    total.add(Fraction(c, d))
    total.add(Fraction(a, b))
    assert total.value == Fraction(a, b) * 2 + Fraction(c, d)


def check_whole_sum(a: int, b: int) -> None:
    """The same for whole numbers, which a solver need not reduce."""
    total = losses._ExactSum()
    total.add(Fraction(a))
    total.add(Fraction(b))
    assert total.numerator == a + b
    assert total.denominator == 1


def check_budget(a: int, b: int, limit: int) -> None:
    """Two charges fit exactly if their sum is at most the budget, in either order."""
    budget, one, other = (Loss(Fraction(n)) for n in (limit, a, b))
    first, second = Balance(budget, one, None, ""), Balance(budget, other, None, "")
    assert first.can_afford(other) == second.can_afford(one) == (a + b <= limit)


def check_remaining(a: int, limit: int) -> None:
    """What is left of a budget is what was not charged."""
    left = Balance(Loss.pure(Fraction(limit, 1000)), Loss.pure(Fraction(a, 1000)), None, "").remaining
    assert left is not None
    assert left.epsilon == max(Fraction(limit - a, 1000), 0)


def check_times(a: int, n: int) -> None:
    """n equal charges cost n times one."""
    one = Loss.pure(Fraction(a, 7))
    times, total = one.times(n), Loss.total([one] * n)
    assert (times.epsilon, times.rho) == (total.epsilon, total.rho) == (Fraction(a * n, 7), n * Fraction(a, 7) ** 2 / 2)


def check_scaled(a: int, n: int) -> None:
    """The parts of a loss cost together what the whole does."""
    whole = Loss.pure(Fraction(a, 3))
    assert Loss.total([whole.scaled(Fraction(1, n))] * n).epsilon == whole.epsilon


def check_id(number: int, other: int) -> None:
    """Two ids are one text exactly if they are one number, as number or text, with zeros before it or not."""
    one, two = to_canonical_id(number), to_canonical_id(str(other))
    assert (one == two) == (number == other)
    assert to_canonical_id(str(number)) == one


def check_digits_of_number(number: int, zeros: int) -> None:
    """Digits with an exponent are the number that they are read as."""
    text = _format_digits("", "0" * (zeros % 4) + str(number), zeros)
    assert int(text) == number * 10**zeros


def check_sensitivity(norm: int, rows: int) -> None:
    """Units and replacements scale sensitivities, and noise scales with them."""
    for adjacency, sides in (("add-remove", 1), ("replace-one", 2)):
        neighbours = Neighbours(adjacency, Rows(rows))  # type: ignore[arg-type]
        l1, l2 = neighbours.l1_sensitivity(norm), neighbours.squared_l2_sensitivity(norm)
        assert (l1, l2) == (norm * rows * sides, norm * rows * rows * sides)
        assert neighbours.score_range(norm) == l1
        assert DiscreteLaplace(Fraction(l1, 2)).epsilon(l1) == 2


PROPERTIES: dict[str, tuple[Property, tuple[Any, ...]]] = {
    "sum": (check_sum, (WHOLE, PARTS, WHOLE, PARTS)),
    "whole sum": (check_whole_sum, (WHOLE, WHOLE)),
    "budget": (check_budget, (WHOLE, WHOLE, WHOLE)),
    "remaining": (check_remaining, (WHOLE, WHOLE)),
    "times": (check_times, (WHOLE, FEW)),
    "scaled": (check_scaled, (WHOLE, FEW)),
    "id": (check_id, (st.integers(0, 10**18), st.integers(0, 10**18))),
    "digits": (check_digits_of_number, (PARTS, st.integers(0, 12))),
    "sensitivity": (check_sensitivity, (PARTS, FEW)),
}


def holds(name: str, **how: Any) -> bool:
    """Return whether no example breaks a property."""
    check, strategies = PROPERTIES[name]
    with_settings: Any = settings(deadline=None, database=None, **how)
    with_examples: Any = given(*strategies)
    tried = with_settings(with_examples(check))
    try:
        tried()
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("name", PROPERTIES)
def test_integer_arithmetic_holds_for_examples(name: str) -> None:
    assert holds(name, max_examples=60)


needs_solver = pytest.mark.skipif(
    find_spec("hypothesis_crosshair_provider") is None, reason="needs hypothesis-crosshair"
)


@pytest.mark.slow
@needs_solver
@pytest.mark.parametrize("name", PROPERTIES)
def test_no_solution_breaks_integer_arithmetic(name: str) -> None:
    assert holds(name, max_examples=40, backend="crosshair")


def one_in_a_billion_is_free(patch: pytest.MonkeyPatch) -> None:
    sound = Balance.can_afford
    patch.setattr(
        Balance, "can_afford",
        lambda self, loss: loss.epsilon == 123_456_789 or sound(self, loss),
    )  # fmt: skip


def a_sum_drops_its_carry(patch: pytest.MonkeyPatch) -> None:
    sound = losses._ExactSum.add

    def add(self: Any, part: Fraction | None) -> None:
        sound(self, part)
        if self.numerator == 987_654_321:
            self.numerator -= 1

    patch.setattr(losses._ExactSum, "add", add)


@pytest.mark.slow
@needs_solver
@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("budget", one_in_a_billion_is_free),
        ("whole sum", a_sum_drops_its_carry),
    ],
)
def test_a_mistake_for_one_number_is_found_by_the_solver_and_not_by_examples(
    name: str, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert holds(name, max_examples=200)
    assert not holds(name, max_examples=200, backend="crosshair")


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 400), max_size=12), st.integers(1, 1000), st.integers(0, 4))
def test_a_ledger_spends_its_budget_and_no_more(charges: list[int], budget: int, most: int) -> None:
    """Against a model: a charge is accepted exactly if it fits into what is left, and into a limit on part of it."""
    ledger, spent, accepted = MemoryLedger(Fraction(budget, 1000)), 0, 0
    limit = Limit("half", Part(account="analyst"), Loss.pure(Fraction(budget, 2000)), max_releases=most)
    for charge in charges:
        fits = spent + charge <= budget and 2 * (spent + charge) <= budget and accepted < most
        loss = Loss.pure(Fraction(charge, 1000))
        try:
            ledger.reserve(loss, what="w", neighbours="n", plan="p", account="analyst", limits=[limit]).commit()
        except BudgetExceededError:
            assert not fits
        else:
            assert fits
            spent, accepted = spent + charge, accepted + 1
    assert ledger.spent.epsilon == Fraction(spent, 1000)
