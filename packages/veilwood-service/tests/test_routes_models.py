# SPDX-License-Identifier: Apache-2.0
"""Plans, jobs and models over HTTP: who sees what."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")
from veilwood_service import store
from veilwood_testing.running_service import Running


def test_analysts_see_their_own_plans_and_no_reasons_of_failures(lasting: Running) -> None:
    plan = lasting.post("custodian", "/v1/datasets/cars/plans", {"epsilon": 0.1})
    assert lasting.ask("analyst", "GET", f"/v1/plans/{plan['id']}").status_code == 404
    assert plan["id"] not in {one["id"] for one in lasting.get("analyst", "/v1/plans")["items"]}
    assert plan["id"] in {one["id"] for one in lasting.get("auditor", "/v1/plans")["items"]}
    own = lasting.signed(epsilon=0.1)
    job = lasting.post("analyst", f"/v1/plans/{own['id']}/jobs")["id"]
    lasting.service.database.update(store.jobs, {"id": job}, state="failed", detail="column 'doors'", message="failed")
    assert "doors" not in str(lasting.get("analyst", f"/v1/jobs/{job}"))
    assert lasting.get("analyst", f"/v1/jobs/{job}")["ended"] is None
    assert lasting.get("custodian", f"/v1/jobs/{job}")["detail"] == "column 'doors'"
