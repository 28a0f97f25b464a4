# SPDX-License-Identifier: Apache-2.0
"""Owners and servers that are threads of the test process, to be given to an estimator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import veilwood as vw
from veilwood.arrays import Ints
from veilwood.data.batches import Source
from veilwood.data.open_rows import open_rows
from veilwood.privacy.plan import Plan
from veilwood_secure.mpc.engine import Engine
from veilwood_secure.mpc.replicated import Links, ReplicatedEngine, run_in_threads
from veilwood_secure.mpc.shares import share
from veilwood_secure.protocols import joint_forest as joint
from veilwood_secure.protocols.joint_forest import RING, Parties, compute_owner_sums
from veilwood_secure.protocols.secret_array import SecretArray
from veilwood_secure.roles.config import Task
from veilwood_secure.roles.program import program_for_task
from veilwood_testing.mpc_engines import PlainEngine

CAR = vw.datasets.car()


class Whisper:
    """A voice between two threads."""

    def __init__(self, mine: SimpleQueue[Any], expected: SimpleQueue[Any]) -> None:
        self._mine, self._theirs = mine, expected

    @classmethod
    def pair(cls) -> tuple[Whisper, Whisper]:
        one: SimpleQueue[Any] = SimpleQueue()
        other: SimpleQueue[Any] = SimpleQueue()
        return cls(one, other), cls(other, one)

    def send(self, data: Any) -> None:
        self._theirs.put(bytes(data))

    def receive(self) -> Any:
        return self._mine.get(timeout=60)


class Released(Parties):
    """Values that servers opened, given to the analyst."""

    def __init__(self, opened: Ints) -> None:
        super().__init__("sampled")
        self._opened = opened

    def release(self, estimator: Any, plan: Any) -> Ints:
        return self._opened


@dataclass(frozen=True, repr=False)
class PooledSums(Source):
    """Pooled rows whose sums are computed on as shares: those that owners share add up to the same."""

    engine: Engine | None = None

    def share_sums(self, sums: Any) -> Any:
        assert self.engine is not None
        return SecretArray(self.engine, self.engine.constant(sums))

    @property
    def is_complete(self) -> bool:
        return False


def fit_online(estimator: Any, X: Any, y: Any) -> Any:
    """Fit as owners who stay online do, in the clear: the same steps and the same law of noise."""
    engine, design = PlainEngine(RING), joint.joint_design(estimator)
    own = open_rows(X, y, design.encoding, unit=design.plan.neighbours.unit, invalid="refuse")
    source = PooledSums(own._read, own.single_pass, own.n_partitions, engine)
    opened = joint.run_server(engine, estimator, joint.joint_plan(estimator, "sampled"), "sampled", source)
    return estimator.fit(Released(opened))


def fit_on_shares(task: Task, tables: dict[str, tuple[Any, Any]]) -> Any:
    """Fit the estimator of a task on rows that owners share once, in the clear."""
    program: Any = program_for_task(task)
    engine = PlainEngine(program.ring)
    rows = {
        owner: {key: engine.load((array,)) for key, array in program.encode_rows(owner, *table)[0].items()}
        for owner, table in tables.items()
    }
    for owner, own in rows.items():
        program.check_rows(engine, owner, own)
    return program.estimator.fit(Released(program.train(engine, rows).released["opened"]))


class Threads(Parties):
    """Owners in this process, and three servers that are threads of it."""

    def __init__(self, tables: list[tuple[Any, Any]], law: Any = None) -> None:
        super().__init__(law)
        self.tables = tables
        self.n_requests = 0

    def release(self, estimator: Any, plan: Plan) -> Ints:
        self.n_requests += 1
        return self._online(estimator, plan) if joint.needs_online_owners(estimator) else self._once(estimator, plan)

    def _once(self, estimator: Any, plan: Plan) -> Ints:
        counts = [share(compute_owner_sums(estimator, X, y), ring=RING) for X, y in self.tables]

        def served(engine: Engine, party: int) -> Ints:
            loaded = [engine.load(pairs[party]) for pairs in counts]
            sums = joint.SharedSums.from_collector(engine, lambda shape: joint.sum_shares(loaded).reshape(*shape))
            return joint.run_server(engine, estimator, plan, self.resolve_noise_protocol(estimator), sums)

        return run_in_threads(lambda links: served(ReplicatedEngine(links, ring=RING), links.party))[0]

    def _online(self, estimator: Any, plan: Plan) -> Ints:
        voices = [[Whisper.pair() for _ in range(3)] for _ in self.tables]
        failed: list[BaseException] = []

        def own(number: int) -> None:
            X, y = self.tables[number]
            try:
                joint.run_owner(estimator, plan, X, y, [first for first, _ in voices[number]])
            except BaseException as error:
                failed.append(error)

        owners = [threading.Thread(target=own, args=(number,), daemon=True) for number in range(len(self.tables))]
        for owner in owners:
            owner.start()

        def served(engine: Engine, heard: Callable[[int], dict[str, Any]]) -> Ints:
            present = joint.OnlineOwners(engine, heard(engine.party), estimator)
            sums = joint.SharedSums.from_collector(engine, present.collect_sums)
            return joint.run_server(engine, estimator, plan, "sampled", sums, present.send_opened)

        def of(party: int) -> dict[str, Any]:
            return {str(number): voices[number][party][1] for number in range(len(voices))}

        opened = run_in_threads(lambda links: served(ReplicatedEngine(links, ring=RING), of))[0]
        for owner in owners:
            owner.join(60)
        assert not failed, failed
        return opened


class Recorded(ReplicatedEngine):
    """A server that goes on from what an earlier run opened, so that every run asks the same questions."""

    script: Iterator[Ints] | None = None

    def open(self, x: Any) -> Any:
        self._links.kind = "opened"  # type: ignore[attr-defined]
        opened = super().open(x)
        self._links.kind = "shares"  # type: ignore[attr-defined]
        return opened if self.script is None else next(self.script).reshape(opened.shape)


class Tap:
    """Links that keep what arrives, by kind."""

    def __init__(self, links: Links) -> None:
        self.party, self._links, self.kind = links.party, links, "shares"
        self.shape: list[tuple[int, str, int]] = []
        self.shares: list[bytes] = []

    def send(self, to: int, data: Any) -> None:
        self._links.send(to, data)

    def receive(self, sender: int) -> Any:
        data = self._links.receive(sender)
        self.shape.append((sender, self.kind, len(data)))
        if self.kind == "shares":
            self.shares.append(bytes(data))
        return data


OWNERS = [(CAR.X[:600], CAR.y[:600]), (CAR.X[600:1000], CAR.y[600:1000]), (CAR.X[1000:], CAR.y[1000:])]
