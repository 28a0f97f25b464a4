# SPDX-License-Identifier: Apache-2.0
"""Rows as shares of one-hot codes, for each role: what owners encode, how servers check it and join it.

What is trained on them is in ``hidden_programs`` and ``paper_programs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema
from veilwood.errors import UseError
from veilwood.privacy.certificate import ByServers
from veilwood.secure.mpc.engine import Engine, Shared, concatenate
from veilwood.secure.protocols import records
from veilwood.secure.protocols.records import Domain, Records
from veilwood.secure.roles.config import Task
from veilwood.secure.roles.program import Arrays, Program, Shapes, Shares


class OneHotRows(Program):
    """What owners do where servers hold one-hot rows in shares: whole rows, or columns of the same rows."""

    ring: ClassVar[type[np.unsignedinteger[Any]]] = np.uint32

    def __init__(self, task: Task) -> None:
        self.task, self.schema = task, task.public
        self.domain = Domain.of(self.schema)
        self.mixes_rows = not task.by_columns  # owners of columns must keep to one order
        self.servers = ByServers("sampled", "columns" if task.by_columns else "rows")

    def part_of_schema(self, owner: str) -> Schema:
        """The schema of an owner's own table; its target is not in the table of every owner."""
        features = tuple(self.schema.features[place] for place in self.task.places(owner))
        return Schema(self.schema.name, self.schema.task, self.schema.target, features)

    def _domain(self, owner: str) -> Domain:
        return Domain(tuple(self.domain.sizes[place] for place in self.task.places(owner)), self.domain.n_classes)

    def encode_rows(self, owner: str, X: Any, y: Any, pad_to: int | None = None) -> tuple[Arrays, int]:
        """Encode an owner's rows as one-hot features and classes; padding has no class and counts nowhere."""
        encoding = Encoding(self.part_of_schema(owner), "bins")
        out: Arrays = {"features": records.one_hot(encoding.encode(X), self._domain(owner))}
        if self.task.holds_target(owner):
            if y is None:
                raise UseError(f"client {owner} holds the target {self.schema.target.name!r}. Hint: give y.")
            out["classes"] = records.one_hot_classes(encoding.encode_target(y), self.domain)
        counts = {array.shape[-1] for array in out.values()}
        if len(counts) > 1 or 0 in counts:
            raise UseError(f"X and y have {' and '.join(map(str, sorted(counts)))} rows. Hint: as many, and some.")
        rows = counts.pop()
        if pad_to is None:
            return out, rows
        if pad_to < rows:
            raise UseError(f"{rows} rows cannot be padded to {pad_to}. Hint: a larger public number.")
        padded = {key: np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, pad_to - rows)]) for key, array in out.items()}
        padded["features"][:, 0, rows:] = 1
        return padded, pad_to

    def shapes_of_rows(self, owner: str, rows: int) -> Shapes:
        """The shapes of one-hot features and classes."""
        domain = self._domain(owner)
        out: Shapes = {"features": (domain.n_features, domain.width, rows)}
        return out | ({"classes": (domain.n_classes, rows)} if self.task.holds_target(owner) else {})

    def faults(self, engine: Engine, owner: str, shares: Shares) -> str | None:
        """Whether features and classes are one-hot."""
        if not records.are_one_hot(engine, shares["features"], self._domain(owner)):
            return "features that are not one-hot"
        if "classes" in shares and not records.are_classes(engine, shares["classes"], self.domain):
            return "classes that are not one-hot"
        return None

    def joined(self, engine: Engine, rows: Mapping[str, Shares]) -> Records:
        """The rows of all owners as one table: below each other, or side by side in the schema's order."""
        if not self.task.by_columns:
            return records.stack_owners([Records(part["features"], part["classes"]) for part in rows.values()])
        places = [place for owner in rows for place in self.task.places(owner)]
        (classes,) = (part["classes"] for part in rows.values() if "classes" in part)
        joined = records.join_owners([self._widened(engine, part["features"]) for part in rows.values()], classes)
        return Records(joined.features[np.argsort(places)], classes)

    def _widened(self, engine: Engine, features: Shared) -> Shared:
        """Fill up to the common number of values with values that never occur."""
        m, w, n = features.shape
        never = engine.constant(np.zeros((m, self.domain.width - w, n), np.int64))
        return concatenate([features, never], axis=1) if w < self.domain.width else features
