# SPDX-License-Identifier: Apache-2.0
"""Interface of programs, their names in tasks, and the base class for one-hot rows.

A program defines what each role does in a protocol. The programs are in ``hidden_programs``, ``joint_programs`` and
``public_programs``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, ClassVar, Final

import numpy as np

from veilwood._version import __version__
from veilwood.arrays import AnyArray
from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema
from veilwood.errors import PartyError, UseError
from veilwood.privacy.certificate import PrivacyCertificate, ServerParticipation, Spend, build_certificate
from veilwood.privacy.plan import Plan
from veilwood_secure.mpc.checked import CheckedEngine
from veilwood_secure.mpc.engine import Engine, Shared, concatenate
from veilwood_secure.mpc.replicated import Links, OpeningLog, OwnerChannel, ReplicatedEngine
from veilwood_secure.protocols import records
from veilwood_secure.protocols.records import Domain, SharedRows
from veilwood_secure.roles.config import Task

Arrays = dict[str, AnyArray]
Shapes = dict[str, tuple[int, ...]]
Shares = Mapping[str, Shared]
OwnerChannels = Mapping[str, OwnerChannel]
NO_OWNERS: Final[OwnerChannels] = {}

SERVERS_SETTING: Final = "servers"
ALIGNMENT_SETTING: Final = "alignment"
ALIGNMENTS: Final = ("position", "intersection")
"""How owners of columns know which rows belong together: agreed beforehand, or found by ``roles.alignment``."""
COMMON_SETTINGS: Final = (SERVERS_SETTING, ALIGNMENT_SETTING)
SERVER_MODES: Final = ("honest", "checked")
"""Servers that are assumed to follow the protocol, and servers of which one may deviate: the others abort."""


@dataclass(frozen=True)
class TrainingResult:
    """Result of training at a server: arrays in shares, and arrays released to all parties."""

    hidden: dict[str, Shared] = field(default_factory=dict)
    released: Arrays = field(default_factory=dict)


class Program(ABC):
    """Protocol applied to a task. Everything except the arguments of ``encode_*`` is public or in shares."""

    opens_values: ClassVar[bool]
    """Whether training opens anything. If not, an interrupted training has no privacy loss."""
    can_resume: ClassVar[bool] = False
    """Whether every opening is a separate release, so that an interrupted training run can open the missing values."""
    ring: type[np.unsignedinteger[Any]]
    """The word type of shares."""
    checked_bits: ClassVar[int] = 32
    """Counted bits of the 64-bit words in checked mode; all values of a training run must fit."""
    settings: ClassVar[Mapping[str, Any]]
    """The settings of a task, with their defaults."""

    task: Task
    needs_online_owners: bool = False
    """Whether owners stay online during training and answer queries."""
    shuffles_rows: bool = False
    """Whether owners send rows in a secret order, because the treatment of a row depends on its position."""
    not_private: str | None = None
    """Reason why the program gives no privacy guarantee, or None if it gives one."""
    plan: Plan
    participation: ServerParticipation
    """Role of the servers, on which the assumptions of the certificate depend."""

    @property
    def is_checked(self) -> bool:
        """Whether the servers check one another, so that a deviating server is detected."""
        return self.task.settings.get(SERVERS_SETTING) == "checked"

    @property
    def answer_ring(self) -> type[np.unsignedinteger[Any]]:
        """Word type of answers, which have no slack bits."""
        return np.uint32 if self.is_checked else self.ring

    def apply_common_settings(self) -> None:
        """Apply the settings shared by all protocols; raise UseError if this protocol cannot run with them."""
        alignment = self.task.settings.get(ALIGNMENT_SETTING, "position")
        if alignment not in ALIGNMENTS or (alignment == "intersection" and not self.task.is_vertical):
            raise UseError(
                f"task {self.task.name!r}: alignment={alignment!r} is not possible. Hint: choose "
                f"{' or '.join(ALIGNMENTS)}, the latter for owners of columns only."
            )
        self.participation = replace(self.participation, intersected=alignment == "intersection")
        chosen = self.task.settings.get(SERVERS_SETTING, "honest")
        if chosen not in SERVER_MODES:
            raise UseError(
                f"task {self.task.name!r}: servers={chosen!r} is unknown. Hint: choose {' or '.join(SERVER_MODES)}."
            )
        if self.is_checked:
            obstacle = self.find_unchecked()
            if obstacle is not None:
                raise UseError(f"task {self.task.name!r}: checked servers cannot compute {obstacle}.")
            self.ring = np.uint64
            self.participation = replace(self.participation, checked=True)

    def find_unchecked(self) -> str | None:
        """Return the part of the protocol that needs more bits than checked servers have, or None."""
        return None

    def make_engine(self, links: Links, openings: OpeningLog | None = None) -> ReplicatedEngine:
        """Return the engine of one server for a session."""
        if self.is_checked:
            return CheckedEngine(links, counted_bits=self.checked_bits, openings=openings)
        return ReplicatedEngine(links, ring=self.ring, openings=openings)

    @abstractmethod
    def owner_schema(self, owner: str) -> Schema:
        """Return the schema of an owner's own table."""

    @abstractmethod
    def encode_rows(self, owner: str, X: Any, y: Any, pad_to: int | None = None) -> tuple[Arrays, int]:
        """Return the arrays that an owner shares, and the number of rows that servers see."""

    @abstractmethod
    def row_shapes(self, owner: str, rows: int) -> Shapes:
        """Return the public shapes of the arrays that an owner shares. Servers reject any other shapes."""

    @abstractmethod
    def find_fault(self, engine: Engine, owner: str, shares: Shares) -> str | None:
        """Check an owner's rows on consistent shares. Return a description of the fault, or None."""

    @abstractmethod
    def train(
        self, engine: Engine, rows: Mapping[str, Shares], owner_channels: OwnerChannels = NO_OWNERS
    ) -> TrainingResult:
        """Train on the rows of all owners. ``owner_channels`` are the channels to online owners."""

    def run_owner(self, X: Any, y: Any, channels: Sequence[OwnerChannel]) -> None:
        """Answer queries at an online owner until the training run ends."""
        raise UseError(f"owners of task {self.task.name!r} leave after they shared their rows. Hint: call contribute.")

    def make_certificate(self, ledger: str, entry: int) -> PrivacyCertificate:
        """Return the certificate of the trained model, charged to an entry of a server's ledger."""
        spend = Spend(ledger, entry, self.plan.loss, not_private=self.not_private)
        return build_certificate(self.plan, spend, self.participation)

    def approval_text(self, tickets: Sequence[str]) -> str:
        """Return the text that an owner signs: task, plan (with loss and schema), version, and one charge."""
        return f"veilwood: train {self.training_subject()}, {' '.join(tickets)}"

    def training_subject(self) -> str:
        """Return the use of rows to which owners consent: the task under one plan and one version of the code."""
        return f"task {self.task.fingerprint()} by plan {self.plan.fingerprint()} with {__version__}"

    def check_rows(self, engine: Engine, owner: str, shares: Shares) -> None:
        """Raise PartyError if an owner's shares are inconsistent or not rows. Reveals nothing else.

        The error has no ``party``: otherwise a server that deviates during the check could incriminate the owner.
        """
        fault: str | None = "shares that do not fit together"
        if all([engine.is_consistent(share) for share in shares.values()]):
            fault = self.find_fault(engine, owner, shares)
        if fault is not None:
            raise PartyError(
                f"the rows of owner {owner} are refused: {fault}. Hint: check how they were encoded; if they are "
                "right, one of the servers did not keep to the protocol."
            )

    def verify_certificates(self, claimed: Sequence[Any]) -> PrivacyCertificate:
        """Return the servers' certificate. Raise PartyError unless it equals this role's own, up to the ledger."""
        certificates = [PrivacyCertificate.from_dict(data) for data in claimed]
        for party, found in enumerate(certificates):
            if found.to_dict() != self.make_certificate(found.ledger, found.ledger_entry).to_dict():
                raise PartyError(
                    f"the certificate of server {party} does not match task {self.task.name!r}. "
                    "Hint: check that all parties run the same version.",
                    party=f"server {party}",
                )
        return certificates[0]


