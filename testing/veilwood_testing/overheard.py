# SPDX-License-Identifier: Apache-2.0
"""What was said, logged and stored in a session of servers, as text that can be compared with that of another one."""

from __future__ import annotations

import json
import re
import time

import pytest

from veilwood_testing.places import Place


def readable(message: bytes) -> str:
    """A message as text, less what is chance."""
    try:
        json.loads(message)
    except ValueError:
        return f"shares or noisy counts, {len(message)} bytes"
    return without_chance(message.decode())


def without_chance(text: str) -> str:
    """Leave out random numbers of a fixed length, and which server was the first to pass an error on."""
    for pattern, word in (
        (r'"(training|ticket)": "[0-9a-f]{16}"', r'"\1": "random"'),
        (r'"party": (null|"server \d")', '"party": "a server"'),
        (r"server \d gave up: ", ""),
    ):
        text = re.sub(pattern, word, text)
    return text


def settled(here: Place, task: str = "scale") -> None:
    """Wait until no server trains, and all of them have a model or the reason why there is none."""
    until = time.monotonic() + 60
    studies = [
        server._find_task(task, here.servers[0]._task_states[task].task.fingerprint()) for server in here.servers
    ]
    while any(study.is_training or not (study.model or study.failure) for study in studies):
        assert time.monotonic() < until
        time.sleep(0.01)


def logged(caplog: pytest.LogCaptureFixture, older: set[int | None]) -> list[str]:
    """What the three servers wrote, each line once: how far each of them comes before an error stops all is chance.

    Threads of servers that other tests have closed may still wait for somebody, and say so: they are ``older``.
    """
    ours = [record for record in caplog.records if record.name.startswith("veilwood") and record.thread not in older]
    texts = [record.getMessage() for record in ours]
    return sorted({re.sub(r"ports \d+ and \d+", "ports", without_chance(text)) for text in texts})
