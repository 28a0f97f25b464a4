# SPDX-License-Identifier: Apache-2.0
"""Message transport between authenticated parties: framed bytes over mutual TLS, with limits and timeouts.

Errors name the party at fault. The content of messages is defined in ``server``, ``owner`` and ``user``. Received data
is never unpickled. ``Listener`` accepts the connections of a server, with limits per party.
"""

from __future__ import annotations

import hashlib
import json
import logging
import select
import socket
import ssl
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from veilwood.errors import FileError, PartyError, VeilwoodError
from veilwood.safe_io import read_json
from veilwood_secure.roles.identity import PartyName, peer_name

log = logging.getLogger("veilwood.secure.transport")

Buffer = bytes | bytearray | memoryview

MAX_FIRST_MESSAGE: Final = 1 << 16
"""Maximum size of a message, in bytes, before the request of a connection is known."""
_HEADER: Final = struct.Struct("!BIQ")  # kind, number of the message, length
_DATA, _FAILURE, _WAITING = 0, 1, 2
_TLS_RECORD_BYTES: Final = 1 << 14  # largest TLS record: its write succeeds or is retried unchanged
_CONNECT_TIMEOUT_S: Final = 10.0
_MIN_BYTES_PER_S: Final = 1 << 15  # slower messages time out
_CLOSING_TIMEOUT_S: Final = 1.0
_READ_BLOCK_BYTES: Final = 1 << 18  # memory grows with received, not with announced bytes
_MAX_UNREAD: Final = 16  # unrequested messages of a participant; two are usual


class LostError(PartyError):
    """A party disconnected or is silent, without a protocol violation. A retry may succeed."""


class _TimedOut(LostError):
    """A party has sent nothing within its timeout."""

    def __init__(self, party: str, seconds: float) -> None:
        super().__init__(f"{party} is too slow: no message for {seconds:g} seconds.", party=party)


