# SPDX-License-Identifier: Apache-2.0
"""Whether messages may show private values: never, unless whoever holds the data asks for it.

Messages travel further than data: into logs, tickets and screens of others. So a refusal names a column and a kind of
problem. Rows and values are added only inside ``showing_values``, which is for the data holder at a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from veilwood.errors import UnreadableError, VeilwoodError

__all__ = ["failed", "may_show_values", "showing_values", "without_words_of"]

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


@contextmanager
def without_words_of(
    program: str, problem: str = "could not be read", hint: str = "read it by itself"
) -> Iterator[None]:
    """Tell the error of another program without its words, which may hold rows; the library's own errors pass."""
    try:
        yield
    except VeilwoodError:
        raise
    except Exception as error:
        raise failed(program, error, problem, hint) from None


def failed(
    program: str, error: Exception, problem: str = "could not be read", hint: str = "read it by itself"
) -> UnreadableError:
    """Say that another program failed, without its words."""
    if may_show_values():
        raise error
    return UnreadableError(
        f"{program} {problem} ({type(error).__name__}). Its own words are left out, as they may hold rows. "
        f"Hint: {hint}, or fit within veilwood.data.private_text.showing_values."
    )


def may_show_values() -> bool:
    """Whether the data holder has asked to see values."""
    return _SHOWN.get()
