# SPDX-License-Identifier: Apache-2.0
"""What a task's protocol means for each role: the interface of a program, and what all programs share.

The programs are in ``hidden_programs`` and ``joint_programs``, and their names in ``programs``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from veilwood._version import __version__
from veilwood.data.schema import Schema
from veilwood.errors import PartyError, UseError
from veilwood.privacy.certificate import ByServers, PrivacyStatement, Spend, certify
from veilwood.privacy.plan import Plan
from veilwood.secure.mpc.engine import Engine, Shared
from veilwood.secure.protocols import joint_forest as joint
from veilwood.secure.roles.config import Task

Arrays = dict[str, NDArray[Any]]
Shapes = dict[str, tuple[int, ...]]
Shares = Mapping[str, Shared]
Voices = Mapping[str, joint.Voice]
NOBODY: Final[Voices] = {}


@dataclass(frozen=True)
class Trained:
    """What training leaves at a server: arrays in shares, and arrays that were released to everybody."""

    hidden: dict[str, Shared] = field(default_factory=dict)
    released: Arrays = field(default_factory=dict)


class Program(ABC):
    """A protocol applied to a task. Everything but the arguments of ``encode_*`` is public or in shares."""

    reveals: ClassVar[bool]
    """Whether training opens anything; if not, a training that was cut short has cost nothing."""
    ring: ClassVar[type[np.unsignedinteger[Any]]]
    """The word type of shares."""
    settings: ClassVar[Mapping[str, Any]]
    """The settings of a task, with their defaults."""

    task: Task
    attended: bool = False
    """Whether owners stay while the servers train, and answer them."""
    mixes_rows: bool = False
    """Whether an owner sends its rows in a secret order, because what becomes of a row depends on its place."""
    not_private: str | None = None
    """Why nothing is guaranteed, for protocols that follow a paper to the letter."""
    plan: Plan
    servers: ByServers
    """How the servers take part, which decides what the certificate rests on."""

    @abstractmethod
    def part_of_schema(self, owner: str) -> Schema:
        """The schema of an owner's own table."""

    @abstractmethod
    def encode_rows(self, owner: str, X: Any, y: Any, pad_to: int | None = None) -> tuple[Arrays, int]:
        """Encode an owner's rows as the arrays it shares; also their number, as far as servers see it."""

    @abstractmethod
    def shapes_of_rows(self, owner: str, rows: int) -> Shapes:
        """The shapes of these arrays: public, so that a server can refuse any other."""

    @abstractmethod
    def faults(self, engine: Engine, owner: str, shares: Shares) -> str | None:
        """What is wrong with consistent shares of an owner, found in shares; None if nothing is."""

    @abstractmethod
    def train(self, engine: Engine, rows: Mapping[str, Shares], present: Voices = NOBODY) -> Trained:
        """Train on the rows of all owners, of which some may be present to answer."""

    def statement(self, ledger: str, entry: int) -> PrivacyStatement:
        """The certificate of the trained model, whose spend stands in a server's ledger."""
        spend = Spend(ledger, entry, self.plan.loss, not_private=self.not_private)
        return certify(self.plan, spend, self.servers)

    def approval(self, tickets: Sequence[str]) -> str:
        """What an owner signs before its rows are used: task, plan (with loss and schema), version, and one charge."""
        return f"veilwood: train {self.subject()}, {' '.join(tickets)}"

    def subject(self) -> str:
        """What rows are used for: the task, by one plan, carried out by one version."""
        return f"task {self.task.fingerprint()} by plan {self.plan.fingerprint()} with {__version__}"

    def check_rows(self, engine: Engine, owner: str, shares: Shares) -> None:
        """Refuse, by name, an owner whose shares do not fit together or are not rows; nothing else is learned."""
        fault: str | None = "shares that do not fit together"
        if all([engine.consistent(share) for share in shares.values()]):
            fault = self.faults(engine, owner, shares)
        if fault is not None:
            raise PartyError(f"client {owner} sent {fault}: its rows are refused.", party=f"client {owner}")

    def certificate(self, claimed: Sequence[Any]) -> PrivacyStatement:
        """The certificate of the three servers, if each is what this role would write itself, but for the ledger."""
        read = [PrivacyStatement.from_dict(statement) for statement in claimed]
        for party, statement in enumerate(read):
            if statement.to_dict() != self.statement(statement.ledger, statement.ledger_entry).to_dict():
                raise PartyError(
                    f"server {party} certifies another plan than task {self.task.name!r} has, or says otherwise what "
                    "it rests on. Hint: compare versions.",
                    party=f"server {party}",
                )
        return read[0]


def completed(task: Task, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a task, completed; an unknown one is refused."""
    for key in task.settings:
        if key not in defaults:
            raise UseError(f"task {task.name!r} has an unknown setting {key!r}. Hint: one of {', '.join(defaults)}.")
    return {**defaults, **task.settings}
