# SPDX-License-Identifier: Apache-2.0
"""Programs that train public trees: CDP+PMPC-ID3 (``cdp-id3``) and extra trees (``extra-trees``).

Programs for hidden trees are in ``hidden_programs``, the protocols themselves in ``protocols.public_trees``. The two
programs of the paper that are NOT PRIVATE (``mpc-id3``, ``odp-id3``) are part of the reproductions and not shipped.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from veilwood.arrays import Ints
from veilwood.data.encoding import Encoding, class_labels
from veilwood.data.schema import Schema
from veilwood.errors import PartyError, UseError
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.plan import ALL_TO_EVERY_TREE, EACH_TO_ONE_TREE, Layout, Plan
from veilwood.privacy.selection import ExponentialMechanism, NoisyMax
from veilwood.privacy.steps import Step
from veilwood_secure.mpc.engine import Engine
from veilwood_secure.protocols import noise, public_trees
from veilwood_secure.protocols.hidden_forest import level_epsilons, sampling_delta
from veilwood_secure.protocols.public_trees import PlainTree, SelectFeatures, SelectLabels, grow_public_forest
from veilwood_secure.roles import program
from veilwood_secure.roles.config import Task

LEAF_MECHANISMS: Final = ("laplace", "exponential", "noisy-max")
SPLIT_MECHANISMS: Final = ("noisy-max", "exponential")
BUDGETS: Final = ("growing", "even")


@dataclass(frozen=True)
class PublicForest:
    """Model of public trees. Predictions spend no budget."""

    schema: Schema
    trees: Sequence[PlainTree]

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class with the most votes; ties go to the first class."""
        codes = np.asarray(Encoding(self.schema, "bins").encode(X), np.int64)
        votes = np.zeros((len(codes), len(self.schema.classes)), np.int64)
        for tree in self.trees:
            votes[np.arange(len(codes)), tree.predict(codes)] += 1
        return np.asarray(class_labels(self.schema)[votes.argmax(axis=1)])


class PublicTrees(program.OneHotRows):
    """Base class of programs that open their trees level by level: one tree, or several on disjoint rows."""

    opens_values = True
    settings: ClassVar[Mapping[str, Any]] = {"max_depth": 3, "n_trees": 1}

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.options = program.complete_settings(task, self.settings)
        self.depth, self.n_trees = int(self.options["max_depth"]), int(self.options["n_trees"])
        if not 1 <= self.depth <= self.domain.n_features or self.n_trees < 1:
            raise UseError(
                f"task {task.name!r}: {self.n_trees} trees of depth {self.depth} cannot be grown. Hint: choose a depth "
                f"from 1 to {self.domain.n_features} and at least one tree."
            )
        self.plan = self._make_plan()

    @abstractmethod
    def _make_plan(self) -> Plan:
        """Return the plan of all openings, with the privacy loss."""

    @abstractmethod
    def selection_rules(self) -> list[tuple[SelectFeatures, SelectLabels]]:
        """Return the selectors of splits and labels of each tree."""

    def max_nodes(self, level: int) -> int:
        """Return the largest number of nodes of all trees at a depth: each feature is used at most once on a path."""
        return self.n_trees * math.prod(sorted(self.domain.sizes, reverse=True)[:level])

    def build_plan(self, loss: Loss, steps: Sequence[Step], released: str) -> Plan:
        """Return the plan with the layout of these trees."""
        records = EACH_TO_ONE_TREE if self.n_trees > 1 else ALL_TO_EVERY_TREE
        return Plan(
            estimator=type(self).__name__, loss=loss, neighbours=Neighbours(), steps=tuple(steps), released=released,
            schema_name=self.schema.name, schema_hash=self.schema.fingerprint(),
            layout=Layout(self.n_trees, self.max_nodes(self.depth), self.depth, records), expected_leaf_mse=0.0,
        )  # fmt: skip

    def train(
        self,
        engine: Engine,
        rows: Mapping[str, program.Shares],
        owner_channels: program.OwnerChannels = program.NO_OWNERS,
    ) -> program.TrainingResult:
        """Train the trees and open their splits and labels."""
        trees = grow_public_forest(
            engine, self.join_rows(engine, rows), self.domain, self.depth, self.selection_rules()
        )
        return program.TrainingResult(
            released={"trees": np.concatenate([part for tree in trees for part in (*tree.splits, tree.leaves)])}
        )

    def read_model(self, released: Ints) -> PublicForest:
        """Parse the released trees."""
        sizes, left, trees = np.array(self.domain.sizes), released, []
        for _ in range(self.n_trees):
            splits, nodes = [], 1
            for _ in range(self.depth):
                chosen, left = _take_indices(left, nodes, len(sizes))
                splits.append(chosen)
                nodes = int(sizes[chosen].sum())
            leaves, left = _take_indices(left, nodes, self.domain.n_classes)
            trees.append(PlainTree(tuple(splits), leaves, self.domain.sizes))
        if len(left):
            raise PartyError("the servers released more values than the trees of the task have.")
        return PublicForest(self.schema, trees)


def _take_indices(numbers: Ints, count: int, bound: int) -> tuple[Ints, Ints]:
    """Split off the first numbers of a list, which must be indices below a bound."""
    first = numbers[:count]
    if len(first) < count or first.min() < 0 or first.max() >= bound:
        raise PartyError("the released values do not match the trees of the task.")
    return first, numbers[count:]


