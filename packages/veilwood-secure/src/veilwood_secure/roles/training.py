# SPDX-License-Identifier: Apache-2.0
"""Training runs at one of the three servers: charging, running the program, and retrying after a lost connection.

A training run begins when the rows of all owners are present. The computation is defined by the program (``program``);
state that survives a crash is in ``checkpoints``.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import Any, Final

from veilwood.errors import FileError, PartyError, UseError, VeilwoodError
from veilwood.privacy.ledger import SECURE_TRAINING
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood_secure.mpc.replicated import ReplicatedEngine
from veilwood_secure.roles import sessions
from veilwood_secure.roles.checkpoints import ModelStore, RecordedOpenings, StoredModel, sync_openings
from veilwood_secure.roles.config import Config
from veilwood_secure.roles.program import TrainingResult
from veilwood_secure.roles.receipts import Receipt, check_training, hash_released, training_facts
from veilwood_secure.roles.task_state import TaskState
from veilwood_secure.roles.transport import LostError, TlsLinks

log = logging.getLogger("veilwood.secure")

RETRY_DELAYS_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between attempts of a training run that lost a server; the last value is repeated."""


class MissingConsentError(UseError):
    """Some owners have not consented to the charge of the next training run."""

    def __init__(self, owners: list[str]) -> None:
        super().__init__(
            "the training run was interrupted while a value was being opened, so it must be charged again. Hint: "
            f"ask {', '.join(owners)} to consent: run veilwood secure owner again, or let it wait."
        )
        self.owners = owners


class IncompleteUploadError(UseError):
    """The three servers do not have the same rows of some owners, whose uploads were interrupted."""

    def __init__(self, owners: list[str]) -> None:
        super().__init__(f"not all servers have the rows of {', '.join(owners)}. Hint: wait until these owners resend.")
        self.owners = owners


