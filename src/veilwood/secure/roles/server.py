# SPDX-License-Identifier: Apache-2.0
"""One of the three servers: takes shares from owners, trains, keeps its part of models, answers users in shares.

What is computed is in ``programs``; connections are in ``transport``, sessions among the servers in ``sessions``.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from veilwood.errors import DomainTooLargeError, PartyError, UseError, VeilwoodError
from veilwood.privacy.ledger import Reservation, SQLiteLedger
from veilwood.privacy.loss import Loss
from veilwood.secure.mpc.replicated import ReplicatedEngine
from veilwood.secure.mpc.shares import Pair, from_bytes, to_bytes
from veilwood.secure.roles.config import CONFIG, Config, Task
from veilwood.secure.roles.identity import Name, tls_context
from veilwood.secure.roles.programs import HiddenForest, Outcome, Program, Shapes, program_of, refused_questions
from veilwood.secure.roles.sessions import Meetings, agree
from veilwood.secure.roles.storage import Stored, Vault
from veilwood.secure.roles.transport import Channel, Listener, TlsLinks

__all__ = ["Server"]

log = logging.getLogger("veilwood.secure")

IDLE_SECONDS: Final = 900.0
"""How long a user may think between two questions before its session ends."""

Pairs = dict[str, Pair]


@dataclass
class _Study:
    """A task at this server: what has arrived, what is trained. Rows are held in memory only, and not for long."""

    task: Task
    program: Program
    lock: threading.RLock = field(default_factory=threading.RLock)
    rows: dict[str, tuple[str, int, Pairs]] = field(default_factory=dict)  # owner: upload, number of rows, shares
    present: dict[str, Channel] = field(default_factory=dict)  # owners that stay and answer
    ended: threading.Event = field(default_factory=threading.Event)
    training: bool = False
    model: Stored | None = None
    failure: str | None = None

    def refuse_if_busy(self) -> None:
        if self.training:
            raise UseError(f"task {self.task.name!r} is being trained. Hint: wait for the result.")

    def refuse_other_length(self, owner: str, rows: int) -> None:
        """Owners of columns hold the same rows, in the same order: their number at least can be checked.

        The number itself is not said: an owner that has other rows learns that they are others, and no more.
        """
        for other, (_, held, _) in self.rows.items():
            if self.task.by_columns and other != owner and held != rows:
                raise PartyError(
                    f"client {owner} sent another number of rows than client {other}. Hint: owners of columns send "
                    "the same rows in the same order.",
                    party=f"client {owner}",
                )

    @property
    def missing(self) -> list[str]:
        return [owner for owner in self.task.owners if owner not in self.rows]


class Server:
    """Runs until closed; ``start`` returns at once.

    Parameters
    ----------
    config : Config
        Of the role ``server``.

    Notes
    -----
    Guarantee

    What a server says, logs and stores does not depend on how many rows an owner sent: no count, no length, no
    duration stands in it (proofs/secure.md, attacked by tests/secure/roles/test_outside.py).
    """

    def __init__(self, config: Config) -> None:
        self.config, self.party = Config.of_role("server", config), int(config.name)
        self._vault = Vault(config.folder / "models", config.identity.secret, str(config.who))
        self._ledger = SQLiteLedger(config.folder / "ledger.db")
        self._studies: dict[str, _Study] = {}
        self._lock = threading.RLock()
        self._read_at = 0.0
        self._refused: tuple[str, ...] = ()
        self._listeners: list[Listener] = []
        dials = tls_context(config.identity, config.servers_authority, listens=False)
        self._meetings = Meetings(config, dials, self._invited)

    def start(self) -> None:
        """Reload what is stored, then listen."""
        self._reload()
        config, here = self.config, self.config.servers[self.party]
        peers = tls_context(config.identity, config.servers_authority, listens=True)
        people = tls_context(config.identity, config.people_authority, listens=True)
        for port, context, greet in (
            (here.peers, peers, self._meetings.on_peer),
            (here.people, people, self._on_person),
        ):
            self._listeners.append(Listener(config.listen, port, context, config.timeout, greet))
        log.info("%s listens on %s, ports %d and %d", config.who, config.listen, here.peers, here.people)

    def close(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.close()

    def _reload(self) -> None:
        """Read tasks added since, and models stored before."""
        changed = (self.config.folder / CONFIG).stat().st_mtime
        with self._lock:
            if changed == self._read_at:
                return
            stored = set(self._vault.names())
            config = Config.load(self.config.folder)
            self._refused = config.refused
            for task in config.tasks:
                if task.name not in self._studies:
                    study = _Study(task, program_of(task))
                    if task.name in stored:
                        study.model = self._vault.load(task.name)
                    self._settle_leftovers(study)
                    self._studies[task.name] = study
            self._read_at = changed

    def _settle_leftovers(self, study: _Study) -> None:
        """Settle spends that a crash cut short: a stored model is paid for, and nothing else came out of a training."""
        kept = study.model.facts["entry"] if study.model else None
        for entry in self._ledger.entries():
            if entry.what != _what(study.task) or entry.state != "reserved":
                continue
            if entry.id == kept:
                Reservation(self._ledger, entry.id).commit()
            else:
                self._refund(study, Reservation(self._ledger, entry.id))

    def _refund(self, study: _Study, spend: Reservation) -> None:
        """Take back the spend of a training that left no model; where training opens anything, it stays spent.

        Notes
        -----
        Guarantee

        Nothing that may have been opened is ever refunded (proofs/secure.md, attacked by
        tests/secure/roles/test_refunds.py). This is the only refund of a training.
        """
        if not study.program.reveals:
            spend.cancel()

    def _study(self, name: object, fingerprint: object) -> _Study:
        """The task somebody means, if it means the same to this server."""
        self._reload()
        study = self._studies.get(str(name))
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
        who = channel.peer
        try:
            words = channel.hear("do", "task", "fingerprint", "session")
            study = self._study(words["task"], words["fingerprint"])
            allowed = study.task.owners if who.role == "client" else study.task.users
            if who.role not in ("client", "user") or who.name not in allowed or str(who) in self._refused:
                raise PartyError(f"{who} has no part in task {study.task.name!r}.", party=str(who))
            role, action = {
                "contribute": ("client", self._contribute),
                "attend": ("client", self._attend),
                "retire": ("client", self._retire),
                "ask": ("user", self._ask),
                "fetch": ("user", self._fetch),
                "status": (who.role, self._status),
            }.get(str(words["do"]), ("nobody", self._status))
            if role != who.role:
                raise PartyError(f"{who} may not do that.", party=str(who))
            action(channel, study, words)
            channel.close()
        except VeilwoodError as error:
            log.warning("%s: %s", who, error)
            channel.fail(error)
        except Exception as error:  # whatever a person sends, the server goes on
            log.error("%s: unexpected %s", who, type(error).__name__, exc_info=log.isEnabledFor(logging.DEBUG))
            channel.fail(error)

    def _status(self, channel: Channel, study: _Study, words: Mapping[str, Any]) -> None:
        more = True
        while more:
            with study.lock:
                facts = study.model.facts if study.model else {}
                phase = "training" if study.training else "trained" if study.model else "waiting"
                found = {"phase": phase, "missing": study.missing, "failure": study.failure}
            channel.say(**found, **{key: facts.get(key) for key in ("training", "statement")})
            more = bool(channel.hear("more")["more"])

    def _retire(self, channel: Channel, study: _Study, words: Mapping[str, Any]) -> None:
        with study.lock:
            study.refuse_if_busy()
            self._vault.delete(study.task.name)
            study.model = None
            study.rows.clear()
        log.info("%s: retired by %s", study.task.name, channel.peer)
        channel.say(retired=True)

    def _contribute(self, channel: Channel, study: _Study, words: Mapping[str, Any]) -> None:
        """Take an owner's shares and check them together with the other servers."""
        with study.lock:
            study.refuse_if_busy()
        if study.program.attended:
            raise UseError(f"the owners of task {study.task.name!r} answer while it is trained. Hint: attend.")
        shapes = study.program.shapes_of_rows(channel.peer.name, _count(words.get("rows")))
        misfit = PartyError(f"{channel.peer} sent shares of a wrong width.", party=str(channel.peer))
        pairs = self._take(channel, shapes, study.program.ring, misfit)
        self._accept(channel, study, words, pairs)

    def _attend(self, channel: Channel, study: _Study, words: Mapping[str, Any]) -> None:
        """Hold the line of an owner that answers while the servers train, until they have done so."""
        program = study.program
        if not program.attended:
            raise UseError(f"task {study.task.name!r} takes rows once. Hint: contribute them.")
        if words.get("plan") != program.plan.fingerprint():
            raise PartyError(f"{channel.peer} plans another training. Hint: compare versions.", party=str(channel.peer))
        channel.limit = self.config.largest_message
        ended = self._accept(channel, study, words, {})
        ended.wait()
        with study.lock:
            if study.model is None:
                raise PartyError(f"task {study.task.name!r} was not trained: {study.failure}")
        channel.say(trained=True)

    def _accept(self, channel: Channel, study: _Study, words: Mapping[str, Any], pairs: Pairs) -> threading.Event:
        """Check together with the other servers what an owner has sent, and begin if all owners are there."""
        owner, task, rows = channel.peer.name, study.task, words.get("rows")
        channel.say(received=True)
        if self.party == 0:
            channel.hear("go")
        session = str(words["session"])
        with self._meetings.session(session, task.name) as links:
            held = study.model.facts["training"] if study.model else None
            facts = {"task": task.fingerprint(), "owner": owner, "rows": rows}
            said = agree(links, facts, blame=str(channel.peer), also=held)
            if held is not None and len(set(said)) == 1:
                raise UseError(f"task {task.name!r} is trained already. Hint: retire it first.")
            engine = ReplicatedEngine(links, ring=study.program.ring)
            shares = {key: engine.load(pair) for key, pair in pairs.items()}
            study.program.check_rows(engine, owner, shares)
            with study.lock:
                study.refuse_if_busy()
                study.refuse_other_length(owner, _count(rows))
                if study.model is not None:  # of a training that did not end at all three servers: nobody can ask it
                    self._discard(study)
                study.rows[owner], study.failure = (session, _count(rows), pairs), None
                if study.program.attended:
                    study.present[owner] = channel
                ended = study.ended
            agree(links, {"accepted": session})  # so that no server is asked to train before it has the rows
        log.info("%s: accepted the shares of client %s", task.name, owner)
        channel.say(accepted=True)
        with study.lock:
            begin = self.party == 0 and not study.missing and not study.training
            study.training = study.training or begin
        if begin:
            threading.Thread(target=self._train, args=(study, None), daemon=True).start()
        return ended

    def _take(self, channel: Channel, shapes: Shapes, ring: type[np.unsignedinteger[Any]], misfit: PartyError) -> Pairs:
        """Receive shares of public shapes, one message each; raise ``misfit`` if one has another width."""
        sizes = [2 * np.dtype(ring).itemsize * math.prod(shape) for shape in shapes.values()]
        if max(sizes) > self.config.largest_message:
            raise DomainTooLargeError("these are more rows than this server takes. Hint: fewer rows at a time.")
        channel.limit = self.config.largest_message
        channel.say(send=list(shapes))
        try:
            return {name: from_bytes(memoryview(channel.receive()), shape, ring) for name, shape in shapes.items()}
        except PartyError:
            raise
        except VeilwoodError:
            raise misfit from None

    # -- training ------------------------------------------------------------------------------------------------

    def _invited(self, task: str, session: str) -> None:
        """Join a training that server 0 begins."""
        study = self._studies.get(task)
        if study is not None:
            self._train(study, session)

    def _train(self, study: _Study, session: str | None) -> None:
        """Train with the other servers: all three end with a stored part, or none with a usable one."""
        task, program, spend = study.task, study.program, None
        with study.lock:
            uploads = {owner: upload for owner, (upload, _, _) in sorted(study.rows.items())}
            study.training = True
        try:
            with self._meetings.session(session, task.name, invites=True) as links:
                agree(links, {"task": task.fingerprint(), "uploads": uploads, "missing": study.missing})
                if study.missing:
                    raise UseError(f"the rows of {', '.join(study.missing)} are not there. Hint: contribute again.")
                spend = self._ledger.reserve(
                    program.plan.loss, what=_what(task), neighbours=str(program.plan.neighbours),
                    plan=program.plan.fingerprint(), not_private=program.not_private,
                )  # fmt: skip
                agree(links, {"reserved": True})
                log.info("%s: training on the rows of %s", task.name, ", ".join(uploads))
                engine = ReplicatedEngine(links, ring=study.program.ring)
                stored = self._stored(study, links, engine, self._computed(study, engine), spend)
                self._vault.save(task.name, stored)
                agree(links, {"stored": True})
                spend.commit()
            with study.lock:
                study.model, study.failure = stored, None
            log.info("%s: trained", task.name)
        except Exception as error:
            with study.lock:
                study.failure = str(error) if isinstance(error, VeilwoodError) else f"unexpected {type(error).__name__}"
                self._discard(study)
                if spend is not None:
                    self._refund(study, spend)
            log.warning("%s: training ended without a model: %s", task.name, study.failure)
            log.debug("details", exc_info=True)
        finally:
            with study.lock:
                study.rows.clear()
                study.present.clear()
                study.training = False
                study.ended.set()
                study.ended = threading.Event()

    def _computed(self, study: _Study, engine: ReplicatedEngine) -> Outcome:
        """Run the protocol on all rows; what goes wrong inside may speak of their number, and is not told to others."""
        rows = {
            owner: {key: engine.load(pair) for key, pair in study.rows[owner][2].items()} for owner in study.task.owners
        }
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

    def _stored(
        self, study: _Study, links: TlsLinks, engine: ReplicatedEngine, outcome: Outcome, spend: Reservation
    ) -> Stored:
        """This server's part of a trained model, under a name for this training that all three share."""
        training = agree(links, {}, also=secrets.token_hex(8))[0]  # the one server 0 drew
        statement = study.program.statement(f"server {self.party}, {self._ledger.name}", spend.id)
        facts = {"training": training, "entry": spend.id, "statement": statement.to_dict()}
        arrays = {f"released.{name}": array for name, array in outcome.released.items()}
        for name, share in outcome.hidden.items():
            arrays[f"first.{name}"], arrays[f"second.{name}"] = engine.pair(share)
        return Stored(facts, arrays)

    def _discard(self, study: _Study) -> None:
        """Forget a model that not all servers have."""
        self._vault.delete(study.task.name)
        if study.model is not None:
            self._settle_leftovers(_Study(study.task, study.program))
        study.model = None

    # -- answering -----------------------------------------------------------------------------------------------

    def _ask(self, channel: Channel, study: _Study, words: Mapping[str, Any]) -> None:
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
                if study.model is not model:
                    raise UseError(f"model {study.task.name!r} was retired.")
                shapes = program.shapes_of_queries(_count(rows))
                pairs = self._take(channel, shapes, program.ring, refused_questions(user))
                agree(links, {"rows": rows}, blame=str(channel.peer))
                query = {name: engine.load(pair) for name, pair in pairs.items()}
                program.check_queries(engine, user, query)
                spend = self._charged(study, model, links, program.cost_of_queries(_count(rows)), channel.peer)
                first, second = engine.pair(program.answer(engine, hidden, query))
                if spend is not None:
                    spend.commit()
                channel.send(to_bytes((first, second)))
            agree(links, {"rows": 0}, blame=str(channel.peer))

    def _charged(
        self, study: _Study, model: Stored, links: TlsLinks, cost: Loss | None, user: Name
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

    def _fetch(self, channel: Channel, study: _Study, words: Mapping[str, Any]) -> None:
        """Hand a user what training released; nothing else of a model is ever handed out."""
        model = self._model(study)
        released = {key: array for key, array in model.arrays.items() if key.startswith("released.")}
        channel.say(statement=model.facts["statement"], training=model.facts["training"], released=list(released))
        for array in released.values():
            channel.send(np.ascontiguousarray(array, "<i8").data)

    def _model(self, study: _Study) -> Stored:
        with study.lock:
            if study.model is None:
                missing = f"rows of {', '.join(study.missing)} are missing" if study.missing else "it is being trained"
                raise PartyError(f"there is no model {study.task.name!r} at server {self.party}: {missing}.")
            return study.model


def _what(task: Task) -> str:
    return f"secure training of {task.name} ({task.fingerprint()[:12]})"


def _count(rows: object) -> int:
    """A number of rows as somebody claims it."""
    if not isinstance(rows, int) or isinstance(rows, bool) or not 0 < rows < 1 << 31:
        raise UseError("what was sent is not a number of rows.")
    return rows
