# SPDX-License-Identifier: Apache-2.0
"""What the operator of a server can watch: metrics for Prometheus, and whether the server is alive and ready.

Served on the loopback address, without a certificate. Nothing in it depends on a row: no size, no duration.
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


_TIME_FORMAT: Final = "%Y-%m-%d %H:%M:%S"  # whole ones: how long a training took would tell how many rows there were


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON: line breaks and control characters of quoted texts are escaped.

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
        """Return the line."""
        words = {
            "time": self.formatTime(record, self.datefmt),
            "level": record.levelname.lower(),
            "who": self._party_name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            words["details"] = self.formatException(record.exc_info)
        return json.dumps(words)


def configure_logging(party_name: PartyName, level: str = "info") -> None:
    """Have this process log in such lines, to stderr, from a level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(party_name))
    logging.basicConfig(level=level.upper(), handlers=[handler])


HEARTBEAT_LIMIT_S: Final = 60.0
"""A server that has not looked after itself for so long is taken for dead; it does so twice a second."""

_CONTENT: Final = "text/plain; version=0.0.4; charset=utf-8"
_HELP: Final = {
    "veilwood_secure_info": ("gauge", "The version that runs."),
    "veilwood_secure_tasks": ("gauge", "Tasks by phase; those of the configuration that make no sense are faulty."),
    "veilwood_secure_connections": ("gauge", "Open connections of known parties, by port."),
    "veilwood_secure_requests_total": ("counter", "Requests of owners and users, by what was asked and how it ended."),
    "veilwood_secure_trainings_total": ("counter", "Trainings since the start, by how they ended."),
    "veilwood_secure_epsilon_spent": ("gauge", "Sum of the server's ledger; +Inf after what is not private."),
    "veilwood_secure_epsilon_budget": ("gauge", "Budget of the server's ledger, if it has one."),
    "veilwood_secure_certificate_expires_seconds": ("gauge", "When the certificate ends, in seconds since 1970."),
}

MetricValues = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Counters:
    """Counts events since the start, under names and labels of a fixed set.

    Examples
    --------
    >>> figures = Counters()
    >>> figures.increment("veilwood_secure_trainings_total", end="trained")
    >>> print(figures.to_prometheus({}))
    # HELP veilwood_secure_trainings_total Trainings since the start, by how they ended.
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
        """Return all counts, and the given values of this moment, as Prometheus reads them."""
        with self._lock:
            values: MetricValues = {**gauges, **self._counts}
        lines = []
        for name, (kind, words) in _HELP.items():
            found = sorted((labels, value) for (of, labels), value in values.items() if of == name)
            if found:
                lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
            for labels, value in found:
                inside = ",".join(f'{key}="{word}"' for key, word in labels)
                number = "+Inf" if value == float("inf") else f"{value:.12g}"
                lines.append(f"{name}{{{inside}}} {number}" if inside else f"{name} {number}")
        return "\n".join(lines) + "\n"


class Endpoint:
    """Answers ``/metrics``, ``/health`` and ``/ready`` on a port of the loopback address.

    Parameters
    ----------
    port : int
        Where; 0 takes a free one.
    metrics : callable
        Returns the text of the metrics.
    find_problems : callable
        Returns why the server is not ready; nothing if it is.
    is_alive : callable
        Whether it is alive.
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
                except Exception as error:  # whatever is wrong, whoever watches hears it
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
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


class MonitoringMixin:
    """What a server shows to its operator; the part of ``Server`` that nobody else talks to.

    Notes
    -----
    Guarantee

    No figure depends on rows: calls, trainings and spends are counted, and neither sizes nor durations
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
        """Answer whoever asks for metrics and health on this machine."""
        return Endpoint(port, self.metrics_text, self.find_problems, self.is_alive)

    def _count_request(self, request: str, party_name: PartyName, outcome: str) -> None:
        self.counters.increment("veilwood_secure_requests_total", do=request, end=outcome, role=party_name.role)

    def metrics_text(self) -> str:
        """Return all metrics, as Prometheus reads them."""
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
        """Return why this server cannot serve now; faulty tasks harm no other, and are among the metrics."""
        found = []
        if len(self._listeners) < 2 or self._closed.is_set():
            found.append("it does not listen")
        if not os.access(self.config.folder, os.W_OK):
            found.append("its folder cannot be written")
        try:
            self._ledger.head()
        except VeilwoodError as error:
            found.append(str(error))
        return found

    def is_alive(self) -> bool:
        """Whether this server looked after itself not long ago."""
        return time.monotonic() - self.last_heartbeat < HEARTBEAT_LIMIT_S
