# SPDX-License-Identifier: Apache-2.0
"""Settings given as words."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")
from veilwood.errors import ParameterError
from veilwood_service.settings import Limits
from veilwood_testing.errors import rejects


def test_limits_are_given_as_words() -> None:
    assert Limits.from_options(["jobs_at_once=2", "body_bytes=1000"]) == Limits(jobs_at_once=2, body_bytes=1000)
    for word in ("jobs=2", "jobs_at_once", "jobs_at_once=-1", "jobs_at_once=1e9", "jobs_at_once=" + "9" * 20):
        with rejects(ParameterError, name="limit"):
            Limits.from_options([word])
