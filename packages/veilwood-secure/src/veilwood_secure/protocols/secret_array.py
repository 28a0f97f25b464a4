# SPDX-License-Identifier: Apache-2.0
"""`SecretNumbers`: whole numbers that three servers hold in shares, with the verbs of a numpy array.

Methods of ``forests`` add, compare and choose among exact sums before the door sees them. A server runs the same lines
on these instead of arrays. Every verb is a protocol whose messages depend on shapes alone; nothing is opened here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from veilwood.errors import MechanismError
from veilwood_secure.mpc.engine import Engine, Shared, concatenate, stack
from veilwood_secure.protocols.circuits import absolute, maximum, quotient

__all__ = ["SecretNumbers"]


class SecretNumbers:
    """An array of secret integers, at one of the servers.

    Examples
    --------
    >>> from veilwood_testing.mpc_oracle import PlainEngine
    >>> engine = PlainEngine(np.uint64)
    >>> x = SecretNumbers(engine, engine.constant([[3, -4], [1, 2]]))
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
        """How many numbers there are."""
        return self.shared.size

    def __len__(self) -> int:
        return len(self.shared)

    def __repr__(self) -> str:
        return f"SecretNumbers(shape={self.shape})"

    # -- without a message -----------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> SecretNumbers:
        return self._new(self.shared[index])

    def reshape(self, *shape: Any) -> SecretNumbers:
        """Return the same numbers in another shape."""
        return self._new(self.shared.map(lambda part: part.reshape(*shape)))

    def ravel(self) -> SecretNumbers:
        """Return the numbers one after the other."""
        return self.reshape(-1)

    def sum(self, axis: int | None = None, *, keepdims: bool = False) -> SecretNumbers:
        """Return the sums along an axis."""
        return self._new(self.shared.map(lambda part: np.sum(part, axis=axis, keepdims=keepdims, dtype=part.dtype)))

    def cumsum(self, axis: int = 0) -> SecretNumbers:
        """Return the running sums along an axis."""
        return self._new(self.shared.cumsum(axis))

    def __neg__(self) -> SecretNumbers:
        return self._new(-self.shared)

    def __add__(self, other: Any) -> SecretNumbers:
        return self._new(self.shared + _plain(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> SecretNumbers:
        return self._new(self.shared - _plain(other))

    def __rsub__(self, other: Any) -> SecretNumbers:
        return self._new(-self.shared + _plain(other))

    def __mul__(self, other: Any) -> SecretNumbers:
        if isinstance(other, SecretNumbers):
            return self._new(self.engine.mul(self.shared, other.shared))
        return self._new(self.shared * other)

    __rmul__ = __mul__

    # -- with messages ---------------------------------------------------------------------------------------------

    def __abs__(self) -> SecretNumbers:
        return self._new(absolute(self.engine, self.shared))

    def max(self, axis: int | None = None) -> SecretNumbers:
        """Return the largest number along an axis."""
        flat = self.ravel() if axis is None else self
        moved = flat.shared.map(lambda part: np.moveaxis(part, axis or 0, 0))
        return self._new(maximum(self.engine, moved))

    def min(self, axis: int | None = None) -> SecretNumbers:
        """Return the smallest number along an axis."""
        return -(-self).max(axis)

    def at_least(self, other: Any) -> SecretNumbers:
        """Return the larger of two numbers, place by place."""
        above = self - other
        positive = self.engine.mul(above.shared, 1 - self.engine.negative(above.shared))
        return self._new(positive + _plain(other))

    def __floordiv__(self, other: SecretNumbers) -> SecretNumbers:
        """Return whole quotients of numbers that are not negative by positive ones, both of the size of counts."""
        return self._new(quotient(self.engine, self.shared, other.shared))

    # -- numpy's functions -----------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        if ufunc is np.add and method == "reduceat":
            return self._new(self.shared.map(lambda part: np.add.reduceat(part, inputs[1], dtype=part.dtype)))
        verb = _UFUNCS.get(ufunc)
        if verb is None or method != "__call__" or more:
            raise _not_here(ufunc.__name__)
        return verb(*inputs)

    def __array_function__(self, function: Callable[..., Any], types: Any, inputs: Any, more: Any) -> Any:
        verb = _FUNCTIONS.get(function)
        if verb is None:
            raise _not_here(function.__name__)
        return verb(*inputs, **more)

    def _new(self, shared: Shared) -> SecretNumbers:
        return SecretNumbers(self.engine, shared)


def _not_here(name: str) -> MechanismError:
    return MechanismError(
        f"servers cannot compute {name} on shares. Hint: a method whose choices need sums, sizes and maxima."
    )


def _plain(other: Any) -> Any:
    return other.shared if isinstance(other, SecretNumbers) else np.asarray(other)


def _secret(parts: Sequence[Any]) -> tuple[Engine, list[Shared]]:
    """Return arrays of which some are public as shared ones."""
    engine = next(part.engine for part in parts if isinstance(part, SecretNumbers))
    return engine, [part.shared if isinstance(part, SecretNumbers) else engine.constant(part) for part in parts]


def _subtract(x: Any, y: Any) -> SecretNumbers:
    found: SecretNumbers = x - y if isinstance(x, SecretNumbers) else y.__rsub__(x)
    return found


def _larger(x: Any, y: Any) -> SecretNumbers:
    secret, other = (x, y) if isinstance(x, SecretNumbers) else (y, x)
    found: SecretNumbers = secret.at_least(other)
    return found


def _joined(parts: Sequence[Any], axis: int = 0) -> SecretNumbers:
    engine, shared = _secret(parts)
    return SecretNumbers(engine, concatenate(shared, axis))


def _stacked(parts: Sequence[Any], axis: int = 0) -> SecretNumbers:
    engine, shared = _secret(parts)
    return SecretNumbers(engine, stack(shared, axis))


def _split(x: SecretNumbers, places: Any, axis: int = 0) -> list[SecretNumbers]:
    ends = [*map(int, places), x.shape[0]]
    return [x[first:last] for first, last in zip([0, *ends[:-1]], ends, strict=True)]


def _where(mask: Any, x: Any, y: Any) -> SecretNumbers:
    """Take numbers of either by a public mask."""
    engine, (first, second) = _secret([np.asarray(part) if not isinstance(part, SecretNumbers) else part
                                       for part in (x, y)])  # fmt: skip
    kept = np.asarray(mask, np.int64)
    return SecretNumbers(engine, first * kept + second * (1 - kept))


def _taken(x: SecretNumbers, places: NDArray[np.int64], axis: int) -> SecretNumbers:
    if x.ndim != 2 or axis != 1:
        raise _not_here("take_along_axis")
    return x[np.arange(len(places))[:, None], places]


_UFUNCS: Final[dict[np.ufunc, Callable[..., SecretNumbers]]] = {
    np.absolute: abs,
    np.negative: lambda x: -x,
    np.add: lambda x, y: x + y if isinstance(x, SecretNumbers) else y + x,
    np.subtract: _subtract,
    np.multiply: lambda x, y: x * y if isinstance(x, SecretNumbers) else y * x,
    np.maximum: _larger,
}
_FUNCTIONS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    np.concatenate: _joined,
    np.stack: _stacked,
    np.split: _split,
    np.where: _where,
    np.take_along_axis: _taken,
    np.cumsum: lambda x, axis=0: x.cumsum(axis),
    np.sum: lambda x, axis=None: x.sum(axis),
}
