# SPDX-License-Identifier: Apache-2.0
"""The demonstration: a service with a data set and a model, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from veilwood_service.commands import create_demo_data
from veilwood_testing.running_service import CAR, serving


def test_the_demonstration_is_ready_and_made_once(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        create_demo_data(running.service)
        create_demo_data(running.service)
        evaluation, model = running.get("analyst", "/v1/models")["items"]
        (dataset,) = running.get("analyst", "/v1/datasets")["items"]
        assert (dataset["name"], dataset["remaining"], dataset["has_schema"]) == ("cars", "epsilon=3.5", True)
        assert (evaluation["evaluated"], model["name"]) == (model["id"], "First look at cars")
        assert 0 < model["quality"]["accuracy"] <= 1
        rows = {"rows": CAR.X[:2].to_dict("records")}
        assert len(running.post("analyst", f"/v1/models/{model['id']}/predict", rows)["predictions"]) == 2
