# SPDX-License-Identifier: Apache-2.0
"""Sessions among the three servers: how the same conversation gets its own links, and how they make sure it is one.

What happens inside a session is decided in ``server``.
"""

from __future__ import annotations

import json
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from veilwood.errors import PartyError
from veilwood.privacy.ledger import SECURE_TRAINING, Purpose
from veilwood.privacy.ledger_stores import Entry, Ledger, Reservation, SQLiteLedger
from veilwood.safe_io import read_json
from veilwood_secure.roles.config import Config, Task
from veilwood_secure.roles.identity import PartyName
from veilwood_secure.roles.program import Program
from veilwood_secure.roles.transport import Channel, LostError, TlsLinks, dial_server

__all__ = ["BUDGETS_FOLDER", "SessionBroker", "TaskLedgers", "agree_on_facts", "role_ledger"]


BUDGETS_FOLDER: Final = "budgets"
"""The folder of a role in which ``task-NAME.db`` and ``owner-NAME.db`` limit one task, or one owner."""


def role_ledger(folder: Path) -> SQLiteLedger:
    """Return the ledger of a role; one without a limit is made if it is not there."""
    return SQLiteLedger(folder / "ledger.db")


class TaskLedgers:
    """The ledgers in which one task is written down by one role.

    Parameters
    ----------
    folder : Path
        Of the role.
    program : Program
        Of the task.
    ledger : Ledger
        The role's own, in which all of its tasks stand.
    owners : sequence of str
        Whose budgets this role keeps too: at a server, those of the task's owners.

    Notes
    -----
    Guarantee

    A training is charged in all of them or none, before anything of it is opened, and once for a key; what is refused
    by one is not done (proofs/secure-crash.md, attacked by packages/veilwood-secure/tests/roles/test_budgets.py).
    """

    def __init__(self, folder: Path, program: Program, ledger: Ledger, owners: Sequence[str] = ()) -> None:
        self._program, self._role_ledger = program, ledger
        names = [f"task-{program.task.name}", *(f"owner-{owner}" for owner in owners)]
        self._sub_ledger_paths = [folder / BUDGETS_FOLDER / f"{name}.db" for name in names]

    @property
    def sub_ledgers(self) -> list[Ledger]:
        """Those that there are now, beside the role's own."""
        return [SQLiteLedger(place) for place in self._sub_ledger_paths if place.exists()]

    def reserve(self, key: str) -> Reservation:
        """Charge a training in all ledgers, the role's own last, and return that spend."""
        program, made = self._program, []
        try:
            for ledger in [*self.sub_ledgers, self._role_ledger]:
                made.append(
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
            for spend in made:
                if spend.is_new:
                    spend.cancel()
            raise
        return made[-1]

    def commit(self, key: str) -> None:
        """Record that something was opened."""
        for ledger, entry in self._reserved_entries(key):
            Reservation(ledger, entry.id).commit()

    def cancel(self, key: str) -> None:
        """Take a charge back of which nothing was opened."""
        for ledger, entry in self._reserved_entries(key):
            Reservation(ledger, entry.id).cancel()

    def _reserved_entries(self, key: str) -> list[tuple[Ledger, Entry]]:
        """What is not settled yet, in the role's own ledger first: what it lacks, no other needs."""
        found = [(ledger, ledger.find(key)) for ledger in [self._role_ledger, *self.sub_ledgers]]
        return [(ledger, entry) for ledger, entry in found if entry is not None and entry.state == "reserved"]

    def unsettled_keys(self) -> list[str]:
        """Return the keys of this task's charges that are not settled in the role's own ledger."""
        return [entry.key for entry in self.entries() if entry.state == "reserved"]

    def entries(self) -> list[Entry]:
        """Return what the role's own ledger has about this task."""
        return [entry for entry in self._role_ledger.entries() if entry.purpose == purpose_of(self._program.task)]

    def cancel_orphans(self) -> None:
        """Take back what a crash left in narrower ledgers and not in the role's own, which comes last."""
        known = {entry.key for entry in self.entries() if entry.is_counted}
        for ledger in self.sub_ledgers:
            for entry in ledger.entries():
                ours = entry.state == "reserved" and entry.purpose == purpose_of(self._program.task)
                if ours and entry.key not in known:
                    Reservation(ledger, entry.id).cancel()


def entry_label(task: Task) -> str:
    """Return how a training stands in a ledger."""
    return f"secure training of {task.name} ({task.fingerprint()[:12]})"


def purpose_of(task: Task) -> Purpose:
    """Return the purpose of the ledger entries of a training task."""
    return Purpose(SECURE_TRAINING, task.name, task.fingerprint()[:12])


SESSION_TIMEOUT_S: Final = 15.0
"""How long a server waits for another to come to a session."""


class SessionBroker:
    """Brings the three servers together, once for each session.

    A session has a random name. Server 0 calls 1 and 2, server 1 calls 2; who is called holds the line until the
    thread that serves the session takes it.

    Parameters
    ----------
    config : Config
        Of this server.
    context
        TLS settings for calls to other servers.
    invited
        What to run, in a thread of its own, when server 0 begins something nobody here waits for.
    """

    def __init__(self, config: Config, context: ssl.SSLContext, on_invite: Callable[[str, str], None]) -> None:
        self._config, self._context, self._on_invite = config, context, on_invite
        self._party = int(config.name)
        self._held: dict[tuple[str, int], Channel] = {}
        self._changed = threading.Condition()

    def accept_peer(self, channel: Channel) -> None:
        """Take a call of another server."""
        caller = int(channel.peer.name) if channel.peer.role == "server" else self._party
        if caller >= self._party:
            raise PartyError(f"{channel.peer} has no business here.", party=str(channel.peer))
        words = channel.receive_fields("session", "task", "invites", time_limit=SESSION_TIMEOUT_S)
        session = str(words["session"])
        channel.limit = self._config.largest_message
        with self._changed:
            self._held[session, caller] = channel
            self._changed.notify_all()
        if words["invites"] and caller == 0:
            try:
                self._on_invite(str(words["task"]), session)
            except BaseException:
                with self._changed:
                    self._held.pop((session, caller), None)
                raise
        with self._changed:
            self._changed.wait_for(lambda: (session, caller) not in self._held, SESSION_TIMEOUT_S)
            left = self._held.pop((session, caller), None)
        if left is not None:
            left.close_with_error(LostError(f"server {self._party} knows nothing of this session."))

    @contextmanager
    def open_session(self, name: str | None, task: str, *, invites: bool = False) -> Iterator[TlsLinks]:
        """Links to the other two servers; whatever goes wrong inside is told to them."""
        name = name or secrets.token_hex(16)
        links = TlsLinks(self._party, {})
        try:
            for other in range(3):  # those before this one have called; those after it are called
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
                raise LostError(f"server {other} did not come to the session.", party=f"server {other}")
            channel = self._held.pop((session, other))
            self._changed.notify_all()
        return channel

    def _dial_peer(self, other: int) -> Channel:
        address, limit = self._config.servers[other], self._config.largest_message
        name = PartyName("server", str(other))
        return dial_server(address.host, address.peers, self._context, name, timeout=self._config.timeout, limit=limit)


def agree_on_facts(
    links: TlsLinks, facts: Mapping[str, Any], *, blame: str | None = None, exchange: Any = None
) -> list[Any]:
    """Make sure that all three servers hold the same facts; return what each said ``exchange``, by its number.

    A person who told the servers different things is to blame; otherwise the server that stands alone is.
    """
    mine = json.dumps([facts, exchange], sort_keys=True)
    others = sorted(links.channels)
    for other in others:
        links.send(other, mine.encode())
    said = {links.party: mine} | {other: links.receive(other).decode(errors="replace") for other in others}
    try:
        read = {party: read_json(text) for party, text in said.items()}
        held = {party: json.dumps(read[party][0], sort_keys=True) for party in read}
        extra = [read[party][1] for party in range(3)]
    except (ValueError, TypeError, IndexError, KeyError):
        raise PartyError("what the servers told each other cannot be read.", party=blame) from None
    if len(set(held.values())) > 1:
        alone = [party for party in held if list(held.values()).count(held[party]) == 1]
        culprit = blame or (f"server {alone[0]}" if len(alone) == 1 else "several servers")
        keys = sorted({key for party in read for key in facts if read[party][0].get(key) != facts[key]})
        about = ", ".join(keys) or "the session"
        raise PartyError(f"the servers hold different facts about {about}: {culprit} differs.", party=culprit)
    return extra
