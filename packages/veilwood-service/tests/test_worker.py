# SPDX-License-Identifier: Apache-2.0
"""The process that carries out one job."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")
from veilwood.progress import set_progress_callback
from veilwood_service import jobs as worker
from veilwood_testing.running_service import SMALL_JOB, Running


def test_how_far_a_job_is_is_for_custodians_alone_and_while_it_runs(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_PROGRESS_SECONDS", -1.0)
    plan = running.signed(**SMALL_JOB)
    job = running.post("analyst", f"/v1/plans/{plan['id']}/jobs")["id"]
    seen: dict[str, list[str]] = {"custodian": [], "analyst": [], "auditor": []}

    def look(doing: str, number: int) -> None:
        worker._JobProgress(running.service.database, running.service.jobs.get(job))(doing, number)
        for role, texts in seen.items():
            texts.append(str(running.get(role, f"/v1/jobs/{job}")))

    set_progress_callback(look)
    try:
        running.carry_out(job)
    finally:
        set_progress_callback(None)
    assert all("1 so far" in text for text in seen["custodian"])
    assert seen["custodian"]
    assert not any("so far" in text for role in ("analyst", "auditor") for text in seen[role])
    assert running.get("custodian", f"/v1/jobs/{job}")["detail"] is None
