# SPDX-License-Identifier: Apache-2.0
"""The page and its files."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")
from veilwood_testing.running_service import Running


@pytest.mark.parametrize("name", ["../x", "..%2f..%2fetc", "index.html/../../app.py", "app.py", "%00"])
def test_the_page_serves_its_own_files_alone(lasting: Running, name: str) -> None:
    assert lasting.test_client.get(f"/page/{name}").status_code == 404