class NoisyPublicTrees(PublicTrees):
    """CDP+PMPC-ID3: public trees whose splits and labels are selected with noise and opened.

    Notes
    -----
    Guarantee

    The losses of levels and leaves sum to the task's epsilon, plus the delta of sampling on shares; a row is in one
    tree
    (proofs/secure.md, attacked by packages/veilwood-secure/tests/roles/test_public_programs.py).
    """

    ring = np.uint64
    settings: ClassVar[Mapping[str, Any]] = {
        "max_depth": 3, "n_trees": 1, "splits": "noisy-max", "leaves": "laplace", "budget": "growing",
    }  # fmt: skip

    def _make_plan(self) -> Plan:
        splits, leaves = self.options["splits"], self.options["leaves"]
        if self.options.get("budget", "growing") not in BUDGETS:
            raise UseError(
                f"task {self.task.name!r}: budget={self.options['budget']!r} is unknown. "
                f"Hint: choose {' or '.join(BUDGETS)}."
            )
        if splits not in SPLIT_MECHANISMS or leaves not in LEAF_MECHANISMS:
            raise UseError(
                f"task {self.task.name!r}: splits={splits!r}, leaves={leaves!r} are not mechanisms. "
                f"Hint: choose splits {' or '.join(SPLIT_MECHANISMS)}, and leaves {' or '.join(LEAF_MECHANISMS)}."
            )
        neighbours, m, u = Neighbours(), self.domain.n_features, self.domain.n_classes
        self._score_range = neighbours.score_range(1)
        self._budgets = self._split_budget()
        steps, draws, delta = [], [], Fraction(0)
        for level, budget in enumerate(self._budgets):
            last = level == len(self._budgets) - 1
            kind, width = (leaves, u) if last else (splits, m)
            shape = (self.max_nodes(self.depth if last else level), width)
            name = "classes of leaves" if last else f"splits at depth {level}"
            if kind == "laplace":
                mechanism: Any = DiscreteLaplace(neighbours.l1_sensitivity(1) / budget)
                draws.append((mechanism.scale, 2 * math.prod(shape)))
            elif kind == "exponential":
                mechanism = ExponentialMechanism(budget, self._score_range)
                more = noise.exponential_delta(self.task.exact_epsilon, width, shape[0])
                delta += Fraction(math.nextafter(more, math.inf))
            else:
                mechanism = NoisyMax(budget, self._score_range)
                draws.append((self._score_range / budget, math.prod(shape)))
            steps.append(Step(name, Loss.pure(budget), mechanism, self._score_range, shape))
        delta += sampling_delta(self.task.exact_epsilon, draws)
        return self.build_plan(
            Loss(self.task.exact_epsilon, delta), steps, "trees whose splits and leaves are chosen with noise"
        )

    def find_unchecked(self) -> str | None:
        """Return the exponential mechanism if it is used: its weights times a uniform number take 60 bits."""
        return "exponential weights" if "exponential" in (self.options["splits"], self.options["leaves"]) else None

    def _split_budget(self) -> tuple[Fraction, ...]:
        """Return the budgets of levels and leaves, divided as for hidden trees or, as published, evenly."""
        return level_epsilons(self.task.exact_epsilon, self.depth, even=self.options["budget"] == "even")

    def selection_rules(self) -> list[tuple[SelectFeatures, SelectLabels]]:
        """Return noisy selectors, level by level."""
        *levels, last = self._budgets
        chosen = [
            public_trees.exponential_selector(2 * budget / self._score_range)
            if self.options["splits"] == "exponential"
            else public_trees.noisy_max_selector(self._score_range / budget)
            for budget in levels
        ]

        def select_features(engine: Engine, level: public_trees.PendingLevel) -> Ints:
            return chosen[level.depth](engine, level)

        return [(select_features, self._leaf_labeller(last))] * self.n_trees

    def _leaf_labeller(self, budget: Fraction) -> SelectLabels:
        leaves = self.options["leaves"]
        if leaves == "laplace":
            return public_trees.noisy_count_labeller(Neighbours().l1_sensitivity(1) / budget)
        if leaves == "exponential":
            return public_trees.exponential_labeller(2 * budget / self._score_range)
        return public_trees.noisy_max_labeller(self._score_range / budget)


class ExtraTrees(NoisyPublicTrees):
    """Extra trees: random public splits, disjoint rows, and labels selected with noise."""

    settings: ClassVar[Mapping[str, Any]] = {"max_depth": 3, "n_trees": 10, "leaves": "noisy-max", "random_state": 0}

    def __init__(self, task: Task) -> None:
        given = program.complete_settings(task, self.settings)
        self._seed = given["random_state"]
        super().__init__(task)

    def _make_plan(self) -> Plan:
        self.options = {**self.options, "splits": "noisy-max"}
        return super()._make_plan()

    def _split_budget(self) -> tuple[Fraction, ...]:
        return (self.task.exact_epsilon,)

    def selection_rules(self) -> list[tuple[SelectFeatures, SelectLabels]]:
        """Return random selectors from the public seed, the same for all parties."""
        seeds = np.random.SeedSequence(self._seed).spawn(self.n_trees)
        label = self._leaf_labeller(self.task.exact_epsilon)
        return [(public_trees.random_selector(np.random.default_rng(seed)), label) for seed in seeds]
