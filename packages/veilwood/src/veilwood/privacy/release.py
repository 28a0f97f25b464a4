# SPDX-License-Identifier: Apache-2.0
"""Workflow of a release: check the budget, open the rows, reserve the loss, measure, commit, certify.

Fits, evaluations, searches, discoveries and batches of answers all release through ``Release``, which fixes the order
in one place. The module is below ``data``, because a discovery of a schema is a release too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from veilwood.errors import OutOfSchemaError, UnreadableError
from veilwood.privacy.accountant import handle_of
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.door import Door
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.loss import Loss
from veilwood.privacy.plan import Plan

Opened = TypeVar("Opened")
Released = TypeVar("Released")


class Release:
    """Single release about one table, through one release door.

    Parameters
    ----------
    door : Door
        Holds the plan and the ledger. It is entered once.
    extra_loss : Loss, optional
        Loss that the caller will charge afterwards. It must be affordable together with the plan.

    Examples
    --------
    >>> import numpy as np
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> plan = vw.RandomTreesClassifier(car.schema, n_estimators=1, max_depth=1, random_state=0).plan()
    >>> (step,) = plan.steps
    >>> release = Release.for_plan(plan, None, car.X)
    >>> rows = release.open_rows(lambda: np.zeros(step.shape, np.int64))
    >>> release.measure(lambda door: door.release_counts(step, rows)).shape == step.shape
    True
    >>> release.certificate().epsilon
    1.0
    """

    def __init__(self, door: Door, *, extra_loss: Loss | None = None) -> None:
        self.door = door
        self._extra_loss = extra_loss

    @classmethod
    def for_plan(cls, plan: Plan, ledger: Ledger | None, X: Any, *, not_private: str | None = None) -> Release:
        """Return the release of a plan about the table ``X``, of which only a public handle is kept."""
        return cls(Door(plan, ledger, not_private=not_private, table=handle_of(X)))

    def check_affordable(self) -> None:
        """Raise BudgetExceededError if the loss exceeds the remaining budget. Called before any row is read."""
        loss = self.door.plan.loss
        if loss.is_bounded:
            self.door.ledger.check_affordable(loss if self._extra_loss is None else loss + self._extra_loss)

    def open_rows(self, open_rows: Callable[[], Opened]) -> Opened:
        """Open the rows if the loss is affordable. If the rows are rejected, record the rejection in the ledger.

        A rejection reveals something about the rows without a charge, so it is recorded as a cancelled entry. Without a
        ledger, nothing is recorded.
        """
        self.check_affordable()
        if self.door.ledger.durability == "not":
            return open_rows()
        try:
            return open_rows()
        except OutOfSchemaError:
            with self.door:
                raise
        except UnreadableError as error:
            with suppress(OutOfSchemaError), self.door:
                raise OutOfSchemaError(str(error)) from None
            raise

    def measure(self, measure: Callable[[Door], Released]) -> Released:
        """Reserve the loss, measure through the door and commit. Return the released values."""
        with self.door:
            return measure(self.door)

    def certificate(self) -> PrivacyCertificate:
        """Return the certificate of the finished release."""
        return self.door.certificate()
