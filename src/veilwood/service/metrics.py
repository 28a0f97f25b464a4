# SPDX-License-Identifier: Apache-2.0
"""Counts of requests for those who run the service, as Prometheus reads them. No figure depends on private rows."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest

__all__ = ["Metrics"]

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Metrics:
    """The counts of one process."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # when the first answer was ready may tell sizes
        self._registry = CollectorRegistry()
        names = ["method", "route"]
        self._requests = Counter(
            "veilwood_requests", "Requests by route and status.", [*names, "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "veilwood_prediction_seconds", "Time of a free prediction.", registry=self._registry, buckets=_BUCKETS
        )

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request. Times are kept for predictions alone: those of fits and answers tell sizes."""
        named = method if method in _METHODS else "other"  # a client may invent any, and each would be kept
        self._requests.labels(named, route, str(status)).inc()
        if route.endswith("/predict"):
            self._seconds.observe(seconds)

    def text(self) -> bytes:
        """All counts, in Prometheus' format."""
        return generate_latest(self._registry)