class ReceiveQuota:
    """Quota of bytes being received or unread at one port: a total, and a quarter of it per party."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._taken: Counter[PartyName] = Counter()

    def reserve_memory(self, party_name: PartyName, count: int) -> None:
        """Reserve memory for a message. Raise PartyError if the quota is exceeded."""
        with self._lock:
            if self._taken[party_name] + count > self._max_bytes // 4:
                raise PartyError(
                    f"{party_name} sent more data at once than one party may send. Hint: send less at a time.",
                    party=str(party_name),
                )
            if self._taken.total() + count > self._max_bytes:
                raise PartyError("this server is receiving as much data as it can hold. Hint: try again later.")
            self._taken[party_name] += count

    def free_memory(self, party_name: PartyName, count: int) -> None:
        """Return the memory of a message that was read or lost to the quota."""
        with self._lock:
            self._taken[party_name] -= count


class Channel:
    """Channel for complete messages to and from one authenticated party.

    A channel is used by one thread. It also reads while it waits to write, so two parties that send each other more
    than the network buffers do not deadlock.
    """

    def __init__(
        self,
        connection: ssl.SSLSocket,
        peer: PartyName,
        timeout: float,
        limit: int = MAX_FIRST_MESSAGE,
        quota: ReceiveQuota | None = None,
    ) -> None:
        self.peer, self.timeout, self.limit = peer, timeout, limit
        self.certificate_der = connection.getpeercert(binary_form=True) or b""
        self.certificate_digest = hashlib.sha256(self.certificate_der).hexdigest()
        self.on_close: Callable[[], None] | None = None
        self._quota, self._held_bytes = quota, 0
        self._socket = connection
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._outgoing: deque[memoryview] = deque()
        self._incoming: deque[bytearray] = deque()
        self._sent, self._received = 0, 0
        self._partial, self._length = bytearray(_HEADER.size), _HEADER.size
        self._filled, self._in_header = 0, True
        self._end_reason: str | None = None
        self.blocked_on: str | None = None

    def send(self, data: Buffer) -> None:
        """Send a message and wait until the network has taken it."""
        self._queue_frame(_DATA, data)
        exchange_until([self], self, lambda: not self._outgoing)

    def receive(self, watched: Sequence[Channel] = (), time_limit: float | None = None) -> bytearray:
        """Return the next message. Raise the failure of a ``watched`` channel if it occurs first.

        With ``time_limit``, the complete message must arrive within that many seconds.
        """
        last = None if time_limit is None else time.monotonic() + time_limit
        exchange_until(watched or [self], self, lambda: bool(self._incoming), hard_deadline=last)
        return self._pop_message()

    def receive_large(self, length: int) -> bytearray:
        """Return the next message, of about this length, which must arrive at a minimum speed."""
        return self.receive(time_limit=self.timeout + length / _MIN_BYTES_PER_S)

    def send_fields(self, **fields: Any) -> None:
        """Send a small message of plain values, as JSON."""
        self.send(json.dumps(fields).encode())

    def receive_fields(
        self, *keys: str, watched: Sequence[Channel] = (), time_limit: float | None = None
    ) -> dict[str, Any]:
        """Return the next message of plain values. Raise PartyError unless it has these keys."""
        try:
            fields = read_json(self.receive(watched, time_limit))
        except PartyError:
            raise
        except ValueError:
            fields = None
        if not isinstance(fields, dict) or not set(keys) <= set(fields):
            raise self._protocol_error(f"a message with {', '.join(keys)} was expected")
        return fields

    def close_with_error(self, error: BaseException) -> None:
        """Send an error to the peer if possible, and close."""
        text = str(error) if isinstance(error, VeilwoodError) else f"unexpected {type(error).__name__}"
        if isinstance(error, FileError):
            text = "it cannot write to its disk. Hint: its operator finds the path in the log."
        fields = {"message": text, "party": getattr(error, "party", None), "lost": isinstance(error, LostError)}
        if not isinstance(error, PartyError):  # a fault of this party, such as an exhausted budget or a full disk
            fields["party"] = "self"
        with suppress(PartyError, OSError):
            self._queue_frame(_FAILURE, json.dumps(fields).encode()[:MAX_FIRST_MESSAGE])
            exchange_until([self], self, lambda: not self._outgoing, _CLOSING_TIMEOUT_S)
            self._socket.settimeout(_CLOSING_TIMEOUT_S)
            socket.socket.shutdown(self._socket, socket.SHUT_WR)
            # Drain the peer's data: otherwise a reset could discard the error before it is read.
            until = time.monotonic() + _CLOSING_TIMEOUT_S
            while time.monotonic() < until and self._socket.recv(1 << 16):
                pass
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._end_reason = self._end_reason or "was closed"
        self._release_quota(self._held_bytes)
        self._held_bytes = 0
        while self._incoming:
            self._pop_message()
        with suppress(OSError):
            self._socket.close()
        done, self.on_close = self.on_close, None
        if done is not None:
            done()

    def fileno(self) -> int:
        """Return the file descriptor, for ``select``."""
        return self._socket.fileno()

    @property
    def has_input(self) -> bool:
        """Whether a message, or the end of the connection, has arrived."""
        return bool(self._incoming) or self._end_reason is not None or bool(select.select([self], [], [], 0)[0])

    # Frames

    def _queue_frame(self, kind: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        self._outgoing.append(memoryview(_HEADER.pack(kind, self._sent & 0xFFFFFFFF, len(view))))
        if len(view):
            self._outgoing.append(view)
        self._sent += 1

    def _write_pending(self) -> bool:
        """Write as much as the network accepts now. Return True if anything was written."""
        before = len(self._outgoing), len(self._outgoing[0]) if self._outgoing else 0
        try:
            while self._outgoing and self._end_reason is None:
                first = self._outgoing.popleft()
                try:
                    done = self._socket.send(first[:_TLS_RECORD_BYTES])
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    self._outgoing.appendleft(first)
                    break
                if done < len(first):
                    self._outgoing.appendleft(first[done:])
        except OSError as error:  # read what the peer sent before it closed
            self._outgoing.clear()
            self._read_available()
            self._end_reason = self._end_reason or failure_reason(error)
        return before != (len(self._outgoing), len(self._outgoing[0]) if self._outgoing else 0)

    def _read_available(self) -> bool:
        """Read all bytes that have arrived. Return True if there were any."""
        some = False
        try:
            while self._end_reason is None:
                if self._filled == self._length:
                    self._advance_frame()
                    continue
                if self._filled == len(self._partial):
                    self._partial.extend(bytes(min(_READ_BLOCK_BYTES, self._length - self._filled)))
                with memoryview(self._partial) as space:
                    count = self._socket.recv_into(space[self._filled :])
                if count == 0:
                    self._end_reason = "closed the connection"
                self._filled += count
                some = some or count > 0
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            self._end_reason = failure_reason(error)
        return some

    def _advance_frame(self) -> None:
        """Advance from a header to its message, or from a message to the next header."""
        if self._in_header:
            kind, number, length = _HEADER.unpack(self._partial)
            if kind not in (_DATA, _FAILURE, _WAITING) or number != self._received & 0xFFFFFFFF:
                raise self._protocol_error(f"message {self._received} does not follow the one before it")
            if length > (self.limit if kind == _DATA else MAX_FIRST_MESSAGE):
                # The error contains no length: it could reveal the number of rows.
                raise self._protocol_error("it announced a message longer than is allowed")
            if self._quota is not None:
                if len(self._incoming) >= _MAX_UNREAD:
                    raise self._protocol_error("it sent more messages than were requested")
                if length > MAX_FIRST_MESSAGE:
                    self._quota.reserve_memory(self.peer, length)
                    self._held_bytes = length
            self._kind, self._received = kind, self._received + 1
            self._partial, self._length = bytearray(min(length, _READ_BLOCK_BYTES)), length
        else:
            message = self._partial
            if self._kind == _DATA:
                self._incoming.append(message)
            else:
                self._release_quota(self._held_bytes)
            self._held_bytes = 0
            if self._kind == _FAILURE:
                raise self._parse_failure(message)
            self.blocked_on = message.decode(errors="replace")[:100] if self._kind == _WAITING else None
            self._partial, self._length = bytearray(_HEADER.size), _HEADER.size
        self._filled, self._in_header = 0, not self._in_header

    def _pop_message(self) -> bytearray:
        """Return the oldest message and free its quota."""
        message = self._incoming.popleft()
        self._release_quota(len(message))
        return message

    def _release_quota(self, count: int) -> None:
        """Free the quota of a message that was read or discarded."""
        if self._quota is not None and count > MAX_FIRST_MESSAGE:
            self._quota.free_memory(self.peer, count)

    def _parse_failure(self, message: bytearray) -> PartyError:
        """Convert the error message of the peer into an exception."""
        self._end_reason = "gave up"
        try:
            fields = read_json(message)
            text, party = to_printable(str(fields["message"])[:2000]), fields["party"]
            kind = LostError if fields.get("lost") else PartyError
        except (ValueError, KeyError, TypeError, AttributeError):
            return self._protocol_error("its error message cannot be read")
        if self.peer.role == "server" and party not in ("self", str(self.peer)):  # owners and users blame themselves
            return kind(text, party=to_printable(str(party)[:60]) if party else None)
        return kind(f"{self.peer} gave up: {text}", party=str(self.peer))

    def _protocol_error(self, text: str) -> PartyError:
        return PartyError(f"{self.peer} does not keep to the protocol: {text}.", party=str(self.peer))

    def _lost_error(self, text: str) -> PartyError:
        return LostError(f"{self.peer} is lost: it {text}. Hint: try again.", party=str(self.peer))


def to_printable(text: str) -> str:
    """Replace characters of a received text that must not reach a log or terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def exchange_until(
    channels: Sequence[Channel],
    needed: Channel,
    done: Callable[[], bool],
    timeout: float | None = None,
    hard_deadline: float | None = None,
) -> None:
    """Read from and write to all channels until ``done``. Raise LostError if ``needed`` is silent for ``timeout``.

    At ``hard_deadline`` the exchange must be done, even if ``needed`` keeps sending.
    """
    patience = needed.timeout if timeout is None else timeout
    deadline = time.monotonic() + patience
    while not done():
        moved = False
        for channel in channels:
            wrote, read = channel._write_pending(), channel._read_available()
            moved = moved or wrote or read
            if channel is needed and (wrote or read):
                deadline = time.monotonic() + patience
        if hard_deadline is not None and time.monotonic() > hard_deadline and not done():
            raise _TimedOut(str(needed.peer), patience)
        if moved or done():
            continue
        if needed._end_reason is not None:
            raise needed._lost_error(needed._end_reason)
        alive = [channel for channel in channels if channel._end_reason is None]
        writers = [channel for channel in alive if channel._outgoing]
        left = (deadline if hard_deadline is None else min(deadline, hard_deadline)) - time.monotonic()
        if left <= 0 or not any(select.select(alive, writers, [], left)):
            raise _TimedOut(str(needed.peer), patience)


