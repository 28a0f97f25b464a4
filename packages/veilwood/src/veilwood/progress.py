# SPDX-License-Identifier: Apache-2.0
"""A progress line for long passes over data, for people at a terminal: what is done, and for how long.

It does not count batches: the number would tell whoever sees the screen how many rows there are, and where rows that do
not fit are dropped, how many were. How long a pass takes can be seen anyway; certificates name it. ``set_progress_callback`` is for
a worker whose progress is told to the custodian alone, who has the rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["no_progress", "set_progress_callback", "track_progress"]

Item = TypeVar("Item")

DISPLAY_DELAY_SECONDS = 1.0
_callbacks: list[Callable[[str, int], None]] = []
_is_suppressed: ContextVar[bool] = ContextVar("silent", default=False)


def set_progress_callback(callback: Callable[[str, int], None] | None) -> None:
    """Tell ``callback`` what this process does and how many items it has taken, which is private; None ends that."""
    _callbacks[:] = [] if callback is None else [callback]


@contextmanager
def no_progress() -> Iterator[None]:
    """Show and report nothing inside: how often something is done must not be told."""
    before = _is_suppressed.set(True)
    try:
        yield
    finally:
        _is_suppressed.reset(before)


def track_progress(items: Iterable[Item], description: str) -> Iterator[Item]:
    """Give ``items``. After a second, show on stderr what is done, if it is a terminal; clear it at the end.

    Examples
    --------
    >>> list(track_progress("abc", "reading"))
    ['a', 'b', 'c']
    """
    if _is_suppressed.get() or not (_callbacks or sys.stderr.isatty()):
        return iter(items)
    return _report_items(items, description) if _callbacks else _show_progress(items, description)


def _report_items(items: Iterable[Item], description: str) -> Iterator[Item]:
    for number, item in enumerate(items, 1):
        for act in _callbacks:
            act(description, number)
        yield item


def _show_progress(items: Iterable[Item], description: str) -> Iterator[Item]:
    from rich.console import Console  # only where a person waits
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    progress.add_task(description, total=None)
    began = time.monotonic()
    try:
        for item in items:
            if not progress.live.is_started and time.monotonic() - began > DISPLAY_DELAY_SECONDS:
                progress.start()
            yield item
    finally:
        progress.stop()
