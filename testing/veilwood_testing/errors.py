# SPDX-License-Identifier: Apache-2.0
"""Assertions about errors by type, fields and origin, so that their messages can be reworded freely."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from veilwood.errors import VeilwoodError

E = TypeVar("E", bound=VeilwoodError)


@contextmanager
def rejects(kind: type[E], *, raised_in: str | None = None, **fields: Any) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of exactly this type, with these values of its fields.

    Where the fields do not tell errors of one type apart, ``raised_in`` names the function that raises it.
    """
    with pytest.raises(kind) as raised:
        yield raised
    error = raised.value
    assert type(error) is kind, f"{type(error).__name__}: {error}"
    assert {name: getattr(error, name) for name in fields} == fields, str(error)
    if raised_in is not None:
        functions = [frame.f_code.co_qualname for frame, _ in traceback.walk_tb(error.__traceback__)]
        assert raised_in in functions[-3:], (functions[-3:], str(error))