class TlsLinks:
    """Links of the engine over TLS: the channels of one server to the other two in one session.

    Parameters
    ----------
    party : int
        Index of this server.
    channels : dict
        Channels to the other two servers, by index.
    """

    def __init__(self, party: int, channels: dict[int, Channel]) -> None:
        self.party = party
        self.channels = channels

    def add_channel(self, other: int, channel: Channel) -> None:
        """Add the channel to another server."""
        self.channels[other] = channel

    @property
    def _all_channels(self) -> list[Channel]:
        return list(self.channels.values())

    def wait_for_input(self, participant: Channel, seconds: float) -> bool:
        """Wait for input from an owner or user. Return False if it disconnected; raise LostError if a server did.

        If another server already waits for this server, the participant has reached the former and gets less time.
        """
        deadline = time.monotonic() + seconds
        while not participant.has_input:
            for link in self._all_channels:
                link._read_available()
                if link._end_reason is not None:
                    raise link._lost_error(link._end_reason)
                if link._incoming:
                    deadline = min(deadline, time.monotonic() + participant.timeout / 2)
            quiet = [link for link in self._all_channels if not link._incoming]
            left = deadline - time.monotonic()
            if left <= 0:
                raise _TimedOut(str(participant.peer), seconds)
            select.select([participant, *quiet], [], [], left)
        participant._read_available()
        return bool(participant._incoming) or participant._end_reason is None

    def send(self, to: int, data: Buffer) -> None:
        """Send a message to a server while reading from the others."""
        channel = self.channels[to]
        channel._queue_frame(_DATA, data)
        exchange_until(self._all_channels, channel, lambda: not channel._outgoing)

    def receive(self, sender: int) -> bytearray:
        """Return the next message of a server.

        A server that times out sends the name of the awaited server to the others, and waits a moment longer. If the
        awaited server is waiting too, the error names the server at the end of the chain.
        """
        channel = self.channels[sender]
        try:
            exchange_until(self._all_channels, channel, lambda: bool(channel._incoming))
        except _TimedOut:
            for other in self._all_channels:
                other._queue_frame(_WAITING, str(channel.peer).encode())
            try:
                exchange_until(self._all_channels, channel, lambda: bool(channel._incoming), _CLOSING_TIMEOUT_S)
            except _TimedOut:
                raise _TimedOut(channel.blocked_on or str(channel.peer), channel.timeout) from None
        return channel._incoming.popleft()

    def close(self, error: BaseException | None = None) -> None:
        """End the session. An error is sent to the other servers first."""
        for channel in self._all_channels:
            if error is None:
                channel.close()
            else:
                channel.close_with_error(error)


