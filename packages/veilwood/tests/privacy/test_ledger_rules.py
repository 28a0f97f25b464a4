# SPDX-License-Identifier: Apache-2.0
"""The rules of every ledger: reserved, committed or cancelled, and never more than the budget."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilwood.errors import BudgetExceededError, LedgerError, VeilwoodError
from veilwood.privacy.ledger import Ledger, Reservation
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss, exact_fraction, requested_loss
from veilwood_testing.ledgers import ROW, pure, spend


def test_reserve_commit_cancel(make: Callable[..., Ledger]) -> None:
    ledger = make(1)
    kept, dropped = spend(ledger, pure(0.3)), spend(ledger, pure(0.5))
    assert ledger.spent.epsilon == Fraction(8, 10)
    kept.commit()
    dropped.cancel()
    assert ledger.spent == pure(0.3)
    assert ledger.remaining == Loss(Fraction(7, 10))
    assert [(e.id, e.state, e.loss) for e in ledger.entries()] == [
        (kept.id, "committed", pure(0.3)),
        (dropped.id, "cancelled", pure(0.5)),
    ]
    assert "committed" in str(ledger)
    assert "spent epsilon=0.3, budget epsilon=1" in str(ledger)
    assert len(ledger.verify()) == 64


def test_entries_carry_the_facts(make: Callable[..., Ledger]) -> None:
    ledger = make()
    ledger.reserve(Loss.unbounded(), what="Blätter", neighbours=ROW, plan="ab", not_private="epsilon=inf")
    (entry,) = ledger.entries()
    assert (entry.what, entry.neighbours, entry.plan, entry.not_private) == ("Blätter", ROW, "ab", "epsilon=inf")
    assert entry.time.endswith("+00:00")
    assert entry.loss == Loss.unbounded()
    assert "NOT PRIVATE: epsilon=inf" in str(ledger)
    with pytest.raises(AttributeError):
        entry.state = "cancelled"  # type: ignore[misc]


def test_a_refusal_says_what_is_left_and_writes_nothing(make: Callable[..., Ledger]) -> None:
    ledger = make(1)
    spend(ledger, pure(0.7))
    before = ledger.verify()
    with pytest.raises(BudgetExceededError) as caught:
        spend(ledger, pure(1))
    assert caught.value.requested == pure(1)
    assert caught.value.remaining == Loss(Fraction(3, 10))
    assert ledger.verify() == before
    assert not ledger.can_afford(pure(1))
    assert ledger.can_afford(pure(0.3))


def test_the_last_of_the_budget_can_be_spent_exactly(make: Callable[..., Ledger]) -> None:
    ledger = make(0.3)
    for _ in range(3):
        spend(ledger, pure(0.1))  # in binary floats the sum would be 0.30000000000000004
    assert ledger.remaining == Loss.zero()
    with pytest.raises(BudgetExceededError, match="used up for good"):
        spend(ledger, pure(Fraction(1, 10**30)))


def test_unbounded_loss_needs_a_ledger_without_limit(make: Callable[..., Ledger]) -> None:
    with pytest.raises(BudgetExceededError, match="requested unbounded"):
        spend(make(1), Loss.unbounded())


def test_a_cancelled_unbounded_loss_leaves_no_trace(make: Callable[..., Ledger]) -> None:
    ledger = make()
    spend(ledger, pure(1))
    spend(ledger, Loss.unbounded()).cancel()
    assert ledger.spent == pure(1)
    assert ledger.remaining is None
    ledger.verify()


def test_a_reservation_is_settled_once(make: Callable[..., Ledger]) -> None:
    ledger = make(1)
    done = spend(ledger, pure(0.1))
    done.commit()
    for again in (done.commit, done.cancel):
        with pytest.raises(LedgerError, match="is committed: only a reserved one"):
            again()
    dropped = spend(ledger, pure(0.1))
    dropped.cancel()
    for again in (dropped.commit, dropped.cancel):
        with pytest.raises(LedgerError, match="is cancelled: only a reserved one"):
            again()
    for nothing in (1, 99):  # 1 is the event that opened the ledger
        with pytest.raises(LedgerError, match="only a reserved one"):
            Reservation(ledger, nothing).cancel()


def test_a_spend_cannot_be_negative_or_undefined(make: Callable[..., Ledger]) -> None:
    ledger = make(1)
    with pytest.raises(VeilwoodError, match="negative"):
        spend(ledger, Loss(Fraction(1, 2), rho=Fraction(-5)))
    with pytest.raises(VeilwoodError):
        spend(ledger, Loss(float("nan")))  # type: ignore[arg-type]
    assert ledger.entries() == []


def test_one_budget_protects_one_kind_of_neighbours(make: Callable[..., Ledger]) -> None:
    ledger = make(1)
    spend(ledger, pure(0.1), "any 3 rows, replaced").cancel()
    spend(ledger, pure(0.1))
    with pytest.raises(LedgerError, match=r"any 3 rows, replaced.*another ledger"):
        spend(ledger, pure(0.1), "any 3 rows, replaced")
    assert ledger.spent == pure(0.1)
    ledger.verify()


def test_pure_and_concentrated_losses_compose_through_loss(make: Callable[..., Ledger]) -> None:
    ledger = make(1, 1e-6)
    part = Loss.zcdp(Fraction(requested_loss(1, 1e-6).rho or 0) / 9, exact_fraction(1e-6))
    losses = [part] * 8
    for loss in losses:
        spend(ledger, loss)
    # Plain sums would be at 8e-6 in delta and nearly 3 in epsilon; zCDP has room for one more, not for two.
    assert ledger.spent == sum(losses, start=Loss.zero())
    left = ledger.remaining
    assert left is not None
    assert left.rho == pytest.approx(part.rho)
    assert ledger.can_afford(Loss(None, rho=left.rho * Fraction(999, 1000)))  # type: ignore[operator]
    with pytest.raises(BudgetExceededError, match=r"\(of epsilon=1, delta=1e-06\)"):
        spend(ledger, part + part)
    mixed = make(1, 1e-6) if isinstance(ledger, MemoryLedger) else MemoryLedger(1, 1e-6)
    spend(mixed, pure(0.3))
    spend(mixed, requested_loss(0.5, 1e-6))
    assert mixed.spent == pure(0.3) + requested_loss(0.5, 1e-6)
    assert mixed.remaining == Loss(Fraction(2, 10), Fraction(0))


losses = st.one_of(
    st.fractions(0, 1, max_denominator=1000).map(Loss.pure),
    st.fractions(0, 1, max_denominator=50).map(Loss),
    st.tuples(st.integers(1, 50), st.integers(5, 9)).map(
        lambda p: Loss.zcdp(Fraction(p[0], 5000), Fraction(1, 10 ** p[1]))
    ),
    st.just(Loss.unbounded()),
)


steps = st.lists(st.tuples(st.sampled_from(["reserve", "commit", "cancel"]), losses, st.integers(0, 9)), max_size=15)


@settings(max_examples=150, deadline=None)
@given(steps=steps, budget=st.sampled_from([None, (1, 0), (2, 1e-6)]))
def test_spent_is_the_sum_of_what_was_not_cancelled(
    steps: list[tuple[str, Loss, int]], budget: tuple[int, float] | None
) -> None:
    ledger = MemoryLedger(*(budget or ()))
    live: list[tuple[Reservation, Loss]] = []
    settled: set[int] = set()
    for action, loss, which in steps:
        if action == "reserve":
            try:
                live.append((spend(ledger, loss), loss))
            except BudgetExceededError:
                assert not ledger.can_afford(loss)
        elif live:
            reservation, _ = live[which % len(live)]
            if reservation.id in settled:
                with pytest.raises(LedgerError):
                    reservation.cancel()
                continue
            getattr(reservation, action)()
            settled.add(reservation.id)
            if action == "cancel":
                live = [pair for pair in live if pair[0] is not reservation]
    assert ledger.spent == sum((loss for _, loss in live), start=Loss.zero())
    if ledger.budget is not None:
        assert ledger.spent.is_within(ledger.budget)
        assert ledger.remaining is not None
    ledger.verify()
