# SPDX-License-Identifier: Apache-2.0
"""Lines of a log."""

from __future__ import annotations

import json
import logging
import time

import pytest

from veilwood.errors import PartyError
from veilwood_secure.roles.monitoring import JsonFormatter
from veilwood_testing.limits_cases import PEER, connect
from veilwood_testing.places import TASK, Place


def test_lines_of_the_log_cannot_be_forged(here: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        channel = connect(here)
        words = {"message": "oh\n2026-01-01 server 0: scale: trained", "party": "server 1\nx", "lost": False}
        channel._queue_frame(1, json.dumps(words).encode())
        channel._write_pending()
        with pytest.raises(PartyError):
            channel.receive_fields("x")
    until = time.monotonic() + 60
    while not any("oh?2026" in record.getMessage() for record in caplog.records):
        assert time.monotonic() < until
        time.sleep(0.01)
    (record,) = [record for record in caplog.records if "oh?2026" in record.getMessage()]
    assert record.getMessage().startswith("user analyst: user analyst gave up: ")  # who spoke, and no other to blame
    line = JsonFormatter(PEER).format(
        logging.makeLogRecord({"msg": "a\nb\x1b[2J\u2028", "args": (), "levelname": "INFO"})
    )
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line)["who"] == "server 0"
    assert TASK.name == "scale"
