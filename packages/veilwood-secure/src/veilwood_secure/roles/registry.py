# SPDX-License-Identifier: Apache-2.0
"""The programs of all protocols, by the name that a task gives its protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from veilwood.errors import UseError
from veilwood_secure.roles.config import Task
from veilwood_secure.roles.hidden_programs import BinaryForest, HiddenForest, PrivateVotes, invalid_queries_error
from veilwood_secure.roles.joint_programs import ForestOnShares, JointForest
from veilwood_secure.roles.program import Program, Shapes, TrainingResult
from veilwood_secure.roles.public_programs import (
    ExactHiddenSplitsNotPrivate,
    ExactTreesNotPrivate,
    ExtraTrees,
    NoisyPublicTrees,
    PublicTrees,
)

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
]  # fmt: skip

PROTOCOLS: Final[dict[str, Callable[[Task], Program]]] = {
    "hidden-tree": HiddenForest,
    "binary-tree": BinaryForest,
    "private-votes": PrivateVotes,
    "public-forest": JointForest,
    "forest-on-shares": ForestOnShares,
    "cdp-id3": NoisyPublicTrees,
    "extra-trees": ExtraTrees,
    "mpc-id3": ExactTreesNotPrivate,
    "odp-id3": ExactHiddenSplitsNotPrivate,
}
"""The protocols by their name in a task."""


def program_for_task(task: Task) -> Program:
    """The program of a task's protocol."""
    if task.protocol not in PROTOCOLS:
        raise UseError(f"there is no protocol {task.protocol!r}. Hint: one of {', '.join(PROTOCOLS)}.")
    return PROTOCOLS[task.protocol](task)
