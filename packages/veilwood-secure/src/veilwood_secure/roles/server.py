# SPDX-License-Identifier: Apache-2.0
"""One of the three servers: takes shares from owners, trains, keeps its part of models, answers users in shares.

What is computed is in ``programs``, answers to users in ``answers``, connections in ``transport``, sessions among the
servers in ``sessions``.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np

from veilwood.errors import DomainTooLargeError, PartyError, UseError, VeilwoodError
from veilwood.privacy.ledger_stores import Reservation, SQLiteLedger
from veilwood.privacy.loss import Loss
from veilwood_secure.mpc.replicated import ReplicatedEngine
from veilwood_secure.mpc.shares import Pair, from_bytes, to_bytes
from veilwood_secure.roles.checkpoints import Checkpoint, Safe, Stored, Vault
from veilwood_secure.roles.config import CONFIG, Config, Task
from veilwood_secure.roles.identity import Name, is_signed, tls_context
from veilwood_secure.roles.monitoring import Figures, Operated
from veilwood_secure.roles.registry import HiddenForest, Shapes, program_of, refused_questions
from veilwood_secure.roles.sessions import Meetings, agree, own_ledger
from veilwood_secure.roles.task_state import Study
from veilwood_secure.roles.training import Training
from veilwood_secure.roles.transport import (
    FIRST_WORDS,
    MOST_BYTES,
    MOST_CONNECTIONS,
    MOST_OF_ONE,
    Channel,
    Listener,
    LostError,
    TlsLinks,
)
from veilwood_secure.roles.uploads import Piece, cut, piece_rows, size_of_shares

__all__ = ["AnswersUsers", "Server", "number_of_rows"]


IDLE_SECONDS: Final = 900.0
"""How long a user may think between two questions before its session ends."""

Pairs = dict[str, Pair]


class AnswersUsers:
    """The part of ``Server`` that users talk to."""

    config: Config
    party: int
    _meetings: Meetings

    def _refuse_revoked(self, channel: Channel) -> None:
        """Refuse whoever was revoked; ``Server`` knows who was."""
        raise NotImplementedError

    def _take(self, channel: Channel, shapes: Shapes, ring: type[np.unsignedinteger[Any]], misfit: PartyError) -> Pairs:
        """Receive shares of public shapes, one message each; raise ``misfit`` if one has another width."""
        sizes = [2 * np.dtype(ring).itemsize * math.prod(shape) for shape in shapes.values()]
        if max(sizes) > self.config.largest_message:
            raise DomainTooLargeError("these are more rows than this server takes. Hint: fewer rows at a time.")
        channel.limit = self.config.largest_message
        channel.say(send=list(shapes))
        try:
            return {
                name: from_bytes(memoryview(channel.receive_large(size)), shape, ring)
                for (name, shape), size in zip(shapes.items(), sizes, strict=True)
            }
        except PartyError:
            raise
        except VeilwoodError:
            raise misfit from None

    def _ask(self, channel: Channel, study: Study, words: Mapping[str, Any]) -> None:
        """Answer a user's questions, in order, until it leaves."""
        model, program = self._model(study), study.program
        if not isinstance(program, HiddenForest):
            raise UseError(f"the model of task {study.task.name!r} is public. Hint: fetch it.")
        channel.say(statement=model.facts["statement"], training=model.facts["training"])
        if self.party == 0:
            channel.hear("go")
        with self._meetings.session(str(words["session"]), study.task.name) as links:
            user = channel.peer.name
            about = {"task": study.task.fingerprint(), "user": user, "training": model.facts["training"]}
            agree(links, about)
            engine = ReplicatedEngine(links, ring=study.program.ring)
            names = [key.removeprefix("first.") for key in model.arrays if key.startswith("first.")]
            hidden = {
                name: engine.load((model.arrays[f"first.{name}"], model.arrays[f"second.{name}"])) for name in names
            }
            while links.wait_for(channel, IDLE_SECONDS):
                rows = channel.hear("rows")["rows"]
                if rows == 0:
                    break
                self._refuse_revoked(channel)
                if study.model is not model:
                    raise UseError(f"model {study.task.name!r} was retired.")
                shapes = program.shapes_of_queries(number_of_rows(rows))
                pairs = self._take(channel, shapes, program.ring, refused_questions(user))
                agree(links, {"rows": rows}, blame=str(channel.peer))
                query = {name: engine.load(pair) for name, pair in pairs.items()}
                program.check_queries(engine, user, query)
                spend = self._charged(study, model, links, program.cost_of_queries(number_of_rows(rows)), channel.peer)
                first, second = engine.pair(program.answer(engine, hidden, query))
                if spend is not None:
                    spend.commit()
                channel.send(to_bytes((first, second)))
            agree(links, {"rows": 0}, blame=str(channel.peer))

    def _charged(
        self, study: Study, model: Stored, links: TlsLinks, cost: Loss | None, user: Name
    ) -> Reservation | None:
        """Charge what answers cost, where they do, at all three servers or none, before noise is drawn."""
        if cost is None:
            return None
        plan = study.program.plan
        file = self.config.folder / f"answers-{study.task.name}-{model.facts['training']}.db"
        book = SQLiteLedger(file, epsilon=plan.loss.epsilon, delta=plan.loss.delta)
        what, neighbours = f"answers of {study.task.name} to {user}", str(plan.neighbours)
        spend = book.reserve(cost, what=what, neighbours=neighbours, plan=plan.fingerprint())
        try:
            agree(links, {"charged": str(cost)})
        except VeilwoodError:
            spend.cancel()
            raise
        return spend

    def _fetch(self, channel: Channel, study: Study, words: Mapping[str, Any]) -> None:
        """Hand a user what training released; nothing else of a model is ever handed out."""
        model = self._model(study)
        released = {key: array for key, array in model.arrays.items() if key.startswith("released.")}
        channel.say(statement=model.facts["statement"], training=model.facts["training"], released=list(released))
        for array in released.values():
            channel.send(np.ascontiguousarray(array, "<i8").data)

    def _model(self, study: Study) -> Stored:
        with study.lock:
            if study.model is None:
                missing = f"rows of {', '.join(study.missing)} are missing" if study.missing else "it is being trained"
                raise PartyError(f"there is no model {study.task.name!r} at server {self.party}: {missing}.")
            return study.model


