# SPDX-License-Identifier: Apache-2.0
"""Messages between authenticated parties: framed bytes over mutual TLS, with limits, patience and names in errors.

What the messages mean is decided in ``server``, ``client`` and ``user``; nothing received is ever unpickled.
"""

from __future__ import annotations

import json
import logging
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from veilwood.bounded import read_json
from veilwood.errors import PartyError, VeilwoodError
from veilwood.secure.roles.identity import Name, peer_name

__all__ = ["Channel", "Listener", "TlsLinks", "dial"]

log = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview

FIRST_WORDS: Final = 1 << 16
"""The longest message read from somebody whose wish is not known yet."""
_HEADER: Final = struct.Struct("!BIQ")  # kind, number of the message, length
_DATA, _FAILURE, _WAITING = 0, 1, 2
_RECORD: Final = 1 << 14  # the largest TLS record: a write of one either happens or is tried again, unchanged
_HANDSHAKE_SECONDS: Final = 10.0
_FAREWELL_SECONDS: Final = 1.0
_MOST_CONNECTIONS: Final = 200  # each may bring two links: select stays below its 1024 descriptors


class _Silence(PartyError):
    """Somebody has said nothing for too long."""

    def __init__(self, party: str, seconds: float) -> None:
        super().__init__(f"{party} is too slow: no word for {seconds:g} seconds.", party=party)


