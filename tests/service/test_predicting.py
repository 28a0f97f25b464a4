# SPDX-License-Identifier: Apache-2.0
"""Models in memory, and only those that were trained here."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")
from fixtures.serving import Running


def test_a_model_file_that_was_exchanged_is_not_served(running: Running) -> None:
    first, second = running.trained(), running.trained()
    folder = running.service.settings.models
    (folder / f"{first}.veilwood").write_bytes((folder / f"{second}.veilwood").read_bytes())
    running.service.predicting._models.clear()
    assert running.ask("analyst", "GET", f"/v1/models/{first}/file").status_code == 409
    assert running.ask("analyst", "GET", f"/v1/models/{second}/file").status_code == 200
