# SPDX-License-Identifier: Apache-2.0
"""Who gets in at a port of a server: limits before anybody has proved who it is, and limits for each party after.

What is said on a connection that was let in is decided in ``server`` and ``sessions``.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from veilwood.errors import PartyError
from veilwood.secure.roles.identity import Name, peer_name
from veilwood.secure.roles.transport import Channel, Room, reason

__all__ = ["Listener"]

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 10.0
"""How long somebody has to prove who it is, all in all."""
MOST_STRANGERS: Final = 64  # connections at once of which nobody knows yet whose they are
MOST_CONNECTIONS: Final = 128  # in common; each may bring two links: select stays below its 1024 descriptors
OWN_CONNECTIONS: Final = 2  # that a party always gets, however many others have
MOST_OF_ONE: Final = 16  # connections of one party at once
MOST_BYTES: Final = 1 << 28  # of messages that are being received from people, all together
_MOST_OWN: Final = 150  # connections beyond those in common


class _Strangers:
    """Connections before their certificate is checked: if too many, the host with the most loses its oldest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, str] = {}  # oldest first

    def add(self, connection: socket.socket, host: str) -> None:
        with self._lock:
            self._waiting[connection] = host
            if len(self._waiting) <= self._most:
                return
            (crowd, _), *_ = Counter(self._waiting.values()).most_common(1)
            oldest = next(one for one, where in self._waiting.items() if where == crowd)
            del self._waiting[oldest]
        log.warning("gave up a silent connection from %s: %d others wait to prove who they are", crowd, self._most)
        with suppress(OSError):
            socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # its thread wakes up and closes it

    def remove(self, connection: socket.socket) -> None:
        with self._lock:
            self._waiting.pop(connection, None)


class _Guests:
    """Connections by party: so many for each, so many in common, and some for each whatever the others do."""

    def __init__(self, most: int, of_one: int) -> None:
        self._most, self._of_one = most, of_one
        self._lock = threading.Lock()
        self._open: Counter[Name] = Counter()

    def enter(self, who: Name) -> None:
        with self._lock:
            if self._open[who] >= self._of_one:
                raise PartyError(
                    f"{who} has {self._of_one} connections open, and none may have more. Hint: close some, or wait.",
                    party=str(who),
                )
            common = sum(max(count - OWN_CONNECTIONS, 0) for count in self._open.values())
            own = sum(min(count, OWN_CONNECTIONS) for count in self._open.values())
            if common >= self._most if self._open[who] >= OWN_CONNECTIONS else own >= _MOST_OWN:
                raise PartyError("this server is full: others have too many connections open. Hint: try again later.")
            self._open[who] += 1

    def leave(self, who: Name) -> None:
        with self._lock:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

    def count(self) -> int:
        with self._lock:
            return self._open.total()


class Listener:
    """Accepts connections on one address and hands each, its certificate checked, to a thread of its own.

    Parameters
    ----------
    host, port
        Where to listen.
    context : ssl.SSLContext
        Which certificates are accepted.
    timeout : float
        Seconds after which a silent party counts as lost.
    handle : callable
        What to do with a connection; it is closed by whoever gets it.
    of_one : int
        How many connections one party may have at once.
    most_bytes : int, optional
        How many bytes of messages may be on their way in at once, from all parties together.
    """

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext,
        timeout: float,
        handle: Callable[[Channel], None],
        *,
        of_one: int = MOST_OF_ONE,
        most_bytes: int | None = None,
    ) -> None:
        self._context, self._timeout, self._handle = context, timeout, handle
        self._strangers, self._guests = _Strangers(MOST_STRANGERS), _Guests(MOST_CONNECTIONS, of_one)
        self._room = None if most_bytes is None else Room(most_bytes)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, name=f"listen-{self.port}", daemon=True).start()

    @property
    def connections(self) -> int:
        """How many connections of known parties are open."""
        return self._guests.count()

    def close(self) -> None:
        """Stop listening; what is connected stays so."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._socket.accept()
                connection.setblocking(False)
                secured = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            except OSError:
                if self._socket.fileno() < 0:
                    return
                time.sleep(0.02)  # no descriptors are left, or the caller has gone: others will come
                continue
            self._strangers.add(secured, address[0])
            threading.Thread(target=self._greet, args=(secured, address[0]), daemon=True).start()

    def _greet(self, connection: ssl.SSLSocket, host: str) -> None:
        try:
            _shake_hands(connection)
            who = peer_name(connection)
        except Exception as error:  # whatever arrives, the server goes on
            log.warning("refused a connection from %s: %s", host, reason(error))
            connection.close()
            return
        finally:
            self._strangers.remove(connection)
        channel = Channel(connection, who, self._timeout, room=self._room)
        try:
            self._guests.enter(who)
            channel.on_close = lambda: self._guests.leave(who)
            self._handle(channel)
        except Exception as error:
            log.warning("%s at %s: %s", who, host, reason(error))
            channel.fail(error)


def _shake_hands(connection: ssl.SSLSocket) -> None:
    """Check a certificate; somebody that sends byte after byte gets no more time than somebody that is silent."""
    until = time.monotonic() + HANDSHAKE_SECONDS
    while True:
        left = max(until - time.monotonic(), 0)
        try:
            return connection.do_handshake()
        except ssl.SSLWantReadError:
            ready = select.select([connection], [], [], left)[0]
        except ssl.SSLWantWriteError:
            ready = select.select([], [connection], [], left)[1]
        if not ready:
            raise PartyError(f"it has not proved who it is for {HANDSHAKE_SECONDS:g} seconds")
