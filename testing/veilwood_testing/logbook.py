# SPDX-License-Identifier: Apache-2.0
"""Logs of all services of a test run, searched for secrets and private values after the last test."""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from veilwood_service.access import JsonLogFormatter

CANARY = "Ottokar7781"
"""Value in a row of every table that tests register. It matches no schema, so the row is dropped."""
_WORDS = re.compile(r"vw_[\w-]{20,}")  # tokens, sessions and invitations, also of other processes


class _Written(logging.FileHandler):
    """Handler of one logbook. Only one is active: lines that a test plants in its own do not reach that of the run."""


class Logbook:
    """Logs in a folder, with the secrets that none of them may contain."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.secrets = folder, {CANARY}

    @contextmanager
    def written(self) -> Iterator[None]:
        """Record the logs of services in this process and its forks, and every token that they create."""
        handler, token_urlsafe = _Written(self.folder / "here.log"), secrets.token_urlsafe
        handler.setFormatter(JsonLogFormatter())

        def recorded_token(size: int | None = None) -> str:
            token = token_urlsafe(size)
            self.secrets.add(token)
            return token

        root, service = logging.getLogger(), logging.getLogger("veilwood.service")
        level, others = service.level, [one for one in root.handlers if isinstance(one, _Written)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(secrets, "token_urlsafe", recorded_token)
            root.handlers[:] = [one for one in root.handlers if one not in others] + [handler]
            service.setLevel(logging.INFO)
            try:
                yield
            finally:
                root.removeHandler(handler)
                root.handlers += others
                service.setLevel(level)
                handler.close()

    def leaks(self) -> list[str]:
        """Return the lines that contain a secret or a private value, or that are not JSON."""
        return [
            f"{path.name}: {line}"
            for path in sorted(self.folder.iterdir())
            for line in path.read_text().splitlines()
            if not line.startswith("{") or _WORDS.search(line) or any(word in line for word in self.secrets)
        ]

    def requests(self) -> int:
        """Return the number of logged requests, to check that the search was not empty."""
        lines = [line for path in self.folder.iterdir() for line in path.read_text().splitlines()]
        return sum("route" in json.loads(line) for line in lines if line.startswith("{"))
