# SPDX-License-Identifier: Apache-2.0
"""Shared by data/test_draft.py and other tests."""

from __future__ import annotations

from typing import Any


def column(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in found["columns"] if each["name"] == name)
