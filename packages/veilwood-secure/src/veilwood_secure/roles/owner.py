# SPDX-License-Identifier: Apache-2.0
"""An owner of rows: encodes them by the public schema, splits them into shares, and sees the training end.

Rows leave this process as shares only; what the servers do with them is in ``programs``.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from numpy.typing import NDArray

from veilwood.data.schema import Schema
from veilwood.errors import PartyError, SetupError, UseError
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.ledger_stores import Ledger, open_ledger
from veilwood_secure.mpc.shares import SharePair, pair_to_bytes, share
from veilwood_secure.roles.config import Config, Task
from veilwood_secure.roles.identity import PartyName, sign_text, tls_context
from veilwood_secure.roles.registry import JointForest, Program, program_for_task
from veilwood_secure.roles.sessions import TaskLedgers, role_ledger
from veilwood_secure.roles.transport import Channel, LostError, dial_server
from veilwood_secure.roles.uploads import UploadPieces, order_key, seeded_shares

__all__ = ["Owner", "ServerConnections"]


class ServerConnections:
    """Connections to the three servers, about one task.

    Parameters
    ----------
    config : Config
        Of the owner or user.
    task : Task
        What it is about; servers refuse if it means something else to them.
    do : str
        What is wanted.
    words
        More about it.
    """

    def __init__(self, config: Config, task: Task, do: str, **fields: Any) -> None:
        context = tls_context(config.identity, config.servers_authority, listens=False)
        self.channels: list[Channel] = []
        session = secrets.token_hex(16)
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
            self.send_fields(do=do, task=task.name, fingerprint=task.fingerprint(), session=session, **fields)
        except BaseException:
            self.close()
            raise

    def send_fields(self, **fields: Any) -> None:
        """Tell all three the same."""
        for channel in self.channels:
            channel.send_fields(**fields)

    def start(self) -> None:
        """Tell server 0 that all three are ready to begin."""
        self.channels[0].send_fields(go=True)

    def receive_fields(self, *keys: str) -> list[dict[str, Any]]:
        """What each server says."""
        return [channel.receive_fields(*keys, watched=self.channels) for channel in self.channels]

    def receive_all(self) -> list[bytearray]:
        """A message of each server."""
        return [channel.receive(self.channels) for channel in self.channels]

    def send_shares(self, arrays: Mapping[str, NDArray[Any]], ring: Any) -> None:
        """Split arrays and send each server its shares, in the order it asks for."""
        wanted = [list(words["send"]) for words in self.receive_fields("send")]
        if any(names != list(arrays) for names in wanted):
            raise SetupError(f"the servers ask for {wanted}, and there is {list(arrays)}. Hint: compare versions.")
        for array in arrays.values():
            pairs: list[SharePair] = share(array, ring)
            for channel, pair in zip(self.channels, pairs, strict=True):
                channel.send(pair_to_bytes(pair))

    def send_parts(self, parts: Sequence[bytes]) -> None:
        """Send each server its own."""
        for channel, part in zip(self.channels, parts, strict=True):
            channel.send(part)

    def close(self) -> None:
        """End the conversation."""
        for channel in self.channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_POLL_INTERVAL_S = 0.2
_RETRY_DELAY_S = 0.5
WAIT_TIMEOUT_S: Final = 24 * 3600.0


class Owner:
    """One owner of rows in one task.

    Parameters
    ----------
    config : Config or path
        The configuration that ``veilwood secure setup`` made for this owner, or its folder.
    task : str, optional
        Which task, where there are several.
    ledger : Ledger or path, optional
        Where this owner writes down what its rows are used for; by default ``ledger.db`` in its folder. A budget in
        it, or in ``budgets/task-NAME.db`` beside it, is kept here, whatever the servers allow.

    Notes
    -----
    Guarantee

    The loss stands in the owner's ledger before anything that depends on a row leaves this process, and what the
    servers charge again is agreed to first (proofs/secure-crash.md, attacked by packages/veilwood-secure/tests/roles/test_budgets.py).
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
        """What is public of this owner's table."""
        return self._program.owner_schema(self.config.name)

    @property
    def holds_target(self) -> bool:
        """Whether this owner's table has the column to be predicted."""
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
        """Share rows with the three servers, in pieces, which they check together and refuse if they are no rows.

        Training begins when the last owner of the task has contributed. A part that is contributed again before
        that is replaced, so that no row counts twice; other parts are added to it. What was cut short goes on where
        it stopped, also from another process, if the rows are the same.

        Parameters
        ----------
        X : dataframe or array
            This owner's rows: the columns of ``schema``.
        y : array-like, optional
            The target, from the owner that holds it.
        pad_to : int, optional
            Fill up to this many rows with some that count nowhere, so that servers do not learn how many there are;
            owners of columns must agree on it.
        part : str
            What these rows are called, where an owner contributes several times.
        more : bool
            Whether another part will follow: training waits for it.
        patience : float
            Seconds to wait for a server that is lost on the way.
        progress : callable, optional
            Told after each piece which share of the rows has arrived.
        """
        PartyName("owner", part)  # a plain name
        secret, about = self.config.identity.secret, f"{self.task.fingerprint()} {part}"
        order = order_key(secret, about) if self._program.shuffles_rows else None
        pieces = UploadPieces(self._program, self.config.name, X, y, pad_to, order)
        upload = pieces.upload_token(secret, self.task.fingerprint())
        until, again = time.monotonic() + patience, False
        while True:
            try:
                return self._send_pieces(pieces, part, upload, more, progress or (lambda share: None))
            except LostError as error:
                if time.monotonic() > until or not (error.party or "").startswith("server"):
                    raise
                again = True
                time.sleep(_RETRY_DELAY_S)
            except PartyError:
                with suppress(LostError):  # of a server that is lost meanwhile
                    found = self._request_status(upload=upload) if again else []
                    if found and all(server["arrived"] for server in found):  # before the line was lost
                        return None
                    if time.monotonic() > until or not any(server["phase"] == "training" for server in found):
                        raise
                time.sleep(_RETRY_DELAY_S)

    def consent(self) -> dict[str, Any]:
        """Charge this owner's ledger, once for what the servers charge once, and sign what may be trained for it.

        Servers train only what all owners have signed: task, plan, version, and the ticket of one charge.
        """
        found = self.status()
        if len({server["training"] for server in found}) == 1 and found[0]["training"] is not None:
            raise PartyError(f"task {self.task.name!r} is trained already. Hint: retire it first.")
        tickets = [str(server["ticket"]) for server in found]
        self._ledgers.reserve(self._charge_key(tickets))
        return {"tickets": tickets, "approval": sign_text(self.config.identity, self._program.approval_text(tickets))}

    def _charge_key(self, tickets: Sequence[str]) -> str:
        return f"{self._program.plan.fingerprint()[:12]} {' '.join(tickets)}"

    def _send_pieces(
        self, pieces: UploadPieces, part: str, upload: str, more: bool, progress: Callable[[float], None]
    ) -> None:
        words = {"rows": pieces.n_rows, "part": part, "upload": upload, "more": more, **self.consent()}
        with ServerConnections(self.config, self.task, "contribute", **words) as call:
            start = min(int(server["held"]) for server in call.receive_fields("send", "held"))
            call.send_fields(start=start)
            for number in range(start, len(pieces.row_counts)):
                for array in pieces.encode_piece(number).values():
                    call.send_parts(seeded_shares(array, self._program.ring))
                call.receive_fields("piece")
                progress((number + 1) / len(pieces.row_counts))
            call.receive_fields("accepted")

    @property
    def participates(self) -> bool:
        """Whether this owner stays while the servers train, and answers them (``participate``), or contributes once."""
        return self._program.needs_online_owners

    def participate(self, X: Any, y: Any = None, *, patience: float = WAIT_TIMEOUT_S) -> None:
        """Stay until the model is trained, and answer the servers with sums of these rows, in shares.

        What is asked follows from the task and from what the servers have released so far: this owner works it out
        by itself, and would not answer anything else.

        Parameters
        ----------
        X : dataframe, array or path
            This owner's rows.
        y : array-like, optional
            The target, where ``X`` does not hold it.
        patience : float
            Seconds to wait for the other owners.
        """
        if not isinstance(self._program, JointForest) or not self.participates:
            raise UseError(f"task {self.task.name!r} takes rows once. Hint: contribute them.")
        until = time.monotonic() + patience
        while True:
            try:
                return self._participate_once(self._program, X, y, patience)
            except LostError as error:  # a server is lost, and will be back: what was opened stays as it was
                if time.monotonic() > until or not (error.party or "").startswith("server"):
                    raise
                time.sleep(_RETRY_DELAY_S)

    def _participate_once(self, program: JointForest, X: Any, y: Any, patience: float) -> None:
        words = {"plan": program.plan.fingerprint(), **self.consent()}
        with ServerConnections(self.config, self.task, "attend", **words) as call:
            call.receive_fields("received")
            call.start()
            call.receive_fields("accepted")
            usual = [channel.timeout for channel in call.channels]
            for channel in call.channels:
                channel.timeout = patience
            call.receive_fields("begins")
            for channel, timeout in zip(call.channels, usual, strict=True):
                channel.timeout = timeout
            program.run_owner(X, y, call.channels)
            call.receive_fields("trained")
        self._commit_charges()

    def status(self) -> list[dict[str, Any]]:
        """What each server says of the task: ``phase``, the owners ``missing``, the last ``failure``."""
        return self._request_status()

    def _request_status(self, **upload: str) -> list[dict[str, Any]]:
        """What each server says, and whether the ``upload`` of this owner that is named, if one is, has ``accepted_uploads``."""
        with ServerConnections(self.config, self.task, "status", **upload) as call:
            found = call.receive_fields("phase", "missing", "failure", "training", "ticket", "disagree", "arrived")
            call.send_fields(more=False)
        return found

    def wait(self, seconds: float | None = None) -> PrivacyCertificate:
        """Wait until all three servers hold the trained model; return its certificate.

        If the training was cut short so that it must be charged again, this owner's ledger decides whether it is.
        """
        found = wait_until_trained(self.config, self._program, seconds, self._send_consent)
        self._commit_charges()
        return found

    def _send_consent(self) -> None:
        """Agree to be charged again, for rows that the servers have."""
        with ServerConnections(self.config, self.task, "agree", **self.consent()) as call:
            call.receive_fields("agreed")
            call.start()

    def _commit_charges(self) -> None:
        """Record that a model was made: what was reserved for it is spent."""
        for key in self._ledgers.unsettled_keys():
            self._ledgers.commit(key)

    def retire(self) -> None:
        """Have the three servers forget the model: nobody can ask it again."""
        with ServerConnections(self.config, self.task, "retire") as call:
            tickets = [server["ticket"] for server in call.receive_fields("retired", "ticket")]
        self._ledgers.cancel(self._charge_key(tickets))  # nothing was opened under them, and the rows are gone


