# SPDX-License-Identifier: Apache-2.0
"""How a server answers users: questions in shares, charged where they cost, and models that were released.

The rest of a server is in ``server``; what an answer is, in ``programs``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from veilwood.errors import DomainTooLargeError, PartyError, UseError, VeilwoodError
from veilwood.privacy.ledger import Reservation, SQLiteLedger
from veilwood.privacy.loss import Loss
from veilwood.secure.mpc.replicated import ReplicatedEngine
from veilwood.secure.mpc.shares import Pair, from_bytes, to_bytes
from veilwood.secure.roles.config import Config
from veilwood.secure.roles.identity import Name
from veilwood.secure.roles.programs import HiddenForest, Shapes, refused_questions
from veilwood.secure.roles.sessions import Meetings, agree
from veilwood.secure.roles.storage import Stored
from veilwood.secure.roles.studies import Study
from veilwood.secure.roles.transport import Channel, TlsLinks

__all__ = ["AnswersUsers", "number_of_rows"]

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
