# SPDX-License-Identifier: Apache-2.0
"""Routes for those who run the service: is it alive, is it ready, how busy is it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from veilwood._version import __version__
from veilwood.service import store
from veilwood.service.access import WhoAsks, service_of

router = APIRouter(tags=["state"])


@router.get("/healthz")
async def health() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "alive", "version": __version__}


@router.get("/readyz")
def ready(request: Request) -> dict[str, Any]:
    """Say whether the database answers, and whether somebody has made the first account."""
    accounts = service_of(request).records.every(store.accounts)
    return {
        "status": "ready",
        "has_accounts": bool(accounts),
        "has_provider": bool(service_of(request).settings.issuer),
    }


@router.get("/v1/metrics")
def metrics(request: Request, caller: WhoAsks) -> Response:
    """Counts of requests, as Prometheus reads them."""
    caller.require("operate")
    return Response(service_of(request).metrics.text(), media_type="text/plain; version=0.0.4")
