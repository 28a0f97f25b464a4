# SPDX-License-Identifier: Apache-2.0
"""The commands that speak to a running service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("fastapi")

import veilwood as vw
from fixtures.serving import CAR, Running, listening, serving
from veilwood.cli.remote import remote


def test_a_script_plans_runs_predicts_and_downloads(tmp_path: Path) -> None:
    with serving(tmp_path / "service") as running, listening(running) as address:
        running.add_cars()
        assert call(running, address, "datasets")[0]["name"] == "cars"
        plan = call(running, address, "plan", "cars", "--estimator", "random-trees", "--param", "n_estimators=2")
        call(running, address, "sign", plan["id"], plan["fingerprint"], role="custodian")
        model = call(running, address, "run", plan["id"])["id"]
        CAR.X[:3].to_csv(tmp_path / "rows.csv", index=False)
        found = call(running, address, "predict", model, str(tmp_path / "rows.csv"))["predictions"]
        saved = tmp_path / "cars.veilwood"
        told = CliRunner().invoke(remote, ["download", model, "-o", str(saved)], env=where(running, address))
        assert told.output == f"Wrote {saved}\n"
        assert vw.load(saved).predict(CAR.X[:3]).tolist() == found


def where(running: Running, address: str, role: str = "analyst") -> dict[str, str]:
    return {"VEILWOOD_SERVICE": address, "VEILWOOD_TOKEN": running.tokens[role]}


def call(running: Running, address: str, *words: str, role: str = "analyst") -> Any:
    found = CliRunner().invoke(remote, list(words), env=where(running, address, role), catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return json.loads(found.output)
