# SPDX-License-Identifier: Apache-2.0
"""Training at one of three servers: begun when all rows are there, charged first, and begun again when one was lost.

What is computed is in ``programs``; what survives a crash is in ``checkpoints``.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from contextlib import suppress
from typing import Final

from veilwood.errors import PartyError, UseError, VeilwoodError
from veilwood.privacy.ledger import SECURE_TRAINING
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood_secure.mpc.replicated import ReplicatedEngine
from veilwood_secure.roles.checkpoints import ModelStore, RecordedEngine, StoredModel, sync_openings
from veilwood_secure.roles.config import Config
from veilwood_secure.roles.monitoring import Counters
from veilwood_secure.roles.registry import JointForest, TrainingResult
from veilwood_secure.roles.sessions import SessionBroker, TaskLedgers, agree_on_facts
from veilwood_secure.roles.task_state import TaskState
from veilwood_secure.roles.transport import LostError, TlsLinks

__all__ = ["TrainingMixin"]

log = logging.getLogger("veilwood.secure")

RETRY_DELAYS_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between two attempts of a training that lost a server; the last is repeated."""


class MissingConsentError(UseError):
    """Owners have not agreed to be charged for the training that would begin now."""

    def __init__(self, owners: list[str]) -> None:
        super().__init__(
            "it was cut short while a number was being opened, so that it must be charged again. Hint: "
            f"{', '.join(owners)} must agree: run the client again, or let it wait."
        )
        self.owners = owners


class IncompleteUploadError(UseError):
    """The servers do not hold the same rows of some owners, whose uploads were cut short."""

    def __init__(self, owners: list[str]) -> None:
        super().__init__(f"not all servers have the rows of {', '.join(owners)}. Hint: wait until they are sent again.")
        self.owners = owners


