# SPDX-License-Identifier: Apache-2.0
"""Logging and monitoring of a server: JSON log lines, Prometheus metrics, liveness and readiness.

The endpoint is served on the loopback address without a certificate. Nothing here depends on rows: sizes and durations
are not reported.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import prometheus_client as prometheus
from cryptography import x509
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pythonjsonlogger.json import JsonFormatter

from veilwood._version import __version__
from veilwood.errors import VeilwoodError
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood_secure.roles.config import Config
from veilwood_secure.roles.identity import PartyName
from veilwood_secure.roles.task_state import TaskState
from veilwood_secure.roles.transport import Listener

_TIME_FORMAT: Final = "%Y-%m-%d %H:%M:%S"  # whole seconds: finer ones would tell durations, which depend on rows
_LOG_FIELDS: Final = ("time", "level", "who", "message", "details")

HEARTBEAT_LIMIT_S: Final = 60.0
"""Seconds without a heartbeat after which a server counts as dead; heartbeats come twice a second."""


class LogFormatter(JsonFormatter):
    """Formatter that writes a log record as one line of JSON. Control characters of quoted texts are escaped.

    Examples
    --------
    >>> lines = LogFormatter(PartyName("server", "0"))
    >>> record = logging.makeLogRecord({"msg": "user eve: %s", "args": ("x\\n2026 server 0: trained",), "created": 0})
    >>> print(lines.format(record).count("\\n"))
    0
    """

    def __init__(self, party_name: PartyName) -> None:
        super().__init__(
            ["asctime", "levelname", "message"],
            _TIME_FORMAT,
            static_fields={"who": str(party_name)},
            rename_fields={"asctime": "time", "levelname": "level", "exc_info": "details"},
        )

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """Keep only the fields of a log line. Libraries may attach others, such as file and thread names."""
        log_data["level"] = log_data["level"].lower()
        return {name: log_data[name] for name in _LOG_FIELDS if name in log_data}


def configure_logging(party_name: PartyName, level: str = "info") -> None:
    """Log JSON lines to standard error, from the given level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter(party_name))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _SilentHandler(WSGIRequestHandler):
    """Handler of a request from the monitoring system that logs nothing."""

    timeout = 10.0  # a client that never finishes its request must not occupy a thread for ever

    def log_message(self, format: str, *args: object) -> None:
        """Ignore log messages of the HTTP server: the log contains only training runs and requests of parties."""


class MonitoringMixin(Collector):
    """Mixin of ``Server`` with the metrics and health checks for its operator.

    Notes
    -----
    Guarantee

    No metric depends on rows: requests, training runs and privacy losses are counted, but neither sizes nor durations
    (proofs/secure.md, attacked by packages/veilwood-secure/tests/roles/test_monitoring.py).
    """

    config: Config
    last_heartbeat: float
    _task_states: dict[str, TaskState]
    _task_faults: dict[str, str]
    _ledger: SQLiteLedger
    _listeners: list[Listener]
    _closed: threading.Event

    def _register_metrics(self) -> None:
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # times of events depend on durations
        self._registry = prometheus.CollectorRegistry()
        self._requests = prometheus.Counter(
            "veilwood_secure_requests", "Requests of owners and users, by kind and outcome.", ["do", "end", "role"],
            registry=self._registry,
        )  # fmt: skip
        self._trainings = prometheus.Counter(
            "veilwood_secure_trainings", "Training runs since the start, by outcome.", ["end"], registry=self._registry
        )
        self._registry.register(self)

    def _count_request(self, request: str, party_name: PartyName, outcome: str) -> None:
        self._requests.labels(request, outcome, party_name.role).inc()

    def _count_training(self, outcome: str) -> None:
        self._trainings.labels(outcome).inc()

    def collect(self) -> Iterator[Metric]:
        """Yield the current values of the gauges."""
        phases = Counter({"waiting": 0, "training": 0, "trained": 0, "faulty": len(self._task_faults)})
        phases.update(state.phase for state in list(self._task_states.values()))
        ports = zip(("peers", "participants"), self._listeners, strict=False)
        spent, budget = self._ledger.spent.epsilon, self._ledger.budget
        certificate = x509.load_pem_x509_certificate(self.config.identity.certificate.read_bytes())
        yield _labelled_gauge("info", "The version that runs.", "version", {__version__: 1})
        yield _labelled_gauge(
            "tasks", "Tasks by phase; invalid tasks of the configuration are faulty.", "phase", phases
        )
        yield _labelled_gauge(
            "connections", "Open authenticated connections, by port.", "port",
            {port: listener.n_connections for port, listener in ports},
        )  # fmt: skip
        yield GaugeMetricFamily(
            "veilwood_secure_epsilon_spent", "Total of the server's ledger; +Inf after a training that is not private.",
            float("inf") if spent is None else float(spent),
        )  # fmt: skip
        if budget is not None and budget.epsilon is not None:
            yield GaugeMetricFamily(
                "veilwood_secure_epsilon_budget", "Budget of the server's ledger, if it has one.", float(budget.epsilon)
            )
        yield GaugeMetricFamily(
            "veilwood_secure_certificate_expires_seconds", "Expiry of the certificate, in seconds since 1970.",
            certificate.not_valid_after_utc.timestamp(),
        )  # fmt: skip

    def metrics_text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        return prometheus.generate_latest(self._registry).decode()

    def start_endpoint(self, port: int) -> WSGIServer:
        """Serve ``/metrics``, ``/health`` and ``/ready`` on the loopback address, in a thread. Port 0: any free one."""
        endpoint = make_server("127.0.0.1", port, self._respond_to_monitor, ThreadingWSGIServer, _SilentHandler)
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        return endpoint

    def _respond_to_monitor(self, request: Any, start_response: Any) -> Iterable[bytes]:
        try:
            status, text = self._monitoring_page(request["PATH_INFO"])
        except Exception as error:  # the monitoring system must see any failure; its text may quote a file's content
            status, text = "500 Internal Server Error", f"unexpected {type(error).__name__}\n"
        start_response(status, [("Content-Type", prometheus.CONTENT_TYPE_PLAIN_0_0_4)])
        return [text.encode()]

    def _monitoring_page(self, path: str) -> tuple[str, str]:
        """Return the HTTP status and text of a page."""
        available, unavailable = "200 OK", "503 Service Unavailable"
        if path == "/metrics":
            return available, self.metrics_text()
        if path == "/health":
            return (available, "alive\n") if self.is_alive() else (unavailable, "not alive\n")
        if path == "/ready":
            problems = self.find_problems()
            return unavailable if problems else available, json.dumps({"ready": not problems, "why": problems}) + "\n"
        return "404 Not Found", "pages: /metrics, /health, /ready\n"

    def find_problems(self) -> list[str]:
        """Return the reasons why this server cannot serve now. Faulty tasks are reported in the metrics instead."""
        problems = []
        if len(self._listeners) < 2 or self._closed.is_set():
            problems.append("it does not listen")
        if not os.access(self.config.folder, os.W_OK):
            problems.append("its folder cannot be written")
        try:
            self._ledger.head()
        except VeilwoodError as error:
            problems.append(str(error))
        return problems

    def is_alive(self) -> bool:
        """Return True if the last heartbeat is recent."""
        return time.monotonic() - self.last_heartbeat < HEARTBEAT_LIMIT_S


def _labelled_gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(f"veilwood_secure_{name}", text, labels=[label])
    for key, value in values.items():
        gauge.add_metric([key], value)
    return gauge
