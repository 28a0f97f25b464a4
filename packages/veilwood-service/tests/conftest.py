# SPDX-License-Identifier: Apache-2.0
"""A service for each test, and one place where all of them log, which is searched when all tests are over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from veilwood_service.accounts import Accounts
    from veilwood_testing.running_service import Logbook, Running


@pytest.fixture(scope="session")
def logbook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logbook]:
    """Fail the run if a secret, a private value or a path was logged by any service, however it came to be."""
    pytest.importorskip("fastapi")
    from veilwood_testing.running_service import PASSWORD, Logbook

    book = Logbook(tmp_path_factory.mktemp("logs"))
    book.secrets |= {PASSWORD, str(tmp_path_factory.getbasetemp())}
    yield book
    assert book.leaks() == []


@pytest.fixture(scope="module", autouse=True)
def _written(logbook: Logbook) -> Iterator[None]:
    """Write it while tests of the service run, and not what others in this process may log."""
    with logbook.written():
        yield


@pytest.fixture(scope="session")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One service with one table, for tests that disturb nobody."""
    pytest.importorskip("fastapi")
    from veilwood_testing.running_service import serving

    with serving(tmp_path_factory.mktemp("lasting")) as found:
        found.add_cars()
        yield found


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A fresh service with one table."""
    from veilwood_testing.running_service import serving

    with serving(tmp_path) as found:
        found.add_cars()
        yield found


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    """The accounts of a service."""
    pytest.importorskip("sqlalchemy")
    from veilwood_service.accounts import Accounts
    from veilwood_service.settings import Settings
    from veilwood_service.store import Store

    records = Store(Settings(tmp_path))
    records.create_tables()
    records.create_tables()  # a second start finds everything there
    return Accounts(records)
