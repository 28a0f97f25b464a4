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
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood_secure.mpc.replicated import ReplicatedEngine
from veilwood_secure.roles.checkpoints import RecordedEngine, Stored, Vault, level_openings
from veilwood_secure.roles.config import Config
from veilwood_secure.roles.monitoring import Figures
from veilwood_secure.roles.registry import JointForest, Trained
from veilwood_secure.roles.sessions import Books, Meetings, agree
from veilwood_secure.roles.task_state import Study
from veilwood_secure.roles.transport import LostError, TlsLinks

__all__ = ["Training"]

log = logging.getLogger("veilwood.secure")

PAUSES: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between two attempts of a training that lost a server; the last is repeated."""


class DisagreeError(UseError):
    """Owners have not agreed to be charged for the training that would begin now."""

    def __init__(self, owners: list[str]) -> None:
        super().__init__(
            "it was cut short while a number was being opened, so that it must be charged again. Hint: "
            f"{', '.join(owners)} must agree: run the client again, or let it wait."
        )
        self.owners = owners


class UnfinishedError(UseError):
    """The servers do not hold the same rows of some owners, whose uploads were cut short."""

    def __init__(self, owners: list[str]) -> None:
        super().__init__(f"not all servers have the rows of {', '.join(owners)}. Hint: wait until they are sent again.")
        self.owners = owners


class Training:
    """What a server does to train; the part of ``Server`` that people do not talk to."""

    config: Config
    party: int
    figures: Figures
    patience: float = 3600.0
    """Seconds for which a training that lost a server is tried again."""
    _vault: Vault
    _ledger: SQLiteLedger
    _meetings: Meetings
    _studies: dict[str, Study]
    _closed: threading.Event

    def _settle_leftovers(self, study: Study) -> None:
        """Settle spends that a crash cut short: a stored model is paid for, and a training releases nothing else."""
        kept = study.model.facts["entry"] if study.model else None
        going_on = study.state.attempt["entry"] if study.state.attempt else None
        books = self._books(study)
        last, named = study.state.ledger_entries, f"secure training of {study.task.name} ("
        if last and not any(one.id == last and one.what.startswith(named) for one in self._ledger.entries()):
            raise UseError(
                f"the ledger of server {self.party} is older than its trainings of {study.task.name!r}. Hint: restore "
                "the newest ledger.db."
            )
        for entry in books.entries():
            if entry.state != "reserved":
                continue
            if entry.id == kept:
                books.commit(entry.key)
            elif entry.id != going_on or not study.program.reveals:
                self._refund(study, books, entry.key)
        books.drop_halves()

    def _books(self, study: Study) -> Books:
        """Return the ledgers of a task at this server."""
        return Books(self.config.folder, study.program, self._ledger, tuple(study.task.owners))

    def _refund(self, study: Study, books: Books, key: str) -> None:
        """Take back the spend of a training that left no model; where training opens anything, it stays spent.

        Notes
        -----
        Guarantee

        Nothing that may have been opened is ever refunded (proofs/secure.md, attacked by
        packages/veilwood-secure/tests/roles/test_refunds.py). This and ``_drop_attempt`` are the only refunds of a training.
        """
        if not study.program.reveals:
            books.cancel(key)

    def _invited(self, task: str, session: str) -> None:
        """Join a training that server 0 begins."""
        study = self._studies.get(task)
        if study is not None:
            self._train(study, session)

    def _begin(self, study: Study) -> None:
        """Begin a training, in a thread of its own, if this server is to and all rows are there."""
        with study.lock:
            ready = self.party == 0 and not study.missing and not study.training and not study.disagree
            study.training = study.training or ready
        if ready:
            threading.Thread(target=self._train_until_done, args=(study,), daemon=True).start()

    def _train_until_done(self, study: Study) -> None:
        """Train, and again while a server is lost; what owners must be present for begins when they are."""
        until, pauses = time.monotonic() + self.patience, iter(PAUSES)
        while True:
            self._train(study, None)
            with study.lock:
                if study.lost is None or study.program.attended or time.monotonic() > until or study.missing:
                    break
            if self._closed.wait(next(pauses, PAUSES[-1])):
                return
            with study.lock:
                if study.training or study.missing:
                    return
                study.training = True
        if not study.program.attended:  # owners that are present are told whom they have to wait for
            with study.lock:
                study.lost = None

    def _train(self, study: Study, session: str | None) -> None:
        """Train with the other servers: all three end with a stored part, or none with a usable one."""
        with study.lock:
            if session is not None and study.training:
                raise LostError(f"server {self.party} still trains {study.task.name!r}.", party=f"server {self.party}")
            study.training, keep = True, True
        try:
            with self._meetings.session(session, study.task.name, invites=True) as links:
                self._train_together(study, links)
            log.info("%s: trained", study.task.name)
            self.figures.count("veilwood_secure_trainings_total", end="trained")
            with study.lock:
                study.failure = study.lost = None
                study.state.end()
                study.state.renew_ticket()
                study.clear()
                study.state.save()
        except Exception as error:
            self._ended_without(study, error)
        except BaseException:
            keep = False  # the end of this server: what is on disk stays as it is
            raise
        finally:
            with study.lock:
                if keep:
                    study.leave()
                study.training = False
                study.ended.set()
                study.ended = threading.Event()

    def _ended_without(self, study: Study, error: Exception) -> None:
        """Keep rows and record of a training that lost a server, to try again; forget those of any other failure."""
        with study.lock:
            study.failure = str(error) if isinstance(error, VeilwoodError) else f"unexpected {type(error).__name__}"
            party = getattr(error, "party", None) or ""
            study.lost = party if isinstance(error, LostError) and party.startswith("server") else None
            log.warning("%s: training ended without a model: %s", study.task.name, study.failure)
            self.figures.count("veilwood_secure_trainings_total", end="failed" if study.lost is None else "lost")
            log.debug("details", exc_info=error)
            if isinstance(error, DisagreeError):  # rows and record stay, until the owners have agreed again
                study.disagree = list(error.owners)
                study.lost = f"server {self.party}" if study.program.attended else None
                return
            if isinstance(error, UnfinishedError):  # what others have sent stays, and they need not know
                study.failure, study.lost = None, f"server {self.party}" if study.program.attended else None
                for owner in error.owners:
                    study.state.forget_rows_of(owner)
                study.state.save()
                return
            if study.lost is not None or self._closed.is_set():  # a server that is stopped keeps what is on its disk
                return
            self._discard(study)
            self._drop_attempt(study)
            study.clear()
            study.state.save()

    def _train_together(self, study: Study, links: TlsLinks) -> None:
        task, program, state = study.task, study.program, study.state
        uploads = {owner: upload for owner, (upload, _) in sorted(study.rows.items())}
        training = state.attempt["training"] if state.attempt else None
        held = study.model.facts["training"] if study.model else None
        said = agree(
            links,
            {"task": task.fingerprint(), "version": program.plan.fingerprint()},
            also=[state.counter, held, training, len(state.opened), state.intents],
        )
        state.hear([one[0] for one in said])
        if held is not None:
            if all(one[1] == held for one in said):
                return  # all three had stored it when the last session was cut short
            self._discard(study)
        unlike = study.unlike(agree(links, {}, also=uploads))
        if unlike:
            with suppress(PartyError):  # all three come to it themselves, and none because another did
                agree(links, {"unlike": unlike})
            raise UnfinishedError(unlike)
        study.accept_all()
        study.refuse_other_parts()
        unsigned = [owner for owner in task.owners if owner not in state.approvals]
        if unsigned:
            raise UseError(f"{', '.join(unsigned)} did not sign what is to be trained. Hint: contribute again.")
        entry = self._charged_once(study, links, said)
        agree(links, {"reserved": True})
        log.info("%s: training on the rows of %s", task.name, ", ".join(uploads))
        if program.reveals:
            engine: ReplicatedEngine = RecordedEngine(links, program.ring, state)
        else:
            engine = ReplicatedEngine(links, ring=program.ring)
        stored = self._stored(study, links, engine, self._computed(study, engine), entry)
        self._vault.save(task.name, stored)
        with study.lock:
            study.model = stored
        agree(links, {"stored": True})
        assert state.attempt is not None
        self._books(study).commit(state.attempt["training"])

    def _charged_once(self, study: Study, links: TlsLinks, said: list[list[int]]) -> int:
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
        program, state = study.program, study.state
        same = state.attempt is not None and all(one[2] == state.attempt["training"] for one in said)
        opened, intents = max(one[3] for one in said), min(one[4] for one in said)
        if same and program.reveals and opened == intents and (opened == 0 or _goes_on(program)):
            assert state.attempt is not None
            level_openings(links, state, [one[3] for one in said])
            return int(state.attempt["entry"])
        self._drop_attempt(study)
        disagree = {owner for one in agree(links, {}, also=state.disagree(self.party)) for owner in one}
        if disagree:
            with suppress(PartyError):  # all three come to it themselves, and none because another did
                agree(links, {"disagree": sorted(disagree)})
            raise DisagreeError(sorted(disagree))
        training = agree(links, {}, also=secrets.token_hex(8))[0]  # the name that server 0 drew
        entry = self._books(study).reserve(training).id
        state.begin(training, entry)
        return entry

    def _drop_attempt(self, study: Study) -> None:
        """Forget a training under way; its spend is taken back if nothing of it can have been opened.

        Otherwise owners have to agree again, before there is another.
        """
        state = study.state
        if state.attempt is not None:
            if study.program.reveals and state.intents > 0:
                state.renew_ticket()
            else:
                self._books(study).cancel(state.attempt["training"])
        state.end()

    def _computed(self, study: Study, engine: ReplicatedEngine) -> Trained:
        """Run the protocol on all rows; what goes wrong inside may speak of their number, and is not told to others."""
        rows = study.shares(engine, self.party)
        try:
            for channel in study.present.values():
                channel.say(begins=True)
            return study.program.train(engine, rows, study.present)
        except PartyError:
            raise
        except VeilwoodError as error:
            raise PartyError(
                f"the protocol failed at server {self.party}. Hint: with --verbose its log says why."
            ) from error

    def _stored(self, study: Study, links: TlsLinks, engine: ReplicatedEngine, outcome: Trained, entry: int) -> Stored:
        """This server's part of a trained model, under a name for this training that all three share."""
        training = agree(links, {}, also=secrets.token_hex(8))[0]  # the one server 0 drew
        statement = study.program.statement(f"server {self.party}, {self._ledger.name}", entry)
        facts = {"training": training, "entry": entry, "statement": statement.to_dict()}
        facts |= {"task": study.task.fingerprint(), "approvals": dict(study.state.approvals)}
        facts["uploads"] = {owner: study.arrived(owner) for owner in study.task.owners}
        arrays = {f"released.{name}": array for name, array in outcome.released.items()}
        for name, share in outcome.hidden.items():
            arrays[f"first.{name}"], arrays[f"second.{name}"] = engine.pair(share)
        return Stored(facts, arrays)

    def _discard(self, study: Study) -> None:
        """Forget a model that not all servers have."""
        self._vault.delete(study.task.name)
        if study.model is not None:
            study.model = None
            self._settle_leftovers(study)


def _goes_on(program: object) -> bool:
    """Whether every opening of a program is a release by itself, so that those that are missing can follow later."""
    return isinstance(program, JointForest)
