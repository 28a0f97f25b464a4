# SPDX-License-Identifier: Apache-2.0
"""Every service that is started here logs into one place, which is searched when all tests are over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fixtures.logbook import Logbook


@pytest.fixture(scope="session")
def logbook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logbook]:
    """Fail the run if a secret, a private value or a path was logged by any service, however it came to be."""
    pytest.importorskip("fastapi")
    from fixtures.logbook import Logbook
    from fixtures.serving import PASSWORD

    book = Logbook(tmp_path_factory.mktemp("logs"))
    book.secrets |= {PASSWORD, str(tmp_path_factory.getbasetemp())}
    yield book
    assert book.leaks() == []


@pytest.fixture(scope="module", autouse=True)
def _written(logbook: Logbook) -> Iterator[None]:
    """Write it while tests of the service run, and not what others in this process may log."""
    with logbook.written():
        yield
