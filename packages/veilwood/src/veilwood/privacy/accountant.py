# SPDX-License-Identifier: Apache-2.0
"""Per-process record of privacy losses, by public handle of the data, and warnings about repeated fits.

This helps users without a ledger. It enforces no limit and records a lower bound only: rows are identified by their
path or by the object that holds them, never by their content. Releases on the same people under another handle, or in
another or earlier process, are not recorded. Budgets are in ``ledger``.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from veilwood.errors import PrivacyWarning, WeakGuaranteeWarning, redact_url, shorten_text
from veilwood.privacy.loss import Loss, guarantee_strength
from veilwood.privacy.neighbours import Unit, may_protect_less

_MAX_NAME_LENGTH: Final = 500  # characters of a handle


@dataclass(frozen=True)
class DataHandle:
    """Public name of data: a path, or the kind of object that holds the rows.

    ``number`` distinguishes objects of one kind in this process; a path has 0.
    """

    name: str
    number: int = 0

    @property
    def short_name(self) -> str:
        """The shortened name for messages and ledger entries."""
        return shorten_text(self.name, _MAX_NAME_LENGTH)

    def __str__(self) -> str:
        return f"{self.short_name} {self.number}" if self.number else self.short_name


UNNAMED_DATA: Final = DataHandle("rows that were not named")


class SpendRecord(NamedTuple):
    """One release of this process, with or without a ledger."""

    handle: DataHandle
    loss: Loss
    with_ledger: bool
    plan: str = ""
    """Fingerprint of the plan that was executed."""


@dataclass(frozen=True)
class ProcessSpend:
    """Privacy losses of this process: a lower bound of the losses of the people in the data.

    Attributes
    ----------
    by_handle : dict
        The total loss for each handle: a path, or the kind of object and its number.
    releases : dict
        The number of releases for each handle.
    total : Loss
        The total over all handles, which applies to people who are in all of these tables.
    """

    by_handle: dict[str, Loss]
    releases: dict[str, int]
    total: Loss = field(default_factory=Loss.zero)

    @property
    def epsilon(self) -> float | None:
        """The sum of the epsilons; None if it is unbounded."""
        return None if self.total.epsilon is None else float(self.total.epsilon)

    @property
    def delta(self) -> float:
        """The sum of the deltas."""
        return float(self.total.delta)

    def __str__(self) -> str:
        bound = "That is a lower bound: other processes, and earlier ones, are not counted."
        if not self.by_handle:
            return f"This process has spent nothing. {bound}"
        lines = [f"This process has spent {self.total}. {bound}"]
        for name, loss in self.by_handle.items():
            count = self.releases[name]
            lines.append(f"  {name}: {loss} in {count} release{'' if count == 1 else 's'}")
        lines.append("Losses of tables about the same people add up, whatever the tables are called.")
        return "\n".join(lines)


class _ProcessAccountant:
    """Records of this process, behind one lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.spent: Counter[SpendRecord] = Counter()
        self.without_ledger: Counter[DataHandle] = Counter()  # releases without a ledger
        self.warned: set[object] = set()
        self.objects: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.kinds: Counter[str] = Counter()

    def object_number(self, rows: Any, kind: str) -> int:
        """Return the number of a live object. An object without weak references gets a new number on each call."""
        with self.lock:
            known = self.objects.get(id(rows))
            if known is not None and known[0]() is rows:
                return known[1]
            self.kinds[kind] += 1
            number = self.kinds[kind]
            place, objects = id(rows), self.objects
            with suppress(TypeError):  # lists, for example, have no weak references
                objects[place] = (weakref.ref(rows, lambda _: objects.pop(place, None)), number)
            return number


_accountant = _ProcessAccountant()


def _reset_lock() -> None:
    _accountant.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock)  # a thread of the parent process may hold the old lock


def handle_of(rows: Any) -> DataHandle:
    """Return the public handle of rows: their path, or their kind and a number. Never reads their content.

    >>> handle_of("https://example.org/visits.csv")
    DataHandle(name='https://example.org/visits.csv', number=0)
    """
    if isinstance(rows, str | os.PathLike):
        path = os.fsdecode(os.fspath(rows))
        return DataHandle(redact_url(path) if "://" in path else os.path.abspath(path))
    if rows is None:
        return UNNAMED_DATA
    kind = type(rows)
    package = kind.__module__.split(".")[0]
    name = shorten_text(kind.__name__ if package == "builtins" else f"{package} {kind.__name__}")
    return DataHandle(f"{name} in memory", _accountant.object_number(rows, name))


