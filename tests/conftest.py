# SPDX-License-Identifier: Apache-2.0
"""What all tests share: searches for counterexamples repeat from run to run, and no test is timed.

Fixtures stand beside the tests that use them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ["VEILWOOD_CACHE"] = "off"  # tests neither find nor leave strategies in the cache of whoever runs them

# A busy machine is no counterexample, and an example found by chance in one run of many should be written down as a
# test of its own rather than fail a change that has nothing to do with it.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def _strategies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("strategies")


@pytest.fixture
def kept_strategies(_strategies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep strategies, as users do: a test that fits matrix forests often, and not to test the search, asks for it."""
    monkeypatch.setenv("VEILWOOD_CACHE", str(_strategies))
