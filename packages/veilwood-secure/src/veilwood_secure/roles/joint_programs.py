# SPDX-License-Identifier: Apache-2.0
"""Programs that fit ordinary estimators to sums that owners secret-share, or to rows in shares.

The protocols are implemented in ``veilwood_secure.protocols``; shares are sent and received in ``server``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from veilwood import estimators
from veilwood.arrays import Bools
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Schema
from veilwood.errors import UseError
from veilwood.forests.adaptive.contingency import bin_columns
from veilwood_secure.mpc.engine import Bits, Engine, concatenate, stack
from veilwood_secure.mpc.replicated import OwnerChannel
from veilwood_secure.protocols import circuits
from veilwood_secure.protocols import joint_forest as joint
from veilwood_secure.protocols.shared_backend import BitslicedRows
from veilwood_secure.roles import program
from veilwood_secure.roles.config import Task


class JointForest(program.Program):
    """Program for ordinary estimators: owners secret-share sums over their rows; servers add noise and open the sums.

    Forests that count rows once take one array of sums from each owner. Other estimators run several queries, and
    their owners stay online.
    """

    opens_values = can_resume = True
    ring = joint.RING
    checked_bits = 44
    settings: ClassVar[Mapping[str, Any]] = {
        "estimator": "PrivateForestClassifier", "parameters": {"random_state": 0}, "noise_protocol": None,
    }  # fmt: skip
    estimator_names: ClassVar[tuple[str, ...]] = tuple(n for n in estimators.__all__ if n != "MatrixForestPredictor")
    alternatives_hint: ClassVar[str] = (
        "MatrixForestPredictor answers one batch and is not a model, so use MatrixForestClassifier"
    )
    allows_columns: ClassVar[bool] = False

    def __init__(self, task: Task) -> None:
        self.task = task
        chosen = program.complete_settings(task, self.settings)
        name, requested = chosen["estimator"], chosen["noise_protocol"]
        if self.is_checked:  # the noise that a server deals cannot be verified
            if requested == "dealt":
                raise UseError(f"task {task.name!r}: checked servers do not deal noise. Hint: choose 'sampled'.")
            requested = "sampled"
        if requested not in (None, *joint.NOISE_PROTOCOLS):
            raise UseError(
                f"task {task.name!r}: noise_protocol {requested!r} does not exist. "
                f"Hint: choose {' or '.join(joint.NOISE_PROTOCOLS)}."
            )
        if name not in self.estimator_names:
            raise UseError(
                f"task {task.name!r}: estimator {name!r} cannot be trained by {task.protocol!r}. Hint: "
                f"choose one of {', '.join(self.estimator_names)}; {self.alternatives_hint}."
            )
        if task.is_vertical and not self.allows_columns:
            raise UseError(
                f"task {task.name!r}: owners of columns cannot sum over rows. Hint: use protocol 'forest-on-shares'."
            )
        try:
            if "ledger" in chosen["parameters"]:  # every owner would charge, or create, the file named by the task
                raise UseError(
                    f"task {task.name!r}: a task names no ledger. Hint: name it in the configuration of each owner."
                )
            self.estimator = getattr(estimators, name)(
                task.public_schema, epsilon=task.exact_epsilon, **chosen["parameters"]
            )
        except TypeError:
            raise UseError(
                f"task {task.name!r}: {name} does not accept all of these parameters. "
                "Hint: compare them with its documentation."
            ) from None
        self.noise_protocol: joint.NoiseProtocol = requested or joint.default_noise_protocol(self.estimator)
        self.plan = joint.joint_plan(self.estimator, self.noise_protocol)
        self.participation = joint.server_participation(self.estimator, self.noise_protocol, "counts")
        self.needs_online_owners = joint.needs_online_owners(self.estimator)
        self._n_sums = sum(math.prod(step.shape) for step in self.plan.steps)

    def find_unchecked(self) -> str | None:
        """Return the scores of the estimator if they are quotients of numbers up to 2^58, which take too many bits."""
        name = type(self.estimator).__name__
        return f"the scores of {name}" if name.startswith(("Greedy", "Median")) else None

    def owner_schema(self, owner: str) -> Schema:
        """Return the whole schema, since owners hold whole rows."""
        return self.task.public_schema

    def encode_rows(self, owner: str, X: Any, y: Any, pad_to: int | None = None) -> tuple[program.Arrays, int]:
        """Return the sums over an owner's rows. Servers do not learn the number of rows."""
        if self.needs_online_owners:
            raise UseError(
                f"owners of task {self.task.name!r} must stay online during training. Hint: call participate."
            )
        return {"sums": joint.compute_owner_sums(self.estimator, X, y)}, 1

    def row_shapes(self, owner: str, rows: int) -> program.Shapes:
        """Return the shape of an owner's sums; empty for online owners, which send sums query by query."""
        return {} if self.needs_online_owners else {"sums": (self._n_sums,)}

    def find_fault(self, engine: Engine, owner: str, shares: program.Shares) -> str | None:
        """Return None: wrong sums harm the model, but do not affect the privacy of other owners."""
        return None

    def run_owner(self, X: Any, y: Any, channels: Sequence[OwnerChannel]) -> None:
        """Answer queries at an owner until the training run ends."""
        joint.run_owner(self.estimator, self.plan, X, y, channels)

    def train(
        self,
        engine: Engine,
        rows: Mapping[str, program.Shares],
        owner_channels: program.OwnerChannels = program.NO_OWNERS,
    ) -> program.TrainingResult:
        """Run the estimator's method on the owners' shared sums."""
        if self.needs_online_owners:
            owners = joint.OnlineOwners(engine, owner_channels, self.estimator)
            source = joint.SharedSums.from_collector(engine, owners.collect_sums)
            opened = joint.run_server(
                engine, self.estimator, self.plan, self.noise_protocol, source, owners.send_opened
            )
        else:
            sums = joint.sum_shares([part["sums"] for part in rows.values()])
            source = joint.SharedSums.from_collector(engine, lambda shape: sums.reshape(*shape))
            opened = joint.run_server(engine, self.estimator, self.plan, self.noise_protocol, source)
        return program.TrainingResult(released={"opened": opened})


