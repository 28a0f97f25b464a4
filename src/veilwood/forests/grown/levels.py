# SPDX-License-Identifier: Apache-2.0
"""What every level of a grown forest is given, whatever its splits: nodes to plan for, and what splits them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from veilwood.data.batches import AddUp
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.trees.counting import HAVE_NUMBA, Assignment


@dataclass(frozen=True)
class LevelNodes:
    """The nodes of one level as they are planned, and what the private choices at all of them may cost together."""

    depth: int
    most: int
    """How many they can be, in all trees."""
    loss: Loss
    neighbours: Neighbours
    trees_per_row: int
    candidates: int
    """Columns that are compared at a node."""
    by: Literal["flip", "exponential"]


@dataclass(frozen=True, eq=False)
class Splitter:
    """What splits one level after the other: passes over the rows, public coins, and the door for what is chosen."""

    door: Door
    add_up: AddUp
    rng: np.random.Generator
    candidates: int
    n_classes: int | None
    """None for targets that are numbers."""
    assignment: Assignment | None = None
    n_jobs: int | None = None
    fast: bool = HAVE_NUMBA
