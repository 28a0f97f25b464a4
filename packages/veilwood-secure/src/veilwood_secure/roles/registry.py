# SPDX-License-Identifier: Apache-2.0
"""Programs by the name that a task gives its protocol."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Final

from veilwood.errors import UseError
from veilwood_secure.roles.config import Task
from veilwood_secure.roles.hidden_programs import BinaryForest, HiddenForest, PrivateVotes, invalid_queries_error
from veilwood_secure.roles.joint_programs import ForestOnShares, JointForest
from veilwood_secure.roles.program import Program, Shapes, TrainingResult
from veilwood_secure.roles.public_programs import ExtraTrees, NoisyPublicTrees, PublicTrees

__all__ = [
    "PROTOCOLS",
    "ForestOnShares",
    "HiddenForest",
    "JointForest",
    "PrivateVotes",
    "Program",
    "PublicTrees",
    "Shapes",
    "TrainingResult",
    "invalid_queries_error",
    "program_for_task",
]

PROTOCOLS: Final[dict[str, Callable[[Task], Program]]] = {
    "hidden-tree": HiddenForest,
    "binary-tree": BinaryForest,
    "private-votes": PrivateVotes,
    "public-forest": JointForest,
    "forest-on-shares": ForestOnShares,
    "cdp-id3": NoisyPublicTrees,
    "extra-trees": ExtraTrees,
}
"""Protocols with a privacy guarantee, by their name in a task."""

NOT_PRIVATE_GROUP: Final = "veilwood_secure.not_private"
"""Entry points of programs without a guarantee: the reproductions register two protocols of a paper here."""


def program_for_task(task: Task) -> Program:
    """Return the program of a task's protocol; raise UseError if there is no such protocol.

    Programs of other packages must declare that they are not private, so that none of them can claim a guarantee.
    """
    if task.protocol in PROTOCOLS:
        return PROTOCOLS[task.protocol](task)
    for entry in entry_points(group=NOT_PRIVATE_GROUP, name=task.protocol):
        program: Program = entry.load()(task)
        if not program.not_private:
            raise UseError(f"protocol {task.protocol!r} of another package must declare that it is not private.")
        return program
    raise UseError(f"there is no protocol {task.protocol!r}. Hint: choose one of {', '.join(PROTOCOLS)}.")