def number_of_rows(rows: object) -> int:
    """A number of rows as somebody claims it."""
    if not isinstance(rows, int) or isinstance(rows, bool) or not 0 < rows < 1 << 31:
        raise UseError("what was sent is not a number of rows.")
    return rows


log = logging.getLogger("veilwood.secure")

FIRST_SECONDS: Final = 10.0
"""How long somebody has to say what it wants."""

WATCH_SECONDS: Final = 0.5
"""How often a server looks for a new configuration and certificate."""


class Server(Training, AnswersUsers, Operated):
    """Runs until closed; ``start`` returns at once.

    Parameters
    ----------
    config : Config
        Of the role ``server``.

    Notes
    -----
    Guarantee

    What a server says, logs and stores does not depend on how many rows an owner sent: no count, no length, no
    duration stands in it (proofs/secure.md, attacked by packages/veilwood-secure/tests/roles/test_outside.py).
    """

    def __init__(self, config: Config) -> None:
        self.config, self.party = Config.of_role("server", config), int(config.name)
        self._vault = Vault(config.folder / "models", config.identity.secret, str(config.who))
        self._safe = Safe(config.folder / "checkpoints", config.identity.secret, str(config.who))
        self._ledger = own_ledger(config.folder)
        self._studies = {}
        self._closed = threading.Event()
        self._lock = threading.RLock()
        self._read_at = 0.0
        self._refused: tuple[str, ...] = ()
        self._faults = {}  # why a task of the configuration is not served
        self._listeners = []
        self.figures, self.beat = Figures(), time.monotonic()
        dials = tls_context(config.identity, config.servers_authority, listens=False)
        self._contexts, self._certified_at = [dials], self._certificate_time()
        self._meetings = Meetings(config, dials, self._invited)

    def start(self) -> None:
        """Reload what is stored, then listen."""
        self._reload()
        config, here = self.config, self.config.servers[self.party]
        peers = tls_context(config.identity, config.servers_authority, listens=True)
        people = tls_context(config.identity, config.people_authority, listens=True)
        self._contexts += [peers, people]
        for port, context, greet, of_one, most_bytes in (
            (here.peers, peers, self._on_peer, MOST_CONNECTIONS, None),
            (here.people, people, self._on_person, MOST_OF_ONE, MOST_BYTES),
        ):
            self._listeners.append(
                Listener(config.listen, port, context, config.timeout, greet, of_one=of_one, most_bytes=most_bytes)
            )
        log.info("%s listens on %s, ports %d and %d", config.who, config.listen, here.peers, here.people)
        for study in list(self._studies.values()):  # trainings that were cut short, or about to begin
            if study.rows:
                self._begin(study)
        threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        for listener in self._listeners:
            listener.close()

    def _watch(self) -> None:
        """Take up tasks, refusals and a renewed certificate as they are put in place."""
        while not self._closed.wait(WATCH_SECONDS):
            self.beat = time.monotonic()
            try:
                self._reload()
                if self._certificate_time() != self._certified_at:
                    identity = self.config.identity
                    for context in self._contexts:
                        context.load_cert_chain(identity.certificate, identity.key, password=identity.secret)
                    self._certified_at = self._certificate_time()
                    log.info("%s shows its new certificate from now on", self.config.who)
            except OSError as error:  # certificate and key are being put in place: the next look finds both
                log.debug("not taken up yet: %s", error)

    def _certificate_time(self) -> int:
        return self.config.identity.certificate.stat().st_mtime_ns

    def _on_peer(self, channel: Channel) -> None:
        """Let another server in, unless its certificate was revoked."""
        self._refuse_revoked(channel)
        self._meetings.on_peer(channel)

    def _refuse_revoked(self, channel: Channel) -> None:
        """Refuse whoever was revoked; a session that is open is not spared."""
        self._reload()
        if str(channel.peer) in self._refused:
            raise PartyError(f"{channel.peer} was revoked.", party=str(channel.peer))
        if channel.certificate in self._refused:
            raise PartyError(f"the certificate of {channel.peer} was revoked.", party=str(channel.peer))

    def _reload(self) -> None:
        """Read tasks added since, and models stored before."""
        changed = (self.config.folder / CONFIG).stat().st_mtime
        with self._lock:
            if changed == self._read_at:
                return
            self._read_at = changed
            try:
                config = Config.load(self.config.folder)
            except VeilwoodError as error:  # the tasks known so far go on
                log.error("the configuration that was put in place is not used: %s", error)
                return
            self._refused = config.refused
            self._faults = {str(raw.get("name")): why for raw, why in config.faulty if isinstance(raw, dict)}
            for task in config.tasks:
                if task.name not in self._studies:
                    self._add(task)
            for name, why in self._faults.items():
                log.error("task %s is not served: %s", name[:60], why)

    def _add(self, task: Task) -> None:
        """Begin to serve a task; one that cannot be served harms no other."""
        try:
            program = program_of(task)
            study = Study(task, program, Checkpoint(self._safe, task.name, program.subject()))
            if task.name in self._vault.names():
                stored = self._vault.load(task.name)
                if stored.facts.get("task") == task.fingerprint():  # not one that others agreed to under this name
                    study.model = stored
            self._settle_leftovers(study)
        except Exception as error:
            known = isinstance(error, VeilwoodError)
            self._faults[task.name] = str(error) if known else f"unexpected {type(error).__name__}."
        else:
            self._studies[task.name] = study

    def _study(self, name: object, fingerprint: object) -> Study:
        """The task somebody means, if it means the same to this server."""
        self._reload()
        study = self._studies.get(str(name))
        if str(name) in self._faults and study is None:
            raise PartyError(f"server {self.party} does not serve task {str(name)!r}: {self._faults[str(name)]}")
        if study is None:
            raise PartyError(f"server {self.party} knows no task {str(name)[:60]!r}. Hint: compare configurations.")
        if fingerprint != study.task.fingerprint():
            raise PartyError(
                f"task {name!r} is another one at server {self.party}: schema, epsilon, owners, users or settings "
                "differ. Hint: compare configurations."
            )
        return study

    # -- owners and users ----------------------------------------------------------------------------------------

    def _on_person(self, channel: Channel) -> None:
        """Serve one connection of a client or user, whatever happens in it."""
        who, do = channel.peer, "nothing"  # that this server knows of
        try:
            self._refuse_revoked(channel)
            words = channel.hear("do", "task", "fingerprint", "session", within=FIRST_SECONDS)
            study = self._study(words["task"], words["fingerprint"])
            allowed = study.task.owners if who.role == "client" else study.task.users
            if who.role not in ("client", "user") or who.name not in allowed:
                raise PartyError(f"{who} has no part in task {study.task.name!r}.", party=str(who))
            role, action = {
                "contribute": ("client", self._contribute),
                "attend": ("client", self._attend),
                "agree": ("client", self._agree),
                "retire": ("client", self._retire),
                "ask": ("user", self._ask),
                "fetch": ("user", self._fetch),
                "status": (who.role, self._status),
            }.get(str(words["do"]), ("nobody", self._status))
            if role != who.role:
                raise PartyError(f"{who} may not do that.", party=str(who))
            do = str(words["do"])
            action(channel, study, words)
            self._counted(do, who, "done")
            channel.close()
        except VeilwoodError as error:
            self._counted(do, who, "lost" if isinstance(error, LostError) else "refused")
            log.warning("%s: %s", who, error)
            channel.fail(error)
        except Exception as error:  # whatever a person sends, the server goes on
            self._counted(do, who, "failed")
            log.error("%s: unexpected %s", who, type(error).__name__, exc_info=log.isEnabledFor(logging.DEBUG))
            channel.fail(error)

    def _status(self, channel: Channel, study: Study, words: Mapping[str, Any]) -> None:
        more = True
        while more:
            with study.lock:
                facts = study.model.facts if study.model else {}
                found: dict[str, Any] = {"phase": study.phase, "missing": study.missing, "failure": study.failure}
                found["disagree"] = study.disagree
                if channel.peer.role == "client":
                    found["ticket"] = study.state.ticket
                    found["arrived"] = words.get("upload") in study.arrived(channel.peer.name)
            channel.say(**found, **{key: facts.get(key) for key in ("training", "statement")})
            more = bool(channel.hear("more")["more"])

    def _retire(self, channel: Channel, study: Study, words: Mapping[str, Any]) -> None:
        with study.lock:
            study.refuse_if_busy()
            self._vault.delete(study.task.name)
            study.model = None
            study.clear()
            self._drop_attempt(study)
            study.state.save()
        log.info("%s: retired by %s", study.task.name, channel.peer)
        channel.say(retired=True, ticket=study.state.ticket)

    def _contribute(self, channel: Channel, study: Study, words: Mapping[str, Any]) -> None:
        """Take an owner's shares, piece by piece, and check them together with the other servers."""
        with study.lock:
            study.refuse_if_busy()
        owner, task, program = channel.peer.name, study.task, study.program
        if program.attended:
            raise UseError(f"the owners of task {task.name!r} answer while it is trained. Hint: attend.")
        rows, part, upload = number_of_rows(words.get("rows")), str(words.get("part")), str(words.get("upload"))
        Name("client", part)  # a plain name, which the folder of the rows gets
        study.refuse_too_many(owner, part, rows)
        counts = piece_rows(program, owner, rows)
        shapes = [program.shapes_of_rows(owner, count) for count in (counts[0], counts[-1])]
        there = study.state.parts.get(owner, {}).get(part)
        held = there["held"] if there and (there["upload"], there["rows"]) == (upload, rows) else []
        study.refuse_same_rows(owner, part, upload)
        self._approved(channel, study, words)
        widest = max((size_of_shares(self.party, shape, program.ring) for shape in shapes[0].values()), default=0)
        channel.limit = min(self.config.largest_message, max(widest, FIRST_WORDS))  # no more is held of an upload
        channel.say(send=list(shapes[0]), held=len(held))
        start = channel.hear("start")["start"]
        with self._meetings.session(str(words["session"]), task.name) as links:
            facts = {
                "task": task.fingerprint(), "owner": owner, "rows": rows, "part": part, "upload": upload,
                "start": start, "more": bool(words.get("more")),
            }  # fmt: skip
            name = self._admit(channel, study, links, facts)
            if not isinstance(start, int) or not 0 <= start <= len(held):
                raise PartyError(f"{channel.peer} goes on where nothing is.", party=str(channel.peer))
            with study.lock:
                study.refuse_if_busy()
                study.refuse_other_length(owner, part, rows)
                kept = {"upload": upload, "rows": rows, "held": held[:start], "more": facts["more"]}
                if there is not None and there == {**kept, "accepted": True} and study.holds(owner, part, there):
                    kept = there  # it has arrived: nothing changes, nor does a training under way
                else:
                    if start == 0:
                        study.state.drop(owner, part)
                    study.state.parts.setdefault(owner, {})[part] = kept  # whoever else sends this part has lost it
                    self._drop_attempt(study)  # of a training on other rows
                    study.state.save()
            engine = ReplicatedEngine(links, ring=program.ring)
            try:
                for number in range(start, len(counts)):
                    due = Piece(part, kept, name, number, shapes[number + 1 == len(counts)])
                    self._take_piece(channel, study, links, engine, due)
            except LostError:
                raise
            except VeilwoodError:
                with study.lock:
                    if study.holds(owner, part, kept):
                        study.state.drop(owner, part)
                        study.state.save()
                raise
            self._accept(channel, study, links, part, kept)
        log.info("%s: accepted the shares of client %s", task.name, owner)
        self._begin(study)  # first: the owner may be gone by now, and its rows are here
        channel.say(accepted=True)

    def _accept(self, channel: Channel, study: Study, links: TlsLinks, part: str, kept: dict[str, Any]) -> None:
        """Know that all three servers have a part, each of its pieces from the same session: now it may be trained on.

        Until then its owner is missing, so that no training begins with rows that one server has and another has not.
        """
        said, owner = agree(links, {"accepted": kept["upload"]}, also=list(kept["held"])), channel.peer.name
        same, here = said.count(said[0]) == 3, f"server {self.party}"
        with study.lock:
            if study.state.parts.get(owner, {}).get(part, kept) is not kept:
                raise LostError(f"{channel.peer} sends this part once more.", party=str(channel.peer))
            if study.holds(owner, part, kept) and not study.training:  # otherwise the others were quicker, and train
                if same:
                    kept["accepted"] = True
                else:
                    study.state.drop(owner, part)
                study.state.save()
        if not same:
            raise LostError(f"{here} has pieces of another upload. Hint: send the rows again.", party=here)

    def _take_piece(
        self, channel: Channel, study: Study, links: TlsLinks, engine: ReplicatedEngine, due: Piece
    ) -> None:
        """Take a piece of an owner's rows, check it together with the other servers, and write it down.

        Notes
        -----
        Guarantee

        What is written down is what was checked: servers that kept pieces of different sessions, of an owner that
        sends one part several times at once, do not train on them (proofs/secure-crash.md, attacked by
        packages/veilwood-secure/tests/roles/test_uploads.py).
        """
        (part, kept, session, number, shapes), program, owner = due, study.program, channel.peer.name
        data = b""
        for shape in shapes.values():
            size = size_of_shares(self.party, shape, program.ring)
            found = channel.receive_large(size)
            if len(found) != size:
                raise PartyError(f"{channel.peer} sent shares of a wrong width.", party=str(channel.peer))
            data += found
        shares = {key: engine.load(pair) for key, pair in cut(self.party, data, shapes, program.ring).items()}
        program.check_rows(engine, owner, shares)
        with study.lock:
            study.refuse_if_busy()
            if not study.holds(owner, part, kept):
                raise LostError(f"{channel.peer} sends this part once more.", party=str(channel.peer))
            study.state.keep(owner, part, number, data)
            kept["held"].append(session)
            study.state.save()
        said = agree(links, {"piece": number}, also=study.state.counter)
        with study.lock:
            study.state.hear(said, several=True)
        channel.say(piece=number)

    def _approved(self, channel: Channel, study: Study, words: Mapping[str, Any]) -> None:
        """Keep an owner's signature under what is to be trained; refuse its rows without one."""
        found = words.get("tickets")
        tickets = [str(one) for one in found] if isinstance(found, list) else []
        if len(tickets) != 3 or not is_signed(channel.der, study.program.approval(tickets), words.get("approval")):
            raise PartyError(
                f"{channel.peer} has not signed the plan of task {study.task.name!r} as server {self.party} knows it. "
                "Hint: compare versions.",
                party=str(channel.peer),
            )
        with study.lock:
            if tickets[self.party] != study.state.ticket:
                raise LostError(f"server {self.party} trains anew.", party=f"server {self.party}")
            study.state.approvals[channel.peer.name] = {"signature": str(words["approval"]), "tickets": tickets}
            study.disagree = [owner for owner in study.disagree if owner != channel.peer.name]

    def _agree(self, channel: Channel, study: Study, words: Mapping[str, Any]) -> None:
        """Take an owner's word that it may be charged again, for rows that are here."""
        with study.lock:
            study.refuse_if_busy()
            self._approved(channel, study, words)
            if not study.disagree:  # nothing stands in the way any more
                study.failure = None
            study.state.save()
        channel.say(agreed=True)
        if self.party == 0:
            channel.hear("go")
            self._begin(study)

    def _admit(self, channel: Channel, study: Study, links: TlsLinks, facts: dict[str, Any]) -> str:
        """Agree with the other servers that an owner may bring rows now, and forget a model that not all have.

        Return a name of the session that server 0 drew, so that no owner can give it to two.
        """
        held = study.model.facts["training"] if study.model else None
        said = agree(links, facts, blame=str(channel.peer), also=[held, study.state.standing, secrets.token_hex(8)])
        with study.lock:
            study.state.meet([one[1] for one in said], self.party)
        if held is not None and all(one[0] == held for one in said):
            with suppress(PartyError):  # all three say so themselves, and none because another did
                agree(links, {"trained": held})
            raise UseError(f"task {study.task.name!r} is trained already. Hint: retire it first.")
        with study.lock:
            study.refuse_if_busy()
            study.failure = None
            if study.model is not None:  # of a training that did not end at all three servers: nobody can ask it
                self._discard(study)
        return str(said[0][2])

    def _attend(self, channel: Channel, study: Study, words: Mapping[str, Any]) -> None:
        """Hold the line of an owner that answers while the servers train, until they have done so."""
        program, owner, here = study.program, channel.peer.name, f"server {self.party}"
        if not program.attended:
            raise UseError(f"task {study.task.name!r} takes rows once. Hint: contribute them.")
        if words.get("plan") != program.plan.fingerprint():
            raise PartyError(f"{channel.peer} plans another training. Hint: compare versions.", party=str(channel.peer))
        if study.training:  # on lines that this owner has lost: it ends soon
            raise LostError(f"{here} still trains {study.task.name!r}.", party=here)
        self._approved(channel, study, words)
        channel.limit = self.config.largest_message
        channel.say(received=True)
        if self.party == 0:
            channel.hear("go")
        session = str(words["session"])
        with self._meetings.session(session, study.task.name) as links:
            self._admit(channel, study, links, {"task": study.task.fingerprint(), "owner": owner})
            with study.lock:
                study.refuse_if_busy()
                study.attending[owner], study.present[owner], ended = (session, 1), channel, study.ended
            agree(links, {"accepted": session})
        channel.say(accepted=True)
        log.info("%s: client %s is present", study.task.name, owner)
        self._begin(study)
        while not ended.wait(1.0):
            with study.lock:
                if study.training or ended.is_set():
                    continue
                if study.present.get(owner) is not channel:
                    raise LostError(f"{channel.peer} has come again.", party=str(channel.peer))
                if channel.waiting:  # it says nothing before it is asked: it has gone
                    del study.present[owner], study.attending[owner]
                    raise LostError(f"{channel.peer} has left.", party=str(channel.peer))
        with study.lock:
            if study.model is None:
                kind = PartyError if study.lost is None else LostError
                raise kind(f"task {study.task.name!r} was not trained: {study.failure}", party=study.lost)
        channel.say(trained=True)
