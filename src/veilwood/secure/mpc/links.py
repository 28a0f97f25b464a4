# SPDX-License-Identifier: Apache-2.0
"""How one server talks to the other two: the interface `Links`, and links between threads of one process.

What is said is not here (see replicated.py), nor links over a network (see mpyc_links.py and transport.py).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from veilwood.errors import PartyError
from veilwood.privacy import entropy

__all__ = ["Links", "ThreadLinks", "agree_keys", "run_threads"]

Buffer = bytes | bytearray | memoryview
Result = TypeVar("Result")
PATIENCE_S = 120.0  # how long a thread waits for another


class Links(Protocol):
    """The channels from one server to the other two: private, authentic, in order."""

    party: int

    def send(self, to: int, data: Buffer) -> None:
        """Send a message; returns at once, even if the other server does not read yet. `data` is not changed later."""

    def receive(self, sender: int) -> Buffer:
        """Return the next message of another server, waiting for it."""


class ThreadLinks:
    """Links between three threads; for tests."""

    def __init__(self, party: int, queues: dict[tuple[int, int], SimpleQueue[Buffer | None]]) -> None:
        self.party = party
        self._queues = queues

    def send(self, to: int, data: Buffer) -> None:
        """Put a message into the queue to another thread."""
        self._queues[self.party, to].put(data)

    def receive(self, sender: int) -> Buffer:
        """Return the next message of another thread."""
        try:
            data = self._queues[sender, self.party].get(timeout=PATIENCE_S)
        except Empty:
            data = None
        if data is None:
            raise PartyError(f"server {sender} stopped. Hint: see its own error.", party=f"server {sender}")
        return data

    def close(self) -> None:
        """Tell both others that nothing more will come."""
        for other in range(3):
            if other != self.party:
                self._queues[self.party, other].put(None)


def agree_keys(links: Links) -> tuple[bytes, bytes]:
    """Return two fresh keys: the one shared with the server before this one, and the one with the server after it."""
    mine = entropy.secret_key()
    links.send((links.party - 1) % 3, mine)
    return mine, bytes(links.receive((links.party + 1) % 3))


def run_threads(program: Callable[[Links], Result]) -> list[Result]:
    """Run a program at three servers that are threads of this process; return the three results."""
    queues: dict[tuple[int, int], SimpleQueue[Buffer | None]]
    queues = {(a, b): SimpleQueue() for a in range(3) for b in range(3) if a != b}

    def serve(party: int) -> Result:
        links = ThreadLinks(party, queues)
        try:
            return program(links)
        finally:
            links.close()

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(serve, party) for party in range(3)]
    # A server whose neighbour stopped stops too: report the first error that is not an echo of another one.
    errors = [error for future in waiting if (error := future.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, PartyError)):
        raise error
    return [future.result() for future in waiting]
