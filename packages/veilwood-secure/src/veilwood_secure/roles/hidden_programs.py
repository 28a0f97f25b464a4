# SPDX-License-Identifier: Apache-2.0
"""Trees and forests that stay in shares, for each role: what owners and users share, and what servers do with it.

The protocols themselves are in ``secure.protocols``; how shares travel is in ``server``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np

from veilwood.data.encoding import Encoding
from veilwood.errors import PartyError, UseError
from veilwood.privacy.loss import Loss, exact
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Plan
from veilwood.privacy.selection import NoisyMax
from veilwood.privacy.steps import Step
from veilwood_secure.mpc.engine import Engine, Shared, concatenate
from veilwood_secure.mpc.round_batching import together
from veilwood_secure.protocols import noise, records
from veilwood_secure.protocols.circuits import argmax
from veilwood_secure.protocols.hidden_forest import (
    HiddenPlan,
    grow_hidden_forest,
    layout_of,
    of_tree,
    plan_hidden_forest,
    sampling_delta,
    trees_of_rows,
)
from veilwood_secure.protocols.hidden_trees import (
    Cuts,
    HiddenTree,
    Recipe,
    binary_votes,
    draw_noise,
    grow_binary,
    narrow,
    predict,
    total_votes,
)
from veilwood_secure.protocols.records import Records, are_classes
from veilwood_secure.roles.config import Task
from veilwood_secure.roles.program import NOBODY, Arrays, OneHotRows, Shapes, Shares, Trained, Voices, completed

WANTED: Final = 0.95
"""Of the questions on which all trees agree, what private votes answer rightly by default."""
MOST_TREES: Final = 1000
SHARES_SHOWN: Final = (1.0, 0.8, 0.6)


class HiddenForest(OneHotRows):
    """One or more trees that stay in shares, and answer in shares; the default."""

    reveals = False
    settings: ClassVar[Mapping[str, Any]] = {"max_depth": 3, "n_trees": 1}

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._planned = self._plan()
        self.plan = self._planned.plan

    def _plan(self) -> HiddenPlan:
        return plan_hidden_forest(self.schema, epsilon=self.task.loss, **completed(self.task, self.settings))

    # -- servers -------------------------------------------------------------------------------------------------

    def train(self, engine: Engine, rows: Mapping[str, Shares], present: Voices = NOBODY) -> Trained:
        """Grow the forest; nothing is opened."""
        trees = grow_hidden_forest(engine, self.joined(engine, rows), self._planned)
        return self.stored(trees)

    def stored(self, trees: Sequence[HiddenTree]) -> Trained:
        """Return what stays at the servers."""
        hidden: dict[str, Shared] = {}
        for number, tree in enumerate(trees):
            hidden |= {f"{number}.{level}": part for level, part in enumerate(tree.splits)}
            hidden[f"{number}.leaves"] = tree.leaves
        return Trained(hidden)

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
        packages/veilwood-secure/tests/roles/test_answers.py::test_three_servers_do_not_let_a_tree_be_read).
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
    packages/veilwood-secure/tests/roles/test_hidden_programs.py::test_the_law_of_private_votes).
    """

    settings: ClassVar[Mapping[str, Any]] = {"max_depth": 3, "n_trees": None, "query_epsilon": "1/4"}

    def _plan(self) -> HiddenPlan:
        task = self.task
        chosen = completed(task, self.settings)
        neighbours = Neighbours()
        each, depth = exact(chosen["query_epsilon"]), chosen["max_depth"]
        self.most = int(task.loss / each)
        n_trees = chosen["n_trees"]
        if n_trees is None and self.most >= 1:
            n_trees = trees_for(each, neighbours.score_range(2), self.domain.n_classes)
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
            notes={
                f"answers right if {share:.0%} of {n_trees} trees are": f"{right:.0%}"
                for share in SHARES_SHOWN
                if (right := right_answers(n_trees, share, each, score_range, self.domain.n_classes))
            },
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


def right_answers(n_trees: int, share: float, epsilon: Fraction, score_range: int, n_classes: int) -> float:
    """Return how often a noisy majority is right, if a share of the trees is and the others agree on another class.

    >>> right_answers(15, 1.0, Fraction(1, 10), 2, 2) < 0.8 < 0.95 < right_answers(30, 1.0, Fraction(1, 4), 2, 2)
    True
    """
    right = round(share * n_trees)
    votes = [right, n_trees - right, *[0] * (n_classes - 2)]
    return float(NoisyMax(epsilon, score_range).law(votes)[0])


def trees_for(epsilon: Fraction, score_range: int, n_classes: int) -> int:
    """Return how many trees it takes until unanimous ones are answered rightly in ``WANTED`` of cases."""
    few, many = 1, 2
    while right_answers(many, 1.0, epsilon, score_range, n_classes) < WANTED and many < MOST_TREES:
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        enough = right_answers(middle, 1.0, epsilon, score_range, n_classes) >= WANTED
        few, many = (few, middle) if enough else (middle, many)
    return min(many, MOST_TREES)


def refused_questions(user: str) -> PartyError:
    """One refusal for all questions of a message and for everything that can be wrong with one of them."""
    return PartyError(
        f"user {user} sent questions that are not rows of the schema: none of them is answered.", party=f"user {user}"
    )


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
