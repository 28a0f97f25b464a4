# SPDX-License-Identifier: Apache-2.0
"""Servers for the tests of roles: fresh ones, and ones that are trained once for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from veilwood_secure.roles.local import LocalServers, local_servers
from veilwood_testing.secure_roles import CAR_SCHEMA, Place, place


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("trained")) as made:
        made.train()
        yield made


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[LocalServers]:
    with local_servers(CAR_SCHEMA, epsilon=2, max_depth=3, folder=tmp_path / "roles", timeout=10.0) as made:
        yield made
