# SPDX-License-Identifier: Apache-2.0
"""Logs of the service: one JSON object a line, on standard error, without anything that was sent or read."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

__all__ = ["JSONLines", "log_to_standard_error"]

_FACTS: Final = ("method", "route", "status")


class JSONLines(logging.Formatter):
    """A record as JSON. Of an error its kind and place are told, and never its text, which may hold what was read."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        told |= {name: getattr(record, name) for name in _FACTS if hasattr(record, name)}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            told |= {"event": "broken", "error": type(error).__name__, "place": _place(error)}
        return json.dumps(told)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"


def log_to_standard_error(level: str = "info") -> None:
    """Write what the service and its server say as JSON lines, from a level on; others, where something is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel("ERROR" if level == "error" else "WARNING")
    for name in ("veilwood", "uvicorn"):
        logging.getLogger(name).setLevel(level.upper())