def dial_server(
    host: str,
    port: int,
    context: ssl.SSLContext,
    name: PartyName,
    *,
    timeout: float,
    limit: int,
    connect_timeout: float = 5.0,
) -> Channel:
    """Connect to a server and check the name in its certificate. Retry while it does not listen."""
    deadline = time.monotonic() + connect_timeout
    while True:
        plain = None
        try:
            plain = socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S)
            return Channel(context.wrap_socket(plain, server_hostname=name.dns_name), name, timeout, limit)
        except ssl.SSLError as error:
            if plain is not None:
                plain.close()
            if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):  # closed before certificates were exchanged
                if time.monotonic() > deadline:
                    raise LostError(
                        f"{name} at {host}:{port} closed the connection before it sent its certificate: it is full, or "
                        "stopping. Hint: try again later.",
                        party=str(name),
                    ) from None
                time.sleep(0.1)
                continue
            is_time = any(word in str(error) for word in ("not yet valid", "expired"))
            hint = "check the clocks of both machines" if is_time else "compare the certificates"
            raise PartyError(
                f"the party at {host}:{port} is not {name}: {failure_reason(error)}. Hint: {hint}.",
                party=str(name),
            ) from None
        except OSError as error:
            if plain is not None:
                plain.close()
            if time.monotonic() > deadline:
                raise LostError(
                    f"{name} cannot be reached at {host}:{port}: {failure_reason(error)}.", party=str(name)
                ) from None
            time.sleep(0.1)


