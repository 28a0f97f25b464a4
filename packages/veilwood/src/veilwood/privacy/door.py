# SPDX-License-Identifier: Apache-2.0
"""The door: the only place where noise meets private values and where the ledger is charged.

Everything private goes through the few lines of ``Door``; what it hands out is public.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import NoReturn, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from veilwood.errors import OutOfSchemaError, PlanError, UnreadableError, UseError
from veilwood.privacy import accountant as spending
from veilwood.privacy import entropy
from veilwood.privacy.accountant import UNNAMED_DATA, DataHandle, SpendRecord
from veilwood.privacy.certificate import PrivacyCertificate, ServerParticipation, Spend, build_certificate
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.ledger import NO_LEDGER, Ledger, Reservation
from veilwood.privacy.loss import Loss
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, SparseLaplace, ThresholdedGaussian
from veilwood.privacy.plan import Plan
from veilwood.privacy.selection import RandomStopping, TrialBudget
from veilwood.privacy.steps import Noise, Step

SEEDED_NOISE = "the noise came from a seeded test stream, so anyone with the seed can remove it"
INFINITE_EPSILON = "epsilon is infinite: no noise was added"
INFERRED_SCHEMA = "the schema was inferred from the data itself"

Outcome = TypeVar("Outcome")


class Door:
    """Carry out a plan: reserve its loss, take exact numbers in, hand noisy numbers out, commit.

    Used as a context. On entry the whole loss is reserved, or ``BudgetExceededError`` is raised and nothing has
    happened. Each step of the plan passes once. On a regular exit the reservation is committed. If anything goes
    wrong, what was reserved stays spent, with one exception: input refused (``OutOfSchemaError``) before the first
    noise was drawn, when nothing can have been released. Without a ledger nothing is kept, and the certificate says so.

    Notes
    -----
    Guarantee

    What is released costs at most the plan's loss, and that loss stands in the ledger before any of it can be seen
    (proofs/door.md, attacked by packages/veilwood/tests/guarantees/test_door.py).
    """

    supports_joint_noise: bool = True  # tables of one step can get their noise together (``joint_noise``)
    parallel_release_done: bool = False  # one release on other units, at no further cost (``covered``)
    _participation: ServerParticipation | None = None  # how servers take part, where a door asks them for noise

    def __init__(
        self, plan: Plan, ledger: Ledger | None, *, not_private: str | None = None, table: DataHandle = UNNAMED_DATA
    ) -> None:
        self.plan = plan
        self._ledger = NO_LEDGER if ledger is None else ledger
        self._table = table
        self._released_steps: set[str] = set()
        self._reasons = [reason for reason in (not_private,) if reason]
        if any(step.mechanism is None for step in plan.steps):
            self._reasons.append(INFINITE_EPSILON)
        self._reservation: Reservation | None = None
        self._closed = False

    def __enter__(self) -> Self:
        if entropy.require_entropy():  # while nothing is spent
            self._reasons.append(SEEDED_NOISE)
        self._reservation = self._reserve_loss()
        loss = Loss.unbounded() if self._reasons else self.plan.loss
        self._spend_record = SpendRecord(self._table, loss, self._ledger.durability != "not")
        spending.record_spend(self._spend_record)
        return self

    @property
    def _not_private_reason(self) -> str | None:
        """Why the release is not private; None if it is."""
        return "; ".join(self._reasons) or None

    def _reserve_loss(self) -> Reservation:
        """Write the loss into the ledger, or be refused."""
        return self._ledger.reserve(
            self.plan.loss,
            what=f"{self.plan.estimator} on {self.plan.schema_name}: {self.plan.released}",
            neighbours=str(self.plan.neighbours),
            plan=self.plan.fingerprint(),
            not_private=self._not_private_reason,
            table=self._table.short_name,
            schema=self.plan.schema_hash,
        )

    def __reduce__(self) -> NoReturn:
        raise UseError("a door cannot be copied: each copy would let the same budget out once more.")

    def refine(self, plan: Plan) -> None:
        """Go on under a plan that was made from what has been released so far.

        It must promise the same loss to the same people and hold every step that has passed, so that all steps together
        cost no more than what was reserved: adaptive composition (proofs/door.md). It remembers under which plan the
        door was opened, and the certificate shows both.
        """
        kept = {step.name for step in plan.steps if step in self.plan.steps}
        if self._closed or self._reservation is None or not self._released_steps <= kept:
            raise PlanError("a refined plan must hold every step that has passed the open door.")
        if (plan.loss, plan.neighbours) != (self.plan.loss, self.plan.neighbours):
            raise PlanError(f"a refined plan must promise {self.plan.loss} for {self.plan.neighbours}.")
        self.plan = replace(plan, opened_as=self.plan.opened_as or self.plan.fingerprint())

    def extend(self, step: Step) -> None:
        """Plan one more step, from what has been released so far; all steps together cost no more than was reserved."""
        if self._closed or self._reservation is None:
            raise UseError("a plan is extended inside the open door.")
        if not self._released_steps <= {planned.name for planned in self.plan.steps}:
            raise PlanError("a plan that is extended must hold every step that has passed.")
        self.plan = self.plan.refined(steps=(*self.plan.steps, step))  # refused if it costs more than it promises

    def release_counts(self, step: Step, exact: NDArray[np.int64]) -> NDArray[np.int64]:
        """Add the planned noise to exact integers and release them."""
        self._admit(step, exact.shape)
        if step.mechanism is None:
            return exact.copy()
        if not isinstance(step.mechanism, DiscreteLaplace | DiscreteGaussian | JointLaplace):
            raise UseError(f"step {step.name!r} does not add noise to every number: call select or sparse.")
        return step.mechanism.perturb(exact)

    def release_sparse(
        self, step: Step, cells: NDArray[np.int64], counts: NDArray[np.int64], n_cells: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Add the planned noise to the counts of ``n_cells`` cells, given those that are not empty, and release them.

        Released are the cells with a positive noisy count. There may be fewer cells than planned: how many, and
        what they are, must follow from what has been released before.
        """
        if not 0 < n_cells <= step.shape[0]:
            raise PlanError(f"step {step.name!r} was planned for at most {step.shape[0]} cells, got {n_cells}.")
        self._admit(step, step.shape)
        if step.mechanism is None:
            order = np.argsort(cells)
            return cells[order], counts[order]
        if not isinstance(step.mechanism, SparseLaplace):
            raise UseError(f"step {step.name!r} is not about cells of which nearly all are empty.")
        return step.mechanism.perturb(cells, counts, n_cells)

    def release_above_threshold(
        self, step: Step, counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Add the planned noise to the counts of things, and release the places of those that stand out.

        How many things there are, and which, is private: whoever calls this shows the released ones, in an order that
        does not depend on the others.
        """
        self._admit(step, step.shape)
        if step.mechanism is None:
            return np.arange(len(counts), dtype=np.int64), counts.copy()
        if not isinstance(step.mechanism, ThresholdedGaussian):
            raise UseError(f"step {step.name!r} is not about things that are not known before.")
        return step.mechanism.perturb(counts)

    def select(
        self, step: Step, scores: NDArray[np.int64], admissible: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """Choose one column for each row of exact scores, by the planned mechanism, and release the choices.

        There may be fewer rows than planned (a level of a tree has as many nodes as the levels above it left open);
        ``admissible`` marks the columns that may be chosen and must not depend on the data.
        """
        if scores.ndim != 2 or len(scores) > step.shape[0]:
            raise PlanError(f"step {step.name!r} was planned for at most {step.shape[0]} choices, got {scores.shape}.")
        self._admit(step, (step.shape[0], scores.shape[1]))
        if step.mechanism is None:
            allowed = np.broadcast_to(True if admissible is None else admissible, scores.shape)
            return np.asarray(np.where(allowed, scores, np.iinfo(np.int64).min).argmax(axis=1), np.int64)
        if isinstance(step.mechanism, Noise | RandomStopping):
            raise UseError(f"step {step.name!r} adds noise: call noisy or sparse.")
        return step.mechanism.select(scores, admissible)

    def release_best_trial(
        self, step: Step, trial: Callable[[TrialBudget], Outcome], is_better: Callable[[Outcome, Outcome], bool]
    ) -> Outcome:
        """Run private trials a random number of times, and release the best outcome only.

        Each trial is given what it may cost, the mechanism's ``trial_epsilon`` for this plan's neighbours, and opens
        a ``TrialDoor`` on it for everything that it releases.
        """
        self._admit(step, step.shape)
        if not isinstance(step.mechanism, RandomStopping):
            raise UseError(f"step {step.name!r} is no search.")
        charged = Loss.pure(step.mechanism.trial_epsilon)
        return step.mechanism.run_trials(lambda: trial(TrialBudget(charged, self.plan.neighbours)), is_better)

    def _admit(self, step: Step, shape: tuple[int, ...]) -> None:
        """Check that this is a step of the plan, for the first time, with the planned shape."""
        if self._reservation is None or self._closed:
            raise UseError("the door is closed: use it as a context, inside one `with` block.")
        if step not in self.plan.steps or step.name in self._released_steps:
            raise PlanError(f"step {step.name!r} is not in the plan, or has passed already.")
        if shape != step.shape:
            raise PlanError(f"step {step.name!r} was planned for shape {step.shape}, got {shape}.")
        if step.mechanism is None and INFINITE_EPSILON not in self._reasons:
            raise PlanError(f"step {step.name!r} has no noise, and this release promises privacy.")
        if entropy.is_seeded() and SEEDED_NOISE not in self._reasons:
            raise UseError("seeded noise was switched on inside a release. Hint: open the test context first.")
        self._released_steps.add(step.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        if self._reservation is None:
            return
        if error is None:
            self._reservation.commit()
        elif isinstance(error, OutOfSchemaError) and not self._released_steps:
            self._reservation.cancel(error.in_short())
            spending.withdraw_spend(self._spend_record)
            error.add_note("Nothing was spent.")
        else:
            error.add_note(f"{self.plan.loss} counts as spent ({self._ledger.name}).")

    def certificate(self) -> PrivacyCertificate:
        """Return the certificate of a finished release, with the loss that stands in the ledger."""
        if self._reservation is None or not self._closed:
            raise UseError("a release has a statement once it is finished.")
        ledger = self._ledger
        if ledger.durability == "not":
            spend = Spend(ledger.name, self._reservation.id, self.plan.loss, "not", self._not_private_reason)
        else:
            entry = ledger.entry(self._reservation.id)
            spend = Spend(ledger.name, entry.id, entry.loss, ledger.durability, entry.not_private, entry.plan)
        return build_certificate(self.plan, spend, self._participation)


@contextmanager
def record_rejection(door: Callable[[], Door]) -> Iterator[None]:
    """Write into the ledger that rows were refused, or could not be read, before a door was opened.

    It tells something for nothing, so it must not go unseen. The entry is a cancelled one.
    """
    try:
        yield
    except OutOfSchemaError:
        with door():
            raise
    except UnreadableError as error:
        with suppress(OutOfSchemaError), door():
            raise OutOfSchemaError(str(error)) from None
        raise


class UnchargedDoor(Door):
    """A door whose loss was reserved elsewhere: it charges nothing, and closing it leaves the ledger as it is."""

    def __enter__(self) -> Self:
        self._check_entropy()
        self._reservation = Reservation(self._ledger, 0)
        return self

    def _check_entropy(self) -> None:
        """Refuse bits that are not random; say where they are seeded."""
        if entropy.require_entropy() and SEEDED_NOISE not in self._reasons:
            self._reasons.append(SEEDED_NOISE)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True

    def certificate(self) -> PrivacyCertificate:
        """Refuse: whoever reserved the loss certifies it."""
        raise UseError("what was reserved elsewhere has no certificate of its own here.")


class TrialDoor(UnchargedDoor):
    """The door of a trial inside a search: its loss is a part of what the search has reserved.

    It leaves no trace: how many trials there were must stay secret (proofs/private-search.md). A plan for other
    neighbours than the search's, or that costs more than is left of what the search has charged for a trial, is refused
    before the door opens. ``aside`` says that the release is of the units that the trial has set aside.
    """

    def __init__(self, plan: Plan, charged: TrialBudget, *, aside: bool = False) -> None:
        charged.take(plan.loss, plan.neighbours, aside=aside)
        super().__init__(plan, None)

    def certificate(self) -> NoReturn:
        """Refuse: what a trial releases may not be shown, so that nothing is certified about it."""
        raise UseError("a trial of a search has no certificate of its own: the search has.")


def parallel_loss(loss: Loss) -> Loss:
    """Return what a second release may cost: where it was left open how the first one's steps add up, its epsilon.

    That is within both bounds of the first, epsilon with delta and rho.
    """
    return Loss.pure(loss.epsilon) if loss.accounting_open and loss.epsilon is not None else loss


class ParallelDoor(UnchargedDoor):
    """The second of two releases on disjoint parts of the units, drawn by a secret key.

    The first has reserved its loss itself and is finished. Under add-remove a unit is in one of the parts, so that both
    cost the larger loss; this one costs the same as the first. One release covers one other, no more. Other neighbours,
    another loss and units that may be in both parts are refused before anything is counted.

    Notes
    -----
    Guarantee

    Both releases together cost the loss that the ledger holds for the first (proofs/evaluation.md, attacked by
    packages/veilwood/tests/evaluation/test_aside.py).
    """

    def __init__(self, plan: Plan, first: Door) -> None:
        super().__init__(plan, first._ledger, table=first._table)
        self._reasons = list(dict.fromkeys([*first._reasons, *self._reasons]))
        self._first = first

    def __enter__(self) -> Self:
        first = self._first
        if (
            first._reservation is None
            or not first._closed
            or first.parallel_release_done
            or isinstance(first, UnchargedDoor)
        ):
            raise UseError("a release that was charged covers one other, after it is finished.")
        if not first.plan.neighbours.in_one_part:
            raise UseError(f"two releases add up where {first.plan.neighbours} are protected: none covers another.")
        if first.plan.neighbours != self.plan.neighbours or parallel_loss(first.plan.loss) != self.plan.loss:
            raise UseError(f"{self.plan.loss} is not covered by {first.plan.loss} for {first.plan.neighbours}.")
        self._check_entropy()
        first.parallel_release_done = True
        self._reservation = first._reservation
        return self

    def certificate(self) -> PrivacyCertificate:
        """Return the certificate of this release; its entry is that of the first."""
        if self._reservation is None or not self._closed:
            raise UseError("a release has a statement once it is finished.")
        ledger = self._ledger
        spend = Spend(ledger.name, self._reservation.id, self.plan.loss, ledger.durability, self._not_private_reason)
        return build_certificate(self.plan, spend)
