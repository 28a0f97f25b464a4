# SPDX-License-Identifier: Apache-2.0
"""State of one training task at one server: uploads, connected owners, training phase and model."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from veilwood.errors import DomainTooLargeError, PartyError, UseError
from veilwood_secure.mpc.engine import Shared
from veilwood_secure.mpc.replicated import ReplicatedEngine
from veilwood_secure.roles.checkpoints import Checkpoint, StoredModel
from veilwood_secure.roles.config import Task
from veilwood_secure.roles.program import Program
from veilwood_secure.roles.transport import Channel, LostError
from veilwood_secure.roles.uploads import join_pieces, max_rows_per_piece, piece_row_counts, split_piece

MAX_BYTES_ON_DISK: Final = 1 << 36
"""Maximum size of the shares of one owner's rows, in bytes, over all parts."""
MAX_PARTS: Final = 1000
"""Maximum number of parts of one owner's rows."""
MAX_ROWS: Final = 1 << 26
"""Maximum number of rows of all owners with 32-bit words: scores plus planned noise then stay below 2^31."""


@dataclass
class TaskState:
    """Mutable state of a task at this server; guard it with ``lock``."""

    task: Task
    program: Program
    checkpoint: Checkpoint
    lock: threading.RLock = field(default_factory=threading.RLock)
    online_sessions: dict[str, tuple[str, int]] = field(default_factory=dict)  # online owners: session name
    owner_channels: dict[str, Channel] = field(default_factory=dict)  # online owners: connection
    training_ended: threading.Event = field(default_factory=threading.Event)
    is_training: bool = False
    model: StoredModel | None = None
    failure: str | None = None
    disagreeing_owners: list[str] = field(default_factory=list)  # owners that must consent to another charge
    lost_party: str | None = None  # who was lost in the last training, which goes on when that party is back

    @property
    def complete_uploads(self) -> dict[str, tuple[str, int]]:
        """Return the complete uploads by owner, with the number of rows, which the servers see."""
        if self.program.needs_online_owners:
            return dict(self.online_sessions)
        complete = {}
        for owner, parts in self.checkpoint.parts.items():
            if (
                parts
                and all(self.is_complete(owner, part) for part in parts.values())
                and not list(parts.values())[-1]["more"]
            ):
                names = " ".join(f"{name}:{part['upload']}:{'-'.join(part['held'])}" for name, part in parts.items())
                complete[owner] = names, sum(part["rows"] for part in parts.values())
        return complete

    @property
    def missing_owners(self) -> list[str]:
        """Owners whose rows are missing. Rows have arrived once each server has confirmed that all three have them."""
        complete, parts = self.complete_uploads, self.checkpoint.parts
        arrived = {owner for owner in complete if all(part.get("accepted") for part in parts.get(owner, {}).values())}
        return [owner for owner in self.task.owners if owner not in arrived]

    def accepted_uploads(self, owner: str) -> list[str]:
        """Return the names of an owner's uploads that all three servers have, or have trained on."""
        if self.model is not None:
            return list(self.model.facts.get("uploads", {}).get(owner, []))
        return [str(part["upload"]) for part in self.checkpoint.parts.get(owner, {}).values() if part.get("accepted")]

    def mismatched_owners(self, reports: Sequence[Any]) -> list[str]:
        """Return the owners whose rows differ between the three servers, according to their reports."""
        uploads = [report if isinstance(report, Mapping) else {} for report in reports]
        return [
            owner
            for owner in self.task.owners
            if any(one.get(owner) in (None, "") for one in uploads) or len({str(one[owner]) for one in uploads}) > 1
        ]

    @property
    def phase(self) -> str:
        """Phase of the task: ``"waiting"``, ``"training"`` or ``"trained"``."""
        if self.is_training or (self.lost_party is not None and not self.missing_owners):
            return "training"
        return "trained" if self.model else "waiting"

    def accept_all_rows(self) -> None:
        """Mark all rows as accepted, after the three servers have confirmed that they hold the same rows."""
        with self.lock:
            for parts in self.checkpoint.parts.values():
                for part in parts.values():
                    part["accepted"] = True

    def is_complete(self, owner: str, part: Mapping[str, Any]) -> bool:
        """Return True if all pieces of a part have arrived."""
        return len(part["held"]) == len(piece_row_counts(self.program, owner, part["rows"]))

    def reject_duplicate_rows(self, owner: str, part: str, upload: str) -> None:
        """Raise UseError if an owner sends the same rows under two part names, since they would count twice."""
        for name, other in self.checkpoint.parts.get(owner, {}).items():
            if name != part and other["upload"] == upload:
                raise UseError(
                    f"these rows were already sent as part {name!r}. "
                    "Hint: send each row in one part, and combine small tables with identical rows into one part."
                )

    def is_current_upload(self, owner: str, part: str, upload_entry: Mapping[str, Any]) -> bool:
        """Return True if an upload of a part has not been replaced by a later one."""
        return self.checkpoint.parts.get(owner, {}).get(part) is upload_entry

    def reject_if_training(self, *, may_retry: bool = False) -> None:
        """Raise UseError while the servers train, or LostError if the peer should try again by itself."""
        if self.is_training and may_retry:
            raise LostError(f"task {self.task.name!r} is still being trained.")
        if self.is_training:
            raise UseError(f"task {self.task.name!r} is being trained. Hint: wait for the result.")

    def reject_too_many_rows(self, owner: str, part: str, rows: int) -> None:
        """Raise DomainTooLargeError, before any row is read, if rows exceed the disk limit or the range of words.

        Every owner has a fixed quota that does not depend on other owners, so the error reveals nothing about them.
        """
        own, word = self.checkpoint.parts.get(owner, {}), np.dtype(self.program.ring).itemsize
        total = rows + sum(one["rows"] for name, one in own.items() if name != part)
        max_rows = MAX_ROWS if self.task.is_vertical else MAX_ROWS // len(self.task.owners)
        size = 2 * word * sum(map(math.prod, self.program.row_shapes(owner, total).values()))
        if (
            size > MAX_BYTES_ON_DISK
            or len({*own, part}) > MAX_PARTS
            or ((word == 4 or self.program.is_checked) and total > max_rows)
        ):
            raise DomainTooLargeError("the upload has too many rows or parts. Hint: send fewer.")

    def reject_length_mismatch(self, owner: str, part: str, rows: int) -> None:
        """Raise PartyError if owners of columns send different numbers of rows.

        The message does not contain the numbers: an owner learns only that they differ.
        """
        for other, parts in self.checkpoint.parts.items():
            if self.task.is_vertical and other != owner and part in parts and parts[part]["rows"] != rows:
                raise PartyError(
                    f"owner {owner} sent a different number of rows from owner {other}. Hint: owners of columns send "
                    "the same rows in the same order.",
                    party=f"owner {owner}",
                )

    def reject_part_mismatch(self) -> None:
        """Raise PartyError if owners of columns send different parts, or the same parts in a different order."""
        orders = {owner: list(parts) for owner, parts in self.checkpoint.parts.items()}
        if self.task.is_vertical and len({tuple(order) for order in orders.values()}) > 1:
            raise PartyError(
                f"the owners of task {self.task.name!r} sent different parts of their rows. Hint: owners of columns "
                "send the same parts in the same order."
            )

    def load_shares(self, engine: ReplicatedEngine, party: int) -> dict[str, dict[str, Shared]]:
        """Load the rows of all owners from disk as shared arrays."""
        loaded: dict[str, dict[str, Shared]] = {}
        for owner in self.task.owners:
            pieces = []
            for name, part in self.checkpoint.parts.get(owner, {}).items():
                for number, rows in enumerate(piece_row_counts(self.program, owner, part["rows"])):
                    data = self.checkpoint.read_piece(owner, name, number)
                    if data is None:
                        raise UseError(f"rows of {owner} are lost. Hint: contribute again.")
                    pieces.append(split_piece(party, data, self.program.row_shapes(owner, rows), self.program.ring))
            arrays = join_pieces(pieces, is_sum=max_rows_per_piece(self.program, owner) is None) if pieces else {}
            loaded[owner] = {key: engine.load(pair) for key, pair in arrays.items()}
        return loaded

    def clear_rows(self) -> None:
        """Delete all rows and disconnect online owners."""
        self.checkpoint.forget_rows()
        self.disagreeing_owners = []
        self.release_owners()

    def release_owners(self) -> None:
        """Disconnect online owners."""
        self.online_sessions.clear()
        self.owner_channels.clear()
