# SPDX-License-Identifier: Apache-2.0
"""Programs whose trees stay in shares: hidden forests, private votes and binary trees.

The protocols are implemented in ``veilwood_secure.protocols``; shares are sent and received in ``server``.
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
from veilwood.privacy.loss import Loss, exact_fraction
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Plan
from veilwood.privacy.selection import NoisyMax
from veilwood.privacy.steps import Step
from veilwood_secure.mpc.engine import Engine, Shared, concatenate
from veilwood_secure.mpc.round_batching import run_in_lockstep
from veilwood_secure.protocols import hidden_forest, hidden_trees, noise, records
from veilwood_secure.protocols.circuits import argmax
from veilwood_secure.protocols.records import SharedRows, are_valid_classes
from veilwood_secure.roles import program
from veilwood_secure.roles.config import Task

TARGET_ACCURACY: Final = 0.95
"""Default fraction of correct answers of private votes to queries on which all trees agree."""
MAX_TREES: Final = 1000
REPORTED_FRACTIONS: Final = (1.0, 0.8, 0.6)


class HiddenForest(program.OneHotRows):
    """Default program: one or more trees that stay in shares and answer queries in shares."""

    opens_values = False
    settings: ClassVar[Mapping[str, Any]] = {"max_depth": 3, "n_trees": 1}

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._planned = self._make_plan()
        self.plan = self._planned.plan

    def _make_plan(self) -> hidden_forest.HiddenPlan:
        return hidden_forest.plan_hidden_forest(
            self.schema, epsilon=self.task.exact_epsilon, **program.complete_settings(self.task, self.settings)
        )

    def find_unchecked(self) -> str | None:
        """Return the exponential mechanism if it is used: the only part of a hidden tree that needs long words."""
        return "exponential weights" if self.ring == np.uint64 else None

    # Servers

    def train(
        self,
        engine: Engine,
        rows: Mapping[str, program.Shares],
        owner_channels: program.OwnerChannels = program.NO_OWNERS,
    ) -> program.TrainingResult:
        """Train the forest; nothing is opened."""
        trees = hidden_forest.grow_hidden_forest(engine, self.join_rows(engine, rows), self._planned)
        return self.pack_trees(trees)

    def pack_trees(self, trees: Sequence[hidden_trees.HiddenTree]) -> program.TrainingResult:
        """Return the trees as arrays in shares."""
        hidden: dict[str, Shared] = {}
        for number, tree in enumerate(trees):
            hidden |= {f"{number}.{level}": part for level, part in enumerate(tree.splits)}
            hidden[f"{number}.leaves"] = tree.leaves
        return program.TrainingResult(hidden)

    # Users

    def encode_queries(self, X: Any) -> tuple[program.Arrays, int]:
        """Return the arrays that a user shares, and the number of queries."""
        bits = records.encode_one_hot(Encoding(self.schema, "bins").encode(X), self.domain)
        return {"features": bits}, bits.shape[-1]

    def query_shapes(self, rows: int) -> program.Shapes:
        """Return the shapes of these arrays."""
        return {"features": (self.domain.n_features, self.domain.width, rows)}

    def answer_queries(self, engine: Engine, model: program.Shares, query: program.Shares) -> Shared:
        """Predict in shares: the class index of each query."""
        return hidden_trees.predict_queries(engine, self._unpack_trees(model), query["features"])

    def _unpack_trees(self, model: program.Shares) -> list[hidden_trees.HiddenTree]:
        depth = self._planned.recipe.depth
        return [
            hidden_trees.HiddenTree(
                tuple(model[f"{number}.{level}"] for level in range(depth)), model[f"{number}.leaves"]
            )
            for number in range(self._planned.n_trees)
        ]

    def check_queries(self, engine: Engine, user: str, query: program.Shares) -> None:
        """Raise PartyError if a user's queries are not rows. The model is not used before.

        Notes
        -----
        Guarantee

        A user learns the classes of rows and nothing else of a tree. Answers are multilinear in a query, so queries
        that are not one-hot would reveal its splits (proofs/secure.md, attacked by
        packages/veilwood-secure/tests/roles/test_answers.py::test_three_servers_do_not_let_a_tree_be_read).
        """
        features = query["features"]
        if not engine.is_consistent(features) or not records.are_one_hot(engine, features, self.domain):
            raise invalid_queries_error(user)

    def query_loss(self, rows: int) -> Loss | None:
        """Return the loss of answers beyond training, or None."""
        return None


class PrivateVotes(HiddenForest):
    """Hidden trees without noise, on disjoint rows. Each answer is a noisy majority vote with a privacy loss.

    Notes
    -----
    Guarantee

    A row is in one tree, so it moves at most one vote from one class to another: the scores of a noisy maximum
    change by -1 and +1, a range of 2 (4 if a row is replaced). Each query costs ``query_epsilon``. Losses of adaptive
    queries add up, and the plan's epsilon bounds their total. Queries must be one-hot, which is checked
    (proofs/private-votes.md, attacked by
    packages/veilwood-secure/tests/roles/test_hidden_programs.py::test_the_law_of_private_votes).
    """

    settings: ClassVar[Mapping[str, Any]] = {"max_depth": 3, "n_trees": None, "query_epsilon": "1/4"}

    def _make_plan(self) -> hidden_forest.HiddenPlan:
        task = self.task
        chosen = program.complete_settings(task, self.settings)
        neighbours = Neighbours()
        each, depth = exact_fraction(chosen["query_epsilon"]), chosen["max_depth"]
        self.max_answers = int(task.exact_epsilon / each)
        n_trees = chosen["n_trees"]
        if n_trees is None and self.max_answers >= 1:
            n_trees = choose_n_trees(each, neighbours.score_range(2), self.domain.n_classes)
        if self.max_answers < 1 or n_trees < 1:
            raise UseError(f"task {task.name!r}: epsilon {task.epsilon} is less than the loss {each} of one answer.")
        score_range = neighbours.score_range(2)
        self._scale = score_range / each
        epsilon, shape = self.max_answers * each, (self.max_answers, self.domain.n_classes)
        delta = hidden_forest.sampling_delta(epsilon, [(self._scale, math.prod(shape))])
        self._answer_loss = Loss(each, delta / self.max_answers)
        recipe = hidden_trees.Recipe(self.domain, (None,) * depth, None)
        plan = Plan(
            estimator="PrivateVotes",
            loss=Loss(epsilon, delta),
            neighbours=neighbours,
            steps=(
                Step(
                    f"majority of votes, up to {self.max_answers} times", Loss.pure(epsilon),
                    NoisyMax(each, score_range), score_range, shape, selections_per_row=self.max_answers,
                ),
            ),
            released="nothing but noisy majorities of the votes of trees that stay in shares",
            schema_name=self.schema.name,
            schema_hash=self.schema.fingerprint(),
            layout=hidden_forest.forest_layout(recipe, n_trees),
            expected_leaf_mse=0.0,
            notes={
                f"answers right if {share:.0%} of {n_trees} trees are": f"{right:.0%}"
                for share in REPORTED_FRACTIONS
                if (right := vote_accuracy(n_trees, share, each, score_range, self.domain.n_classes))
            },
        )  # fmt: skip
        return hidden_forest.HiddenPlan(plan, recipe, n_trees)

    def query_loss(self, rows: int) -> Loss | None:
        """Return the loss of a batch of queries, proportional to their number."""
        each = self._answer_loss
        assert each.epsilon is not None
        return Loss(rows * each.epsilon, rows * each.delta)

    def answer_queries(self, engine: Engine, model: program.Shares, query: program.Shares) -> Shared:
        """Return the class index of the noisy maximum of votes, with noise that no server knows."""
        total = hidden_trees.sum_votes(engine, self._unpack_trees(model), query["features"])
        winner = argmax(engine, total + noise.geometric(engine, self._scale, total.shape))
        return engine.refresh((winner * np.arange(winner.shape[0])[:, None]).sum(axis=0))


def vote_accuracy(n_trees: int, fraction_right: float, epsilon: Fraction, score_range: int, n_classes: int) -> float:
    """Return the accuracy of a noisy majority if a fraction of trees is right and the others agree on a wrong class.

    >>> vote_accuracy(15, 1.0, Fraction(1, 10), 2, 2) < 0.8 < 0.95 < vote_accuracy(30, 1.0, Fraction(1, 4), 2, 2)
    True
    """
    right = round(fraction_right * n_trees)
    votes = [right, n_trees - right, *[0] * (n_classes - 2)]
    return float(NoisyMax(epsilon, score_range).probabilities(votes)[0])


def choose_n_trees(epsilon: Fraction, score_range: int, n_classes: int) -> int:
    """Return the smallest number of trees whose unanimous vote is reported with accuracy ``TARGET_ACCURACY``."""
    few, many = 1, 2
    while vote_accuracy(many, 1.0, epsilon, score_range, n_classes) < TARGET_ACCURACY and many < MAX_TREES:
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        enough = vote_accuracy(middle, 1.0, epsilon, score_range, n_classes) >= TARGET_ACCURACY
        few, many = (few, middle) if enough else (middle, many)
    return min(many, MAX_TREES)


def invalid_queries_error(user: str) -> PartyError:
    """Return the same error for any fault in any query of a message, so that the error reveals nothing else."""
    return PartyError(
        f"queries of user {user} do not fit the schema, or were changed on the way; none was answered. "
        "Hint: encode them by the schema of the task."
    )


class BinaryForest(HiddenForest):
    """Program for hidden binary trees: a node splits on a threshold or on one value."""

    def _make_plan(self) -> hidden_forest.HiddenPlan:
        self._cuts = hidden_trees.CutCandidates.from_schema(self.schema)
        return hidden_forest.plan_hidden_forest(
            self.schema,
            epsilon=self.task.exact_epsilon,
            n_cuts=self._cuts.n_cuts,
            **program.complete_settings(self.task, self.settings),
        )

    def encode_rows(self, owner: str, X: Any, y: Any, pad_to: int | None = None) -> tuple[program.Arrays, int]:
        """Encode an owner's rows as one-hot features, each column with its own number of values."""
        arrays, rows = super().encode_rows(owner, X, y, pad_to)
        return {
            **arrays,
            "features": hidden_trees.drop_dummy_values(arrays["features"], self._owner_sizes(owner)),
        }, rows

    def row_shapes(self, owner: str, rows: int) -> program.Shapes:
        """Return the shapes of these arrays."""
        return {**super().row_shapes(owner, rows), "features": (sum(self._owner_sizes(owner)), rows)}

    def find_fault(self, engine: Engine, owner: str, shares: program.Shares) -> str | None:
        """Check on shares that features and classes are one-hot."""
        if not _is_one_hot(engine, shares["features"], self._owner_sizes(owner)):
            return "features that are not one-hot"
        if "classes" in shares and not are_valid_classes(engine, shares["classes"], self.domain):
            return "classes that are not one-hot"
        return None

    def _owner_sizes(self, owner: str) -> list[int]:
        return [self.domain.sizes[place] for place in self.task.feature_indices(owner)]

    def join_rows(self, engine: Engine, rows: Mapping[str, program.Shares]) -> SharedRows:
        """Return the rows of all owners as one table: stacked, or columns joined in the schema's order."""
        if not self.task.is_vertical:
            features = concatenate([part["features"] for part in rows.values()], axis=1)
            return SharedRows(features, concatenate([part["classes"] for part in rows.values()], axis=1))
        columns: dict[int, Shared] = {}
        for owner, part in rows.items():
            ends = np.cumsum(self._owner_sizes(owner)).tolist()
            for place, start, end in zip(self.task.feature_indices(owner), [0, *ends[:-1]], ends, strict=True):
                columns[place] = part["features"][start:end]
        (classes,) = (part["classes"] for part in rows.values() if "classes" in part)
        return SharedRows(concatenate([columns[place] for place in range(len(columns))]), classes)

    def train(
        self,
        engine: Engine,
        rows: Mapping[str, program.Shares],
        owner_channels: program.OwnerChannels = program.NO_OWNERS,
    ) -> program.TrainingResult:
        """Train all trees in the same communication rounds; nothing is opened."""
        records, recipe, n_trees = self.join_rows(engine, rows), self._planned.recipe, self._planned.n_trees
        tree_of_row = hidden_forest.assign_rows_to_trees(engine, records.n_rows, n_trees) if n_trees > 1 else None

        def grow_tree(tree: int, lane: Engine) -> hidden_trees.HiddenTree:
            own = records if tree_of_row is None else hidden_forest.select_tree_rows(records, tree_of_row, tree)
            return hidden_trees.grow_binary_tree(
                lane, own.features, own.classes, self._cuts, recipe, hidden_trees.draw_tree_noise(lane, recipe)
            )

        return self.pack_trees(run_in_lockstep(engine, [partial(grow_tree, tree) for tree in range(n_trees)]))

    def encode_queries(self, X: Any) -> tuple[program.Arrays, int]:
        """Return the arrays that a user shares, and the number of queries."""
        arrays, rows = super().encode_queries(X)
        return {"features": hidden_trees.drop_dummy_values(arrays["features"], self.domain.sizes)}, rows

    def query_shapes(self, rows: int) -> program.Shapes:
        """Return the shapes of these arrays."""
        return {"features": (sum(self.domain.sizes), rows)}

    def check_queries(self, engine: Engine, user: str, query: program.Shares) -> None:
        """Raise PartyError if a user's queries are not rows. The model is not used before."""
        features = query["features"]
        if not engine.is_consistent(features) or not _is_one_hot(engine, features, self.domain.sizes):
            raise invalid_queries_error(user)

    def answer_queries(self, engine: Engine, model: program.Shares, query: program.Shares) -> Shared:
        """Predict in shares: the class index of each query."""
        trees = self._unpack_trees(model)
        programs = [
            partial(hidden_trees.classify_binary, tree=tree, cuts=self._cuts, queries=query["features"])
            for tree in trees
        ]
        votes = run_in_lockstep(engine, programs)
        total = votes[0]
        for one in votes[1:]:
            total = total + one
        winner = total if len(trees) == 1 else argmax(engine, total)
        return engine.refresh((winner * np.arange(winner.shape[0])[:, None]).sum(axis=0))


def _is_one_hot(engine: Engine, features: Shared, sizes: Any) -> bool:
    """Return True if every column of every row has exactly one value. Reveals only the answer."""
    starts = np.cumsum([0, *sizes[:-1]])
    sums = features.map_parts(lambda part: np.add.reduceat(part, starts, axis=0, dtype=part.dtype)) - 1
    holds = engine.products_hold(features, features, features)
    return engine.is_all_zero(sums) and holds
