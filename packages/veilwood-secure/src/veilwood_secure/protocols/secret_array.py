# SPDX-License-Identifier: Apache-2.0
"""`SecretArray`: an array of shared integers with a subset of the NumPy interface.

The methods in ``veilwood.forests`` add, compare and select exact sums before the sums reach the release door. A server
runs the same code on these arrays. Messages depend on shapes only, and nothing is opened here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from veilwood.arrays import Ints
from veilwood.errors import MechanismError
from veilwood_secure.mpc.engine import Engine, Shared, concatenate, stack
from veilwood_secure.protocols.circuits import absolute, floor_divide, maximum


class SecretArray:
    """Array of secret integers, as held by one server.

    Examples
    --------
    >>> from veilwood_testing.mpc_engines import PlainEngine
    >>> engine = PlainEngine(np.uint64)
    >>> x = SecretArray(engine, engine.constant([[3, -4], [1, 2]]))
    >>> engine.open(np.abs(x).sum(axis=1).max().shared)
    array(7)
    """

    __slots__ = ("engine", "shared")

    def __init__(self, engine: Engine, shared: Shared) -> None:
        self.engine, self.shared = engine, shared

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.shared.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.shared.size

    def __len__(self) -> int:
        return len(self.shared)

    def __repr__(self) -> str:
        return f"SecretArray(shape={self.shape})"

    # Without a message

    def __getitem__(self, index: Any) -> SecretArray:
        return self._wrap_shared(self.shared[index])

    def reshape(self, *shape: Any) -> SecretArray:
        """Return the same numbers in another shape."""
        return self._wrap_shared(self.shared.map_parts(lambda part: part.reshape(*shape)))

    def ravel(self) -> SecretArray:
        """Return the flattened array."""
        return self.reshape(-1)

    def sum(self, axis: int | None = None, *, keepdims: bool = False) -> SecretArray:
        """Return the sums along an axis."""
        return self._wrap_shared(
            self.shared.map_parts(lambda part: np.sum(part, axis=axis, keepdims=keepdims, dtype=part.dtype))
        )

    def cumsum(self, axis: int = 0) -> SecretArray:
        """Return the running sums along an axis."""
        return self._wrap_shared(self.shared.cumsum(axis))

    def __neg__(self) -> SecretArray:
        return self._wrap_shared(-self.shared)

    def __add__(self, other: Any) -> SecretArray:
        return self._wrap_shared(self.shared + _unwrap_shared(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> SecretArray:
        return self._wrap_shared(self.shared - _unwrap_shared(other))

    def __rsub__(self, other: Any) -> SecretArray:
        return self._wrap_shared(-self.shared + _unwrap_shared(other))

    def __mul__(self, other: Any) -> SecretArray:
        if isinstance(other, SecretArray):
            return self._wrap_shared(self.engine.mul(self.shared, other.shared))
        return self._wrap_shared(self.shared * other)

    __rmul__ = __mul__

    # With messages

    def __abs__(self) -> SecretArray:
        return self._wrap_shared(absolute(self.engine, self.shared))

    def max(self, axis: int | None = None) -> SecretArray:
        """Return the largest number along an axis."""
        flat = self.ravel() if axis is None else self
        moved = flat.shared.map_parts(lambda part: np.moveaxis(part, axis or 0, 0))
        return self._wrap_shared(maximum(self.engine, moved))

    def min(self, axis: int | None = None) -> SecretArray:
        """Return the smallest number along an axis."""
        return -(-self).max(axis)

    def clip_below(self, other: Any) -> SecretArray:
        """Return the elementwise maximum with other values."""
        above = self - other
        positive = self.engine.mul(above.shared, 1 - self.engine.is_negative(above.shared))
        return self._wrap_shared(positive + _unwrap_shared(other))

    def __floordiv__(self, other: SecretArray) -> SecretArray:
        """Return x // y for non-negative x and positive y within the range of ``floor_divide``."""
        return self._wrap_shared(floor_divide(self.engine, self.shared, other.shared))

    # numpy's functions

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        if ufunc is np.add and method == "reduceat":
            return self._wrap_shared(
                self.shared.map_parts(lambda part: np.add.reduceat(part, inputs[1], dtype=part.dtype))
            )
        verb = _UFUNCS.get(ufunc)
        if verb is None or method != "__call__" or more:
            raise _unsupported_error(ufunc.__name__)
        return verb(*inputs)

    def __array_function__(self, function: Callable[..., Any], types: Any, inputs: Any, more: Any) -> Any:
        verb = _FUNCTIONS.get(function)
        if verb is None:
            raise _unsupported_error(function.__name__)
        return verb(*inputs, **more)

    def _wrap_shared(self, shared: Shared) -> SecretArray:
        return SecretArray(self.engine, shared)