def failure_reason(error: BaseException) -> str:
    """Return a short reason why a connection failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"refused in the TLS handshake ({(error.reason or 'closed').lower().replace('_', ' ')})"
    if isinstance(error, PartyError):
        return str(error)
    return getattr(error, "strerror", None) or type(error).__name__


HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Seconds for a complete handshake."""
MAX_PENDING_CONNECTIONS: Final = 64  # connections before authentication
MAX_CONNECTIONS: Final = 128  # shared by all; each may open two links, and select is limited to 1024 descriptors
RESERVED_CONNECTIONS: Final = 2  # per party, whatever others have open
MAX_PER_PARTY: Final = 16  # connections of one party
MAX_INCOMING_BYTES: Final = 1 << 28  # being received from all owners and users together
_MAX_RESERVED: Final = 150  # reserved connections of all parties


class _PendingConnections:
    """Connections before authentication. If there are too many, the host with the most connections loses its oldest."""

    def __init__(self, max_pending: int) -> None:
        self._max_pending = max_pending
        self._lock = threading.Lock()
        self._hosts: dict[socket.socket, str] = {}  # oldest first

    def add_connection(self, connection: socket.socket, host: str) -> None:
        with self._lock:
            self._hosts[connection] = host
            if len(self._hosts) <= self._max_pending:
                return
            (crowd, _), *_ = Counter(self._hosts.values()).most_common(1)
            oldest = next(one for one, where in self._hosts.items() if where == crowd)
            del self._hosts[oldest]
        log.warning("gave up a silent connection from %s: %d others wait for authentication", crowd, self._max_pending)
        with suppress(OSError):
            socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # wakes its thread, which closes it

    def remove_connection(self, connection: socket.socket) -> None:
        with self._lock:
            self._hosts.pop(connection, None)


