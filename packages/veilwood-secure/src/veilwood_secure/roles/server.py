# SPDX-License-Identifier: Apache-2.0
"""One of the three servers: receives shares from owners, trains, stores its shares of models, answers users in shares.

The computation is defined by programs (``program``). Training is in ``training``, connections are in ``transport``,
sessions among the servers in ``sessions``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np

from veilwood.errors import DomainTooLargeError, PartyError, UseError, VeilwoodError
from veilwood.privacy.ledger import Reservation
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood.privacy.loss import Loss
from veilwood_secure.mpc.replicated import ReplicatedEngine
from veilwood_secure.mpc.shares import SharePair, pair_from_bytes, pair_to_bytes
from veilwood_secure.roles import transport
from veilwood_secure.roles.checkpoints import Checkpoint, EncryptedFolder, ModelStore, StoredModel
from veilwood_secure.roles.config import Config, Task
from veilwood_secure.roles.hidden_programs import HiddenForest, invalid_queries_error
from veilwood_secure.roles.identity import PartyName, is_signed, sign_text, tls_context
from veilwood_secure.roles.monitoring import MonitoringMixin
from veilwood_secure.roles.program import Shapes, program_for_task
from veilwood_secure.roles.receipts import answer_facts, statement_text
from veilwood_secure.roles.sessions import SessionBroker, agree_on_facts, draw_name, exchange_values, role_ledger
from veilwood_secure.roles.task_state import TaskState
from veilwood_secure.roles.training import TrainingMixin
from veilwood_secure.roles.uploads import Piece, piece_row_counts, share_size, split_piece

IDLE_TIMEOUT_S: Final = 900.0
"""Seconds without a query after which a user's session ends."""

SharePairs = dict[str, SharePair]