def record_spend(spend: SpendRecord, count: int = 1) -> None:
    """Record a release. A count of -1 removes the record of a release cancelled before publishing a value."""
    with _accountant.lock:
        _accountant.spent[spend] += count
        if not spend.with_ledger:
            _accountant.without_ledger[spend.handle] += count


def was_released(handle: DataHandle, plan: str) -> bool:
    """Return True if this process has executed a plan on these rows. Identifies rows by their handle only."""
    with _accountant.lock:
        return any(n > 0 and (each.handle, each.plan) == (handle, plan) for each, n in _accountant.spent.items())


def process_spend() -> ProcessSpend:
    """Return the privacy losses of this process, by public handle of the data: a lower bound.

    Fits with and without a ledger count. Rows are identified by their path or by the live object that holds them, never
    by their content. Other processes, such as those of a parallel search, and earlier ones are not counted. Use a
    ledger for a durable record.

    Examples
    --------
    >>> import veilwood as vw
    >>> print(str(vw.process_spend()).split(".")[1].strip()[:27])
    That is a lower bound: othe
    """
    with _accountant.lock:
        spent = [(str(record.handle), record.loss, n) for record, n in _accountant.spent.items() if n > 0]
    losses: dict[str, Loss] = {}
    releases: Counter[str] = Counter()
    for name, loss, count in spent:
        losses[name] = losses.get(name, Loss.zero()) + loss.times(count)
        releases[name] += count
    return ProcessSpend(losses, dict(releases), Loss.total(losses.values()))


def warn_of_repeated_fits(handle: DataHandle, *, with_ledger: bool, is_clone: bool) -> None:
    """Warn once that the losses of fits add up: if scikit-learn cloned the estimator, or the rows were fitted before.

    The warning is best effort: rows are identified by their handle only. With a ledger, which adds up all fits, no
    warning is issued.
    """
    if with_ledger:
        return
    if is_clone:
        warn_once(
            "clone",
            "scikit-learn cloned this estimator. Its searches, cross-validation, calibration and ensembles fit many "
            "such clones. Every fit costs its epsilon, each certificate covers one fit only. Without a ledger, only "
            "veilwood.process_spend() adds them up. Hint: pass a ledger (ledger='spends.db'), or choose "
            "parameters by veilwood.tune, which needs no data, or on a public table.",
        )
        return
    with _accountant.lock:
        again = _accountant.without_ledger[handle] > 0 and handle not in _accountant.warned
    if again:
        warn_once(
            handle,
            f"this is not the first fit on {handle.short_name} without a ledger. Losses add up, and each certificate "
            "covers one fit only: veilwood.process_spend() returns the total of this process. Hint: pass a ledger, "
            "such as ledger='spends.db'.",
        )


def warn_of_smaller_unit(unit: Unit, declared: Unit | None, schema_name: str) -> None:
    """Warn once that a release protects less than the unit that its schema declares."""
    if declared is not None and may_protect_less(unit, declared):
        warn_once(
            ("unit", schema_name, unit),
            f"schema {shorten_text(schema_name)!r} declares {declared} as the unit to protect, but privacy_unit is "
            f"{unit}, which may protect less. Hint: omit privacy_unit to protect the declared unit.",
        )


def warn_of_weak_guarantee(epsilon: float | None) -> None:
    """Warn if the guarantee of an epsilon is weak or nearly none."""
    if verdict := guarantee_strength(epsilon).verdict:
        warnings.warn(verdict, WeakGuaranteeWarning, stacklevel=_caller_stack_level())


def warn_once(key: object, message: str) -> None:
    """Issue a warning at most once per process."""
    with _accountant.lock:
        if key in _accountant.warned:
            return
        _accountant.warned.add(key)
    warnings.warn(message, PrivacyWarning, stacklevel=_caller_stack_level())


def _caller_stack_level() -> int:
    # Lets the warning point to the user's line: the number of library frames in between depends on the estimator.
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("veilwood"):
        level, frame = level + 1, frame.f_back
    return level
