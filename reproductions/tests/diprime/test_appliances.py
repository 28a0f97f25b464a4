# SPDX-License-Identifier: Apache-2.0
"""Errors on Appliances against every parameter."""

from __future__ import annotations

from typing import Any

import pytest

from veilwood_papers.diprime import appliances, methods
from veilwood_papers.tables import PublicTables


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The forests that are asked for; none is fitted."""
    requests: list[dict[str, Any]] = []
    monkeypatch.setattr(methods, "load_table", lambda tables, name: name)
    monkeypatch.setattr(methods, "error_unit", lambda table: 1000.0)
    monkeypatch.setattr(
        methods, "make_forest", lambda method, table, **given: requests.append({"method": method} | given)
    )
    monkeypatch.setattr(methods, "holdout_score", lambda forest, table, seed, scale: float(len(requests)))
    return requests


def test_one_axis_varies_and_the_rest_is_as_usual(made: list[dict[str, Any]]) -> None:
    job = next(job for job in appliances.list_jobs(True) if job.settings["axis"] == "a) against depth")
    rows = list(appliances.measure_job(job, PublicTables()))
    assert len(rows) == len(appliances.METHODS) * len(job.settings["xs"])
    assert {given["max_depth"] for given in made} == set(job.settings["xs"])
    assert {(given["epsilon"], given["n_estimators"]) for given in made} == {(10.0, 10)}


def test_forests_without_noise_are_fitted_once_along_epsilon(made: list[dict[str, Any]]) -> None:
    job = next(job for job in appliances.list_jobs(True) if job.settings["axis"] == "c) against epsilon")
    rows = list(appliances.measure_job(job, PublicTables()))
    assert [given["method"] for given in made].count(methods.RF) == 1
    assert [given["method"] for given in made].count(methods.FLIP) == len(job.settings["xs"])
    assert len({row.value for row in rows if row.cell.curve == methods.RF}) == 1


def test_shares_of_splits_are_varied_for_each_epsilon(made: list[dict[str, Any]]) -> None:
    job = next(job for job in appliances.fraction_jobs(True) if job.settings["axis"] == appliances.BY_RHO)
    assert len(list(appliances.measure_fractions(job, PublicTables()))) == len(made) == 10
    assert {given["split_budget"] for given in made} == set(appliances.RHOS)
    assert {given["candidates"] for given in made} == {10}
