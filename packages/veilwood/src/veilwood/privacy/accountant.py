# SPDX-License-Identifier: Apache-2.0
"""What this process has spent, by public handle, and who is told that fits add up.

This helps people without a ledger, and is not accounting: rows are known by path or by the object that holds them,
never by what they are. The same people under another handle, in another process or yesterday are not seen. Budgets
are kept in ``ledger``.
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
from fractions import Fraction
from typing import Any, Final, NamedTuple

from veilwood.errors import PrivacyWarning, redact_url, shorten_text
from veilwood.privacy.loss import Loss

__all__ = [
    "DataHandle",
    "ProcessSpend",
    "SpendRecord",
    "handle_of",
    "process_spend",
    "record_spend",
    "register_fit",
    "warn_of_repeated_fits",
    "warn_once",
    "withdraw_spend",
]  # fmt: skip

_MAX_NAME_LENGTH: Final = 500
# Parts of scikit-learn that fit one estimator many times. Recognised by the name of a module that is running.
_SEARCH_MODULES: Final = (
    "sklearn.model_selection.",
    "sklearn.calibration",
    "sklearn.feature_selection.",
    "sklearn.multiclass",
    "sklearn.multioutput",
    "sklearn.ensemble.",
)
_BOOTSTRAP_MODULES: Final = ("sklearn.ensemble._bagging",)


@dataclass(frozen=True)
class DataHandle:
    """What rows are called in public: a path, or the kind of object that holds them.

    ``number`` tells objects of one kind in this process apart; a path has 0.
    """

    name: str
    number: int = 0

    @property
    def short_name(self) -> str:
        """The name as it is shown and written down."""
        return shorten_text(self.name, _MAX_NAME_LENGTH)

    def __str__(self) -> str:
        return f"{self.short_name} {self.number}" if self.number else self.short_name


UNNAMED_DATA: Final = DataHandle("rows that were not named")


class SpendRecord(NamedTuple):
    """A release of this process: on which rows, for how much, and whether it stands in a ledger that was given."""

    handle: DataHandle
    loss: Loss
    with_ledger: bool


@dataclass(frozen=True)
class ProcessSpend:
    """What this process has spent: a lower bound of what was spent on anybody's data.
    Examples
    --------
    >>> str(ProcessSpend({}, {}))
    'This process has spent nothing. That is a lower bound: other processes, and earlier ones, are not seen.'
    """

    by_handle: dict[str, Loss]
    """The total for each handle: a path, or the kind of object and its number."""
    releases: dict[str, int]
    """How many releases there were for each."""
    total: Loss = field(default_factory=Loss.zero)
    """Of all together, for people who are in all of these tables."""

    @property
    def epsilon(self) -> float | None:
        """The sum of the epsilons; None if it is unbounded."""
        return None if self.total.epsilon is None else float(self.total.epsilon)

    @property
    def delta(self) -> float:
        """The sum of the deltas."""
        return float(self.total.delta)

    def __str__(self) -> str:
        bound = "That is a lower bound: other processes, and earlier ones, are not seen."
        if not self.by_handle:
            return f"This process has spent nothing. {bound}"
        lines = [f"This process has spent {self.total}. {bound}"]
        for name, loss in self.by_handle.items():
            count = self.releases[name]
            lines.append(f"  {name}: {loss} in {count} release{'' if count == 1 else 's'}")
        lines.append("Tables of the same people add up, whatever they are called.")
        return "\n".join(lines)


class _ProcessAccountant:
    """What this process remembers; one lock for all of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.spent: Counter[SpendRecord] = Counter()
        self.without_ledger: Counter[DataHandle] = Counter()  # releases without a ledger
        self.warned: set[object] = set()
        self.objects: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.kinds: Counter[str] = Counter()

    def object_number(self, rows: Any, kind: str) -> int:
        """Return the number of a live object; one that cannot be watched gets a new number every time."""
        with self.lock:
            known = self.objects.get(id(rows))
            if known is not None and known[0]() is rows:
                return known[1]
            self.kinds[kind] += 1
            number = self.kinds[kind]
            place, objects = id(rows), self.objects
            with suppress(TypeError):  # a list
                objects[place] = (weakref.ref(rows, lambda _: objects.pop(place, None)), number)
            return number


_accountant = _ProcessAccountant()


def _reset_lock() -> None:
    _accountant.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock)  # a thread of the parent may have held it


