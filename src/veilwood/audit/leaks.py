# SPDX-License-Identifier: Apache-2.0
"""What an object holds, walked to the last byte: secrets in it, and differences between two of them.

What was drawn and how likely it was is judged in ``statistics``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from numbers import Number
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_OPAQUE = (type, ModuleType, BuiltinFunctionType)


def walk(thing: object) -> Iterator[tuple[str, Any]]:
    """Return every array, number, text and bytes that can be reached from an object, with the way to it.

    Follows containers, attributes, closures, defaults and arguments of functions; each object is entered once.

    Examples
    --------
    >>> list(walk({"a": [1, "x"]}))
    [("['a']", 'a'), ("['a'][0]", 1), ("['a'][1]", 'x')]
    """
    entered: dict[int, object] = {}  # keeps what it has seen alive, so that no number is used twice
    waiting: list[tuple[str, object]] = [("", thing)]
    while waiting:
        path, here = waiting.pop()
        if here is None or isinstance(here, _OPAQUE):
            continue
        if isinstance(here, Number | np.generic | str | bytes | bytearray):
            yield path, here
            continue
        if id(here) in entered:
            continue
        entered[id(here)] = here
        if isinstance(here, np.ndarray) and here.dtype != object:
            yield path, here
            continue
        if isinstance(here, Mapping):
            for key in here:
                if isinstance(key, str | bytes | Number):
                    yield f"{path}[{key!r}]", key
        waiting.extend(reversed(list(_parts(path, here))))


def _parts(path: str, here: Any) -> Iterator[tuple[str, object]]:
    """Return what an object consists of, one step down."""
    if isinstance(here, pd.DataFrame | pd.Series | pd.Index):
        yield f"{path}.values", here.to_numpy()
    elif isinstance(here, Mapping):
        yield from ((f"{path}[{key!r}]", value) for key, value in here.items())
        yield from ((f"{path}<key>", key) for key in here if not isinstance(key, str | bytes | Number))
    elif isinstance(here, list | tuple | Set | np.ndarray):
        yield from ((f"{path}[{place}]", value) for place, value in enumerate(here))
    elif isinstance(here, MethodType):
        yield f"{path}.__self__", here.__self__
        yield f"{path}.__func__", here.__func__
    elif isinstance(here, FunctionType):
        for cell in here.__closure__ or ():
            try:
                yield f"{path}<closure>", cell.cell_contents
            except ValueError:  # a cell that was never filled
                continue
        yield f"{path}<defaults>", (here.__defaults__, here.__kwdefaults__)
        yield f"{path}<attributes>", here.__dict__
    else:
        yield from ((f"{path}.{name}", value) for name, value in getattr(here, "__dict__", {}).items())
        slots = (slot for kind in type(here).__mro__ for slot in getattr(kind, "__slots__", ()))
        yield from ((f"{path}.{slot}", getattr(here, slot)) for slot in slots if hasattr(here, slot))
        if hasattr(here, "func") and hasattr(here, "keywords"):  # functools.partial keeps its arguments in C
            yield f"{path}<arguments>", (here.func, here.args, here.keywords)


def leaks(thing: object, secrets: Mapping[str, object]) -> list[str]:
    """Return where an object holds one of the given private values.

    A number is found as a number, as an entry or a length of an array, and as a word of a text; an array as a stretch
    of an array, or its bytes in a blob; bytes in bytes.

    Examples
    --------
    >>> leaks({"rows": 1613, "counts": np.array([5, 7, 9])}, {"n": 1613, "leaves": np.array([7, 9])})
    ["n at ['rows']", "leaves at ['counts']"]
    """
    return [
        f"{name} at {path or 'the top'}"
        for path, value in walk(thing)
        for name, secret in secrets.items()
        if _holds(value, secret)
    ]


def _holds(value: Any, secret: Any) -> bool:
    """Whether a value from a walk shows a secret."""
    if isinstance(secret, bytes):
        return isinstance(value, bytes | bytearray | np.ndarray | str) and secret in _raw(value)
    if isinstance(secret, np.ndarray):
        if isinstance(value, bytes | bytearray):
            forms = [secret.astype(form) for form in (np.int64, np.int32, np.uint16, np.float64)]
            return any(form.tobytes() in value for form in forms if np.array_equal(form, secret))
        return isinstance(value, np.ndarray) and _has_stretch(value, secret)
    if isinstance(value, np.ndarray):
        return secret in value.shape or (value.dtype.kind in "iuf" and bool((value == secret).any()))
    if isinstance(value, str):
        return str(secret) in "".join(c if c.isalnum() or c in "._-" else " " for c in value).split()
    return isinstance(value, Number | np.generic) and not isinstance(value, bool) and bool(value == secret)


def _raw(value: bytes | bytearray | NDArray[Any] | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value.tobytes() if isinstance(value, np.ndarray) else bytes(value)


def _has_stretch(array: NDArray[Any], wanted: NDArray[Any]) -> bool:
    """Whether the numbers of ``wanted`` follow one another in ``array``, flattened, whatever the types."""
    if array.dtype.kind not in "iuf" or array.size < wanted.size or not wanted.size:
        return False
    # By rows and by columns, as exact counts may be kept one class at a time.
    needle = wanted.astype(np.float64).ravel().tobytes()
    for order in ("C", "F"):
        hay = array.astype(np.float64).ravel(order=order).tobytes()
        place = hay.find(needle)
        while place >= 0:
            if place % 8 == 0:
                return True
            place = hay.find(needle, place + 1)
    return False


def differences(one: object, other: object) -> list[str]:
    """Return where two objects differ in any value that can be reached from them; empty if they are alike.

    Examples
    --------
    >>> differences({"depth": 3, "cuts": np.array([1, 2])}, {"depth": 3, "cuts": np.array([1, 5])})
    ["['cuts']"]
    """
    first, second = dict(walk(one)), dict(walk(other))
    paths = [path for path in first if path not in second] + [path for path in second if path not in first]
    return paths + [path for path in first if path in second and not _alike(first[path], second[path])]


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are the same to the last byte: also their type, and the type and shape of an array."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, float | np.floating) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other) and repr(one) == repr(other)  # 0.0 equals -0.0 and does not look like it
