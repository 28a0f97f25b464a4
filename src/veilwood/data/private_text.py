# SPDX-License-Identifier: Apache-2.0
"""Whether messages may show private values: never, unless whoever holds the data asks for it.

Messages travel further than data: into logs, tickets and screens of others. So a refusal names a column and a kind of
problem. Rows and values are added only inside ``showing_values``, which is for the data holder at a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["may_show_values", "showing_values"]

_SHOWN: ContextVar[bool] = ContextVar("veilwood_shows_private_values", default=False)


@contextmanager
def showing_values(show: bool = True) -> Iterator[None]:
    """Let messages show rows and values of the data, within this context and on this computer only.

    Examples
    --------
    >>> with showing_values():
    ...     may_show_values()
    True
    >>> may_show_values()
    False
    """
    before = _SHOWN.set(show)
    try:
        yield
    finally:
        _SHOWN.reset(before)


def may_show_values() -> bool:
    """Whether the data holder has asked to see values."""
    return _SHOWN.get()
