# SPDX-License-Identifier: Apache-2.0
"""The log of a server: one JSON object a line, whatever others wrote into the texts it quotes."""

from __future__ import annotations

import json
import logging
from typing import Final

from veilwood.secure.roles.identity import Name

__all__ = ["Lines", "log_lines"]

_SECONDS: Final = "%Y-%m-%d %H:%M:%S"  # whole ones: how long a training took would tell how many rows there were


class Lines(logging.Formatter):
    """Writes a record as one line of JSON: line breaks and control characters of quoted texts are escaped.

    Examples
    --------
    >>> lines = Lines(Name("server", "0"))
    >>> record = logging.makeLogRecord({"msg": "user eve: %s", "args": ("x\\n2026 server 0: trained",), "created": 0})
    >>> print(lines.format(record).count("\\n"))
    0
    """

    def __init__(self, who: Name) -> None:
        super().__init__(datefmt=_SECONDS)
        self._who = str(who)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        words = {
            "time": self.formatTime(record, self.datefmt),
            "level": record.levelname.lower(),
            "who": self._who,
            "message": record.getMessage(),
        }
        if record.exc_info:
            words["details"] = self.formatException(record.exc_info)
        return json.dumps(words)


def log_lines(who: Name, level: str = "info") -> None:
    """Have this process log in such lines, to stderr, from a level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(Lines(who))
    logging.basicConfig(level=level.upper(), handlers=[handler])