class TrainingMixin:
    """What a server does to train; the part of ``Server`` that people do not talk to."""

    config: Config
    party: int
    counters: Counters
    retry_timeout: float = 3600.0
    """Seconds for which a training that lost a server is tried again."""
    _model_store: ModelStore
    _ledger: SQLiteLedger
    _sessions: SessionBroker
    _task_states: dict[str, TaskState]
    _closed: threading.Event

    def _settle_interrupted(self, task_state: TaskState) -> None:
        """Settle spends that a crash cut short: a stored model is paid for, and a training releases nothing else."""
        kept = task_state.model.facts["entry"] if task_state.model else None
        going_on = task_state.checkpoint.attempt["entry"] if task_state.checkpoint.attempt else None
        books = self._task_ledgers(task_state)
        last = task_state.checkpoint.ledger_entries
        recorded = self._ledger.entries_for(SECURE_TRAINING, task_state.task.name)
        if last and not any(entry.id == last for entry in recorded):
            raise UseError(
                f"the ledger of server {self.party} is older than its trainings of {task_state.task.name!r}. Hint: restore "
                "the newest ledger.db."
            )
        for entry in books.entries():
            if entry.state != "reserved":
                continue
            if entry.id == kept:
                books.commit(entry.key)
            elif entry.id != going_on or not task_state.program.opens_values:
                self._refund_charge(task_state, books, entry.key)
        books.cancel_orphans()

    def _task_ledgers(self, task_state: TaskState) -> TaskLedgers:
        """Return the ledgers of a task at this server."""
        return TaskLedgers(self.config.folder, task_state.program, self._ledger, tuple(task_state.task.owners))

    def _refund_charge(self, task_state: TaskState, ledgers: TaskLedgers, key: str) -> None:
        """Take back the spend of a training that left no model; where training opens anything, it stays spent.

        Notes
        -----
        Guarantee

        Nothing that may have been opened is ever refunded (proofs/secure.md, attacked by
        packages/veilwood-secure/tests/roles/test_refunds.py). This and ``_drop_attempt`` are the only refunds of a training.
        """
        if not task_state.program.opens_values:
            ledgers.cancel(key)

    def _join_training(self, task: str, session: str) -> None:
        """Join a training that server 0 begins."""
        study = self._task_states.get(task)
        if study is not None:
            self._train_once(study, session)

    def _begin_training(self, task_state: TaskState) -> None:
        """Begin a training, in a thread of its own, if this server is to and all rows are there."""
        with task_state.lock:
            ready = (
                self.party == 0
                and not task_state.missing_owners
                and not task_state.is_training
                and not task_state.disagreeing_owners
            )
            task_state.is_training = task_state.is_training or ready
        if ready:
            threading.Thread(target=self._train_with_retries, args=(task_state,), daemon=True).start()

    def _train_with_retries(self, task_state: TaskState) -> None:
        """Train, and again while a server is lost; what owners must be present for begins when they are."""
        until, pauses = time.monotonic() + self.retry_timeout, iter(RETRY_DELAYS_S)
        while True:
            self._train_once(task_state, None)
            with task_state.lock:
                if (
                    task_state.lost_server is None
                    or task_state.program.needs_online_owners
                    or time.monotonic() > until
                    or task_state.missing_owners
                ):
                    break
            if self._closed.wait(next(pauses, RETRY_DELAYS_S[-1])):
                return
            with task_state.lock:
                if task_state.is_training or task_state.missing_owners:
                    return
                task_state.is_training = True
        if not task_state.program.needs_online_owners:  # owners that are present are told whom they have to wait for
            with task_state.lock:
                task_state.lost_server = None

    def _train_once(self, task_state: TaskState, session: str | None) -> None:
        """Train with the other servers: all three end with a stored part, or none with a usable one."""
        with task_state.lock:
            if session is not None and task_state.is_training:
                raise LostError(
                    f"server {self.party} still trains {task_state.task.name!r}.", party=f"server {self.party}"
                )
            task_state.is_training, keep = True, True
        try:
            with self._sessions.open_session(session, task_state.task.name, invites=True) as links:
                self._train_in_session(task_state, links)
            log.info("%s: trained", task_state.task.name)
            self.counters.increment("veilwood_secure_trainings_total", end="trained")
            with task_state.lock:
                task_state.failure = task_state.lost_server = None
                task_state.checkpoint.end_training()
                task_state.checkpoint.renew_ticket()
                task_state.clear_rows()
                task_state.checkpoint.save()
        except Exception as error:
            self._record_failure(task_state, error)
        except BaseException:
            keep = False  # the end of this server: what is on disk stays as it is
            raise
        finally:
            with task_state.lock:
                if keep:
                    task_state.release_owners()
                task_state.is_training = False
                task_state.training_ended.set()
                task_state.training_ended = threading.Event()

    def _record_failure(self, task_state: TaskState, error: Exception) -> None:
        """Keep rows and record of a training that lost a server, to try again; forget those of any other failure."""
        with task_state.lock:
            task_state.failure = (
                str(error) if isinstance(error, VeilwoodError) else f"unexpected {type(error).__name__}"
            )
            party = getattr(error, "party", None) or ""
            task_state.lost_server = party if isinstance(error, LostError) and party.startswith("server") else None
            log.warning("%s: training ended without a model: %s", task_state.task.name, task_state.failure)
            self.counters.increment(
                "veilwood_secure_trainings_total", end="failed" if task_state.lost_server is None else "lost"
            )
            log.debug("details", exc_info=error)
            if isinstance(error, MissingConsentError):  # rows and record stay, until the owners have agreed again
                task_state.disagreeing_owners = list(error.owners)
                task_state.lost_server = f"server {self.party}" if task_state.program.needs_online_owners else None
                return
            if isinstance(error, IncompleteUploadError):  # what others have sent stays, and they need not know
                task_state.failure, task_state.lost_server = (
                    None,
                    f"server {self.party}" if task_state.program.needs_online_owners else None,
                )
                for owner in error.owners:
                    task_state.checkpoint.forget_owner_rows(owner)
                task_state.checkpoint.save()
                return
            if (
                task_state.lost_server is not None or self._closed.is_set()
            ):  # a server that is stopped keeps what is on its disk
                return
            self._discard_model(task_state)
            self._drop_attempt(task_state)
            task_state.clear_rows()
            task_state.checkpoint.save()

    def _train_in_session(self, task_state: TaskState, links: TlsLinks) -> None:
        task, program, state = task_state.task, task_state.program, task_state.checkpoint
        uploads = {owner: upload for owner, (upload, _) in sorted(task_state.complete_uploads.items())}
        training = state.attempt["training"] if state.attempt else None
        held = task_state.model.facts["training"] if task_state.model else None
        said = agree_on_facts(
            links,
            {"task": task.fingerprint(), "version": program.plan.fingerprint()},
            exchange=[state.counter, held, training, len(state.opened), state.intents],
        )
        state.check_counters([one[0] for one in said])
        if held is not None:
            if all(one[1] == held for one in said):
                return  # all three had stored it when the last session was cut short
            self._discard_model(task_state)
        unlike = task_state.mismatched_owners(agree_on_facts(links, {}, exchange=uploads))
        if unlike:
            with suppress(PartyError):  # all three come to it themselves, and none because another did
                agree_on_facts(links, {"unlike": unlike})
            raise IncompleteUploadError(unlike)
        task_state.accept_all_rows()
        task_state.reject_part_mismatch()
        unsigned = [owner for owner in task.owners if owner not in state.approvals]
        if unsigned:
            raise UseError(f"{', '.join(unsigned)} did not sign what is to be trained. Hint: contribute again.")
        entry = self._charge_once(task_state, links, said)
        agree_on_facts(links, {"reserved": True})
        log.info("%s: training on the rows of %s", task.name, ", ".join(uploads))
        if program.opens_values:
            engine: ReplicatedEngine = RecordedEngine(links, program.ring, state)
        else:
            engine = ReplicatedEngine(links, ring=program.ring)
        stored = self._build_stored_model(task_state, links, engine, self._run_program(task_state, engine), entry)
        self._model_store.save(task.name, stored)
        with task_state.lock:
            task_state.model = stored
        agree_on_facts(links, {"stored": True})
        assert state.attempt is not None
        self._task_ledgers(task_state).commit(state.attempt["training"])

    def _charge_once(self, task_state: TaskState, links: TlsLinks, reports: list[list[int]]) -> int:
        """Reserve the loss, unless this goes on with a charged training of which every opening is known.

        Return the entry in this server's ledger.

        Notes
        -----
        Guarantee

        A training goes on only with all that was opened, as it was; if all servers recorded that they were about to
        open something which none of them has, it is charged again. What this server never was about to open was not
        opened, since that takes all three (proofs/secure-crash.md, attacked by
        packages/veilwood-secure/tests/roles/test_server_crashes.py). Nothing is charged that an owner has not agreed to, under the
        ticket of this charge (attacked by packages/veilwood-secure/tests/roles/test_budgets.py).
        """
        program, state = task_state.program, task_state.checkpoint
        same = state.attempt is not None and all(one[2] == state.attempt["training"] for one in reports)
        opened, intents = max(one[3] for one in reports), min(one[4] for one in reports)
        if same and program.opens_values and opened == intents and (opened == 0 or _can_resume(program)):
            assert state.attempt is not None
            sync_openings(links, state, [one[3] for one in reports])
            return int(state.attempt["entry"])
        self._drop_attempt(task_state)
        disagree = {
            owner for one in agree_on_facts(links, {}, exchange=state.disagreeing_owners(self.party)) for owner in one
        }
        if disagree:
            with suppress(PartyError):  # all three come to it themselves, and none because another did
                agree_on_facts(links, {"disagree": sorted(disagree)})
            raise MissingConsentError(sorted(disagree))
        training = agree_on_facts(links, {}, exchange=secrets.token_hex(8))[0]  # the name that server 0 drew
        entry = self._task_ledgers(task_state).reserve(training).id
        state.begin_training(training, entry)
        return entry

    def _drop_attempt(self, task_state: TaskState) -> None:
        """Forget a training under way; its spend is taken back if nothing of it can have been opened.

        Otherwise owners have to agree again, before there is another.
        """
        state = task_state.checkpoint
        if state.attempt is not None:
            if task_state.program.opens_values and state.intents > 0:
                state.renew_ticket()
            else:
                self._task_ledgers(task_state).cancel(state.attempt["training"])
        state.end_training()

    def _run_program(self, task_state: TaskState, engine: ReplicatedEngine) -> TrainingResult:
        """Run the protocol on all rows; what goes wrong inside may speak of their number, and is not told to others."""
        rows = task_state.load_shares(engine, self.party)
        try:
            for channel in task_state.owner_channels.values():
                channel.send_fields(begins=True)
            return task_state.program.train(engine, rows, task_state.owner_channels)
        except PartyError:
            raise
        except VeilwoodError as error:
            raise PartyError(
                f"the protocol failed at server {self.party}. Hint: with --verbose its log says why."
            ) from error

    def _build_stored_model(
        self, task_state: TaskState, links: TlsLinks, engine: ReplicatedEngine, outcome: TrainingResult, entry: int
    ) -> StoredModel:
        """This server's part of a trained model, under a name for this training that all three share."""
        training = agree_on_facts(links, {}, exchange=secrets.token_hex(8))[0]  # the one server 0 drew
        statement = task_state.program.make_certificate(f"server {self.party}, {self._ledger.name}", entry)
        facts = {"training": training, "entry": entry, "statement": statement.to_dict()}
        facts |= {"task": task_state.task.fingerprint(), "approvals": dict(task_state.checkpoint.approvals)}
        facts["uploads"] = {owner: task_state.accepted_uploads(owner) for owner in task_state.task.owners}
        arrays = {f"released.{name}": array for name, array in outcome.released.items()}
        for name, share in outcome.hidden.items():
            arrays[f"first.{name}"], arrays[f"second.{name}"] = engine.local_shares(share)
        return StoredModel(facts, arrays)

    def _discard_model(self, task_state: TaskState) -> None:
        """Forget a model that not all servers have."""
        self._model_store.delete(task_state.task.name)
        if task_state.model is not None:
            task_state.model = None
            self._settle_interrupted(task_state)


def _can_resume(program: object) -> bool:
    """Whether every opening of a program is a release by itself, so that those that are missing can follow later."""
    return isinstance(program, JointForest)
