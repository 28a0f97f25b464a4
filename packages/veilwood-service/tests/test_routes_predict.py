# SPDX-License-Identifier: Apache-2.0
"""Predictions over HTTP."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")


def test_classes_that_a_spreadsheet_would_run_are_made_harmless() -> None:
    from veilwood_service.routes_models import _escape_formula

    assert [_escape_formula(value) for value in ("=1+1", "@x", "-3", "good", -3)] == ["'=1+1", "'@x", "'-3", "good", -3]
