# SPDX-License-Identifier: Apache-2.0
"""Ordinary estimators for each role: owners who answer with sums of their rows, or share the rows, and servers.

The protocols themselves are in ``secure.protocols``; how shares travel is in ``server``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from veilwood import estimators
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Schema
from veilwood.errors import UseError
from veilwood.forests.adaptive.contingency import columns_of
from veilwood.privacy.certificate import ByServers
from veilwood_secure.mpc.engine import Bits, Engine, concatenate, stack
from veilwood_secure.protocols import circuits
from veilwood_secure.protocols import joint_forest as joint
from veilwood_secure.protocols.shared_backend import BitRows
from veilwood_secure.roles.config import Task
from veilwood_secure.roles.program import NOBODY, Arrays, Program, Shapes, Shares, Trained, Voices, completed


class JointForest(Program):
    """An ordinary estimator: owners share sums of their rows, servers add noise, and what was opened is released.

    Forests that are counted once take one array of sums from each owner. Others ask question after question: their
    owners attend.
    """

    reveals = True
    ring = joint.RING
    settings: ClassVar[Mapping[str, Any]] = {
        "estimator": "PrivateForestClassifier", "parameters": {"random_state": 0}, "law": None,
    }  # fmt: skip
    offered: ClassVar[tuple[str, ...]] = tuple(n for n in estimators.__all__ if n != "MatrixForestPredictor")
    otherwise: ClassVar[str] = "answers to one batch of questions are no model; MatrixForestClassifier is one"
    takes_columns: ClassVar[bool] = False

    def __init__(self, task: Task) -> None:
        self.task = task
        chosen = completed(task, self.settings)
        name, law = chosen["estimator"], chosen["law"]
        if law not in (None, *joint.LAWS):
            raise UseError(f"task {task.name!r}: law {law!r} is not known. Hint: {' or '.join(joint.LAWS)}.")
        if name not in self.offered:
            raise UseError(
                f"task {task.name!r}: estimator {name!r} cannot be trained by {task.protocol!r}. Hint: "
                f"{', '.join(self.offered)}; {self.otherwise}."
            )
        if task.by_columns and not self.takes_columns:
            raise UseError(
                f"task {task.name!r}: owners of columns cannot add up rows. Hint: protocol 'forest-on-shares'."
            )
        try:
            self.estimator = getattr(estimators, name)(task.public, epsilon=task.loss, **chosen["parameters"])
        except TypeError:
            raise UseError(f"task {task.name!r}: {name} does not take all of these parameters.") from None
        self.law: joint.Law = law or joint.default_law(self.estimator)
        self.plan = joint.joint_plan(self.estimator, self.law)
        self.servers = ByServers(self.law, "counts")
        self.attended = joint.stays_online(self.estimator)
        self._size = sum(math.prod(step.shape) for step in self.plan.steps)

    def part_of_schema(self, owner: str) -> Schema:
        """The whole schema: owners hold whole rows."""
        return self.task.public

    def encode_rows(self, owner: str, X: Any, y: Any, pad_to: int | None = None) -> tuple[Arrays, int]:
        """Count an owner's rows; servers do not learn how many there are."""
        if self.attended:
            raise UseError(f"owners of task {self.task.name!r} answer while it is trained. Hint: attend.")
        return {"sums": joint.count_rows(self.estimator, X, y)}, 1

    def shapes_of_rows(self, owner: str, rows: int) -> Shapes:
        """The shape of these sums; owners that attend send them one after the other, as they are asked."""
        return {} if self.attended else {"sums": (self._size,)}

    def faults(self, engine: Engine, owner: str, shares: Shares) -> str | None:
        """Find nothing: a wrong count harms the model, and no other owner."""
        return None

    def attend(self, X: Any, y: Any, voices: Sequence[joint.Voice]) -> None:
        """Answer the servers, at an owner, until the training has ended."""
        joint.take_part(self.estimator, self.plan, X, y, voices)

    def train(self, engine: Engine, rows: Mapping[str, Shares], present: Voices = NOBODY) -> Trained:
        """Carry the estimator's method out on the owners' sums."""
        if self.attended:
            owners = joint.Owners(engine, present, self.estimator)
            source = joint.SharedSums.of(engine, owners.sums)
            opened = joint.serve(engine, self.estimator, self.plan, self.law, source, owners.tell)
        else:
            sums = joint.sum_of([part["sums"] for part in rows.values()])
            source = joint.SharedSums.of(engine, lambda shape: sums.reshape(*shape))
            opened = joint.serve(engine, self.estimator, self.plan, self.law, source)
        return Trained(released={"opened": opened})


