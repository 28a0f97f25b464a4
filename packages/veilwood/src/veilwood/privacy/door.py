# SPDX-License-Identifier: Apache-2.0
"""The release door: the only code that applies mechanisms to private values and charges the ledger.

Every private value passes through the few lines of ``Door``; the values that it returns are public.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from veilwood.errors import LedgerError, OutOfSchemaError, PlanError, UseError
from veilwood.privacy import accountant as spending
from veilwood.privacy import entropy
from veilwood.privacy.accountant import UNNAMED_DATA, DataHandle, SpendRecord
from veilwood.privacy.certificate import PrivacyCertificate, ServerParticipation, Spend, build_certificate
from veilwood.privacy.ledger import NO_LEDGER, Ledger, Reservation
from veilwood.privacy.loss import Loss
from veilwood.privacy.noise import Verb
from veilwood.privacy.plan import Plan
from veilwood.privacy.selection import TrialBudget
from veilwood.privacy.steps import Step

SEEDED_NOISE = "the noise came from a seeded test stream, so anyone with the seed can remove it"
INFINITE_EPSILON = "epsilon is infinite: no noise was added"
INFERRED_SCHEMA = "the schema was inferred from the data itself"

_METHODS: Final[dict[Verb, str]] = {
    "noisy": "release_counts", "sparse": "release_sparse", "above_threshold": "release_above_threshold",
    "select": "select", "best": "release_best_trial",
}  # fmt: skip


Outcome = TypeVar("Outcome")


@dataclass(frozen=True, eq=False)
class Measurement:
    """Values that the door released for one step: counts, selections, or cells with their counts. Public."""

    step: str
    values: tuple[NDArray[np.int64], ...]


class Door:
    """Release door: reserves the loss of a plan, releases noisy values and commits the charge.

    Use as a context manager. Entering reserves the loss of the whole plan, or raises ``BudgetExceededError`` without
    side effects. Each step can be released once. A regular exit commits the reservation. After an error the reserved
    loss stays spent, with one exception: the reservation is cancelled if input is rejected (``OutOfSchemaError``)
    before the first noise is drawn, because nothing can have been released. Without a ledger, no charge is recorded,
    and the certificate says so.

    Notes
    -----
    Guarantee

    The release costs at most the plan's loss, which is recorded in the ledger before any released value can be seen
    (proofs/door.md, attacked by packages/veilwood/tests/guarantees/test_door.py).
    """

    joint_noise_variance: float = 1.0  # as a multiple of the variance of ``JointLaplace``: servers deal two draws
    parallel_release_done: bool = False  # whether a ``ParallelDoor`` has used this release
    _participation: ServerParticipation | None = None  # of servers that draw the noise

    def __init__(
        self, plan: Plan, ledger: Ledger | None, *, not_private: str | None = None, table: DataHandle = UNNAMED_DATA
    ) -> None:
        self.plan = plan
        self.ledger = NO_LEDGER if ledger is None else ledger
        self.table = table
        self.measurements: list[Measurement] = []  # in the order of their release
        self._released_steps: set[str] = set()
        self._reasons = [reason for reason in (not_private,) if reason]
        if any(step.mechanism is None for step in plan.steps):
            self._reasons.append(INFINITE_EPSILON)
        self._reservation: Reservation | None = None
        self._closed = False

    def __enter__(self) -> Self:
        self._check_entropy()  # before anything is spent
        self._reservation = self._reserve_loss()
        loss = Loss.unbounded() if self._reasons else self._charged_loss
        self._spend_record = SpendRecord(self.table, loss, self.ledger.durability != "not", self._opened_as)
        spending.record_spend(self._spend_record)
        return self

    def _check_entropy(self) -> None:
        """Raise SetupError without an entropy source. If the source is seeded, mark the release as not private."""
        if entropy.require_entropy() and SEEDED_NOISE not in self._reasons:
            self._reasons.append(SEEDED_NOISE)

    @property
    def _not_private_reason(self) -> str | None:
        """Why the release is not private; None if it is."""
        return "; ".join(self._reasons) or None

    @property
    def _charged_loss(self) -> Loss:
        """The loss that this door charges."""
        return self.plan.loss

    def _reserve_loss(self, key: str = "") -> Reservation:
        """Reserve the loss in the ledger. Raise BudgetExceededError if it exceeds the remaining budget."""
        return self.ledger.reserve(
            self._charged_loss,
            what=f"{self.plan.estimator} on {self.plan.schema_name}: {self.plan.released}",
            neighbours=str(self.plan.neighbours),
            plan=self.plan.fingerprint(),
            not_private=self._not_private_reason,
            table=self.table.short_name,
            schema=self.plan.schema_hash,
            key=key,
        )

    def __reduce__(self) -> NoReturn:
        raise UseError("a Door cannot be copied or pickled: each copy could spend the same budget again.")

    def refine(self, plan: Plan) -> None:
        """Replace the plan by one derived from values already released.

        The new plan must promise the same loss for the same neighbours and contain every released step, so that all
        steps together cost no more than was reserved: adaptive composition (proofs/door.md). It records which plan
        opened the door, and the certificate shows both plans.

        Raises
        ------
        PlanError
            If the door is not open, or the plan does not meet these conditions.
        """
        self._adopt_plan(replace(plan, opened_as=self._opened_as))

    def extend(self, step: Step) -> None:
        """Add one step to the plan, derived from values already released.

        Raises
        ------
        UseError
            If the door is not open.
        PlanError
            If all steps together cost more than was reserved.
        """
        if self._closed or self._reservation is None:
            raise UseError("a plan can be extended only inside the open door. Hint: use the door's `with` block.")
        self.plan = self.plan.with_step(step, self._opened_as)

    @property
    def _opened_as(self) -> str:
        """Fingerprint of the plan that opened the door."""
        return self.plan.opened_as or self.plan.fingerprint()

    def _adopt_plan(self, plan: Plan) -> None:
        """Check and adopt a plan derived from released values. The plan itself has checked the loss of its steps."""
        old, new = ({step.name: step for step in each.steps} for each in (self.plan, plan))
        are_kept = all(name in old and new.get(name) == old[name] for name in self._released_steps)
        if self._closed or self._reservation is None or not are_kept:
            raise PlanError("a refined plan must contain every step that the open door has released.")
        if (plan.loss, plan.neighbours) != (self.plan.loss, self.plan.neighbours):
            raise PlanError(f"a refined plan must promise {self.plan.loss} for {self.plan.neighbours}.")
        self.plan = plan

    def release_counts(self, step: Step, exact: NDArray[np.int64]) -> NDArray[np.int64]:
        """Add the planned noise to exact integers and release them."""
        self._admit_step(step, exact.shape)
        mechanism = self._mechanism_of(step, "noisy")
        return self._record_released(step, exact.copy() if mechanism is None else mechanism.perturb(exact))[0]

    def release_sparse(
        self, step: Step, cells: NDArray[np.int64], counts: NDArray[np.int64], n_cells: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Add the planned noise to the counts of ``n_cells`` cells, given the non-empty ones, and release them.

        Only cells with a positive noisy count are released. There may be fewer cells than planned; their number and
        meaning must follow from values already released.
        """
        if not 0 < n_cells <= step.shape[0]:
            raise PlanError(f"step {step.name!r} was planned for at most {step.shape[0]} cells, got {n_cells}.")
        self._admit_step(step, step.shape)
        mechanism = self._mechanism_of(step, "sparse")
        if mechanism is None:
            order = np.argsort(cells)
            return self._record_released(step, cells[order], counts[order])  # type: ignore[return-value]
        return self._record_released(step, *mechanism.perturb(cells, counts, n_cells))  # type: ignore[return-value]

    def release_above_threshold(
        self, step: Step, counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Add the planned noise to the counts of keys, and release the indices of the keys above the threshold.

        The keys and their number are private: the caller must show only the released keys, in an order that does not
        depend on the other keys.
        """
        self._admit_step(step, step.shape)
        mechanism = self._mechanism_of(step, "above_threshold")
        if mechanism is None:
            return self._record_released(step, np.arange(len(counts), dtype=np.int64), counts.copy())  # type: ignore[return-value]
        return self._record_released(step, *mechanism.perturb(counts))  # type: ignore[return-value]

    def select(
        self, step: Step, scores: NDArray[np.int64], admissible: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """Select one column per row of exact scores by the planned mechanism, and release the selections.

        There may be fewer rows than planned: the number of nodes on a level of a tree depends on the levels above.
        ``admissible`` marks the columns that may be selected, and must not depend on the data.
        """
        if scores.ndim != 2 or len(scores) > step.shape[0]:
            raise PlanError(
                f"step {step.name!r} was planned for at most {step.shape[0]} selections, got scores of {scores.shape}."
            )
        self._admit_step(step, (step.shape[0], scores.shape[1]))
        mechanism = self._mechanism_of(step, "select")
        if mechanism is None:
            allowed = np.broadcast_to(True if admissible is None else admissible, scores.shape)
            best = np.asarray(np.where(allowed, scores, np.iinfo(np.int64).min).argmax(axis=1), np.int64)
            return self._record_released(step, best)[0]
        return self._record_released(step, mechanism.select(scores, admissible))[0]

    def release_best_trial(
        self, step: Step, trial: Callable[[TrialBudget], Outcome], is_better: Callable[[Outcome, Outcome], bool]
    ) -> Outcome:
        """Run private trials a random number of times, and release the best outcome only.

        Each trial gets a budget of the mechanism's ``trial_epsilon`` for this plan's neighbours, and uses a
        ``TrialDoor`` with this budget for all of its releases.
        """
        self._admit_step(step, step.shape)
        mechanism = self._mechanism_of(step, "best")
        if mechanism is None:
            raise UseError(
                f"step {step.name!r} has no mechanism, which a search with a random number of trials requires."
            )
        charged = Loss.pure(mechanism.trial_epsilon)
        best: Outcome = mechanism.run_trials(lambda: trial(TrialBudget(charged, self.plan.neighbours)), is_better)
        return best

    def _record_released(self, step: Step, *values: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """Record released values, which are public from now on, and return them."""
        # Copied, because methods may change the returned arrays in place.
        self.measurements.append(Measurement(step.name, tuple(np.array(each, np.int64) for each in values)))
        return values

    def _mechanism_of(self, step: Step, verb: Verb) -> Any:
        """Return the step's mechanism, or None without noise. Raise UseError if another method releases the step."""
        if step.mechanism is not None and step.mechanism.verb != verb:
            method = _METHODS[step.mechanism.verb]
            raise UseError(f"step {step.name!r} has the mechanism {step.mechanism.kind}. Hint: call {method}.")
        return step.mechanism

    def _admit_step(self, step: Step, shape: tuple[int, ...]) -> None:
        """Raise PlanError unless the step is planned with this shape and not yet released. Mark it as released."""
        if self._reservation is None or self._closed:
            raise UseError("the door is closed. Hint: release steps inside one `with` block.")
        if not self.plan.has_step(step) or step.name in self._released_steps:
            raise PlanError(f"step {step.name!r} is not in the plan, or was already released.")
        if shape != step.shape:
            raise PlanError(f"step {step.name!r} was planned for shape {step.shape}, got {shape}.")
        if step.mechanism is None and INFINITE_EPSILON not in self._reasons:
            raise PlanError(f"step {step.name!r} has no noise, but this release promises privacy.")
        if entropy.is_seeded() and SEEDED_NOISE not in self._reasons:
            raise UseError("seeded noise was switched on inside a release. Hint: enter the test context first.")
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
            spending.record_spend(self._spend_record, -1)
            error.add_note("Nothing was spent.")
        else:
            error.add_note(f"{self.plan.loss} counts as spent ({self.ledger.name}).")

    def certificate(self) -> PrivacyCertificate:
        """Return the certificate of a finished release, with the loss that the ledger recorded."""
        ledger, reservation = self.ledger, self._finished_reservation()
        if ledger.durability == "not":
            spend = Spend(ledger.name, reservation.id, self.plan.loss, "not", self._not_private_reason)
        else:
            entry = ledger.entry(reservation.id)
            spend = Spend(ledger.name, entry.id, entry.loss, ledger.durability, entry.not_private, entry.plan)
        return build_certificate(self.plan, spend, self._participation)

    def _finished_reservation(self) -> Reservation:
        if self._reservation is None or not self._closed:
            raise UseError("a release has no certificate before it is finished. Hint: leave the `with` block first.")
        return self._reservation


class UnchargedDoor(Door):
    """Release door whose loss is reserved elsewhere. It does not charge or change a ledger."""

    def __enter__(self) -> Self:
        self._check_entropy()
        self._reservation = Reservation(self.ledger, 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True

    def certificate(self) -> PrivacyCertificate:
        """Raise UseError: the holder of the reservation certifies the release."""
        raise UseError("this door has no certificate: its loss is reserved, and certified, elsewhere.")


class TrialDoor(UnchargedDoor):
    """Release door of one trial of a search, whose loss is part of the loss that the search has reserved.

    It records nothing: the number of trials must stay secret (proofs/private-search.md). ``aside`` means that the
    release is about the units that the trial holds out. The constructor raises PlanError if the plan has different
    neighbours from the search, or costs more than remains of the loss charged for the trial.
    """

    def __init__(self, plan: Plan, charged: TrialBudget, *, aside: bool = False) -> None:
        charged.take(plan.loss, plan.neighbours, aside=aside)
        super().__init__(plan, None)

    def certificate(self) -> NoReturn:
        """Raise UseError: the releases of a trial must stay secret, so they have no certificate."""
        raise UseError("a trial has no certificate. Hint: use the certificate of its search.")


def parallel_loss(loss: Loss) -> Loss:
    """Return the loss that a parallel release on other units may have: ``loss``, or its epsilon if accounting is open.

    The result is within both bounds of the first release: epsilon with delta, and rho.
    """
    return Loss.pure(loss.epsilon) if loss.accounting_open and loss.epsilon is not None else loss


class ParallelDoor(UnchargedDoor):
    """Release door for parallel composition: a second release on disjoint units, covered by an existing ledger entry.

    A secret key has divided the units into two groups. The first release has reserved its own loss and is finished.
    Under add-remove, a unit is in only one group, so both releases together cost the larger of their losses, which are
    equal. A release can cover only one other release. Before any row is counted, entering raises UseError if the
    neighbours or losses differ, or if a unit may be in both groups.

    Notes
    -----
    Guarantee

    Both releases together cost the loss that the ledger holds for the first (proofs/evaluation.md, attacked by
    packages/veilwood/tests/evaluation/test_evaluate.py).
    """

    def __init__(self, plan: Plan, first: Door) -> None:
        super().__init__(plan, first.ledger, table=first.table)
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
            raise UseError(
                "the first release must be charged and finished, and must not have covered another release. "
                "Hint: charge this release separately."
            )
        if not first.plan.neighbours.in_one_part:
            raise UseError(
                f"parallel composition does not hold for {first.plan.neighbours}: a unit may be in both releases."
            )
        if first.plan.neighbours != self.plan.neighbours or parallel_loss(first.plan.loss) != self.plan.loss:
            raise UseError(
                f"a release with {self.plan.loss} for {self.plan.neighbours} is not covered by {first.plan.loss} "
                f"for {first.plan.neighbours}."
            )
        self._check_entropy()
        first.parallel_release_done = True
        self._reservation = first._reservation
        return self

    def certificate(self) -> PrivacyCertificate:
        """Return the certificate of this release, which names the ledger entry of the first release."""
        ledger, entry = self.ledger, self._finished_reservation().id
        spend = Spend(ledger.name, entry, self.plan.loss, ledger.durability, self._not_private_reason)
        return build_certificate(self.plan, spend)


class SeriesDoor(Door):
    """Door of one release of a series (``time_factors``), whose total loss is charged when the series is opened.

    Entering records an entry without a loss, under the key of this release. It raises LedgerError if an attempt has
    already used that key, so no period is measured twice. After an error before any noise was drawn, the entry is
    cancelled. After a later error or a crash, it stays reserved until the custodian resolves it.

    Notes
    -----
    Guarantee

    All releases of a series together cost the loss that is recorded in the ledger before the first of them
    (proofs/release-series.md, attacked by packages/veilwood/tests/test_series_attacks.py).
    """

    def __init__(self, plan: Plan, ledger: Ledger, key: str, *, table: DataHandle = UNNAMED_DATA) -> None:
        super().__init__(plan, ledger, table=table)
        self._key = key
        if self._reasons:
            raise UseError("a series of releases needs noise. Hint: set a finite epsilon.")

    @property
    def _charged_loss(self) -> Loss:
        return Loss.zero()

    @staticmethod
    def open_series(plan: Plan, ledger: Ledger, key: str, *, table: DataHandle = UNNAMED_DATA) -> Spend:
        """Charge the loss of a whole series, once per key."""
        door = Door(plan, ledger, table=table)
        door._check_entropy()
        reservation = door._reserve_loss(key)
        if reservation.is_new:
            spending.record_spend(SpendRecord(table, plan.loss, ledger.durability != "not"))
            reservation.commit()
        return Spend(ledger.name, reservation.id, plan.loss, ledger.durability, door._not_private_reason)

    def _reserve_loss(self, key: str = "") -> Reservation:
        reservation = super()._reserve_loss(self._key)
        if not reservation.is_new:
            self._reservation = None
            raise LedgerError(
                f"{self.ledger.name} already has entry {reservation.id} for this release, and no period is measured "
                "twice. Hint: if another process is running, wait for it. After a crash, resolve the entry; the series "
                "continues with the next release."
            )
        return reservation

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        if self._reservation is None:
            return
        if error is None:
            self._reservation.commit()
        elif not self._released_steps:
            self._reservation.cancel(error.in_short() if isinstance(error, OutOfSchemaError) else type(error).__name__)
            error.add_note("Nothing was measured.")
        else:
            error.add_note("This release counts as made: its period is not measured again.")

    def certificate(self) -> PrivacyCertificate:
        """Raise UseError: the series certifies its releases."""
        raise UseError("this door has no certificate. Hint: use the certificate of the series.")