class _PartyConnections:
    """Open connections by party, with a limit per party, a common limit, and a reserve per party."""

    def __init__(self, max_connections: int, max_per_party: int) -> None:
        self._max_connections, self._max_per_party = max_connections, max_per_party
        self._lock = threading.Lock()
        self._open: Counter[PartyName] = Counter()

    def count_in(self, party_name: PartyName) -> None:
        with self._lock:
            if self._open[party_name] >= self._max_per_party:
                raise PartyError(
                    f"{party_name} has {self._max_per_party} connections open, and none may have more. "
                    "Hint: close some, or wait.",
                    party=str(party_name),
                )
            common = sum(max(count - RESERVED_CONNECTIONS, 0) for count in self._open.values())
            own = sum(min(count, RESERVED_CONNECTIONS) for count in self._open.values())
            if (
                common >= self._max_connections
                if self._open[party_name] >= RESERVED_CONNECTIONS
                else own >= _MAX_RESERVED
            ):
                raise PartyError("this server is full: others have too many connections open. Hint: try again later.")
            self._open[party_name] += 1

    def count_out(self, party_name: PartyName) -> None:
        with self._lock:
            self._open[party_name] -= 1
            if not self._open[party_name]:
                del self._open[party_name]

    def count_open(self) -> int:
        with self._lock:
            return self._open.total()


class Listener:
    """Listener that accepts connections on one address and serves each authenticated connection in its own thread.

    Parameters
    ----------
    host, port
        Address to listen on.
    context : ssl.SSLContext
        TLS settings, with the accepted certificates.
    timeout : float
        Seconds after which a silent party counts as lost.
    on_connection : callable
        Called with each connection, which it must close.
    max_per_party : int
        Maximum number of open connections of one party.
    max_incoming_bytes : int, optional
        Quota of bytes being received or unread, from all parties together.
    """

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext,
        timeout: float,
        on_connection: Callable[[Channel], None],
        *,
        max_per_party: int = MAX_PER_PARTY,
        max_incoming_bytes: int | None = None,
    ) -> None:
        self._context, self._timeout, self._on_connection = context, timeout, on_connection
        self._pending, self._parties = (
            _PendingConnections(MAX_PENDING_CONNECTIONS),
            _PartyConnections(MAX_CONNECTIONS, max_per_party),
        )
        self._quota = None if max_incoming_bytes is None else ReceiveQuota(max_incoming_bytes)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept_connections, name=f"listen-{self.port}", daemon=True).start()

    @property
    def n_connections(self) -> int:
        """Number of open connections of authenticated parties."""
        return self._parties.count_open()

    def close(self) -> None:
        """Stop listening. Open connections stay open."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept_connections(self) -> None:
        while True:
            try:
                connection, address = self._socket.accept()
                connection.setblocking(False)
                secured = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            except OSError:
                if self._socket.fileno() < 0:
                    return
                time.sleep(0.02)  # no descriptors left, or the peer has gone: keep listening
                continue
            self._pending.add_connection(secured, address[0])
            threading.Thread(target=self._authenticate_peer, args=(secured, address[0]), daemon=True).start()

    def _authenticate_peer(self, connection: ssl.SSLSocket, host: str) -> None:
        try:
            _complete_handshake(connection)
            who = peer_name(connection)
        except Exception as error:  # no connection may stop the server
            log.warning("refused a connection from %s: %s", host, failure_reason(error))
            connection.close()
            return
        finally:
            self._pending.remove_connection(connection)
        channel = Channel(connection, who, self._timeout, quota=self._quota)
        try:
            self._parties.count_in(who)
            channel.on_close = lambda: self._parties.count_out(who)
            self._on_connection(channel)
        except Exception as error:
            log.warning("%s at %s: %s", who, host, failure_reason(error))
            channel.close_with_error(error)


def _complete_handshake(connection: ssl.SSLSocket) -> None:
    """Complete the TLS handshake within a fixed time, even if the peer sends byte by byte."""
    deadline = time.monotonic() + HANDSHAKE_TIMEOUT_S
    while True:
        left = max(deadline - time.monotonic(), 0)
        try:
            return connection.do_handshake()
        except ssl.SSLWantReadError:
            ready = select.select([connection], [], [], left)[0]
        except ssl.SSLWantWriteError:
            ready = select.select([], [connection], [], left)[1]
        if not ready:
            raise PartyError(f"it has not authenticated within {HANDSHAKE_TIMEOUT_S:g} seconds")
