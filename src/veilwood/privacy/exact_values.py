# SPDX-License-Identifier: Apache-2.0
"""Whole numbers and exact ratios, as the mechanisms take them: anything else is refused.

Numbers that come from files and messages are bounded in ``bounded``.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from veilwood.bounded import check_digits
from veilwood.errors import MechanismError
from veilwood.wording import shown

Ints = NDArray[np.int64]


LARGEST_VALUE = 2**61


def integers(name: str, values: ArrayLike) -> Ints:
    """Return `values` as int64, or refuse: floating-point values would leak through their low-order bits."""
    array = np.asarray(values)
    if array.size == 0 and not isinstance(values, np.ndarray):
        array = array.astype(np.int64)  # numpy makes an empty list a float array
    if array.dtype.kind not in "iu":
        raise MechanismError(
            f"{name} must be integers, got {array.dtype}. Hint: count in whole units, or quantise each record first."
        )
    if array.size and (int(array.max()) > LARGEST_VALUE or int(array.min()) < -LARGEST_VALUE):
        raise MechanismError(f"{name} must lie within ±2**61, or sums could overflow. Hint: use a coarser unit.")
    return array.astype(np.int64)


def fraction(name: str, value: Fraction | int) -> Fraction:
    """Return `value` as a Fraction, refusing what is not exact."""
    if isinstance(value, bool) or not isinstance(value, int | Fraction | np.integer):
        raise MechanismError(
            f"{name} must be an integer or a Fraction, got {shown(value)}. Hint: write Fraction('0.1'), not 0.1."
        )
    return check_digits(Fraction(value) if isinstance(value, Fraction) else Fraction(int(value)), name)


def positive(name: str, value: Fraction | int, largest: int) -> Fraction:
    """Return `value` as a Fraction, refusing what is not positive or too large."""
    exact = fraction(name, value)
    if not 0 < exact <= largest:
        limit = f"2**{largest.bit_length() - 1}"
        raise MechanismError(f"{name} must be above 0 and at most {limit}, got {shown(value)}. Hint: check its unit.")
    return exact


def not_negative(name: str, value: Fraction | int) -> Fraction:
    """Return `value` as a Fraction, refusing negative ones."""
    exact = fraction(name, value)
    if exact < 0:
        raise MechanismError(f"{name} must not be negative, got {shown(value)}. Hint: a sensitivity is a distance.")
    return exact
