# SPDX-License-Identifier: Apache-2.0
"""What the services of a whole test run have logged: searched when all tests are over."""

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
"""A cell of a row of every table that tests register; it fits no schema and is dropped."""
_WORDS = re.compile(r"vw_[\w-]{20,}")  # tokens, sessions and invitations, also of other processes


class _Written(logging.FileHandler):
    """One book is written at a time: what a test plants into its own is not in that of the run."""


class Logbook:
    """The logs in a folder, and what must be in none of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.secrets = folder, {CANARY}

    @contextmanager
    def written(self) -> Iterator[None]:
        """Keep what services log in this process, and in those that it forks, and note every word that they make."""
        handler, made = _Written(self.folder / "here.log"), secrets.token_urlsafe
        handler.setFormatter(JsonLogFormatter())

        def noted(size: int | None = None) -> str:
            word = made(size)
            self.secrets.add(word)
            return word

        root, service = logging.getLogger(), logging.getLogger("veilwood.service")
        level, others = service.level, [one for one in root.handlers if isinstance(one, _Written)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(secrets, "token_urlsafe", noted)
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
        """Return the lines that hold a secret or a private value, or that are not the service's own."""
        return [
            f"{path.name}: {line}"
            for path in sorted(self.folder.iterdir())
            for line in path.read_text().splitlines()
            if not line.startswith("{") or _WORDS.search(line) or any(word in line for word in self.secrets)
        ]

    def requests(self) -> int:
        """How many requests were logged: a search through nothing finds nothing."""
        lines = [line for path in self.folder.iterdir() for line in path.read_text().splitlines()]
        return sum("route" in json.loads(line) for line in lines if line.startswith("{"))
