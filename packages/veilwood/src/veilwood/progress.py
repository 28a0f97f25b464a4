# SPDX-License-Identifier: Apache-2.0
"""A progress line for long passes over data, for people at a terminal: what is done, and for how long.

It does not count batches: the number would tell whoever sees the screen how many rows there are, and where rows that do
not fit are dropped, how many were. How long a pass takes can be seen anyway; certificates name it. ``report_to`` is for
a worker whose progress is told to the custodian alone, who has the rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["report_to", "silent", "track"]

Item = TypeVar("Item")

SHOWN_AFTER_SECONDS = 1.0
_reports: list[Callable[[str, int], None]] = []
_silent: ContextVar[bool] = ContextVar("silent", default=False)


def report_to(act: Callable[[str, int], None] | None) -> None:
    """Tell ``act`` what this process does and how many items it has taken, which is private; None ends that."""
    _reports[:] = [] if act is None else [act]


@contextmanager
def silent() -> Iterator[None]:
    """Show and report nothing inside: how often something is done must not be told."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


def track(items: Iterable[Item], doing: str) -> Iterator[Item]:
    """Give ``items``. After a second, show on stderr what is done, if it is a terminal; clear it at the end.

    Examples
    --------
    >>> list(track("abc", "reading"))
    ['a', 'b', 'c']
    """
    if _silent.get() or not (_reports or sys.stderr.isatty()):
        return iter(items)
    return _reported(items, doing) if _reports else _shown(items, doing)


def _reported(items: Iterable[Item], doing: str) -> Iterator[Item]:
    for number, item in enumerate(items, 1):
        for act in _reports:
            act(doing, number)
        yield item


def _shown(items: Iterable[Item], doing: str) -> Iterator[Item]:
    from rich.console import Console  # only where a person waits
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    progress.add_task(doing, total=None)
    began = time.monotonic()
    try:
        for item in items:
            if not progress.live.is_started and time.monotonic() - began > SHOWN_AFTER_SECONDS:
                progress.start()
            yield item
    finally:
        progress.stop()
