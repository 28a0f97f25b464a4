# SPDX-License-Identifier: Apache-2.0
"""In which ledgers a role writes a training down: its own, and narrower ones that limit one task or one owner.

When a training is charged is decided in ``training`` at a server and in ``client`` at an owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from veilwood.privacy.ledger import Entry, Ledger, Reservation, SQLiteLedger
from veilwood.secure.roles.config import Task
from veilwood.secure.roles.program import Program

__all__ = ["BUDGETS", "Books", "own_ledger"]

BUDGETS: Final = "budgets"
"""The folder of a role in which ``task-NAME.db`` and ``owner-NAME.db`` limit one task, or one owner."""


def own_ledger(folder: Path) -> SQLiteLedger:
    """Return the ledger of a role; one without a limit is made if it is not there."""
    return SQLiteLedger(folder / "ledger.db")


class Books:
    """The ledgers in which one task is written down by one role.

    Parameters
    ----------
    folder : Path
        Of the role.
    program : Program
        Of the task.
    ledger : Ledger
        The role's own, in which all of its tasks stand.
    owners : sequence of str
        Whose budgets this role keeps too: at a server, those of the task's owners.

    Notes
    -----
    Guarantee

    A training is charged in all of them or none, before anything of it is opened, and once for a key; what is refused
    by one is not done (proofs/secure-crash.md, attacked by tests/secure/roles/test_budgets.py).
    """

    def __init__(self, folder: Path, program: Program, ledger: Ledger, owners: Sequence[str] = ()) -> None:
        self._program, self._own = program, ledger
        names = [f"task-{program.task.name}", *(f"owner-{owner}" for owner in owners)]
        self._places = [folder / BUDGETS / f"{name}.db" for name in names]

    @property
    def narrower(self) -> list[Ledger]:
        """Those that there are now, beside the role's own."""
        return [SQLiteLedger(place) for place in self._places if place.exists()]

    def reserve(self, key: str) -> Reservation:
        """Charge a training in all ledgers, the role's own last, and return that spend."""
        program, made = self._program, []
        try:
            for ledger in [*self.narrower, self._own]:
                made.append(
                    ledger.reserve(
                        program.plan.loss,
                        what=what(program.task),
                        neighbours=str(program.plan.neighbours),
                        plan=program.plan.fingerprint(),
                        not_private=program.not_private,
                        key=key,
                    )
                )
        except BaseException:
            for spend in made:
                if spend.is_new:
                    spend.cancel()
            raise
        return made[-1]

    def commit(self, key: str) -> None:
        """Record that something was opened."""
        for ledger, entry in self._reserved(key):
            Reservation(ledger, entry.id).commit()

    def cancel(self, key: str) -> None:
        """Take a charge back of which nothing was opened."""
        for ledger, entry in self._reserved(key):
            Reservation(ledger, entry.id).cancel()

    def _reserved(self, key: str) -> list[tuple[Ledger, Entry]]:
        """What is not settled yet, in the role's own ledger first: what it lacks, no other needs."""
        found = [(ledger, ledger.find(key)) for ledger in [self._own, *self.narrower]]
        return [(ledger, entry) for ledger, entry in found if entry is not None and entry.state == "reserved"]

    def open_keys(self) -> list[str]:
        """Return the keys of this task's charges that are not settled in the role's own ledger."""
        return [entry.key for entry in self.entries() if entry.state == "reserved"]

    def entries(self) -> list[Entry]:
        """Return what the role's own ledger has about this task."""
        return [entry for entry in self._own.entries() if entry.what.startswith(what(self._program.task))]

    def drop_halves(self) -> None:
        """Take back what a crash left in narrower ledgers and not in the role's own, which comes last."""
        known = {entry.key for entry in self.entries() if entry.counts}
        for ledger in self.narrower:
            for entry in ledger.entries():
                ours = entry.state == "reserved" and entry.what.startswith(what(self._program.task))
                if ours and entry.key not in known:
                    Reservation(ledger, entry.id).cancel()


def what(task: Task) -> str:
    """Return how a training stands in a ledger."""
    return f"secure training of {task.name} ({task.fingerprint()[:12]})"