class Channel:
    """Whole messages to and from one party whose certificate was checked.

    One thread uses a channel; while it waits to write it also reads, so that two parties sending each other
    more than the network holds do not wait for ever.
    """

    def __init__(self, connection: ssl.SSLSocket, peer: Name, timeout: float, limit: int = FIRST_WORDS) -> None:
        self.peer, self.timeout, self.limit = peer, timeout, limit
        self._socket = connection
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._outgoing: deque[memoryview] = deque()
        self._incoming: deque[bytearray] = deque()
        self._sent, self._received = 0, 0
        self._partial = memoryview(bytearray(_HEADER.size))
        self._filled, self._in_header = 0, True
        self._ended: str | None = None
        self.waits_for: str | None = None

    def send(self, data: Buffer) -> None:
        """Send a message, waiting until it is on its way."""
        self._post(_DATA, data)
        wait([self], self, lambda: not self._outgoing)

    def receive(self, among: Sequence[Channel] = ()) -> bytearray:
        """Return the next message; if one ``among`` others reports a failure first, raise that."""
        wait(among or [self], self, lambda: bool(self._incoming))
        return self._incoming.popleft()

    def say(self, **words: Any) -> None:
        """Send a small message of plain values."""
        self.send(json.dumps(words).encode())

    def hear(self, *keys: str, among: Sequence[Channel] = ()) -> dict[str, Any]:
        """Return the next message of plain values, which must have these keys."""
        try:
            words = read_json(self.receive(among))
        except PartyError:
            raise
        except ValueError:
            words = None
        if not isinstance(words, dict) or not set(keys) <= set(words):
            raise self._lies(f"a message with {', '.join(keys)} was expected")
        return words

    def fail(self, error: BaseException) -> None:
        """Tell the other side why this one gives up, as far as that is possible, and close."""
        text = str(error) if isinstance(error, VeilwoodError) else f"unexpected {type(error).__name__}"
        words = {"message": text, "party": getattr(error, "party", None)}
        with suppress(PartyError, OSError):
            self._post(_FAILURE, json.dumps(words).encode()[:FIRST_WORDS])
            wait([self], self, lambda: not self._outgoing, _FAREWELL_SECONDS)
            self._socket.settimeout(_FAREWELL_SECONDS)
            socket.socket.shutdown(self._socket, socket.SHUT_WR)
            # What the other side still sends must not reset the connection before it has read the reason.
            until = time.monotonic() + _FAREWELL_SECONDS
            while time.monotonic() < until and self._socket.recv(1 << 16):
                pass
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._ended = self._ended or "was closed"
        with suppress(OSError):
            self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor, for ``select``."""
        return self._socket.fileno()

    @property
    def waiting(self) -> bool:
        """Whether something has arrived, be it the end of the connection."""
        return bool(self._incoming) or self._ended is not None or bool(select.select([self], [], [], 0)[0])

    # -- frames --------------------------------------------------------------------------------------------------

    def _post(self, kind: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        self._outgoing.append(memoryview(_HEADER.pack(kind, self._sent & 0xFFFFFFFF, len(view))))
        if len(view):
            self._outgoing.append(view)
        self._sent += 1

    def _write(self) -> bool:
        """Write what the network takes now; return whether it took anything."""
        before = len(self._outgoing), len(self._outgoing[0]) if self._outgoing else 0
        try:
            while self._outgoing and self._ended is None:
                first = self._outgoing.popleft()
                try:
                    done = self._socket.send(first[:_RECORD])
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    self._outgoing.appendleft(first)
                    break
                if done < len(first):
                    self._outgoing.appendleft(first[done:])
        except OSError as error:  # what the peer said before it closed is still to be read
            self._outgoing.clear()
            self._read()
            self._ended = self._ended or _reason(error)
        return before != (len(self._outgoing), len(self._outgoing[0]) if self._outgoing else 0)

    def _read(self) -> bool:
        """Read what has arrived; return whether anything had."""
        some = False
        try:
            while self._ended is None:
                if self._filled == len(self._partial):
                    self._turn()
                    continue
                count = self._socket.recv_into(self._partial[self._filled :])
                if count == 0:
                    self._ended = "closed the connection"
                self._filled += count
                some = some or count > 0
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            self._ended = _reason(error)
        return some

    def _turn(self) -> None:
        """Go on to the message after a header, or to the header after a message."""
        if self._in_header:
            kind, number, length = _HEADER.unpack(self._partial)
            if kind not in (_DATA, _FAILURE, _WAITING) or number != self._received & 0xFFFFFFFF:
                raise self._lies(f"message {self._received} does not follow the one before it")
            if length > (self.limit if kind == _DATA else FIRST_WORDS):
                # How long is not said: it may tell the number of rows, and errors are passed on.
                raise self._lies("it announced a message longer than is allowed")
            self._kind, self._partial, self._received = kind, memoryview(bytearray(length)), self._received + 1
        else:
            message = self._partial.obj
            assert isinstance(message, bytearray)
            if self._kind == _FAILURE:
                raise self._reported(message)
            self.waits_for = message.decode(errors="replace")[:100] if self._kind == _WAITING else None
            if self._kind == _DATA:
                self._incoming.append(message)
            self._partial = memoryview(bytearray(_HEADER.size))
        self._filled, self._in_header = 0, not self._in_header

    def _reported(self, message: bytearray) -> PartyError:
        """Turn what the other side gave as its reason into an error of this side."""
        self._ended = "gave up"
        try:
            words = read_json(message)
            text, party = str(words["message"])[:2000], words["party"]
        except (ValueError, KeyError, TypeError):
            return self._lies("its farewell cannot be read")
        if party and party != str(self.peer):  # the reason names whom to blame
            return PartyError(text, party=str(party))
        return PartyError(f"{self.peer} gave up: {text}", party=str(self.peer))

    def _lies(self, what: str) -> PartyError:
        return PartyError(f"{self.peer} does not keep to the protocol: {what}.", party=str(self.peer))

    def _lost(self, what: str) -> PartyError:
        return PartyError(f"{self.peer} is lost: it {what}. Hint: try again.", party=str(self.peer))


def wait(channels: Sequence[Channel], needed: Channel, done: Callable[[], bool], timeout: float | None = None) -> None:
    """Read from and write to all channels until ``done``; the needed one may be silent for ``timeout`` at most."""
    patience = needed.timeout if timeout is None else timeout
    deadline = time.monotonic() + patience
    while not done():
        moved = False
        for channel in channels:
            wrote, read = channel._write(), channel._read()
            moved = moved or wrote or read
            if channel is needed and (wrote or read):
                deadline = time.monotonic() + patience
        if moved or done():
            continue
        if needed._ended is not None:
            raise needed._lost(needed._ended)
        alive = [channel for channel in channels if channel._ended is None]
        writers = [channel for channel in alive if channel._outgoing]
        left = deadline - time.monotonic()
        if left <= 0 or not any(select.select(alive, writers, [], left)):
            raise _Silence(str(needed.peer), patience)


class TlsLinks:
    """How one server talks to the other two in one session: the engine's links, over channels.

    Parameters
    ----------
    party : int
        Which server this is.
    channels : dict
        The channels to the other two, by their number.
    """

    def __init__(self, party: int, channels: dict[int, Channel]) -> None:
        self.party = party
        self.channels = channels

    def add(self, other: int, channel: Channel) -> None:
        """Add the channel to another server."""
        self.channels[other] = channel

    @property
    def _all(self) -> list[Channel]:
        return list(self.channels.values())

    def wait_for(self, person: Channel, seconds: float) -> bool:
        """Wait until a person says something; False if it left, an error if a server did.

        A person that has spoken to another server, which is already waiting for this one, gets little time.
        """
        deadline = time.monotonic() + seconds
        while not person.waiting:
            for link in self._all:
                link._read()
                if link._ended is not None:
                    raise link._lost(link._ended)
                if link._incoming:
                    deadline = min(deadline, time.monotonic() + person.timeout / 2)
            quiet = [link for link in self._all if not link._incoming]
            left = deadline - time.monotonic()
            if left <= 0:
                raise _Silence(str(person.peer), seconds)
            select.select([person, *quiet], [], [], left)
        person._read()
        return bool(person._incoming) or person._ended is None

    def send(self, to: int, data: Buffer) -> None:
        """Send a message to a server, reading meanwhile what the others send."""
        channel = self.channels[to]
        channel._post(_DATA, data)
        wait(self._all, channel, lambda: not channel._outgoing)

    def receive(self, sender: int) -> bytearray:
        """Return the next message of a server.

        A server that has waited too long says for whom, and listens a moment longer: if the one it waits for
        is itself waiting, the one at the end of the chain is to blame.
        """
        channel = self.channels[sender]
        try:
            wait(self._all, channel, lambda: bool(channel._incoming))
        except _Silence:
            for other in self._all:
                other._post(_WAITING, str(channel.peer).encode())
            try:
                wait(self._all, channel, lambda: bool(channel._incoming), _FAREWELL_SECONDS)
            except _Silence:
                raise _Silence(channel.waits_for or str(channel.peer), channel.timeout) from None
        return channel._incoming.popleft()

    def close(self, error: BaseException | None = None) -> None:
        """End the session; with an error, tell the others first."""
        for channel in self._all:
            if error is None:
                channel.close()
            else:
                channel.fail(error)


class Listener:
    """Accepts connections on one address and hands each, its certificate checked, to a thread of its own."""

    def __init__(
        self, host: str, port: int, context: ssl.SSLContext, timeout: float, handle: Callable[[Channel], None]
    ) -> None:
        self._context, self._timeout, self._handle = context, timeout, handle
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_MOST_CONNECTIONS)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, name=f"listen-{self.port}", daemon=True).start()

    def close(self) -> None:
        """Stop listening; what is connected stays so."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._socket.accept()
            except OSError:
                return
            if self._free.acquire(blocking=False):
                threading.Thread(target=self._greet, args=(connection, address), daemon=True).start()
            else:
                log.warning("refused a connection from %s: %d are open", address[0], _MOST_CONNECTIONS)
                connection.close()

    def _greet(self, connection: socket.socket, address: tuple[str, int]) -> None:
        try:
            connection.settimeout(_HANDSHAKE_SECONDS)
            secured = self._context.wrap_socket(connection, server_side=True)
            self._handle(Channel(secured, peer_name(secured), self._timeout))
        except Exception as error:  # whatever arrives, the server goes on
            log.warning("refused a connection from %s: %s", address[0], _reason(error))
            connection.close()
        finally:
            self._free.release()


