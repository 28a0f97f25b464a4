# SPDX-License-Identifier: Apache-2.0
"""Ports for the servers of tests: each process of the tests has a range of its own. No servers live here."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from itertools import count

# Below what systems hand out by themselves (from 32768 on), so that no connection takes a port between the moment it
# is found free and the moment a server listens on it; the processes of one run, and two runs at once, stay apart.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_BLOCKS = count(12_000 + 2_000 * (_WORKER % 10) + 10 * (os.getpid() % 100), 10)


def free_ports(n: int) -> list[int]:
    """Return up to ten ports in a row that nobody uses, the first of them a multiple of ten."""
    assert 0 < n <= 10
    while True:
        first = next(_BLOCKS)
        ports = list(range(first, first + n))
        with ExitStack() as stack:
            try:
                for port in ports:
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return ports