def _unsupported_error(name: str) -> MechanismError:
    return MechanismError(
        f"servers cannot compute {name} on shares. Hint: choose a method that needs sums, magnitudes and maxima only."
    )


def _unwrap_shared(other: Any) -> Any:
    return other.shared if isinstance(other, SecretArray) else np.asarray(other)


def _share_all(parts: Sequence[Any]) -> tuple[Engine, list[Shared]]:
    """Return all arrays as shared arrays; public arrays are converted."""
    engine = next(part.engine for part in parts if isinstance(part, SecretArray))
    return engine, [part.shared if isinstance(part, SecretArray) else engine.constant(part) for part in parts]


def _np_subtract(x: Any, y: Any) -> SecretArray:
    difference: SecretArray = x - y if isinstance(x, SecretArray) else y.__rsub__(x)
    return difference


def _np_maximum(x: Any, y: Any) -> SecretArray:
    secret, other = (x, y) if isinstance(x, SecretArray) else (y, x)
    larger: SecretArray = secret.clip_below(other)
    return larger


def _np_concatenate(parts: Sequence[Any], axis: int = 0) -> SecretArray:
    engine, shared = _share_all(parts)
    return SecretArray(engine, concatenate(shared, axis))


def _np_stack(parts: Sequence[Any], axis: int = 0) -> SecretArray:
    engine, shared = _share_all(parts)
    return SecretArray(engine, stack(shared, axis))


def _np_split(x: SecretArray, places: Any, axis: int = 0) -> list[SecretArray]:
    ends = [*map(int, places), x.shape[0]]
    return [x[first:last] for first, last in zip([0, *ends[:-1]], ends, strict=True)]


def _np_where(mask: Any, x: Any, y: Any) -> SecretArray:
    """Select elements by a public mask."""
    engine, (first, second) = _share_all([np.asarray(part) if not isinstance(part, SecretArray) else part
                                       for part in (x, y)])  # fmt: skip
    weights = np.asarray(mask, np.int64)
    return SecretArray(engine, first * weights + second * (1 - weights))


def _np_take_along_axis(x: SecretArray, places: Ints, axis: int) -> SecretArray:
    if x.ndim != 2 or axis != 1:
        raise _unsupported_error("take_along_axis")
    return x[np.arange(len(places))[:, None], places]


_UFUNCS: Final[dict[np.ufunc, Callable[..., SecretArray]]] = {
    np.absolute: abs,
    np.negative: lambda x: -x,
    np.add: lambda x, y: x + y if isinstance(x, SecretArray) else y + x,
    np.subtract: _np_subtract,
    np.multiply: lambda x, y: x * y if isinstance(x, SecretArray) else y * x,
    np.maximum: _np_maximum,
}
_FUNCTIONS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    np.concatenate: _np_concatenate,
    np.stack: _np_stack,
    np.split: _np_split,
    np.where: _np_where,
    np.take_along_axis: _np_take_along_axis,
    np.cumsum: lambda x, axis=0: x.cumsum(axis),
    np.sum: lambda x, axis=None: x.sum(axis),
}
