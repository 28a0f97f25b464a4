# SPDX-License-Identifier: Apache-2.0
"""Every service that is started here logs into one place, which is searched when all tests are over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fixtures.logbook import Logbook


@pytest.fixture(scope="session", autouse=True)
def logbook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logbook]:
    """Fail the run if a secret, a private value or a path was logged by any service, however it came to be."""
    pytest.importorskip("fastapi")
    from fixtures.logbook import kept
    from fixtures.serving import PASSWORD

    with kept(tmp_path_factory.mktemp("logs")) as book:
        book.secrets |= {PASSWORD, str(tmp_path_factory.getbasetemp())}
        yield book
    assert book.leaks() == []
