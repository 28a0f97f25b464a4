# SPDX-License-Identifier: Apache-2.0
"""Messages, logs and files of a session of servers, as text that can be compared between sessions."""

from __future__ import annotations

import json
import re
import time

import pytest

from veilwood_testing.places import Place


def readable(message: bytes) -> str:
    """Return a message as text without random parts."""
    try:
        json.loads(message)
    except ValueError:
        return f"shares or noisy counts, {len(message)} bytes"
    return without_chance(message.decode())


def without_chance(text: str) -> str:
    """Replace random numbers of fixed length, and the name of the server that forwarded an error first."""
    for pattern, replacement in (
        (r'"(training|ticket)": "[0-9a-f]{16}"', r'"\1": "random"'),
        (r'"party": (null|"server \d")', '"party": "a server"'),
        (r"server \d gave up: ", ""),
    ):
        text = re.sub(pattern, replacement, text)
    return text


def settled(here: Place, task: str = "scale") -> None:
    """Wait until no server is training, and each has a model or the reason of its failure."""
    deadline = time.monotonic() + 60
    studies = [
        server._find_task(task, here.servers[0]._task_states[task].task.fingerprint()) for server in here.servers
    ]
    while any(study.is_training or not (study.model or study.failure) for study in studies):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def logged(caplog: pytest.LogCaptureFixture, older: set[int | None]) -> list[str]:
    """Return the distinct log lines of the three servers, sorted: their progress before an error is random.

    Threads of servers that other tests have closed may still log while they wait; they are ``older``.
    """
    ours = [record for record in caplog.records if record.name.startswith("veilwood") and record.thread not in older]
    texts = [record.getMessage() for record in ours]
    return sorted({re.sub(r"ports \d+ and \d+", "ports", without_chance(text)) for text in texts})