class TrainingMixin:
    """Mixin of ``Server`` that trains models."""

    config: Config
    party: int
    retry_timeout: float = 3600.0
    """Seconds during which a training run that lost a server is retried."""
    _model_store: ModelStore
    _ledger: SQLiteLedger
    _sessions: sessions.SessionBroker
    _task_states: dict[str, TaskState]
    _closed: threading.Event

    def _count_training(self, outcome: str) -> None:
        """Add a finished training run to the metrics; implemented by ``MonitoringMixin``."""
        raise NotImplementedError

    def _settle_interrupted(self, task_state: TaskState) -> None:
        """Settle reservations left by a crash. A charge with a stored model is committed."""
        model_entry = task_state.model.facts["entry"] if task_state.model else None
        attempt = task_state.checkpoint.attempt["training"] if task_state.checkpoint.attempt else None
        ledgers = self._task_ledgers(task_state)
        last = task_state.checkpoint.ledger_entries
        recorded = self._ledger.entries_for(SECURE_TRAINING, task_state.task.name)
        if last and not any(entry.id == last for entry in recorded):
            raise UseError(
                f"the ledger of server {self.party} is older than its training runs of {task_state.task.name!r}. "
                "Hint: restore the newest ledger.db."
            )
        for entry in ledgers.own_entries():
            if entry.state != "reserved":
                continue
            if entry.id == model_entry:
                ledgers.commit_all(entry.key)
            elif entry.key != attempt or not task_state.program.opens_values:
                self._refund_charge(task_state, ledgers, entry.key)
        ledgers.cancel_orphans()

    def _task_ledgers(self, task_state: TaskState) -> sessions.TaskLedgers:
        """Return the ledgers of a task at this server."""
        return sessions.TaskLedgers(self.config.folder, task_state.program, self._ledger, tuple(task_state.task.owners))

    def _refund_charge(self, task_state: TaskState, ledgers: sessions.TaskLedgers, key: str) -> None:
        """Cancel the charge of a training run that left no model, unless the program opens values.

        Notes
        -----
        Guarantee

        The charge of a value that may have been opened is never cancelled (proofs/secure.md, attacked by
        packages/veilwood-secure/tests/roles/test_refunds.py). Only this method and ``_drop_attempt`` cancel the charge
        of a training.
        """
        if not task_state.program.opens_values:
            ledgers.cancel_all(key)

    def _join_training(self, task: str, session: str) -> None:
        """Join a training run that server 0 begins."""
        state = self._task_states.get(task)
        if state is not None:
            self._train_once(state, session)

    def _begin_training(self, task_state: TaskState) -> None:
        """Begin a training run in a thread, if this is server 0 and all rows are present."""
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
        """Train, and retry while a server is lost. With online owners, the run starts again when they reconnect."""
        deadline, delays = time.monotonic() + self.retry_timeout, iter(RETRY_DELAYS_S)
        while True:
            self._train_once(task_state, None)
            with task_state.lock:
                if (
                    task_state.lost_party is None
                    or task_state.program.needs_online_owners
                    or time.monotonic() > deadline
                    or task_state.missing_owners
                ):
                    break
            if self._closed.wait(next(delays, RETRY_DELAYS_S[-1])):
                return
            with task_state.lock:
                if task_state.is_training or task_state.missing_owners:
                    return
                task_state.is_training = True
        if not task_state.program.needs_online_owners:  # online owners still need the name of the lost server
            with task_state.lock:
                task_state.lost_party = None

    def _train_once(self, task_state: TaskState, session: str | None) -> None:
        """Train once with the other servers. Afterwards either all three servers have stored the model, or none has."""
        with task_state.lock:
            if session is not None and task_state.is_training:
                raise LostError(
                    f"server {self.party} still trains {task_state.task.name!r}.", party=f"server {self.party}"
                )
            task_state.is_training, release_owners = True, True
        try:
            with self._sessions.open_session(session, task_state.task.name, invites=True) as links:
                self._train_in_session(task_state, links)
            log.info("%s: trained", task_state.task.name)
            self._count_training("trained")
            with task_state.lock:
                task_state.failure = task_state.lost_party = None
                task_state.checkpoint.end_training()
                task_state.checkpoint.renew_ticket()
                task_state.clear_rows()
                task_state.checkpoint.save()
        except Exception as error:
            self._record_failure(task_state, error)
        except BaseException:
            release_owners = False  # this server stops: its disk stays unchanged
            raise
        finally:
            with task_state.lock:
                if release_owners:
                    task_state.release_owners()
                task_state.is_training = False
                task_state.training_ended.set()
                task_state.training_ended = threading.Event()

    def _record_failure(self, task_state: TaskState, error: Exception) -> None:
        """Record a failed training run.

        Rows and checkpoint are kept for a retry if a party was lost or openings can be resumed, and deleted otherwise.
        """
        with task_state.lock:
            known = isinstance(error, VeilwoodError) and not isinstance(error, FileError)
            task_state.failure = str(error) if known else f"unexpected {type(error).__name__}"
            task_state.lost_party = getattr(error, "party", None) if isinstance(error, LostError) else None
            log.warning("%s: training ended without a model: %s", task_state.task.name, task_state.failure)
            self._count_training("failed" if task_state.lost_party is None else "lost")
            log.debug("details", exc_info=error)
            if isinstance(error, MissingConsentError):  # rows and checkpoint stay until the owners consent
                task_state.disagreeing_owners = list(error.owners)
                task_state.lost_party = f"server {self.party}" if task_state.program.needs_online_owners else None
                return
            if isinstance(error, IncompleteUploadError):  # rows of other owners stay, and no failure is reported
                task_state.failure, task_state.lost_party = (
                    None,
                    f"server {self.party}" if task_state.program.needs_online_owners else None,
                )
                for owner in error.owners:
                    task_state.checkpoint.forget_owner_rows(owner)
                task_state.checkpoint.save()
                return
            if task_state.lost_party is not None or self._closed.is_set():  # a stopped server keeps its disk unchanged
                return
            self._discard_model(task_state)
            if task_state.program.can_resume and (task_state.checkpoint.attempt or {}).get("entry"):
                return  # opened values are charged already: returning owners continue from there
            self._drop_attempt(task_state)
            task_state.clear_rows()
            task_state.checkpoint.save()

    def _train_in_session(self, task_state: TaskState, links: TlsLinks) -> None:
        task, program, state = task_state.task, task_state.program, task_state.checkpoint
        uploads = {owner: upload for owner, (upload, _) in sorted(task_state.complete_uploads.items())}
        training = state.attempt["training"] if state.attempt else None
        held = task_state.model.facts["training"] if task_state.model else None
        sessions.agree_on_facts(links, {"task": task.fingerprint(), "version": program.plan.fingerprint()})
        reports = sessions.exchange_values(
            links, [state.counter, held, training, len(state.opened), state.intents, state.may_have_opened]
        )
        state.check_counters([report[0] for report in reports])
        if held is not None:
            if all(report[1] == held for report in reports):  # all three had stored it before the session ended
                if state.attempt is not None:
                    self._task_ledgers(task_state).commit_all(state.attempt["training"])
                return
            self._discard_model(task_state)
        mismatched = task_state.mismatched_owners(sessions.exchange_values(links, uploads))
        if mismatched:
            with suppress(PartyError):  # every server raises its own error, not one of another server
                sessions.agree_on_facts(links, {"unlike": mismatched})
            raise IncompleteUploadError(mismatched)
        task_state.accept_all_rows()
        task_state.reject_part_mismatch()
        unsigned = [owner for owner in task.owners if owner not in state.approvals]
        if unsigned:
            raise UseError(f"{', '.join(unsigned)} did not sign this training run. Hint: contribute again.")
        reopened = self._charge_once(task_state, links, reports)
        sessions.agree_on_facts(links, {"reserved": True})
        assert state.attempt is not None
        entry = int(state.attempt["entry"])
        log.info("%s: training on the rows of %s", task.name, ", ".join(uploads))
        openings = RecordedOpenings(links, state, reopened) if program.opens_values else None
        engine = program.make_engine(links, openings)
        stored = self._build_stored_model(task_state, links, engine, self._run_program(task_state, engine), entry)
        self._model_store.save(task.name, stored)
        with task_state.lock:
            task_state.model = stored
        sessions.agree_on_facts(links, {"stored": True})
        self._task_ledgers(task_state).commit_all(state.attempt["training"])

    def _charge_once(self, task_state: TaskState, links: TlsLinks, reports: list[list[Any]]) -> int | None:
        """Reserve the loss, unless a charged training run resumes whose openings are all known or can be repeated.

        Return the number of an opening that must be opened again from its stored shares, or None.

        Notes
        -----
        Guarantee

        A training run resumes only with all opened values unchanged. A value that may have been seen is opened again
        from the same shares. If neither is possible, because one selection takes several openings, a training run of
        which a value may have been opened is charged again (proofs/secure-crash.md, attacked by
        packages/veilwood-secure/tests/roles/test_server_crashes.py). Nothing is charged without the consent of every
        owner, under the ticket of this charge (attacked by packages/veilwood-secure/tests/roles/test_budgets.py).
        """
        program, state = task_state.program, task_state.checkpoint
        same = state.attempt is not None and all(report[2] == state.attempt["training"] for report in reports)
        if same and program.opens_values and (program.can_resume or not any(report[5] for report in reports)):
            assert state.attempt is not None
            reopened = sync_openings(links, state, [report[3] for report in reports], [report[4] for report in reports])
            state.record_charge(self._task_ledgers(task_state).reserve_all(state.attempt["training"]).id)
            return reopened
        self._drop_attempt(task_state)
        disagree = {
            owner for one in sessions.exchange_values(links, state.disagreeing_owners(self.party)) for owner in one
        }
        if disagree:
            with suppress(PartyError):  # every server raises its own error, not one of another server
                sessions.agree_on_facts(links, {"disagree": sorted(disagree)})
            raise MissingConsentError(sorted(disagree))
        training = sessions.draw_name(links)
        state.begin_training(training)  # recorded before the charge, which a crash may leave in the ledger
        state.record_charge(self._task_ledgers(task_state).reserve_all(training).id)
        return None

    def _drop_attempt(self, task_state: TaskState) -> None:
        """Drop a started training run. Its charge is cancelled if no value can have been opened.

        Otherwise owners must consent again before the next training run.
        """
        state = task_state.checkpoint
        if state.attempt is not None:
            if task_state.program.opens_values and state.may_have_opened:
                state.renew_ticket()
            else:
                self._task_ledgers(task_state).cancel_all(state.attempt["training"])
        state.end_training()

    def _run_program(self, task_state: TaskState, engine: ReplicatedEngine) -> TrainingResult:
        """Run the program on all rows. Its errors may reveal the number of rows and are not sent to other parties."""
        rows = task_state.load_shares(engine, self.party)
        try:
            for channel in task_state.owner_channels.values():
                channel.send_fields(begins=True)
            return task_state.program.train(engine, rows, task_state.owner_channels)
        except PartyError:
            raise
        except VeilwoodError as error:
            raise PartyError(
                f"the protocol failed at server {self.party}. Hint: run that server with --verbose and read its log."
            ) from error

    def _build_stored_model(
        self, task_state: TaskState, links: TlsLinks, engine: ReplicatedEngine, outcome: TrainingResult, entry: int
    ) -> StoredModel:
        """Return this server's data of a trained model, under a name common to all three servers."""
        training = sessions.draw_name(links)
        statement = task_state.program.make_certificate(f"server {self.party}, {self._ledger.name}", entry)
        facts: dict[str, Any] = {"training": training, "entry": entry, "statement": statement.to_dict()}
        facts |= {"task": task_state.task.fingerprint(), "approvals": dict(task_state.checkpoint.approvals)}
        opened = hash_released(outcome.released)
        signed = Receipt.sign(self.config.identity, "training", training_facts(self.party, training, opened))
        signatures = sessions.exchange_values(links, signed.to_dict())
        check_training(signatures, training, opened, self.config.servers_authority.read_bytes())
        facts["signatures"] = signatures
        facts["uploads"] = {owner: task_state.accepted_uploads(owner) for owner in task_state.task.owners}
        arrays = {f"released.{name}": array for name, array in outcome.released.items()}
        for name, share in outcome.hidden.items():
            arrays[f"first.{name}"], arrays[f"second.{name}"] = engine.local_shares(share)
        return StoredModel(facts, arrays)

    def _discard_model(self, task_state: TaskState) -> None:
        """Delete a model that not all servers have."""
        self._model_store.delete_model(task_state.task.name)
        if task_state.model is not None:
            task_state.model = None
            self._settle_interrupted(task_state)
