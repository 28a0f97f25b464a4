# SPDX-License-Identifier: Apache-2.0
"""Per-process record of privacy losses, by public handle of the data, and warnings that repeated fits add up.

This helps users without a ledger. It limits nothing and sees a lower bound only: rows are identified by their path or
by the object that holds them, never by their content. The same people under another handle, in another process or in an
earlier one are not seen. Budgets are in ``ledger``.
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

from veilwood.errors import PrivacyWarning, redact_url, shorten_text
from veilwood.privacy.loss import Loss

_MAX_NAME_LENGTH: Final = 500  # characters of a handle
# Parts of scikit-learn that fit one estimator many times, recognised by the names of modules on the call stack. A mark
# on clones (``__sklearn_clone__``) would not tell bagging, which draws rows with replacement, from a clone made by
# hand.
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
    """Public name of data: a path, or the kind of object that holds the rows.

    ``number`` distinguishes objects of one kind in this process; a path has 0.
    """

    name: str
    number: int = 0

    @property
    def short_name(self) -> str:
        """The name, shortened, as messages and ledger entries show it."""
        return shorten_text(self.name, _MAX_NAME_LENGTH)

    def __str__(self) -> str:
        return f"{self.short_name} {self.number}" if self.number else self.short_name


UNNAMED_DATA: Final = DataHandle("rows that were not named")


class SpendRecord(NamedTuple):
    """A release of this process: the data, the loss, and whether a ledger records it."""

    handle: DataHandle
    loss: Loss
    with_ledger: bool


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
        The total of all handles, for people who are in all of these tables.

    Examples
    --------
    >>> str(ProcessSpend({}, {}))
    'This process has spent nothing. That is a lower bound: other processes, and earlier ones, are not seen.'
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
    """Records of this process, behind one lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.spent: Counter[SpendRecord] = Counter()
        self.without_ledger: Counter[DataHandle] = Counter()  # releases without a ledger
        self.warned: set[object] = set()
        self.objects: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.kinds: Counter[str] = Counter()

    def object_number(self, rows: Any, kind: str) -> int:
        """Return the number of a live object; an object without weak references gets a new number every time."""
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
    os.register_at_fork(after_in_child=_reset_lock)  # a thread of the parent may hold the old one


def handle_of(rows: Any) -> DataHandle:
    """Return the public handle of rows: their path, or their kind and a number. Reads nothing of their content.

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


def record_spend(spend: SpendRecord) -> None:
    """Record a release."""
    _adjust_count(spend, 1)


def withdraw_spend(spend: SpendRecord) -> None:
    """Remove the record of a release that was cancelled before any value was released."""
    _adjust_count(spend, -1)


def _adjust_count(spend: SpendRecord, count: int) -> None:
    with _accountant.lock:
        _accountant.spent[spend] += count
        if not spend.with_ledger:
            _accountant.without_ledger[spend.handle] += count


def process_spend() -> ProcessSpend:
    """Return the privacy losses of this process, by public handle of the data: a lower bound.

    Fits with and without a ledger count. Rows are identified by their path or by the live object that holds them, never
    by their content. Other processes, such as those of a parallel search, and earlier ones are not seen. Use a ledger
    for a durable record.

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


def register_fit(rows: Any, *, with_ledger: bool) -> DataHandle:
    """Return the handle of rows that are about to be fitted, and warn if fits on them add up."""
    handle = handle_of(rows)
    warn_of_repeated_fits(handle, with_ledger=with_ledger)
    return handle


def warn_of_repeated_fits(handle: DataHandle, *, with_ledger: bool) -> None:
    """Warn once that fits add up: in searches of scikit-learn, on bootstrapped rows, and on the same rows again.

    This is no guarantee: searches are recognised by the modules on the call stack, rows by their handle.
    """
    running = _running_modules()
    if any(module.startswith(_BOOTSTRAP_MODULES) for module in running):
        warn_once(
            "bootstrap",
            "rows drawn with replacement can hold one person several times, and each time counts: the certificate of a "
            "fit inside bagging protects the drawn rows, not the people. Hint: use BaggingClassifier(bootstrap=False), "
            "or one forest with more trees (n_estimators).",
        )
    if with_ledger:
        return
    if any(module.startswith(_SEARCH_MODULES) for module in running):
        warn_once(
            "search",
            "scikit-learn fits this estimator many times here. Every fit costs its epsilon, each certificate covers "
            "one fit only, and without a ledger nothing adds them up: see veilwood.process_spend(). Hint: pass a "
            "ledger (ledger='spends.db'), or choose parameters by veilwood.tune, which needs no data, or on a public "
            "table.",
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


def warn_once(key: object, message: str) -> None:
    """Issue a warning at most once per process."""
    with _accountant.lock:
        if key in _accountant.warned:
            return
        _accountant.warned.add(key)
    warnings.warn(message, PrivacyWarning, stacklevel=_caller_stack_level())


def _running_modules() -> set[str]:
    """Return the names of the modules on the call stack of this thread."""
    names = set()
    frame = sys._getframe(1)
    while frame is not None:
        names.add(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back  # type: ignore[assignment]
    return names


def _caller_stack_level() -> int:
    """Return the stack level of the line that called the library, for a warning issued by the caller."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("veilwood"):
        level, frame = level + 1, frame.f_back
    return level
