# SPDX-License-Identifier: Apache-2.0
"""Alive, ready and busy: what those who run the service see."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")

from veilwood._version import __version__
from veilwood_testing.running_service import Running


def test_everybody_sees_whether_it_is_alive_and_ready_and_operators_how_busy(lasting: Running) -> None:
    asked = lasting.test_client.get
    assert asked("/healthz").json() == {"status": "alive", "version": __version__}
    assert asked("/readyz").json() == {"status": "ready", "has_accounts": True, "has_provider": False}
    assert asked("/v1/metrics").status_code == 401
    assert lasting.ask("analyst", "GET", "/v1/metrics").status_code == 403
