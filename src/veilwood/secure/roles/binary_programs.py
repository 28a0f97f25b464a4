# SPDX-License-Identifier: Apache-2.0
"""Hidden trees with two branches, for each role: columns keep their own widths.

The protocol is in ``secure.protocols.binary_tree``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from veilwood.secure.mpc.engine import Engine, Shared, concatenate
from veilwood.secure.mpc.together import together
from veilwood.secure.protocols.binary_tree import Cuts, binary_votes, grow_binary, narrow
from veilwood.secure.protocols.choose import argmax
from veilwood.secure.protocols.hidden_forest import of_tree, trees_of_rows
from veilwood.secure.protocols.hidden_tree import HiddenTree, draw_noise
from veilwood.secure.protocols.plans import HiddenPlan, plan_hidden_forest
from veilwood.secure.protocols.records import Records, are_classes
from veilwood.secure.roles.hidden_programs import HiddenForest, refused_questions
from veilwood.secure.roles.program import NOBODY, Arrays, Shapes, Shares, Trained, Voices, completed


class BinaryForest(HiddenForest):
    """Hidden trees whose nodes ask for a threshold or a value."""

    def _plan(self) -> HiddenPlan:
        self._cuts = Cuts.of(self.schema)
        return plan_hidden_forest(
            self.schema, epsilon=self.task.loss, n_cuts=self._cuts.count, **completed(self.task, self.settings)
        )

    def encode_rows(self, owner: str, X: Any, y: Any, pad_to: int | None = None) -> tuple[Arrays, int]:
        """Encode an owner's rows as one-hot features, each column in its own width."""
        arrays, rows = super().encode_rows(owner, X, y, pad_to)
        return {**arrays, "features": narrow(arrays["features"], self._sizes(owner))}, rows

    def shapes_of_rows(self, owner: str, rows: int) -> Shapes:
        """The shapes of these arrays."""
        return {**super().shapes_of_rows(owner, rows), "features": (sum(self._sizes(owner)), rows)}

    def faults(self, engine: Engine, owner: str, shares: Shares) -> str | None:
        """Whether features and classes are one-hot."""
        if not _one_hot(engine, shares["features"], self._sizes(owner)):
            return "features that are not one-hot"
        if "classes" in shares and not are_classes(engine, shares["classes"], self.domain):
            return "classes that are not one-hot"
        return None

    def _sizes(self, owner: str) -> list[int]:
        return [self.domain.sizes[place] for place in self.task.places(owner)]

    def joined(self, engine: Engine, rows: Mapping[str, Shares]) -> Records:
        """The rows of all owners as one table: below each other, or columns in the schema's order."""
        if not self.task.by_columns:
            features = concatenate([part["features"] for part in rows.values()], axis=1)
            return Records(features, concatenate([part["classes"] for part in rows.values()], axis=1))
        columns: dict[int, Shared] = {}
        for owner, part in rows.items():
            ends = np.cumsum(self._sizes(owner)).tolist()
            for place, start, end in zip(self.task.places(owner), [0, *ends[:-1]], ends, strict=True):
                columns[place] = part["features"][start:end]
        (classes,) = (part["classes"] for part in rows.values() if "classes" in part)
        return Records(concatenate([columns[place] for place in range(len(columns))]), classes)

    def train(self, engine: Engine, rows: Mapping[str, Shares], present: Voices = NOBODY) -> Trained:
        """Grow the trees, all in the same rounds; nothing of them is opened."""
        records, recipe, n_trees = self.joined(engine, rows), self._planned.recipe, self._planned.n_trees
        tree_of_row = trees_of_rows(engine, records.n_rows, n_trees) if n_trees > 1 else None

        def grown(tree: int, lane: Engine) -> HiddenTree:
            own = records if tree_of_row is None else of_tree(records, tree_of_row, tree)
            return grow_binary(lane, own.features, own.classes, self._cuts, recipe, draw_noise(lane, recipe))

        return self.stored(together(engine, [partial(grown, tree) for tree in range(n_trees)]))

    def encode_queries(self, X: Any) -> tuple[Arrays, int]:
        """Encode a user's queries as the arrays it shares."""
        arrays, rows = super().encode_queries(X)
        return {"features": narrow(arrays["features"], self.domain.sizes)}, rows

    def shapes_of_queries(self, rows: int) -> Shapes:
        """The shapes of these arrays."""
        return {"features": (sum(self.domain.sizes), rows)}

    def check_queries(self, engine: Engine, user: str, query: Shares) -> None:
        """Refuse, by name, a user whose questions are not rows; the model is not touched before."""
        features = query["features"]
        if not engine.consistent(features) or not _one_hot(engine, features, self.domain.sizes):
            raise refused_questions(user)

    def answer(self, engine: Engine, model: Shares, query: Shares) -> Shared:
        """Predict in shares: for each query the place of its class."""
        trees = self._trees(model)
        ways = [partial(binary_votes, tree=tree, cuts=self._cuts, queries=query["features"]) for tree in trees]
        votes = together(engine, ways)
        total = votes[0]
        for one in votes[1:]:
            total = total + one
        winner = total if len(trees) == 1 else argmax(engine, total)
        return engine.refresh((winner * np.arange(winner.shape[0])[:, None]).sum(axis=0))


def _one_hot(engine: Engine, features: Shared, sizes: Any) -> bool:
    """Whether every column of every row has exactly one value; reveals only the answer."""
    bits = engine.mul(features, 1 - features)
    starts = np.cumsum([0, *sizes[:-1]])
    sums = features.map(lambda part: np.add.reduceat(part, starts, axis=0, dtype=part.dtype)) - 1
    return engine.all_zero(concatenate([bits.reshape(-1), sums.reshape(-1)]))
