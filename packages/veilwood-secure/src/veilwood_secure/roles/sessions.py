# SPDX-License-Identifier: Apache-2.0
"""Sessions among the three servers: set-up of channels, agreement on common facts, and ledgers of a task.

The messages of a session are defined in ``server`` and ``training``.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from veilwood.errors import PartyError
from veilwood.privacy.ledger import SECURE_TRAINING, Entry, Ledger, Purpose, Reservation
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood.safe_io import read_json
from veilwood_secure.roles.config import Config, Task
from veilwood_secure.roles.identity import PartyName
from veilwood_secure.roles.program import Program
from veilwood_secure.roles.transport import Channel, LostError, TlsLinks, dial_server

BUDGETS_FOLDER: Final = "budgets"
"""Folder of a role with ledgers that limit one task (``task-NAME.db``) or one owner (``owner-NAME.db``)."""


def role_ledger(folder: Path) -> SQLiteLedger:
    """Open the ledger of a role. If it is missing, create a ledger without a budget."""
    return SQLiteLedger(folder / "ledger.db")


class TaskLedgers:
    """Ledgers that one role charges for one task.

    Parameters
    ----------
    folder : Path
        Folder of the role.
    program : Program
        Program of the task.
    ledger : Ledger
        The role's own ledger, which records all of its tasks.
    owners : sequence of str
        Owners whose budgets this role also tracks: at a server, the task's owners.

    Notes
    -----
    Guarantee

    A training run is charged to all ledgers or to none, before any of its values is opened, and once per key. If a
    ledger rejects the charge, the training run does not start (proofs/secure-crash.md, attacked by
    packages/veilwood-secure/tests/roles/test_budgets.py).
    """

    def __init__(self, folder: Path, program: Program, ledger: Ledger, owners: Sequence[str] = ()) -> None:
        self._program, self._role_ledger = program, ledger
        names = [f"task-{program.task.name}", *(f"owner-{owner}" for owner in owners)]
        self._sub_ledger_paths = [folder / BUDGETS_FOLDER / f"{name}.db" for name in names]

    @property
    def sub_ledgers(self) -> list[Ledger]:
        """The existing ledgers besides the role's own."""
        return [SQLiteLedger(path) for path in self._sub_ledger_paths if path.exists()]

    def reserve_all(self, key: str) -> Reservation:
        """Reserve a training run in all ledgers, the role's own last, and return the reservation in that ledger."""
        program, reservations = self._program, []
        try:
            for ledger in [*self.sub_ledgers, self._role_ledger]:
                reservations.append(
                    ledger.reserve(
                        program.plan.loss,
                        what=entry_label(program.task),
                        neighbours=str(program.plan.neighbours),
                        plan=program.plan.fingerprint(),
                        not_private=program.not_private,
                        key=key,
                        purpose=purpose_of(program.task),
                    )
                )
        except BaseException:
            for reservation in reservations:
                if reservation.is_new:
                    reservation.cancel()
            raise
        return reservations[-1]

    def commit_all(self, key: str) -> None:
        """Commit a charge under which a value was opened."""
        for ledger, entry in self._reserved_entries(key):
            Reservation(ledger, entry.id).commit()

    def cancel_all(self, key: str) -> None:
        """Cancel a charge under which nothing was opened."""
        for ledger, entry in self._reserved_entries(key):
            Reservation(ledger, entry.id).cancel()

    def _reserved_entries(self, key: str) -> list[tuple[Ledger, Entry]]:
        """Return the unsettled entries of a key, the role's own first: an entry missing there is missing everywhere."""
        entries = [(ledger, ledger.find(key)) for ledger in [self._role_ledger, *self.sub_ledgers]]
        return [(ledger, entry) for ledger, entry in entries if entry is not None and entry.state == "reserved"]

    def unsettled_keys(self) -> list[str]:
        """Return the keys of this task's charges that are unsettled in the role's own ledger."""
        return [entry.key for entry in self.own_entries() if entry.state == "reserved"]

    def own_entries(self) -> list[Entry]:
        """Return the entries of this task in the role's own ledger."""
        return [entry for entry in self._role_ledger.entries() if entry.purpose == purpose_of(self._program.task)]

    def cancel_orphans(self) -> None:
        """Cancel charges that a crash left in sub-ledgers but not in the role's own, which is charged last."""
        known = {entry.key for entry in self.own_entries() if entry.is_counted}
        for ledger in self.sub_ledgers:
            for entry in ledger.entries():
                ours = entry.state == "reserved" and entry.purpose == purpose_of(self._program.task)
                if ours and entry.key not in known:
                    Reservation(ledger, entry.id).cancel()


def entry_label(task: Task) -> str:
    """Return the label of a training run in a ledger."""
    return f"secure training of {task.name} ({task.fingerprint()[:12]})"