class UserRequestsMixin:
    """Mixin of ``Server`` that serves users."""

    config: Config
    party: int
    _sessions: SessionBroker

    def _reject_revoked(self, channel: transport.Channel) -> None:
        """Raise PartyError if the peer was revoked; implemented by ``Server``."""
        raise NotImplementedError

    def _receive_shares(
        self, channel: transport.Channel, shapes: Shapes, ring: type[np.unsignedinteger[Any]], size_error: PartyError
    ) -> tuple[SharePairs, list[bytes]]:
        """Receive shares of public shapes, one message each. Return the parsed shares and the raw messages.

        Raise ``size_error`` if a message has the wrong length.
        """
        sizes = [2 * np.dtype(ring).itemsize * math.prod(shape) for shape in shapes.values()]
        if max(sizes) > self.config.largest_message:
            raise DomainTooLargeError("the request has too many rows for this server. Hint: send fewer rows at a time.")
        channel.limit = self.config.largest_message
        channel.send_fields(send=list(shapes))
        try:
            messages = [bytes(channel.receive_large(size)) for size in sizes]
            named = zip(shapes.items(), messages, strict=True)
            return {name: pair_from_bytes(message, shape, ring) for (name, shape), message in named}, messages
        except PartyError:
            raise
        except VeilwoodError:
            raise size_error from None

    def _answer_queries(self, channel: transport.Channel, task_state: TaskState, fields: Mapping[str, Any]) -> None:
        """Answer a user's queries, in order, until the user disconnects."""
        model, program = self._require_model(task_state), task_state.program
        if not isinstance(program, HiddenForest):
            raise UseError(f"the model of task {task_state.task.name!r} is public. Hint: fetch it with User.model.")
        channel.send_fields(statement=model.facts["statement"], training=model.facts["training"])
        if self.party == 0:
            channel.receive_fields("go")
        number = 0
        with self._sessions.open_session(str(fields["session"]), task_state.task.name) as links:
            user = channel.peer.name
            facts = {"task": task_state.task.fingerprint(), "user": user, "training": model.facts["training"]}
            agree_on_facts(links, facts)
            engine = program.make_engine(links)
            names = [key.removeprefix("first.") for key in model.arrays if key.startswith("first.")]
            hidden = {
                name: engine.load((model.arrays[f"first.{name}"], model.arrays[f"second.{name}"])) for name in names
            }
            while links.wait_for_input(channel, IDLE_TIMEOUT_S):
                rows = channel.receive_fields("rows")["rows"]
                if rows == 0:
                    break
                self._reject_revoked(channel)
                if task_state.model is not model:
                    raise UseError(f"model {task_state.task.name!r} was retired.")
                shapes = program.query_shapes(parse_row_count(rows))
                pairs, messages = self._receive_shares(channel, shapes, program.ring, invalid_queries_error(user))
                agree_on_facts(links, {"rows": rows})
                query = {name: engine.load(pair) for name, pair in pairs.items()}
                program.check_queries(engine, user, query)
                reservation = self._charge_answers(
                    task_state, model, links, program.query_loss(parse_row_count(rows)), channel.peer
                )
                first, second = engine.user_shares(program.answer_queries(engine, hidden, query))
                if reservation is not None:
                    reservation.commit()
                answer = pair_to_bytes((first, second))
                signed = answer_facts(
                    self.party, model.facts["training"], str(fields["session"]), number, messages, answer
                )
                channel.send(answer)
                channel.send_fields(signature=sign_text(self.config.identity, statement_text("answer", signed)))
                number += 1
            agree_on_facts(links, {"rows": 0})

    def _charge_answers(
        self, task_state: TaskState, model: StoredModel, links: transport.TlsLinks, cost: Loss | None, user: PartyName
    ) -> Reservation | None:
        """Charge the loss of answers, if any, at all three servers or at none, before noise is drawn."""
        if cost is None:
            return None
        plan = task_state.program.plan
        file = self.config.folder / f"answers-{task_state.task.name}-{model.facts['training']}.db"
        ledger = SQLiteLedger(file, epsilon=plan.loss.epsilon, delta=plan.loss.delta)
        what, neighbours = f"answers of {task_state.task.name} to {user}", str(plan.neighbours)
        reservation = ledger.reserve(cost, what=what, neighbours=neighbours, plan=plan.fingerprint())
        try:
            agree_on_facts(links, {"charged": str(cost)})
        except VeilwoodError:
            reservation.cancel()
            raise
        return reservation

    def _send_released(self, channel: transport.Channel, task_state: TaskState, fields: Mapping[str, Any]) -> None:
        """Send a user the values that training released. Nothing else of a model is ever sent."""
        model = self._require_model(task_state)
        released = {key: array for key, array in model.arrays.items() if key.startswith("released.")}
        channel.send_fields(
            statement=model.facts["statement"],
            training=model.facts["training"],
            released=list(released),
            signatures=model.facts["signatures"],
        )
        for array in released.values():
            channel.send(np.ascontiguousarray(array, "<i8").data)

    def _require_model(self, task_state: TaskState) -> StoredModel:
        with task_state.lock:
            if task_state.model is None:
                missing = (
                    f"rows of {', '.join(task_state.missing_owners)} are missing"
                    if task_state.missing_owners
                    else "it is being trained"
                )
                raise PartyError(f"there is no model {task_state.task.name!r} at server {self.party}: {missing}.")
            return task_state.model


def parse_row_count(rows: object) -> int:
    """Validate a number of rows sent by another party."""
    if not isinstance(rows, int) or isinstance(rows, bool) or not 0 < rows < 1 << 31:
        raise UseError("the request is not a number of rows between 1 and 2^31.")
    return rows


log = logging.getLogger("veilwood.secure")

REQUEST_TIMEOUT_S: Final = 10.0
"""Seconds within which a new connection must send its request."""

WATCH_INTERVAL_S: Final = 0.5
"""Seconds between checks for a new configuration and certificate."""


