# SPDX-License-Identifier: Apache-2.0
"""Trees and forests that stay in shares, for each role: what owners and users share, and what servers do with it.

The protocols themselves are in ``secure.protocols``; how shares travel is in ``server``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema
from veilwood.errors import PartyError, UseError
from veilwood.privacy.certificate import ByServers
from veilwood.privacy.loss import Loss, exact
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Plan
from veilwood.privacy.selection import NoisyMax
from veilwood.privacy.steps import Step
from veilwood.secure.mpc.engine import Engine, Shared, concatenate
from veilwood.secure.protocols import noise, records
from veilwood.secure.protocols.choose import argmax
from veilwood.secure.protocols.hidden_forest import grow_hidden_forest
from veilwood.secure.protocols.hidden_tree import HiddenTree, Recipe, predict, total_votes
from veilwood.secure.protocols.plans import HiddenPlan, layout_of, plan_hidden_forest, sampling_delta
from veilwood.secure.protocols.records import Domain, Records
from veilwood.secure.roles.config import Task
from veilwood.secure.roles.program import NOBODY, Arrays, Outcome, Program, Shapes, Shares, Voices, completed


class HiddenForest(Program):
    """One or more trees that stay in shares, and answer in shares; the default."""

    reveals = False
    ring = np.uint32
    settings: ClassVar[Mapping[str, Any]] = {"max_depth": 3, "n_trees": 1}

    def __init__(self, task: Task) -> None:
        self.task, self.schema = task, task.public
        self.domain = Domain.of(self.schema)
        self._planned = self._plan()
        self.plan = self._planned.plan
        self.servers = ByServers("sampled", "columns" if task.by_columns else "rows")

    def _plan(self) -> HiddenPlan:
        return plan_hidden_forest(self.schema, epsilon=self.task.loss, **completed(self.task, self.settings))

    # -- owners --------------------------------------------------------------------------------------------------

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

    # -- servers -------------------------------------------------------------------------------------------------

    def train(self, engine: Engine, rows: Mapping[str, Shares], present: Voices = NOBODY) -> Outcome:
        """Grow the forest; nothing is opened."""
        trees = grow_hidden_forest(engine, self._joined(engine, rows), self._planned)
        hidden: dict[str, Shared] = {}
        for number, tree in enumerate(trees):
            hidden |= {f"{number}.{level}": part for level, part in enumerate(tree.splits)}
            hidden[f"{number}.leaves"] = tree.leaves
        return Outcome(hidden)

    def _joined(self, engine: Engine, rows: Mapping[str, Shares]) -> Records:
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

    # -- users ---------------------------------------------------------------------------------------------------

    def encode_queries(self, X: Any) -> tuple[Arrays, int]:
        """Encode a user's queries as the arrays it shares."""
        bits = records.one_hot(Encoding(self.schema, "bins").encode(X), self.domain)
        return {"features": bits}, bits.shape[-1]

    def shapes_of_queries(self, rows: int) -> Shapes:
        """The shapes of these arrays."""
        return {"features": (self.domain.n_features, self.domain.width, rows)}

    def answer(self, engine: Engine, model: Shares, query: Shares) -> Shared:
        """Predict in shares: for each query the place of its class."""
        return predict(engine, self._trees(model), query["features"])

    def _trees(self, model: Shares) -> list[HiddenTree]:
        depth = self._planned.recipe.depth
        return [
            HiddenTree(tuple(model[f"{number}.{level}"] for level in range(depth)), model[f"{number}.leaves"])
            for number in range(self._planned.n_trees)
        ]

    def check_queries(self, engine: Engine, user: str, query: Shares) -> None:
        """Refuse, by name, a user whose questions are not rows; the model is not touched before.

        Notes
        -----
        Guarantee

        A user learns the classes of rows, and nothing else of a tree: answers are multilinear in a question, so that
        others would read its splits (proofs/secure.md, attacked by
        tests/secure/roles/test_questions.py::test_three_servers_do_not_let_a_tree_be_read).
        """
        features = query["features"]
        if not engine.consistent(features) or not records.are_one_hot(engine, features, self.domain):
            raise refused_questions(user)

    def cost_of_queries(self, rows: int) -> Loss | None:
        """What answers cost beyond training; None if nothing."""
        return None


class PrivateVotes(HiddenForest):
    """Exact trees on disjoint rows, hidden; each answer is the noisy majority of their votes, and costs.

    Notes
    -----
    Guarantee

    One row is in one tree, so it moves at most one vote from one class to another: the scores of a noisy maximum
    change by -1 and +1, a range of 2 (4 if a row is replaced). Each question costs ``query_epsilon``, questions add
    up, whatever was asked before, and the plan's epsilon is the most that is ever answered. That needs queries that
    are one-hot, which is checked (proofs/private-votes.md, attacked by
    tests/secure/roles/test_programs.py::test_the_law_of_private_votes).
    """

    settings: ClassVar[Mapping[str, Any]] = {"max_depth": 3, "n_trees": 15, "query_epsilon": "1/10"}

    def _plan(self) -> HiddenPlan:
        task = self.task
        chosen = completed(task, self.settings)
        neighbours = Neighbours()
        each, n_trees, depth = exact(chosen["query_epsilon"]), chosen["n_trees"], chosen["max_depth"]
        self.most = int(task.loss / each)
        if self.most < 1 or n_trees < 1:
            raise UseError(f"task {task.name!r}: epsilon {task.epsilon} does not pay for one answer of {each}.")
        score_range = neighbours.score_range(2)
        self._scale = score_range / each
        epsilon, shape = self.most * each, (self.most, self.domain.n_classes)
        delta = sampling_delta(epsilon, [(self._scale, math.prod(shape))])
        self._each = Loss(each, delta / self.most)
        recipe = Recipe(self.domain, (None,) * depth, None)
        plan = Plan(
            estimator="PrivateVotes",
            loss=Loss(epsilon, delta),
            neighbours=neighbours,
            steps=(
                Step(
                    f"majority of votes, up to {self.most} times", Loss.pure(epsilon), NoisyMax(each, score_range),
                    score_range, shape, choices=self.most,
                ),
            ),
            released="nothing but noisy majorities of the votes of trees that stay in shares",
            schema_name=self.schema.name,
            schema_hash=self.schema.fingerprint(),
            layout=layout_of(recipe, n_trees),
            expected_leaf_mse=0.0,
        )  # fmt: skip
        return HiddenPlan(plan, recipe, n_trees)

    def cost_of_queries(self, rows: int) -> Loss | None:
        """Return the price of a batch: each question as much as any other."""
        each = self._each
        assert each.epsilon is not None
        return Loss(rows * each.epsilon, rows * each.delta)

    def answer(self, engine: Engine, model: Shares, query: Shares) -> Shared:
        """Return the place of the class with the most votes, after noise that nobody knows."""
        total = total_votes(engine, self._trees(model), query["features"])
        winner = argmax(engine, total + noise.geometric(engine, self._scale, total.shape))
        return engine.refresh((winner * np.arange(winner.shape[0])[:, None]).sum(axis=0))


def refused_questions(user: str) -> PartyError:
    """One refusal for all questions of a message and for everything that can be wrong with one of them."""
    return PartyError(
        f"user {user} sent questions that are not rows of the schema: none of them is answered.", party=f"user {user}"
    )
