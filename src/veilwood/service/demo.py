# SPDX-License-Identifier: Apache-2.0
"""A service to look at: a public table of cars as its data set, and a model of it, planned, signed and trained."""

from __future__ import annotations

import json
from typing import Final

from veilwood import datasets
from veilwood.service import store
from veilwood.service.access import Service
from veilwood.service.spends import book_of, dataset_ledger
from veilwood.service.store import now
from veilwood.service.training import AskedRun
from veilwood.service.worker import carry_out

__all__ = ["prepare"]

_NAME: Final = "cars"
_PEOPLE: Final = "makers of cars (a public table, for a first look)"
_WHO: Final = "demo"


def prepare(service: Service) -> None:
    """Fill a new service; one that has a data set is left as it is."""
    if service.records.every(store.datasets):
        return
    car = datasets.car()
    path = service.settings.tables / f"{_NAME}.csv"
    car.X.assign(**{car.schema.target.name: car.y}).to_csv(path, index=False)
    path.chmod(0o600)
    book_of(service.settings, dataset_ledger(_NAME), 5, 0, _PEOPLE).note()
    schema = json.dumps(car.schema.to_dict())
    facts = {"name": _NAME, "people": _PEOPLE, "source": str(path), "schema": schema, "account": _WHO}
    service.records.add(store.datasets, **facts, created=now())
    plan = service.plans.propose_training(_WHO, _NAME, AskedRun())
    plan = service.plans.sign(_WHO, plan["id"], plan["fingerprint"])
    job = service.jobs.add(_WHO, plan, None)
    service.records.change(store.jobs, {"id": job["id"]}, state="running")
    carry_out(service.settings, service.records, service.jobs.get(job["id"]))
