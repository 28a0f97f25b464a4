# SPDX-License-Identifier: Apache-2.0
"""The client for R: the check of R itself, with its tests against a live service."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from veilwood_testing.running_service import listening, serving

PACKAGE = Path(__file__).parents[3] / "clients" / "r"
NEEDED = 'for (p in c("httr2", "jsonlite", "testthat")) stopifnot(requireNamespace(p, quietly = TRUE))'


def has_r() -> bool:
    if shutil.which("R") is None or shutil.which("Rscript") is None:
        return False
    return subprocess.run(["Rscript", "-e", NEEDED], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_the_package_passes_the_check_of_r_against_a_live_service(tmp_path: Path) -> None:
    if not has_r():
        pytest.skip("R with httr2, jsonlite and testthat is not installed")
    with serving(tmp_path / "service") as running, listening(running) as address:
        running.add_cars()
        told = {"VEILWOOD_SERVICE": address, "VEILWOOD_TOKEN": running.tokens["analyst"]}
        told |= {"VEILWOOD_CUSTODIAN_TOKEN": running.tokens["custodian"], "_R_CHECK_FORCE_SUGGESTS_": "false"}
        for words in (["build", str(PACKAGE)], ["check", "--no-manual", "veilwood_0.1.0.tar.gz"]):
            command = ["R", "CMD", *words]
            done = subprocess.run(
                command, cwd=tmp_path, env={**os.environ, **told}, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout[-3000:]
        assert "Status: OK" in done.stdout
        tests = (tmp_path / "veilwood.Rcheck" / "tests" / "testthat.Rout").read_text()
        assert "SKIP 0" in tests
        ledger = running.get("auditor", "/v1/datasets/cars/ledger")
        assert ledger["spent"] == "epsilon=1"