def handle_of(rows: Any) -> DataHandle:
    """Return the public handle of rows: their path, or their kind and a number. Nothing in them is looked at.

    >>> handle_of("https://example.org/visits.csv")
    Handle(name='https://example.org/visits.csv', number=0)
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


def record_spend(spend: SpendRecord) -> None:
    """Remember a release."""
    _adjust_count(spend, 1)


def withdraw_spend(spend: SpendRecord) -> None:
    """Forget a release that was cancelled before anything had been released."""
    _adjust_count(spend, -1)


def _adjust_count(spend: SpendRecord, count: int) -> None:
    with _accountant.lock:
        _accountant.spent[spend] += count
        if not spend.with_ledger:
            _accountant.without_ledger[spend.handle] += count


def process_spend() -> ProcessSpend:
    """Return what this process has spent, by public handle: a lower bound.

    Fits with and without a ledger count. Rows are known by their path or by the live object that holds them, never by
    their content. Other processes (also those that a parallel search starts) are not seen, and neither is yesterday:
    what lasts is a ledger.

    Examples
    --------
    >>> import veilwood as vw
    >>> print(str(vw.process_spend()).split(".")[1].strip()[:27])
    That is a lower bound: othe
    """
    with _accountant.lock:
        spent = [(str(one.handle), one.loss, count) for one, count in _accountant.spent.items() if count > 0]
    losses: dict[str, Loss] = {}
    releases: Counter[str] = Counter()
    for name, loss, count in spent:
        losses[name] = losses.get(name, Loss.zero()) + _repeat_loss(loss, count)
        releases[name] += count
    return ProcessSpend(losses, dict(releases), sum(losses.values(), start=Loss.zero()))


def _repeat_loss(loss: Loss, count: int) -> Loss:
    """Return the loss of several releases of the same loss."""
    if loss.delta * count >= 1:
        return Loss.unbounded()
    epsilon, rho = (None if part is None else part * Fraction(count) for part in (loss.epsilon, loss.rho))
    return Loss(epsilon, loss.delta * count, rho)


def register_fit(rows: Any, *, with_ledger: bool) -> DataHandle:
    """Return the handle of rows that are about to be fitted, and say so where that adds up to more than it seems."""
    handle = handle_of(rows)
    warn_of_repeated_fits(handle, with_ledger=with_ledger)
    return handle


def warn_of_repeated_fits(handle: DataHandle, *, with_ledger: bool) -> None:
    """Say once that fits add up: inside searches of scikit-learn, on bootstrapped rows, and on the same rows again.

    This is a help and not a guarantee: searches are recognised by the modules that are running, rows by their handle.
    """
    running = _running_modules()
    if any(module.startswith(_BOOTSTRAP_MODULES) for module in running):
        warn_once(
            "bootstrap",
            "rows drawn with replacement hold one person several times, and each time counts: the certificate of a fit "
            "inside bagging is of the drawn rows, not of the people. Hint: BaggingClassifier(bootstrap=False), or one "
            "forest with more trees (n_estimators).",
        )
    if with_ledger:
        return
    if any(module.startswith(_SEARCH_MODULES) for module in running):
        warn_once(
            "search",
            "scikit-learn fits this estimator many times here. Every fit costs its epsilon, each certificate is of one "
            "fit alone, and without a ledger nothing adds them up: see veilwood.spent_here(). Hint: give a ledger "
            "(ledger='spends.db'); choose parameters by veilwood.tune, which needs no data, or on a public table.",
        )
        return
    with _accountant.lock:
        again = _accountant.without_ledger[handle] > 0 and handle not in _accountant.warned
    if again:
        warn_once(
            handle,
            f"this is not the first fit on {handle.short_name} without a ledger. Losses add up, and each certificate "
            "is of one fit alone: veilwood.spent_here() says what this process has spent. Hint: ledger='spends.db'.",
        )


def warn_once(key: object, message: str) -> None:
    """Warn about something, once in this process."""
    with _accountant.lock:
        if key in _accountant.warned:
            return
        _accountant.warned.add(key)
    warnings.warn(message, PrivacyWarning, stacklevel=_caller_stack_level())


def _running_modules() -> set[str]:
    """Return the names of the modules whose functions are running in this thread."""
    found = set()
    frame = sys._getframe(1)
    while frame is not None:
        found.add(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _caller_stack_level() -> int:
    """Return the stack level, for a warning raised by the caller, of the line that called the library."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("veilwood"):
        level, frame = level + 1, frame.f_back
    return level