class ForestOnShares(JointForest):
    """PrivateForest on rows that owners share once, whole rows or columns: servers answer its questions on shares."""

    settings: ClassVar[Mapping[str, Any]] = {
        "estimator": "PrivateForestClassifier", "parameters": {"random_state": 0}, "law": "sampled",
    }  # fmt: skip
    offered: ClassVar[tuple[str, ...]] = ("PrivateForestClassifier", "PrivateForestRegressor")
    otherwise: ClassVar[str] = "others by protocol 'public-forest', where owners hold whole rows"
    takes_columns: ClassVar[bool] = True

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.attended = False
        self.servers = ByServers(self.law, "columns" if task.by_columns else "rows")
        self._columns = columns_of(Encoding(task.public, "grid"))
        self._digits = [max((column.n_cells - 1).bit_length(), 1) for column in self._columns]
        classes = len(task.public.classes)
        self._target_digits = max((classes - 1).bit_length(), 1) if classes else TARGET_LEVELS.bit_length()

    def part_of_schema(self, owner: str) -> Schema:
        """The schema of an owner's own table; its target is not in the table of every owner."""
        public = self.task.public
        features = tuple(public.features[place] for place in self.task.places(owner))
        return Schema(public.name, public.task, public.target, features)

    def encode_rows(self, owner: str, X: Any, y: Any, pad_to: int | None = None) -> tuple[Arrays, int]:
        """Encode an owner's rows as binary digits, 64 rows in a word; padding counts nowhere."""
        encoding = Encoding(self.part_of_schema(owner), "grid")
        codes, places = encoding.encode(X), self.task.places(owner)
        rows = padded_rows(len(codes), pad_to)
        cells = [self._columns[place].cells(codes[:, at]) for at, place in enumerate(places)]
        digits = [circuits.digits_of(cell, self._digits[place]) for cell, place in zip(cells, places, strict=True)]
        out: Arrays = {"cells": circuits.packed(_filled(np.concatenate(digits), rows))}
        if self.task.holds_target(owner):
            if y is None:
                raise UseError(f"client {owner} holds the target {self.task.public.target.name!r}. Hint: give y.")
            target = encoding.encode_target(y)
            if len(target) != len(codes):
                raise UseError("X and y have different numbers of rows.")
            there = np.ones((1, len(target)), bool)
            planes = np.concatenate([circuits.digits_of(target, self._target_digits), there])
            out["target"] = circuits.packed(_filled(planes, rows))
        return out, rows

    def shapes_of_rows(self, owner: str, rows: int) -> Shapes:
        """The shapes of these words."""
        words = -(-rows // circuits.WORD)
        out: Shapes = {"cells": (sum(self._digits[place] for place in self.task.places(owner)), words)}
        return out | ({"target": (self._target_digits + 1, words)} if self.task.holds_target(owner) else {})

    def faults(self, engine: Engine, owner: str, shares: Shares) -> str | None:
        """Whether every cell, and class, is one that the schema has."""
        planes = circuits.bits_of(engine, shares["cells"])
        sizes = [self._columns[place].n_cells for place in self.task.places(owner)]
        parts = list(zip(self._cut(planes, owner), sizes, strict=True))
        if "target" in shares and self.task.public.classes:
            target = circuits.bits_of(engine, shares["target"])
            parts.append((target[: self._target_digits], len(self.task.public.classes)))
        wrong = [
            ~circuits.one_hot_bits(engine, digits, size).map(lambda part: np.bitwise_xor.reduce(part, axis=0))
            for digits, size in parts
            if size < 1 << len(digits)
        ]
        if wrong and not engine.all_zero(circuits.counted(engine, stack(wrong))):
            return "cells or classes that the schema does not have"
        return None

    def train(self, engine: Engine, rows: Mapping[str, Shares], present: Voices = NOBODY) -> Trained:
        """Carry PrivateForest out on the shared rows."""
        cells: dict[int, Bits] = {}
        if self.task.by_columns:
            for owner, part in rows.items():
                held = self._cut(circuits.bits_of(engine, part["cells"]), owner)
                cells |= dict(zip(self.task.places(owner), held, strict=True))
            (target,) = (part["target"] for part in rows.values() if "target" in part)
        else:
            joined = concatenate([part["cells"] for part in rows.values()], axis=1)
            target = concatenate([part["target"] for part in rows.values()], axis=1)
            cells = dict(enumerate(self._cut(circuits.bits_of(engine, joined), next(iter(rows)))))
        planes = circuits.bits_of(engine, target)
        source = BitRows.of(engine, [cells[place] for place in range(len(cells))], planes[:-1], planes[-1])
        return Trained(released={"opened": joint.serve(engine, self.estimator, self.plan, self.law, source)})

    def _cut(self, planes: Bits, owner: str) -> list[Bits]:
        """Return the digits of each of an owner's columns."""
        ends = np.cumsum([self._digits[place] for place in self.task.places(owner)]).tolist()
        return [planes[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def padded_rows(rows: int, pad_to: int | None) -> int:
    """Return how many rows are shared, filled up to a public number if one is given."""
    if rows == 0:
        raise UseError("there are no rows. Hint: some are needed.")
    if pad_to is not None and pad_to < rows:
        raise UseError(f"{rows} rows cannot be padded to {pad_to}. Hint: a larger public number.")
    return rows if pad_to is None else pad_to


def _filled(planes: NDArray[np.bool_], rows: int) -> NDArray[np.bool_]:
    """Add rows of zeros: no such row is there."""
    return np.pad(planes, ((0, 0), (0, rows - planes.shape[1])))
