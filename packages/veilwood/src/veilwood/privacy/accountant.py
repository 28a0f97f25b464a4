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

from veilwood.errors import PrivacyWarning, shorten, without_secrets
from veilwood.privacy.loss import Loss

__all__ = [
    "Handle", "Spending", "SpentHere", "fit_on", "handle_of", "record", "spent_here", "tell_once", "warn_of_more_fits",
    "withdraw",
]  # fmt: skip

_LONGEST_NAME: Final = 500
# Parts of scikit-learn that fit one estimator many times. Recognised by the name of a module that is running.
_SEARCHES: Final = (
    "sklearn.model_selection.",
    "sklearn.calibration",
    "sklearn.feature_selection.",
    "sklearn.multiclass",
    "sklearn.multioutput",
    "sklearn.ensemble.",
)
_BOOTSTRAPS: Final = ("sklearn.ensemble._bagging",)


@dataclass(frozen=True)
class Handle:
    """What rows are called in public: a path, or the kind of object that holds them.

    ``number`` tells objects of one kind in this process apart; a path has 0.
    """

    name: str
    number: int = 0

    @property
    def in_one_line(self) -> str:
        """The name as it is shown and written down."""
        return shorten(self.name, _LONGEST_NAME)

    def __str__(self) -> str:
        return f"{self.in_one_line} {self.number}" if self.number else self.in_one_line


UNNAMED: Final = Handle("rows that were not named")


class Spending(NamedTuple):
    """A release of this process: on which rows, for how much, and whether it stands in a ledger that was given."""

    handle: Handle
    loss: Loss
    with_ledger: bool


@dataclass(frozen=True)
class SpentHere:
    """What this process has spent: a lower bound of what was spent on anybody's data.
    Examples
    --------
    >>> str(SpentHere({}, {}))
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


class _Memory:
    """What this process remembers; one lock for all of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.spent: Counter[Spending] = Counter()
        self.alone: Counter[Handle] = Counter()  # releases without a ledger
        self.told: set[object] = set()
        self.objects: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.kinds: Counter[str] = Counter()

    def number_of(self, rows: Any, kind: str) -> int:
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


_memory = _Memory()


def _unlock() -> None:
    _memory.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)  # a thread of the parent may have held it


def handle_of(rows: Any) -> Handle:
    """Return the public handle of rows: their path, or their kind and a number. Nothing in them is looked at.

    >>> handle_of("https://example.org/visits.csv")
    Handle(name='https://example.org/visits.csv', number=0)
    """
    if isinstance(rows, str | os.PathLike):
        path = os.fsdecode(os.fspath(rows))
        return Handle(without_secrets(path) if "://" in path else os.path.abspath(path))
    if rows is None:
        return UNNAMED
    kind = type(rows)
    package = kind.__module__.split(".")[0]
    name = shorten(kind.__name__ if package == "builtins" else f"{package} {kind.__name__}")
    return Handle(f"{name} in memory", _memory.number_of(rows, name))


def record(spending: Spending) -> None:
    """Remember a release."""
    _add(spending, 1)


def withdraw(spending: Spending) -> None:
    """Forget a release that was cancelled before anything had been released."""
    _add(spending, -1)


def _add(spending: Spending, count: int) -> None:
    with _memory.lock:
        _memory.spent[spending] += count
        if not spending.with_ledger:
            _memory.alone[spending.handle] += count


def spent_here() -> SpentHere:
    """Return what this process has spent, by public handle: a lower bound.

    Fits with and without a ledger count. Rows are known by their path or by the live object that holds them, never by
    their content. Other processes (also those that a parallel search starts) are not seen, and neither is yesterday:
    what lasts is a ledger.

    Examples
    --------
    >>> import veilwood as vw
    >>> print(str(vw.spent_here()).split(".")[1].strip()[:27])
    That is a lower bound: othe
    """
    with _memory.lock:
        spent = [(str(one.handle), one.loss, count) for one, count in _memory.spent.items() if count > 0]
    losses: dict[str, Loss] = {}
    releases: Counter[str] = Counter()
    for name, loss, count in spent:
        losses[name] = losses.get(name, Loss.zero()) + _times(loss, count)
        releases[name] += count
    return SpentHere(losses, dict(releases), sum(losses.values(), start=Loss.zero()))


def _times(loss: Loss, count: int) -> Loss:
    """Return the loss of several releases of the same loss."""
    if loss.delta * count >= 1:
        return Loss.unbounded()
    epsilon, rho = (None if part is None else part * Fraction(count) for part in (loss.epsilon, loss.rho))
    return Loss(epsilon, loss.delta * count, rho)


def fit_on(rows: Any, *, with_ledger: bool) -> Handle:
    """Return the handle of rows that are about to be fitted, and say so where that adds up to more than it seems."""
    handle = handle_of(rows)
    warn_of_more_fits(handle, with_ledger=with_ledger)
    return handle


def warn_of_more_fits(handle: Handle, *, with_ledger: bool) -> None:
    """Say once that fits add up: inside searches of scikit-learn, on bootstrapped rows, and on the same rows again.

    This is a help and not a guarantee: searches are recognised by the modules that are running, rows by their handle.
    """
    running = _running_modules()
    if any(module.startswith(_BOOTSTRAPS) for module in running):
        tell_once(
            "bootstrap",
            "rows drawn with replacement hold one person several times, and each time counts: the certificate of a fit "
            "inside bagging is of the drawn rows, not of the people. Hint: BaggingClassifier(bootstrap=False), or one "
            "forest with more trees (n_estimators).",
        )
    if with_ledger:
        return
    if any(module.startswith(_SEARCHES) for module in running):
        tell_once(
            "search",
            "scikit-learn fits this estimator many times here. Every fit costs its epsilon, each certificate is of one "
            "fit alone, and without a ledger nothing adds them up: see veilwood.spent_here(). Hint: give a ledger "
            "(ledger='spends.db'); choose parameters by veilwood.tune, which needs no data, or on a public table.",
        )
        return
    with _memory.lock:
        again = _memory.alone[handle] > 0 and handle not in _memory.told
    if again:
        tell_once(
            handle,
            f"this is not the first fit on {handle.in_one_line} without a ledger. Losses add up, and each certificate "
            "is of one fit alone: veilwood.spent_here() says what this process has spent. Hint: ledger='spends.db'.",
        )


def tell_once(about: object, message: str) -> None:
    """Warn about something, once in this process."""
    with _memory.lock:
        if about in _memory.told:
            return
        _memory.told.add(about)
    warnings.warn(message, PrivacyWarning, stacklevel=_frames_of_ours())


def _running_modules() -> set[str]:
    """Return the names of the modules whose functions are running in this thread."""
    found = set()
    frame = sys._getframe(1)
    while frame is not None:
        found.add(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _frames_of_ours() -> int:
    """Return the stack level, for a warning raised by the caller, of the line that called the library."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("veilwood"):
        level, frame = level + 1, frame.f_back
    return level
