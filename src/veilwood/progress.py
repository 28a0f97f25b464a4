# SPDX-License-Identifier: Apache-2.0
"""A progress line for long passes over data, for people at a terminal. It counts batches and keeps nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["track"]

Item = TypeVar("Item")

SHOWN_AFTER_SECONDS = 1.0


def track(items: Iterable[Item], doing: str) -> Iterator[Item]:
    """Yield ``items``. After a second, show on stderr how many there were, if it is a terminal; clear it at the end.

    Examples
    --------
    >>> list(track("abc", "reading"))
    ['a', 'b', 'c']
    """
    if not sys.stderr.isatty():
        yield from items
        return
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("batch {task.completed}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = progress.add_task(doing, total=None)
    began = time.monotonic()
    try:
        for item in items:
            if not progress.live.is_started and time.monotonic() - began > SHOWN_AFTER_SECONDS:
                progress.start()
            yield item
            progress.advance(task)
    finally:
        progress.stop()
