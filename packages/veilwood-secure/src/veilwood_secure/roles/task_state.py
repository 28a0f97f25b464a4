# SPDX-License-Identifier: Apache-2.0
"""A task at one server: which rows have arrived, who is present, what is being trained and what is trained."""

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
from veilwood_secure.roles.registry import Program
from veilwood_secure.roles.transport import Channel
from veilwood_secure.roles.uploads import join_pieces, max_rows_per_piece, piece_row_counts, split_piece

__all__ = ["TaskState"]

MAX_BYTES_ON_DISK: Final = 1 << 36
"""Bytes of shares of one owner's rows, in all parts."""
MAX_PARTS: Final = 1000
"""Parts of one owner's rows."""
MAX_ROWS: Final = 1 << 26
"""Rows of all owners where words have 32 bits: scores, with the noise that a plan may have, stay below 2^31."""


@dataclass
class TaskState:
    """A task at this server."""

    task: Task
    program: Program
    checkpoint: Checkpoint
    lock: threading.RLock = field(default_factory=threading.RLock)
    online_sessions: dict[str, tuple[str, int]] = field(default_factory=dict)  # owners that stay: their session
    owner_channels: dict[str, Channel] = field(default_factory=dict)  # and their connection
    training_ended: threading.Event = field(default_factory=threading.Event)
    is_training: bool = False
    model: StoredModel | None = None
    failure: str | None = None
    disagreeing_owners: list[str] = field(default_factory=list)  # owners that must agree to be charged again
    lost_server: str | None = None  # the server without which the last training ended; it will be tried again

    @property
    def complete_uploads(self) -> dict[str, tuple[str, int]]:
        """The owners whose rows are all here: by which uploads, and how many servers see."""
        if self.program.needs_online_owners:
            return dict(self.online_sessions)
        found = {}
        for owner, parts in self.checkpoint.parts.items():
            if (
                parts
                and all(self.is_complete(owner, part) for part in parts.values())
                and not list(parts.values())[-1]["more"]
            ):
                names = " ".join(f"{name}:{part['upload']}:{'-'.join(part['held'])}" for name, part in parts.items())
                found[owner] = names, sum(part["rows"] for part in parts.values())
        return found

    @property
    def missing_owners(self) -> list[str]:
        """The owners that are waited for: a row has arrived when each server knows that all three have it."""
        there, parts = self.complete_uploads, self.checkpoint.parts
        known = {owner for owner in there if all(part.get("accepted") for part in parts.get(owner, {}).values())}
        return [owner for owner in self.task.owners if owner not in known]

    def accepted_uploads(self, owner: str) -> list[str]:
        """The names of an owner's uploads that all three servers have, or have trained on."""
        if self.model is not None:
            return list(self.model.facts.get("uploads", {}).get(owner, []))
        return [str(part["upload"]) for part in self.checkpoint.parts.get(owner, {}).values() if part.get("accepted")]

    def mismatched_owners(self, reports: Sequence[Any]) -> list[str]:
        """The owners of whose rows the three servers, by what they told, do not hold the same."""
        names = [one if isinstance(one, Mapping) else {} for one in reports]
        return [
            owner
            for owner in self.task.owners
            if any(one.get(owner) in (None, "") for one in names) or len({str(one[owner]) for one in names}) > 1
        ]

    @property
    def phase(self) -> str:
        """What goes on: ``"has_input"``, ``"is_training"`` or ``"trained"``."""
        if self.is_training or (self.lost_server is not None and not self.missing_owners):
            return "training"
        return "trained" if self.model else "waiting"

    def accept_all_rows(self) -> None:
        """Know of all rows that all three servers have them, as they have just told each other."""
        with self.lock:
            for parts in self.checkpoint.parts.values():
                for part in parts.values():
                    part["accepted"] = True

    def is_complete(self, owner: str, part: Mapping[str, Any]) -> bool:
        """Whether all pieces of a part have arrived."""
        return len(part["held"]) == len(piece_row_counts(self.program, owner, part["rows"]))

    def reject_duplicate_rows(self, owner: str, part: str, upload: str) -> None:
        """One owner's rows under two names would count twice; what they are called is told to their owner alone."""
        for name, other in self.checkpoint.parts.get(owner, {}).items():
            if name != part and other["upload"] == upload:
                raise UseError(
                    f"these rows are there already, as part {name!r}. Hint: send each row in one part; tables of a few "
                    "rows that are alike, in one together."
                )

    def is_current_upload(self, owner: str, part: str, upload_entry: Mapping[str, Any]) -> bool:
        """Whether a part is still the one that somebody began to send."""
        return self.checkpoint.parts.get(owner, {}).get(part) is upload_entry

    def reject_if_training(self) -> None:
        """Refuse changes while the servers train."""
        if self.is_training:
            raise UseError(f"task {self.task.name!r} is being trained. Hint: wait for the result.")

    def reject_too_many_rows(self, owner: str, part: str, rows: int) -> None:
        """Refuse rows, before any is read, that a disk or the words of a protocol do not hold.

        Every owner may have its part of the rows of all, whatever others sent: a refusal tells nothing of them.
        """
        own, word = self.checkpoint.parts.get(owner, {}), np.dtype(self.program.ring).itemsize
        total = rows + sum(one["rows"] for name, one in own.items() if name != part)
        most = MAX_ROWS if self.task.is_vertical else MAX_ROWS // len(self.task.owners)
        size = 2 * word * sum(map(math.prod, self.program.row_shapes(owner, total).values()))
        if size > MAX_BYTES_ON_DISK or len({*own, part}) > MAX_PARTS or (word == 4 and total > most):
            raise DomainTooLargeError("these are more rows, or parts, than this server takes. Hint: fewer.")

    def reject_length_mismatch(self, owner: str, part: str, rows: int) -> None:
        """Owners of columns hold the same rows, in the same order: their number at least can be checked.

        The number itself is not said: an owner that has other rows learns that they are others, and no more.
        """
        for other, parts in self.checkpoint.parts.items():
            if self.task.is_vertical and other != owner and part in parts and parts[part]["rows"] != rows:
                raise PartyError(
                    f"owner {owner} sent another number of rows than owner {other}. Hint: owners of columns send "
                    "the same rows in the same order.",
                    party=f"owner {owner}",
                )

    def reject_part_mismatch(self) -> None:
        """Owners of columns send the same parts in the same order."""
        orders = {owner: list(parts) for owner, parts in self.checkpoint.parts.items()}
        if self.task.is_vertical and len({tuple(order) for order in orders.values()}) > 1:
            raise PartyError(
                f"the owners of task {self.task.name!r} sent different parts of their rows. Hint: owners of columns "
                "send the same parts in the same order."
            )

    def load_shares(self, engine: ReplicatedEngine, party: int) -> dict[str, dict[str, Shared]]:
        """Read the rows of all owners from disk, as the engine takes them."""
        found: dict[str, dict[str, Shared]] = {}
        for owner in self.task.owners:
            pieces = []
            for name, part in self.checkpoint.parts.get(owner, {}).items():
                for number, rows in enumerate(piece_row_counts(self.program, owner, part["rows"])):
                    data = self.checkpoint.read_piece(owner, name, number)
                    if data is None:
                        raise UseError(f"rows of {owner} are lost. Hint: contribute again.")
                    pieces.append(split_piece(party, data, self.program.row_shapes(owner, rows), self.program.ring))
            whole = join_pieces(pieces, is_sum=max_rows_per_piece(self.program, owner) is None) if pieces else {}
            found[owner] = {key: engine.load(pair) for key, pair in whole.items()}
        return found

    def clear_rows(self) -> None:
        """Forget rows and whoever is present."""
        self.checkpoint.forget_rows()
        self.disagreeing_owners = []
        self.release_owners()

    def release_owners(self) -> None:
        """Let the owners that are present go."""
        self.online_sessions.clear()
        self.owner_channels.clear()
