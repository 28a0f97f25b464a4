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
from veilwood_service.commands import remote
from veilwood_testing.running_service import VISITS, Running, listening, serving


def test_a_script_plans_runs_predicts_asks_and_downloads(tmp_path: Path) -> None:
    rows, saved, file = VISITS[:3].drop(columns="ill"), tmp_path / "visits.veilwood", str(tmp_path / "rows.csv")
    rows.to_csv(file, index=False)
    with serving(tmp_path / "service") as running, listening(running) as address:
        running.add_visits()

        def run(plan: Any) -> str:
            grant = ["--total-epsilon", "5"] if plan["kind"] == "answer" else []
            call(running, address, "sign", plan["id"], plan["fingerprint"], *grant, role="custodian")
            return str(call(running, address, "run", plan["id"])["id"])

        assert call(running, address, "datasets")[0]["name"] == "visits"
        few = ["--param", "n_estimators=2", "--param", "max_depth=1"]
        model = run(call(running, address, "plan", "visits", "--estimator", "random-trees", *few))
        found = call(running, address, "predict", model, file)["predictions"]
        result = CliRunner().invoke(remote, ["download", model, "-o", str(saved)], env=where(running, address))
        assert result.output == "Wrote\n"
        assert vw.load(saved).predict(rows).tolist() == found
        assert "sensitivity 1" in call(running, address, "evaluate", model, "--epsilon", "0.5")["words"]

        subsample = ["--estimator", "MatrixForestPredictor", "--epsilon", "0.5", "--param", "mode=subsample", *few]
        predictor = run(call(running, address, "plan", "visits", *subsample))
        assert call(running, address, "quote", predictor, file)["epsilon"] == "1/2"
        answers = call(running, address, "ask", predictor, file, "--epsilon", "0.25")
        assert len(answers["labels"]) == 3
        assert call(running, address, "ask", predictor, file) == answers
        assert call(running, address, "datasets")[0]["spent"] == "epsilon=1.25"


def where(running: Running, address: str, role: str = "analyst") -> dict[str, str]:
    return {"VEILWOOD_SERVICE": address, "VEILWOOD_TOKEN": running.tokens[role]}


def call(running: Running, address: str, *words: str, role: str = "analyst") -> Any:
    found = CliRunner().invoke(remote, list(words), env=where(running, address, role), catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return json.loads(found.output)
