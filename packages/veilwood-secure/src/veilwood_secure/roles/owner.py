# SPDX-License-Identifier: Apache-2.0
"""Owner of rows: encodes and secret-shares them, consents to charges, and waits for the trained model.

Rows leave this process only as shares. The program of the task defines the servers' computation.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from veilwood.arrays import AnyArray
from veilwood.data.schema import Schema
from veilwood.errors import PartyError, SetupError, UseError
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.ledger_stores import open_ledger
from veilwood_secure.mpc.shares import SharePair, pair_to_bytes, share
from veilwood_secure.roles.alignment import Alignment
from veilwood_secure.roles.config import Config, Task
from veilwood_secure.roles.identity import PartyName, sign_text, tls_context
from veilwood_secure.roles.program import Program, program_for_task
from veilwood_secure.roles.sessions import TaskLedgers, role_ledger
from veilwood_secure.roles.transport import Channel, LostError, dial_server
from veilwood_secure.roles.uploads import UploadPieces, order_key, seeded_shares


class ServerConnections:
    """Connections of an owner or user to the three servers, for one request about a task.

    Parameters
    ----------
    config : Config
        Configuration of the owner or user.
    task : Task
        The task; servers reject the request if their task of that name differs.
    do : str
        Kind of request.
    **fields
        Further fields of the request.
    """

    def __init__(self, config: Config, task: Task, do: str, **fields: Any) -> None:
        context = tls_context(config.identity, config.servers_authority, listens=False)
        self.channels: list[Channel] = []
        self.session, self.training, self.number = secrets.token_hex(16), "", 0  # of the next answer in this session
        try:
            for party, address in enumerate(config.servers):
                name = PartyName("server", str(party))
                self.channels.append(
                    dial_server(
                        address.host,
                        address.participants,
                        context,
                        name,
                        timeout=config.timeout,
                        limit=config.largest_message,
                    )
                )
            self.send_fields(do=do, task=task.name, fingerprint=task.fingerprint(), session=self.session, **fields)
        except BaseException:
            self.close()
            raise

    def send_fields(self, **fields: Any) -> None:
        """Send the same fields to all three servers."""
        for channel in self.channels:
            channel.send_fields(**fields)

    def start(self) -> None:
        """Signal server 0 that all three servers are ready."""
        self.channels[0].send_fields(go=True)

    def receive_fields(self, *keys: str) -> list[dict[str, Any]]:
        """Return the next fields of each server."""
        return [channel.receive_fields(*keys, watched=self.channels) for channel in self.channels]

    def receive_all(self) -> list[bytearray]:
        """Return the next message of each server."""
        return [channel.receive(self.channels) for channel in self.channels]

    def send_shares(self, arrays: Mapping[str, AnyArray], ring: Any) -> list[list[bytes]]:
        """Split arrays and send each server its shares, in the order it requests. Return the messages by server."""
        wanted = [list(fields["send"]) for fields in self.receive_fields("send")]
        if any(names != list(arrays) for names in wanted):
            raise SetupError(f"the servers expect {wanted}, but this role has {list(arrays)}. Hint: compare versions.")
        sent: list[list[bytes]] = [[] for _ in self.channels]
        for array in arrays.values():
            pairs: list[SharePair] = share(array, ring)
            for channel, pair, messages in zip(self.channels, pairs, sent, strict=True):
                messages.append(pair_to_bytes(pair))
                channel.send(messages[-1])
        return sent

    def send_parts(self, parts: Sequence[bytes]) -> None:
        """Send each server its own message."""
        for channel, part in zip(self.channels, parts, strict=True):
            channel.send(part)

    def close(self) -> None:
        """Close the connections."""
        for channel in self.channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_POLL_INTERVAL_S = 0.2
_RETRY_DELAY_S = 0.5
MAX_FAILED_ATTEMPTS: Final = 5
"""Maximum number of training runs that an online owner restarts although no party was lost."""
WAIT_TIMEOUT_S: Final = 24 * 3600.0  # a day: owners may contribute at different times


class Owner:
    """Owner of rows in one task.

    Parameters
    ----------
    config : Config or path
        Configuration written by ``veilwood secure setup`` for this owner, or its folder.
    task : str, optional
        Name of the task; required if there are several.
    ledger : Ledger or path, optional
        Ledger of the uses of this owner's rows; by default ``ledger.db`` in its folder. The budgets of this ledger and
        of ``budgets/task-NAME.db`` next to it are enforced here, independently of the servers.

    Notes
    -----
    Guarantee

    The loss is recorded in the owner's ledger before anything that depends on a row leaves this process. Servers charge
    for a training run again only with the owner's consent (proofs/secure-crash.md, attacked by
    packages/veilwood-secure/tests/roles/test_budgets.py).
    """

    def __init__(
        self,
        config: Config | str | os.PathLike[str],
        task: str | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
    ) -> None:
        self.config = Config.load_for_role("owner", config)
        self.task = self.config.find_task(task)
        self._program = program_for_task(self.task)
        own = role_ledger(self.config.folder) if ledger is None else open_ledger(ledger)
        self._ledgers = TaskLedgers(self.config.folder, self._program, own)

    @property
    def schema(self) -> Schema:
        """Public schema of this owner's table."""
        return self._program.owner_schema(self.config.name)

    @property
    def holds_target(self) -> bool:
        """Whether this owner's table has the target column."""
        return self.task.holds_target(self.config.name)

    def contribute(
        self,
        X: Any,
        y: Any = None,
        *,
        pad_to: int | None = None,
        part: str = "rows",
        more: bool = False,
        patience: float = 60.0,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """Secret-share rows with the three servers, which check the rows piece by piece and reject invalid ones.

        Training begins when the last owner of the task has contributed. Until then, contributing a part again replaces
        it, so that no row counts twice; other parts are added. An interrupted upload of the same rows resumes where it
        stopped, also from another process.

        Parameters
        ----------
        X : dataframe or array
            This owner's rows: the columns of ``schema``.
        y : array-like, optional
            The target, from the owner that holds it.
        pad_to : int, optional
            Number of rows to pad to, to hide the real number from servers. Padding is not counted. Owners of columns
            must agree on this number.
        part : str
            Name of these rows, if an owner contributes several times.
        more : bool
            Whether another part will follow. Training waits for it.
        patience : float
            Seconds to wait for a server that disconnects during the upload.
        progress : callable, optional
            Called after each piece with the fraction of rows that has arrived.
        """
        PartyName("owner", part)  # validates the name
        secret, about = self.config.identity.secret, f"{self.task.fingerprint()} {part}"
        order = order_key(secret, about) if self._program.shuffles_rows else None
        pieces = UploadPieces(self._program, self.config.name, X, y, pad_to, order)
        upload = pieces.upload_token(secret, self.task.fingerprint())
        deadline, is_retry = time.monotonic() + patience, False
        while True:
            try:
                return self._send_pieces(pieces, part, upload, more, progress or (lambda share: None))
            except LostError:
                if time.monotonic() > deadline:
                    raise
                is_retry = True
                time.sleep(_RETRY_DELAY_S)
            except PartyError:
                with suppress(LostError):  # a server may be lost again
                    statuses = self._request_status(upload=upload) if is_retry else []
                    if statuses and all(status["arrived"] for status in statuses):  # the upload had completed
                        return None
                    if time.monotonic() > deadline or not any(status["phase"] == "training" for status in statuses):
                        raise
                time.sleep(_RETRY_DELAY_S)

    def consent(self, *, may_charge: bool = True) -> dict[str, Any]:
        """Charge this owner's ledger once per charge of the servers, and sign the agreed training run.

        Servers train only if all owners have signed the task, plan, version and tickets of one charge. Raise PartyError
        if the servers request another charge than before, unless ``may_charge`` is set.
        """
        statuses = self.status()
        if self.is_trained(statuses):
            raise PartyError(f"task {self.task.name!r} is already trained. Hint: retire it first.")
        tickets = [str(status["ticket"]) for status in statuses]
        key = self._find_charge(tickets)
        if key is None and not may_charge:
            raise PartyError(
                f"task {self.task.name!r} would be charged again. Hint: run this command again if you agree."
            )
        self._ledgers.reserve_all(key or self._charge_key(tickets))
        return {"tickets": tickets, "approval": sign_text(self.config.identity, self._program.approval_text(tickets))}

    def _charge_key(self, tickets: Sequence[str]) -> str:
        return f"{self._program.plan.fingerprint()[:12]} {' '.join(tickets)}"

    def _find_charge(self, tickets: Sequence[str]) -> str | None:
        """Return the key of an unsettled charge that covers a release under these tickets, or None if there is none.

        Notes
        -----
        Guarantee

        Every opening needs two honest servers, and both draw new tickets afterwards. So if at most one ticket differs
        from the tickets of a charge, nothing has been opened under that charge: a server that sends a new ticket with
        every request cannot exhaust this ledger (proofs/secure-crash.md, attacked by
        packages/veilwood-secure/tests/roles/test_budgets.py).
        """
        for known in self._ledgers.unsettled_keys():
            plan, *charged = known.split()
            same = sum(old == new for old, new in zip(charged, tickets, strict=False))
            if plan == self._program.plan.fingerprint()[:12] and same >= len(tickets) - 1:
                return known
        return None

    def _send_pieces(
        self, pieces: UploadPieces, part: str, upload: str, more: bool, progress: Callable[[float], None]
    ) -> None:
        fields = {"rows": pieces.n_rows, "part": part, "upload": upload, "more": more, **self.consent()}
        with ServerConnections(self.config, self.task, "contribute", **fields) as call:
            start = min(int(server["held"]) for server in call.receive_fields("send", "held"))
            call.send_fields(start=start)
            for number in range(start, len(pieces.row_counts)):
                for array in pieces.encode_piece(number).values():
                    call.send_parts(seeded_shares(array, self._program.ring))
                call.receive_fields("piece")
                progress((number + 1) / len(pieces.row_counts))
            call.receive_fields("accepted")

    def alignment(self, name: str) -> Alignment:
        """Return this owner's side of an alignment of rows with the other owners of columns."""
        if not self.task.is_vertical:
            raise UseError(f"owners of task {self.task.name!r} hold whole rows, which need no alignment.")
        session = f"{self.task.fingerprint()} {name}"
        return Alignment(self.config.name, tuple(self.task.owners), session, self.config.identity.secret)

    @property
    def participates(self) -> bool:
        """Whether this owner must stay online during training (``participate``) instead of contributing once."""
        return self._program.needs_online_owners

    def participate(self, X: Any, y: Any = None, *, patience: float = WAIT_TIMEOUT_S) -> None:
        """Stay online until the model is trained, and answer queries with shares of sums over these rows.

        The queries follow from the task and the values released so far. This owner derives the queries itself and
        answers no others.

        Parameters
        ----------
        X : dataframe, array or path
            This owner's rows.
        y : array-like, optional
            The target, if ``X`` does not contain it.
        patience : float
            Seconds to wait for the other owners.
        """
        if not self.participates:
            raise UseError(f"task {self.task.name!r} does not use online owners. Hint: call contribute.")
        until, failures = time.monotonic() + patience, 0
        self._has_begun = False
        while True:
            try:
                if self._took_part():
                    return None
                return self._participate_once(self._program, X, y, patience)
            except LostError:  # a lost party may return; opened values do not change
                if time.monotonic() > until:
                    raise
            except PartyError:  # such as a damaged message: servers keep opened values
                failures += 1
                if not self._has_begun or failures > MAX_FAILED_ATTEMPTS:
                    raise
            time.sleep(_RETRY_DELAY_S)

    def _took_part(self) -> bool:
        """Return True if a training run charged to this owner, perhaps before a crash, has ended with a model."""
        is_charged = bool(self._ledgers.unsettled_keys())
        return is_charged and self.is_trained(self.status())

    @staticmethod
    def is_trained(statuses: Sequence[Mapping[str, Any]]) -> bool:
        """Return True if all three servers have a model of the same training run."""
        first = statuses[0]["training"]
        return first is not None and all(status["training"] == first for status in statuses)

    def _participate_once(self, program: Program, X: Any, y: Any, patience: float) -> None:
        fields = {"plan": program.plan.fingerprint(), **self.consent(may_charge=not self._has_begun)}
        with ServerConnections(self.config, self.task, "attend", **fields) as call:
            call.receive_fields("received")
            call.start()
            call.receive_fields("accepted")
            timeouts = [channel.timeout for channel in call.channels]
            for channel in call.channels:
                channel.timeout = patience
            call.receive_fields("begins")
            self._has_begun = True
            for channel, timeout in zip(call.channels, timeouts, strict=True):
                channel.timeout = timeout
            program.run_owner(X, y, call.channels)
            call.receive_fields("trained")
        self._commit_charges()

    def status(self) -> list[dict[str, Any]]:
        """Return each server's status of the task: ``phase``, ``missing`` owners, and the last ``failure``.

        The charge of a finished training run is committed in this owner's ledger.
        """
        statuses = self._request_status()
        if self.is_trained(statuses):
            self._commit_charges()
        return statuses

    def _request_status(self, **upload: str) -> list[dict[str, Any]]:
        """Return each server's status; ``arrived`` reports whether the given ``upload`` was accepted."""
        with ServerConnections(self.config, self.task, "status", **upload) as call:
            statuses = call.receive_fields("phase", "missing", "failure", "training", "ticket", "disagree", "arrived")
            call.send_fields(more=False)
        return statuses

    def wait(self, seconds: float | None = None) -> PrivacyCertificate:
        """Wait until all three servers hold the trained model; return its certificate.

        If an interrupted training run must be charged again, this owner consents if its ledger has enough budget.
        """
        certificate = wait_until_trained(self.config, self._program, seconds, self._send_consent)
        self._commit_charges()
        return certificate

    def _send_consent(self) -> None:
        """Consent to another charge for rows that the servers already have."""
        with ServerConnections(self.config, self.task, "agree", **self.consent()) as call:
            call.receive_fields("agreed")
            call.start()

    def _commit_charges(self) -> None:
        """Commit the charges reserved for the trained model."""
        for key in self._ledgers.unsettled_keys():
            self._ledgers.commit_all(key)

    def retire(self) -> None:
        """Make all three servers delete the model, which cannot be queried afterwards."""
        with ServerConnections(self.config, self.task, "retire") as call:
            tickets = [server["ticket"] for server in call.receive_fields("retired", "ticket")]
        key = self._find_charge([str(ticket) for ticket in tickets])
        if key is not None:  # nothing was opened under these tickets, and the rows are deleted
            self._ledgers.cancel_all(key)


def wait_until_trained(
    config: Config, program: Program, seconds: float | None, renew_consent: Callable[[], None] | None = None
) -> PrivacyCertificate:
    """Poll the servers until the model is trained; return its certificate.

    The call waits for lost servers to return. ``renew_consent`` is called if an owner must agree to another charge.
    Raise PartyError if training failed or ``seconds`` have passed.
    """
    until = time.monotonic() + (WAIT_TIMEOUT_S if seconds is None else seconds)
    while True:
        try:
            found = _poll_certificate(config, program, seconds, until)
            if found is not None:
                return found
            if renew_consent is not None:
                renew_consent()
                time.sleep(_POLL_INTERVAL_S)
        except LostError:
            if time.monotonic() > until:
                raise
            time.sleep(_RETRY_DELAY_S)


def _poll_certificate(
    config: Config, program: Program, seconds: float | None, until: float
) -> PrivacyCertificate | None:
    """Return the certificate, or None if this owner must agree to another charge."""
    task = program.task
    with ServerConnections(config, task, "status") as call:
        while True:
            found = call.receive_fields("phase", "missing", "failure", "resumes", "training", "statement", "disagree")
            if Owner.is_trained(found):
                call.send_fields(more=False)
                return program.verify_certificates([server["statement"] for server in found])
            failures = [
                server["failure"]
                for server in found
                if server["failure"] and server["phase"] == "waiting" and not server["resumes"]
            ]
            disagree = [owner for server in found for owner in server["disagree"]]
            if config.role == "owner" and config.name in disagree:
                call.send_fields(more=False)
                return None
            if failures and not disagree:
                raise PartyError(f"task {task.name!r} was not trained: {failures[0]} Hint: contribute again.")
            if seconds is not None and time.monotonic() > until:
                missing = ", ".join(found[0]["missing"]) or "nobody"
                raise PartyError(f"task {task.name!r} is not trained after {seconds:g} s; waiting for {missing}.")
            time.sleep(_POLL_INTERVAL_S)
            call.send_fields(more=True)
