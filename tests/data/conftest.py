# SPDX-License-Identifier: Apache-2.0
"""One PostgreSQL server for all tests of this room that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fixtures.postgres import running


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with running(fsync="off") as address:
        yield address