class Server(MonitoringMixin, TrainingMixin, UserRequestsMixin):
    """Server that runs until it is closed. ``start`` returns immediately.

    Parameters
    ----------
    config : Config
        Configuration of a role ``server``.

    Notes
    -----
    Guarantee

    The messages, logs and files of a server do not depend on the number of rows that an owner sent: they contain no
    count, no length and no duration (proofs/secure.md, attacked by
    packages/veilwood-secure/tests/roles/test_outside.py).
    """

    def __init__(self, config: Config) -> None:
        self.config, self.party = Config.load_for_role("server", config), int(config.name)
        self._model_store = ModelStore(config.folder / "models", config.identity.secret, str(config.party_name))
        self._checkpoint_folder = EncryptedFolder(
            config.folder / "checkpoints", config.identity.secret, str(config.party_name)
        )
        self._ledger = role_ledger(config.folder)
        self._task_states = {}
        self._closed = threading.Event()
        self._lock = threading.RLock()
        self._config_mtime = (0, 0)
        self._revoked: tuple[str, ...] = ()
        self._task_faults = {}  # reasons why tasks of the configuration are not served
        self._listeners = []
        self.last_heartbeat = time.monotonic()
        self._register_metrics()
        dials = tls_context(config.identity, config.servers_authority, listens=False)
        self._contexts, self._certificate_mtime = [dials], self._certificate_time()
        self._sessions = SessionBroker(config, dials, self._join_training)

    def start(self) -> None:
        """Load the configuration and stored state, then listen."""
        self._reload_config()
        config, here = self.config, self.config.servers[self.party]
        peers = tls_context(config.identity, config.servers_authority, listens=True)
        participants = tls_context(config.identity, config.participants_authority, listens=True)
        self._contexts += [peers, participants]
        for port, context, on_connection, max_per_party, max_bytes in (
            (here.peers, peers, self._accept_peer, transport.MAX_CONNECTIONS, None),
            (
                here.participants,
                participants,
                self._serve_participant,
                transport.MAX_PER_PARTY,
                transport.MAX_INCOMING_BYTES,
            ),
        ):
            self._listeners.append(
                transport.Listener(
                    config.listen,
                    port,
                    context,
                    config.timeout,
                    on_connection,
                    max_per_party=max_per_party,
                    max_incoming_bytes=max_bytes,
                )
            )
        log.info("%s listens on %s, ports %d and %d", config.party_name, config.listen, here.peers, here.participants)
        for state in list(self._task_states.values()):  # training runs that were interrupted or about to begin
            if state.complete_uploads:
                self._begin_training(state)
        threading.Thread(target=self._watch_files, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        for listener in self._listeners:
            listener.close()

    def _watch_files(self) -> None:
        """Apply changes of tasks, revocations and the certificate while the server runs."""
        while not self._closed.wait(WATCH_INTERVAL_S):
            self.last_heartbeat = time.monotonic()
            try:
                self._reload_config()
                if self._certificate_time() != self._certificate_mtime:
                    identity = self.config.identity
                    for context in self._contexts:
                        context.load_cert_chain(identity.certificate, identity.key, password=identity.secret)
                    self._certificate_mtime = self._certificate_time()
                    log.info("%s uses its new certificate from now on", self.config.party_name)
            except OSError as error:  # certificate and key are being replaced: the next check finds both
                log.debug("not applied yet: %s", error)

    def _certificate_time(self) -> int:
        return self.config.identity.certificate.stat().st_mtime_ns

    def _accept_peer(self, channel: transport.Channel) -> None:
        """Accept another server, unless its certificate was revoked."""
        self._reject_revoked(channel)
        self._sessions.accept_peer(channel)

    def _reject_revoked(self, channel: transport.Channel) -> None:
        """Raise PartyError if the peer or its certificate was revoked. Open sessions call this, too."""
        self._reload_config()
        if str(channel.peer) in self._revoked:
            raise PartyError(f"{channel.peer} was revoked.", party=str(channel.peer))
        if channel.certificate_digest in self._revoked:
            raise PartyError(f"the certificate of {channel.peer} was revoked.", party=str(channel.peer))

    def _reload_config(self) -> None:
        """Read the configuration if it changed, and serve added tasks."""
        changed = self.config.modified_ns
        with self._lock:
            if changed == self._config_mtime:
                return
            self._config_mtime = changed
            try:
                config = Config.load(self.config.folder)
            except VeilwoodError as error:  # the tasks known so far continue
                log.error("the new configuration is not used: %s", error)
                return
            self._revoked = config.refused
            self._task_faults = {str(raw.get("name")): why for raw, why in config.faulty if isinstance(raw, dict)}
            for task in config.tasks:
                if task.name not in self._task_states:
                    self._add_task(task)
            for name, why in self._task_faults.items():
                log.error("task %s is not served: %s", name[:60], why)

    def _add_task(self, task: Task) -> None:
        """Begin to serve a task. A fault in one task does not affect others."""
        try:
            program = program_for_task(task)
            state = TaskState(task, program, Checkpoint(self._checkpoint_folder, task.name, program.training_subject()))
            if task.name in self._model_store.list_names():
                stored = self._model_store.load(task.name)
                if stored.facts.get("task") == task.fingerprint():  # delete the state of another task with this name
                    state.model = stored
            self._settle_interrupted(state)
        except Exception as error:
            known = isinstance(error, VeilwoodError)
            self._task_faults[task.name] = str(error) if known else f"unexpected {type(error).__name__}."
        else:
            self._task_states[task.name] = state

    def _find_task(self, name: object, fingerprint: object) -> TaskState:
        """Return the state of a task. Raise PartyError if this server's task of that name differs."""
        self._reload_config()
        state = self._task_states.get(str(name))
        if str(name) in self._task_faults and state is None:
            raise PartyError(f"server {self.party} does not serve task {str(name)!r}: {self._task_faults[str(name)]}")
        if state is None:
            raise PartyError(f"server {self.party} has no task {str(name)[:60]!r}. Hint: compare configurations.")
        if fingerprint != state.task.fingerprint():
            raise PartyError(
                f"task {name!r} is another one at server {self.party}: schema, epsilon, owners, users or settings "
                "differ. Hint: compare configurations."
            )
        return state

    # Owners and users

    def _serve_participant(self, channel: transport.Channel) -> None:
        """Serve one connection of an owner or user, and handle every error."""
        who, do = channel.peer, "nothing"  # metric label of unknown requests
        try:
            self._reject_revoked(channel)
            words = channel.receive_fields("do", "task", "fingerprint", "session", time_limit=REQUEST_TIMEOUT_S)
            state = self._find_task(words["task"], words["fingerprint"])
            allowed = state.task.owners if who.role == "owner" else state.task.users
            if who.role not in ("owner", "user") or who.name not in allowed:
                raise PartyError(f"{who} does not take part in task {state.task.name!r}.", party=str(who))
            role, action = {
                "contribute": ("owner", self._receive_upload),
                "attend": ("owner", self._keep_online),
                "agree": ("owner", self._receive_consent),
                "retire": ("owner", self._retire_model),
                "ask": ("user", self._answer_queries),
                "fetch": ("user", self._send_released),
                "status": (who.role, self._send_status),
            }.get(str(words["do"]), ("nobody", self._send_status))
            if role != who.role:
                raise PartyError(f"{who} may not do that.", party=str(who))
            do = str(words["do"])
            action(channel, state, words)
            self._count_request(do, who, "done")
            channel.close()
        except VeilwoodError as error:
            self._count_request(do, who, "lost" if isinstance(error, transport.LostError) else "refused")
            log.warning("%s: %s", who, error)
            channel.close_with_error(error)
        except Exception as error:  # no request may stop the server
            self._count_request(do, who, "failed")
            log.error("%s: unexpected %s", who, type(error).__name__, exc_info=log.isEnabledFor(logging.DEBUG))
            channel.close_with_error(error)

    def _send_status(self, channel: transport.Channel, task_state: TaskState, fields: Mapping[str, Any]) -> None:
        more = True
        while more:
            with task_state.lock:
                facts = task_state.model.facts if task_state.model else {}
                status: dict[str, Any] = {
                    "phase": task_state.phase,
                    "missing": task_state.missing_owners,
                    "failure": task_state.failure,
                    "resumes": task_state.lost_party is not None,
                }
                status["disagree"] = task_state.disagreeing_owners
                if channel.peer.role == "owner":
                    status["ticket"] = task_state.checkpoint.ticket
                    status["arrived"] = fields.get("upload") in task_state.accepted_uploads(channel.peer.name)
            channel.send_fields(**status, **{key: facts.get(key) for key in ("training", "statement")})
            more = bool(channel.receive_fields("more")["more"])

    def _retire_model(self, channel: transport.Channel, task_state: TaskState, fields: Mapping[str, Any]) -> None:
        with task_state.lock:
            task_state.reject_if_training()
            self._model_store.delete_model(task_state.task.name)
            task_state.model = task_state.failure = task_state.lost_party = None
            task_state.clear_rows()
            self._drop_attempt(task_state)
            task_state.checkpoint.save()
        log.info("%s: retired by %s", task_state.task.name, channel.peer)
        channel.send_fields(retired=True, ticket=task_state.checkpoint.ticket)

    def _receive_upload(self, channel: transport.Channel, task_state: TaskState, fields: Mapping[str, Any]) -> None:
        """Receive an owner's shares piece by piece, and check them with the other servers."""
        with task_state.lock:
            task_state.reject_if_training()
        owner, task, program = channel.peer.name, task_state.task, task_state.program
        if program.needs_online_owners:
            raise UseError(
                f"the owners of task {task.name!r} must stay online during training. Hint: call participate."
            )
        rows, part, upload = parse_row_count(fields.get("rows")), str(fields.get("part")), str(fields.get("upload"))
        PartyName("owner", part)  # validates the name, which becomes a folder
        task_state.reject_too_many_rows(owner, part, rows)
        counts = piece_row_counts(program, owner, rows)
        shapes = [program.row_shapes(owner, count) for count in (counts[0], counts[-1])]
        previous = task_state.checkpoint.parts.get(owner, {}).get(part)
        held = previous["held"] if previous and (previous["upload"], previous["rows"]) == (upload, rows) else []
        task_state.reject_duplicate_rows(owner, part, upload)
        self._store_approval(channel, task_state, fields)
        widest = max((share_size(self.party, shape, program.ring) for shape in shapes[0].values()), default=0)
        channel.limit = min(
            self.config.largest_message, max(widest, transport.MAX_FIRST_MESSAGE)
        )  # bounds the memory of an upload
        channel.send_fields(send=list(shapes[0]), held=len(held))
        start = channel.receive_fields("start")["start"]
        with self._sessions.open_session(str(fields["session"]), task.name) as links:
            facts = {
                "task": task.fingerprint(), "owner": owner, "rows": rows, "part": part, "upload": upload,
                "start": start, "more": bool(fields.get("more")),
            }  # fmt: skip
            name = self._admit_owner(channel, task_state, links, facts)
            if not isinstance(start, int) or not 0 <= start <= len(held):
                raise PartyError(
                    f"{channel.peer} tried to resume an upload that this server does not have. "
                    "Hint: start the upload again.",
                    party=str(channel.peer),
                )
            with task_state.lock:
                task_state.reject_if_training()
                task_state.reject_length_mismatch(owner, part, rows)
                entry = {"upload": upload, "rows": rows, "held": held[:start], "more": facts["more"]}
                if (
                    previous is not None
                    and previous == {**entry, "accepted": True}
                    and task_state.is_current_upload(owner, part, previous)
                ):
                    entry = previous  # already accepted: nothing changes, including a running training
                else:
                    if start == 0:
                        task_state.checkpoint.drop_part(owner, part)
                    # A concurrent upload of this part becomes invalid.
                    task_state.checkpoint.parts.setdefault(owner, {})[part] = entry
                    self._drop_attempt(task_state)  # the failure belongs to a training run on other rows
                    task_state.checkpoint.save()
            engine = program.make_engine(links)
            try:
                for number in range(start, len(counts)):
                    due = Piece(part, entry, name, number, shapes[number + 1 == len(counts)])
                    self._receive_piece(channel, task_state, links, engine, due)
            except transport.LostError:
                raise
            except VeilwoodError:
                with task_state.lock:
                    if task_state.is_current_upload(owner, part, entry):
                        task_state.checkpoint.drop_part(owner, part)
                        task_state.checkpoint.save()
                raise
            self._accept_upload(channel, task_state, links, part, entry)
        log.info("%s: accepted the shares of owner %s", task.name, owner)
        self._begin_training(task_state)  # first, because the owner may disconnect although its rows have arrived
        channel.send_fields(accepted=True)

    def _accept_upload(
        self,
        channel: transport.Channel,
        task_state: TaskState,
        links: transport.TlsLinks,
        part: str,
        upload_entry: dict[str, Any],
    ) -> None:
        """Accept a part of an owner's rows if all three servers have it, with each piece from the same session.

        Until then its owner counts as missing, so no training run begins with rows that only some servers have.
        """
        agree_on_facts(links, {"accepted": upload_entry["upload"]})
        reports, owner = exchange_values(links, list(upload_entry["held"])), channel.peer.name
        same, here = reports.count(reports[0]) == 3, f"server {self.party}"
        with task_state.lock:
            if task_state.checkpoint.parts.get(owner, {}).get(part, upload_entry) is not upload_entry:
                raise transport.LostError(f"{channel.peer} started this part again.", party=str(channel.peer))
            if (
                task_state.is_current_upload(owner, part, upload_entry) and not task_state.is_training
            ):  # otherwise the other servers have begun to train
                if same:
                    upload_entry["accepted"] = True
                else:
                    task_state.checkpoint.drop_part(owner, part)
                task_state.checkpoint.save()
        if not same:
            raise transport.LostError(f"{here} has pieces of another upload. Hint: send the rows again.", party=here)

    def _receive_piece(
        self,
        channel: transport.Channel,
        task_state: TaskState,
        links: transport.TlsLinks,
        engine: ReplicatedEngine,
        due: Piece,
    ) -> None:
        """Receive a piece of an owner's rows, check it with the other servers, and store it.

        Notes
        -----
        Guarantee

        Exactly the checked piece is stored. If an owner uploads one part several times at once and servers store pieces
        of different sessions, they do not train on them (proofs/secure-crash.md, attacked by
        packages/veilwood-secure/tests/roles/test_uploads.py).
        """
        (part, entry, session, number, shapes), program, owner = due, task_state.program, channel.peer.name
        data = b""
        for shape in shapes.values():
            size = share_size(self.party, shape, program.ring)
            message = channel.receive_large(size)
            if len(message) != size:
                raise PartyError(f"{channel.peer} sent shares of a wrong length.", party=str(channel.peer))
            data += message
        shares = {key: engine.load(pair) for key, pair in split_piece(self.party, data, shapes, program.ring).items()}
        program.check_rows(engine, owner, shares)
        with task_state.lock:
            task_state.reject_if_training()
            if not task_state.is_current_upload(owner, part, entry):
                raise transport.LostError(f"{channel.peer} started this part again.", party=str(channel.peer))
            task_state.checkpoint.write_piece(owner, part, number, data)
            entry["held"].append(session)
            task_state.checkpoint.save()
        agree_on_facts(links, {"piece": number})
        counters = exchange_values(links, task_state.checkpoint.counter)
        with task_state.lock:
            task_state.checkpoint.check_counters(counters, concurrent=True)
        channel.send_fields(piece=number)

    def _store_approval(self, channel: transport.Channel, task_state: TaskState, fields: Mapping[str, Any]) -> None:
        """Store an owner's signature on the training run. Raise PartyError if the signature is missing or invalid."""
        listed = fields.get("tickets")
        tickets = [str(ticket) for ticket in listed] if isinstance(listed, list) else []
        if len(tickets) != 3 or not is_signed(
            channel.certificate_der, task_state.program.approval_text(tickets), fields.get("approval")
        ):
            raise PartyError(
                f"{channel.peer} has not signed the plan of task {task_state.task.name!r} of server {self.party}. "
                "Hint: check that all parties run the same version.",
                party=str(channel.peer),
            )
        with task_state.lock:
            if tickets[self.party] != task_state.checkpoint.ticket:
                raise transport.LostError(
                    f"server {self.party} has started another training.", party=f"server {self.party}"
                )
            task_state.checkpoint.approvals[channel.peer.name] = {
                "signature": str(fields["approval"]),
                "tickets": tickets,
            }
            task_state.disagreeing_owners = [
                owner for owner in task_state.disagreeing_owners if owner != channel.peer.name
            ]

    def _receive_consent(self, channel: transport.Channel, task_state: TaskState, fields: Mapping[str, Any]) -> None:
        """Receive an owner's consent to another charge, for rows that this server already has."""
        with task_state.lock:
            task_state.reject_if_training()
            self._store_approval(channel, task_state, fields)
            if not task_state.disagreeing_owners:  # training can begin
                task_state.failure = None
            task_state.checkpoint.save()
        channel.send_fields(agreed=True)
        if self.party == 0:
            channel.receive_fields("go")
            self._begin_training(task_state)

    def _admit_owner(
        self, channel: transport.Channel, task_state: TaskState, links: transport.TlsLinks, facts: dict[str, Any]
    ) -> str:
        """Agree with the other servers to admit an owner, and delete a model that not all of them have.

        Return a session name drawn by the servers, so that no owner can use one name for two sessions.
        """
        held = task_state.model.facts["training"] if task_state.model else None
        agree_on_facts(links, facts)
        reports, name = exchange_values(links, [held, task_state.checkpoint.state_summary]), draw_name(links)
        with task_state.lock:
            task_state.checkpoint.agree_on_state([report[1] for report in reports], self.party)
        if held is not None and all(report[0] == held for report in reports):
            with suppress(PartyError):  # every server raises its own error, not the error of another server
                agree_on_facts(links, {"trained": held})
            raise UseError(f"task {task_state.task.name!r} is already trained. Hint: retire it first.")
        with task_state.lock:
            task_state.reject_if_training(may_retry=task_state.program.needs_online_owners)
            task_state.failure = None
            if (
                task_state.model is not None
            ):  # model of a training run that did not end at all three servers, so it cannot be queried
                self._discard_model(task_state)
        return name

    def _keep_online(self, channel: transport.Channel, task_state: TaskState, fields: Mapping[str, Any]) -> None:
        """Keep the connection of an online owner until the servers have trained."""
        program, owner = task_state.program, channel.peer.name
        if not program.needs_online_owners:
            raise UseError(
                f"task {task_state.task.name!r} does not accept more rows. Hint: call contribute once, with all rows."
            )
        if fields.get("plan") != program.plan.fingerprint():
            raise PartyError(
                f"{channel.peer} plans another training. Hint: check that all parties run the same version.",
                party=str(channel.peer),
            )
        task_state.reject_if_training(may_retry=True)  # that run uses lost connections of this owner and ends soon
        self._store_approval(channel, task_state, fields)
        channel.limit = self.config.largest_message
        channel.send_fields(received=True)
        if self.party == 0:
            channel.receive_fields("go")
        session = str(fields["session"])
        with self._sessions.open_session(session, task_state.task.name) as links:
            self._admit_owner(channel, task_state, links, {"task": task_state.task.fingerprint(), "owner": owner})
            with task_state.lock:
                task_state.reject_if_training(may_retry=True)  # a run may have begun since
                task_state.online_sessions[owner], task_state.owner_channels[owner], ended = (
                    (session, 1),
                    channel,
                    task_state.training_ended,
                )
            agree_on_facts(links, {"accepted": session})
        channel.send_fields(accepted=True)
        log.info("%s: owner %s is present", task_state.task.name, owner)
        self._begin_training(task_state)
        while not ended.wait(1.0):
            with task_state.lock:
                if task_state.is_training or ended.is_set():
                    continue
                if task_state.owner_channels.get(owner) is not channel:
                    raise transport.LostError(f"{channel.peer} opened another connection.", party=str(channel.peer))
                if channel.has_input:  # owners send only answers: the connection was closed
                    del task_state.owner_channels[owner], task_state.online_sessions[owner]
                    raise transport.LostError(f"{channel.peer} has left.", party=str(channel.peer))
        with task_state.lock:
            if task_state.model is None:
                kind = PartyError if task_state.lost_party is None else transport.LostError
                raise kind(
                    f"task {task_state.task.name!r} was not trained: {task_state.failure}", party=task_state.lost_party
                )
        channel.send_fields(trained=True)