def dial(
    host: str, port: int, context: ssl.SSLContext, name: Name, *, timeout: float, limit: int, patience: float = 5.0
) -> Channel:
    """Connect to a server and check that its certificate carries its name; try again while nobody listens."""
    until = time.monotonic() + patience
    while True:
        plain = None
        try:
            plain = socket.create_connection((host, port), timeout=_HANDSHAKE_SECONDS)
            return Channel(context.wrap_socket(plain, server_hostname=name.dns), name, timeout, limit)
        except ssl.SSLError as error:
            if plain is not None:
                plain.close()
            raise PartyError(
                f"whoever listens at {host}:{port} is not {name}: {_reason(error)}. Hint: compare the certificates.",
                party=str(name),
            ) from None
        except OSError as error:
            if plain is not None:
                plain.close()
            if time.monotonic() > until:
                raise PartyError(
                    f"{name} cannot be reached at {host}:{port}: {_reason(error)}.", party=str(name)
                ) from None
            time.sleep(0.1)


def _reason(error: BaseException) -> str:
    """Why a connection failed, in few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"refused in the TLS handshake ({(error.reason or 'closed').lower().replace('_', ' ')})"
    if isinstance(error, PartyError):
        return str(error)
    return getattr(error, "strerror", None) or type(error).__name__