_HIDDEN, _JOINT, _PUBLIC = (f"veilwood_secure.roles.{kind}_programs" for kind in ("hidden", "joint", "public"))
PROTOCOLS: Final = {
    "hidden-tree": (_HIDDEN, "HiddenForest"),
    "binary-tree": (_HIDDEN, "BinaryForest"),
    "private-votes": (_HIDDEN, "PrivateVotes"),
    "public-forest": (_JOINT, "JointForest"),
    "forest-on-shares": (_JOINT, "ForestOnShares"),
    "cdp-id3": (_PUBLIC, "NoisyPublicTrees"),
    "extra-trees": (_PUBLIC, "ExtraTrees"),
}
"""Module and class of each protocol with a privacy guarantee. Each is loaded with the first task that uses it."""

NOT_PRIVATE_GROUP: Final = "veilwood_secure.not_private"
"""Entry points of programs without a guarantee: the reproductions register two protocols of a paper here."""


def program_for_task(task: Task) -> Program:
    """Return the program of a task's protocol; raise UseError if there is no such protocol.

    Programs of other packages must declare that they are not private, so that no such program can claim a guarantee.
    """
    if task.protocol in PROTOCOLS:
        module, name = PROTOCOLS[task.protocol]
        own: Program = getattr(import_module(module), name)(task)
        own.apply_common_settings()
        return own
    for entry in entry_points(group=NOT_PRIVATE_GROUP, name=task.protocol):
        foreign: Program = entry.load()(task)
        if not foreign.not_private:
            raise UseError(f"protocol {task.protocol!r} of another package must declare that it is not private.")
        foreign.apply_common_settings()
        return foreign
    raise UseError(f"there is no protocol {task.protocol!r}. Hint: choose one of {', '.join(PROTOCOLS)}.")