def purpose_of(task: Task) -> Purpose:
    """Return the purpose of the ledger entries of a training task."""
    return Purpose(SECURE_TRAINING, task.name, task.fingerprint()[:12])


SESSION_TIMEOUT_S: Final = 15.0
"""Seconds that a server waits for another server to join a session."""


class SessionBroker:
    """Broker that connects the three servers for each session.

    A session has a random name. Server 0 dials servers 1 and 2, server 1 dials server 2. A dialled server stores the
    channel until the thread that serves the session takes it.

    Parameters
    ----------
    config : Config
        Configuration of this server.
    context : ssl.SSLContext
        TLS settings for connections to other servers.
    on_invite : callable
        Called with task and session, in a new thread, if server 0 begins a session for which no thread here waits.
    """

    def __init__(self, config: Config, context: ssl.SSLContext, on_invite: Callable[[str, str], None]) -> None:
        self._config, self._context, self._on_invite = config, context, on_invite
        self._party = int(config.name)
        self._held: dict[tuple[str, int], Channel] = {}
        self._changed = threading.Condition()

    def accept_peer(self, channel: Channel) -> None:
        """Accept a connection of another server."""
        caller = int(channel.peer.name) if channel.peer.role == "server" else self._party
        if caller >= self._party:
            raise PartyError(
                f"{channel.peer} may not open a session with server {self._party}.", party=str(channel.peer)
            )
        fields = channel.receive_fields("session", "task", "invites", time_limit=SESSION_TIMEOUT_S)
        session = str(fields["session"])
        channel.limit = self._config.largest_message
        with self._changed:
            self._held[session, caller] = channel
            self._changed.notify_all()
        if fields["invites"] and caller == 0:
            try:
                self._on_invite(str(fields["task"]), session)
            except BaseException:
                with self._changed:
                    self._held.pop((session, caller), None)
                raise
        with self._changed:
            self._changed.wait_for(lambda: (session, caller) not in self._held, SESSION_TIMEOUT_S)
            left = self._held.pop((session, caller), None)
        if left is not None:
            left.close_with_error(LostError(f"server {self._party} has no record of this session."))

    @contextmanager
    def open_session(self, name: str | None, task: str, *, invites: bool = False) -> Iterator[TlsLinks]:
        """Open links to the other two servers. An error inside the session is sent to them."""
        name = name or secrets.token_hex(16)
        links = TlsLinks(self._party, {})
        try:
            for other in range(3):  # lower servers dial this one, which dials higher ones
                if other < self._party:
                    links.add_channel(other, self._take_channel(name, other))
                elif other > self._party:
                    links.add_channel(other, self._dial_peer(other))
                    links.channels[other].send_fields(session=name, task=task, invites=invites)
            yield links
        except BaseException as error:
            links.close(error)
            raise
        links.close()

    def _take_channel(self, session: str, other: int) -> Channel:
        with self._changed:
            if not self._changed.wait_for(lambda: (session, other) in self._held, SESSION_TIMEOUT_S):
                raise LostError(f"server {other} did not join the session.", party=f"server {other}")
            channel = self._held.pop((session, other))
            self._changed.notify_all()
        return channel

    def _dial_peer(self, other: int) -> Channel:
        address, limit = self._config.servers[other], self._config.largest_message
        name = PartyName("server", str(other))
        return dial_server(address.host, address.peers, self._context, name, timeout=self._config.timeout, limit=limit)


def exchange_values(links: TlsLinks, value: Any) -> list[Any]:
    """Send a value to both other servers. Return the values of all three servers."""
    own = json.dumps(value).encode()
    others = sorted(links.channels)
    for other in others:
        links.send(other, own)
    messages = {links.party: own} | {other: bytes(links.receive(other)) for other in others}
    try:
        return [read_json(messages[party]) for party in range(3)]
    except ValueError:
        raise PartyError("a message between the servers cannot be read.") from None


def agree_on_facts(links: TlsLinks, facts: Mapping[str, Any]) -> None:
    """Raise PartyError unless all three servers have the same facts.

    The error names no server: a server with different facts may have received false ones.
    """
    reports = exchange_values(links, facts)
    own = reports[links.party]
    if any(report != own for report in reports):
        differ = sorted(key for key in facts if any(not isinstance(r, dict) or r.get(key) != own[key] for r in reports))
        raise PartyError(
            f"the servers hold different facts about {', '.join(differ) or 'the session'}. Hint: compare the "
            "configurations and logs of all three servers."
        )


def draw_name(links: TlsLinks) -> str:
    """Return a random name drawn jointly by all three servers, so that no server can choose it."""
    drawn = exchange_values(links, secrets.token_hex(16))
    name = hashlib.sha256(json.dumps(drawn).encode()).hexdigest()[:16]
    agree_on_facts(links, {"name": name})
    return name