class ForestOnShares(JointForest):
    """Program for PrivateForest on rows or columns that owners secret-share once; servers run its queries on shares."""

    settings: ClassVar[Mapping[str, Any]] = {
        "estimator": "PrivateForestClassifier", "parameters": {"random_state": 0}, "noise_protocol": "sampled",
    }  # fmt: skip
    estimator_names: ClassVar[tuple[str, ...]] = ("PrivateForestClassifier", "PrivateForestRegressor")
    alternatives_hint: ClassVar[str] = "for others, use protocol 'public-forest' with owners of whole rows"
    allows_columns: ClassVar[bool] = True

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.needs_online_owners = False
        self.participation = joint.server_participation(
            self.estimator, self.noise_protocol, "columns" if task.is_vertical else "rows"
        )
        self._columns = bin_columns(Encoding(task.public_schema, "grid"))
        self._digits = [max((column.n_bins - 1).bit_length(), 1) for column in self._columns]
        classes = len(task.public_schema.classes)
        self._target_digits = max((classes - 1).bit_length(), 1) if classes else TARGET_LEVELS.bit_length()

    def owner_schema(self, owner: str) -> Schema:
        """Return the schema of an owner's own table. Not every owner's table has the target."""
        public = self.task.public_schema
        features = tuple(public.features[place] for place in self.task.feature_indices(owner))
        return Schema(public.name, public.task, public.target, features)

    def encode_rows(self, owner: str, X: Any, y: Any, pad_to: int | None = None) -> tuple[program.Arrays, int]:
        """Encode an owner's rows as binary digits, 64 rows to a word. Padding is not counted."""
        encoding = Encoding(self.owner_schema(owner), "grid")
        codes, places = encoding.encode(X), self.task.feature_indices(owner)
        rows = padded_row_count(len(codes), pad_to)
        cells = [self._columns[place].bin_codes(codes[:, at]) for at, place in enumerate(places)]
        digits = [circuits.binary_digits(cell, self._digits[place]) for cell, place in zip(cells, places, strict=True)]
        out: program.Arrays = {"cells": circuits.pack_bits(_pad_planes(np.concatenate(digits), rows))}
        if self.task.holds_target(owner):
            if y is None:
                raise UseError(f"owner {owner} holds the target {self.task.public_schema.target.name!r}. Hint: pass y.")
            target = encoding.encode_target(y)
            if len(target) != len(codes):
                raise UseError("X and y have different numbers of rows. Hint: pass one target value per row.")
            there = np.ones((1, len(target)), bool)
            planes = np.concatenate([circuits.binary_digits(target, self._target_digits), there])
            out["target"] = circuits.pack_bits(_pad_planes(planes, rows))
        return out, rows

    def row_shapes(self, owner: str, rows: int) -> program.Shapes:
        """Return the public shapes of an owner's packed rows."""
        words = -(-rows // circuits.WORD_BITS)
        out: program.Shapes = {"cells": (sum(self._digits[place] for place in self.task.feature_indices(owner)), words)}
        return out | ({"target": (self._target_digits + 1, words)} if self.task.holds_target(owner) else {})

    def find_fault(self, engine: Engine, owner: str, shares: program.Shares) -> str | None:
        """Check on shares that every bin and class exists in the schema."""
        planes = circuits.decompose_bits(engine, shares["cells"])
        sizes = [self._columns[place].n_bins for place in self.task.feature_indices(owner)]
        parts = list(zip(self._split_columns(planes, owner), sizes, strict=True))
        if "target" in shares and self.task.public_schema.classes:
            target = circuits.decompose_bits(engine, shares["target"])
            parts.append((target[: self._target_digits], len(self.task.public_schema.classes)))
        wrong = [
            ~circuits.one_hot_bits(engine, digits, size).map_parts(lambda part: np.bitwise_xor.reduce(part, axis=0))
            for digits, size in parts
            if size < 1 << len(digits)
        ]
        if wrong and not engine.is_all_zero(circuits.popcount(engine, stack(wrong))):
            return "cells or classes that are not in the schema"
        return None

    def train(
        self,
        engine: Engine,
        rows: Mapping[str, program.Shares],
        owner_channels: program.OwnerChannels = program.NO_OWNERS,
    ) -> program.TrainingResult:
        """Run PrivateForest on the shared rows."""
        cells: dict[int, Bits] = {}
        if self.task.is_vertical:
            for owner, part in rows.items():
                held = self._split_columns(circuits.decompose_bits(engine, part["cells"]), owner)
                cells |= dict(zip(self.task.feature_indices(owner), held, strict=True))
            (target,) = (part["target"] for part in rows.values() if "target" in part)
        else:
            joined = concatenate([part["cells"] for part in rows.values()], axis=1)
            target = concatenate([part["target"] for part in rows.values()], axis=1)
            cells = dict(enumerate(self._split_columns(circuits.decompose_bits(engine, joined), next(iter(rows)))))
        planes = circuits.decompose_bits(engine, target)
        source = BitslicedRows.from_shares(
            engine, [cells[place] for place in range(len(cells))], planes[:-1], planes[-1]
        )
        return program.TrainingResult(
            released={"opened": joint.run_server(engine, self.estimator, self.plan, self.noise_protocol, source)}
        )

    def _split_columns(self, planes: Bits, owner: str) -> list[Bits]:
        """Split planes into the digits of each column of an owner."""
        ends = np.cumsum([self._digits[place] for place in self.task.feature_indices(owner)]).tolist()
        return [planes[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def padded_row_count(rows: int, pad_to: int | None) -> int:
    """Return the number of shared rows, padded to a public number if one is given."""
    if rows == 0:
        raise UseError("there are no rows. Hint: pass at least one.")
    if pad_to is not None and pad_to < rows:
        raise UseError(f"{rows} rows cannot be padded to {pad_to}. Hint: choose a larger public number.")
    return rows if pad_to is None else pad_to


def _pad_planes(planes: Bools, rows: int) -> Bools:
    """Append padding rows of zeros, which are not valid rows."""
    return np.pad(planes, ((0, 0), (0, rows - planes.shape[1])))