def wait_until_trained(
    config: Config, program: Program, seconds: float | None, renew_consent: Callable[[], None] | None = None
) -> PrivacyCertificate:
    """Ask the servers now and then; return the certificate, or raise why there is none.

    A server that is lost meanwhile is waited for; an owner that has to ``renew_consent`` again does so, or raises why not.
    """
    until = time.monotonic() + (WAIT_TIMEOUT_S if seconds is None else seconds)
    while True:
        try:
            found = _poll_certificate(config, program, seconds, until)
            if found is not None:
                return found
            if renew_consent is not None:
                renew_consent()
        except LostError:
            if time.monotonic() > until:
                raise
            time.sleep(_RETRY_DELAY_S)


def _poll_certificate(
    config: Config, program: Program, seconds: float | None, until: float
) -> PrivacyCertificate | None:
    """Return the certificate; None when this party has to agree to be charged again."""
    task = program.task
    with ServerConnections(config, task, "status") as call:
        while True:
            found = call.receive_fields("phase", "missing", "failure", "training", "statement", "disagree")
            if len({server["training"] for server in found}) == 1 and found[0]["training"] is not None:
                call.send_fields(more=False)
                return program.verify_certificates([server["statement"] for server in found])
            failures = [server["failure"] for server in found if server["failure"] and server["phase"] == "waiting"]
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
