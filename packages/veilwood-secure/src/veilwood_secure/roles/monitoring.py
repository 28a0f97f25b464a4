# SPDX-License-Identifier: Apache-2.0
"""Logging and monitoring of a server: JSON log lines, Prometheus metrics, liveness and readiness.

The endpoint is served on the loopback address without a certificate. Nothing here depends on rows: no sizes, no
durations.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from cryptography import x509

from veilwood._version import __version__
from veilwood.errors import VeilwoodError
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood_secure.roles.config import Config
from veilwood_secure.roles.identity import PartyName
from veilwood_secure.roles.task_state import TaskState
from veilwood_secure.roles.transport import Listener

__all__ = ["Counters", "Endpoint", "JsonFormatter", "MonitoringMixin", "configure_logging"]


_TIME_FORMAT: Final = "%Y-%m-%d %H:%M:%S"  # whole seconds: durations reveal the number of rows


class JsonFormatter(logging.Formatter):
    """Formatter that writes a log record as one line of JSON. Control characters of quoted texts are escaped.

    Examples
    --------
    >>> lines = JsonFormatter(PartyName("server", "0"))
    >>> record = logging.makeLogRecord({"msg": "user eve: %s", "args": ("x\\n2026 server 0: trained",), "created": 0})
    >>> print(lines.format(record).count("\\n"))
    0
    """

    def __init__(self, party_name: PartyName) -> None:
        super().__init__(datefmt=_TIME_FORMAT)
        self._party_name = str(party_name)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        fields = {
            "time": self.formatTime(record, self.datefmt),
            "level": record.levelname.lower(),
            "who": self._party_name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["details"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def configure_logging(party_name: PartyName, level: str = "info") -> None:
    """Log JSON lines to standard error, from the given level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(party_name))
    logging.basicConfig(level=level.upper(), handlers=[handler])


HEARTBEAT_LIMIT_S: Final = 60.0
"""Seconds without a heartbeat after which a server counts as dead; heartbeats come twice a second."""

_CONTENT: Final = "text/plain; version=0.0.4; charset=utf-8"
_HELP: Final = {
    "veilwood_secure_info": ("gauge", "The version that runs."),
    "veilwood_secure_tasks": ("gauge", "Tasks by phase; invalid tasks of the configuration are faulty."),
    "veilwood_secure_connections": ("gauge", "Open authenticated connections, by port."),
    "veilwood_secure_requests_total": ("counter", "Requests of owners and users, by kind and outcome."),
    "veilwood_secure_trainings_total": ("counter", "Trainings since the start, by outcome."),
    "veilwood_secure_epsilon_spent": (
        "gauge",
        "Total of the server's ledger; +Inf after a training that is not private.",
    ),
    "veilwood_secure_epsilon_budget": ("gauge", "Budget of the server's ledger, if it has one."),
    "veilwood_secure_certificate_expires_seconds": ("gauge", "Expiry of the certificate, in seconds since 1970."),
}

MetricValues = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Counters:
    """Thread-safe event counters since the start, with names and labels of a fixed set.

    Examples
    --------
    >>> counters = Counters()
    >>> counters.increment("veilwood_secure_trainings_total", end="trained")
    >>> print(counters.to_prometheus({}))
    # HELP veilwood_secure_trainings_total Trainings since the start, by outcome.
    # TYPE veilwood_secure_trainings_total counter
    veilwood_secure_trainings_total{end="trained"} 1
    <BLANKLINE>
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()

    def increment(self, name: str, **labels: str) -> None:
        """Count one event."""
        with self._lock:
            self._counts[name, tuple(sorted(labels.items()))] += 1

    def to_prometheus(self, gauges: MetricValues) -> str:
        """Return all counters and the given gauges in the Prometheus text format."""
        with self._lock:
            values: MetricValues = {**gauges, **self._counts}
        lines = []
        for name, (kind, help_text) in _HELP.items():
            samples = sorted((labels, value) for (metric, labels), value in values.items() if metric == name)
            if samples:
                lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            for labels, value in samples:
                label_text = ",".join(f'{key}="{word}"' for key, word in labels)
                number = "+Inf" if value == float("inf") else f"{value:.12g}"
                lines.append(f"{name}{{{label_text}}} {number}" if label_text else f"{name} {number}")
        return "\n".join(lines) + "\n"


class Endpoint:
    """HTTP endpoint for ``/metrics``, ``/health`` and ``/ready`` on the loopback address.

    Parameters
    ----------
    port : int
        Port; 0 selects a free one.
    metrics : callable
        Returns the metrics as text.
    find_problems : callable
        Returns the reasons why the server is not ready, or an empty list.
    is_alive : callable
        Returns True if the server is alive.
    """

    def __init__(
        self,
        port: int,
        metrics: Callable[[], str],
        find_problems: Callable[[], list[str]],
        is_alive: Callable[[], bool],
    ) -> None:
        def make_response(path: str) -> tuple[int, str]:
            if path == "/metrics":
                return 200, metrics()
            if path == "/health":
                return (200, "alive\n") if is_alive() else (503, "not alive\n")
            if path == "/ready":
                found = find_problems()
                return (503 if found else 200), json.dumps({"ready": not found, "why": found}) + "\n"
            return 404, "metrics, health or ready\n"

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0

            def do_GET(self) -> None:
                try:
                    status, text = make_response(self.path)
                except Exception as error:  # report any failure to the monitoring system
                    status, text = 500, f"unexpected {type(error).__name__}\n"
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", _CONTENT)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop the endpoint."""
        self._server.shutdown()
        self._server.server_close()


class MonitoringMixin:
    """The part of ``Server`` that its operator monitors.

    Notes
    -----
    Guarantee

    No metric depends on rows: requests, trainings and privacy losses are counted, but neither sizes nor durations
    (proofs/secure.md, attacked by packages/veilwood-secure/tests/roles/test_operation.py).
    """

    config: Config
    counters: Counters
    last_heartbeat: float
    _task_states: dict[str, TaskState]
    _task_faults: dict[str, str]
    _ledger: SQLiteLedger
    _listeners: list[Listener]
    _closed: threading.Event

    def start_endpoint(self, port: int) -> Endpoint:
        """Start the endpoint for metrics and health on this machine."""
        return Endpoint(port, self.metrics_text, self.find_problems, self.is_alive)

    def _count_request(self, request: str, party_name: PartyName, outcome: str) -> None:
        self.counters.increment("veilwood_secure_requests_total", do=request, end=outcome, role=party_name.role)

    def metrics_text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        phases = Counter({"waiting": 0, "training": 0, "trained": 0, "faulty": len(self._task_faults)})
        phases.update(study.phase for study in list(self._task_states.values()))
        spent, budget = self._ledger.spent.epsilon, self._ledger.budget
        certificate = x509.load_pem_x509_certificate(self.config.identity.certificate.read_bytes())
        now: MetricValues = {
            ("veilwood_secure_info", (("version", __version__),)): 1,
            ("veilwood_secure_epsilon_spent", ()): float("inf") if spent is None else float(spent),
            ("veilwood_secure_certificate_expires_seconds", ()): certificate.not_valid_after_utc.timestamp(),
        }
        if budget is not None and budget.epsilon is not None:
            now["veilwood_secure_epsilon_budget", ()] = float(budget.epsilon)
        now |= {("veilwood_secure_tasks", (("phase", phase),)): count for phase, count in phases.items()}
        for port, listener in zip(("peers", "participants"), self._listeners, strict=False):
            now["veilwood_secure_connections", (("port", port),)] = listener.n_connections
        return self.counters.to_prometheus(now)

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
