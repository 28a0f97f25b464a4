# SPDX-License-Identifier: Apache-2.0
"""Shared by data/test_check.py and other tests."""

from __future__ import annotations

BAD = "age,ward,ill\n31,A,no\nold,C,maybe\n,Anna,yes\n"
