# SPDX-License-Identifier: Apache-2.0
"""What forests with noisy leaves share: the leaf step of their plan, the cleaning of leaves, votes and means.

How a family gets its trees is in its own file; the protocol that all families follow is in ``method``.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Count
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Schema
from veilwood.errors import ModelFileError
from veilwood.forests import leaves as cleaning
from veilwood.forests.method import Arrays, Codes, Floats, ForestModel, Method, Model, Parameters
from veilwood.privacy.entropy import secret_key
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import ALL_TO_EVERY_TREE, EACH_TO_ONE_TREE, Plan, Records
from veilwood.privacy.steps import Step, counting_step
from veilwood.trees.counting import Assignment, LeafCount
from veilwood.trees.forest import Forest

AVERAGE = "threshold"  # the vote by averaged shares, which is also how numbers are predicted
VOTINGS: tuple[str, ...] = ("majority", AVERAGE, "probabilistic")
TREES = ("shared", "disjoint")


@dataclass(eq=False, repr=False, kw_only=True)
class LeafParameters(Parameters):
    """Parameters of every forest with noisy leaves; families have their own defaults, and classifiers ``voting``."""

    n_estimators: Any
    max_depth: Any
    trees: str
    leaves: str = "plain"


@dataclass(frozen=True, eq=False)
class LeafModel(ForestModel):
    """Noisy class counts, or rotated pairs of a regression target, in the leaves; what they say is averaged."""

    leaf_counts: NDArray[Any]
    voting: str = AVERAGE
    seed: int = 0  # of the coins of probabilistic voting, which protect nobody

    shown: ClassVar[tuple[str, ...]] = ("forest", "leaf_counts")

    def outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return the probability of each class, by the trees' votes or averaged over leaves; or the mean target."""
        mean = self.sums(codes, n_jobs) / self.forest.n_trees
        if self.encoding.schema.classes:
            return cleaning.with_doubt(mean, self.forest.n_trees)
        return self.encoding.decode_target(mean[:, 0] * TARGET_LEVELS)

    def answers(self, codes: Codes, n_jobs: int | None = None) -> tuple[Floats, NDArray[np.int64]]:
        """Return probabilities, and the class with the largest share or one that is drawn by the shares."""
        shares = self.sums(codes, n_jobs) / self.forest.n_trees
        said = cleaning.with_doubt(shares, self.forest.n_trees)
        if self.voting != "probabilistic":
            return said, np.asarray(shares.argmax(axis=1))
        coin = cleaning.coins(codes, self.seed)[:, None]
        return said, np.minimum((np.cumsum(shares, axis=1) <= coin).sum(axis=1), shares.shape[1] - 1)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The trees and their noisy leaves."""
        return {**self.forest.to_arrays(), "leaf_counts": self.leaf_counts}


L = TypeVar("L", bound=LeafParameters)


class LeafMethod(Method[L]):
    """A forest whose leaves hold noisy class counts, or the noisy rotated pair of a regression target."""

    leaf_dtype: ClassVar[type] = np.int64
    votings: ClassVar[tuple[str, ...]] = VOTINGS

    @property
    @abstractmethod
    def numeric(self) -> Literal["grid", "bins"]:
        """How numbers are encoded."""

    def check(self) -> None:
        """Refuse words that are not known."""
        voting = {"voting": self.votings} if self.task == "classification" else {}
        self.parameters.check_words(trees=TREES, leaves=cleaning.CLEANINGS, **voting)

    # -- the plan ------------------------------------------------------------------------------------------------

    @property
    def trees_per_row(self) -> int:
        """In how many trees a row counts."""
        return 1 if self.parameters.trees == "disjoint" else int(np.sum(self.parameters.n_estimators))

    @property
    def records(self) -> Records:
        """In which trees a row counts, in the words of a plan."""
        return EACH_TO_ONE_TREE if self.parameters.trees == "disjoint" else ALL_TO_EVERY_TREE

    def leaf_step(self, schema: Schema, loss: Loss, neighbours: Neighbours, n_leaves: int) -> Step:
        """Plan the release of all leaves.

        One row adds one class count (or one rotated pair, whose sum is TARGET_LEVELS) in each tree that sees it.
        """
        classes = schema.task == "classification"
        per_tree = 1 if classes else TARGET_LEVELS
        return counting_step(
            "class counts of leaves" if classes else "rotated target sums of leaves",
            (n_leaves, len(schema.classes) if classes else 2),
            loss,
            neighbours,
            l1=self.trees_per_row * per_tree,
            squared_l2=self.trees_per_row * per_tree**2,
        )

    def expected_leaf_mse(self, step: Step) -> float:
        """Return the squared error of a leaf; its rows, in regression, are the sum of its pair over TARGET_LEVELS."""
        return step.variance * (1 if self.task == "classification" else 2 / TARGET_LEVELS**2)

    # -- the data ------------------------------------------------------------------------------------------------

    def assignment(self, n_trees: int) -> Assignment | None:
        """Draw the secret key that gives each row to one tree, where trees are disjoint."""
        return Assignment(secret_key(), n_trees) if self.parameters.trees == "disjoint" else None

    def leaf_count(self, encoding: Encoding, forest: Forest, assignment: Assignment | None) -> Count:
        """Say what is added up for the leaves: exact, for the door only."""
        return LeafCount(forest, len(encoding.schema.classes) or None, TARGET_LEVELS, assignment)

    # -- after the door ------------------------------------------------------------------------------------------

    def model(self, encoding: Encoding, forest: Forest, counts: NDArray[Any], plan: Plan) -> LeafModel:
        """Make the model of noisy leaves: the only place where they are cleaned."""
        voting = getattr(self.parameters, "voting", AVERAGE)
        values = self.leaf_values(forest, counts, plan)
        said = cleaning.votes(values) if voting == "majority" else values
        return LeafModel(encoding, forest, said, counts, voting, plan.public_seed)

    def leaf_values(self, forest: Forest, counts: NDArray[Any], plan: Plan) -> Floats:
        """Class shares (or scaled mean and complement) of each leaf, by the chosen cleaning."""
        if self.parameters.leaves == "empirical-bayes":
            counts = cleaning.shrunken_counts(forest, counts.astype(float), plan.steps[-1].variance)
        if self.task == "classification":
            return cleaning.plain_shares(counts)
        return cleaning.plain_means(counts, TARGET_LEVELS)

    def restore(self, schema: Schema, plan: Plan, arrays: Arrays) -> LeafModel:
        """Check trees and leaves, and clean the leaves again."""
        encoding = Encoding(schema, self.numeric)
        forest = Forest.from_arrays(arrays, encoding.n_codes)
        shape, counts = (forest.n_leaves, len(schema.classes) or 2), arrays.get("leaf_counts")
        if counts is None or counts.dtype != self.leaf_dtype or counts.shape != shape:
            raise ModelFileError(f"the leaf counts are missing, or not {shape} numbers as planned.")
        if forest.n_leaves > plan.n_leaves:
            raise ModelFileError(f"{forest.n_leaves} leaves are more than the {plan.n_leaves} planned.")
        return self.model(encoding, forest, counts, plan)

    def warning(self, plan: Plan, model: Model) -> str | None:
        """Say so when the noise is larger than the leaves, judged from the noisy counts themselves."""
        assert isinstance(model, LeafModel)
        unit = 1 if self.task == "classification" else TARGET_LEVELS
        rows_per_leaf = max(0.0, float(model.leaf_counts.sum()) / unit) / model.forest.n_leaves
        noise = plan.expected_leaf_mse**0.5
        if noise <= rows_per_leaf or noise == 0:
            return None
        cleaner = "" if self.parameters.leaves == "empirical-bayes" else ", use leaves='empirical-bayes'"
        return (
            f"expected noise of {noise:.3g} rows on each count of a leaf of about {rows_per_leaf:.3g} rows. "
            f"Hint: vw.tune compares settings; lower max_depth or n_estimators{cleaner}, or spend more epsilon."
        )
