# SPDX-License-Identifier: Apache-2.0
"""Shared by guarantees/test_door.py and other tests."""

from __future__ import annotations

from fractions import Fraction

from veilwood.privacy.loss import Loss

ONE = Loss.pure(Fraction(1))
