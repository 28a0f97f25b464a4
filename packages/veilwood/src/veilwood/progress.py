# SPDX-License-Identifier: Apache-2.0
"""Progress line on a terminal for long passes over data: a description and the elapsed time.

The number of batches is not shown. It would disclose the number of rows and, if invalid rows are dropped, how many were
dropped. The running time is visible anyway; certificates list that as an assumption.
``set_progress_callback`` is for a worker that reports its progress only to the custodian, who has the rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")

DISPLAY_DELAY_SECONDS = 1.0
_callbacks: list[Callable[[str, int], None]] = []
_is_suppressed: ContextVar[bool] = ContextVar("silent", default=False)


def set_progress_callback(callback: Callable[[str, int], None] | None) -> None:
    """Set a function to call with each description and the number of items, which is private. None removes it."""
    _callbacks[:] = [] if callback is None else [callback]


@contextmanager
def no_progress() -> Iterator[None]:
    """Suppress progress lines within a ``with`` block, so that the number of repetitions is not disclosed."""
    token = _is_suppressed.set(True)
    try:
        yield
    finally:
        _is_suppressed.reset(token)


def track_progress(items: Iterable[Item], description: str) -> Iterator[Item]:
    """Iterate over ``items``. On a terminal, show a description on stderr after a second, and clear it at the end.

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
        for callback in _callbacks:
            callback(description, number)
        yield item


def _show_progress(items: Iterable[Item], description: str) -> Iterator[Item]:
    from rich.console import Console  # imported for terminals only: it is slow to load
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    progress.add_task(description, total=None)
    start = time.monotonic()
    try:
        for item in items:
            if not progress.live.is_started and time.monotonic() - start > DISPLAY_DELAY_SECONDS:
                progress.start()
            yield item
    finally:
        progress.stop()
