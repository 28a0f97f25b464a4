# SPDX-License-Identifier: Apache-2.0
"""Alive, ready and busy: what those who run the service see."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("fastapi")

from veilwood._version import __version__
from veilwood_testing.running_service import Running


def test_everybody_sees_whether_it_is_alive_and_ready_and_operators_how_busy(lasting: Running) -> None:
    request = lasting.test_client.get
    assert request("/healthz").json() == {"status": "alive", "version": __version__}
    assert request("/readyz").status_code == 503, "no thread of jobs runs in this test"
    lasting.service.jobs.last_poll = time.monotonic()
    assert request("/readyz").json() == {"status": "ready", "has_provider": False}
    assert request("/v1/metrics").status_code == 401
    assert lasting.ask("analyst", "GET", "/v1/metrics").status_code == 403
