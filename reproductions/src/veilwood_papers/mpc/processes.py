# SPDX-License-Identifier: Apache-2.0
"""Three servers as local processes, connected by the MPyC runtime.

MPyC's connections, bound to this machine, carry only raw bytes of Veilwood's own protocol. Servers on different
machines use mutual TLS instead: see transport.py.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import resource
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

import numpy as np

from veilwood.errors import PartyError, SetupError
from veilwood_secure.mpc.engine import Stats
from veilwood_secure.mpc.replicated import Buffer, ReplicatedEngine

Result = TypeVar("Result")
HOST = "127.0.0.1"  # by default MPyC listens on every interface
FIRST_LABEL = 1 << 62  # MPyC labels messages by a counter; this range avoids its own labels
START_S = 300.0  # seconds; even on a busy machine, servers connect well within this time


@dataclass(frozen=True)
class ServerCost(Generic[Result]):
    """Result of one server and its cost: counters, CPU and wall seconds, peak memory in bytes."""

    result: Result
    stats: Stats
    cpu_s: float
    wall_s: float
    peak_memory: int


class MpycLinks:
    """Links over the connections of MPyC's runtime, whose event loop runs in a separate thread.

    Parameters
    ----------
    party
        Index of this server: 0, 1 or 2.
    ports
        Ports of the three servers on this machine.
    """

    def __init__(self, party: int, ports: Sequence[int]) -> None:
        self.party = party
        self._runtime = _mpyc_runtime(party, ports)
        self._loop: asyncio.AbstractEventLoop = self._runtime._loop
        self._sent = [FIRST_LABEL] * 3
        self._received = [FIRST_LABEL] * 3
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._runtime.start(), self._loop).result(START_S)
        self._runtime.parties[
            party
        ].protocol = self._loop.create_future()  # MPyC completes it when all parties have left
        self._peers = [peer.protocol for peer in self._runtime.parties]

    def send(self, to: int, data: Buffer) -> None:
        """Queue a message in the event loop."""
        label, self._sent[to] = self._sent[to], self._sent[to] + 1
        self._loop.call_soon_threadsafe(self._peers[to].send, label, bytes(data))

    def receive(self, sender: int) -> Buffer:
        """Return the next message from another server."""
        label, self._received[sender] = self._received[sender], self._received[sender] + 1
        arrival: Future[bytes] = Future()
        self._loop.call_soon_threadsafe(self._await_message, sender, label, arrival)
        while True:
            try:
                return arrival.result(timeout=1)
            except TimeoutError:
                if self._peers[sender].transport.is_closing() and not arrival.done():
                    raise PartyError(
                        f"server {sender} closed its connection. Hint: read its error message.",
                        party=f"server {sender}",
                    ) from None

    def close(self) -> None:
        """Close the connections after all queued messages were sent."""

        def close_connections() -> None:
            for other, peer in enumerate(self._peers):
                if other != self.party:
                    peer.transport.close()
            self._loop.call_later(0.1, self._loop.stop)

        self._loop.call_soon_threadsafe(close_connections)

    def _await_message(self, sender: int, label: int, arrival: Future[bytes]) -> None:
        """Complete `arrival` when the message arrives; runs in the event loop."""
        message = self._peers[sender].receive(label)
        if isinstance(message, asyncio.Future):
            message.add_done_callback(lambda done: arrival.set_result(done.result()))
        else:
            arrival.set_result(message)


def run_three(
    program: Callable[..., Result], *args: Any, ring: type[np.unsignedinteger[Any]] = np.uint32
) -> list[ServerCost[Result]]:
    """Run ``program(engine, *args)`` at three servers, one process each, and return the three outcomes.

    If an argument is a list of three pairs, as `shares.share` returns, each server receives its own pair. `program`
    must be importable from a module, as multiprocessing requires.
    """
    ports = _free_ports()
    context = multiprocessing.get_context("spawn")
    processes, ends = [], []
    for party in range(3):
        own_args = [_own_argument(arg, party) for arg in args]
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_run_server, args=(there, party, ports, program, own_args, ring), daemon=True)
        process.start()
        there.close()
        processes.append(process)
        ends.append(here)
    try:
        answers = [_receive_report(end, party) for party, end in enumerate(ends)]
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    return answers


def _run_server(
    end: Connection, party: int, ports: Sequence[int], program: Callable[..., Any], args: Sequence[Any], ring: Any
) -> None:
    """Run one server: connect, execute the program, report."""
    try:
        links = MpycLinks(party, ports)
        engine = ReplicatedEngine(links, ring=ring)
        wall, cpu = time.perf_counter(), time.process_time()
        result = program(engine, *args)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        end.send(ServerCost(result, engine.stats, cpu, wall, peak))
        links.close()
    except Exception:
        end.send(traceback.format_exc())


def _receive_report(end: Connection, party: int) -> Any:
    """Return the report of a server, or raise PartyError if the server failed."""
    try:
        answer = end.recv()
    except EOFError:
        answer = "it ended without a message"
    if isinstance(answer, str):
        raise PartyError(f"server {party} failed. Hint: read its error message:\n{answer}")
    return answer


def _own_argument(arg: Any, party: int) -> Any:
    """Return the pair of one server out of three pairs, or the argument unchanged."""
    three_pairs = isinstance(arg, list) and len(arg) == 3 and all(isinstance(p, tuple) and len(p) == 2 for p in arg)
    return arg[party] if three_pairs else arg


def _free_ports() -> list[int]:
    """Return three unused ports."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(3)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _mpyc_runtime(party: int, ports: Sequence[int]) -> Any:
    """Return MPyC's runtime for three parties on this machine."""
    arguments = sys.argv
    addresses = [option for port in ports for option in ("-P", f"{HOST}:{port}")]
    try:
        # MPyC parses sys.argv on import and again in setup(), which removes the arguments it used.
        sys.argv = ["veilwood", "--no-log"]
        try:
            from mpyc.runtime import setup
        except ImportError:
            raise SetupError("MPyC is not installed. Hint: run pip install 'veilwood[papers]'") from None

        sys.argv = ["veilwood", *addresses, "-I", str(party), "--no-log"]
        runtime = setup()
    finally:
        sys.argv = arguments
    runtime._loop.create_server = functools.partial(runtime._loop.create_server, host=HOST)
    return runtime