def with_checked_servers(task: Task) -> tuple[Task, str | None]:
    """Return the task on checked servers, or the unchanged task and the reason why its protocol cannot run on them.

    A task with a ``servers`` setting is returned unchanged.
    """
    if SERVERS_SETTING in task.settings:
        return task, None
    checked = replace(task, settings={**task.settings, SERVERS_SETTING: "checked"})
    try:
        program_for_task(checked)
    except UseError as error:
        return task, str(error)
    return checked, None


def complete_settings(task: Task, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a task with defaults filled in; raise UseError if one is unknown.

    The result does not contain ``servers`` and ``alignment``, which are settings of every protocol.
    """
    given = {key: value for key, value in task.settings.items() if key not in COMMON_SETTINGS}
    for key in given:
        if key not in defaults:
            raise UseError(
                f"task {task.name!r} has an unknown setting {key!r}. "
                f"Hint: choose one of {', '.join([*defaults, *COMMON_SETTINGS])}."
            )
    return {**defaults, **given}


class OneHotRows(Program):
    """Base class of programs on one-hot rows in shares: owners hold whole rows, or columns of the same rows."""

    ring: type[np.unsignedinteger[Any]] = np.uint32

    def __init__(self, task: Task) -> None:
        self.task, self.schema = task, task.public_schema
        self.domain = Domain.from_schema(self.schema)
        self.shuffles_rows = not task.is_vertical  # owners of columns must send rows in the same order
        self.participation = ServerParticipation("sampled", "columns" if task.is_vertical else "rows")

    def owner_schema(self, owner: str) -> Schema:
        """Return the schema of an owner's own table. Not every owner's table has the target."""
        features = tuple(self.schema.features[place] for place in self.task.feature_indices(owner))
        return Schema(self.schema.name, self.schema.task, self.schema.target, features)

    def _owner_domain(self, owner: str) -> Domain:
        return Domain(
            tuple(self.domain.sizes[place] for place in self.task.feature_indices(owner)), self.domain.n_classes
        )

    def encode_rows(self, owner: str, X: Any, y: Any, pad_to: int | None = None) -> tuple[Arrays, int]:
        """Encode an owner's rows as one-hot features and classes. Padding has no class and is not counted."""
        encoding = Encoding(self.owner_schema(owner), "bins")
        out: Arrays = {"features": records.encode_one_hot(encoding.encode(X), self._owner_domain(owner))}
        if self.task.holds_target(owner):
            if y is None:
                raise UseError(f"owner {owner} holds the target {self.schema.target.name!r}. Hint: pass y.")
            out["classes"] = records.encode_classes(encoding.encode_target(y), self.domain)
        counts = {array.shape[-1] for array in out.values()}
        if len(counts) > 1 or 0 in counts:
            raise UseError(
                f"X and y have {' and '.join(map(str, sorted(counts)))} rows. Hint: pass equal, positive numbers."
            )
        rows = counts.pop()
        if pad_to is None:
            return out, rows
        if pad_to < rows:
            raise UseError(f"{rows} rows cannot be padded to {pad_to}. Hint: choose a larger public number.")
        padded = {key: np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, pad_to - rows)]) for key, array in out.items()}
        padded["features"][:, 0, rows:] = 1
        return padded, pad_to

    def row_shapes(self, owner: str, rows: int) -> Shapes:
        """Return the shapes of one-hot features and classes."""
        domain = self._owner_domain(owner)
        out: Shapes = {"features": (domain.n_features, domain.width, rows)}
        return out | ({"classes": (domain.n_classes, rows)} if self.task.holds_target(owner) else {})

    def find_fault(self, engine: Engine, owner: str, shares: Shares) -> str | None:
        """Check on shares that features and classes are one-hot."""
        if not records.are_one_hot(engine, shares["features"], self._owner_domain(owner)):
            return "features that are not one-hot"
        if "classes" in shares and not records.are_valid_classes(engine, shares["classes"], self.domain):
            return "classes that are not one-hot"
        return None

    def join_rows(self, engine: Engine, rows: Mapping[str, Shares]) -> SharedRows:
        """Return the rows of all owners as one table: stacked, or columns joined in the schema's order."""
        if not self.task.is_vertical:
            return records.stack_owner_rows([SharedRows(part["features"], part["classes"]) for part in rows.values()])
        places = [place for owner in rows for place in self.task.feature_indices(owner)]
        (classes,) = (part["classes"] for part in rows.values() if "classes" in part)
        joined = records.join_owner_columns(
            [self._pad_values(engine, part["features"]) for part in rows.values()], classes
        )
        return SharedRows(joined.features[np.argsort(places)], classes)

    def _pad_values(self, engine: Engine, features: Shared) -> Shared:
        """Pad to the common number of values with values that never occur."""
        m, w, n = features.shape
        never = engine.constant(np.zeros((m, self.domain.width - w, n), np.int64))
        return concatenate([features, never], axis=1) if w < self.domain.width else features
